//! The journal: records that have changed since the spool last took the changes, and the part of each that has to survive
//! a restart. Without a spool it stays empty.
//!
//! The spool takes the changes, commits them, and reports success ([`Outbox::changes_kept`]) or failure
//! ([`Outbox::change_all`]).

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use super::Outbox;
use super::budget::{Budget, BudgetId};
use super::fold::FIRST_DIGEST;
use super::lines::{ClientLine, Lines};
use super::record::{Kind, Record};
use super::upstream_state::{IfMissing, LIMBO, Mark, StoredState, UpstreamState};
use crate::clock::Now;
use crate::correlator::{Key, Messages, Rate, RecordId};
use crate::event::Event;
use crate::ledger::Occurrences;

/// The part of an owing record that has to survive a restart.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Entry {
    /// Its source.
    pub source: Key,
    /// The correlator's key of the record.
    pub key: Key,
    /// The budget that pays for its writes; `None` if they are free or paid.
    pub budget: Option<Key>,
    /// Kind of the record.
    pub kind: Kind,
    /// Its desired state, with the last known `resourceVersion` of the upstream.
    #[serde(skip)]
    pub event: Event,
    /// Whether the upstream is known to hold the record.
    pub stored: bool,
    /// Its tag; empty if writes carry no tags.
    pub tag: SmolStr,
    /// Occurrences under the tag that the upstream is known to hold.
    pub settled: u64,
    /// Occurrences under the tag that the upstream has not acknowledged, including those in flight.
    pub owed: Occurrences,
    /// Occurrences to count under another tag, because no write of them was ever sent.
    #[serde(default)]
    pub later: Occurrences,
    /// Number of the owed occurrences that the client was allowed to create itself (admission).
    #[serde(default)]
    pub carried: u64,
    /// Whether a client's DELETE is in progress, or got no answer and the record was not read since.
    #[serde(default)]
    pub may_be_deleted: bool,
    /// Client lines for the occurrences under the tag.
    #[serde(default)]
    pub lines: Vec<ClientLine>,
    /// How far clients have counted with the later occurrences too.
    #[serde(default)]
    pub later_lines: Vec<ClientLine>,
}

impl Entry {
    /// Returns all occurrences that the upstream has not acknowledged.
    pub fn occurrences(&self) -> Occurrences {
        let mut occurrences = self.owed;
        occurrences.merge(self.later);
        occurrences
    }
}

/// Changes since the last ones were taken.
#[derive(Debug, Default)]
pub struct Changes {
    /// The changed records, each with its entry; `None` removes the entry.
    pub records: Vec<(RecordId, Option<Box<Entry>>)>,
    /// Records that send nothing until these changes are committed.
    pub held: Vec<RecordId>,
}

type Ids = HashSet<RecordId, foldhash::fast::FixedState>;

#[derive(Debug, Default)]
pub(super) struct Journal {
    pub(super) on: bool,
    // LIMIT: the records of the outbox and of the spool; others are removed at `tidy_at`.
    changed: Ids,
    /// Records that may have an entry in the spool.
    // LIMIT: the records of the outbox when the changes were last taken, and those removed since.
    kept: Ids,
    held: Vec<RecordId>,
    tidy_at: usize,
}

/// LIMIT: changed records, before those without an entry are removed.
const TIDY_AT: usize = 4096;

impl Outbox {
    /// Starts the journal, for [`take_changes`](Self::take_changes).
    pub fn keep_journal(&mut self) {
        self.journal.on = true;
    }

    /// Whether there are changes to take.
    pub fn has_changes(&self) -> bool {
        !self.journal.changed.is_empty()
    }

    /// Returns the changes, and clears them.
    pub fn take_changes(&mut self) -> Changes {
        let mut records = Vec::with_capacity(self.journal.changed.len());
        for id in std::mem::take(&mut self.journal.changed) {
            match self.records.get(&id).filter(|record| record.waiting().total() > 0) {
                Some(record) => {
                    self.journal.kept.insert(id);
                    records.push((id, Some(Box::new(self.entry(id, record)))));
                }
                None if self.journal.kept.remove(&id) => records.push((id, None)),
                None => {}
            }
        }
        Changes { records, held: std::mem::take(&mut self.journal.held) }
    }

    /// Applies the success of a commit: the records that waited for it may be sent.
    pub fn changes_kept(&mut self, held: &[RecordId], now: Now) {
        for id in held {
            self.resume(*id, now);
        }
    }

    /// Lets records continue that wait for a commit, because the spool cannot commit now.
    pub fn go_on_unkept(&mut self, now: Now) {
        let held = std::mem::take(&mut self.journal.held);
        self.changes_kept(&held, now);
    }

    /// Marks all records as changed, because a commit has failed. The next one empties the spool.
    pub fn change_all(&mut self) {
        self.journal.kept.clear();
        self.journal.changed.extend(self.records.keys().copied());
    }

    /// Restores a record of an earlier process. A write of it may have been in flight when that process ended, and may
    /// have carried more than the spool has. So the record continues under the earlier tag until it is settled which of
    /// its occurrences have arrived. It does not fold, and its first write takes no token.
    ///
    /// LIMIT: as many records as waited in the earlier process, also above this one's limits; new records are refused
    /// meanwhile.
    pub fn restore(&mut self, id: RecordId, entry: Entry, rate: Rate, messages: Messages, now: Now) {
        let budget_id = match entry.budget {
            Some(budget) => BudgetId::of_spam_key(entry.source, budget),
            None => BudgetId::prepaid(entry.source),
        };
        let rate = entry.budget.map(|_| rate);
        self.budget(budget_id, || Budget::new(entry.source, rate)).members += 1;
        let own_tag = self.own_tag(id);
        let version = entry.event.metadata.resource_version.clone();
        let mut record = Record::new(entry.source, budget_id, entry.kind, entry.event, now.mono);
        (record.key, record.messages) = (entry.key, messages);
        record.paid = true;
        record.total = entry.settled + entry.owed.total();
        record.later = entry.later;
        record.lines = Lines::of(entry.lines, &record.event.metadata.name);
        record.later_lines = Lines::of(entry.later_lines, &record.event.metadata.name);
        record.size += record.lines.size() + record.later_lines.size();
        // A plain write of the earlier process is settled as such, before the record gets a tag.
        if own_tag.is_some() {
            (record.tag, record.is_inherited) = (Some(entry.tag).filter(|tag| !tag.is_empty()), true);
        } else {
            record.take_own_tag(own_tag);
            record.total += record.pending.total();
        }
        record.sent = Mark { count: record.count_to_write(), tag: record.total };
        let owed = i64::try_from(entry.owed.total()).unwrap_or(i64::MAX);
        let count = record.count_to_write().saturating_sub(owed);
        let held = StoredState { version, count, tag: entry.settled, ..StoredState::default() };
        let carried = i64::try_from(entry.carried).unwrap_or(i64::MAX);
        // A read shows what has arrived only with tags.
        record.upstream = match (entry.stored, record.is_inherited && record.tag.is_some()) {
            _ if entry.carried > 0 => {
                record.sent = Mark { count: count.saturating_add(carried), tag: entry.settled + entry.carried };
                UpstreamState::Admitted { until: now.mono.after(LIMBO) }
            }
            (true, _) if entry.may_be_deleted => UpstreamState::Unsure { held, if_missing: IfMissing::Forget },
            (true, true) => UpstreamState::Unsure { held, if_missing: IfMissing::Create },
            (true, false) => UpstreamState::Stored(held),
            (false, _) => UpstreamState::Sent { until: now.mono.after(LIMBO) },
        };
        if let UpstreamState::Sent { until } = record.upstream {
            record.create_until = Some(until);
        }
        record.pending.merge(entry.owed);
        self.put(id, record);
        self.note(id);
        self.owe(id, Occurrences::default(), now.mono, now);
        self.trim_budgets(now.mono);
    }

    /// Returns the number of a new digest.
    pub fn digest_id(&mut self) -> RecordId {
        self.next_digest += 1;
        RecordId(FIRST_DIGEST + self.next_digest)
    }

    /// Marks a record as changed.
    pub(super) fn note(&mut self, id: RecordId) {
        let Self { journal, records, .. } = self;
        if !journal.on {
            return;
        }
        journal.changed.insert(id);
        if journal.changed.len() >= journal.tidy_at.max(TIDY_AT) {
            journal.changed.retain(|id| records.contains_key(id) || journal.kept.contains(id));
            journal.tidy_at = journal.changed.len().saturating_mul(2);
        }
    }

    /// Holds a record until the spool has committed it, because it has the occurrences of another record, or a new name.
    /// Otherwise, after a crash, the next process would write the same occurrences again from the old entries.
    pub(super) fn hold_until_kept(&mut self, id: RecordId) {
        if self.journal.on {
            self.note(id);
            self.pause(id);
            self.journal.held.push(id);
        }
    }

    fn entry(&self, id: RecordId, record: &Record) -> Entry {
        let pays = |budget: &Budget| !budget.is_prepaid() && !record.kind.folds();
        let pays = self.budgets.peek(&record.budget.0).is_some_and(pays);
        let budget = pays.then(|| record.budget.spam_key(record.source));
        let mut event = record.event.clone();
        let held = record.upstream.held();
        let is_in_doubt = matches!(record.upstream, UpstreamState::Unsure { if_missing: IfMissing::Forget, .. });
        event.metadata.resource_version = held.map(|held| held.version.clone()).unwrap_or_default();
        Entry {
            source: record.source,
            key: record.key,
            budget,
            kind: record.kind,
            event,
            stored: held.is_some(),
            tag: record.tag.clone().unwrap_or_default(),
            settled: record.settled(),
            owed: record.unsettled(),
            later: record.later,
            carried: if matches!(record.upstream, UpstreamState::Admitted { .. }) { record.in_doubt() } else { 0 },
            may_be_deleted: is_in_doubt
                || held.is_some() && self.paused.get(&id).is_some_and(|pause| pause.is_deleting),
            lines: record.lines.to_vec(),
            later_lines: record.later_lines.to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::{Answer, Offer, Request, Settings};

    fn offer(outbox: &mut Outbox) {
        let mut event = Event { count: 1, ..Event::default() };
        event.metadata.name = "n1".into();
        outbox.offer(Offer::of(1, None), event, Now::at(0));
    }

    #[test]
    fn without_a_spool_nothing_is_recorded() {
        let mut outbox = Outbox::new(Settings::default(), 0);
        offer(&mut outbox);
        assert!(!outbox.has_changes());
    }

    #[test]
    fn a_new_name_is_not_used_before_it_is_committed_unless_the_disk_fails() {
        for kept in [true, false] {
            let mut outbox = Outbox::new(Settings::default(), 0);
            outbox.keep_journal();
            outbox.identify("a");
            offer(&mut outbox);
            let id = outbox.next_write(Now::at(1)).unwrap().record;
            outbox.settle(id, Answer::Exists, Now::at(1));
            assert!(matches!(outbox.next_write(Now::at(1)).unwrap().request, Request::Read { .. }));
            let stranger = Event { reason: "Stranger".into(), ..Event::default() };
            outbox.settle(id, Answer::Stored(Box::new(stranger)), Now::at(1));
            assert_eq!(outbox.next_write(Now::at(1)), None);
            let changes = outbox.take_changes();
            outbox.changes_kept(&changes.held, Now::at(1));
            if !kept {
                outbox.change_all();
            }
            // After the coalescing interval, which begins again with each request.
            let write = outbox.next_write(Now::at(2_000_000_000)).unwrap();
            assert!(matches!(write.request, Request::Create { event, .. } if event.metadata.name != "n1"));
            assert_eq!(outbox.has_changes(), !kept);
        }
    }
}
