//! Where a record stands upstream: the one place that decides what has arrived. Pure and total.
//!
//! Two questions are never mixed. *How much of what was sent is in this object?* Only the record's tag says that
//! (`tag.rs`): a count that grows, written by a create or by a patch that names a version. *May the record count on
//! this object?* That is policy, and either answer keeps the sum, because a record that takes another name leaves what
//! is acknowledged and still there.
//!
//! Why nothing counts twice: a name exists at most once, and a patch that names a version applies to that version or
//! not at all. After a doubt the object is read, at version v with tag t. A request in limbo (given up, perhaps carried
//! out later) names an older version, so it is refused once ours has been applied, and if it comes first ours is
//! refused and we read again. A create in limbo carries the tag, and is refused for as long as the name is taken. Why
//! nothing vanishes: an occurrence counts as written by an answer, or by a tag that has reached it, which only a write
//! that carried it can have set.
//!
//! | stand | request | answer | next | effect |
//! |---|---|---|---|---|
//! | `Nowhere` | create | stored | `On` | all that was sent has arrived |
//! | | | exists | `Taken` | read |
//! | | | refused | `Nowhere` | repair, or lost |
//! | | | in doubt | `Sent` | the same create again: at most one of a name can land |
//! | `Sent` | create | exists, refused | `Taken` | read whether an earlier try has arrived |
//! | `Taken` | read | our tag | `On` | what the tag says has arrived, the rest goes again |
//! | | | no tag, alike | `On` | nothing has arrived: the record counts on what is there |
//! | | | no tag, other | `Nowhere` | another name; after a doubt only when no create can be carried out any more (`Waiting`) |
//! | | | missing | `Sent`, or what a refusal said | |
//! | `On` | patch | stored | `On` | all that was sent has arrived |
//! | | | missing | `Nowhere` | create again, with the running count |
//! | | | refused | `On` | repair, or lost |
//! | | | conflict, in doubt | `Unsure` | read |
//! | `Unsure` | read | our tag | `On` | what the tag says has arrived, the rest goes again |
//! | | | no tag, same version | `On` | nothing has changed: nothing has arrived |
//! | | | no tag, alike | `On` | nothing has arrived: the record counts on what is there |
//! | | | no tag, other | `Nowhere` | another name: a patch in limbo names a version that never returns |
//! | | | missing | `Nowhere` | create again |
//! | | | missing, or no tag and another version | `Nowhere` | forget, where a client has deleted it and got no answer |
//! | `Waiting` | read | our tag | `On` | what the tag says has arrived |
//! | | | anything else | | what was waited for: another name, lost, or forgotten |
//! | `Unwanted` | delete | any | | forget: what a client had deleted has arrived late |
//! | `Carried` | read | alike | `On` | the client's own create has arrived; it has no tag, and stands for what the tag will say |
//! | | | other | `Nowhere` | another name: the client's create was refused |
//! | | | missing | `Nowhere` | create, once the client's create cannot be carried out any more |
//!
//! Where the upstream's admission removes annotations, an untouched version says that nothing has arrived, and a count
//! that can have been sent says what has. So it is until an answer has shown that tags are kept (`Tags::Unproven`).
//! Where writes carry no tags (`Tags::Off`), requests are repeated blindly, as client-go does.

use std::time::Duration;

use smol_str::SmolStr;

use super::LostReason;
use super::request::{Applied, Refusal};
use crate::clock::Mono;

/// How long after it was given up a request may still be carried out: an apiserver's request timeout, and slack.
pub(super) const LIMBO: Duration = Duration::from_secs(65);

/// What is known of where a record stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stand {
    /// Nothing of it is under its name: no create was sent, or the upstream has said that it is gone.
    Nowhere,
    /// Creates were sent, and none was answered. One may be carried out until then.
    Sent { until: Mono },
    /// The name may be taken, and by whom has to be read. `until` as above, where a create of ours is in doubt.
    Taken { until: Option<Mono>, loss: Option<Box<Loss>> },
    /// The upstream holds it, and every patch was answered.
    On(Held),
    /// The upstream held it, and a patch was not answered, or another writer has changed it.
    Unsure { held: Held, if_missing: IfMissing },
    /// A create of ours may be carried out until then; only afterwards the record may be given up under this name.
    Waiting { until: Mono, then: Then },
    /// A create of ours was carried out after a client had deleted the record.
    Unwanted(Held),
    /// Its client was allowed to create it itself (admission). Until then that may be carried out.
    Carried { until: Mono },
}

/// What it means that a record is no longer there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IfMissing {
    /// It expired, or another writer has deleted it: it is created again.
    Create,
    /// A client has deleted it, and got no answer.
    Forget,
}

/// Occurrences that are to be given up, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Loss {
    pub(super) reason: LostReason,
    pub(super) refusal: Refusal,
}

/// What becomes of a record under its name when no create in limbo can be carried out any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Then {
    /// It gets another name: another writer has this one.
    Rename,
    /// Its occurrences are lost.
    Lose(Box<Loss>),
    /// A client has deleted it: what arrives late is deleted too.
    Delete,
}

/// An object upstream as it was last seen.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Held {
    /// Its version; empty where it is not known, and a patch then names none.
    pub(super) version: SmolStr,
    /// How many occurrences it shows.
    pub(super) count: i64,
    /// How many of them the record's tag says are its own.
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

/// Whether tags can be relied on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tags {
    /// Writes carry them, and the upstream keeps them.
    Kept,
    /// Writes carry them, but no answer has shown yet that the upstream's admission leaves them alone.
    Unproven,
    /// Writes carry none.
    Off,
}

/// What the record knows beside its stand.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts {
    pub(super) now: Mono,
    pub(super) tags: Tags,
    /// Occurrences that are known to be upstream, as the tag counts.
    pub(super) settled: u64,
    /// Occurrences that the request, or the one whose fate it reads, makes visible.
    pub(super) in_flight: u64,
    /// The newest write that was sent.
    pub(super) sent: Mark,
    /// Whether the record may count on an object that it has never written: a digest's text is its budget's own.
    pub(super) adopts: bool,
}

impl Facts {
    /// Occurrences of the newest write that no answer has acknowledged. A read has newer ones in flight, too.
    fn in_doubt(&self) -> u64 {
        self.sent.tag.saturating_sub(self.settled).min(self.in_flight)
    }
}

/// An answer, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fact {
    Stored(Seen),
    Missing,
    Exists,
    Refused(Refusal),
    /// A patch was made for another version.
    Conflict,
    Retry(Applied),
}

/// An object that an answer has shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) held: Held,
    /// Whether it has the record's tag.
    pub(super) is_tagged: bool,
    /// Whether it reads as the record's content does.
    pub(super) is_alike: bool,
    /// Whether it has no tags, of no record.
    pub(super) is_bare: bool,
}

/// What follows for the record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Effect {
    /// The upstream holds it. So many of the occurrences in flight have arrived, the others are to be sent again; by so
    /// much the count moved that is not the record's own.
    Held { arrived: u64, moved: i64 },
    /// Another request, at once.
    Again,
    /// The same or another request, after a pause.
    Later,
    /// It needs another name. What the upstream had of it under this one `is_gone`, or is still there.
    Rename { is_gone: bool },
    /// Refused for good. What was sent is lost, unless it can be repaired.
    Lost(Box<Loss>),
    /// Nothing more is to be done for it.
    Forget,
}

impl Stand {
    /// The request that comes next; `None` while it waits.
    pub(super) fn call(&self, now: Mono) -> Option<Call> {
        match self {
            Self::Nowhere | Self::Sent { .. } => Some(Call::Create),
            Self::On(_) => Some(Call::Patch),
            Self::Taken { .. } | Self::Unsure { .. } | Self::Carried { .. } => Some(Call::Read),
            Self::Waiting { until, .. } => (*until <= now).then_some(Call::Read),
            Self::Unwanted(_) => Some(Call::Delete),
        }
    }

    /// The object that it counts on, where one is known.
    pub(super) const fn held(&self) -> Option<&Held> {
        match self {
            Self::On(held) | Self::Unsure { held, .. } | Self::Unwanted(held) => Some(held),
            Self::Nowhere | Self::Sent { .. } | Self::Taken { .. } | Self::Waiting { .. } | Self::Carried { .. } => {
                None
            }
        }
    }
}

/// The step that an answer makes.
pub(super) fn step(stand: Stand, call: Call, fact: Fact, facts: &Facts) -> (Stand, Effect) {
    match (call, fact) {
        (Call::Create, fact) => created(stand, fact, facts),
        (Call::Patch, fact) => patched(stand, fact, facts),
        (Call::Read, Fact::Stored(seen)) => found(stand, seen, facts),
        (Call::Read, Fact::Missing) => missing(stand, facts),
        (Call::Read, Fact::Refused(refusal)) => unreadable(stand, refusal, facts),
        (Call::Read, Fact::Exists | Fact::Conflict | Fact::Retry(_)) => (stand, Effect::Later),
        (Call::Delete, Fact::Stored(_) | Fact::Missing | Fact::Refused(_)) => (Stand::Nowhere, Effect::Forget),
        // Another writer has changed it since: it is read again.
        (Call::Delete, Fact::Conflict) => (Stand::Waiting { until: facts.now, then: Then::Delete }, Effect::Again),
        (Call::Delete, Fact::Exists | Fact::Retry(_)) => (stand, Effect::Later),
    }
}

fn created(stand: Stand, fact: Fact, facts: &Facts) -> (Stand, Effect) {
    let until = match stand {
        Stand::Sent { until } => Some(until),
        _ => None,
    };
    match fact {
        Fact::Stored(seen) => arrived(seen, facts.in_flight, facts.sent),
        Fact::Exists => (Stand::Taken { until, loss: None }, Effect::Again),
        Fact::Refused(refusal) if until.is_some() && facts.tags != Tags::Off => {
            (Stand::Taken { until, loss: Some(Box::new(Loss::of(refusal))) }, Effect::Again)
        }
        Fact::Refused(refusal) => lost(Stand::Nowhere, refusal),
        Fact::Retry(Applied::Perhaps) => (Stand::Sent { until: facts.now.after(LIMBO) }, Effect::Later),
        // Answers that do not fit a create; the answer table makes none of them.
        Fact::Retry(Applied::No) | Fact::Missing | Fact::Conflict => (stand, Effect::Later),
    }
}

fn patched(stand: Stand, fact: Fact, facts: &Facts) -> (Stand, Effect) {
    let held = stand.held().cloned().unwrap_or_default();
    let blind = facts.tags == Tags::Off || held.version.is_empty();
    match fact {
        Fact::Stored(seen) => arrived(seen, facts.in_flight, facts.sent),
        Fact::Missing => (Stand::Nowhere, Effect::Again),
        Fact::Refused(refusal) => lost(stand, refusal),
        Fact::Conflict if blind => (stand, Effect::Later),
        Fact::Conflict => (Stand::Unsure { held, if_missing: IfMissing::Create }, Effect::Again),
        // The count in it is absolute, so a blind repeat is right without other writers.
        Fact::Retry(Applied::Perhaps) if !blind => {
            (Stand::Unsure { held, if_missing: IfMissing::Create }, Effect::Later)
        }
        Fact::Retry(_) | Fact::Exists => (stand, Effect::Later),
    }
}

/// A write was answered: all of it is there. What else the count says is others'.
fn arrived(seen: Seen, in_flight: u64, sent: Mark) -> (Stand, Effect) {
    let held = Held { tag: sent.tag, ..seen.held };
    let moved = held.count.saturating_sub(sent.count);
    (Stand::On(held), Effect::Held { arrived: in_flight, moved })
}

/// A read has found an object under the record's name.
fn found(stand: Stand, seen: Seen, facts: &Facts) -> (Stand, Effect) {
    if matches!(stand, Stand::Carried { .. }) && !seen.is_tagged {
        return carried(seen, facts);
    }
    if facts.tags == Tags::Off {
        return found_untagged(stand, seen, facts);
    }
    if seen.is_tagged {
        return tagged(&stand, seen, facts);
    }
    if let Some(tag) = inferred(&stand, &seen, facts) {
        let held = Held { tag, ..seen.held };
        return tagged(&stand, Seen { held, ..seen }, facts);
    }
    let may_adopt = seen.is_alike && facts.adopts;
    match stand {
        // Nothing has been written since, so nothing has arrived.
        Stand::Unsure { held, .. } if held.version == seen.held.version => {
            (Stand::On(Held { tag: held.tag, ..seen.held }), Effect::Held { arrived: 0, moved: 0 })
        }
        // Made after the deletion.
        Stand::Unsure { if_missing: IfMissing::Forget, .. } => (Stand::Nowhere, Effect::Forget),
        Stand::Unsure { held, .. } if seen.is_alike => counted_on(seen, &held),
        Stand::Unsure { .. } => (Stand::Nowhere, Effect::Rename { is_gone: false }),
        Stand::Taken { loss: None, .. } if may_adopt => adopted(seen, facts),
        Stand::Taken { until, loss: None } => give_up(until, Then::Rename, facts),
        Stand::Taken { until, loss: Some(loss) } => give_up(until, Then::Lose(loss), facts),
        Stand::Waiting { then, .. } => carried_out(then),
        // Nothing of these reads, but for the last, which is seen to already.
        Stand::Nowhere | Stand::Sent { .. } | Stand::On(_) | Stand::Unwanted(_) | Stand::Carried { .. } => {
            (stand, Effect::Again)
        }
    }
}

/// A read has found an object where a client was allowed to create one: the client's, or that of another writer.
fn carried(seen: Seen, facts: &Facts) -> (Stand, Effect) {
    if seen.is_alike {
        return arrived(seen, facts.in_doubt(), facts.sent);
    }
    (Stand::Nowhere, Effect::Rename { is_gone: true })
}

/// The tag that an object would have if the upstream's admission had not removed it: what its count is above others',
/// where that can have been sent.
fn inferred(stand: &Stand, seen: &Seen, facts: &Facts) -> Option<u64> {
    let known = match stand {
        Stand::Unsure { held, .. } if held.version != seen.held.version => others(held.count, held.tag),
        Stand::Taken { until: Some(_), .. } => others(facts.sent.count, facts.sent.tag),
        _ => return None,
    };
    let tag = u64::try_from(seen.held.count.saturating_sub(known)).ok()?;
    let can_be = facts.tags == Tags::Unproven && seen.is_bare && seen.is_alike;
    (can_be && facts.settled < tag && tag <= facts.sent.tag).then_some(tag)
}

/// The object has the record's tag.
fn tagged(stand: &Stand, seen: Seen, facts: &Facts) -> (Stand, Effect) {
    if let Stand::Waiting { then: Then::Delete, .. } = stand {
        return (Stand::Unwanted(seen.held), Effect::Again);
    }
    // More than was ever sent are of a process that ended before it had kept them: they are others' now.
    let tag = seen.held.tag.min(facts.settled.saturating_add(facts.in_flight));
    let arrived = tag.saturating_sub(facts.settled);
    // What is not ours is the count less the tag. It was known for the write that has arrived, or for the object
    // before.
    let known = match stand.held() {
        Some(held) if tag < facts.sent.tag => others(held.count, held.tag),
        _ => others(facts.sent.count, facts.sent.tag),
    };
    let moved = others(seen.held.count, tag).saturating_sub(known);
    (Stand::On(Held { tag, ..seen.held }), Effect::Held { arrived, moved })
}

fn others(count: i64, tag: u64) -> i64 {
    count.saturating_sub(i64::try_from(tag).unwrap_or(i64::MAX))
}

/// The tag is gone from an object that the record counts on: another writer has removed it, or made the object again.
fn counted_on(seen: Seen, known: &Held) -> (Stand, Effect) {
    let moved = seen.held.count.saturating_sub(known.count);
    (Stand::On(Held { tag: known.tag, ..seen.held }), Effect::Held { arrived: 0, moved })
}

/// An object that nothing of the record is in: what it shows is others'.
fn adopted(seen: Seen, facts: &Facts) -> (Stand, Effect) {
    let known = others(facts.sent.count, facts.sent.tag);
    let tag = facts.settled;
    let moved = others(seen.held.count, 0).saturating_sub(known).saturating_sub(i64::try_from(tag).unwrap_or(i64::MAX));
    (Stand::On(Held { tag, ..seen.held }), Effect::Held { arrived: 0, moved })
}

/// As client-go would: an object with at least the count that was sent has it.
fn found_untagged(stand: Stand, seen: Seen, facts: &Facts) -> (Stand, Effect) {
    match stand {
        Stand::Taken { until: Some(_), .. } if seen.is_alike && seen.held.count >= facts.sent.count => {
            arrived(seen, facts.in_doubt(), facts.sent)
        }
        Stand::Taken { until: Some(_), loss: None } if seen.is_alike => {
            (Stand::On(seen.held), Effect::Held { arrived: 0, moved: 0 })
        }
        Stand::Taken { loss: None, .. } if seen.is_alike && facts.adopts => adopted(seen, facts),
        Stand::Taken { loss: Some(loss), .. } => (Stand::Nowhere, Effect::Lost(loss)),
        Stand::Taken { .. } => (Stand::Nowhere, Effect::Rename { is_gone: true }),
        Stand::Waiting { then, .. } => carried_out(then),
        Stand::Unsure { .. } | Stand::On(_) => (Stand::On(seen.held), Effect::Again),
        Stand::Nowhere | Stand::Sent { .. } | Stand::Unwanted(_) | Stand::Carried { .. } => (stand, Effect::Again),
    }
}

/// A read has found nothing.
fn missing(stand: Stand, facts: &Facts) -> (Stand, Effect) {
    match stand {
        Stand::Taken { until, loss: Some(loss) } => give_up(until, Then::Lose(loss), facts),
        Stand::Taken { until: Some(until), loss: None } => (Stand::Sent { until }, Effect::Again),
        Stand::Waiting { then, .. } => carried_out(then),
        Stand::Carried { until } if until > facts.now => (stand, Effect::Later),
        Stand::Unsure { if_missing: IfMissing::Forget, .. } => (Stand::Nowhere, Effect::Forget),
        Stand::Taken { until: None, loss: None }
        | Stand::Unsure { if_missing: IfMissing::Create, .. }
        | Stand::Nowhere
        | Stand::Sent { .. }
        | Stand::On(_)
        | Stand::Carried { .. }
        | Stand::Unwanted(_) => (Stand::Nowhere, Effect::Again),
    }
}

/// Reading is refused.
fn unreadable(stand: Stand, refusal: Refusal, facts: &Facts) -> (Stand, Effect) {
    match stand {
        Stand::Taken { loss: Some(loss), .. } => (Stand::Nowhere, Effect::Lost(loss)),
        // Another writer has the name, as nothing of ours was ever sent under it.
        Stand::Taken { until: None, .. } => (Stand::Nowhere, Effect::Rename { is_gone: true }),
        // Most likely it is our own create, whose answer was lost, or our client's.
        Stand::Taken { until: Some(_), .. } | Stand::Carried { .. } => {
            let held = Held { count: facts.sent.count, tag: facts.sent.tag, ..Held::default() };
            (Stand::On(held), Effect::Held { arrived: facts.in_doubt(), moved: 0 })
        }
        // Without the right to read a patch is repeated blindly, as client-go does.
        Stand::Unsure { held, .. } => (Stand::On(Held { version: SmolStr::default(), ..held }), Effect::Again),
        Stand::Waiting { then, .. } => carried_out(then),
        Stand::Nowhere | Stand::Sent { .. } | Stand::On(_) | Stand::Unwanted(_) => lost(stand, refusal),
    }
}

/// Gives a name up: at once, or after the last of our creates under it can have been carried out.
fn give_up(until: Option<Mono>, then: Then, facts: &Facts) -> (Stand, Effect) {
    match until {
        Some(until) if until > facts.now => (Stand::Waiting { until, then }, Effect::Later),
        _ => carried_out(then),
    }
}

fn carried_out(then: Then) -> (Stand, Effect) {
    match then {
        // Only what is nowhere tries to create, so it was gone before.
        Then::Rename => (Stand::Nowhere, Effect::Rename { is_gone: true }),
        Then::Lose(loss) => (Stand::Nowhere, Effect::Lost(loss)),
        Then::Delete => (Stand::Nowhere, Effect::Forget),
    }
}

fn lost(stand: Stand, refusal: Refusal) -> (Stand, Effect) {
    (stand, Effect::Lost(Box::new(Loss::of(refusal))))
}

impl Loss {
    fn of(refusal: Refusal) -> Self {
        Self { reason: LostReason::Refused(refusal.reason), refusal }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::RefusalReason;
    use crate::status::Status;

    const NOW: Mono = Mono(100_000_000_000);
    const LATER: Mono = Mono(NOW.0 + 1);

    /// Ten of five known ones and five in flight, of which the newest write carried all.
    const FACTS: Facts =
        Facts { now: NOW, tags: Tags::Kept, settled: 5, in_flight: 5, sent: Mark { count: 13, tag: 10 }, adopts: true };

    fn refusal() -> Refusal {
        Refusal { reason: RefusalReason::Invalid, status: Box::new(Status::new(422, "Invalid", "m")) }
    }

    fn held(version: &str, count: i64, tag: u64) -> Held {
        Held { version: version.into(), count, tag, expired_tags: Vec::new() }
    }

    fn seen(version: &str, count: i64, tag: Option<u64>, is_alike: bool) -> Fact {
        let held = held(version, count, tag.unwrap_or(0));
        Fact::Stored(Seen { held, is_tagged: tag.is_some(), is_alike, is_bare: false })
    }

    fn stands() -> Vec<Stand> {
        let loss = || Some(Box::new(Loss::of(refusal())));
        let mut all = vec![Stand::Nowhere, Stand::Sent { until: LATER }, Stand::On(held("1", 8, 5))];
        for until in [None, Some(NOW), Some(LATER)] {
            all.extend([None, loss()].map(|loss| Stand::Taken { until, loss }));
        }
        for if_missing in [IfMissing::Create, IfMissing::Forget] {
            all.push(Stand::Unsure { held: held("1", 8, 5), if_missing });
        }
        for then in [Then::Rename, Then::Lose(Box::new(Loss::of(refusal()))), Then::Delete] {
            all.push(Stand::Waiting { until: NOW, then });
        }
        all.push(Stand::Unwanted(held("1", 8, 5)));
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
        let on = || Stand::On(held("1", 8, 5));
        let unsure = || Stand::Unsure { held: held("1", 8, 5), if_missing: IfMissing::Create };
        let deleted = || Stand::Unsure { held: held("1", 8, 5), if_missing: IfMissing::Forget };
        let taken = |until| Stand::Taken { until, loss: None };
        let rows = [
            (Stand::Nowhere, Create, seen("1", 13, Some(10), true), "On", "Held { arrived: 5, moved: 0 }"),
            (Stand::Nowhere, Create, Fact::Exists, "Taken", "Again"),
            (Stand::Nowhere, Create, Fact::Refused(refusal()), "Nowhere", "Lost"),
            (Stand::Nowhere, Create, Fact::Retry(Applied::Perhaps), "Sent", "Later"),
            (Stand::Sent { until: LATER }, Create, Fact::Exists, "Taken", "Again"),
            (Stand::Sent { until: LATER }, Create, Fact::Refused(refusal()), "Taken", "Again"),
            (taken(None), Read, seen("1", 13, Some(7), true), "On", "Held { arrived: 2, moved: 3 }"),
            (taken(None), Read, seen("1", 13, None, true), "On", "Held { arrived: 0, moved: 5 }"),
            (taken(None), Read, seen("1", 13, None, false), "Nowhere", "Rename"),
            (taken(Some(LATER)), Read, seen("1", 13, None, false), "Waiting", "Later"),
            (taken(Some(LATER)), Read, Fact::Missing, "Sent", "Again"),
            (on(), Patch, seen("2", 13, Some(10), true), "On", "Held { arrived: 5, moved: 0 }"),
            (on(), Patch, Fact::Missing, "Nowhere", "Again"),
            (on(), Patch, Fact::Refused(refusal()), "On", "Lost"),
            (on(), Patch, Fact::Conflict, "Unsure", "Again"),
            (on(), Patch, Fact::Retry(Applied::Perhaps), "Unsure", "Later"),
            (unsure(), Read, seen("2", 10, Some(7), true), "On", "Held { arrived: 2, moved: 0 }"),
            (unsure(), Read, seen("1", 8, None, true), "On", "Held { arrived: 0, moved: 0 }"),
            (unsure(), Read, seen("2", 9, None, true), "On", "Held { arrived: 0, moved: 1 }"),
            (unsure(), Read, seen("2", 9, None, false), "Nowhere", "Rename { is_gone: false }"),
            (unsure(), Read, Fact::Missing, "Nowhere", "Again"),
            (deleted(), Read, seen("1", 8, None, true), "On", "Held { arrived: 0, moved: 0 }"),
            (deleted(), Read, seen("2", 9, None, true), "Nowhere", "Forget"),
            (deleted(), Read, seen("2", 9, None, false), "Nowhere", "Forget"),
            (deleted(), Read, Fact::Missing, "Nowhere", "Forget"),
            (Stand::Waiting { until: NOW, then: Then::Rename }, Read, seen("1", 13, Some(10), true), "On", "Held"),
            (Stand::Waiting { until: NOW, then: Then::Rename }, Read, Fact::Missing, "Nowhere", "Rename"),
            (Stand::Unwanted(held("1", 8, 5)), Call::Delete, Fact::Missing, "Nowhere", "Forget"),
        ];
        for (stand, call, fact, next, effect) in rows {
            let row = format!("{stand:?}, {call:?}, {fact:?}");
            let (stand, done) = step(stand, call, fact, &FACTS);
            let (stand, done) = (format!("{stand:?}"), format!("{done:?}"));
            assert!(stand.starts_with(next) && done.starts_with(effect), "{row}: {stand}, {done}");
        }
    }

    /// Whatever is answered wherever a record stands, no more has arrived than was in flight, and a request comes next
    /// or a time.
    #[test]
    fn a_step_is_total_and_no_more_arrives_than_was_sent() {
        for tags in [Tags::Kept, Tags::Unproven, Tags::Off] {
            for adopts in [false, true] {
                let facts = Facts { tags, adopts, ..FACTS };
                for stand in stands() {
                    for (call, fact) in [Call::Create, Call::Patch, Call::Read, Call::Delete]
                        .into_iter()
                        .flat_map(|call| answers().into_iter().map(move |fact| (call, fact)))
                    {
                        let row = format!("{tags:?}, {stand:?}, {call:?}, {fact:?}");
                        let (next, effect) = step(stand.clone(), call, fact, &facts);
                        if let Effect::Held { arrived, .. } = effect {
                            assert!(arrived <= facts.in_flight, "{row}: {effect:?}");
                            assert!(matches!(next, Stand::On(_)), "{row}: {next:?}");
                        }
                        let waits = matches!(next, Stand::Waiting { until, .. } if until > NOW);
                        assert!(waits || next.call(NOW).is_some(), "{row}: {next:?}");
                    }
                }
            }
        }
    }
}
