//! Crashes: a process ends at any point, and the next one opens its spool. Occurrences acknowledged as durable show
//! upstream exactly once, and accepted ones at most once.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::Arc;
use std::sync::OnceLock;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use eventweir::clock::Clock;
use eventweir::correlator::{self, KeySecret};
use eventweir::deliver::GateSettings;
use eventweir::deliver::{self, DeliveryStatus};
use eventweir::event::Event;
use eventweir::outbox;
use eventweir::shard::{self, Outcome, Shards};
use eventweir::spool::{Beginning, Directory, Medium, Spool};
use eventweir::upstream::{Embedded, ListOptions, Metrics, Upstream, store};
use futures_util::FutureExt as _;
use prometheus::Registry;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::support::bench::policy;
use super::support::disk::Disk;
use super::support::events::{START, event, plain};
use super::support::fake::{FakeApiserver, Fault};
use super::support::seeds::{Seed, fresh_seeds};

/// State that survives a process.
struct World {
    fake: FakeApiserver,
    disk: Disk,
    rng: fastrand::Rng,
    correlator: correlator::Settings,
    outbox: outbox::Settings,
}

/// One process.
struct Life {
    shards: Shards,
    spool: Spool,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl World {
    fn new(seed: u64) -> Self {
        let fake = FakeApiserver::new(Clock::simulated(START));
        let (correlator, outbox) = (correlator::Settings::default(), outbox::Settings::default());
        Self { fake, disk: Disk::default(), rng: fastrand::Rng::with_seed(seed), correlator, outbox }
    }

    fn begin(&mut self) -> Life {
        let writer = format!("{:x}", self.rng.u64(..));
        self.begin_before(self.fake.upstream(), Some(&writer))
    }

    fn begin_before(&mut self, upstream: Upstream, writer: Option<&str>) -> Life {
        self.begin_on(Arc::new(self.disk.clone()), upstream, writer)
    }

    fn begin_on(&mut self, medium: Arc<dyn Medium>, upstream: Upstream, writer: Option<&str>) -> Life {
        let secret = KeySecret(self.rng.u64(..), self.rng.u64(..));
        let beginning = Beginning::new(medium, Duration::from_millis(10), secret, &Registry::new());
        let settings = shard::Settings { outbox: self.outbox.clone(), ..shard::Settings::default() };
        let count = NonZeroUsize::new(self.rng.usize(1..4)).unwrap();
        let policy = policy(self.correlator.clone());
        let shards = Shards::new(count, &settings, policy, self.fake.clock(), beginning.secret(), self.rng.u64(..));
        if let Some(writer) = writer {
            shards.identify(writer);
        }
        let spool = beginning.restore(&shards);
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        tasks.spawn(spool.clone().run(shards.clone(), stop.clone()));
        let monitor = DeliveryStatus::new(GateSettings::default(), &Registry::new());
        tasks.spawn(deliver::run(shards.clone(), upstream, monitor, stop.clone(), 1));
        Life { shards, spool, stop, tasks }
    }

    /// Ends the process at once.
    async fn crash(&mut self, mut life: Life) {
        self.disk.crash(&mut self.rng);
        life.tasks.abort_all();
        while life.tasks.join_next().await.is_some() {}
    }

    /// Returns the occurrences that the upstream shows, by object.
    fn shown(&self) -> BTreeMap<String, u64> {
        let mut shown = BTreeMap::new();
        for event in self.fake.events().iter().filter(|event| event.source.component != "stranger") {
            *shown.entry(event.involved_object.name.to_string()).or_default() += u64::try_from(event.count).unwrap();
        }
        shown
    }
}

impl Life {
    fn offer(&self, event: Event) {
        self.shards.accept(event, 1).unwrap();
    }

    async fn settle(&self) {
        let resting = async {
            while self.shards.owe() {
                assert!(self.shards.balance().is_exact());
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        };
        let rested = tokio::time::timeout(Duration::from_secs(7 * 86_400), resting).await;
        assert!(rested.is_ok(), "never comes to rest: {:?}", self.shards.balance());
    }

    async fn end(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Writes one event; then two repeats meet `faults` and the process ends. The next process makes these requests, for
/// the `left` occurrences that were not acknowledged.
async fn crash_amid(faults: &[Fault], before_crash: Duration, requests: &[&str], left: u64) {
    let mut world = World::new(1);
    let life = world.begin();
    life.offer(plain());
    life.settle().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    world.fake.fail_next(faults);
    for _ in 0..2 {
        life.offer(plain());
        assert!(life.spool.durable().await);
    }
    tokio::time::sleep(before_crash).await;
    world.crash(life).await;
    world.fake.take_methods();
    let life = world.begin();
    life.settle().await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(world.fake.take_methods(), requests, "{faults:?}");
    assert_eq!((world.fake.shown(), world.fake.events().len()), (3, 1), "{faults:?}");
    assert_eq!(life.shards.balance().ledger.total_written(), left);
    // Repeats count on, under the tag of the new process.
    life.offer(plain());
    life.settle().await;
    // A record without pending occurrences is unknown after a restart.
    let records = if left > 0 { 1 } else { 2 };
    assert_eq!((world.fake.shown(), world.fake.events().len()), (4, records), "{faults:?}");
    life.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_write_whose_fate_was_unknown_at_the_crash_counts_once() {
    let soon = Duration::from_millis(100);
    crash_amid(&[Fault::Hang], soon, &["GET", "PATCH"], 2).await;
    crash_amid(&[Fault::HangAfter], soon, &["GET", "PATCH"], 2).await;
    crash_amid(&[Fault::LateAfter(1)], soon, &["GET", "PATCH"], 2).await;
    // The first one is written and acknowledged; the second one waits for the coalescing interval.
    crash_amid(&[], soon, &["GET", "PATCH"], 1).await;
    // Both are written.
    crash_amid(&[], Duration::from_secs(5), &[], 0).await;
}

/// Fault: the counted part of a client's total was lost with the process if the alias differs from the record's
/// name.
#[tokio::test(start_paused = true)]
async fn a_clients_count_survives_the_process_with_its_occurrences() {
    let mut world = World::new(7);
    let mut life = world.begin();
    life.offer(plain());
    life.settle().await;
    let line = plain();
    let counted = |life: &Life| life.shards.counted_under(&line, &line.metadata.name);
    // The growth of a client's total is counted.
    let tell = async |life: &Life, total: i32, occurrences: u32| {
        life.shards.accept(Event { count: total, ..line.clone() }, occurrences).unwrap();
        assert!(life.spool.durable().await);
        assert_eq!(counted(life), i64::from(total));
    };
    tell(&life, 3, 3).await;
    // No occurrence is written twice: those of a restored record are counted under a separate tag.
    world.fake.set_up(false);
    for total in [5, 7] {
        world.crash(life).await;
        life = world.begin();
        assert_eq!(counted(&life), i64::from(total) - 2, "of the spool");
        tell(&life, total, 2).await;
    }
    world.fake.set_up(true);
    life.settle().await;
    assert_eq!(world.fake.shown(), 8);
    world.crash(life).await;
    // Nothing is pending, so the spool is empty.
    let life = world.begin();
    assert_eq!(counted(&life), 0);
    world.fake.events().iter().for_each(|event| life.shards.apply_watch(event));
    assert_eq!(counted(&life), 7, "of the record");
    // The unwritten part of a total is lost with the process, and its client sends it again.
    life.shards.accept(Event { count: 9, ..line.clone() }, 2).unwrap();
    assert_eq!(counted(&life), 9);
    world.disk = Disk::default();
    world.fake.set_up(false);
    world.crash(life).await;
    world.fake.set_up(true);
    let life = world.begin();
    world.fake.events().iter().for_each(|event| life.shards.apply_watch(event));
    assert_eq!((counted(&life), world.fake.shown()), (7, 8));
    life.end().await;
}

/// Fault: the total of a client that had joined a restored record was lost when the record took another name.
#[tokio::test(start_paused = true)]
async fn a_clients_count_stays_on_a_restored_record_that_takes_another_name() {
    let mut world = World::new(8);
    world.fake.set_up(false);
    let life = world.begin();
    life.offer(plain());
    assert!(life.spool.durable().await);
    world.crash(life).await;
    let life = world.begin();
    let line = plain();
    life.shards.accept(Event { count: 3, ..line.clone() }, 3).unwrap();
    world.fake.set_up(true);
    world.fake.fail_next(&[Fault::Taken]);
    life.settle().await;
    assert_eq!(world.fake.shown(), 4);
    life.end().await;
    let life = world.begin();
    world.fake.events().iter().for_each(|event| life.shards.apply_watch(event));
    assert_eq!(life.shards.counted_under(&line, &line.metadata.name), 3);
    life.end().await;
}

#[tokio::test(start_paused = true)]
async fn the_next_process_writes_unwritten_occurrences() {
    let mut world = World::new(2);
    world.fake.set_up(false);
    let life = world.begin();
    for number in 0..40 {
        life.offer(event("node-1", &format!("web-{}", number % 8), "BackOff", "restarting"));
    }
    assert!(life.spool.durable().await);
    world.crash(life).await;
    world.fake.set_up(true);
    let life = world.begin();
    let waiting = life.shards.balance();
    assert_eq!((waiting.ledger.received(), waiting.total_waiting()), (40, 40));
    // A repeat counts on the waiting record.
    life.offer(event("node-1", "web-0", "BackOff", "restarting"));
    life.settle().await;
    assert_eq!((world.fake.events().len(), world.fake.shown()), (8, 41));
    life.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_is_reported_until_there_is_room() {
    let mut world = World::new(3);
    let life = world.begin();
    life.offer(plain());
    assert!(life.spool.durable().await);
    world.disk.set_full(true);
    world.fake.set_up(false);
    life.offer(plain());
    assert!(!life.spool.durable().await && life.spool.is_degraded());
    world.disk.set_full(false);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!life.spool.is_degraded() && life.spool.durable().await);
    world.crash(life).await;
    world.fake.set_up(true);
    let life = world.begin();
    life.settle().await;
    assert_eq!(world.fake.shown(), 2);
    life.end().await;
}

/// A disk that hangs until the test ends.
struct Hanging(Disk);

impl Hanging {
    fn new(disk: &Disk) -> Self {
        disk.set_hanging(true);
        Self(disk.clone())
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        self.0.set_hanging(false);
    }
}

/// Waits for a future while simulated time passes and a thread is busy. Returns the time that it took.
async fn passing<T>(world: &World, ends: impl Future<Output = T>) -> (T, Duration) {
    let started = world.fake.clock().now().mono;
    let passes = async {
        loop {
            tokio::time::advance(Duration::from_millis(50)).await;
        }
    };
    let result = tokio::select! {
        biased;
        result = ends => result,
        never = passes => never,
    };
    (result, world.fake.clock().now().mono.since(started))
}

/// Fault: the spool did not become degraded, records waiting for a commit were never written, and `durable` waited
/// forever.
#[tokio::test(start_paused = true)]
async fn a_hanging_disk_is_reported_within_seconds_until_it_answers() {
    let mut world = World::new(5);
    let life = world.begin();
    life.offer(plain());
    assert!(life.spool.durable().await);
    // The round that this one has asked for ends before the disk hangs.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let hanging = Hanging::new(&world.disk);
    life.offer(plain());
    let (durable, waited) = passing(&world, life.spool.durable()).await;
    assert!(!durable && life.spool.is_degraded());
    assert!(waited < Duration::from_secs(4), "{waited:?}");
    // A taken name: the next name waits for a commit, and continues without it.
    world.fake.fail_next(&[Fault::Taken]);
    life.offer(event("node-1", "web-1", "BackOff", "restarting"));
    let (_, waited) = passing(&world, life.settle()).await;
    assert!(waited < Duration::from_secs(6), "{waited:?}");
    assert_eq!(world.fake.shown(), 3);
    // Later occurrences are committed once the disk answers.
    world.fake.set_up(false);
    life.offer(plain());
    drop(hanging);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!life.spool.is_degraded() && life.spool.durable().await);
    world.crash(life).await;
    world.fake.set_up(true);
    let life = world.begin();
    life.settle().await;
    assert_eq!(world.fake.shown(), 4);
    life.end().await;
}

/// Fault: the drain waited for the disk forever.
#[tokio::test(start_paused = true)]
async fn a_drain_does_not_wait_for_a_hanging_disk() {
    for is_degraded in [true, false] {
        let mut world = World::new(6);
        world.fake.set_up(false);
        let life = world.begin();
        life.offer(plain());
        assert!(life.spool.durable().await);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let _hanging = Hanging::new(&world.disk);
        life.offer(plain());
        if is_degraded {
            assert!(!passing(&world, life.spool.durable()).await.0);
        }
        let (kept, waited) = passing(&world, life.spool.finish(&life.shards)).await;
        assert!(!kept && waited < Duration::from_secs(5), "{kept} {waited:?}");
        passing(&world, life.end()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn records_lost_by_the_embedded_store_are_created_again() {
    let mut world = World::new(4);
    let embedded = |clock| {
        let metrics = Metrics::new(&Registry::new());
        Upstream::Embedded(Embedded::new(store::Settings::default(), clock, metrics))
    };
    let life = world.begin_before(embedded(world.fake.clock()), None);
    life.offer(plain());
    tokio::time::sleep(Duration::from_millis(500)).await;
    for _ in 0..2 {
        life.offer(plain());
        assert!(life.spool.durable().await);
    }
    world.crash(life).await;
    let upstream = embedded(world.fake.clock());
    let life = world.begin_before(upstream.clone(), None);
    life.settle().await;
    let stored = upstream.list(None, &ListOptions::default()).await.unwrap().items;
    assert_eq!(stored.iter().map(|event| event.count).collect::<Vec<_>>(), [3]);
    life.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_locked_spool_is_opened_when_the_other_process_ends() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = World::new(5);
    let mut begin = |writer| {
        let upstream = world.fake.upstream();
        world.begin_on(Arc::new(Directory(folder.path().to_owned())), upstream, Some(writer))
    };
    let (first, second) = (begin("a"), begin("b"));
    assert!(!first.spool.is_degraded() && second.spool.is_degraded());
    world.fake.set_up(false);
    first.offer(plain());
    assert!(first.spool.durable().await);
    second.offer(event("node-2", "web-1", "Pulled", "pulled"));
    assert!(first.spool.finish(&first.shards).await);
    first.end().await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!second.spool.is_degraded());
    assert_eq!(second.shards.balance().total_waiting(), 2, "its own, and what the first has left");
    world.fake.set_up(true);
    second.settle().await;
    assert_eq!((world.fake.shown(), world.fake.events().len()), (2, 2));
    second.end().await;
}

/// Fault: such a record was restored under keys of another secret. Its client's next total counted as a whole, and a
/// repeat began another record.
#[tokio::test(start_paused = true)]
async fn records_of_a_spool_whose_secret_is_not_in_use_are_found_by_their_events() {
    for is_late in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let mut world = World::new(6);
        let upstream = world.fake.upstream();
        let mut begin =
            |writer| world.begin_on(Arc::new(Directory(folder.path().to_owned())), upstream.clone(), Some(writer));
        let first = begin("a");
        let late = is_late.then(|| begin("b"));
        let mine = plain();
        let total = |count| Event { count, ..mine.clone() };
        first.shards.accept(total(2), 2).unwrap();
        first.settle().await;
        world.fake.set_up(false);
        first.shards.accept(total(5), 3).unwrap();
        assert!(first.spool.finish(&first.shards).await);
        first.end().await;
        let second = late.unwrap_or_else(|| {
            let file = folder.path().join("spool.redb");
            let mut bytes = std::fs::read(&file).unwrap();
            bytes[..64].fill(1);
            std::fs::write(&file, bytes).unwrap();
            world.begin_on(Arc::new(Directory(folder.path().to_owned())), upstream.clone(), Some("b"))
        });
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(second.shards.balance().total_waiting(), 3, "{is_late}");
        assert_eq!(second.shards.counted_under(&mine, &mine.metadata.name), 5, "{is_late}");
        assert_eq!(second.shards.accept(total(6), 1).unwrap().outcome, Outcome::Counted, "{is_late}");
        world.fake.set_up(true);
        second.settle().await;
        assert_eq!((world.fake.shown(), world.fake.events().len()), (6, 1), "{is_late}");
        second.end().await;
    }
}

fn faults(mut rng: fastrand::Rng) -> impl FnMut(&super::support::fake::Seen) -> Fault {
    move |_| match rng.u32(..100) {
        0..5 => Fault::TooMany(None),
        5..10 => Fault::Before(500),
        10..17 => Fault::After(500),
        17..22 => Fault::ResetAfter,
        22..27 => Fault::HangAfter,
        27..30 => Fault::Hang,
        30..35 => Fault::LateAfter(rng.u64(1..60)),
        35..37 => Fault::GarbledAfter,
        37..40 => Fault::Taken,
        _ => Fault::None,
    }
}

/// Many processes one after the other, each ended at a random time. With odd seeds the disk has no faults; with faults
/// a digest continues without the disk, and its records may be restored after a crash.
async fn crashes(seed: u64) {
    let seed = Seed(seed);
    let mut world = World::new(seed.0);
    let disk_holds = seed.0 % 2 == 1;
    // Small budgets let records wait for tokens and fold into digests.
    world.correlator.burst_size = 4;
    world.correlator.qps = 1.0 / 20.0;
    world.outbox.digest_after = 3;
    world.outbox.digest_max_age = Duration::from_secs(30);
    let rng = world.rng.fork();
    world.fake.plan(faults(rng));
    let (mut durable, mut accepted) = (BTreeMap::<String, u64>::new(), BTreeMap::<String, u64>::new());
    for _ in 0..12 {
        let life = world.begin();
        let mut unsure: Vec<String> = Vec::new();
        for _ in 0..world.rng.u32(1..60) {
            let object = format!("web-{}", world.rng.u32(..4));
            let reason = ["BackOff", "Failed", "Pulled", "Killing"][world.rng.usize(..4)];
            let message = format!("message {}", world.rng.u32(..15));
            life.offer(event("node-1", &object, reason, &message));
            *accepted.entry(object.clone()).or_default() += 1;
            unsure.push(object);
            match world.rng.u32(..20) {
                0 => world.fake.set_up(world.rng.u32(..3) > 0),
                1 if !disk_holds => world.disk.fail_in(world.rng.u32(..30)),
                2 => tokio::time::sleep(Duration::from_secs(world.rng.u64(..100))).await,
                3..10 => tokio::time::sleep(Duration::from_millis(world.rng.u64(..700))).await,
                10..15 if life.spool.durable().await => {
                    for object in unsure.drain(..) {
                        *durable.entry(object).or_default() += 1;
                    }
                }
                _ => {}
            }
        }
        assert!(life.shards.balance().is_exact());
        world.crash(life).await;
    }
    world.fake.set_up(true);
    let life = world.begin();
    life.settle().await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    let shown = world.shown();
    for (object, accepted) in accepted {
        let durable = durable.get(&object).copied().unwrap_or(0);
        let shown = shown.get(&object).copied().unwrap_or(0);
        let once = shown <= accepted || !disk_holds;
        assert!(durable <= shown && once, "{object}: {durable} <= {shown} <= {accepted}");
    }
    life.end().await;
}

#[tokio::test(start_paused = true)]
async fn across_many_crashes_nothing_durable_is_lost_and_nothing_counts_twice() {
    for seed in (1..=8).chain(fresh_seeds()) {
        crashes(seed).await;
    }
}

/// Fault: such a client waited until its connection was cut, and then sent its event again.
#[tokio::test(start_paused = true)]
async fn a_client_that_waits_for_the_disk_after_the_last_commit_is_answered() {
    for is_hanging in [false, true] {
        let mut world = World::new(1);
        let life = world.begin();
        life.offer(plain());
        life.shards.close();
        let _hanging = is_hanging.then(|| Hanging::new(&world.disk));
        let finishing = life.spool.finish(&life.shards);
        let kept = if is_hanging { passing(&world, finishing).await.0 } else { finishing.await };
        assert_eq!((kept, life.spool.durable().now_or_never()), (!is_hanging, Some(!is_hanging)));
        world.crash(life).await;
    }
}

/// Notes whether the shards have changes to commit when the next round gets the disk.
struct Looking(Shards, OnceLock<bool>);

impl Wake for Looking {
    fn wake(self: Arc<Self>) {
        self.1.get_or_init(|| self.0.changed().now_or_never().is_some());
    }
}

/// Fault: the occurrences were lost and counted as kept. The last commit could begin before the shards knew that the
/// commit before it had failed.
#[tokio::test(start_paused = true)]
async fn the_last_commit_has_what_the_one_before_it_could_not_commit() {
    let (disk, registry, secret) = (Disk::default(), Registry::new(), KeySecret(1, 2));
    let beginning = Beginning::new(Arc::new(disk.clone()), Duration::ZERO, secret, &registry);
    let policy = policy(correlator::Settings::default());
    let clock = Clock::simulated(START);
    let shards = Shards::new(NonZeroUsize::MIN, &shard::Settings::default(), policy, clock, secret, 1);
    let spool = beginning.restore(&shards);
    shards.accept(plain(), 1).unwrap();
    let hanging = Hanging::new(&disk);
    disk.fail_in(0);
    let mut running = pin!(spool.clone().run(shards.clone(), CancellationToken::new()));
    assert!(running.as_mut().now_or_never().is_none());
    let looking = Arc::new(Looking(shards.clone(), OnceLock::new()));
    let mut finishing = pin!(spool.finish(&shards));
    let waker = Waker::from(Arc::clone(&looking));
    assert!(finishing.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop(hanging);
    let has_changes = poll_fn(|context| {
        assert!(running.as_mut().poll(context).is_pending());
        looking.1.get().map_or(Poll::Pending, |has_changes| Poll::Ready(*has_changes))
    });
    assert!(has_changes.await);
}
