//! A YAML document as JSON, so that one decoder reads both (`yaml.YAMLToJSON`). Of a key given twice the last one counts.

use serde_json::{Map, Value};
use serde_saphyr::granit_parser::{Event, Parser, ScalarStyle, StrInput};

use super::resolve::{Plain, resolve};

/// LIMIT: nesting of a document; deeper ones are refused. An Event has five levels, and field managers a few more.
const DEPTH_MAX: usize = 64;

/// JSON for the YAML in `body`; of several documents the first.
///
/// LIMIT: anchors, aliases and tags are refused, which the apiserver takes: with them a small body is a large document.
pub(in crate::ingest) fn to_json(body: &[u8]) -> Result<Vec<u8>, String> {
    let text = String::from_utf8_lossy(body);
    let mut reader = Reader { parser: Parser::new_from_str(&text) };
    let document = loop {
        match reader.next()? {
            Event::StreamStart | Event::DocumentStart(..) => {}
            Event::StreamEnd | Event::DocumentEnd => break Value::Null,
            event => break reader.node(event, 0)?,
        }
    };
    serde_json::to_vec(&document).map_err(|error| error.to_string())
}

struct Reader<'t> {
    parser: Parser<'t, StrInput<'t>>,
}

impl<'t> Reader<'t> {
    fn next(&mut self) -> Result<Event<'t>, String> {
        match self.parser.next_event() {
            Some(Ok((event, _))) => Ok(event),
            Some(Err(error)) => Err(format!("yaml: line {}: {}", error.marker().line().max(1), error.info())),
            None => Ok(Event::StreamEnd),
        }
    }

    fn node(&mut self, event: Event<'t>, depth: usize) -> Result<Value, String> {
        if depth > DEPTH_MAX {
            return Err(format!("yaml: nesting deeper than {DEPTH_MAX} levels"));
        }
        match event {
            Event::Scalar(text, ScalarStyle::Plain, 0, None) => Ok(match resolve(&text) {
                Plain::Null => Value::Null,
                Plain::Bool(value) => Value::Bool(value),
                Plain::Number(number) => Value::Number(number),
                Plain::QuotedText | Plain::Text => Value::String(text.into_owned()),
            }),
            Event::Scalar(text, _, 0, None) => Ok(Value::String(text.into_owned())),
            Event::SequenceStart(_, 0, None) => self.sequence(depth),
            Event::MappingStart(_, 0, None) => self.mapping(depth),
            _ => Err("yaml: anchors, aliases and tags are not supported".to_owned()),
        }
    }

    fn sequence(&mut self, depth: usize) -> Result<Value, String> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                Event::SequenceEnd | Event::StreamEnd => return Ok(Value::Array(items)),
                event => items.push(self.node(event, depth.saturating_add(1))?),
            }
        }
    }

    fn mapping(&mut self, depth: usize) -> Result<Value, String> {
        let mut members = Map::new();
        loop {
            let key = match self.next()? {
                Event::MappingEnd | Event::StreamEnd => return Ok(Value::Object(members)),
                event => match self.node(event, DEPTH_MAX)? {
                    Value::String(key) => key,
                    Value::Array(_) | Value::Object(_) => return Err("yaml: invalid map key".to_owned()),
                    other => other.to_string(),
                },
            };
            let event = self.next()?;
            let value = self.node(event, depth.saturating_add(1))?;
            members.insert(key, value);
        }
    }
}
