//! The upstream state of a record: decides from each answer which occurrences have arrived. Pure and total.
//!
//! Two questions are separate. *How many of the sent occurrences does this object include?* Only the record's tag
//! answers it (`tag.rs`): a count that only grows, written by a create or by a patch that names a version. *May the
//! record continue on this object?* That is policy, and either answer keeps the sum: under a new name, the record
//! leaves its acknowledged occurrences in the old object.
//!
//! Nothing counts twice: a name exists at most once, and a patch that names a version applies to that version or not at
//! all. After a doubt the object is read, at version v with tag t. A request in limbo was given up, but may still be
//! executed. A patch in limbo names an older version, so it is refused once the new patch was applied. If it is
//! executed first, the new patch is refused, and the object is read again. A create in limbo carries the tag, and is
//! refused while the name is taken.
//!
//! Nothing vanishes: an occurrence counts as written after an answer, or if the tag includes it. Only a write that
//! carried the occurrence can have set such a tag.
//!
//! | state | request | answer | next | effect |
//! |---|---|---|---|---|
//! | `Absent` | create | stored | `Stored` | all sent occurrences have arrived |
//! | | | exists | `Taken` | read |
//! | | | refused | `Absent` | repair, or lost |
//! | | | in doubt | `Sent` | the same create again: at most one per name can succeed |
//! | `Sent` | create | exists, refused | `Taken` | read whether an earlier try was executed |
//! | `Taken` | read | our tag | `Stored` | the occurrences in the tag have arrived, the rest is sent again |
//! | | | no tag, alike | `Stored` | nothing has arrived: the record continues on this object |
//! | | | no tag, other | `Absent` | another name; after a doubt only when no create can still be executed (`Waiting`) |
//! | | | missing | `Sent`, or the effect of the refusal | |
//! | `Stored` | patch | stored | `Stored` | all sent occurrences have arrived |
//! | | | missing | `Absent` | create again, with the running count |
//! | | | refused | `Stored` | repair, or lost |
//! | | | conflict, in doubt | `Unsure` | read |
//! | `Unsure` | read | our tag | `Stored` | the occurrences in the tag have arrived, the rest is sent again |
//! | | | no tag, same version | `Stored` | nothing has changed: nothing has arrived |
//! | | | no tag, alike | `Stored` | nothing has arrived: the record continues on this object |
//! | | | no tag, other | `Absent` | another name: a patch in limbo names a version that never returns |
//! | | | missing | `Absent` | create again |
//! | | | missing, or no tag and another version | `Absent` | forget, if a client has deleted it and got no answer |
//! | `Waiting` | read | our tag | `Stored` | they have arrived; a deleted record is deleted, unless others count on it |
//! | | | anything else | | the pending end: another name, lost, or forgotten |
//! | `Unwanted` | delete | any | | forget: a record that a client had deleted was created late |
//! | `Admitted` | read | alike | `Stored` | the client's own create was executed: it has no tag, and counts as ours |
//! | | | other | `Absent` | another name: the client's create was refused |
//! | | | missing | `Absent` | create, once the client's create cannot be executed any more |
//!
//! If the upstream's admission removes annotations, an unchanged version means that nothing has arrived, and the tag is
//! derived from a count that can have been sent. This applies until an answer shows that tags are kept
//! (`Tags::Unproven`). Without tags (`Tags::Off`), requests are repeated blindly, as by client-go.

use std::time::Duration;

use smol_str::SmolStr;

use super::{Applied, Refusal};
use crate::clock::Mono;

/// Time for which a request may still be executed after it was given up: an API server's request timeout, and slack.
pub(super) const LIMBO: Duration = Duration::from_secs(65);

/// The upstream state of a record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum UpstreamState {
    /// The upstream has no object of it: no create was sent, or the upstream answered that it is gone.
    #[default]
    Absent,
    /// Creates were sent, and none was answered. One may be executed until then.
    Sent { until: Mono },
    /// The name may be taken, so the object has to be read. `until` as above, if a create of ours is in doubt.
    Taken { until: Option<Mono>, loss: Option<Refusal> },
    /// The upstream holds it, and every patch was answered.
    Stored(StoredState),
    /// The upstream held it, and a patch was not answered, or another writer has changed it.
    Unsure { held: StoredState, if_missing: IfMissing },
    /// A create of ours may be executed until then. Only afterwards the record may be given up under this name.
    Waiting { until: Mono, then: Then },
    /// A create of ours was executed after a client had deleted the record.
    Unwanted(StoredState),
    /// Its client was allowed to create it itself (admission). That create may be executed until then.
    Admitted { until: Mono },
}

/// The meaning of a missing record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IfMissing {
    /// It expired, or another writer deleted it: it is created again.
    Create,
    /// A client deleted it, and got no answer: it is forgotten.
    Forget,
}

/// The next step for a record when none of its abandoned creates can be executed any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Then {
    /// It gets another name: another writer has this one.
    Rename,
    /// Its occurrences are lost.
    Lose(Refusal),
    /// A client has deleted it: a late create is deleted too.
    Delete,
}

/// An object upstream as it was last seen.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct StoredState {
    /// Its version; empty if it is not known. A patch then names none.
    pub(super) version: SmolStr,
    /// Number of occurrences that it shows.
    pub(super) count: i64,
    /// Number of them that the record's tag counts.
    pub(super) tag: u64,
    /// Tags of other records that the next patch removes.
    pub(super) expired_tags: Vec<SmolStr>,
}

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    Create,
    Patch,
    Read,
    Delete,
}

/// A write as it was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Mark {
    /// The count that it writes.
    pub(super) count: i64,
    /// The tag that it writes.
    pub(super) tag: u64,
}

/// Whether tags are reliable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tags {
    /// Writes carry them, and the upstream keeps them.
    Kept,
    /// Writes carry them, but no answer has shown yet that the upstream's admission keeps them.
    Unproven,
    /// Writes carry none.
    Off,
}

/// State of the record that a step depends on, in addition to its [`UpstreamState`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts {
    pub(super) now: Mono,
    pub(super) tags: Tags,
    /// Occurrences under the tag that the upstream is known to hold.
    pub(super) settled: u64,
    /// Occurrences of the request, or of the request whose effect is read.
    pub(super) in_flight: u64,
    /// The newest write that was sent.
    pub(super) sent: Mark,
    /// Whether the record may continue on an object that it has never written. A digest may not, because its text
    /// belongs to its budget.
    pub(super) adopts: bool,
}

impl Facts {
    /// Returns the unacknowledged occurrences of the newest write. A read also has newer occurrences in flight.
    fn in_doubt(&self) -> u64 {
        self.sent.tag.saturating_sub(self.settled).min(self.in_flight)
    }
}

/// An answer, reduced to what a step depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fact {
    Stored(Seen),
    Missing,
    Exists,
    Refused(Refusal),
    /// A patch named another version than the stored one.
    Conflict,
    Retry(Applied),
}

/// An object in an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) held: StoredState,
    /// Whether it has the record's tag.
    pub(super) is_tagged: bool,
    /// Whether its content is the record's.
    pub(super) is_alike: bool,
    /// Whether it has no tag of any record, and nothing else that shows another writer.
    pub(super) is_bare: bool,
}

/// Effect of an answer on the record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Effect {
    /// The upstream holds it. `arrived` of the occurrences in flight have arrived; the others are sent again. The part
    /// of other writers in the count has changed by `moved`.
    Stored { arrived: u64, moved: i64 },
    /// The next request is sent at once.
    Again,
    /// The next request is sent after a pause.
    Later,
    /// It needs another name. `is_gone`: whether the upstream no longer has an object of it under the current name.
    Rename { is_gone: bool },
    /// Refused finally. The sent occurrences are lost, unless the record can be repaired.
    Lost(Refusal),
    /// The record is removed.
    Forget,
}

impl UpstreamState {
    /// Returns the next request; `None` while the record waits.
    pub(super) fn call(&self, now: Mono) -> Option<Call> {
        match self {
            Self::Absent | Self::Sent { .. } => Some(Call::Create),
            Self::Stored(_) => Some(Call::Patch),
            Self::Taken { .. } | Self::Unsure { .. } | Self::Admitted { .. } => Some(Call::Read),
            Self::Waiting { until, .. } => (*until <= now).then_some(Call::Read),
            Self::Unwanted(_) => Some(Call::Delete),
        }
    }

    /// Returns the known object of the record.
    pub(super) const fn held(&self) -> Option<&StoredState> {
        match self {
            Self::Stored(held) | Self::Unsure { held, .. } | Self::Unwanted(held) => Some(held),
            Self::Absent | Self::Sent { .. } | Self::Taken { .. } | Self::Waiting { .. } | Self::Admitted { .. } => {
                None
            }
        }
    }
}

/// Returns the state after an answer, and the effect on the record.
pub(super) fn step(upstream: UpstreamState, call: Call, fact: Fact, facts: &Facts) -> (UpstreamState, Effect) {
    match (call, fact) {
        (Call::Create, fact) => created(upstream, fact, facts),
        (Call::Patch, fact) => patched(upstream, fact, facts),
        (Call::Read, Fact::Stored(seen)) => found(upstream, seen, facts),
        (Call::Read, Fact::Missing) => missing(upstream, facts),
        (Call::Read, Fact::Refused(refusal)) => unreadable(upstream, refusal, facts),
        (Call::Read, Fact::Exists | Fact::Conflict | Fact::Retry(_)) => (upstream, Effect::Later),
        (Call::Delete, Fact::Stored(_) | Fact::Missing | Fact::Refused(_)) => (UpstreamState::Absent, Effect::Forget),
        // Another writer has changed it, so it is read again.
        (Call::Delete, Fact::Conflict) => {
            (UpstreamState::Waiting { until: facts.now, then: Then::Delete }, Effect::Again)
        }
        (Call::Delete, Fact::Exists | Fact::Retry(_)) => (upstream, Effect::Later),
    }
}

fn created(upstream: UpstreamState, fact: Fact, facts: &Facts) -> (UpstreamState, Effect) {
    let until = match upstream {
        UpstreamState::Sent { until } => Some(until),
        _ => None,
    };
    match fact {
        Fact::Stored(seen) => arrived(seen, facts.in_flight, facts.sent),
        Fact::Exists => (UpstreamState::Taken { until, loss: None }, Effect::Again),
        Fact::Refused(refusal) if until.is_some() && facts.tags != Tags::Off => {
            (UpstreamState::Taken { until, loss: Some(refusal) }, Effect::Again)
        }
        Fact::Refused(refusal) => (UpstreamState::Absent, Effect::Lost(refusal)),
        Fact::Retry(Applied::Perhaps) => (UpstreamState::Sent { until: facts.now.after(LIMBO) }, Effect::Later),
        // Answers that a create does not have.
        Fact::Retry(Applied::No) | Fact::Missing | Fact::Conflict => (upstream, Effect::Later),
    }
}

fn patched(upstream: UpstreamState, fact: Fact, facts: &Facts) -> (UpstreamState, Effect) {
    let held = upstream.held().cloned().unwrap_or_default();
    let blind = facts.tags == Tags::Off || held.version.is_empty();
    match fact {
        Fact::Stored(seen) => arrived(seen, facts.in_flight, facts.sent),
        Fact::Missing => (UpstreamState::Absent, Effect::Again),
        Fact::Refused(refusal) => (upstream, Effect::Lost(refusal)),
        Fact::Conflict if blind => (upstream, Effect::Later),
        Fact::Conflict => (UpstreamState::Unsure { held, if_missing: IfMissing::Create }, Effect::Again),
        // Its count is absolute, so without other writers a blind repeat is correct.
        Fact::Retry(Applied::Perhaps) if !blind => {
            (UpstreamState::Unsure { held, if_missing: IfMissing::Create }, Effect::Later)
        }
        Fact::Retry(_) | Fact::Exists => (upstream, Effect::Later),
    }
}

/// Returns the step after a successful write: all its occurrences have arrived, and the rest of the count is others'.
fn arrived(seen: Seen, in_flight: u64, sent: Mark) -> (UpstreamState, Effect) {
    let held = StoredState { tag: sent.tag, ..seen.held };
    let moved = held.count.saturating_sub(sent.count);
    (UpstreamState::Stored(held), Effect::Stored { arrived: in_flight, moved })
}

/// Returns the step after a read that found an object under the record's name.
fn found(upstream: UpstreamState, seen: Seen, facts: &Facts) -> (UpstreamState, Effect) {
    if matches!(upstream, UpstreamState::Admitted { .. }) && !seen.is_tagged {
        return carried(seen, facts);
    }
    if facts.tags == Tags::Off {
        return found_untagged(upstream, seen, facts);
    }
    if seen.is_tagged {
        return tagged(&upstream, seen, facts);
    }
    if let Some(tag) = inferred(&upstream, &seen, facts) {
        let held = StoredState { tag, ..seen.held };
        return tagged(&upstream, Seen { held, ..seen }, facts);
    }
    let may_adopt = seen.is_alike && facts.adopts;
    match upstream {
        // Nothing was written since, so nothing has arrived.
        UpstreamState::Unsure { held, .. } if held.version == seen.held.version => {
            (UpstreamState::Stored(StoredState { tag: held.tag, ..seen.held }), Effect::Stored { arrived: 0, moved: 0 })
        }
        // Made after the deletion.
        UpstreamState::Unsure { if_missing: IfMissing::Forget, .. } => (UpstreamState::Absent, Effect::Forget),
        UpstreamState::Unsure { held, .. } if seen.is_alike => counted_on(seen, &held),
        UpstreamState::Unsure { .. } => (UpstreamState::Absent, Effect::Rename { is_gone: false }),
        UpstreamState::Taken { loss: None, .. } if may_adopt => adopted(seen, facts),
        UpstreamState::Taken { until, loss: None } => give_up(until, Then::Rename, facts),
        UpstreamState::Taken { until, loss: Some(loss) } => give_up(until, Then::Lose(loss), facts),
        UpstreamState::Waiting { then, .. } => carried_out(then),
        // These send no reads, except the last, which is handled above.
        UpstreamState::Absent
        | UpstreamState::Sent { .. }
        | UpstreamState::Stored(_)
        | UpstreamState::Unwanted(_)
        | UpstreamState::Admitted { .. } => (upstream, Effect::Again),
    }
}

/// Returns the step after a read that found the object of an allowed client, or another writer's.
fn carried(seen: Seen, facts: &Facts) -> (UpstreamState, Effect) {
    if seen.is_alike {
        return arrived(seen, facts.in_doubt(), facts.sent);
    }
    (UpstreamState::Absent, Effect::Rename { is_gone: true })
}

/// Returns the tag that an object would have if the upstream's admission had not removed it: its count without the part
/// of others, if a write with that tag can have been sent.
fn inferred(upstream: &UpstreamState, seen: &Seen, facts: &Facts) -> Option<u64> {
    let known = match upstream {
        UpstreamState::Unsure { held, .. } if held.version != seen.held.version => others(held.count, held.tag),
        UpstreamState::Taken { until: Some(_), .. } => others(facts.sent.count, facts.sent.tag),
        _ => return None,
    };
    let tag = u64::try_from(seen.held.count.saturating_sub(known)).ok()?;
    let can_be = facts.tags == Tags::Unproven && seen.is_bare && seen.is_alike;
    (can_be && facts.settled < tag && tag <= facts.sent.tag).then_some(tag)
}

/// Returns the step after a read that found the record's tag.
fn tagged(upstream: &UpstreamState, seen: Seen, facts: &Facts) -> (UpstreamState, Effect) {
    if let UpstreamState::Waiting { then: Then::Delete, .. } = upstream {
        let is_shared = others(seen.held.count, seen.held.tag) > others(facts.sent.count, facts.sent.tag);
        return if is_shared {
            (UpstreamState::Absent, Effect::Forget)
        } else {
            (UpstreamState::Unwanted(seen.held), Effect::Again)
        };
    }
    // An earlier process may have written more than its spool has. Those occurrences count as others'.
    let tag = seen.held.tag.min(facts.settled.saturating_add(facts.in_flight));
    let arrived = tag.saturating_sub(facts.settled);
    // The part of others is the count minus the tag. It is compared with that of the write that has arrived, or of the
    // object before.
    let known = match upstream.held() {
        Some(held) if tag < facts.sent.tag || facts.sent.tag <= facts.settled => others(held.count, held.tag),
        _ => others(facts.sent.count, facts.sent.tag),
    };
    let moved = others(seen.held.count, tag).saturating_sub(known);
    (UpstreamState::Stored(StoredState { tag, ..seen.held }), Effect::Stored { arrived, moved })
}

/// Returns the part of other writers in a count of which the record has `tag`.
pub(super) fn others(count: i64, tag: u64) -> i64 {
    count.saturating_sub(i64::try_from(tag).unwrap_or(i64::MAX))
}

/// Returns the step for an object that has lost the record's tag: another writer has removed it, or created the object
/// again.
fn counted_on(seen: Seen, known: &StoredState) -> (UpstreamState, Effect) {
    let moved = seen.held.count.saturating_sub(known.count);
    (UpstreamState::Stored(StoredState { tag: known.tag, ..seen.held }), Effect::Stored { arrived: 0, moved })
}

/// Returns the step that continues on an object of other writers, which includes nothing of the record.
fn adopted(seen: Seen, facts: &Facts) -> (UpstreamState, Effect) {
    let known = others(facts.sent.count, facts.sent.tag);
    let tag = facts.settled;
    let moved = others(seen.held.count, 0).saturating_sub(known).saturating_sub(i64::try_from(tag).unwrap_or(i64::MAX));
    (UpstreamState::Stored(StoredState { tag, ..seen.held }), Effect::Stored { arrived: 0, moved })
}

/// Returns the step without tags, like client-go: an object with at least the sent count includes it.
fn found_untagged(upstream: UpstreamState, seen: Seen, facts: &Facts) -> (UpstreamState, Effect) {
    match upstream {
        UpstreamState::Taken { until: Some(_), .. } if seen.is_alike && seen.held.count >= facts.sent.count => {
            arrived(seen, facts.in_doubt(), facts.sent)
        }
        UpstreamState::Taken { until: Some(_), loss: None } if seen.is_alike => {
            (UpstreamState::Stored(seen.held), Effect::Stored { arrived: 0, moved: 0 })
        }
        UpstreamState::Taken { loss: None, .. } if seen.is_alike && facts.adopts => adopted(seen, facts),
        UpstreamState::Taken { loss: Some(loss), .. } => (UpstreamState::Absent, Effect::Lost(loss)),
        UpstreamState::Taken { .. } => (UpstreamState::Absent, Effect::Rename { is_gone: true }),
        UpstreamState::Waiting { then, .. } => carried_out(then),
        // A client has deleted it, and another event has its name.
        UpstreamState::Unsure { .. } if !seen.is_alike => (UpstreamState::Absent, Effect::Forget),
        UpstreamState::Unsure { .. } | UpstreamState::Stored(_) => (UpstreamState::Stored(seen.held), Effect::Again),
        UpstreamState::Absent
        | UpstreamState::Sent { .. }
        | UpstreamState::Unwanted(_)
        | UpstreamState::Admitted { .. } => (upstream, Effect::Again),
    }
}

/// Returns the step after a read that found nothing.
fn missing(upstream: UpstreamState, facts: &Facts) -> (UpstreamState, Effect) {
    match upstream {
        UpstreamState::Taken { until, loss: Some(loss) } => give_up(until, Then::Lose(loss), facts),
        UpstreamState::Taken { until: Some(until), loss: None } => (UpstreamState::Sent { until }, Effect::Again),
        UpstreamState::Waiting { then, .. } => carried_out(then),
        UpstreamState::Admitted { until } if until > facts.now => (upstream, Effect::Later),
        UpstreamState::Unsure { if_missing: IfMissing::Forget, .. } => (UpstreamState::Absent, Effect::Forget),
        UpstreamState::Taken { until: None, loss: None }
        | UpstreamState::Unsure { if_missing: IfMissing::Create, .. }
        | UpstreamState::Absent
        | UpstreamState::Sent { .. }
        | UpstreamState::Stored(_)
        | UpstreamState::Admitted { .. }
        | UpstreamState::Unwanted(_) => (UpstreamState::Absent, Effect::Again),
    }
}

/// Returns the step after a refused read.
fn unreadable(upstream: UpstreamState, refusal: Refusal, facts: &Facts) -> (UpstreamState, Effect) {
    match upstream {
        UpstreamState::Taken { loss: Some(loss), .. } => (UpstreamState::Absent, Effect::Lost(loss)),
        // Another writer has the name, because no create of ours is in doubt.
        UpstreamState::Taken { until: None, .. } => (UpstreamState::Absent, Effect::Rename { is_gone: true }),
        // It is most likely our own create, whose answer was lost, or our client's.
        UpstreamState::Taken { until: Some(_), .. } | UpstreamState::Admitted { .. } => {
            let held = StoredState { count: facts.sent.count, tag: facts.sent.tag, ..StoredState::default() };
            (UpstreamState::Stored(held), Effect::Stored { arrived: facts.in_doubt(), moved: 0 })
        }
        // Without the right to read a patch is repeated blindly, as client-go does.
        UpstreamState::Unsure { held, .. } => {
            (UpstreamState::Stored(StoredState { version: SmolStr::default(), ..held }), Effect::Again)
        }
        UpstreamState::Waiting { then, .. } => carried_out(then),
        UpstreamState::Absent | UpstreamState::Sent { .. } | UpstreamState::Stored(_) | UpstreamState::Unwanted(_) => {
            (upstream, Effect::Lost(refusal))
        }
    }
}

/// Gives up a name: at once, or when none of our creates under it can be executed any more.
fn give_up(until: Option<Mono>, then: Then, facts: &Facts) -> (UpstreamState, Effect) {
    match until {
        Some(until) if until > facts.now => (UpstreamState::Waiting { until, then }, Effect::Later),
        _ => carried_out(then),
    }
}

fn carried_out(then: Then) -> (UpstreamState, Effect) {
    match then {
        // A create is sent only if the upstream has no object, so nothing of the record is there.
        Then::Rename => (UpstreamState::Absent, Effect::Rename { is_gone: true }),
        Then::Lose(loss) => (UpstreamState::Absent, Effect::Lost(loss)),
        Then::Delete => (UpstreamState::Absent, Effect::Forget),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::LostReason;
    use crate::status::Status;

    const NOW: Mono = Mono(100_000_000_000);
    const LATER: Mono = Mono(NOW.0 + 1);

    /// Ten of five known ones and five in flight, of which the newest write carried all.
    const FACTS: Facts =
        Facts { now: NOW, tags: Tags::Kept, settled: 5, in_flight: 5, sent: Mark { count: 13, tag: 10 }, adopts: true };

    fn refusal() -> Refusal {
        Refusal { reason: LostReason::Invalid, status: Box::new(Status::new(422, "Invalid", "m")) }
    }

    fn held(version: &str, count: i64, tag: u64) -> StoredState {
        StoredState { version: version.into(), count, tag, expired_tags: Vec::new() }
    }

    fn seen(version: &str, count: i64, tag: Option<u64>, is_alike: bool) -> Fact {
        let held = held(version, count, tag.unwrap_or(0));
        Fact::Stored(Seen { held, is_tagged: tag.is_some(), is_alike, is_bare: false })
    }

    fn stands() -> Vec<UpstreamState> {
        let mut all =
            vec![UpstreamState::Absent, UpstreamState::Sent { until: LATER }, UpstreamState::Stored(held("1", 8, 5))];
        for until in [None, Some(NOW), Some(LATER)] {
            all.extend([None, Some(refusal())].map(|loss| UpstreamState::Taken { until, loss }));
        }
        for if_missing in [IfMissing::Create, IfMissing::Forget] {
            all.push(UpstreamState::Unsure { held: held("1", 8, 5), if_missing });
        }
        for then in [Then::Rename, Then::Lose(refusal()), Then::Delete] {
            all.push(UpstreamState::Waiting { until: NOW, then });
        }
        all.push(UpstreamState::Unwanted(held("1", 8, 5)));
        all
    }

    fn answers() -> Vec<Fact> {
        let mut all = vec![Fact::Missing, Fact::Exists, Fact::Refused(refusal()), Fact::Conflict];
        all.extend([Applied::No, Applied::Perhaps].map(Fact::Retry));
        for tag in [None, Some(5), Some(7), Some(10), Some(99)] {
            for is_alike in [false, true] {
                all.extend(["1", "2"].map(|version| seen(version, 13, tag, is_alike)));
            }
        }
        all
    }

    /// Every row of the table in the head of this file, by the names of its stands and effects.
    #[test]
    fn each_row_of_the_table_is_what_a_step_does() {
        use Call::{Create, Patch, Read};
        let on = || UpstreamState::Stored(held("1", 8, 5));
        let unsure = || UpstreamState::Unsure { held: held("1", 8, 5), if_missing: IfMissing::Create };
        let deleted = || UpstreamState::Unsure { held: held("1", 8, 5), if_missing: IfMissing::Forget };
        let taken = |until| UpstreamState::Taken { until, loss: None };
        let waiting = |then| UpstreamState::Waiting { until: NOW, then };
        let rows = [
            (UpstreamState::Absent, Create, seen("1", 13, Some(10), true), "Stored", "Stored { arrived: 5, moved: 0 }"),
            (UpstreamState::Absent, Create, Fact::Exists, "Taken", "Again"),
            (UpstreamState::Absent, Create, Fact::Refused(refusal()), "Absent", "Lost"),
            (UpstreamState::Absent, Create, Fact::Retry(Applied::Perhaps), "Sent", "Later"),
            (UpstreamState::Sent { until: LATER }, Create, Fact::Exists, "Taken", "Again"),
            (UpstreamState::Sent { until: LATER }, Create, Fact::Refused(refusal()), "Taken", "Again"),
            (taken(None), Read, seen("1", 13, Some(7), true), "Stored", "Stored { arrived: 2, moved: 3 }"),
            (taken(None), Read, seen("1", 13, None, true), "Stored", "Stored { arrived: 0, moved: 5 }"),
            (taken(None), Read, seen("1", 13, None, false), "Absent", "Rename"),
            (taken(Some(LATER)), Read, seen("1", 13, None, false), "Waiting", "Later"),
            (taken(Some(LATER)), Read, Fact::Missing, "Sent", "Again"),
            (on(), Patch, seen("2", 13, Some(10), true), "Stored", "Stored { arrived: 5, moved: 0 }"),
            (on(), Patch, Fact::Missing, "Absent", "Again"),
            (on(), Patch, Fact::Refused(refusal()), "Stored", "Lost"),
            (on(), Patch, Fact::Conflict, "Unsure", "Again"),
            (on(), Patch, Fact::Retry(Applied::Perhaps), "Unsure", "Later"),
            (unsure(), Read, seen("2", 10, Some(7), true), "Stored", "Stored { arrived: 2, moved: 0 }"),
            (unsure(), Read, seen("1", 8, None, true), "Stored", "Stored { arrived: 0, moved: 0 }"),
            (unsure(), Read, seen("2", 9, None, true), "Stored", "Stored { arrived: 0, moved: 1 }"),
            (unsure(), Read, seen("2", 9, None, false), "Absent", "Rename { is_gone: false }"),
            (unsure(), Read, Fact::Missing, "Absent", "Again"),
            (deleted(), Read, seen("1", 8, None, true), "Stored", "Stored { arrived: 0, moved: 0 }"),
            (deleted(), Read, seen("2", 9, None, true), "Absent", "Forget"),
            (deleted(), Read, seen("2", 9, None, false), "Absent", "Forget"),
            (deleted(), Read, Fact::Missing, "Absent", "Forget"),
            (waiting(Then::Rename), Read, seen("1", 13, Some(10), true), "Stored", "Stored"),
            (waiting(Then::Rename), Read, Fact::Missing, "Absent", "Rename"),
            (waiting(Then::Delete), Read, seen("1", 14, Some(10), true), "Absent", "Forget"),
            (UpstreamState::Unwanted(held("1", 8, 5)), Call::Delete, Fact::Missing, "Absent", "Forget"),
        ];
        for (upstream, call, fact, next, effect) in rows {
            let row = format!("{upstream:?}, {call:?}, {fact:?}");
            let (upstream, done) = step(upstream, call, fact, &FACTS);
            let (upstream, done) = (format!("{upstream:?}"), format!("{done:?}"));
            assert!(upstream.starts_with(next) && done.starts_with(effect), "{row}: {upstream}, {done}");
        }
    }

    /// After each answer in each stand, no more has arrived than was in flight, and the record has a next request or a
    /// next time.
    #[test]
    fn a_step_is_total_and_no_more_arrives_than_was_sent() {
        for tags in [Tags::Kept, Tags::Unproven, Tags::Off] {
            for adopts in [false, true] {
                let facts = Facts { tags, adopts, ..FACTS };
                for upstream in stands() {
                    for (call, fact) in [Call::Create, Call::Patch, Call::Read, Call::Delete]
                        .into_iter()
                        .flat_map(|call| answers().into_iter().map(move |fact| (call, fact)))
                    {
                        let row = format!("{tags:?}, {upstream:?}, {call:?}, {fact:?}");
                        let (next, effect) = step(upstream.clone(), call, fact, &facts);
                        if let Effect::Stored { arrived, .. } = effect {
                            assert!(arrived <= facts.in_flight, "{row}: {effect:?}");
                            assert!(matches!(next, UpstreamState::Stored(_)), "{row}: {next:?}");
                        }
                        let waits = matches!(next, UpstreamState::Waiting { until, .. } if until > NOW);
                        assert!(waits || next.call(NOW).is_some(), "{row}: {next:?}");
                    }
                }
            }
        }
    }
}
