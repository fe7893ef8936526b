//! Storms of many objects: writes stay within the groups' budgets, and each accepted occurrence is shown.
#![expect(clippy::unwrap_used, reason = "a test fails on any error")]

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;

use eventweir::clock::Now;
use eventweir::correlator::{KeySecret, Policy, Rate, Settings};
use eventweir::event::Event;
use eventweir::ledger::Balance;
use eventweir::outbox::{self, Answer, GroupSettings, RecordId, Request, STORM_MARK, Write};
use eventweir::shard::{self, Shard};
use eventweir::upstream::ListOptions;
use eventweir::upstream::store::{self, Store};
use proptest::prelude::*;

use super::SECOND;

const CEILING: Rate = Rate { qps: 40.0, burst: 400 };
const GROUP: Rate = Rate { qps: 1.0, burst: 30 };

/// A process with two shards and a store, in simulated time.
struct World {
    shards: Vec<Shard>,
    store: Store,
    policy: Policy,
    now: i64,
    /// The time and group of each write.
    writes: Vec<(i64, String)>,
    accepted: u64,
}

fn event(component: &str, host: &str, namespace: &str, object: &str, reason: &str, message: &str) -> Event {
    let mut event = Event { count: 1, reason: reason.into(), message: message.into(), ..Event::default() };
    event.event_type = if reason.starts_with("Failed") { "Warning" } else { "Normal" }.into();
    (event.source.component, event.source.host) = (component.into(), host.into());
    event.metadata.namespace = namespace.into();
    (event.involved_object.kind, event.involved_object.namespace) = ("Pod".into(), namespace.into());
    event.involved_object.name = object.into();
    event
}

impl World {
    fn new(group: Option<Rate>, groups: GroupSettings) -> Self {
        Self::with(group, outbox::Settings { groups, ..outbox::Settings::default() })
    }

    fn with(group: Option<Rate>, outbox: outbox::Settings) -> Self {
        let first = Shard::new(KeySecret(1, 2), shard::Settings { outbox, ..shard::Settings::default() }, 7);
        let second = first.another(8);
        let mut shards = vec![first, second];
        shards.iter_mut().for_each(|shard| shard.identify("a"));
        let base = Arc::new(Settings { group, ..Settings::default() });
        let policy = Policy { base, rules: Vec::new() };
        let store = Store::new(store::Settings { max_events: NonZeroUsize::MAX, ..store::Settings::default() }, 1);
        Self { shards, store, policy, now: 1_700_000_000 * SECOND, writes: Vec::new(), accepted: 0 }
    }

    fn accept(&mut self, event: Event) {
        assert!(self.try_accept(event), "the outbox has no room");
    }

    /// Accepts an event. Returns whether the outbox had room.
    fn try_accept(&mut self, mut event: Event) -> bool {
        // Clients name their events in this form.
        event.metadata.name = format!("{}.{:x}", event.involved_object.name, self.accepted).into();
        // `Shards` also chooses the shard by the source.
        let shard = event.source.host.len() % self.shards.len();
        let now = Now::at(self.now);
        let has_room = self.shards[shard].accept(event, 1, now, &self.policy).is_ok();
        self.hand_over();
        self.accepted += u64::from(has_room);
        has_room
    }

    /// Moves folded records, as `Shards` does after each change of a shard.
    fn hand_over(&mut self) {
        let now = Now::at(self.now);
        let (home, others) = self.shards.split_first_mut().unwrap();
        for other in others {
            other.hand_over(home, now);
        }
    }

    fn next_write(&mut self, index: usize) -> Option<Write> {
        let write = self.shards[index].next_write(Now::at(self.now));
        self.hand_over();
        write
    }

    /// Advances the clock by a tenth of a second.
    fn tick(&mut self) {
        self.now += SECOND / 10;
        let now = Now::at(self.now);
        for index in 0..self.shards.len() {
            while let Some(write) = self.next_write(index) {
                let group = |event: &Event| format!("{} {}", event.metadata.namespace, event.reason);
                let answer = match write.request {
                    Request::Create { event, .. } => match self.store.create(*event, now) {
                        Ok(stored) => {
                            self.writes.push((self.now, group(&stored)));
                            Answer::Stored(Box::new(stored))
                        }
                        // Combined records that begin at the same instant have the same name.
                        Err(_) => Answer::Exists,
                    },
                    Request::Patch { namespace, name, patch, claim, .. } => {
                        let stored = self.store.update(&namespace, &name, now, |event| {
                            (event.count, event.message) = (patch.count, patch.message.clone());
                            event.last_timestamp = patch.last_timestamp;
                            if let Some(claim) = &claim {
                                let rare = event.metadata.rare.get_or_insert_default();
                                rare.annotations.insert(claim.tag.clone(), claim.value.clone());
                            }
                        });
                        let stored = stored.unwrap();
                        self.writes.push((self.now, group(&stored)));
                        Answer::Stored(Box::new(stored))
                    }
                    Request::Read { namespace, name, .. } => {
                        Answer::Stored(Box::new(self.store.get(&namespace, &name, now).unwrap()))
                    }
                    Request::Delete { .. } => unreachable!("nothing is deleted"),
                };
                self.shards[index].settle(write.record, answer, now);
            }
            assert!(self.shards[index].balance().is_exact());
        }
    }

    fn run_until_idle(&mut self) {
        for _ in 0..100_000 {
            if !self.shards.iter().any(Shard::owes) {
                return;
            }
            self.tick();
        }
        panic!("a shard still owes writes after 10,000 seconds");
    }

    fn stored(&mut self) -> Vec<Event> {
        let page = self.store.list(None, &ListOptions::default(), Now::at(self.now)).unwrap();
        page.items.iter().map(|event| Event::clone(event)).collect()
    }

    fn shown(&mut self) -> u64 {
        self.stored().iter().map(|event| u64::try_from(event.count).unwrap()).sum()
    }

    fn storms(&mut self) -> Vec<Event> {
        let is_storm = |event: &Event| {
            event.metadata.rare.as_deref().is_some_and(|rare| rare.annotations.contains_key(STORM_MARK))
        };
        self.stored().into_iter().filter(is_storm).collect()
    }

    /// Checks that the writes of each group, and all writes, stay within their budgets in any interval.
    fn check_budgets(&self, ceiling: Option<Rate>) {
        let mut groups: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
        for (at, group) in &self.writes {
            groups.entry(group).or_default().push(*at);
        }
        let all: Vec<i64> = self.writes.iter().map(|(at, _)| *at).collect();
        for times in groups.values() {
            within(times, GROUP);
        }
        if let Some(ceiling) = ceiling {
            within(&all, ceiling);
        }
    }
}

/// Checks the writes against a bucket: it is full at the start, and each write takes a token.
fn within(times: &[i64], rate: Rate) {
    let mut tokens = f64::from(rate.burst);
    let mut last = times.first().copied().unwrap_or_default();
    for at in times {
        tokens = (tokens + (at - last) as f64 / SECOND as f64 * f64::from(rate.qps)).min(f64::from(rate.burst));
        tokens -= 1.0;
        last = *at;
        assert!(tokens > -0.01, "{tokens} tokens");
    }
}

fn groups() -> GroupSettings {
    GroupSettings { ceiling: Some(CEILING), ..GroupSettings::default() }
}

/// 500 pods that cannot be scheduled, reported every minute for half an hour. client-go's correlator writes all 15,000.
#[test]
fn pods_that_cannot_be_scheduled_cost_a_tenth() {
    let mut world = World::new(Some(GROUP), groups());
    for minute in 0..30 {
        for tenth in 0..600 {
            if tenth < 500 {
                let message = format!("0/{} nodes are available", 99 + minute % 3);
                world.accept(event(
                    "default-scheduler",
                    "",
                    "shop",
                    &format!("job-{tenth}"),
                    "FailedScheduling",
                    &message,
                ));
            }
            world.tick();
            if minute == 0 && tenth == 150 {
                assert!(!world.stored().is_empty(), "no Warning event appears within 15 s");
            }
        }
    }
    let writes = world.writes.len();
    assert!(writes <= 1_500, "{writes} writes");
    let behind = world.now;
    world.run_until_idle();
    assert!(world.now - behind <= 60 * SECOND, "{} s behind", (world.now - behind) / SECOND);
    assert_eq!(world.shown(), world.accepted);
    let storms = world.storms();
    assert_eq!(storms.len(), 1, "{storms:?}");
    assert!(storms[0].message.contains("(Pod) from"), "{}", storms[0].message);
    assert_eq!((storms[0].involved_object.kind.as_str(), storms[0].reason.as_str()), ("Namespace", "FailedScheduling"));
    world.check_budgets(Some(CEILING));
}

/// Tens of thousands of objects with one event per reason, from many nodes.
#[test]
fn pods_created_and_deleted_by_thousands_cost_a_tenth() {
    let mut world = World::new(Some(GROUP), groups());
    let reasons = ["Scheduled", "Pulled", "Created"];
    for tenth in 0..600 {
        for number in 0..16 {
            let pod = tenth * 16 + number;
            let (host, namespace) = (format!("node-{}", pod % 500), format!("team-{}", pod % 40));
            for reason in reasons {
                world.accept(event("kubelet", &host, &namespace, &format!("pod-{pod}"), reason, "m"));
            }
        }
        world.tick();
    }
    let (writes, accepted) = (world.writes.len(), world.accepted);
    assert!(writes as u64 * 9 <= accepted, "{writes} of {accepted}");
    world.run_until_idle();
    assert_eq!(world.shown(), accepted);
    world.check_budgets(Some(CEILING));
}

/// 500 objects of one group in a namespace, reported by sources of both shards.
fn storm(world: &mut World, reason: &str) {
    for number in 0..500 {
        let host = ["n", "nn"][number % 2];
        world.accept(event("kubelet", host, "shop", &format!("job-{number}"), reason, "m"));
    }
}

fn wait(world: &mut World, seconds: usize) {
    (0..10 * seconds).for_each(|_| world.tick());
}

#[test]
fn a_group_has_one_storm_record_whatever_the_shard() {
    let mut world = World::new(Some(GROUP), groups());
    storm(&mut world, "Pulled");
    wait(&mut world, 25);
    let storms = world.storms();
    assert_eq!(storms.len(), 1, "{storms:?}");
    assert!(storms[0].message.contains("from 2 reporters"), "{}", storms[0].message);
    world.run_until_idle();
    assert_eq!(world.shown(), world.accepted);
    let balances = world.shards.iter().map(Shard::balance);
    let mut sum = Balance::default();
    balances.for_each(|balance| sum.merge(&balance));
    sum.settle_moved();
    assert!(sum.is_exact() && sum.total_waiting() == 0, "{sum:?}");
    assert_eq!(sum.ledger.received(), world.accepted);
}

/// At each commit, disk and upstream together have all occurrences, although records of one shard fold in another.
#[test]
fn a_spool_has_each_folded_occurrence_once() {
    let mut world = World::new(Some(GROUP), groups());
    world.shards.iter_mut().for_each(Shard::keep_journal);
    let mut disk: BTreeMap<(usize, RecordId), u64> = BTreeMap::new();
    for tenth in 0..600 {
        if tenth % 150 == 0 {
            storm(&mut world, "Failed");
        }
        world.tick();
        // `Shards` also takes the changes of all shards at one instant. A commit takes a tenth of a second.
        let changes: Vec<_> = world.shards.iter_mut().map(Shard::take_changes).collect();
        for (shard, changes) in changes.iter().enumerate() {
            for (id, entry) in &changes.records {
                let occurrences = entry.as_ref().map_or(0, |entry| entry.occurrences().total());
                disk.insert((shard, *id), occurrences);
            }
        }
        assert_eq!(disk.values().sum::<u64>() + world.shown(), world.accepted, "at {tenth}");
        let now = Now::at(world.now);
        for (shard, changes) in world.shards.iter_mut().zip(&changes) {
            shard.changes_kept(&changes.held, now);
        }
    }
    assert!(
        world.storms()[0].count > 400,
        "the storm record is written while records still fold into it: {:?}",
        world.storms()
    );
}

/// A single object that repeats is folded while the storm lasts, and does not prolong it.
#[test]
fn a_folded_object_begins_its_own_record_after_the_storm() {
    let mut world = World::new(Some(GROUP), groups());
    storm(&mut world, "FailedScheduling");
    wait(&mut world, 60);
    let own = |world: &mut World| {
        let stored = world.stored();
        stored.iter().filter(|event| event.involved_object.name == "job-499").map(|event| event.count).sum::<i32>()
    };
    let known = |world: &World, minute: i32| {
        let mut known = world.shards.iter().flat_map(|shard| shard.folded(Now::at(world.now).mono));
        let known = known.find(|event| event.involved_object.name == "job-499").unwrap();
        assert_eq!(known.count, minute + 1, "the folded event has all its occurrences");
    };
    for minute in 1..15 {
        world.accept(event("kubelet", "nn", "shop", "job-499", "FailedScheduling", "m"));
        wait(&mut world, 60);
        if minute < 10 {
            assert_eq!(own(&mut world), 0, "minute {minute}");
            known(&world, minute);
        }
    }
    assert!(own(&mut world) >= 4, "{}", own(&mut world));
    world.run_until_idle();
    assert_eq!(world.shown(), world.accepted);
    assert_eq!(world.storms().len(), 1);
}

/// Without a storm, groups change no write.
#[test]
fn without_a_storm_groups_change_no_write() {
    let hour = |group, groups| {
        let mut world = World::new(group, groups);
        for second in 0..3600 {
            if second % 12 == 0 {
                let pod = format!("web-{}", second / 12);
                for reason in ["Scheduled", "Pulling", "Pulled", "Created", "Started"] {
                    world.accept(event("kubelet", &format!("n{}", second % 7), "shop", &pod, reason, "m"));
                }
            }
            if second % 10 == 0 {
                world.accept(event("kubelet", "n1", "shop", "crash-0", "BackOff", "restarting"));
            }
            if second % 60 == 0 {
                for reason in ["SuccessfulCreate", "SawCompletedJob", "SuccessfulDelete"] {
                    world.accept(event("cronjob-controller", "", "shop", "cron", reason, &second.to_string()));
                }
            }
            (0..10).for_each(|_| world.tick());
        }
        world.writes
    };
    assert_eq!(hour(Some(GROUP), groups()), hour(None, GroupSettings::default()));
}

/// One namespace with a storm, another with an event per minute.
#[test]
fn a_namespace_without_a_storm_is_shown_at_once() {
    let mut world = World::new(Some(GROUP), groups());
    for tenth in 0..3_000 {
        for number in 0..20 {
            let pod = format!("pod-{tenth}-{number}");
            world.accept(event(
                "kubelet",
                &format!("n{number}"),
                &format!("noisy-{}", number % 10),
                &pod,
                "Failed",
                "m",
            ));
        }
        if tenth % 600 == 300 {
            world.accept(event("kubelet", "n0", "quiet", &format!("pod-{tenth}"), "Started", "m"));
        }
        world.tick();
        if tenth % 600 == 320 {
            let quiet = world.stored().iter().filter(|event| event.metadata.namespace == "quiet").count();
            assert_eq!(quiet, tenth / 600 + 1, "the quiet namespace is shown after two seconds");
        }
    }
}

/// Random reasons, namespaces and names at full speed, bounded only by the limits.
#[test]
fn hostile_groups_stay_within_their_limits_and_delay_no_others() {
    let groups = GroupSettings { max_groups: NonZeroUsize::new(200).unwrap(), ..groups() };
    let max_records = NonZeroUsize::new(4_000).unwrap();
    let mut world = World::with(Some(GROUP), outbox::Settings { groups, max_records, ..outbox::Settings::default() });
    let (mut random, mut refused, mut shown) = (fastrand::Rng::with_seed(1), 0, 0);
    for tenth in 0..600 {
        for _ in 0..100 {
            let mut text = |prefix: &str, number: u32| format!("{prefix}-{}", random.u32(..number));
            let (namespace, reason, pod) = (text("ns", 90), text("Failed", 300), text("pod", 1_000_000));
            let hostile = event("kubelet", "h", &namespace, &pod, &reason, "m");
            refused += u64::from(!world.try_accept(hostile));
        }
        if tenth % 50 == 0 {
            world.accept(event("kubelet", "w", "quiet", &format!("pod-{tenth}"), "Started", "m"));
            shown += 1;
        }
        world.tick();
        if tenth % 50 == 20 {
            let quiet = world.stored().iter().filter(|event| event.metadata.namespace == "quiet").count();
            assert_eq!(quiet, shown, "the quiet namespace is shown after two seconds");
        }
        for shard in &world.shards {
            let sizes = shard.sizes();
            assert!(sizes.records <= max_records.get() && sizes.groups <= 2 * (200 + 2), "{sizes:?}");
            assert!(sizes.folded <= 10_000 && sizes.bytes < 64 << 20, "{sizes:?}");
        }
    }
    assert!(refused > 0, "the flood did not reach the limit");
    let waiting: u64 = world.shards.iter().map(|shard| shard.balance().total_waiting()).sum();
    assert_eq!(world.shown() + waiting, world.accepted);
    world.check_budgets(Some(CEILING));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// For any input, budgets hold in each interval, and everything accepted is shown at the end.
    #[test]
    fn budgets_hold_and_everything_is_shown(
        steps in proptest::collection::vec((0..40_usize, 0..3_usize, 0..3_usize, 0..40_u32), 1..400),
        has_ceiling in any::<bool>(),
    ) {
        let ceiling = has_ceiling.then_some(Rate { qps: 2.0, burst: 20 });
        let mut world = World::new(Some(GROUP), GroupSettings { ceiling, ..GroupSettings::default() });
        for (pod, namespace, reason, pause) in steps {
            let reason = ["Pulled", "Failed", "FailedMount"][reason];
            world.accept(event("kubelet", &"n".repeat(pod % 3), &format!("ns-{namespace}"), &format!("p{pod}"), reason, "m"));
            (0..pause / 8).for_each(|_| world.tick());
        }
        world.run_until_idle();
        prop_assert_eq!(world.shown(), world.accepted);
        world.check_budgets(ceiling);
    }
}
