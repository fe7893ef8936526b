//! A record that a client deletes or replaces: kept back while the upstream is asked, then forgotten or followed. The client's
//! own order, so nothing of it is an occurrence; what was counted on a deleted record and still waits is given up with it
//! (`lost{deleted}`), and its next occurrence begins a new record.

use std::time::Duration;

use smol_str::SmolStr;

use super::storms::is_storm;
use super::{Shard, Shards};
use crate::clock::Now;
use crate::correlator::{Key, Policy, RecordId, Settled};
use crate::event::Event;
use crate::outbox::{DIGEST_REASON, Line, LostReason, Ticket, line_checksum};

/// Which record a name leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lead {
    /// The client's own name for its event: the record that counts it, whatever that is called.
    Alias,
    /// The record's own name.
    Name,
}

/// A record, where its shard knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handle {
    pub(super) source: Key,
    /// Where the correlator remembers it; a digest has no such place.
    pub(super) key: Option<Key>,
    pub(super) record: RecordId,
    /// The object, for `explain`.
    pub(super) object: Key,
    /// Its name upstream.
    pub name: SmolStr,
    /// Whether the upstream is known to hold it.
    pub stored: bool,
}

/// Whether an event stands for others that have folded.
fn is_folded(event: &Event) -> bool {
    event.reason == DIGEST_REASON || is_storm(event)
}

/// How often a record is looked at that has a request on its way.
const LOOK: Duration = Duration::from_millis(5);

impl Shard {
    /// Keeps back the record that `name` leads to, for an event of this content: nothing of it is sent until
    /// [`release`](Self::release), [`forget_record`](Self::forget_record) or [`follow`](Self::follow).
    pub fn hold(&mut self, event: &Event, name: &str, lead: Lead, now: Now, policy: &Policy) -> Option<Handle> {
        let handle = self.locate(event, name, lead, now, policy)?;
        self.outbox.pause(handle.record);
        Some(handle)
    }

    pub(super) fn locate(&self, event: &Event, name: &str, lead: Lead, now: Now, policy: &Policy) -> Option<Handle> {
        let (source, object) = (self.secret.source(event), self.secret.subject(event));
        if lead == Lead::Name && is_folded(event) {
            let record = self.outbox.digest(&event.metadata.namespace, name)?;
            return Some(Handle { source, key: None, record, object, name: name.into(), stored: true });
        }
        let correlator = self.sources.peek(&source)?;
        let mut routed = None;
        for (key, observation) in correlator.candidates(event, now, policy.select(event)) {
            let known = self.outbox.name(observation.record);
            let (known, stored) = known.unwrap_or_else(|| (observation.name.clone(), observation.stored));
            let record = observation.record;
            let handle = Handle { source, key: Some(key), record, object, name: known.clone(), stored };
            if known == name {
                return Some(handle);
            }
            routed.get_or_insert(handle);
        }
        routed.filter(|_| lead == Lead::Alias)
    }

    /// Whether a request of the record is on its way.
    #[must_use]
    pub fn is_in_flight(&self, handle: &Handle) -> bool {
        self.outbox.is_in_flight(handle.record)
    }

    /// The record goes on as if nothing had been asked.
    pub fn release(&mut self, handle: &Handle, now: Now) {
        self.outbox.resume(handle.record, now);
    }

    /// The record was deleted: what waits for it is lost, and the next occurrence begins a new one.
    /// Returns who waited for it.
    pub fn forget_record(&mut self, handle: &Handle, now: Now) -> Vec<Ticket> {
        let (lost, waiting) = self.outbox.forget(handle.record, now);
        self.ledger.lose(LostReason::Deleted, lost.total());
        self.note_deletion(handle, lost.total(), now);
        self.tell(handle, &Settled::Forgotten);
        waiting
    }

    /// A client's DELETE of the record got no answer. What was owed to it is written if it is still there; the next occurrence
    /// begins a new record. Returns the tickets of clients that waited for it.
    pub fn doubt(&mut self, handle: &Handle, now: Now) -> Vec<Ticket> {
        if !self.outbox.doubt(handle.record, now) {
            return self.forget_record(handle, now);
        }
        self.tell(handle, &Settled::Forgotten);
        Vec::new()
    }

    /// The record was replaced by `stored`. What waits comes on top, unless the client has stated how often it happened: then that
    /// includes what GET had shown it.
    pub fn follow(&mut self, handle: &Handle, stored: &Event, line: Line, now: Now) {
        let count = self.outbox.counted(stored);
        let moved = match self.outbox.rebase(handle.record, stored, line, now) {
            Some((moved, written)) => {
                self.ledger.write(written);
                moved
            }
            None => {
                self.tell(handle, &Settled::CountReset(count));
                0
            }
        };
        let settled = Settled::Stored {
            name: stored.metadata.name.clone(),
            resource_version: stored.metadata.resource_version.clone(),
            first_timestamp: stored.first_timestamp,
            count_moved: moved,
            tag: self
                .outbox
                .settled(handle.record)
                .unwrap_or_else(|| self.outbox.tag_count(handle.record, stored).unwrap_or(0)),
        };
        self.tell(handle, &settled);
        self.outbox.resume(handle.record, now);
    }

    pub(super) fn tell(&mut self, handle: &Handle, settled: &Settled) {
        if let (Some(key), Some(correlator)) = (handle.key, self.sources.peek_mut(&handle.source)) {
            let before = correlator.tracked_keys();
            correlator.settle(key, handle.record, settled);
            self.tracked_keys.replace(before, correlator.tracked_keys());
        }
    }
}

/// A record that is kept back; dropping this lets it go on.
#[derive(Debug)]
pub struct Held {
    shards: Shards,
    shard: usize,
    handle: Option<Handle>,
    /// The client's line under the name that was asked for.
    line: Key,
}

impl Shards {
    /// Keeps back the record that `name` leads to, as [`Shard::hold`].
    #[must_use]
    pub fn hold(&self, event: &Event, name: &str, lead: Lead) -> Option<Held> {
        let policy = self.policy();
        let shard = self.shard_of(event);
        let handle = self.with(shard, |shard, now| shard.hold(event, name, lead, now, &policy))?;
        let line = self.0.secret.line(&event.metadata.namespace, name, line_checksum(event));
        Some(Held { shards: self.clone(), shard, handle: Some(handle), line })
    }
}

impl Held {
    /// The record's name upstream.
    #[must_use]
    pub fn name(&self) -> SmolStr {
        self.handle.as_ref().map(|handle| handle.name.clone()).unwrap_or_default()
    }

    /// Waits until no request of the record is on its way, so that what is asked next comes after it.
    ///
    /// LIMIT: not longer than `limit`; a create that hangs for longer may still be carried out after a delete.
    pub async fn quiet(&mut self, limit: Duration) {
        let Some(handle) = self.handle.clone() else { return };
        let quiet = async {
            while self.shards.with(self.shard, |shard, _| shard.is_in_flight(&handle)) {
                tokio::time::sleep(LOOK).await;
            }
        };
        let _in_time = tokio::time::timeout(limit, quiet).await;
    }

    /// The record was deleted.
    pub fn forget(mut self) {
        if let Some(handle) = self.handle.take() {
            let waiting = self.shards.with(self.shard, |shard, now| {
                shard.forget_line(self.line);
                shard.forget_record(&handle, now)
            });
            self.shards.dismiss(&waiting);
        }
    }

    /// The client's DELETE got no answer: the record is read before anything else is written, and forgotten if it is gone.
    pub fn doubt(mut self) {
        if let Some(handle) = self.handle.take() {
            let waiting = self.shards.with(self.shard, |shard, now| shard.doubt(&handle, now));
            self.shards.dismiss(&waiting);
            self.shards.wake();
        }
    }

    /// The record was replaced by `stored`; see [`Shard::follow`].
    pub fn follow(mut self, stored: &Event, line: Line) {
        if let Some(handle) = self.handle.take() {
            self.shards.with(self.shard, |shard, now| shard.follow(&handle, stored, line, now));
            self.shards.wake();
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            self.shards.with(self.shard, |shard, now| shard.release(&handle, now));
            self.shards.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::correlator::{KeySecret, Settings};
    use crate::outbox::{Answer, Request};
    use crate::shard;

    fn event(name: &str) -> Event {
        let mut event = Event { count: 1, reason: "BackOff".into(), message: "m".into(), ..Event::default() };
        event.metadata.namespace = "shop".into();
        event.metadata.name = name.into();
        event.involved_object.name = "web-0".into();
        event
    }

    fn stored(request: Request) -> Answer {
        match request {
            Request::Create { event, .. } => Answer::Stored(event),
            Request::Patch { .. } | Request::Read { .. } | Request::Delete { .. } => Answer::Missing,
        }
    }

    fn setup() -> (Shard, Policy) {
        let policy = Policy { base: Arc::new(Settings::default()), rules: Vec::new() };
        (Shard::new(KeySecret(1, 2), shard::Settings::default(), 1), policy)
    }

    #[test]
    fn a_held_record_sends_nothing_and_goes_on_when_released() {
        let (mut shard, policy) = setup();
        let now = Now::at(1_000_000_000);
        shard.accept(event("a"), 1, now, &policy).unwrap();
        let write = shard.next_write(now).unwrap();
        let handle = shard.hold(&event("a"), "a", Lead::Alias, now, &policy).unwrap();
        assert!(shard.is_in_flight(&handle));
        shard.settle(write.record, stored(write.request), now);
        assert!(!shard.is_in_flight(&handle));
        shard.accept(event("b"), 1, now, &policy).unwrap();
        let later = Now::at(3_600_000_000_000);
        assert_eq!(shard.next_write(later), None);
        assert!(shard.balance().is_exact());
        shard.release(&handle, later);
        assert!(matches!(shard.next_write(later).unwrap().request, Request::Patch { patch, .. } if patch.count == 2));
    }

    #[test]
    fn a_forgotten_record_is_lost_even_in_flight_and_the_next_occurrence_begins_anew() {
        let (mut shard, policy) = setup();
        let now = Now::at(1_000_000_000);
        shard.accept(event("a"), 1, now, &policy).unwrap();
        let write = shard.next_write(now).unwrap();
        shard.accept(event("b"), 2, now, &policy).unwrap();
        // Two clients delete it at once; the first to be answered forgets it.
        let handle = shard.hold(&event("b"), "b", Lead::Alias, now, &policy).unwrap();
        let second = shard.hold(&event("a"), "a", Lead::Name, now, &policy).unwrap();
        assert_eq!(handle, second);
        shard.forget_record(&handle, now);
        shard.release(&second, now);
        assert_eq!(shard.settle(write.record, Answer::Missing, now), crate::outbox::Settlement::default());
        let balance = shard.balance();
        assert!(balance.is_exact());
        assert_eq!((balance.ledger.lost(LostReason::Deleted), balance.total_waiting()), (3, 0));
        shard.accept(event("c"), 1, now, &policy).unwrap();
        let write = shard.next_write(now).unwrap();
        assert!(
            matches!(write.request, Request::Create { event, .. } if event.metadata.name == "c" && event.count == 1)
        );
    }

    #[test]
    fn a_replaced_record_counts_on_with_what_waits_on_top() {
        let (mut shard, policy) = setup();
        let now = Now::at(1_000_000_000);
        shard.accept(event("a"), 1, now, &policy).unwrap();
        let write = shard.next_write(now).unwrap();
        shard.settle(write.record, stored(write.request), now);
        shard.accept(event("b"), 2, now, &policy).unwrap();
        let handle = shard.hold(&event("a"), "a", Lead::Name, now, &policy).unwrap();
        shard.follow(&handle, &Event { count: 10, message: "theirs".into(), ..event("a") }, Line::Unstated, now);
        shard.accept(event("c"), 1, now, &policy).unwrap();
        assert_eq!(shard.pending().map(|(event, _)| event.count).max(), Some(13));
        let later = Now::at(3_600_000_000_000);
        let write = shard.next_write(later).unwrap();
        // With the message of the occurrence, which the key of the replaced record does not vouch for.
        assert!(matches!(write.request, Request::Patch { patch, .. } if patch.count == 13 && patch.message == "m"));
        assert!(shard.balance().is_exact());
    }
}
