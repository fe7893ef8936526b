//! The way of occurrences from a handler to their shard: the one place where they are accepted, counted and logged.

use std::time::Duration;

use super::aliases::{is_of_one_line, total};
use super::rejection::Rejection;
use super::{Ack, Face};
use crate::correlator::Policy;
use crate::event::{Event, ManagedFields, ObjectMeta, Time};
use crate::ledger::RejectReason;
use crate::shard::{Accepted, Full, Outcome, Unable, Waiting, Writer};
use crate::status::Status;

/// Occurrences that were accepted.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) outcome: Outcome,
    /// The wait for the upstream's answer, where one was asked for and the record can be written now.
    pub(super) waiting: Option<Waiting>,
}

impl Face {
    /// Hands occurrences of a valid event to their shard; `user` reported them. Where events are not correlated the record is its client's own, and
    /// marked by `claim`.
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
                shards.accept_under(&policy, occurrence, occurrences).map(|accepted| (accepted, None))
            }
            Ack::Written => shards.accept_and_wait(occurrence, occurrences, &policy),
        };
        let (accepted, waiting) = accepted.inspect_err(|_full| self.tell_full(event, occurrences))?;
        self.note(event, occurrences, accepted.outcome, user);
        Ok(Taken { outcome: accepted.outcome, waiting })
    }

    /// As [`accept`](Self::accept), for as many occurrences as each event brings; those of one shard under one lock.
    pub(super) fn accept_all(
        &self,
        events: Vec<Event>,
        ack: Ack,
        user: &str,
        claim: impl Fn() -> ManagedFields,
    ) -> Vec<Result<Taken, Full>> {
        if ack == Ack::Written {
            return events
                .iter()
                .map(|event| self.accept(event, self.brings(event, self.told(event).as_ref()), ack, user, &claim))
                .collect();
        }
        let policy = self.0.shards.policy();
        let brought: Vec<u32> = events.iter().map(|event| self.brings(event, self.told(event).as_ref())).collect();
        let logged =
            if self.0.event_log.is_kept() || self.0.shards.tap().is_read() { events.clone() } else { Vec::new() };
        let occurrences = events.into_iter().map(|event| occurrence(event, &policy, &claim));
        let accepted = self.0.shards.accept_all(&policy, occurrences.zip(brought.iter().copied()).collect());
        let mut logged = logged.into_iter();
        let taken = |(accepted, occurrences): (Result<Accepted, Full>, u32)| {
            let event = logged.next();
            let Accepted { outcome, .. } = accepted.inspect_err(|_full| {
                if let Some(event) = &event {
                    self.tell_full(event, occurrences);
                }
            })?;
            match &event {
                Some(event) => self.note(event, occurrences, outcome, user),
                None => self.0.metrics.count_outcome(outcome, occurrences.into()),
            }
            Ok(Taken { outcome, waiting: None })
        };
        accepted.into_iter().zip(brought).map(taken).collect()
    }

    /// Takes in occurrences of an event that its client is about to write to the upstream itself, if it may; `as_it_is` says whether
    /// the event stands for these occurrences and no others.
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
        let (accepted, writer) = self.0.shards.admit(&policy, occurrence, occurrences, as_it_is, limit)?;
        self.note(event, occurrences, accepted.outcome, user);
        Ok(writer)
    }

    /// How many occurrences a posted event brings. Its count, or its series, is a total: client-go posts the whole total again
    /// where a patch of it was answered 404. What is known of the name was counted before; any POST brings one.
    pub(super) fn brings(&self, event: &Event, told: Option<&Event>) -> u32 {
        let brought = total(event);
        if brought == 1 {
            return 1;
        }
        let told = told.filter(|told| is_of_one_line(told, event));
        let known = told.map_or_else(|| self.0.shards.counted_under(event, &event.metadata.name), total);
        u32::try_from(brought.saturating_sub(known)).unwrap_or(0).max(1)
    }

    /// What the client of an event was told of its name, where its total has to be compared.
    fn told(&self, event: &Event) -> Option<Event> {
        let ObjectMeta { namespace, name, .. } = &event.metadata;
        if total(event) == 1 { None } else { self.0.aliases.get(namespace, name) }
    }

    /// Notes for `explain` and the tap that occurrences of an event were refused that could be read.
    pub(super) fn note_rejection(&self, event: &Event, occurrences: u32, rejection: &Rejection) {
        self.0.shards.note_rejection(event, occurrences, rejection.reason, &rejection.status.message);
        self.tell_rejection(event, occurrences, rejection.reason);
    }

    /// Notes for `explain` that a change of an event was refused, which is no occurrence: a PUT, an apply, a patch of other members.
    pub(super) fn note_refused_change(&self, event: &Event, change: &str, status: &Status) {
        self.0.shards.note_refused_change(event, change, &status.message);
    }

    /// Tells the tap what the shard has noted.
    fn tell_full(&self, event: &Event, occurrences: u32) {
        self.tell_rejection(event, occurrences, RejectReason::Full);
    }

    fn tell_rejection(&self, event: &Event, occurrences: u32, reason: RejectReason) {
        let wall = || self.0.shards.clock().now().wall;
        self.0.shards.tap().tell(event, "rejected", reason.label(), occurrences.into(), wall);
    }

    /// Counts and logs what became of occurrences.
    fn note(&self, event: &Event, occurrences: u32, outcome: Outcome, user: &str) {
        self.0.metrics.count_outcome(outcome, occurrences.into());
        self.0.event_log.write(event, occurrences, outcome, user, self.0.shards.clock());
        self.0.shards.tap().tell(event, outcome.label(), "", occurrences.into(), || self.0.shards.clock().now().wall);
    }
}

/// Makes a client's event what its shard gets.
fn occurrence(mut event: Event, policy: &Policy, claim: impl FnOnce() -> ManagedFields) -> Event {
    if policy.correlates(&event) {
        // How far its client has counted. One that names neither number nor time never tells totals.
        let counts = event.count > 0 || event.series.is_some() || event.event_time.is_some();
        event.count = if counts { i32::try_from(total(&event)).unwrap_or(i32::MAX) } else { 0 };
        set_last_seen(&mut event);
    } else {
        event.metadata.managed_fields = claim();
    }
    event
}

/// Sets when a record was seen last, which new-style events say in other members. The record's count stands for the series.
fn set_last_seen(event: &mut Event) {
    let observed = event.series.take().and_then(|series| series.last_observed_time).or(event.event_time);
    event.last_timestamp = event.last_timestamp.or_else(|| observed.map(|time| Time(time.0.div_euclid(1_000_000))));
}
