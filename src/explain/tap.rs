//! The tap: occurrences and what became of them, told to readers as they come. Nothing waits for a reader: what it does not take in
//! time is left out, and it is told how much.

use std::sync::Arc;

use serde::Serialize;
use smol_str::SmolStr;
use tokio::sync::broadcast;

use super::answer::stamp;
use crate::event::{Event, cut};

/// LIMIT: lines that wait for a slow reader; then the oldest are left out.
const LINES: usize = 1000;
/// LIMIT: bytes of a message.
const MESSAGE_BYTES: usize = 1024;

/// One line.
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
    pub occurrences: u64,
    pub record: SmolStr,
    pub message: SmolStr,
}

/// The sending end. Clones share the readers.
#[derive(Debug, Clone)]
pub struct Tap(broadcast::Sender<Arc<Line>>);

impl Default for Tap {
    fn default() -> Self {
        Self(broadcast::Sender::new(LINES))
    }
}

impl Tap {
    /// Whether somebody reads.
    #[must_use]
    pub fn is_read(&self) -> bool {
        self.0.receiver_count() > 0
    }

    /// Tells what became of occurrences, if somebody reads.
    pub fn tell(
        &self,
        event: &Event,
        verdict: &'static str,
        why: &'static str,
        occurrences: u64,
        wall: impl FnOnce() -> i64,
    ) {
        if !self.is_read() {
            return;
        }
        let line = Line {
            time: stamp(wall()),
            verdict,
            why,
            namespace: event.metadata.namespace.clone(),
            kind: event.involved_object.kind.clone(),
            name: event.involved_object.name.clone(),
            uid: event.involved_object.uid.clone(),
            reason: event.reason.clone(),
            event_type: event.event_type.clone(),
            source: source(event.component(), event.host()),
            occurrences,
            record: event.metadata.name.clone(),
            message: cut(&event.message, MESSAGE_BYTES),
        };
        // Without a reader any more nobody misses it.
        drop(self.0.send(Arc::new(line)));
    }

    /// Reads from now on.
    #[must_use]
    pub fn read(&self) -> broadcast::Receiver<Arc<Line>> {
        self.0.subscribe()
    }
}

/// A source in words.
#[must_use]
pub fn source(component: &str, host: &str) -> String {
    if host.is_empty() { component.to_owned() } else { format!("{component}/{host}") }
}

/// Which lines a reader wants; each list is one of alternatives, with `*` at the end for any ending.
#[derive(Debug, Clone, Default)]
pub struct Selector {
    // LIMIT: what a query string holds.
    conditions: Vec<(&'static str, Vec<String>)>,
}

/// What lines can be selected by.
const NAMES: [&str; 7] = ["namespace", "object", "reason", "source", "type", "verdict", "message"];

impl Selector {
    /// Reads a query string's pairs.
    ///
    /// # Errors
    /// Names what is not known.
    pub fn parse<'a>(
        pairs: impl Iterator<Item = (std::borrow::Cow<'a, str>, std::borrow::Cow<'a, str>)>,
    ) -> Result<Self, String> {
        let mut selector = Self::default();
        for (key, value) in pairs {
            let name =
                NAMES.into_iter().find(|name| *name == key).ok_or_else(|| format!("unknown parameter {key:?}"))?;
            selector.conditions.push((name, value.split(',').map(ToOwned::to_owned).collect()));
        }
        Ok(selector)
    }

    /// Whether a line is wanted.
    #[must_use]
    pub fn wants(&self, line: &Line) -> bool {
        self.conditions.iter().all(|(name, values)| {
            let is = |text: &str| {
                values.iter().any(|value| match value.strip_suffix('*') {
                    Some(beginning) => text.starts_with(beginning),
                    None => text == value,
                })
            };
            match *name {
                "namespace" => is(&line.namespace),
                "object" => {
                    is(&format!("{}/{}", line.kind, line.name))
                        || is(&format!("{}/{}", line.kind.to_lowercase(), line.name))
                }
                "reason" => is(&line.reason),
                "source" => is(&line.source) || line.source.split_once('/').is_some_and(|(component, _)| is(component)),
                "type" => is(&line.event_type),
                "verdict" => is(line.verdict),
                _ => values.iter().any(|value| line.message.contains(value)),
            }
        })
    }
}
