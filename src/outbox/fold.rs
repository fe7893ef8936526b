//! Folding: never-written records that their budget cannot pay for in time become one digest.

use std::time::Duration;

use smol_str::SmolStr;

use super::budget::{Budget, BudgetId, Order};
use super::digest::Digest;
use super::journal::Journal;
use super::record::{Kind, Phase, Record};
use super::{Occurrences, Outbox, Paused, WrittenAs};
use crate::clock::{Mono, Now};
use crate::correlator::RecordId;

/// Time for the write of a committed digest, before further records fold into it and it has to be committed again.
const UNDISTURBED: Duration = Duration::from_secs(1);

/// The first record number of digests, which use the upper half of the range. Correlators use the lower half.
pub(super) const FIRST_DIGEST: u64 = 1 << 63;

impl Budget {
    /// Returns the time at which more never-written records will have reached `max_age` than there are tokens. Records
    /// with a token do not fold, however long the upstream is down.
    pub(super) fn folds_at(&self, max_age: Duration, now: Mono) -> Option<Mono> {
        self.foldable_since(self.tokens(now)).map(|since| since.after(max_age))
    }

    /// Returns the time from which records may fold; `None` while the digest waits for a commit of the spool. After
    /// each fold the digest has to be committed again, so with a steady flow it would otherwise never be written.
    // LIMIT: records that arrive meanwhile wait in the queue, which has at most `max_records`.
    pub(super) fn folds_from(&self, journal: &Journal, paused: &Paused) -> Option<Mono> {
        match self.digest() {
            Some(digest) if journal.on && paused.contains_key(&digest.record) => None,
            Some(digest) => Some(digest.folds_from),
            None => Some(Mono(i64::MIN)),
        }
    }
}

impl Outbox {
    /// Folds the never-written records of a budget for which it has no token now, if more wait than may.
    pub(super) fn fold_beyond_limit(&mut self, id: BudgetId, now: Now) {
        let Some(budget) = self.budgets.peek(&id.0) else { return };
        if self.folds_beyond_limit_at(budget, now.mono).is_some_and(|at| at <= now.mono) {
            let excess: Vec<Order> = budget.foldable().skip(budget.tokens(now.mono)).collect();
            self.fold(id, &excess, now);
        }
    }

    /// Returns when the excess of a budget may fold; `None` if no more wait than may.
    pub(super) fn folds_beyond_limit_at(&self, budget: &Budget, now: Mono) -> Option<Mono> {
        let (number, tokens) = (budget.foldable_len(), budget.tokens(now));
        // An existing digest that waits for a token anyway takes the excess at once.
        let takes_more = |digest: &Digest| self.records.get(&digest.record).is_some_and(|record| record.owes());
        let is_beyond =
            number > self.settings.digest_after + tokens || number > tokens && budget.digest().is_some_and(takes_more);
        if is_beyond { budget.folds_from(&self.journal, &self.paused) } else { None }
    }

    /// Folds the never-written records of a budget that have reached the maximum age, if there are more than it has
    /// tokens. The digest takes a token, and one record stays for each of the others.
    pub(super) fn fold_aged(&mut self, id: BudgetId, now: Now) {
        let Some(budget) = self.budgets.peek(&id.0) else { return };
        if budget.folds_from(&self.journal, &self.paused).is_none_or(|from| from > now.mono) {
            return;
        }
        let (max_age, tokens) = (self.settings.digest_max_age, budget.tokens(now.mono));
        if budget.folds_at(max_age, now.mono).is_some_and(|at| at <= now.mono) {
            let aged = budget.foldable().filter(|order| order.since.after(max_age) <= now.mono);
            let folding: Vec<Order> = aged.skip(tokens.saturating_sub(1)).collect();
            self.fold(id, &folding, now);
        }
    }

    /// Lets nothing fold into the digest for [`UNDISTURBED`], because it is queued again.
    pub(super) fn end_hold(&mut self, budget: BudgetId, now: Mono) {
        if let Some(digest) = self.budgets.peek_mut(&budget.0).and_then(Budget::digest_mut) {
            digest.folds_from = now.after(UNDISTURBED);
        }
    }

    /// Prepares the end of the process: folds the never-written records of each budget into one write, so that none is
    /// lost.
    ///
    /// The remaining and all later writes wait for no token and no interval.
    pub fn drain(&mut self, now: Now) {
        self.draining = true;
        let budgets: Vec<BudgetId> = self.budgets.iter().map(|(id, _)| BudgetId(*id)).collect();
        for id in budgets {
            let Some(budget) = self.budgets.peek(&id.0) else { continue };
            // With a spool, the next process can write the records that the budget has tokens for.
            let tokens = if self.journal.on { budget.tokens(now.mono) } else { 0 };
            let foldable: Vec<Order> = budget.foldable().skip(tokens).collect();
            if foldable.len() > 1 {
                self.fold(id, &foldable, now);
            }
        }
        let waiting: Vec<RecordId> = self
            .records
            .iter()
            .filter(|(_, record)| matches!(record.phase, Phase::Cooling | Phase::Queued(_) | Phase::Staged(_)))
            .map(|(id, _)| *id)
            .collect();
        for id in waiting {
            self.unqueue(id);
            self.enqueue(id, now);
        }
    }

    /// Removes all records at the end of a drain. Returns the lost occurrences, and those that a request in doubt may
    /// have made visible.
    pub fn abandon(&mut self) -> (Occurrences, Occurrences) {
        let (mut lost, mut unknown) = (Occurrences::default(), Occurrences::default());
        for record in self.records.values() {
            let mut waiting = record.waiting();
            unknown.merge(waiting.take_first(record.in_doubt()));
            lost.merge(waiting);
        }
        let seed = self.jitter.u64(..);
        *self = self.another(seed);
        (lost, unknown)
    }

    /// Removes a record from the queue of its budget or its group.
    pub(super) fn unqueue(&mut self, id: RecordId) {
        let Some(record) = self.records.get_mut(&id) else { return };
        match record.phase {
            Phase::Queued(order) => {
                if let Some(budget) = self.budgets.peek_mut(&record.budget.0) {
                    budget.remove(order);
                }
            }
            Phase::Staged(order) => self.groups.remove(record.group, order),
            Phase::Settled | Phase::Cooling | Phase::InFlight(_) | Phase::Backoff(_) => return,
        }
        record.phase = Phase::Cooling;
    }

    fn fold(&mut self, budget: BudgetId, orders: &[Order], now: Now) {
        let records = self.take_folding(orders, now);
        if let Some(into) = self.fold_into(budget, Kind::Digest, &records, now) {
            let into = super::Taken { into, name: SmolStr::default(), reach: self.reach(into) };
            self.forgotten.extend(records.iter().map(|(id, record)| record.forgotten(*id, &into, Kind::Digest)));
        }
    }

    /// Removes and returns the records that fold.
    pub(super) fn take_folding(&mut self, orders: &[Order], now: Now) -> Vec<(RecordId, Box<Record>)> {
        let mut records = Vec::with_capacity(orders.len());
        for Order { record: id, .. } in orders {
            self.unqueue(*id);
            let Some(record) = self.take(*id) else { continue };
            self.note(*id);
            records.push((*id, record));
        }
        for of_budget in records.chunk_by(|(_, one), (_, next)| one.budget == next.budget) {
            self.set_budget_timer(of_budget[0].1.budget, now.mono);
        }
        records
    }

    /// Adds removed records to the digest of a budget or, for [`Kind::Storm`], to the storm record that it pays for, and
    /// owes a write of it. Returns that record.
    pub(super) fn fold_into(
        &mut self,
        budget_id: BudgetId,
        kind: Kind,
        records: &[(RecordId, Box<Record>)],
        now: Now,
    ) -> Option<RecordId> {
        let (_, first) = records.first()?;
        let (group, shown) = match kind {
            Kind::Storm => (self.membership(budget_id.group()), WrittenAs::Storm),
            Kind::Plain | Kind::Combined | Kind::Digest => (None, WrittenAs::Digest),
        };
        let id = self.budgets.peek(&budget_id.0)?.digest().map(|digest| digest.record);
        let id = id.unwrap_or_else(|| self.digest_id());
        let tag = self.own_tag(id);
        let budget = self.budgets.peek_mut(&budget_id.0)?;
        let (source, before) = (budget.source, budget.digest().map_or(0, Digest::size));
        let make = if kind == Kind::Storm { Digest::storm } else { Digest::new };
        let digest = budget.digest_or(|| make(id, &first.event, now));
        for (_, record) in records {
            digest.fold(&record.event, record.pending, &self.settings);
        }
        digest.update_message(&self.settings);
        self.usage.resize_digest(before, digest.size());
        self.digests.insert(id, budget_id);
        let occurrences: u64 = records.iter().map(|(_, record)| record.pending.total()).sum();
        let since = records.iter().map(|(_, record)| record.since).min().unwrap_or(now.mono);
        if let Some(record) = self.records.get_mut(&id) {
            // Other writers and clients change the record's count only.
            let more = i32::try_from(occurrences).unwrap_or(i32::MAX);
            digest.event.count = record.event.count.saturating_add(more);
            record.absorb(digest.event.clone(), &mut self.usage, usize::MAX);
        } else {
            let mut record = Record::new(source, budget_id, kind, digest.event.clone(), now.mono);
            (record.since, record.group, record.tag) = (since, group, tag);
            (record.upstream, record.total) = (digest.upstream.clone(), digest.total);
            budget.members += 1;
            self.put(id, record);
        }
        self.hold_until_kept(id);
        // Its wait begins with that of the longest-waiting record.
        self.owe(id, Occurrences::of(shown, occurrences), since, now);
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use crate::clock::Now;
    use crate::correlator::{Field, KeySecret, Policy, Settings};
    use crate::event::Event;
    use crate::outbox::{self, Answer, DIGEST_REASON, Line, LostReason, Request};
    use crate::shard::{self, Handle, Lookup, Shard};

    /// Fault: after each folded record it waited for one more commit, and was not written before the flood ended.
    #[test]
    fn a_digest_is_written_while_its_budget_continues_to_fold() {
        let (mut shard, policy) = budgeted(1, 4);
        let policy = Policy::from(Settings { qps: 1.0, ..(*policy.base).clone() });
        shard.identify("a");
        shard.keep_journal();
        let (mut digests, mut being_kept) = (Vec::new(), None::<outbox::Changes>);
        for step in 1..6_000_i64 {
            let now = Now::at(step * 5_000_000);
            let first = usize::try_from(2 * step).unwrap();
            accept(&mut shard, first..first + 2, now, &policy);
            // A commit takes three steps, and begins with the changes up to then.
            if step % 3 == 0 {
                if let Some(changes) = being_kept.take() {
                    shard.changes_kept(&changes.held, now);
                }
                being_kept = Some(shard.take_changes());
            }
            for stored in shard.write_all(now) {
                if stored.reason == DIGEST_REASON || stored.message.contains("folded") {
                    digests.push((step / 200, stored.count));
                }
            }
            assert!(shard.balance().is_exact());
            assert!(shard.sizes().records < 600, "what waits for a fold is a second's");
        }
        assert!(digests.len() >= 10, "{digests:?}");
    }

    /// A shard with budgets of this size, and an event of this number under one budget.
    fn budgeted(burst_size: u32, digest_after: usize) -> (Shard, Policy) {
        let base = Settings { burst_size, qps: 0.01, spam_key: vec![Field::SourceComponent], ..Settings::default() };
        let outbox = outbox::Settings { digest_after, ..outbox::Settings::default() };
        let settings = shard::Settings { outbox, ..shard::Settings::default() };
        (Shard::new(KeySecret(1, 2), settings, 1), Policy::from(base))
    }

    fn numbered(number: usize) -> Event {
        let mut event = Event { count: 1, reason: "FailedScheduling".into(), ..Event::default() };
        event.involved_object.name = format!("web-{number}").into();
        event.metadata.name = event.involved_object.name.clone();
        event
    }

    /// Returns the names of the pending records.
    fn pending(shard: &Shard) -> Vec<String> {
        let mut names: Vec<String> = shard.pending().map(|(event, _)| event.metadata.name.to_string()).collect();
        names.sort();
        names
    }

    /// Fault: a planned restart during an outage cost the texts of most events.
    #[test]
    fn what_is_kept_and_has_a_token_does_not_fold_in_a_drain() {
        for has_spool in [true, false] {
            let (mut shard, policy) = budgeted(4, 100);
            if has_spool {
                shard.keep_journal();
            }
            let now = Now::at(1);
            accept(&mut shard, 0..6, now, &policy);
            shard.drain(now);
            // Two are more than the budget can pay for.
            let expected = if has_spool { 5 } else { 1 };
            assert_eq!(pending(&shard).len(), expected, "{has_spool}");
            assert!(shard.balance().is_exact());
        }
    }

    /// Fault: after an hour's outage all folded, and the tokens that the budget had for most of them were of no use.
    #[test]
    fn what_has_a_token_keeps_its_record_however_long_the_upstream_is_down() {
        let (mut shard, policy) = budgeted(25, 32);
        accept(&mut shard, 0..40, Now::at(1_000_000_000), &policy);
        let mut counts: Vec<i32> =
            shard.write_all(Now::at(3_700_000_000_000)).iter().map(|stored| stored.count).collect();
        counts.sort_unstable();
        assert_eq!((counts.len(), counts.pop()), (25, Some(16)), "24 of their own, and the digest");
    }

    /// Fault: each came to its own token later, minutes after the others.
    #[test]
    fn what_comes_while_a_digest_waits_for_its_token_joins_it() {
        let (mut shard, policy) = budgeted(1, 3);
        for number in 0..20 {
            let now = Now::at(i64::try_from(number).unwrap() * 2_000_000_000);
            shard.accept(numbered(number), 1, now, &policy).unwrap();
        }
        assert_eq!(pending(&shard).len(), 2, "the first, and the digest of the others");
    }

    /// Accepts the events of these numbers.
    fn accept(shard: &mut Shard, numbers: std::ops::Range<usize>, now: Now, policy: &Policy) {
        for number in numbers {
            shard.accept(numbered(number), 1, now, policy).unwrap();
        }
    }

    /// Fault: what a deleted digest had counted moved to the budget's next digest, when its late create was deleted too.
    #[test]
    fn a_deleted_digest_leaves_nothing_to_the_next_one() {
        let (mut shard, policy) = budgeted(1, 3);
        let now = Now::at(1_000_000_000);
        accept(&mut shard, 0..20, now, &policy);
        let write = shard.next_write(now).unwrap();
        let Request::Create { event: digest, .. } = write.request else { panic!("{write:?}") };
        assert_eq!(digest.count, 19);
        let handle = shard.pause(&digest, &digest.metadata.name, Lookup::Name, now, &policy).unwrap();
        shard.forget_record(&handle, now);
        accept(&mut shard, 20..30, now, &policy);
        let now = Now::at(202_000_000_000);
        let mut created = 0;
        while let Some(write) = shard.next_write(now) {
            let answer = match write.request {
                Request::Create { event, .. } => {
                    created = event.count;
                    Answer::Stored(event)
                }
                Request::Patch { .. } => panic!("of a deleted digest"),
                Request::Read { .. } | Request::Delete { .. } => Answer::Missing,
            };
            shard.settle(write.record, answer, now);
        }
        // With the first record.
        assert_eq!(created, 11);
        accept(&mut shard, 30..40, now, &policy);
        let written = shard.write_all(Now::at(303_000_000_000));
        assert_eq!(written.iter().map(|event| event.count).collect::<Vec<_>>(), [21]);
        assert!(shard.balance().is_exact());
    }

    /// A digest of 19 events that is written, and then held for a client while 11 more wait.
    fn held_digest() -> (Shard, Policy, Event, Handle) {
        let (mut shard, policy) = budgeted(1, 3);
        let now = Now::at(1_000_000_000);
        accept(&mut shard, 0..20, now, &policy);
        let digest = shard.write_all(now).pop().unwrap();
        assert_eq!(digest.count, 19);
        accept(&mut shard, 20..30, now, &policy);
        let handle = shard.pause(&digest, &digest.metadata.name, Lookup::Name, now, &policy).unwrap();
        (shard, policy, digest, handle)
    }

    /// Faults: a digest that a client's DELETE without an answer had deleted was created again, with all it had counted.
    /// It took in what came before the read, and that was lost with it.
    #[test]
    fn a_digest_found_deleted_is_not_created_again() {
        for is_busy in [false, true] {
            let (mut shard, policy, digest, handle) = held_digest();
            let now = Now::at(1_000_000_000);
            shard.doubt(&handle, now);
            if is_busy {
                accept(&mut shard, 30..40, now, &policy);
            }
            let now = Now::at(102_000_000_000);
            let write = shard.next_write(now).unwrap();
            assert!(matches!(&write.request, Request::Read { name, .. } if *name == digest.metadata.name), "{write:?}");
            shard.settle(write.record, Answer::Missing, now);
            // With the first record.
            assert_eq!(shard.balance().ledger.lost(LostReason::Deleted), 11);
            if !is_busy {
                accept(&mut shard, 30..40, now, &policy);
            }
            let created = shard.write_all(Now::at(203_000_000_000)).pop().unwrap();
            assert_ne!(created.metadata.name, digest.metadata.name);
            assert_eq!(created.count, 10);
            assert!(shard.balance().is_exact());
        }
    }

    /// Fault: the next fold wrote the count without another writer's part.
    #[test]
    fn another_writers_part_of_a_digest_survives_a_fold() {
        let (mut shard, policy, digest, handle) = held_digest();
        let now = Now::at(1_000_000_000);
        // A client labels it after another writer has counted 31.
        shard.follow(&handle, &Event { count: 50, ..digest }, Line::Unstated, now);
        // With the first record, 11 wait.
        accept(&mut shard, 30..40, now, &policy);
        let written = shard.write_all(Now::at(303_000_000_000));
        assert_eq!(written.iter().map(|event| event.count).collect::<Vec<_>>(), [50 + 11 + 10]);
    }

    /// Fault: what came while the digest was being committed was shown one record per token.
    #[test]
    fn what_came_while_the_digest_was_being_committed_folds_soon_after() {
        let (mut shard, policy) = budgeted(1, 3);
        shard.keep_journal();
        let now = Now::at(1_000_000_000);
        accept(&mut shard, 0..20, now, &policy);
        assert!(pending(&shard).len() > 10);
        let changes = shard.take_changes();
        shard.changes_kept(&changes.held, now);
        let now = Now::at(3_000_000_000);
        assert!(shard.next_wakeup(now.mono).is_some_and(|at| at <= now.mono));
        assert_eq!(shard.write_all(now).len(), 1);
        assert_eq!(pending(&shard).len(), 2, "the first, and the digest");
        // The same while a client holds the digest.
        let changes = shard.take_changes();
        shard.changes_kept(&changes.held, now);
        let now = Now::at(104_000_000_000);
        let digest = shard.write_all(now).pop().unwrap();
        let changes = shard.take_changes();
        shard.changes_kept(&changes.held, now);
        let handle = shard.pause(&digest, &digest.metadata.name, Lookup::Name, now, &policy).unwrap();
        accept(&mut shard, 30..40, now, &policy);
        let is_due = |shard: &Shard| shard.next_wakeup(now.mono).is_some_and(|at| at <= now.mono);
        assert!(shard.next_write(now).is_none() && !is_due(&shard));
        shard.release(&handle, now);
        assert!(is_due(&shard));
    }
}
