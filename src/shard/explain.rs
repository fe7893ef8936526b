//! Notes about answers, folded records and deletions for `explain`, and what it knows of all objects together.

use smol_str::SmolStr;

use super::pause::Handle;
use super::{Mirror, Shard, Shards};
use crate::clock::{Mono, Now};
use crate::correlator::{Key, RecordId, Settled};
use crate::event::Event;
use crate::explain::{FactRef, Group, LostFolds, MINUTES, Remark, Store, StormStates, Tap, Unseen, Verdict, Written};
use crate::ledger::RejectReason;
use crate::outbox::{Answer, Fault, Forgotten, Kind, LostReason, MESSAGES, Request, Settlement, Write, has_any_tag};

/// A bit that is flipped in record numbers of other shards, so that they differ from this shard's own numbers.
pub(super) const ELSEWHERE: u64 = 1 << 62;

/// A write in flight, as `explain` knows it.
#[derive(Debug)]
pub(super) struct Noticed {
    fact_ref: FactRef,
    kind: Kind,
    name: SmolStr,
    message: SmolStr,
    sent: i64,
    settled: u64,
    why: &'static str,
    text: SmolStr,
}

impl Shard {
    /// Returns the desired state of an unsettled record.
    pub(super) fn event(&self, record: RecordId) -> Option<Event> {
        Some(self.outbox.view(record)?.event.clone())
    }

    /// Adds the newest messages of its record to a write, if the settings ask for it. The write is sent anyway.
    pub(super) fn annotate(&mut self, write: &mut Write) {
        let Some(seen) = self.explain.annotates().then(|| self.outbox.view(write.record)).flatten() else { return };
        if !matches!(seen.kind, Kind::Combined | Kind::Digest) {
            return;
        }
        let object = self.secret.subject(seen.event);
        let Some(messages) = self.explain.messages(object, write.record) else { return };
        match &mut write.request {
            Request::Patch { claim: Some(claim), .. } => {
                claim.annotations.push((SmolStr::new_static(MESSAGES), messages));
            }
            Request::Create { event, .. } => {
                // Records that are written as client-go writes them get no annotation.
                if has_any_tag(event) {
                    let rare = event.metadata.rare.get_or_insert_default();
                    rare.annotations.insert(SmolStr::new_static(MESSAGES), messages);
                }
            }
            Request::Patch { claim: None, .. } | Request::Read { .. } | Request::Delete { .. } => {}
        }
    }

    /// Notes the state of a write before its answer is applied. `None` is the answer to a client's change.
    pub(super) fn notice(&mut self, record: RecordId, answer: Option<&Answer>, now: Now) -> Option<Noticed> {
        let seen = self.explain.is_on().then(|| self.outbox.view(record)).flatten()?;
        let fact_ref = self.explain.fact_ref(seen.event, now)?;
        let (why, text) = match answer {
            Some(Answer::Refused(refusal)) => (refusal.reason.label(), SmolStr::new(&refusal.status.message)),
            // A message about eventweir's own credentials is only for its operator.
            Some(Answer::Retry(retry)) if retry.fault == Fault::Unauthorized => {
                (retry.fault.label(), SmolStr::default())
            }
            Some(Answer::Retry(retry)) => (retry.fault.label(), retry.cause.clone()),
            Some(Answer::Stored(_) | Answer::Missing | Answer::Exists) | None => ("", SmolStr::default()),
        };
        let (name, message) = (seen.event.metadata.name.clone(), seen.event.message.clone());
        Some(Noticed { fact_ref, kind: seen.kind, name, message, sent: seen.sent, settled: seen.settled, why, text })
    }

    /// Notes the effect of an answer.
    pub(super) fn note_answer(&mut self, record: RecordId, noticed: &Noticed, settlement: &Settlement, now: Now) {
        let Noticed { fact_ref, kind, name, message, sent, settled, why, text } = noticed;
        let written = settlement.written.total();
        if written > 0 {
            // Not all of the sent ones may have arrived. A record that owes nothing more has left the outbox.
            let count = self.outbox.view(record).and_then(|seen| seen.shown).unwrap_or(*sent);
            let (kind, number) = (*kind, written);
            self.explain.written(*fact_ref, Written { record, kind, name, message, count, number }, now);
        }
        if let Some((reason, lost)) = settlement.lost {
            let (number, settled, why) = (lost.total(), settled + written, reason.label());
            self.note_lost_folded(fact_ref.object, *kind, LostFolds { into: record, number, settled, why });
        }
        let became = match settlement.lost {
            Some((reason, lost)) => Some((Verdict::Lost, reason.label(), lost.total())),
            None if written > 0 => Some((Verdict::Written, "", written)),
            // Refused but not lost: it is retried, repaired or unchanged.
            None if !why.is_empty() => Some((Verdict::Failed, *why, 0)),
            None => None,
        };
        if let Some((verdict, why, number)) = became {
            self.explain.remark(*fact_ref, Remark { verdict, why, number, record: Some(record), text }, now);
        }
        if settlement.feedback.as_ref().is_some_and(|feedback| feedback.settled == Settled::Forgotten) {
            self.explain.ended(fact_ref.object, record);
        }
    }

    /// Notes that a record of an object has lost occurrences, if others have folded into it.
    pub(super) fn note_lost_folded(&mut self, object: Key, kind: Kind, lost: LostFolds) {
        match kind {
            Kind::Storm => self.note_lost_storm(lost.into, lost.settled, lost.why),
            Kind::Digest => self.explain.lose_folded(object, lost),
            Kind::Plain | Kind::Combined => {}
        }
    }

    /// Counts occurrences as lost.
    pub(super) fn lose(&mut self, reason: LostReason, number: u64, now: Now) {
        self.ledger.lose(reason, number);
        if number > 0 {
            self.explain.lose(reason, number, now);
        }
    }

    /// Notes that a record has folded.
    pub(super) fn note_fold(&mut self, forgotten: &Forgotten, now: Now) {
        let Forgotten { into, kind, .. } = *forgotten;
        // A storm record belongs to another shard, which has its own record numbers.
        let into = if kind == Kind::Storm { RecordId(into.0 ^ ELSEWHERE) } else { into };
        self.explain.fold(forgotten, into, now);
    }

    /// Notes that a client deleted a record with `lost` waiting occurrences.
    pub(super) fn note_deletion(&mut self, handle: &Handle, lost: u64, now: Now) {
        self.explain.gone(handle.object, handle.record);
        if let Some(fact_ref) = self.explain.ended(handle.object, handle.record) {
            let (verdict, why) = if lost > 0 { (Verdict::Lost, "deleted") } else { (Verdict::Deleted, "") };
            let (record, text) = (Some(handle.record), handle.name.as_str());
            self.explain.remark(fact_ref, Remark { verdict, why, number: lost, record, text }, now);
        }
    }

    /// Notes refused occurrences of an event that could be decoded.
    pub fn note_rejection(&mut self, event: &Event, occurrences: u32, reason: RejectReason, text: &str, now: Now) {
        if let Some(fact_ref) = self.explain.receive(event, occurrences, now) {
            let (verdict, why, number) = (Verdict::Rejected, reason.label(), occurrences.into());
            self.explain.remark(fact_ref, Remark { verdict, why, number, record: None, text }, now);
        }
    }

    /// Returns the facts of the last hour of which the upstream shows nothing, in namespaces that the caller may see.
    pub fn unseen(&mut self, is_seen: &dyn Fn(&str) -> bool, storms: &StormStates, now: Mono) -> Unseen {
        self.explain.flush_runs();
        self.explain.unseen(is_seen, &|fact| self.summary(fact.into?, storms), now)
    }

    /// Returns the store of this shard.
    pub fn store(&mut self) -> &Store {
        self.explain.flush_runs();
        &self.explain
    }
}

impl Shards {
    /// Notes refused occurrences of an event that could be decoded.
    pub fn note_rejection(&self, event: &Event, occurrences: u32, reason: RejectReason, text: &str) {
        let index = self.shard_of(event);
        self.with(index, |shard, now| shard.note_rejection(event, occurrences, reason, text, now));
    }

    /// Notes a refused change of an event, which is not an occurrence, with the text of the response to its client.
    pub fn note_refused_change(&self, event: &Event, change: &str, text: &str) {
        let text = &format!("{change}: {text}");
        self.with(self.shard_of(event), |shard, now| {
            if let Some(fact_ref) = shard.explain.fact_ref(event, now) {
                let remark = Remark { verdict: Verdict::Rejected, why: "change", number: 0, record: None, text };
                shard.explain.remark(fact_ref, remark, now);
            }
        });
    }

    /// Returns the facts of the last hour of which the upstream shows nothing, in namespaces that the caller may see.
    pub fn unseen(&self, is_seen: &dyn Fn(&str) -> bool) -> Unseen {
        let now = self.clock().now().mono;
        let storms = self.storm_states();
        self.each(|shard, _| shard.unseen(is_seen, &storms, now)).into_iter().fold(Unseen::default(), Unseen::plus)
    }

    /// Returns occurrences, writes, losses, and losses by a fault, per minute, the newest first.
    pub fn flow(&self) -> [[u64; MINUTES]; 4] {
        let (now, mut sum) = (self.clock().now().mono, [[0; MINUTES]; 4]);
        for flow in self.each(|shard, _| shard.store().flow(now)) {
            for (sum, number) in sum.iter_mut().flatten().zip(flow.into_iter().flatten()) {
                *sum += u64::from(number);
            }
        }
        sum
    }

    /// Returns the groups of similar events of each shard. The first of each shard counts those beyond the limit.
    pub fn groups(&self) -> Vec<Vec<Group>> {
        self.each(|shard, _| shard.store().groups().to_vec())
    }

    /// Returns how often each rule was chosen since the last reload. The first counts occurrences that no rule matches.
    pub fn rule_hits(&self) -> Vec<u64> {
        let mut sum = Vec::new();
        for hits in self.each(|shard, _| shard.store().rule_hits().to_vec()) {
            sum.resize(hits.len().max(sum.len()), 0);
            sum.iter_mut().zip(hits).for_each(|(sum, hits)| *sum += hits);
        }
        sum
    }

    /// Returns the bytes kept for `explain`.
    pub fn explain_bytes(&self) -> usize {
        (0..self.count()).map(|index| self.look(index, |shard| shard.explain.bytes())).sum()
    }

    /// Returns the mirror, which copies all occurrences to a second configuration if there is one.
    pub fn mirror(&self) -> &Mirror {
        &self.0.mirror
    }

    /// Returns the tap on all occurrences.
    pub fn tap(&self) -> &Tap {
        &self.0.tap
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::time::Duration;

    use super::*;
    use crate::clock::Clock;
    use crate::correlator::{KeySecret, Policy};
    use crate::explain::Query;
    use crate::outbox::{Applied, Entry, Fault, LostReason, Refusal, Request, Retry};
    use crate::shard::Settings;
    use crate::status::Status;

    const MAX: usize = 1 << 20;

    /// Fault: digests, and records of a DELETE without an answer, were not known after a restart.
    #[test]
    fn a_record_of_an_earlier_process_is_known() {
        let (now, policy) = (Now::at(1), Policy::default());
        for (kind, may_be_deleted) in [(Kind::Plain, false), (Kind::Plain, true), (Kind::Digest, false)] {
            let [mut earlier, mut later] = [shard(), shard()];
            earlier.keep_journal();
            assert!(earlier.accept(about("web-0"), 3, now, &policy).is_ok());
            let (_, entry) = earlier.take_changes().records.pop().unwrap();
            later.restore(Entry { kind, may_be_deleted, ..(*entry.unwrap()).clone() }, now, &policy);
            let part = explained(&mut later, "web-0", &policy, now).reasons.remove(0);
            assert_eq!((part.received, part.shown, part.waiting.values().sum::<u64>()), (3, 0, 3));
            assert_eq!(later.store().groups()[1].totals.received, 3);
        }
    }

    /// Fault: it was said to be unwritten, because nothing counts under its new tag.
    #[test]
    fn a_restored_digest_that_is_written_is_settled() {
        let (now, policy) = (Now::at(1), Policy::default());
        let [mut earlier, mut later] = [shard(), shard()];
        earlier.keep_journal();
        later.identify("me");
        earlier.identify("it");
        assert!(earlier.accept(about("web-0"), 3, now, &policy).is_ok());
        let (_, entry) = earlier.take_changes().records.pop().unwrap();
        later.restore(Entry { kind: Kind::Digest, ..(*entry.unwrap()).clone() }, now, &policy);
        let now = Now::at(100_000_000_000);
        assert_eq!(later.write_all(now).len(), 1);
        let record = explained(&mut later, "web-0", &policy, now).records.remove(0);
        assert_eq!((record.form, record.state, record.count), ("digest", "settled", Some(3)));
    }

    /// Returns a shard with `explain` and digests.
    fn shard() -> Shard {
        let mut settings = Settings::default();
        (settings.explain.enabled, settings.outbox.digest_after) = (true, 1);
        Shard::new(KeySecret(1, 2), settings, 1)
    }

    fn about(object: &str) -> Event {
        let mut event = Event { reason: "R".into(), count: 1, ..Event::default() };
        event.involved_object.name = object.into();
        event
    }

    fn explained(shard: &mut Shard, object: &str, policy: &Policy, now: Now) -> crate::explain::Object {
        let query = Query { name: object.to_owned(), ..Query::default() };
        shard.explain(&query, now, policy, &StormStates::default()).objects.remove(0)
    }

    fn told(shard: &mut Shard, object: &str, policy: &Policy, now: Now) -> String {
        let query = Query { name: object.to_owned(), ..Query::default() };
        let known = shard.explain(&query, now, policy, &StormStates::default());
        crate::explain::Explanation::new(&query, vec![known], crate::explain::Upstream::Up, now.wall).answer.text
    }

    /// Faults: what waits in an object's 33rd record was found nowhere, and twice if that had been forgotten twice.
    #[test]
    fn waiting_occurrences_of_forgotten_records_are_counted() {
        let (mut settings, policy) = (Settings::default(), Policy::default());
        (settings.explain.enabled, settings.outbox.digest_after) = (true, 100);
        let mut shard = Shard::new(KeySecret(1, 2), settings, 1);
        let numbered = |reason: usize, message: usize| {
            let (reason, message) = (format!("R{reason}").into(), format!("m{message}").into());
            Event { reason, message, ..about("web-0") }
        };
        let at = |round: i64| Now::at(round * 10_000_000_000);
        shard.accept(numbered(0, 0), 90, at(1), &policy).unwrap();
        shard.write_all(at(1));
        for (round, number) in (2..8).flat_map(|round| (0..40).map(move |number| (round, number))) {
            shard.accept(numbered(number / 5, number % 5), 1, at(round), &policy).unwrap();
        }
        let parts = explained(&mut shard, "web-0", &policy, at(8)).reasons;
        let waiting = |part: &crate::explain::Part| part.waiting.values().sum::<u64>();
        assert_eq!(parts.iter().map(waiting).collect::<Vec<_>>(), [30; 8]);
        assert_eq!(parts[0].shown, 90);
    }

    /// Faults: the digest's writes and losses were noted at its own object only. Occurrences of others that it shows were
    /// said to wait for its next write, and not to be shown; those that were lost with it were said to be shown.
    #[test]
    fn a_digest_of_several_objects_is_explained_at_each() {
        let spam_key = vec![crate::correlator::Field::SourceComponent];
        let policy = crate::correlator::Settings { burst_size: 1, qps: 1.0, spam_key, ..Default::default() };
        let (mut shard, policy) = (shard(), Policy::from(policy));
        let at = |second: i64| Now::at(second * 1_000_000_000);
        let count = |shard: &mut Shard, object: &str, now| {
            let part = explained(shard, object, &policy, now).reasons.remove(0);
            (part.shown, part.in_summary, part.waiting.values().sum::<u64>(), part.lost.values().sum::<u64>())
        };
        for object in ["first", "a", "b", "c"] {
            shard.accept(about(object), 1, at(1), &policy).unwrap();
            shard.write_all(at(1));
        }
        let objects = ["a", "b", "c"];
        assert_eq!(objects.map(|object| count(&mut shard, object, at(1))), [(0, 0, 1, 0); 3]);
        assert_eq!(shard.unseen(&|_| true, &StormStates::default(), at(1).mono).number, 3);
        assert_eq!(shard.write_all(at(100)).len(), 1, "the digest");
        assert_eq!(objects.map(|object| count(&mut shard, object, at(100))), [(0, 1, 0, 0); 3]);
        assert_eq!(shard.unseen(&|_| true, &StormStates::default(), at(100).mono).number, 0);
        for reason in ["R2", "R3"] {
            let other = Event { reason: reason.into(), ..about("d") };
            shard.accept(other, 1, at(100), &policy).unwrap();
            shard.write_all(at(100));
        }
        let record = |shard: &mut Shard, object: &str| {
            let records = explained(shard, object, &policy, at(100)).records;
            let digest = records.into_iter().find(|record| record.form == "digest").unwrap();
            (digest.state, digest.count, digest.pending)
        };
        assert_eq!(objects.map(|object| count(&mut shard, object, at(100))), [(0, 1, 0, 0); 3]);
        assert_eq!(count(&mut shard, "d", at(100)), (0, 0, 1, 0));
        assert_eq!(record(&mut shard, "b"), ("waiting", Some(3), 2));
        let refusal = Refusal { reason: LostReason::Invalid, status: Box::new(Status::bad_request("no")) };
        while let Some(write) = shard.next_write(at(1000)) {
            shard.settle(write.record, Answer::Refused(refusal.clone()), at(1000));
        }
        assert_eq!(objects.map(|object| count(&mut shard, object, at(1000))), [(0, 1, 0, 0); 3]);
        assert_eq!(count(&mut shard, "d", at(1000)), (0, 0, 0, 1));
        assert!(shard.balance().is_exact());
    }

    /// Fault: what waited for a token under `defer` was said to get it now, and no reason was named.
    #[test]
    fn after_a_reload_to_drop_the_budget_of_what_waits_is_known() {
        let rate =
            |suppression| crate::correlator::Settings { burst_size: 1, qps: 0.01, suppression, ..Default::default() };
        let [defer, drop] = [crate::correlator::Suppression::Defer, crate::correlator::Suppression::Drop]
            .map(|of| Policy::from(rate(of)));
        let (mut shard, now) = (shard(), Now::at(1));
        for _ in 0..2 {
            shard.accept(about("a"), 1, now, &defer).unwrap();
            shard.write_all(now);
        }
        let settings = shard.settings.clone();
        let now = Now::at(9_000_000_001);
        assert_eq!(shard.next_write(now), None, "it has no token");
        shard.reload(settings, &defer, &drop, now);
        let text = told(&mut shard, "a", &drop, now);
        let said =
            "1 of 2 occurrences are shown; 1 occurrence waits for a token. The next token, 00:01:41Z, goes to R.";
        assert_eq!(text, said);
        let budgets = explained(&mut shard, "a", &drop, now).budgets;
        let budgets: Vec<_> = budgets.iter().map(|budget| (budget.suppression, budget.queue.len())).collect();
        assert_eq!(budgets, [("drop", 0), ("defer", 1)]);
    }

    /// Faults: of one occurrence, two were lost, or two were in a digest.
    #[test]
    fn an_account_has_no_occurrences_of_the_time_in_which_explain_was_off() {
        let rate = crate::correlator::Settings { burst_size: 1, qps: 0.01, ..Default::default() };
        let (policy, on) = (Policy::from(rate), shard().settings);
        let mut off = Settings::default();
        off.outbox.digest_after = 10;
        let event = |reason: &str| Event { reason: reason.into(), ..about("a") };
        let begun = || {
            let (mut shard, now) = (Shard::new(KeySecret(1, 2), off.clone(), 1), Now::at(1));
            for reason in ["first", "R"] {
                shard.accept(event(reason), 1, now, &policy).unwrap();
                shard.write_all(now);
            }
            shard.reload(on.clone(), &policy, &policy, now);
            shard.accept(event("R"), 1, now, &policy).unwrap();
            shard
        };
        let counts = |shard: &mut Shard, now| {
            let part = explained(shard, "a", &policy, now).reasons.remove(0);
            (part.received, part.in_summary, part.waiting.values().sum::<u64>(), part.lost.values().sum::<u64>())
        };
        let (mut refused, later) = (begun(), Now::at(1_000_000_000_000));
        let refusal = Refusal { reason: LostReason::Invalid, status: Box::new(Status::bad_request("no")) };
        while let Some(write) = refused.next_write(later) {
            refused.settle(write.record, Answer::Refused(refusal.clone()), later);
        }
        assert_eq!(counts(&mut refused, later), (1, 0, 0, 1));
        let mut folded = begun();
        folded.accept(event("R2"), 1, Now::at(1), &policy).unwrap();
        folded.write_all(Now::at(1));
        assert_eq!(counts(&mut folded, Now::at(1)), (1, 0, 1, 0));
        folded.write_all(later);
        assert_eq!(counts(&mut folded, later), (1, 1, 0, 0));
    }

    /// Fault: it was said to be written within moments, because its budget was not known.
    #[test]
    fn a_restored_record_that_waits_for_a_token_says_so() {
        let policy = Policy::from(crate::correlator::Settings { burst_size: 0, ..Default::default() });
        let [mut earlier, mut later] = [shard(), shard()];
        earlier.keep_journal();
        later.identify("me");
        earlier.identify("me");
        assert!(earlier.accept(about("a"), 3, Now::at(1), &policy).is_ok());
        let (_, entry) = earlier.take_changes().records.pop().unwrap();
        let mut entry = *entry.unwrap();
        entry.later = entry.owed;
        later.restore(entry, Now::at(2), &policy);
        later.write_all(Now::at(2));
        let now = Now::at(9_000_000_000);
        assert_eq!(later.next_write(now), None, "it has no token");
        let said = "3 of 6 occurrences are shown; 3 occurrences wait for a token. No further token comes.";
        assert_eq!(told(&mut later, "a", &policy, now), said);
    }

    /// Fault: the budgets of a recreated object, and of two sources with equal keys, were taken for one.
    #[test]
    fn budgets_of_a_recreated_object_and_of_two_sources_are_not_one() {
        for (spam_key, [first, second]) in [
            (crate::correlator::Settings::default().spam_key, ["a/kubelet", "b/kubelet"]),
            (vec![crate::correlator::Field::InvolvedObjectName], ["a/kubelet", "a/hpa"]),
        ] {
            let rate = crate::correlator::Settings { burst_size: 1, qps: 0.01, spam_key, ..Default::default() };
            let (mut shard, policy) = (shard(), Policy::from(rate));
            for (number, of) in [first, second, second].into_iter().enumerate() {
                let (uid, component) = of.split_once('/').unwrap();
                let mut event = Event { reason: format!("R{number}").into(), ..about("a") };
                (event.involved_object.uid, event.source.component) = (uid.into(), component.into());
                shard.accept(event, 1, Now::at(1), &policy).unwrap();
                shard.write_all(Now::at(1));
            }
            let text = told(&mut shard, "a", &policy, Now::at(1));
            assert!(text.ends_with("The next token, 00:01:41Z, goes to R2."), "{text}");
            let budgets = explained(&mut shard, "a", &policy, Now::at(1)).budgets;
            let spent: Vec<Vec<_>> = budgets.iter().map(|budget| budget.spent_on.values().collect()).collect();
            assert_eq!(spent, [vec![&1], vec![&1, &0]]);
        }
    }

    /// Fault: of a budget's tokens, those that a digest has taken were missing.
    #[test]
    fn the_tokens_of_a_digest_are_among_the_spent_ones() {
        let policy = Policy::from(crate::correlator::Settings { burst_size: 2, qps: 0.5, ..Default::default() });
        let (mut shard, mut writes) = (shard(), 0);
        for (second, reasons) in [(1, 0..12), (3, 0..0), (5, 12..18), (7, 0..0), (9, 0..0)] {
            let now = Now::at(second * 1_000_000_000);
            for number in reasons {
                let event = Event { reason: format!("R{number}").into(), ..about("a") };
                shard.accept(event, 1, now, &policy).unwrap();
                writes += shard.write_all(now).len() as u64;
            }
            writes += shard.write_all(now).len() as u64;
        }
        let budgets = explained(&mut shard, "a", &policy, Now::at(10_000_000_000)).budgets;
        let spent = &budgets[0].spent_on;
        assert!(spent["EventsFolded"] > 0, "{spent:?}");
        assert_eq!((budgets.len(), spent.values().sum::<u64>()), (1, writes), "{spent:?}");
    }

    /// Fault: the next occurrence was said to begin another record because its key had been evicted.
    #[test]
    fn after_a_delete_without_an_answer_no_key_was_evicted() {
        let (policy, now) = (Policy::default(), Now::at(1));
        let [mut earlier, mut later] = [shard(), shard()];
        earlier.keep_journal();
        later.identify("me");
        earlier.identify("me");
        earlier.accept(about("a"), 1, now, &policy).unwrap();
        let stored = earlier.write_all(now).remove(0);
        earlier.accept(about("a"), 1, now, &policy).unwrap();
        let name = &stored.metadata.name;
        let handle = earlier.pause(&stored, name, super::super::Lookup::Name, now, &policy).unwrap();
        earlier.doubt(&handle, now);
        let (_, entry) = earlier.take_changes().records.pop().unwrap();
        later.restore(*entry.unwrap(), now, &policy);
        for shard in [&mut earlier, &mut later] {
            shard.accept(about("a"), 1, now, &policy).unwrap();
            let decisions = explained(shard, "a", &policy, now).decisions;
            assert!(decisions.iter().all(|decision| decision.why != "evicted"), "{decisions:?}");
        }
    }

    fn event(random: &mut fastrand::Rng) -> Event {
        let text = |random: &mut fastrand::Rng, most: usize| "x".repeat(random.usize(..most));
        let mut event = Event { message: text(random, 5000).into(), ..Event::default() };
        event.reason = format!("R{}{}", random.u32(..60), text(random, 200)).into();
        event.metadata.namespace = format!("ns-{}", random.u32(..40)).into();
        event.metadata.name = format!("n-{}", random.u64(..)).into();
        event.involved_object.name = format!("o-{}{}", random.u32(..400), text(random, 300)).into();
        event.involved_object.uid = text(random, 80).into();
        event.source.component = format!("c-{}{}", random.u32(..9), text(random, 200)).into();
        event
    }

    fn answer(request: &Request, random: &mut fastrand::Rng) -> Answer {
        let status = || Box::new(Status::bad_request("no ".repeat(400)));
        match (random.u32(..10), request) {
            (0, _) => Answer::Refused(Refusal { reason: LostReason::Invalid, status: status() }),
            (1, _) => Answer::Retry(Retry::new(Fault::ServerError, Applied::No)),
            (_, Request::Create { event, .. }) => {
                let mut stored = event.clone();
                stored.metadata.resource_version = "1".into();
                Answer::Stored(stored)
            }
            (2, Request::Patch { .. }) => Answer::Missing,
            (_, Request::Patch { name, namespace, patch, .. }) => {
                let mut stored = Event { count: patch.count, ..Event::default() };
                (stored.metadata.name, stored.metadata.namespace) = (name.clone(), namespace.clone());
                stored.metadata.resource_version = "2".into();
                Answer::Stored(Box::new(stored))
            }
            (_, Request::Read { .. } | Request::Delete { .. }) => Answer::Missing,
        }
    }

    /// Occurrences, refusals, all kinds of answers and digests, of sources that move from shard to shard.
    #[test]
    fn memory_stays_within_its_budget_whatever_arrives() {
        let mut settings = Settings::default();
        settings.explain.enabled = true;
        settings.explain.max_bytes = NonZeroUsize::new(MAX).unwrap();
        let policy = Policy::from(crate::correlator::Settings { burst_size: 2, ..Default::default() });
        let (clock, count) = (Clock::manual(1_700_000_000_000_000_000), NonZeroUsize::new(4).unwrap());
        let shards = Shards::new(count, &settings, policy, clock.clone(), KeySecret(1, 2), 1);
        let mut random = fastrand::Rng::with_seed(7);
        let mut largest = 0;
        for round in 0..400 {
            for _ in 0..25 {
                let event = event(&mut random);
                match random.u32(..8) {
                    0 => shards.note_rejection(&event, 3, RejectReason::Invalid, &"why ".repeat(400)),
                    1 => shards.note_refused_change(&event, "PUT", &"why ".repeat(400)),
                    // Refused if there is no room.
                    _ => {
                        let caller = "c".repeat(random.usize(..400));
                        let _full = shards.accept_under(&shards.policy(), event, 1 + random.u32(..3), &caller);
                    }
                }
            }
            clock.advance(Duration::from_secs(random.u64(..200)));
            for index in 0..shards.count() {
                while let Some(write) = shards.with(index, |shard, now| shard.next_write(now)) {
                    let answer = answer(&write.request, &mut random);
                    shards.settle(index, write.record, answer);
                }
            }
            // As each turn of delivery does.
            for index in 0..shards.count() {
                shards.with(index, |shard, _| shard.trim());
            }
            largest = largest.max(shards.explain_bytes());
            assert!(shards.explain_bytes() <= MAX, "{} in round {round}", shards.explain_bytes());
        }
        assert!(largest > MAX / 2, "the budget was not reached: {largest}");
        let groups: usize = shards.groups().iter().map(Vec::len).sum();
        assert!(groups < 3000, "{groups} groups do not fit into a quarter of the budget");
    }
}
