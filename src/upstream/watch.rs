//! A watch of the embedded store. It reads from the store's window of changes when the client reads, and has no queue.

use std::sync::Arc;

use smol_str::format_smolstr;
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

/// The next step of a watch.
#[derive(Debug, PartialEq)]
pub enum Step {
    /// Events; after an `Error` follow none.
    Events(Vec<WatchEvent>),
    /// A long event has begun, which takes up to so many bytes while it is read. The next step reads it.
    Long(usize),
}

impl Watch {
    /// Waits for the next step; `None` at the end. Cancelling is safe.
    pub async fn next(&mut self) -> Option<Step> {
        match self {
            Self::Embedded(watch) => watch.next().await.map(Step::Events),
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
    /// The existing events that are still to be sent. LIMIT: each open watch keeps them in memory until then.
    existing: Option<std::vec::IntoIter<Arc<Event>>>,
    /// The revision whose later changes follow.
    revision: u64,
    /// Whether an error was sent.
    ended: bool,
}

impl EmbeddedWatch {
    pub(super) fn new(embedded: Embedded, namespace: Option<&str>, options: WatchOptions) -> Result<Self, Status> {
        let newest = embedded.newest();
        let (mut existing, mut revision) = (None, options.resource_version);
        if options.send_initial_events.unwrap_or(options.resource_version == 0) {
            let list = ListOptions {
                field_selector: options.field_selector.clone(),
                label_selector: options.label_selector.clone(),
                ..ListOptions::default()
            };
            let list = embedded.access(|store, now| store.list(namespace, &list, now))?;
            revision = list.resource_version.parse().unwrap_or(0);
            existing = Some(list.items.into_iter());
        } else if revision == 0 {
            revision = *newest.borrow();
        }
        let namespace = namespace.map(str::to_owned);
        Ok(Self { embedded, newest, namespace, options, existing, revision, ended: false })
    }

    async fn next(&mut self) -> Option<Vec<WatchEvent>> {
        if let Some(existing) = &mut self.existing {
            let mut events: Vec<_> = existing.by_ref().take(INITIAL_MAX).map(WatchEvent::Added).collect();
            if existing.len() == 0 {
                events.extend(self.options.bookmarks.then(|| end_of_initial_events(self.revision)));
                self.existing = None;
            }
            if !events.is_empty() {
                return Some(events);
            }
        }
        // LIMIT: a client that reads slower than the changes falls out of the store's window, and gets 410.
        while !self.ended {
            // Before reading, so that a change meanwhile ends the wait below.
            self.newest.mark_unchanged();
            let (namespace, revision) = (self.namespace.as_deref(), self.revision);
            match self.embedded.access(|store, now| store.watch(namespace, &self.options, revision, now)) {
                Ok(seen) => {
                    self.revision = seen.revision;
                    if !seen.events.is_empty() {
                        return Some(seen.events);
                    }
                    if seen.revision == revision {
                        // `embedded` holds the sender, so waiting cannot fail.
                        drop(self.newest.changed().await);
                    }
                }
                Err(status) => {
                    self.ended = true;
                    return Some(vec![WatchEvent::Error(Box::new(status))]);
                }
            }
        }
        None
    }
}

fn end_of_initial_events(revision: u64) -> WatchEvent {
    let mut rare = RareMeta::default();
    rare.annotations.insert(INITIAL_EVENTS_END.into(), "true".into());
    let mut event = Event::default();
    event.metadata.resource_version = format_smolstr!("{revision}");
    event.metadata.rare = Some(Box::new(rare));
    WatchEvent::Bookmark(event.into())
}
