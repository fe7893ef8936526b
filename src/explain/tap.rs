//! The tap: streams occurrences and their outcomes to readers. Nothing waits for a slow reader: it misses lines,
//! and gets the number of missed lines.

use std::sync::Arc;

use parking_lot::RwLock;
use serde::Serialize;
use smol_str::SmolStr;
use tokio::sync::broadcast;

use super::answer::{is_kind, stamp};
use super::history::{TEXT_BYTES, Verdict, short};
use crate::event::{Event, cut};

/// LIMIT: lines that are buffered for each slow reader; beyond it the oldest are left out. A power of two.
const LINES: usize = 256;

/// LIMIT: alternatives of a selector, because each line is compared with all of them; more are refused.
const ALTERNATIVES: usize = 100;

/// One line of the tap.
#[derive(Debug, Clone, Default, Serialize)]
#[expect(missing_docs, reason = "the members of an event")]
pub struct Line {
    pub time: String,
    pub verdict: &'static str,
    pub why: &'static str,
    pub namespace: SmolStr,
    pub kind: SmolStr,
    pub name: SmolStr,
    pub uid: SmolStr,
    pub reason: SmolStr,
    #[serde(rename = "type")]
    pub event_type: SmolStr,
    pub source: String,
    /// The component of `source`, which may have a slash.
    #[serde(skip)]
    pub component: SmolStr,
    pub occurrences: u64,
    pub record: SmolStr,
    pub message: SmolStr,
    /// The caller of occurrences that have just arrived, if callers are authenticated.
    #[serde(skip_serializing_if = "SmolStr::is_empty")]
    pub caller: SmolStr,
}

impl Line {
    /// Whether its source is `/HOST` or `COMPONENT/`, as in a question.
    fn is_from(&self, asked: &str) -> bool {
        let host = self.source.strip_prefix(&*self.component).and_then(|host| host.strip_prefix('/'));
        let is_host = |asked| host.is_some_and(|host| fits(asked, host));
        asked.strip_suffix('/') == Some(&self.component) || asked.strip_prefix('/').is_some_and(is_host)
    }
}

/// A reader's selector, and its lines.
type Reader = (Selector, broadcast::Sender<Arc<Line>>);

/// The sending end of the tap. Clones share the readers.
#[derive(Debug, Clone, Default)]
// LIMIT: as many as may read at once, and those that have left since the last one came.
pub struct Tap(Arc<RwLock<Vec<Reader>>>);

fn is_there((_, lines): &Reader) -> bool {
    lines.receiver_count() > 0
}

impl Tap {
    /// Whether the tap has a reader.
    pub fn is_read(&self) -> bool {
        self.0.read().iter().any(is_there)
    }

    /// Sends what became of occurrences, if the tap has a reader. `caller` has just reported them, or is empty.
    pub fn send(
        &self,
        event: &Event,
        verdict: &'static str,
        why: &'static str,
        occurrences: u64,
        caller: &str,
        wall: impl FnOnce() -> i64,
    ) {
        if !self.is_read() {
            return;
        }
        let component = cut(event.component(), TEXT_BYTES);
        let line = Line {
            time: stamp(wall()),
            verdict,
            why,
            namespace: short(&event.metadata.namespace),
            kind: short(&event.involved_object.kind),
            name: short(&event.involved_object.name),
            uid: short(&event.involved_object.uid),
            reason: short(&event.reason),
            event_type: short(&event.event_type),
            source: source(&component, &cut(event.host(), TEXT_BYTES)),
            component,
            occurrences,
            record: short(&event.metadata.name),
            message: short(&event.message),
            caller: cut(caller, TEXT_BYTES),
        };
        let line = Arc::new(line);
        for (_, lines) in self.0.read().iter().filter(|(selector, _)| selector.may_want(&line)) {
            // The reader may have left meanwhile.
            drop(lines.send(Arc::clone(&line)));
        }
    }

    /// Returns the lines from now on, without most of those that the selector does not select.
    pub fn read(&self, selector: Selector) -> broadcast::Receiver<Arc<Line>> {
        let (lines, reader) = broadcast::channel(LINES);
        let mut readers = self.0.write();
        readers.retain(is_there);
        readers.push((selector, lines));
        reader
    }
}

/// Formats a source.
pub fn source(component: &str, host: &str) -> String {
    if host.is_empty() { component.to_owned() } else { format!("{component}/{host}") }
}

/// Selects lines for a reader. Each list holds alternatives; a `*` at the end stands for any ending.
#[derive(Debug, Clone, Default)]
pub struct Selector {
    // LIMIT: `ALTERNATIVES`, of all conditions together.
    conditions: Vec<(&'static str, Vec<String>)>,
}

/// Whether a text is a value, or begins with one that ends with `*`.
fn fits(value: &str, text: &str) -> bool {
    match value.strip_suffix('*') {
        Some(beginning) => text.starts_with(beginning),
        None => text == value,
    }
}

/// The members that lines can be selected by.
const NAMES: [&str; 7] = ["namespace", "object", "reason", "source", "type", "verdict", "message"];

/// Returns the decisions that lines report.
fn verdicts() -> impl Iterator<Item = &'static str> {
    use Verdict::{Deleted, Failed, Folded};
    Verdict::ALL.into_iter().filter(|verdict| !matches!(verdict, Failed | Folded | Deleted)).map(Verdict::label)
}

impl Selector {
    /// Parses the pairs of a query string.
    ///
    /// # Errors
    /// Names the unknown parameter or decision, the object without a kind, or the limit of alternatives.
    pub fn parse<'a>(
        pairs: impl Iterator<Item = (std::borrow::Cow<'a, str>, std::borrow::Cow<'a, str>)>,
    ) -> Result<Self, String> {
        let mut selector = Self::default();
        for (key, value) in pairs {
            let name =
                NAMES.into_iter().find(|name| *name == key).ok_or_else(|| format!("unknown parameter {key:?}"))?;
            let values: Vec<String> = value.split(',').map(ToOwned::to_owned).collect();
            let is_known = |value: &String| value.ends_with('*') || verdicts().any(|known| known == value);
            if let Some(other) = values.iter().find(|value| name == "verdict" && !is_known(value)) {
                let allowed = verdicts().collect::<Vec<_>>().join(", ");
                return Err(format!("verdict: {other:?} is not allowed; allowed: {allowed}"));
            }
            // `web-0` alone would select nothing. Without a kind, it is an object of any kind, or of none.
            let is_object = |value: &String| {
                value.ends_with('*') || value.split_once('/').is_some_and(|(_, name)| !name.is_empty())
            };
            if let Some(other) = values.iter().find(|value| name == "object" && !is_object(value)) {
                return Err(format!("object: {other:?} is not allowed; allowed: KIND/NAME, such as pod/web-*"));
            }
            selector.conditions.push((name, values));
        }
        let number: usize = selector.conditions.iter().map(|(_, values)| values.len()).sum();
        if number > ALTERNATIVES {
            return Err(format!("{number} alternatives are too many; allowed: {ALTERNATIVES}"));
        }
        Ok(selector)
    }

    /// Whether a line may be selected: compares neither the object's kind nor the message, because the occurrence waits
    /// for it.
    fn may_want(&self, line: &Line) -> bool {
        self.conditions.iter().all(|(name, values)| {
            let is = |text: &str| values.iter().any(|value| fits(value, text));
            match *name {
                "namespace" => is(&line.namespace),
                "object" => {
                    values.iter().any(|value| value.split_once('/').is_none_or(|(_, name)| fits(name, &line.name)))
                }
                "reason" => is(&line.reason),
                "source" => is(&line.source) || is(&line.component) || values.iter().any(|value| line.is_from(value)),
                "type" => is(&line.event_type),
                "verdict" => is(line.verdict),
                _ => true,
            }
        })
    }

    /// Whether a line is selected.
    pub fn wants(&self, line: &Line) -> bool {
        let is_object = |value: &String| {
            // A line has no API group.
            let is_of = |kind: &str| is_kind(kind.split('.').next().unwrap_or_default(), &line.kind, "");
            let is_it = |(kind, name): (&str, &str)| fits(name, &line.name) && (kind.is_empty() || is_of(kind));
            value.split_once('/').is_some_and(is_it)
        };
        self.may_want(line)
            && self.conditions.iter().all(|(name, values)| match *name {
                "object" => {
                    let object = format!("{}/{}", line.kind, line.name);
                    values.iter().any(|value| fits(value, &object) || is_object(value))
                }
                "message" => values.iter().any(|value| line.message.contains(value)),
                _ => true,
            })
    }
}
