//! One record: its desired state, its unacknowledged occurrences, and what it waits for.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use super::api_group;
use super::budget::{Budget, BudgetId, Order, Place, Rank};
use super::groups::Membership;
use super::lines::Lines;
use super::offer::Forgotten;
use super::request::Answer;
use super::settings::Settings;
use super::tag;
use super::upstream_state::{Call, LIMBO, Mark, Seen, StoredState, UpstreamState};
use super::usage::Usage;
use crate::clock::{Mono, Now};
use crate::correlator::{Key, LruMap, Messages, RecordId};
use crate::event::repair::{self, Objection, Repair};
use crate::event::{ApiGroup, Event, NEW_STYLE_MESSAGE_MAX, ObjectReference, cut};
use crate::ledger::{LostReason, Occurrences, Why};

/// Time after a record's first 403 during which another 403 is retried.
const FORBIDDEN_GRACE: Duration = Duration::from_secs(300);
/// Longest pause between these tries. A quota or a policy may refuse every record of a namespace, and their tries take
/// tokens of `upstream.qps` from other namespaces.
const FORBIDDEN_PAUSE_MAX: Duration = Duration::from_secs(60);

/// The kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Counts equal events.
    #[default]
    Plain,
    /// Counts similar events: its message is that of the newest.
    Combined,
    /// Counts events that their budget could not pay for: its message names them.
    Digest,
    /// Counts events of many objects that their group's budget could not pay for.
    Storm,
}

impl Kind {
    /// Whether other records have folded into it.
    pub(crate) const fn folds(self) -> bool {
        matches!(self, Self::Digest | Self::Storm)
    }
}

/// A record that is unsettled or was written recently.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// The phase: what the record waits for.
    pub(super) phase: Phase,
    /// The budget that pays for its writes.
    pub(super) budget: BudgetId,
    /// The source; sources take turns.
    pub(super) source: Key,
    /// The correlator's key of the record.
    pub(super) key: Key,
    pub(super) kind: Kind,
    /// The part of the message that identifies it.
    pub(super) messages: Messages,
    /// Desired state. Its count includes other writers' occurrences. Its name is fixed once a create was sent.
    pub(super) event: Event,
    /// Bytes of `event` and the lines as counted against the limit.
    pub(super) size: usize,
    /// The known state of the record upstream.
    pub(super) upstream: UpstreamState,
    /// Until when an earlier, unanswered create may still take effect, after a later one was answered.
    pub(super) create_until: Option<Mono>,
    /// The tag under which it is counted; `None` if writes carry no tag.
    pub(super) tag: Option<SmolStr>,
    /// Whether the tag is that of an earlier process. Under it, only what that process may have written already is
    /// written.
    pub(super) is_inherited: bool,
    /// Occurrences under the tag: acknowledged, in flight and pending.
    pub(super) total: u64,
    /// The newest write that was sent, and was not answered with a conflict.
    pub(super) sent: Mark,
    /// Occurrences under the tag that no request carries yet.
    pub(super) pending: Occurrences,
    /// Occurrences that came while the tag was inherited. They are counted under the record's own tag once the
    /// inherited one is settled.
    pub(super) later: Occurrences,
    /// The clients' own counts for the occurrences under the tag.
    pub(super) lines: Lines,
    /// The clients' own counts for `later`.
    pub(super) later_lines: Lines,
    /// When the oldest waiting occurrence arrived.
    pub(super) since: Mono,
    /// When its newest occurrence arrived.
    pub(super) newest: Mono,
    /// End of the coalescing interval.
    pub(super) next_write: Mono,
    /// Whether its next write needs no token: the correlator paid, or an earlier try did.
    pub(super) paid: bool,
    /// The group that pays for its writes in addition to its own budget.
    pub(super) group: Option<Membership>,
    /// Whether its group has paid too.
    pub(super) has_passed: bool,
    /// The earliest timer set for the record.
    pub(super) timer: Option<Mono>,
    /// The repairs of `event` after the upstream had refused it.
    pub(super) repaired: Vec<Repair>,
    /// Failed tries since the last success.
    pub(super) tries: u32,
    /// Since when the upstream has answered each try without accepting it.
    pub(super) failing_since: Option<Mono>,
    /// When the first 403 of the current series came.
    pub(super) forbidden_since: Option<Mono>,
}

/// Phase of a record in the outbox.
#[derive(Debug, Default)]
pub(super) enum Phase {
    /// No write is owed; kept until the coalescing interval ends.
    #[default]
    Settled,
    /// Owes a write and waits for the coalescing interval to end.
    Cooling,
    /// Waits in its budget for a token and its turn.
    Queued(Order),
    /// Waits in its group for a token and its turn, after its budget has paid.
    Staged(Order),
    /// A request is in flight.
    InFlight(Sent),
    /// The last try failed; retried at this time.
    Backoff(Mono),
}

/// A request in flight.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    /// The occurrences it makes visible.
    pub(super) occurrences: Occurrences,
    pub(super) call: Call,
    pub(super) group: ApiGroup,
    /// The newest write before it that may have been executed.
    pub(super) before: Mark,
    /// Whether a client's DELETE got no answer meanwhile. The request may have been executed before it.
    pub(super) is_overtaken: bool,
}

impl Record {
    /// Returns a settled record.
    pub(super) fn new(source: Key, budget: BudgetId, kind: Kind, event: Event, now: Mono) -> Self {
        let size = event.approximate_size();
        Self { budget, source, kind, event, size, since: now, newest: now, next_write: now, ..Self::default() }
    }

    /// Returns the message to the correlator that the record was folded.
    pub(super) fn forgotten(&self, record: RecordId, into: &super::Taken, kind: Kind) -> Forgotten {
        let (event, number) = (Box::new(self.event.clone()), self.pending.total());
        let super::Taken { into, name, reach } = into.clone();
        Forgotten { source: self.source, key: self.key, record, into, kind, name, reach, event, number }
    }

    /// Whether an answer is a 403 that may be temporary. An API server that has just started may not have loaded all
    /// roles. The usual role has no right to delete.
    pub(super) fn waits_for_rights(&mut self, call: Call, answer: &Answer, now: Mono) -> bool {
        if call == Call::Delete {
            return false;
        }
        match answer {
            Answer::Refused(refusal) if refusal.reason == LostReason::Forbidden => {
                now.since(*self.forbidden_since.get_or_insert(now)) < FORBIDDEN_GRACE
            }
            Answer::Stored(_) => {
                self.forbidden_since = None;
                false
            }
            Answer::Missing | Answer::Exists | Answer::Refused(_) | Answer::Retry(_) => false,
        }
    }

    /// Notes since when the upstream answers without accepting. While it does not answer, nothing expires.
    pub(super) fn note_failure(&mut self, answer: &Answer, now: Mono) {
        match answer {
            Answer::Retry(retry) if !retry.fault.is_answer() => self.failing_since = None,
            Answer::Retry(_) | Answer::Exists => {
                self.failing_since.get_or_insert(now);
            }
            Answer::Stored(_) | Answer::Missing | Answer::Refused(_) => {}
        }
    }

    /// Whether the upstream has not accepted it for too long. The wait for its budget does not count.
    pub(super) fn has_expired(&self, max_age: Duration, now: Mono) -> bool {
        self.failing_since.is_some_and(|since| since.max(self.newest).after(max_age) <= now)
    }

    /// Adds occurrences, waiting since `since`, that no request carries yet.
    pub(super) fn gain(&mut self, occurrences: Occurrences, since: Mono, now: Mono) {
        self.since = if self.owes() { self.since.min(since) } else { since };
        self.newest = now;
        if self.is_inherited {
            self.later.merge(occurrences);
        } else {
            self.pending.merge(occurrences);
            self.total += occurrences.total();
        }
    }

    pub(super) fn owes(&self) -> bool {
        self.pending.total() + self.later.total() > 0
    }

    /// Takes the waiting occurrences that the next request carries. What came after the create of a client pays for a
    /// write of its own, except that an earlier process may have written it already.
    pub(super) fn take_next(&mut self) -> Occurrences {
        match self.upstream {
            UpstreamState::Admitted { .. } if !self.is_inherited => self.pending.take_first(self.in_doubt()),
            _ => std::mem::take(&mut self.pending),
        }
    }

    pub(super) fn in_flight(&self) -> Occurrences {
        if let Phase::InFlight(sent) = self.phase { sent.occurrences } else { Occurrences::default() }
    }

    /// Returns the occurrences under the tag that the upstream has not acknowledged.
    pub(super) fn unsettled(&self) -> Occurrences {
        let mut unsettled = self.pending;
        unsettled.merge(self.in_flight());
        unsettled
    }

    /// Returns all occurrences that the upstream has not acknowledged.
    pub(super) fn waiting(&self) -> Occurrences {
        let mut waiting = self.unsettled();
        waiting.merge(self.later);
        waiting
    }

    /// Returns the number of occurrences under the tag that the upstream is known to hold.
    pub(super) fn settled(&self) -> u64 {
        self.total - self.unsettled().total()
    }

    /// Returns the count for a write of all occurrences under the tag.
    pub(super) fn count_to_write(&self) -> i64 {
        i64::from(self.event.count).saturating_sub(i64::try_from(self.later.total()).unwrap_or(i64::MAX))
    }

    /// Returns the number of occurrences that an unanswered request may have made visible upstream.
    pub(super) fn in_doubt(&self) -> u64 {
        let is_in_doubt = match (&self.phase, &self.upstream) {
            (Phase::InFlight(Sent { call: Call::Create | Call::Patch, .. }), _) => true,
            (
                _,
                UpstreamState::Sent { .. }
                | UpstreamState::Unsure { .. }
                | UpstreamState::Waiting { .. }
                | UpstreamState::Admitted { .. },
            ) => true,
            (_, UpstreamState::Taken { until, .. }) => until.is_some(),
            (_, UpstreamState::Absent | UpstreamState::Stored(_) | UpstreamState::Unwanted(_)) => false,
        };
        if is_in_doubt { self.sent.tag.saturating_sub(self.settled()) } else { 0 }
    }

    /// Whether an unanswered request may have made occurrences visible. Without tags, a patch in doubt leaves no trace in the
    /// upstream state.
    pub(super) fn may_have_arrived(&self) -> bool {
        self.in_doubt() > 0 || self.tag.is_none() && self.sent.tag > self.settled()
    }

    /// Adds `by` to the desired count. An event that is stored as posted may have no count, and still shows occurrences.
    pub(super) fn move_count(&mut self, by: i64) {
        let count = if by == 0 || self.event.count != 0 { self.event.count } else { api_group::count(&self.event) };
        let moved = i64::from(count).saturating_add(by);
        self.event.count = i32::try_from(moved).unwrap_or(if moved < 0 { 0 } else { i32::MAX });
    }

    /// Counts all that waits under the record's own `tag` from now on.
    pub(super) fn take_own_tag(&mut self, tag: Option<SmolStr>) {
        (self.tag, self.is_inherited) = (tag, false);
        self.pending.merge(std::mem::take(&mut self.later));
        self.lines.merge(std::mem::take(&mut self.later_lines));
    }

    /// Continues under the record's own `tag` if an inherited one is settled. Returns whether it does.
    pub(super) fn switches_tag(&mut self, tag: Option<SmolStr>) -> bool {
        if !self.is_inherited || self.pending.total() > 0 {
            return false;
        }
        self.take_own_tag(tag);
        self.total = self.pending.total();
        if let UpstreamState::Stored(held) | UpstreamState::Unsure { held, .. } = &mut self.upstream {
            held.tag = 0;
            self.sent = Mark { count: held.count, tag: 0 };
        }
        true
    }

    /// Returns when the record may leave the outbox once nothing is owed. It stays while a create is in limbo, because
    /// its deletion by a client depends on that.
    pub(super) fn goes_at(&self) -> Mono {
        self.create_until.map_or(self.next_write, |until| until.max(self.next_write))
    }

    /// Returns until when a create that was sent may still take effect without an answer; `None` if there is none.
    pub(super) fn limbo(&self, now: Now) -> Option<Mono> {
        let is_creating = matches!(self.phase, Phase::InFlight(Sent { call: Call::Create, .. }));
        match &self.upstream {
            _ if is_creating => Some(now.mono.after(LIMBO)),
            UpstreamState::Sent { until }
            | UpstreamState::Taken { until: Some(until), .. }
            | UpstreamState::Waiting { until, .. }
            | UpstreamState::Admitted { until } => Some(*until),
            _ => self.create_until,
        }
        .filter(|until| *until > now.mono)
    }

    /// Returns the number of its occurrences that an object includes by its tag; `None` without the tag.
    pub(super) fn tag_on(&self, object: &Event) -> Option<u64> {
        self.tag.as_ref().and_then(|tag| tag::count(object, tag))
    }

    /// Returns an object that includes `tag` of its occurrences, as the record is held by the upstream then.
    pub(super) fn held(&self, object: &Event, tag: u64, now: Now) -> StoredState {
        StoredState {
            version: object.metadata.resource_version.clone(),
            count: api_group::count(object).into(),
            tag,
            expired_tags: self.tag.as_ref().map_or_else(Vec::new, |own| tag::expired(object, own, now)),
        }
    }

    /// Takes the first timestamp of `object`, and its last one if another writer has set a newer one.
    pub(super) fn follow_times(&mut self, object: &Event) {
        self.event.first_timestamp = object.first_timestamp;
        self.event.last_timestamp = self.event.last_timestamp.and_then(|time| Some(time).max(object.last_timestamp));
    }

    /// Compares the object of an answer with the record.
    pub(super) fn see(&self, found: &Event, group: ApiGroup, now: Now) -> Seen {
        let tag_count = self.tag_on(found);
        let held = self.held(found, tag_count.unwrap_or(0), now);
        // A client's own create stores the event as it was posted, whatever the group of our writes.
        let is_as_posted =
            || matches!(self.upstream, UpstreamState::Admitted { .. }) && self.is_alike(&self.event, found, now);
        let is_alike = self.is_alike(&api_group::converted(group, &self.event, now), found, now) || is_as_posted();
        // A patch of ours ends a client's series.
        let is_clients = self.event.series.is_none() && api_group::clients_series(group, found).is_some();
        let is_bare = !tag::has_any_tag(found) && !is_clients;
        Seen { held, is_tagged: tag_count.is_some(), is_alike, is_bare }
    }

    /// Takes the content of a newer occurrence. The name and the version stay: requests may be in flight under them.
    ///
    /// At the `limit` of the bytes of `all` records a repeat is still accepted, but the record must not grow. It keeps
    /// the older, smaller content and takes only the count and the time. A repaired record likewise takes only count,
    /// time and message, because the rest of a repeat would undo the repair. Until the create of a record without a tag
    /// has shown, ours or its client's, the content is that of the create, which identifies it.
    pub(super) fn absorb(&mut self, mut newer: Event, all: &mut Usage, limit: usize) {
        let keeps_content = self.is_known_by_content();
        let event = &mut self.event;
        if !self.repaired.is_empty() {
            let most = if self.repaired.contains(&Repair::Message) { NEW_STYLE_MESSAGE_MAX } else { usize::MAX };
            let message = cut(&newer.message, most);
            newer = Event { count: newer.count, last_timestamp: newer.last_timestamp, message, ..event.clone() };
        }
        newer.metadata.name = event.metadata.name.clone();
        newer.metadata.resource_version = event.metadata.resource_version.clone();
        let size = newer.approximate_size() + self.lines.size() + self.later_lines.size();
        let has_no_room = size > self.size && all.all_bytes() >= limit;
        if has_no_room || keeps_content {
            (event.count, event.last_timestamp) = (newer.count, newer.last_timestamp);
            return;
        }
        self.event = newer;
        self.resize(size, all);
    }

    /// Whether an unanswered create can be recognised by its content only.
    fn is_known_by_content(&self) -> bool {
        let is_creating = match (&self.phase, &self.upstream) {
            (Phase::InFlight(Sent { call: Call::Create, .. }), _) => true,
            (_, UpstreamState::Sent { .. } | UpstreamState::Taken { until: Some(_), .. }) => true,
            (_, UpstreamState::Admitted { .. }) => return true,
            _ => false,
        };
        is_creating && self.tag.is_none() && self.kind == Kind::Plain
    }

    /// Counts its bytes among those of `all` records again, after its event was changed.
    pub(super) fn measure(&mut self, all: &mut Usage) {
        self.resize(self.event.approximate_size() + self.lines.size() + self.later_lines.size(), all);
    }

    pub(super) fn resize(&mut self, size: usize, all: &mut Usage) {
        all.resize(self.source, self.size, size);
        self.size = size;
    }

    pub(super) fn why(&self, budgets: &LruMap<Budget>) -> Why {
        // A write of a filed budget can be sent now.
        let is_filed = || budgets.peek(&self.budget.0).is_some_and(|budget| budget.filed.is_some());
        match self.phase {
            Phase::Queued(_) if self.paid || is_filed() => Why::Turn,
            Phase::Queued(_) => Why::Budget,
            Phase::Staged(_) => Why::Group,
            Phase::Backoff(_) if matches!(self.upstream, UpstreamState::Admitted { .. }) => Why::InFlight,
            Phase::Backoff(_) => Why::Retry,
            Phase::Settled | Phase::Cooling | Phase::InFlight(_) => Why::Coalescing,
        }
    }

    pub(super) const fn was_never_sent(&self) -> bool {
        matches!(self.upstream, UpstreamState::Absent) && self.sent.tag == 0 && self.sent.count == 0
    }

    /// Returns how it waits in its budget. A record that was never written and has to pay can fold into a digest.
    pub(super) const fn place(&self) -> Place {
        match (self.paid, self.was_never_sent() && !self.kind.folds()) {
            (true, _) => Place::Paid,
            (false, false) => Place::Owed,
            (false, true) => Place::Foldable,
        }
    }

    /// Returns its rank for the tokens of its budget.
    pub(super) const fn rank(&self, place: Place) -> Rank {
        match (place, self.kind) {
            (Place::Paid, _) => Rank::Shown,
            (_, Kind::Digest) => Rank::Digest,
            (Place::Foldable, _) => Rank::NeverShown,
            (Place::Owed, _) if self.upstream.held().is_none() => Rank::NeverShown,
            (Place::Owed, _) => Rank::Shown,
        }
    }

    /// Returns the pause after the newest failure: doubled each time, capped, and cut by up to a half (`jitter` in 0..1).
    /// After a 403 it may be longer, but the last try is due when a further 403 is final.
    pub(super) fn pause(&self, jitter: f64, settings: &Settings, now: Mono) -> Duration {
        let &Settings { first_backoff, max_backoff, .. } = settings;
        let since_forbidden = self.forbidden_since.map_or(FORBIDDEN_GRACE, |since| now.since(since));
        let left = FORBIDDEN_GRACE.saturating_sub(since_forbidden);
        if left.is_zero() {
            return backoff(self.tries, jitter, first_backoff, max_backoff);
        }
        backoff(self.tries, jitter, first_backoff, max_backoff.max(FORBIDDEN_PAUSE_MAX)).min(left)
    }

    /// Whether an event found under the record's name is equal in everything that identifies it. Repairs of the record
    /// are tried too, as for an upstream that refused it.
    fn is_alike(&self, ours: &Event, found: &Event, now: Now) -> bool {
        if self.identifies(ours, found) {
            return true;
        }
        let mut repaired = ours.clone();
        if repair::refused_message(&mut repaired, &Objection::TooLarge).is_some() && self.identifies(&repaired, found) {
            return true;
        }
        let identifying = Objection::Fields(&["message", "reportingInstance", "involvedObject.namespace"]);
        !repair::refused(&mut repaired, &identifying, now.wall).is_empty() && self.identifies(&repaired, found)
    }

    /// Whether everything that identifies the record is equal. For a combined record or digest, the members may differ
    /// that it takes from its newest occurrences. Its patches do not write them, so the object keeps the first ones.
    ///
    /// Repeats, also of other replicas, may have another number in a normalized message. Where only the content
    /// identifies a create, it has the message of the create.
    fn identifies(&self, ours: &Event, found: &Event) -> bool {
        fn object(event: &Event) -> [&SmolStr; 5] {
            let ObjectReference { kind, namespace, name, uid, api_version, .. } = &event.involved_object;
            [kind, namespace, name, uid, api_version]
        }
        let messages = if self.is_known_by_content() { Messages::Exact } else { self.messages };
        ours.reason == found.reason
            && ours.source == found.source
            && ours.reporting_controller == found.reporting_controller
            && ours.reporting_instance == found.reporting_instance
            && (self.kind != Kind::Plain
                || ours.event_type == found.event_type
                    && object(ours) == object(found)
                    && messages.are_alike(&ours.message, &found.message)
                    && ours.involved_object.field_path == found.involved_object.field_path
                    && ours.action == found.action
                    && ours.related == found.related)
    }
}

/// Returns the pause after `failures` in a row: `first` doubled each time up to `max`, cut by up to a half by `jitter`
/// (0..1).
pub fn backoff(failures: u32, jitter: f64, first: Duration, max: Duration) -> Duration {
    let doubled = first.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1).min(30)));
    doubled.min(max).mul_f64(jitter.clamp(0.0, 1.0).mul_add(-0.5, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault: a digest whose create had no answer, and into which a Warning folded, took another name and was shown twice.
    #[test]
    fn a_combined_record_is_known_by_what_it_does_not_take_from_its_occurrences() {
        let alike = |kind, ours: &Event, found: &Event| {
            let budget = BudgetId::prepaid(Key(1));
            let record = Record::new(Key(1), budget, kind, ours.clone(), Mono(0));
            record.is_alike(ours, found, Now::at(0))
        };
        let found = Event { reason: "R".into(), event_type: "Normal".into(), message: "m".into(), ..Event::default() };
        let mut newer = Event { event_type: "Warning".into(), message: "n".into(), ..found.clone() };
        newer.involved_object.name = "web-1".into();
        let other = Event { reason: "S".into(), ..newer.clone() };
        for (kind, expected) in [(Kind::Plain, false), (Kind::Combined, true), (Kind::Digest, true)] {
            assert_eq!((alike(kind, &newer, &found), alike(kind, &other, &found)), (expected, false), "{kind:?}");
        }
    }

    #[test]
    fn at_the_byte_limit_a_repeat_that_is_longer_brings_count_and_time_only() {
        let message = |letter: &str, length| letter.repeat(length).into();
        let event = |count: i32, message| Event { count, message, ..Event::default() };
        for (has_room, length, is_taken) in [(true, 900, true), (false, 900, false), (false, 800, true)] {
            let (old, new) = (message("a", 800), message("b", length));
            let budget = BudgetId::prepaid(Key(1));
            let mut record = Record::new(Key(1), budget, Kind::Plain, event(1, old), Mono(0));
            let (size, mut all) = (record.size, Usage::default());
            all.add(record.source, size);
            record.absorb(event(2, new), &mut all, if has_room { usize::MAX } else { size });
            assert_eq!((record.event.count, record.event.message.starts_with('b')), (2, is_taken), "{length}");
            assert_eq!((record.size > size, all.bytes()), (has_room, record.size));
        }
    }
}
