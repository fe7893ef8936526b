//! How the content of a newer occurrence comes into its record.
//!
//! Hot: most of what a record holds has left the processor's cache since it was last used. So what the keys vouch for is not even
//! looked at, and of the rest a hash is compared.

use super::offer::Identity;
use super::record::Record;
use crate::correlator::Rest;
use crate::event::LentEvent;

impl Record {
    /// Takes over the newer content; what it replaces is left in `newer`. The name stays: requests may be on their way under it.
    ///
    /// At the byte limit a repeat is still taken, but may not grow: it keeps the older, smaller content and moves only the
    /// count and the time.
    pub(super) fn absorb(&mut self, newer: &mut LentEvent<'_>, identity: Identity, has_room: impl FnOnce() -> bool) {
        let event = &mut self.event;
        (event.count, event.last_timestamp) = (newer.count, newer.last_timestamp);
        let vouched = matches!(identity, Identity::Same { .. }) && !self.replaced;
        if let Identity::Grouped { rest } = identity
            && self.rest == Some(rest)
            && !self.replaced
        {
            return self.absorb_message(newer, has_room);
        }
        let (rest, same_beginning) = (identity.rest(), event.first_timestamp == newer.first_timestamp);
        if vouched && rest.is_some() && rest == self.rest && same_beginning {
            return;
        }
        if (vouched || keyed_is_equal(event, newer)) && same_beginning && Rest::of(event) == Rest::of(newer) {
            // Next time the hash tells.
            self.rest = rest;
            return;
        }
        let size = newer.approximate_size();
        if size > self.size && !has_room() {
            return;
        }
        self.event.take_over(newer);
        self.replaced = false;
        self.rest = rest;
        self.size = size;
    }

    /// As [`absorb`](Self::absorb), of a combined event that has nothing new but its message and its times.
    fn absorb_message(&mut self, newer: &mut LentEvent<'_>, has_room: impl FnOnce() -> bool) {
        let event = &mut self.event;
        let size = self.size.saturating_sub(event.message.heap_bytes()).saturating_add(newer.message.heap_bytes());
        if size > self.size && !has_room() {
            return;
        }
        event.first_timestamp = newer.first_timestamp;
        // One that was mended may have a time that its client's have not.
        event.event_time = newer.event_time.or(event.event_time);
        event.message.take_over(&mut newer.message);
        self.size = size;
    }
}

/// Whether two events have equal members of client-go's event key.
fn keyed_is_equal(ours: &LentEvent<'_>, newer: &LentEvent<'_>) -> bool {
    // The message first: a combined event mostly differs in that.
    ours.message == newer.message
        && ours.metadata.namespace == newer.metadata.namespace
        && ours.involved_object == newer.involved_object
        && ours.reason == newer.reason
        && ours.source == newer.source
        && ours.event_type == newer.event_type
}

#[cfg(test)]
mod tests {
    use crate::clock::Now;
    use crate::correlator::{self, KeySecret, Policy};
    use crate::event::{ApiGroup, Event, EventSeries, MicroTime, ObjectReference, RareMeta, Time};
    use crate::outbox::Request;
    use crate::shard::{self, Outcome, Shard};

    /// Ways in which a repeat may differ from what was counted before it.
    const CHANGES: [fn(&mut Event); 12] = [
        |event| event.type_meta = Some(ApiGroup::Core),
        |event| event.metadata.uid = "u".into(),
        |event| event.metadata.creation_timestamp = Some(Time(5)),
        |event| event.metadata.rare.get_or_insert_default().labels = [("a".into(), "b".into())].into(),
        |event| event.involved_object.resource_version = "7".into(),
        |event| event.last_timestamp = Some(Time(9)),
        |event| event.series = Some(EventSeries { count: 3, last_observed_time: Some(MicroTime(4)) }),
        |event| event.action = "Pull".into(),
        |event| event.reporting_controller = "kubelet".into(),
        |event| event.reporting_instance = "node-1".into(),
        |event| event.related = Some(Box::new(ObjectReference { name: "x".into(), ..ObjectReference::default() })),
        |event| event.metadata.rare = Some(Box::new(RareMeta { finalizers: vec!["f".into()], ..RareMeta::default() })),
    ];

    #[test]
    fn what_is_counted_has_the_content_of_its_newest_occurrence() {
        for change in CHANGES {
            let mut shard = Shard::new(KeySecret(1, 2), shard::Settings::default(), 1);
            let (policy, now) = (Policy::default(), Now::at(1_000_000_000));
            let mut event = Event { count: 1, reason: "BackOff".into(), ..Event::default() };
            event.metadata.name = "a".into();
            event.source.component = "kubelet".into();
            shard.accept(event.clone(), 1, now, &policy).unwrap();
            change(&mut event);
            assert_eq!(shard.accept(event.clone(), 1, now, &policy).unwrap().outcome, Outcome::Counted);
            let Request::Create { event: written, .. } = shard.next_write(now).unwrap().request else {
                unreachable!("nothing was stored")
            };
            assert_eq!(*written, Event { count: 2, ..event });
        }
    }

    /// Counts events of one group, of which all from the third are combined, each with a message of its own, and changes them on the
    /// way. Returns what is written.
    fn written_of_group(first: &Event, change: fn(&mut Event), settings: correlator::Settings) -> Event {
        let max_events = const { std::num::NonZeroUsize::new(2).unwrap() };
        let policy = Policy { base: correlator::Settings { max_events, ..settings }.into(), ..Policy::default() };
        let mut shard = Shard::new(KeySecret(1, 2), shard::Settings::default(), 1);
        let (now, mut outcomes, mut event) = (Now::at(1_000_000_000), Vec::new(), first.clone());
        for number in 0..7 {
            if number == 5 {
                change(&mut event);
            }
            event.message = format!("no room on node {number}").into();
            outcomes.push(shard.accept(event.clone(), 1, now, &policy).unwrap().outcome);
        }
        assert_eq!(*outcomes.last().unwrap(), Outcome::Combined);
        let writes = std::iter::from_fn(|| shard.next_write(now)).filter_map(|write| match write.request {
            Request::Create { event, .. } => Some(*event),
            Request::Patch { .. } | Request::Read { .. } => None,
        });
        writes.last().unwrap()
    }

    #[test]
    fn a_combined_event_has_the_content_of_the_newest_whether_its_key_tells_or_not() {
        let mut old_style = Event { count: 1, reason: "Failed".into(), ..Event::default() };
        old_style.metadata.name = "a".into();
        old_style.source.component = "kubelet".into();
        let new_style = Event { event_time: Some(MicroTime(5)), action: "Bind".into(), ..old_style.clone() };
        let nothing: fn(&mut Event) = |_| ();
        let more: [fn(&mut Event); 2] =
            [|event| event.event_time = Some(MicroTime(6)), |event| event.involved_object.field_path = "spec".into()];
        let plain = correlator::Settings::default();
        // The same groups, by a key that nothing is known of.
        let aggregate_key = plain.aggregate_key.iter().rev().copied().collect();
        let other = correlator::Settings { aggregate_key, ..plain.clone() };
        assert!(plain.groups_as_client_go() && !other.groups_as_client_go());
        for first in [old_style, new_style] {
            for change in CHANGES.into_iter().chain(more).chain([nothing]) {
                let written = written_of_group(&first, change, plain.clone());
                assert_eq!(written.message, "(combined from similar events): no room on node 6");
                assert_eq!(written, written_of_group(&first, change, other.clone()));
            }
        }
    }
}
