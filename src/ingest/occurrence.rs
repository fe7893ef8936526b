//! Passes occurrences from handlers to their shards: the only place where they are accepted, counted and logged.

use std::time::Duration;

use super::aliases::{is_of_one_line, is_same_series, total};
use super::rejection::Rejection;
use super::{Ack, Ingest};
use crate::correlator::Policy;
use crate::event::{Event, ManagedFields, ObjectMeta, Time};
use crate::ledger::RejectReason;
use crate::shard::{Accepted, Full, Outcome, Unable, Waiting, Writer};
use crate::status::Status;

/// Accepted occurrences.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) outcome: Outcome,
    /// The wait for the upstream's answer, if one was requested and the record can be written now.
    pub(super) waiting: Option<Waiting>,
    /// The event of a batch whose client waits, with the occurrences that its total brought: if they are refused, they
    /// are taken back.
    pub(super) total: Option<Box<(Event, u32)>>,
}

impl Ingest {
    /// Waits until the upstream's events are listed, if one of these has a total: the clients' lines on the records
    /// show how much of it is new.
    // LIMIT: `history::DEADLINE`.
    pub(super) async fn until_listed(&self, events: &[Event]) {
        if events.iter().any(|event| total(event) > 1) {
            self.0.shared.listed.cancelled().await;
        }
    }

    /// Passes occurrences of a valid event, reported by `user`, to their shard. If events are not correlated, the
    /// record is the client's own, and `claim` supplies its managedFields.
    ///
    /// # Errors
    /// [`Full`], which the shard's ledger has counted already.
    pub(super) fn accept(
        &self,
        event: &Event,
        occurrences: u32,
        ack: Ack,
        user: &str,
        claim: impl FnOnce() -> ManagedFields,
    ) -> Result<Taken, Full> {
        let shards = &self.0.shards;
        let policy = shards.policy();
        let occurrence = occurrence(event.clone(), &policy, claim);
        let accepted = match ack {
            Ack::Accepted | Ack::Durable => {
                shards.accept_under(&policy, occurrence, occurrences, user).map(|accepted| (accepted, None))
            }
            Ack::Written => shards.accept_and_wait(occurrence, occurrences, &policy, user),
        };
        let (accepted, waiting) = accepted.inspect_err(|_full| self.report_full(event, occurrences, user))?;
        self.note(event, occurrences, accepted.outcome, user);
        Ok(Taken { outcome: accepted.outcome, waiting, total: None })
    }

    /// As [`accept`](Self::accept), for several events, each with as many occurrences as it brings. Without totals, the
    /// events of one shard are taken under one lock.
    pub(super) fn accept_all(
        &self,
        events: Vec<Event>,
        ack: Ack,
        user: &str,
        claim: impl Fn() -> ManagedFields,
    ) -> Vec<Result<Taken, Full>> {
        // One by one, because a total counts by its growth over those before it.
        if ack == Ack::Written || events.iter().any(|event| total(event) > 1) {
            return events.iter().map(|event| self.accept_one(event, ack, user, &claim)).collect();
        }
        let policy = self.0.shards.policy();
        let logged =
            if self.0.event_log.is_kept() || self.0.shards.tap().is_read() { events.clone() } else { Vec::new() };
        let occurrences = events.into_iter().map(|event| occurrence(event, &policy, &claim));
        let accepted = self.0.shards.accept_all(&policy, occurrences.map(|occurrence| (occurrence, 1)).collect(), user);
        let mut logged = logged.into_iter();
        let taken = |accepted: Result<Accepted, Full>| {
            let event = logged.next();
            let Accepted { outcome, .. } = accepted.inspect_err(|_full| {
                if let Some(event) = &event {
                    self.report_full(event, 1, user);
                }
            })?;
            match &event {
                Some(event) => self.note(event, 1, outcome, user),
                None => self.0.metrics.count_outcome(outcome, 1),
            }
            Ok(Taken { outcome, waiting: None, total: None })
        };
        accepted.into_iter().map(taken).collect()
    }

    /// Accepts an event of a batch, with as many occurrences as it brings. Its name is not remembered, but a known name
    /// has its total then.
    fn accept_one(
        &self,
        event: &Event,
        ack: Ack,
        user: &str,
        claim: impl FnOnce() -> ManagedFields,
    ) -> Result<Taken, Full> {
        let ObjectMeta { namespace, name, .. } = &event.metadata;
        let earlier = if total(event) == 1 { None } else { self.0.aliases.get(namespace, name) };
        // A recorder that posts its series again sends no batches.
        let brings = self.brings(event, earlier.as_ref()).max(1);
        let mut taken = self.accept(event, brings, ack, user, claim)?;
        if ack == Ack::Written && total(event) > 1 {
            taken.total = Some(Box::new((event.clone(), brings)));
        }
        if earlier.is_some_and(|earlier| is_of_one_line(&earlier, event)) {
            self.0.aliases.insert(event);
        }
        Ok(taken)
    }

    /// Accepts occurrences of an event that its client is about to write to the upstream itself, if it may. `as_it_is`
    /// states whether the event stands for exactly these occurrences.
    pub(super) fn admit(
        &self,
        event: &Event,
        occurrences: u32,
        as_it_is: bool,
        user: &str,
        limit: Duration,
    ) -> Result<Writer, Unable> {
        let policy = self.0.shards.policy();
        let occurrence = occurrence(event.clone(), &policy, || None);
        let admitted = self.0.shards.admit(&policy, occurrence, occurrences, as_it_is, limit, user);
        let (accepted, writer) = admitted.inspect_err(|unable| match unable {
            Unable::Full => self.report_full(event, occurrences, user),
            Unable::Late => {}
        })?;
        self.note(event, occurrences, accepted.outcome, user);
        Ok(writer)
    }

    /// Returns the number of new occurrences in a posted event. Its count or series is a total: client-go posts the
    /// whole total again after a patch got 404. The count known for the name is subtracted. A POST brings at least one,
    /// unless it is of a known series: client-go posts a series again even if it has not grown. Without correlation it
    /// is a create all the same.
    pub(super) fn brings(&self, event: &Event, earlier: Option<&Event>) -> u32 {
        let brought = total(event);
        if brought == 1 {
            return 1;
        }
        let earlier = earlier.filter(|earlier| is_of_one_line(earlier, event));
        let new = match earlier {
            Some(earlier) => self.new_of(event, brought - total(earlier)),
            None => u32::try_from(brought - self.0.shards.counted_under(event, &event.metadata.name)).unwrap_or(0),
        };
        let is_known_series = event.series.is_some() && earlier.is_none_or(|earlier| is_same_series(earlier, event));
        if is_known_series && self.0.shards.correlates(event) { new } else { new.max(1) }
    }

    /// Returns how many of the occurrences by which a client's line has `grown` are new. The alias does not know what
    /// another replica has counted since, but the watch does.
    pub(super) fn new_of(&self, event: &Event, grown: i64) -> u32 {
        let counted = self.0.shards.line_of(event).unwrap_or(0);
        u32::try_from(grown.min(total(event) - i64::from(counted))).unwrap_or(0)
    }

    /// Reverts a growth that was refused, and that its client will repeat.
    pub(super) fn take_back(&self, event: &Event, grown: u32) {
        self.0.aliases.shrink(&event.metadata.namespace, &event.metadata.name, grown);
        let counted = total(event) - i64::from(grown);
        self.0.shards.take_back_line(event, i32::try_from(counted).unwrap_or(i32::MAX));
    }

    /// Records for `explain` and the tap that occurrences of a decoded event were rejected.
    pub(super) fn note_rejection(&self, event: &Event, occurrences: u32, rejection: &Rejection) {
        self.0.shards.note_rejection(event, occurrences, rejection.reason, &rejection.status.message);
        self.report_rejection(event, occurrences, rejection.reason, "");
    }

    /// Records for `explain` that a change of an event was refused which is no occurrence: a PUT, an apply, or a patch
    /// of other members.
    pub(super) fn note_refused_change(&self, event: &Event, change: &str, status: &Status) {
        self.0.shards.note_refused_change(event, change, &status.message);
    }

    /// Reports to the tap that a shard was full; the shard has recorded it for `explain`.
    fn report_full(&self, event: &Event, occurrences: u32, user: &str) {
        self.report_rejection(event, occurrences, RejectReason::Full, user);
    }

    fn report_rejection(&self, event: &Event, occurrences: u32, reason: RejectReason, user: &str) {
        let wall = || self.0.shards.clock().now().wall;
        self.0.shards.tap().send(event, "rejected", reason.label(), occurrences.into(), user, wall);
    }

    /// Counts and logs the outcome of occurrences.
    fn note(&self, event: &Event, occurrences: u32, outcome: Outcome, user: &str) {
        self.0.metrics.count_outcome(outcome, occurrences.into());
        self.0.event_log.write(event, occurrences, outcome, user, self.0.shards.clock());
        let wall = || self.0.shards.clock().now().wall;
        self.0.shards.tap().send(event, outcome.label(), "", occurrences.into(), user, wall);
    }
}

/// Converts a client's event to the occurrence for its shard.
fn occurrence(mut event: Event, policy: &Policy, claim: impl FnOnce() -> ManagedFields) -> Event {
    if policy.correlates(&event) {
        // The client's own total; 0 for an event without number and time, whose client never sends totals.
        let counts = event.count > 0 || event.series.is_some() || event.event_time.is_some();
        event.count = if counts { i32::try_from(total(&event)).unwrap_or(i32::MAX) } else { 0 };
        set_last_seen(&mut event);
    } else {
        event.metadata.managed_fields = claim();
    }
    event
}

/// Sets the last timestamp to the latest time: new-style events have theirs in other members. Drops the series, because
/// the record's count stands for it.
fn set_last_seen(event: &mut Event) {
    let observed = event.series.take().and_then(|series| series.last_observed_time).or(event.event_time);
    event.last_timestamp = event.last_timestamp.max(observed.map(|time| Time(time.0.div_euclid(1_000_000))));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{EventSeries, MicroTime};

    /// Fault: the time of an event with a lastTimestamp of its own stood still, however its series grew.
    #[test]
    fn an_event_was_last_seen_at_the_latest_of_its_times() {
        let series =
            |seconds: i64| Some(EventSeries { count: 2, last_observed_time: Some(MicroTime(seconds * 1_000_000)) });
        for (last, series, seen) in [(7, series(9), 9), (9, series(7), 9), (7, None, 8)] {
            let mut event = Event { last_timestamp: Some(Time(last)), series, ..Event::default() };
            event.event_time = Some(MicroTime(8_900_000));
            set_last_seen(&mut event);
            assert_eq!((event.last_timestamp, event.series), (Some(Time(seen)), None));
        }
    }
}
