//! A watch of the embedded store. It reads from the store's window of changes when the client reads, and has no queue.

use std::sync::Arc;

use smol_str::SmolStr;
use tokio::sync::watch::Receiver;

use super::apiserver::Frames;
use super::{Embedded, ListOptions, WatchEvent, WatchOptions};
use crate::event::{Event, RareMeta};
use crate::status::Status;

/// LIMIT: existing events of one batch; the rest follows in further batches.
const INITIAL_MAX: usize = 500;
/// The annotation of the bookmark after the initial events.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// An open watch.
#[derive(Debug)]
pub enum Watch {
    /// A watch of the embedded store.
    Embedded(Box<EmbeddedWatch>),
    /// A watch of an apiserver.
    Apiserver(Box<Frames>),
}

impl Watch {
    /// Waits for the next events; `None` at the end. An `Error` is the last event. Cancelling is safe.
    pub async fn next(&mut self) -> Option<Vec<WatchEvent>> {
        match self {
            Self::Embedded(watch) => watch.next().await,
            Self::Apiserver(frames) => frames.next().await,
        }
    }
}

/// A watch of the embedded store.
#[derive(Debug)]
pub struct EmbeddedWatch {
    embedded: Embedded,
    /// The newest revision, which changes with each change of the store.
    newest: Receiver<u64>,
    namespace: Option<String>,
    options: WatchOptions,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    /// Lists the existing events.
    List,
    /// Sends the rest of the list of this version. LIMIT: each open watch keeps these events in memory until they are
    /// sent.
    Initial(std::vec::IntoIter<Arc<Event>>, SmolStr),
    /// Sends the changes after this revision.
    Changes(u64),
    /// An error was sent.
    Ended,
}

impl EmbeddedWatch {
    pub(super) fn new(embedded: Embedded, namespace: Option<&str>, options: WatchOptions) -> Self {
        let newest = embedded.newest();
        let phase = if options.starts_with_events() {
            Phase::List
        } else if options.resource_version == 0 {
            Phase::Changes(*newest.borrow())
        } else {
            Phase::Changes(options.resource_version)
        };
        Self { embedded, newest, namespace: namespace.map(str::to_owned), options, phase }
    }

    async fn next(&mut self) -> Option<Vec<WatchEvent>> {
        loop {
            // LIMIT: a client that reads slower than the changes falls out of the store's window, and gets 410.
            let batch = match &mut self.phase {
                Phase::Ended => return None,
                Phase::List => self.list().map(|()| (Vec::new(), true)),
                Phase::Initial(rest, version) => {
                    let mut events: Vec<_> = rest.by_ref().take(INITIAL_MAX).map(WatchEvent::Added).collect();
                    if rest.len() == 0 {
                        events.extend(self.options.bookmarks.then(|| end_of_initial_events(version)));
                        self.phase = Phase::Changes(version.parse().unwrap_or(0));
                    }
                    Ok((events, true))
                }
                Phase::Changes(revision) => {
                    // Before reading, so that a change meanwhile ends the wait below.
                    self.newest.mark_unchanged();
                    let revision = *revision;
                    let namespace = self.namespace.as_deref();
                    self.embedded.access(|store, now| store.watch(namespace, &self.options, revision, now)).map(
                        |seen| {
                            self.phase = Phase::Changes(seen.revision);
                            (seen.events, seen.revision > revision)
                        },
                    )
                }
            };
            match batch {
                Ok((events, _)) if !events.is_empty() => return Some(events),
                Ok((_, true)) => {}
                // `embedded` holds the sender, so waiting cannot fail.
                Ok((_, false)) => drop(self.newest.changed().await),
                Err(status) => {
                    self.phase = Phase::Ended;
                    return Some(vec![WatchEvent::Error(Box::new(status))]);
                }
            }
        }
    }

    fn list(&mut self) -> Result<(), Status> {
        let options = ListOptions {
            field_selector: self.options.field_selector.clone(),
            label_selector: self.options.label_selector.clone(),
            ..ListOptions::default()
        };
        let list = self.embedded.access(|store, now| store.list(self.namespace.as_deref(), &options, now))?;
        self.phase = Phase::Initial(list.items.into_iter(), list.resource_version);
        Ok(())
    }
}

fn end_of_initial_events(version: &smol_str::SmolStr) -> WatchEvent {
    let mut rare = RareMeta::default();
    rare.annotations.insert(INITIAL_EVENTS_END.into(), "true".into());
    let mut event = Event::default();
    event.metadata.resource_version = version.clone();
    event.metadata.rare = Some(Box::new(rare));
    WatchEvent::Bookmark(event.into())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prometheus::Registry;

    use super::*;
    use crate::clock::Clock;
    use crate::event::selector::LabelSelector;
    use crate::upstream::store::Settings;
    use crate::upstream::{DeleteOptions, Metrics};

    fn embedded() -> Embedded {
        let embedded = Embedded::new(Settings::default(), Clock::simulated(0), Metrics::new(&Registry::new()));
        for (namespace, name, value) in [("shop", "a", "1"), ("shop", "b", "2"), ("zoo", "c", "1")] {
            let mut event = Event::default();
            (event.metadata.namespace, event.metadata.name) = (namespace.into(), name.into());
            event.metadata.rare.get_or_insert_default().labels.insert("l".into(), value.into());
            embedded.access(|store, now| store.create(event, now)).unwrap();
        }
        embedded
    }

    /// Returns the next batch of a watch that has one.
    async fn next(watch: &mut EmbeddedWatch) -> Vec<WatchEvent> {
        tokio::time::timeout(Duration::from_secs(1), watch.next()).await.unwrap().unwrap()
    }

    fn labels(events: &[WatchEvent]) -> Vec<&'static str> {
        events.iter().map(WatchEvent::label).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_begins_with_the_selected_events_and_their_end_if_bookmarks_are_asked_for() {
        let embedded = embedded();
        let label_selector = LabelSelector::parse("l=1").unwrap();
        let options = WatchOptions { label_selector, ..WatchOptions::default() };
        let mut watch = EmbeddedWatch::new(embedded.clone(), Some("shop"), options.clone());
        let first = next(&mut watch).await;
        assert!(matches!(&first[..], [WatchEvent::Added(event)] if event.metadata.name == "a"), "{first:?}");
        let mut watch = EmbeddedWatch::new(embedded.clone(), Some("shop"), WatchOptions { bookmarks: true, ..options });
        let first = next(&mut watch).await;
        assert_eq!(labels(&first), ["ADDED", "BOOKMARK"]);
        let WatchEvent::Bookmark(end) = &first[1] else { panic!("{first:?}") };
        assert_eq!(end.metadata.resource_version, "4");
        assert!(end.metadata.rare.as_ref().unwrap().annotations.contains_key(INITIAL_EVENTS_END));
        embedded.access(|store, now| store.delete("shop", "a", &DeleteOptions::default(), now)).unwrap();
        assert_eq!(labels(&next(&mut watch).await), ["DELETED"]);
    }
}
