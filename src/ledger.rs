//! The ledger: `received = rejected{reason} + written{as} + waiting{why} + lost{reason}`.
//!
//! The outbox counts the waiting occurrences, so that the balance is a check and not a definition. Pure.

use serde::{Deserialize, Serialize};

labelled! {
    /// Why an occurrence was refused on arrival. The response to the client states it.
    pub enum RejectReason {
        /// The body could not be read as an Event: 400.
        Malformed = "malformed",
        /// The API server's validation refuses the event: 422, or 400 for a namespace that does not match.
        Invalid = "invalid",
        /// 413.
        TooLarge = "too_large",
        /// 415 or 406.
        MediaType = "media_type",
        /// 404: the namespace does not exist.
        NamespaceMissing = "namespace_missing",
        /// 429: the outbox has no room for a new record.
        Full = "full",
        /// The body did not arrive before the timeout, or the connection broke.
        Unread = "unread",
        /// 429: the client asks for durable acceptance, and the spool cannot be used.
        NotDurable = "not_durable",
        /// 401 or 403: the caller is unknown or not permitted. 500 or 503: that could not be decided, or it is
        /// another eventweir.
        Denied = "denied",
        /// 429: the caller exceeds its rate limit or its share of the queue.
        Limited = "limited",
    }
}

labelled! {
    /// How the upstream shows an occurrence; the ledger's label of written occurrences.
    pub enum WrittenAs {
        /// It began a record of its own.
        Created = "created",
        /// It counts on the record of an equal event.
        Counted = "counted",
        /// It counts on a combined record.
        Combined = "combined",
        /// It counts in a digest.
        Digest = "digest",
        /// It counts in the storm record of its group.
        Storm = "storm",
    }
}

/// Numbers of occurrences, by how the upstream will show them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "Vec<u64>")]
pub struct Occurrences([u64; WrittenAs::ALL.len()]);

impl From<Vec<u64>> for Occurrences {
    /// An older version may know fewer ways.
    fn from(numbers: Vec<u64>) -> Self {
        let mut occurrences = Self::default();
        occurrences.0.iter_mut().zip(numbers).for_each(|(mine, number)| *mine = number);
        occurrences
    }
}

impl Occurrences {
    /// `number` occurrences that show in one way.
    pub fn of(shown: WrittenAs, number: u64) -> Self {
        let mut occurrences = Self::default();
        occurrences.0[shown as usize] = number;
        occurrences
    }

    /// Adds all of `other`.
    pub fn merge(&mut self, other: Self) {
        add_each(&mut self.0, other.0);
    }

    /// Returns the number of occurrences that show in this way.
    pub const fn get(&self, shown: WrittenAs) -> u64 {
        self.0[shown as usize]
    }

    /// Returns the number of all occurrences.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Takes the first `number` out, in the order in which a record shows its occurrences.
    pub(crate) fn take_first(&mut self, mut number: u64) -> Self {
        let mut first = Self::default();
        for (mine, theirs) in self.0.iter_mut().zip(&mut first.0) {
            *theirs = number.min(*mine);
            *mine -= *theirs;
            number -= *theirs;
        }
        first
    }
}

labelled! {
    /// The reason why occurrences wait; the ledger's label of waiting occurrences.
    pub enum Why {
        /// The answer to the request that carries them.
        InFlight = "in_flight",
        /// The record was written less than the coalescing interval ago, or is being written.
        Coalescing = "coalescing",
        /// The record's budget has no token.
        Budget = "budget",
        /// The budget of its group, or the budget of all writes, has no token.
        Group = "group",
        /// The last write failed and is to be retried.
        Retry = "retry",
        /// The upstream, or a free place among the requests in flight.
        Turn = "turn",
    }
}

labelled! {
    /// Why occurrences are lost; the ledger's label.
    #[derive(Hash)]
    pub enum LostReason {
        /// Their budget was empty under `suppression: drop`.
        Suppressed = "suppressed",
        /// The upstream considers the event invalid: 400, 405, 415, 422.
        Invalid = "invalid",
        /// 403 for another reason than a terminating namespace, for longer than the grace period.
        Forbidden = "forbidden",
        /// The namespace is missing or terminating, so the event has no reader.
        NamespaceGone = "namespace_gone",
        /// 413, or etcd's own size limits.
        TooLarge = "too_large",
        /// The name is taken, and the client gets the conflict as its answer.
        Exists = "exists",
        /// The upstream refused their record finally with any other status.
        Refused = "refused",
        /// The drain's deadline passed.
        Shutdown = "shutdown",
        /// A client deleted their record before they were written.
        Deleted = "deleted",
        /// The upstream deferred their record until its newest occurrence was older than `max_age`.
        Expired = "expired",
        /// The process ended while a request with them was in flight or in doubt: the upstream may show them.
        Unknown = "unknown",
    }
}

impl LostReason {
    /// Whether the configuration, a client or the end of the namespace asked for the loss, so that it is no fault. The
    /// alert `EventweirLosesEvents` excludes the same reasons.
    pub const fn is_intended(self) -> bool {
        matches!(self, Self::Suppressed | Self::Deleted | Self::NamespaceGone)
    }
}

/// Totals of all occurrences so far.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ledger {
    received: u64,
    rejected: [u64; RejectReason::ALL.len()],
    written: Occurrences,
    lost: [u64; LostReason::ALL.len()],
    /// Occurrences that another shard accounts for, less the occurrences of other shards that this shard accounts for.
    moved: i64,
}

/// The ledger and the waiting occurrences, read at one instant.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Balance {
    /// The ledger.
    pub ledger: Ledger,
    /// Waiting occurrences, by what they wait for.
    pub waiting: [u64; Why::ALL.len()],
}

#[expect(missing_docs, reason = "numbers of occurrences, by the names of the ledger")]
impl Ledger {
    /// Counts arrived occurrences.
    pub fn receive(&mut self, occurrences: u64) {
        self.received += occurrences;
    }

    /// Counts received occurrences as refused on arrival.
    pub fn reject(&mut self, reason: RejectReason, occurrences: u64) {
        self.rejected[reason as usize] += occurrences;
    }

    /// Counts occurrences that the upstream shows.
    pub fn write(&mut self, written: Occurrences) {
        self.written.merge(written);
    }

    /// Counts accepted occurrences as lost.
    pub fn lose(&mut self, reason: LostReason, occurrences: u64) {
        self.lost[reason as usize] += occurrences;
    }

    /// Counts occurrences that another shard accounts for from now on. A negative number adds occurrences of another
    /// shard.
    pub fn hand_over(&mut self, occurrences: i64) {
        self.moved += occurrences;
    }

    pub const fn received(&self) -> u64 {
        self.received
    }

    pub const fn rejected(&self, reason: RejectReason) -> u64 {
        self.rejected[reason as usize]
    }

    pub const fn written(&self, shown: WrittenAs) -> u64 {
        self.written.get(shown)
    }

    pub const fn lost(&self, reason: LostReason) -> u64 {
        self.lost[reason as usize]
    }

    pub fn total_written(&self) -> u64 {
        self.written.total()
    }

    pub fn total_lost(&self) -> u64 {
        self.lost.iter().sum()
    }

    pub fn total_rejected(&self) -> u64 {
        self.rejected.iter().sum()
    }
}

impl Balance {
    /// Returns the number of all waiting occurrences.
    pub fn total_waiting(&self) -> u64 {
        self.waiting.iter().sum()
    }

    /// Whether every received occurrence is accounted for.
    pub fn is_exact(&self) -> bool {
        let ledger = &self.ledger;
        let known = ledger.total_rejected() + ledger.total_written() + self.total_waiting() + ledger.total_lost();
        ledger.received.checked_sub_signed(ledger.moved) == Some(known)
    }

    /// Counts occurrences that moved between shards during the reading as waiting for their group.
    pub fn settle_moved(&mut self) {
        let waiting = &mut self.waiting[Why::Group as usize];
        *waiting = waiting.saturating_add_signed(std::mem::take(&mut self.ledger.moved));
    }

    /// Adds the balance of another shard.
    pub fn merge(&mut self, other: &Self) {
        self.ledger.received += other.ledger.received;
        self.ledger.moved += other.ledger.moved;
        self.ledger.written.merge(other.ledger.written);
        add_each(&mut self.ledger.rejected, other.ledger.rejected);
        add_each(&mut self.ledger.lost, other.ledger.lost);
        add_each(&mut self.waiting, other.waiting);
    }
}

fn add_each<const N: usize>(mine: &mut [u64; N], theirs: [u64; N]) {
    for (mine, theirs) in mine.iter_mut().zip(theirs) {
        *mine += theirs;
    }
}
