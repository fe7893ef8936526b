//! Reloaded settings and rules. Waiting records follow them too: a budget or a group whose next event never comes would
//! otherwise keep its old rate and its old times.

use std::borrow::Cow;

use super::budget::{Budget, BudgetId};
use super::record::{Kind, Phase, Record};
use super::{Outbox, STORM_MARK, Settings};
use crate::clock::{Mono, Now};
use crate::correlator::{Correlation, KeySecret, Policy, Rate, RecordId, Suppression};
use crate::event::Event;

impl Outbox {
    /// Applies reloaded settings, and rules instead of those `before`. The API group does not change: a record that was
    /// counted in its series would continue in its count. Nor do repairs, which need a restart in `ingest`.
    pub fn reload(&mut self, settings: &Settings, secret: KeySecret, [before, after]: [&Policy; 2], now: Now) {
        let Settings { group, repair, .. } = self.settings;
        let old = std::mem::replace(&mut self.settings, Settings { group, repair, ..settings.clone() });
        let mut records: Vec<_> = self.records.iter().map(|(id, record)| (record.newest, *id)).collect();
        // Records of one budget may follow rules with different rates. That of the newest occurrence applies.
        records.sort_unstable();
        for (_, id) in records {
            self.shorten_interval(id, &old, now);
            self.recharge(id, secret, [before, after], now);
        }
        if before != after {
            self.budgets.iter_mut().for_each(|(_, budget)| budget.outdate(now.mono));
        }
        let budgets = self.budgets.iter().filter(|(_, budget)| budget.waits_for_token());
        for id in budgets.map(|(id, _)| BudgetId(*id)).collect::<Vec<_>>() {
            self.fold_beyond_limit(id, now);
            self.fold_aged(id, now);
            self.refile(id, now.mono);
        }
        self.refile_groups(now);
        // Each call evicts up to eight.
        for _ in 0..self.budgets.len().div_ceil(8) {
            self.trim_budgets(now.mono);
        }
    }

    /// Brings the next write of a record forward, if the interval since its newest write has become shorter.
    fn shorten_interval(&mut self, id: RecordId, old: &Settings, now: Now) {
        let Some(record) = self.records.get_mut(&id) else { return };
        let shorter = old.interval(record.kind).saturating_sub(self.settings.interval(record.kind));
        if shorter.is_zero() || record.next_write <= now.mono {
            return;
        }
        let shorter = i64::try_from(shorter.as_nanos()).unwrap_or(i64::MAX);
        record.next_write = Mono(record.next_write.0.saturating_sub(shorter));
        if matches!(record.phase, Phase::Settled | Phase::Cooling) {
            self.set_record_timer(id);
        }
    }

    /// Applies changed rules to the budget of a record and to that of its group. A write that was paid or free when it
    /// was accepted stays so, and one that has to pay still has to.
    fn recharge(&mut self, id: RecordId, secret: KeySecret, [before, after]: [&Policy; 2], now: Now) {
        let Some(record) = self.records.get(&id) else { return };
        let (event, kind, source, budget) = (self.sample(record), record.kind, record.source, record.budget);
        if budget == BudgetId::prepaid(source) {
            return;
        }
        let settings = after.select(&event);
        // New events are paid for by the correlator, or are free, and have no group then.
        let is_owed = settings.correlation == Correlation::On && settings.suppression == Suppression::Defer;
        let (rate, group) =
            (Rate { qps: settings.qps, burst: settings.burst_size }, settings.group.filter(|_| is_owed));
        let [was, is] = [before.select(&event), settings].map(|settings| secret.keys(&event, settings).spam);
        let to = if was == is || kind.folds() { budget } else { BudgetId::of_spam_key(source, is) };
        let fills_otherwise = |budget: &Budget| budget.fills_otherwise(rate);
        if to != budget || self.budgets.peek(&budget.0).is_some_and(fills_otherwise) {
            self.charge(id, to, rate, now);
        }
        // It may have folded, and a digest has no group.
        let record = self.records.get(&id).filter(|record| record.kind != Kind::Digest);
        if record.is_some_and(|record| record.changes_group(group)) {
            self.regroup(id, group, now);
        }
    }

    /// Returns an event that the same rules match as what a record counts.
    fn sample<'r>(&self, record: &'r Record) -> Cow<'r, Event> {
        let mut event = Cow::Borrowed(&record.event);
        match record.kind {
            Kind::Plain | Kind::Combined => {}
            Kind::Digest => {
                let digest = self.budgets.peek(&record.budget.0).and_then(Budget::digest);
                if let Some(reason) = digest.and_then(|digest| digest.first_reason()) {
                    event.to_mut().reason = reason.clone();
                }
            }
            Kind::Storm => {
                let annotations = record.event.metadata.rare.as_deref().map(|rare| &rare.annotations);
                if let Some(kind) = annotations.and_then(|annotations| annotations.get(STORM_MARK)) {
                    event.to_mut().involved_object.kind = kind.clone();
                }
            }
        }
        event
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use crate::clock::Now;
    use crate::correlator::{Field, KeySecret, Matches, Pattern, Policy, Rate, Rule, Settings, Suppression};
    use crate::event::Event;
    use crate::outbox::{self, Answer, GroupSettings, Request};
    use crate::shard::{self, Shard};

    const HOUR: Duration = Duration::from_secs(3600);
    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: i64) -> Now {
        Now::at(seconds * 1_000_000_000)
    }

    fn policy(burst_size: u32, qps: f32, group: Option<Rate>) -> Policy {
        Policy::from(Settings { burst_size, qps, group, ..Settings::default() })
    }

    fn settings(outbox: outbox::Settings) -> shard::Settings {
        shard::Settings { outbox, ..shard::Settings::default() }
    }

    fn folding(after: usize, max_age: Duration, fold_after: Duration) -> shard::Settings {
        let groups = GroupSettings { fold_after, ..GroupSettings::default() };
        settings(outbox::Settings {
            digest_after: after,
            digest_max_age: max_age,
            groups,
            ..outbox::Settings::default()
        })
    }

    fn event(object: usize, reason: usize) -> Event {
        let mut event = Event { count: 1, reason: format!("Reason{reason}").into(), ..Event::default() };
        event.metadata.namespace = "shop".into();
        event.involved_object.name = format!("web-{object}").into();
        event
    }

    /// Writes everything that is due. Returns the counts of the requests.
    fn written(shard: &mut Shard, now: Now) -> Vec<i32> {
        shard.write_all(now).iter().map(|stored| stored.count).collect()
    }

    fn report(shard: &mut Shard, events: impl Iterator<Item = Event>, policy: &Policy, seconds: i64) {
        for event in events {
            shard.accept(event, 1, at(seconds), policy).unwrap();
        }
    }

    /// Reports these events at 1 s under `before`, and applies `after` at 2 s. Returns the writes until 1 s,
    /// and those at 3 s.
    fn reloaded(
        events: impl Iterator<Item = Event>,
        before: (&shard::Settings, &Policy),
        after: (&shard::Settings, &Policy),
    ) -> (Vec<i32>, Vec<i32>) {
        let mut shard = Shard::new(KeySecret(1, 2), before.0.clone(), 1);
        report(&mut shard, events, before.1, 1);
        let first = written(&mut shard, at(1));
        shard.reload(after.0.clone(), before.1, after.1, at(2));
        assert!(shard.balance().is_exact());
        (first, written(&mut shard, at(3)))
    }

    fn of_one_object(number: usize) -> impl Iterator<Item = Event> {
        (0..number).map(|reason| event(0, reason))
    }

    fn of_many_objects(number: usize) -> impl Iterator<Item = Event> {
        (0..number).map(|object| event(object, 0))
    }

    /// Fault: what waited for a token kept the old rate until an event of its budget came, without refill for ever.
    #[test]
    fn what_waits_follows_the_rate_of_its_budget() {
        let same = settings(outbox::Settings::default());
        let (none, some) = (policy(2, 0.0, None), policy(2, 1.0, None));
        // Tokens come at the old rate until the reload.
        assert_eq!(reloaded(of_one_object(8), (&same, &none), (&same, &some)), (vec![1; 2], vec![1]));
        assert_eq!(reloaded(of_one_object(8), (&same, &some), (&same, &none)), (vec![1; 2], vec![1]));
        let drop = Settings { suppression: Suppression::Drop, ..(*some.base).clone() };
        let drop = Policy::from(drop);
        assert_eq!(reloaded(of_one_object(8), (&same, &none), (&same, &drop)), (vec![1; 2], vec![1]));
        // A digest is of the rule of its events.
        let matches = Matches { reason: vec![Pattern::Prefix("Reason".into())], ..Matches::default() };
        let ruled = Policy { rules: vec![Rule { matches, settings: Arc::clone(&some.base) }], ..none };
        let (few, empty) = (folding(1, HOUR, HOUR), policy(0, 0.0, None));
        assert_eq!(reloaded(of_one_object(8), (&few, &empty), (&few, &ruled)), (vec![], vec![8]));
    }

    /// Fault: the time since the last token counted at the new rate. So a lower rate took the tokens, and a higher one
    /// filled the budget.
    #[test]
    fn a_budget_keeps_its_tokens() {
        let (same, rates) = (settings(outbox::Settings::default()), [(1.0, 0.01, 8, 0), (0.0, 1.0, 0, 6)]);
        for (suppression, (before, after, at_reload, later)) in
            [Suppression::Defer, Suppression::Drop].into_iter().flat_map(|of| rates.map(|rates| (of, rates)))
        {
            let [before, after] = [before, after]
                .map(|qps| Policy::from(Settings { suppression, ..(*policy(10, qps, None).base).clone() }));
            // Events come at once, or the records have left the outbox when the first ones come.
            for (seconds, expected) in [(9, at_reload), (15, at_reload + later)] {
                let mut shard = Shard::new(KeySecret(1, 2), same.clone(), 1);
                report(&mut shard, of_one_object(10), &before, 1);
                assert_eq!(written(&mut shard, at(1)), [1; 10]);
                // Only budgets without records are left.
                written(&mut shard, at(9));
                shard.reload(same.clone(), &before, &after, at(9));
                report(&mut shard, (10..30).map(|reason| event(0, reason)), &after, seconds);
                assert_eq!(written(&mut shard, at(seconds)).len(), expected, "{suppression:?} {seconds}");
            }
        }
    }

    /// Fault: one event of a rule with a higher rate filled the budget that it shares with others.
    #[test]
    fn rules_that_share_a_budget_share_its_tokens() {
        for suppression in [Suppression::Defer, Suppression::Drop] {
            let base = Settings { suppression, ..(*policy(10, 0.0, None).base).clone() };
            let matches = Matches { reason: vec![Pattern::Exact("Reason99".into())], ..Matches::default() };
            let rules = vec![Rule { matches, settings: Arc::new(Settings { qps: 5.0, ..base.clone() }) }];
            let policy = Policy { rules, ..Policy::from(base) };
            let mut shard = Shard::new(KeySecret(1, 2), settings(outbox::Settings::default()), 1);
            report(&mut shard, of_one_object(10), &policy, 1);
            assert_eq!(written(&mut shard, at(1)), [1; 10]);
            let rare = std::iter::repeat_n(event(0, 99), 2);
            for event in rare.chain((10..20).map(|reason| event(0, reason))) {
                report(&mut shard, std::iter::once(event), &policy, 4);
                assert_eq!(written(&mut shard, at(4)), [0; 0], "{suppression:?}");
            }
        }
    }

    /// Fault: as above, for the tokens of groups.
    #[test]
    fn what_waits_follows_the_rate_of_its_group() {
        let policies = [None, Some(Rate { qps: 0.0, burst: 2 }), Some(Rate { qps: 1.0, burst: 2 })];
        let [none, slow, fast] = policies.map(|group| policy(25, 1.0, group));
        let late = folding(32, HOUR, HOUR);
        let of = |before, after| reloaded(of_many_objects(8), (&late, before), (&late, after));
        // Tokens come at the old rate until the reload.
        assert_eq!(of(&slow, &fast), (vec![1; 2], vec![1]));
        assert_eq!(of(&fast, &slow), (vec![1; 2], vec![1]));
        assert_eq!(of(&slow, &none), (vec![1; 2], vec![1; 6]));
        // A storm record is of the rule of its events.
        let matches = Matches { kind: vec![Pattern::Exact("Pod".into())], ..Matches::default() };
        let ruled = Policy { rules: vec![Rule { matches, settings: Arc::clone(&fast.base) }], ..slow.clone() };
        let pods = of_many_objects(8).map(|mut event| {
            event.involved_object.kind = "Pod".into();
            event
        });
        let soon = folding(32, HOUR, Duration::ZERO);
        assert_eq!(reloaded(pods, (&soon, &slow), (&soon, &ruled)), (vec![1; 2], vec![6]));
    }

    /// Fault: its next writes were paid for by a group of events on namespaces.
    #[test]
    fn a_storm_record_returns_to_its_group() {
        let rate = Rate { qps: 0.0, burst: 2 };
        let (none, some) = (policy(25, 1.0, None), policy(25, 1.0, Some(rate)));
        let free = folding(32, HOUR, Duration::ZERO);
        let groups = GroupSettings { ceiling: Some(rate), ..free.outbox.groups };
        let limited = settings(outbox::Settings { groups, ..free.outbox });
        let mut shard = Shard::new(KeySecret(1, 2), limited.clone(), 1);
        report(&mut shard, of_many_objects(8), &some, 1);
        assert_eq!((written(&mut shard, at(1)), written(&mut shard, at(2))), (vec![1; 2], vec![]));
        shard.reload(limited, &some, &none, at(3));
        // It waits for the ceiling.
        assert_eq!(written(&mut shard, at(3)), [0; 0]);
        shard.reload(free, &none, &some, at(4));
        assert_eq!(written(&mut shard, at(5)), [0; 0]);
    }

    /// Fault: it was moved to its group, whose budget was empty, by its next repeat or by any reload.
    #[test]
    fn a_write_that_an_earlier_process_has_left_waits_for_the_ceiling_only() {
        let one = Rate { qps: 1.0, burst: 1 };
        let groups = GroupSettings { ceiling: Some(one), ..GroupSettings::default() };
        let (same, policy) = (
            settings(outbox::Settings { groups, ..outbox::Settings::default() }),
            policy(25, 1.0, Some(Rate { burst: 0, qps: 0.0 })),
        );
        for is_reload in [false, true] {
            let [mut earlier, mut later] = [(); 2].map(|()| Shard::new(KeySecret(1, 2), same.clone(), 1));
            earlier.keep_journal();
            earlier.identify("a");
            later.identify("b");
            report(&mut earlier, of_many_objects(2), &policy, 1);
            for (_, entry) in earlier.take_changes().records {
                later.restore(*entry.unwrap(), at(1), &policy);
            }
            assert_eq!(written(&mut later, at(1)), [1]);
            match is_reload {
                true => later.reload(same.clone(), &policy, &policy, at(1)),
                false => report(&mut later, of_many_objects(2), &policy, 1),
            }
            assert_eq!(written(&mut later, at(2)).len(), 1, "{is_reload}");
        }
    }

    /// Fault: what came while a write was in flight waited for a token at the rate of the old rules.
    #[test]
    fn what_comes_during_a_write_follows_the_new_rate_of_its_group() {
        let same = settings(outbox::Settings::default());
        let [slow, fast] = [0.0, 1.0].map(|qps| policy(25, 1.0, Some(Rate { qps, burst: 1 })));
        let mut shard = Shard::new(KeySecret(1, 2), same.clone(), 1);
        report(&mut shard, of_one_object(1), &slow, 1);
        let write = shard.next_write(at(1)).unwrap();
        let Request::Create { event, .. } = write.request else { unreachable!("it is new") };
        report(&mut shard, of_one_object(1), &slow, 1);
        shard.reload(same, &slow, &fast, at(2));
        shard.settle(write.record, Answer::Stored(event), at(3));
        // The bucket turns to the new rate when it is next asked for a token.
        assert_eq!((written(&mut shard, at(10)), written(&mut shard, at(11))), (vec![], vec![2]));
    }

    /// Fault: a record that was repeated without a pause kept the budget of the old spam key.
    #[test]
    fn what_is_repeated_moves_to_the_budget_of_a_new_spam_key() {
        let one = Settings { spam_key: vec![Field::SourceComponent], ..(*policy(3, 0.0, None).base).clone() };
        let one = Policy::from(one);
        let (same, each) = (settings(outbox::Settings::default()), policy(3, 0.0, None));
        let mut shard = Shard::new(KeySecret(1, 2), same.clone(), 1);
        report(&mut shard, of_many_objects(4), &each, 1);
        assert_eq!(written(&mut shard, at(1)), [1; 4]);
        shard.reload(same, &each, &one, at(1));
        for (seconds, expected) in [(2, vec![2; 3]), (3, vec![])] {
            report(&mut shard, of_many_objects(4), &one, seconds);
            assert_eq!(written(&mut shard, at(seconds)), expected);
        }
    }

    /// Fault: they applied to budgets and groups whose next event came, and to others at the times of the old settings.
    #[test]
    fn what_waits_folds_as_the_new_settings_say() {
        let late = folding(1000, 24 * HOUR, 24 * HOUR);
        let (own, group) = (policy(2, 0.1, None), policy(25, 0.0, Some(Rate { qps: 0.1, burst: 2 })));
        for after in [folding(1, HOUR, HOUR), folding(1000, SECOND, HOUR)] {
            let mut shard = Shard::new(KeySecret(1, 2), late.clone(), 1);
            report(&mut shard, of_one_object(8), &own, 1);
            assert_eq!(written(&mut shard, at(1)), [1; 2]);
            shard.reload(after, &own, &own, at(2));
            assert_eq!(written(&mut shard, at(12)), [6]);
        }
        let mut shard = Shard::new(KeySecret(1, 2), late, 1);
        report(&mut shard, of_many_objects(8), &group, 1);
        assert_eq!(written(&mut shard, at(1)), [1; 2]);
        shard.reload(folding(1000, HOUR, SECOND), &group, &group, at(2));
        assert_eq!(shard.sizes().records, 3, "the two that were written, and the storm record");
        assert_eq!(written(&mut shard, at(12)), [6]);
        // The storm ends after sixty times the new age.
        assert_eq!((written(&mut shard, at(80)), shard.sizes().groups), (vec![], 0));
    }

    /// Fault: a repeat waited for the interval of the old settings.
    #[test]
    fn a_repeat_waits_for_the_new_interval_since_the_newest_write() {
        let interval =
            |coalesce_interval| settings(outbox::Settings { coalesce_interval, ..outbox::Settings::default() });
        for waits in [true, false] {
            let (policy, mut shard) = (policy(25, 1.0, None), Shard::new(KeySecret(1, 2), interval(HOUR), 1));
            let report = |shard: &mut Shard, seconds| {
                shard.accept(event(0, 0), 1, at(seconds), &policy).unwrap();
                written(shard, at(seconds))
            };
            assert_eq!(report(&mut shard, 1), [1]);
            if waits {
                assert_eq!(report(&mut shard, 2), [0; 0]);
            }
            shard.reload(interval(5 * SECOND), &policy, &policy, at(3));
            if !waits {
                assert_eq!(report(&mut shard, 4), [0; 0]);
            }
            assert_eq!((written(&mut shard, at(5)), written(&mut shard, at(6))), (vec![], vec![2]));
        }
    }
}
