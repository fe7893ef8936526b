//! The embedded store as an upstream: a lock and a clock around [`Store`].

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::answer::{Failure, judge};
use super::patch::patch_document;
use super::store::{Settings, Store};
use super::watch::EmbeddedWatch;
use super::{ClientPatch, DeleteOptions, ListOptions, Metrics, Verb, WatchOptions, WriteOptions};
use crate::clock::{Clock, Now};
use crate::event::Event;
use crate::event::json::EventList;
use crate::event::patching::PatchType;
use crate::outbox::{Answer, Request};
use crate::status::Status;

/// The embedded store as an upstream; clones share it.
#[derive(Debug, Clone)]
pub struct Embedded {
    /// The lock is held for one operation at a time and never over an await.
    store: Arc<Mutex<Store>>,
    /// The newest revision, which watches wait for.
    newest: Arc<watch::Sender<u64>>,
    clock: Clock,
    metrics: Metrics,
}

/// Interval between two removals of expired events. Reads never return them.
const EXPIRY_PAUSE: Duration = Duration::from_secs(1);

impl Embedded {
    /// Returns an empty store with random uids and names. Its versions begin above those of every earlier start.
    pub fn new(settings: Settings, clock: Clock, metrics: Metrics) -> Self {
        let store = Store::started(settings, fastrand::u64(..), clock.now());
        Self::with_store(store, clock, metrics)
    }

    /// Returns an upstream over `store`, which may have a known seed.
    pub fn with_store(store: Store, clock: Clock, metrics: Metrics) -> Self {
        let newest = Arc::new(watch::Sender::new(store.revision()));
        Self { store: Arc::new(Mutex::new(store)), newest, clock, metrics }
    }

    /// Whether this namespace exists.
    pub fn has_namespace(&self, namespace: &str) -> bool {
        self.store.lock().has_namespace(namespace)
    }

    /// Carries out the request of a record.
    pub(super) fn write(&self, request: &Request) -> Answer {
        let verb = Verb::of(request);
        sorted(verb, self.with(verb, |store, now| ask(store, request, now)))
    }

    /// Lists the events of one namespace or of all.
    ///
    /// # Errors
    /// As [`Store::list`].
    pub fn list(&self, namespace: Option<&str>, options: &ListOptions) -> Result<EventList, Status> {
        let page = self.with(Verb::List, |store, now| store.list(namespace, options, now))?;
        Ok(EventList {
            resource_version: page.resource_version,
            continue_token: page.continue_token,
            remaining_item_count: page.remaining_item_count.and_then(|count| i64::try_from(count).ok()),
            // Copied here, after the lock is released.
            items: page.items.into_iter().map(Arc::unwrap_or_clone).collect(),
        })
    }

    /// Deletes the events that `list` selects. As the apiserver does, ignores events that were deleted meanwhile and
    /// deletes those that were changed.
    pub(super) fn delete_collection(
        &self,
        namespace: &str,
        list: &ListOptions,
        options: &DeleteOptions,
    ) -> Result<EventList, Status> {
        let list = self.list(Some(namespace), list)?;
        for event in &list.items {
            let name = &event.metadata.name;
            match self.with(Verb::Delete, |store, now| store.delete(namespace, name, options, now)) {
                Err(status) if status.code != 404 => return Err(status),
                Ok(_) | Err(_) => {}
            }
        }
        Ok(list)
    }

    pub(super) fn watch(&self, namespace: Option<&str>, options: WatchOptions) -> Result<EmbeddedWatch, Status> {
        self.metrics.count(Verb::Watch, None, Duration::ZERO);
        EmbeddedWatch::new(self.clone(), namespace, options)
    }

    /// Returns the newest revision, and a way to wait for a newer one.
    pub(super) fn newest(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    /// Removes expired events soon after their time, without end. Run it on the app's task tracker; cancelling it is safe.
    pub async fn expire_forever(&self) {
        loop {
            self.access(Store::expire);
            self.clock.sleep_until(self.clock.now().mono.after(EXPIRY_PAUSE)).await;
        }
    }

    /// Runs `act` on the locked store.
    pub fn access<T>(&self, act: impl FnOnce(&mut Store, Now) -> T) -> T {
        let now = self.clock.now();
        let mut store = self.store.lock();
        let evicted_before = store.evicted();
        let result = act(&mut store, now);
        self.metrics.count_evicted(store.evicted().saturating_sub(evicted_before));
        let newest = store.revision();
        drop(store);
        self.newest.send_if_modified(|known| {
            let moved = newest > *known;
            *known = newest.max(*known);
            moved
        });
        result
    }

    /// As [`Self::access`], and counts the outcome.
    pub(super) fn with<T>(
        &self,
        verb: Verb,
        act: impl FnOnce(&mut Store, Now) -> Result<T, Status>,
    ) -> Result<T, Status> {
        let started = self.clock.now().mono;
        let result = self.access(act);
        let denied = result.as_ref().err().map(|status| judge(verb, &Failure::Denied(status.clone().into())));
        self.metrics.count(verb, denied.as_ref(), self.clock.now().mono.since(started));
        result
    }
}

/// Carries out the request of a record on a store without a lock, for tests.
pub fn answer_from_store(store: &mut Store, request: &Request, now: Now) -> Answer {
    sorted(Verb::of(request), ask(store, request, now))
}

fn ask(store: &mut Store, request: &Request, now: Now) -> Result<Answer, Status> {
    let event = match request {
        // A copy, because the outbox keeps its event until the answer is settled.
        Request::Create { event, .. } => store.create(Event::clone(event), now)?,
        Request::Patch { group, namespace, name, patch, claim } => {
            let body = patch_document(patch, claim.as_deref(), *group).into();
            let patch = ClientPatch { patch_type: PatchType::StrategicMerge, body };
            store.patch(namespace, name, &patch, &WriteOptions::new("eventweir", *group), now)?.event
        }
        Request::Read { namespace, name, .. } => store.get(namespace, name, now)?,
        Request::Delete { namespace, name, resource_version, .. } => {
            let resource_version = Some(resource_version.clone());
            let options = DeleteOptions { resource_version, ..DeleteOptions::default() };
            return store.delete(namespace, name, &options, now).map(|_| Answer::Missing);
        }
    };
    Ok(Answer::Stored(Box::new(event)))
}

/// Classifies the store's refusals by the same table as an apiserver's.
fn sorted(verb: Verb, outcome: Result<Answer, Status>) -> Answer {
    outcome.unwrap_or_else(|status| judge(verb, &Failure::Denied(status.into())))
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;

    use super::*;
    use crate::event::{ApiGroup, Time};
    use crate::outbox::{LostReason, Patch, Refusal};
    use crate::upstream::Upstream;
    use crate::upstream::store::Namespaces;

    fn embedded(settings: Settings) -> Embedded {
        let metrics = Metrics::new(&Registry::new());
        Embedded::new(settings, Clock::simulated(0), metrics)
    }

    fn create(namespace: &str) -> Request {
        let mut event = Event::default();
        event.metadata.namespace = namespace.into();
        event.metadata.name = "a".into();
        event.involved_object.namespace = namespace.into();
        Request::Create { group: ApiGroup::Core, event: Box::new(event) }
    }

    #[tokio::test(start_paused = true)]
    async fn the_embedded_store_answers_as_an_apiserver_is_understood() {
        let namespaces = Namespaces::List(["shop".into()].into());
        let upstream = Upstream::Embedded(embedded(Settings { namespaces, ..Settings::default() }));
        let patch = Patch { count: 2, last_timestamp: Some(Time(1)), message: "m".into() };
        let group = ApiGroup::Core;
        let patch = Request::Patch { group, namespace: "shop".into(), name: "a".into(), patch, claim: None };
        let read = Request::Read { group, namespace: "shop".into(), name: "a".into() };
        assert_eq!(upstream.write(&patch).await, Answer::Missing);
        assert_eq!(upstream.write(&read).await, Answer::Missing);
        assert!(matches!(upstream.write(&create("shop")).await, Answer::Stored(_)));
        assert_eq!(upstream.write(&create("shop")).await, Answer::Exists);
        assert!(matches!(upstream.write(&patch).await, Answer::Stored(event) if event.count == 2));
        assert!(matches!(upstream.write(&read).await, Answer::Stored(event) if event.count == 2));
        let gone =
            Refusal { reason: LostReason::NamespaceGone, status: Status::not_found("", "namespaces", "x").into() };
        assert_eq!(upstream.write(&create("x")).await, Answer::Refused(gone));
        assert_eq!(upstream.get("shop", "a").await.unwrap().count, 2);
        let list = upstream.list(None, &ListOptions::default()).await.unwrap();
        assert_eq!((list.items.len(), list.resource_version.as_str()), (1, "3"));
    }

    #[tokio::test(start_paused = true)]
    async fn expired_events_leave_an_idle_store() {
        let embedded = embedded(Settings::default());
        assert!(matches!(embedded.write(&create("shop")), Answer::Stored(_)));
        let waiting = tokio::time::timeout(Duration::from_secs(3601), embedded.expire_forever());
        assert!(waiting.await.is_err());
        assert_eq!(embedded.access(|store, _| store.changes_since(2).unwrap().count()), 1);
        assert!(embedded.store.lock().is_empty());
    }
}
