//! Watch events: a record was changed, deleted or created by another writer. Own writes appear in the watch too, and are
//! recognised by their version.

use super::record::Phase;
use super::upstream_state::{UpstreamState, others};
use super::{Outbox, api_group};
use crate::clock::Now;
use crate::correlator::{RecordId, is_newer};
use crate::event::Event;

/// The effect of a watch event about a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchEffect {
    /// The record is not in the outbox.
    Absent,
    /// A request that is in flight or due will show more, or the event is not newer than the known one.
    Ignored,
    /// The record continues from the stored event; its count has changed by this much.
    Moved(i32),
    /// The upstream no longer holds the record. Its next write creates it.
    Gone,
}

impl Outbox {
    /// Returns the count of the series that a client has written to an object itself (admission).
    pub fn clients_series(&self, object: &Event) -> Option<i32> {
        api_group::clients_series(self.settings.group.of(object), object)
    }

    /// Applies `event`, which the upstream holds under the record's name.
    pub fn apply_watch(&mut self, id: RecordId, event: &Event, now: Now) -> WatchEffect {
        let Some(record) = self.records.get_mut(&id) else { return WatchEffect::Absent };
        let UpstreamState::Stored(held) = &record.upstream else { return WatchEffect::Ignored };
        if matches!(record.phase, Phase::InFlight(_)) || !is_newer(&event.metadata.resource_version, &held.version) {
            return WatchEffect::Ignored;
        }
        let settled = record.settled();
        if record.tag.is_none() && record.sent.tag > settled {
            // It may show our own write in doubt, which is repeated with its absolute count.
            return WatchEffect::Ignored;
        }
        let own = record.tag_on(event);
        if own.is_some_and(|own| own > settled) {
            // A late write of an earlier process. The next patch will be refused, and the object is read then.
            return WatchEffect::Ignored;
        }
        // Without the tag it includes all acknowledged occurrences: it is unchanged, or another writer has created it
        // again.
        let seen = record.held(event, own.unwrap_or(held.tag), now);
        let moved = others(seen.count, seen.tag).saturating_sub(others(held.count, held.tag));
        record.upstream = UpstreamState::Stored(seen);
        record.move_count(moved);
        record.read_lines(event, self.settings.group.of(event));
        record.follow_times(event);
        self.note(id);
        WatchEffect::Moved(i32::try_from(moved).unwrap_or(if moved < 0 { i32::MIN } else { i32::MAX }))
    }

    /// Applies that the upstream, at `version`, no longer holds the record: its next write creates it with its running count.
    /// Ignored if an answer has shown a newer version, because the record was created again.
    pub fn apply_deletion(&mut self, id: RecordId, version: &str, now: Now) -> WatchEffect {
        if let Some(pause) = self.paused.get_mut(&id) {
            pause.news.take_if(|news| !is_newer(&news.metadata.resource_version, version));
        }
        let Some(record) = self.records.get(&id) else { return WatchEffect::Absent };
        let UpstreamState::Stored(held) = &record.upstream else { return WatchEffect::Ignored };
        let is_news = version == held.version || is_newer(version, &held.version);
        if !is_news || matches!(record.phase, Phase::InFlight(_)) {
            return WatchEffect::Ignored;
        }
        self.note(id);
        self.change_in_queue(id, now, |record| record.upstream = UpstreamState::Absent);
        WatchEffect::Gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::correlator::{Known, Rate};
    use crate::outbox::{Answer, Offer, Request, Settings};

    /// Fault: the watch event of each own write had the spool write the record again, under the locks of all shards.
    #[test]
    fn a_watch_event_that_shows_nothing_new_changes_no_entry_of_the_spool() {
        let mut outbox = Outbox::new(Settings::default(), 0);
        outbox.keep_journal();
        let mut event = Event { count: 1, ..Event::default() };
        outbox.offer(Offer::of(1, None), event.clone(), Now::at(0));
        let id = outbox.next_write(Now::at(0)).unwrap().record;
        event.metadata.resource_version = "5".into();
        outbox.settle(id, Answer::Stored(Box::new(event.clone())), Now::at(0));
        outbox.offer(Offer::of(1, None), Event { count: 2, ..event.clone() }, Now::at(0));
        outbox.take_changes();
        for id in [id, RecordId(7)] {
            outbox.apply_watch(id, &event, Now::at(1));
            assert!(!outbox.has_changes(), "{id:?}");
        }
        event.metadata.resource_version = "6".into();
        assert_eq!(outbox.apply_watch(id, &event, Now::at(1)), WatchEffect::Moved(0));
        assert!(outbox.has_changes());
    }

    #[test]
    fn a_record_that_is_gone_takes_a_token_before_those_that_the_upstream_shows() {
        let (mut outbox, rate) = (Outbox::new(Settings::default(), 0), Some(Rate { qps: 1.0, burst: 1 }));
        let known = Known { stored: true, count: 1, tag: 1 };
        let mut event = Event { count: 2, ..Event::default() };
        event.metadata.resource_version = "5".into();
        for number in 0..3_u64 {
            let now = Now::at(number.cast_signed());
            outbox.offer(Offer { known, ..Offer::of(number, rate) }, event.clone(), now);
            assert_eq!(outbox.next_write(now).is_some(), number == 0, "it has the token");
        }
        assert_eq!(outbox.apply_deletion(RecordId(2), "6", Now::at(3)), WatchEffect::Gone);
        let write = outbox.next_write(Now::at(1_000_000_000)).unwrap();
        assert!(matches!(write.request, Request::Create { .. }), "{write:?}");
    }
}
