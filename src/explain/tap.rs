//! The tap: streams occurrences and their outcomes to readers. Nothing waits for a slow reader: it misses lines,
//! and gets the number of missed lines.

use std::sync::Arc;

use serde::Serialize;
use smol_str::SmolStr;
use tokio::sync::broadcast;

use super::answer::{is_kind, stamp};
use super::history::{TEXT_BYTES, Verdict, short};
use crate::event::{Event, cut};

/// LIMIT: lines that are buffered for a slow reader; beyond it the oldest are left out.
const LINES: usize = 1000;

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

/// The sending end of the tap. Clones share the readers.
#[derive(Debug, Clone)]
pub struct Tap(broadcast::Sender<Arc<Line>>);

impl Default for Tap {
    fn default() -> Self {
        Self(broadcast::Sender::new(LINES))
    }
}

impl Tap {
    /// Whether the tap has a reader.
    pub fn is_read(&self) -> bool {
        self.0.receiver_count() > 0
    }

    /// Sends what became of occurrences, if the tap has a reader. `caller` has just reported them, or is empty.
    pub fn tell(
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
        // The last reader may have left meanwhile.
        drop(self.0.send(Arc::new(line)));
    }

    /// Returns a reader of all lines from now on.
    pub fn read(&self) -> broadcast::Receiver<Arc<Line>> {
        self.0.subscribe()
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

/// The members that lines can be selected by.
const NAMES: [&str; 7] = ["namespace", "object", "reason", "source", "type", "verdict", "message"];

/// The decisions that lines report.
const VERDICTS: [Verdict; 8] = [
    Verdict::Created,
    Verdict::Counted,
    Verdict::Combined,
    Verdict::Deferred,
    Verdict::Dropped,
    Verdict::Rejected,
    Verdict::Written,
    Verdict::Lost,
];

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
            let is_known = |value: &String| value.ends_with('*') || VERDICTS.iter().any(|known| known.label() == value);
            if let Some(other) = values.iter().find(|value| name == "verdict" && !is_known(value)) {
                let allowed = VERDICTS.map(Verdict::label).join(", ");
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

    /// Whether a line is selected.
    pub fn wants(&self, line: &Line) -> bool {
        self.conditions.iter().all(|(name, values)| {
            let fits = |value: &str, text: &str| match value.strip_suffix('*') {
                Some(beginning) => text.starts_with(beginning),
                None => text == value,
            };
            let is = |text: &str| values.iter().any(|value| fits(value, text));
            let is_object = |value: &String| {
                // A line has no API group.
                let is_of = |kind: &str| is_kind(kind.split('.').next().unwrap_or_default(), &line.kind, "");
                let is_it = |(kind, name): (&str, &str)| fits(name, &line.name) && (kind.is_empty() || is_of(kind));
                value.split_once('/').is_some_and(is_it)
            };
            let host = line.source.strip_prefix(&*line.component).and_then(|host| host.strip_prefix('/'));
            // `/HOST` or `COMPONENT/`, as in a question.
            let is_source = |value: &String| {
                let is_host = |asked| host.is_some_and(|host| fits(asked, host));
                value.strip_suffix('/') == Some(&line.component) || value.strip_prefix('/').is_some_and(is_host)
            };
            match *name {
                "namespace" => is(&line.namespace),
                "object" => is(&format!("{}/{}", line.kind, line.name)) || values.iter().any(is_object),
                "reason" => is(&line.reason),
                "source" => is(&line.source) || is(&line.component) || values.iter().any(is_source),
                "type" => is(&line.event_type),
                "verdict" => is(line.verdict),
                _ => values.iter().any(|value| line.message.contains(value)),
            }
        })
    }
}
