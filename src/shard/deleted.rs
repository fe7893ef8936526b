//! Events that clients have deleted lately. The watch may show an earlier change of one after the DELETE is answered, and a
//! list that has begun before it may show it too.

use std::collections::{BTreeSet, VecDeque};

use smol_str::SmolStr;

use super::{Shard, Shards};
use crate::event::Event;
use crate::outbox::RecordId;

/// LIMIT: deleted records, and deleted events, whose deletion the watch has not shown; the oldest is forgotten.
const DELETED_MAX: usize = 4096;

/// What clients have deleted, until the watch shows the deletion.
// LIMIT: `DELETED_MAX` of each.
#[derive(Debug, Default)]
pub(super) struct Deletions {
    records: VecDeque<RecordId>,
    /// The uids of the events, as far as they are known: they may have no tag of this process.
    uids: BTreeSet<SmolStr>,
    /// The same ones, the oldest first.
    by_age: VecDeque<SmolStr>,
}

fn push<T>(queue: &mut VecDeque<T>, new: T) -> Option<T> {
    let oldest = if queue.len() == DELETED_MAX { queue.pop_front() } else { None };
    queue.push_back(new);
    oldest
}

impl Shard {
    /// Notes that a client has deleted a record, whose event has this `uid` if it is known. Until the watch shows the
    /// deletion, the event is not adopted.
    pub(super) fn begin_deletion(&mut self, record: RecordId, uid: &SmolStr) {
        push(&mut self.deleted.records, record);
        self.begin_deletion_of(uid);
    }

    fn begin_deletion_of(&mut self, uid: &SmolStr) {
        let Deletions { uids, by_age, .. } = &mut self.deleted;
        if !uid.is_empty() && uids.insert(uid.clone()) {
            push(by_age, uid.clone()).inspect(|oldest| _ = uids.remove(oldest));
        }
    }

    /// Whether a client has deleted `event` lately: it has the event's uid, or the tag of its record.
    pub(super) fn is_deleted(&self, event: &Event) -> bool {
        let Deletions { records, uids, .. } = &self.deleted;
        uids.contains(&event.metadata.uid)
            || !records.is_empty() && self.outbox.own_records(event).any(|record| records.contains(&record))
    }

    /// Applies the deletion of an event that is not known here any more.
    pub(super) fn end_deletion(&mut self, event: &Event) {
        for record in self.outbox.own_records(event) {
            self.deleted.records.retain(|deleted| *deleted != record);
        }
        if self.deleted.uids.remove(&event.metadata.uid) {
            self.deleted.by_age.retain(|uid| *uid != event.metadata.uid);
        }
    }
}

impl Shards {
    /// Notes that a client has deleted `event`, of which no record is known here.
    pub fn note_deleted(&self, event: &Event) {
        self.with(self.shard_of(event), |shard, _| shard.begin_deletion_of(&event.metadata.uid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Now;
    use crate::correlator::{KeySecret, Policy};
    use crate::outbox::{Answer, Request};
    use crate::shard::{self, Lookup};

    /// Fault: the late event of a list was adopted again, so the next occurrence restored the count of another writer.
    #[test]
    fn an_event_of_another_writer_that_a_client_deletes_is_not_adopted_again() {
        for (uid, count) in [("u", 1), ("v", 10)] {
            let mut shard = Shard::new(KeySecret(1, 2), shard::Settings::default(), 1);
            let (policy, now) = (Policy::default(), Now::at(1_000_000_000));
            shard.identify("me");
            let event = Event { count: 1, ..Event::default() };
            let mut stored = Event { count: 9, ..event.clone() };
            (stored.metadata.resource_version, stored.metadata.uid) = ("5".into(), "u".into());
            shard.apply_watch(&stored, now, &policy);
            let handle = shard.pause(&stored, "", Lookup::Name, now, &policy).unwrap();
            shard.forget_record(&handle, now);
            // Another event of the name is no late one.
            stored.metadata.uid = uid.into();
            shard.apply_watch(&stored, now, &policy);
            shard.accept(event, 1, now, &policy).unwrap();
            let shown = match shard.next_write(now).unwrap().request {
                Request::Create { event, .. } => event.count,
                Request::Patch { patch, .. } => patch.count,
                request => unreachable!("{request:?}"),
            };
            assert_eq!(shown, count, "{uid}");
        }
    }

    /// Fault: the late event restored the deleted record, so the next occurrence had its count.
    #[test]
    fn a_late_watch_event_of_a_deleted_record_restores_no_count() {
        for (is_deletion_seen, count) in [(false, 1), (true, 8)] {
            let mut shard = Shard::new(KeySecret(1, 2), shard::Settings::default(), 1);
            let (policy, now) = (Policy::default(), Now::at(1_000_000_000));
            shard.identify("me");
            let mut event = Event { count: 1, ..Event::default() };
            event.metadata.name = "a".into();
            shard.accept(event.clone(), 1, now, &policy).unwrap();
            let write = shard.next_write(now).unwrap();
            let Request::Create { event: mut stored, .. } = write.request else { unreachable!("it is new") };
            stored.metadata.resource_version = "5".into();
            shard.settle(write.record, Answer::Stored(stored.clone()), now);
            let handle = shard.pause(&stored, "a", Lookup::Name, now, &policy).unwrap();
            shard.forget_record(&handle, now);
            (stored.metadata.resource_version, stored.count) = ("6".into(), 7);
            if is_deletion_seen {
                // A client may create it again as it was.
                shard.apply_deletion(&stored, now, &policy);
            }
            shard.apply_watch(&stored, now, &policy);
            shard.accept(event, 1, now, &policy).unwrap();
            let shown = match shard.next_write(now).unwrap().request {
                Request::Create { event, .. } => event.count,
                Request::Patch { patch, .. } => patch.count,
                request => unreachable!("{request:?}"),
            };
            assert_eq!(shown, count);
        }
    }
}
