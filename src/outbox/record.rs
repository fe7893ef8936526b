//! One record: its desired state, what of it the upstream has not acknowledged, and what it waits for.

use smol_str::SmolStr;

use super::account::{AccountId, Order, Place};
use super::claim::Base;
use super::settings::Settings;
use super::write::Refusal;
use crate::clock::Mono;
use crate::correlator::{Fold, Key};
use crate::event::repair::Repair;
use crate::event::{ApiGroup, Event, NEW_STYLE_MESSAGE_MAX, cut};

/// How an occurrence shows upstream; the ledger's label of what was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WrittenAs {
    /// It began a record of its own.
    Created,
    /// It counts on the record of an equal event.
    Counted,
    /// It counts on a combined record.
    Combined,
    /// It counts in a digest.
    Digest,
}

impl WrittenAs {
    /// Every way, for zero-initialised metrics.
    pub const ALL: [Self; 4] = [Self::Created, Self::Counted, Self::Combined, Self::Digest];

    /// The metric label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Counted => "counted",
            Self::Combined => "combined",
            Self::Digest => "digest",
        }
    }
}

impl From<Fold> for WrittenAs {
    fn from(fold: Fold) -> Self {
        match fold {
            Fold::Created => Self::Created,
            Fold::Counted => Self::Counted,
            Fold::Combined => Self::Combined,
        }
    }
}

/// A number of occurrences, by how they will show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Occurrences([u64; 4]);

impl Occurrences {
    /// `number` occurrences that show in one way.
    #[must_use]
    pub fn of(shown: WrittenAs, number: u64) -> Self {
        let mut occurrences = Self::default();
        occurrences.add(shown, number);
        occurrences
    }

    /// Adds `number`.
    pub fn add(&mut self, shown: WrittenAs, number: u64) {
        self.0[shown as usize] += number;
    }

    /// Adds all of `other`.
    pub fn merge(&mut self, other: Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }

    /// How many show in this way.
    #[must_use]
    pub const fn get(&self, shown: WrittenAs) -> u64 {
        self.0[shown as usize]
    }

    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    pub(super) fn take(&mut self) -> Self {
        std::mem::take(self)
    }

    /// Takes out the first `number`, in the order in which the occurrences of one record come to show.
    pub(super) fn take_first(&mut self, mut number: u64) -> Self {
        let mut first = Self::default();
        for (mine, theirs) in self.0.iter_mut().zip(&mut first.0) {
            *theirs = number.min(*mine);
            *mine -= *theirs;
            number -= *theirs;
        }
        first
    }
}

/// What occurrences wait for; the ledger's label of what is waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Why {
    /// A request with them is on its way.
    InFlight,
    /// The record was written less than the coalescing interval ago, or is being written.
    Coalescing,
    /// The record's budget has no token.
    Budget,
    /// The last write failed and will be repeated.
    Retry,
    /// Their turn: the upstream, or a place among the requests in flight.
    Turn,
}

impl Why {
    /// Everything to wait for, for zero-initialised metrics.
    pub const ALL: [Self; 5] = [Self::InFlight, Self::Coalescing, Self::Budget, Self::Retry, Self::Turn];

    /// The metric label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::InFlight => "in_flight",
            Self::Coalescing => "coalescing",
            Self::Budget => "budget",
            Self::Retry => "retry",
            Self::Turn => "turn",
        }
    }
}

/// A record that is unsettled, or was written a moment ago.
#[derive(Debug)]
pub(super) struct Record {
    /// What it waits for.
    pub(super) phase: Phase,
    /// The budget that pays for its writes.
    pub(super) account: AccountId,
    /// Occurrences in `event` that no request carries yet.
    pub(super) pending: Occurrences,
    /// Since when the oldest of `pending` has waited.
    pub(super) since: Mono,
    /// When its newest occurrence came.
    pub(super) newest: Mono,
    /// Bytes of `event` as counted against the limit.
    pub(super) size: usize,
    /// Whether the upstream holds the record: decides between create and patch.
    pub(super) stored: bool,
    /// Its next write needs no token: paid by the correlator, or a repeat of a write that paid.
    pub(super) paid: bool,
    /// A write was sent whose fate is unknown: what is found upstream may be our own doing.
    pub(super) ambiguous: bool,
    /// The next request reads: a create was answered "exists", or nobody knows what a patch met.
    pub(super) look_first: bool,
    /// A timer of this record is set for what it waits for now.
    pub(super) timer_set: bool,
    /// It is the digest of its budget.
    pub(super) is_digest: bool,
    /// Its message changes from write to write, and does not identify it.
    pub(super) varies: bool,
    /// What was repaired of `event` after the upstream had refused it.
    pub(super) repaired: Vec<Repair>,
    /// Desired state. Its name is fixed once a create was sent.
    pub(super) event: Event,
    /// Who reports; fairness is between sources.
    pub(super) source: Key,
    /// Where the correlator remembers the record.
    pub(super) key: Key,
    /// What the upstream is known to hold of it.
    pub(super) base: Base,
    /// The newest write that was sent.
    pub(super) attempt: Attempt,
    /// The coalescing interval ends then.
    pub(super) next_write: Mono,
    /// A refusal that came while the fate of an earlier try is unknown; it holds when reading finds nothing.
    pub(super) refusal: Option<Box<Refusal>>,
    /// Failed tries since the last success.
    pub(super) tries: u32,
    /// When the first of them failed.
    pub(super) failing_since: Option<Mono>,
    /// The annotation of an earlier process, under which it was counted until that one ended; `None` for our own.
    pub(super) writer: Option<SmolStr>,
}

/// Life of a record in the outbox.
#[derive(Debug)]
pub(super) enum Phase {
    /// Nothing is owed; kept until the coalescing interval ends.
    Settled,
    /// Owes a write and waits for the coalescing interval to end.
    Cooling,
    /// Waits in its account for a token and its turn.
    Queued(Order),
    /// A request is on its way.
    InFlight(Sent),
    /// The last try failed; repeated at that time.
    Backoff(Mono),
}

/// What a request on its way carries.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    /// The occurrences it makes visible.
    pub(super) occurrences: Occurrences,
    /// The count it writes.
    pub(super) count: i32,
    /// What was asked.
    pub(super) call: Call,
    /// The group it was asked through.
    pub(super) group: ApiGroup,
}

/// A write as it was sent: what the upstream holds if it arrived.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Attempt {
    /// The count it writes.
    pub(super) count: i32,
    /// The writer's own tally after it.
    pub(super) tally: u32,
}

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    Create,
    Patch,
    Read,
}

impl Record {
    /// Adds occurrences, waiting since `since`, that no request carries yet.
    pub(super) fn gain(&mut self, occurrences: Occurrences, since: Mono, now: Mono) {
        self.since = if self.pending.total() == 0 { since } else { self.since.min(since) };
        self.newest = now;
        self.pending.merge(occurrences);
    }

    /// Takes over the content of a newer occurrence. The name and the version stay: requests may be on their way under them.
    ///
    /// At the byte limit a repeat is still taken, but may not grow: it keeps the older, smaller content and moves only the
    /// count and the time. So does a repaired record, which the same occurrence again would spoil; its message alone follows.
    pub(super) fn absorb(&mut self, mut newer: Event, has_room: impl FnOnce() -> bool) {
        let event = &mut self.event;
        if !self.repaired.is_empty() {
            let limit = if self.repaired.contains(&Repair::Message) { NEW_STYLE_MESSAGE_MAX } else { usize::MAX };
            let message = cut(&newer.message, limit);
            newer = Event { count: newer.count, last_timestamp: newer.last_timestamp, message, ..event.clone() };
        }
        newer.metadata.name = event.metadata.name.clone();
        newer.metadata.resource_version = event.metadata.resource_version.clone();
        let size = newer.approximate_size();
        if size > self.size && !has_room() {
            (event.count, event.last_timestamp) = (newer.count, newer.last_timestamp);
            return;
        }
        self.event = newer;
        self.size = size;
    }

    pub(super) fn call(&self) -> Call {
        if self.look_first {
            Call::Read
        } else if self.stored {
            Call::Patch
        } else {
            Call::Create
        }
    }

    /// What its write waits for; `is_filed` tells whether an account can be written now.
    pub(super) fn why(&self, is_filed: impl FnOnce(AccountId) -> bool) -> Why {
        match self.phase {
            Phase::Queued(_) if self.paid || is_filed(self.account) => Why::Turn,
            Phase::Queued(_) => Why::Budget,
            Phase::Backoff(_) => Why::Retry,
            Phase::Settled | Phase::Cooling | Phase::InFlight(_) => Why::Coalescing,
        }
    }

    /// How it waits in its account: what was never written and has to pay can fold into a digest.
    pub(super) const fn place(&self) -> Place {
        match (self.paid, self.stored || self.is_digest) {
            (true, _) => Place::Paid,
            (false, true) => Place::Owed,
            (false, false) => Place::Foldable,
        }
    }

    /// Pause after `tries` failures: doubling, capped, and cut by up to a half (`jitter` in 0..1).
    pub(super) fn backoff(tries: u32, jitter: f64, settings: &Settings) -> std::time::Duration {
        super::gate::backoff(tries, jitter, settings.first_backoff, settings.max_backoff)
    }
}
