//! The spool: persists the outbox's waiting writes on a disk, so that they survive a crash.
//!
//! It has one entry per record that owes a write, in redb. A task commits the changes of all shards together: at once
//! if a client waits for it (`ack: durable`), otherwise shortly after the first change. Changes that cannot be
//! committed stay in memory and are retried (`eventweir_spool_degraded`). No fault of the disk prevents the program
//! from starting, or from accepting and delivering events; but the start waits for a disk that does not answer. Later
//! such a disk counts as unusable: its thread continues and keeps the lock, and the first round that gets the lock
//! reports the late result to the shards. Until then no other changes are taken.
//!
//! Nothing counts twice after a crash: an entry has what its record owed at the last commit, and the tag on the record
//! upstream (`outbox/tag.rs`) shows how much of that has arrived since. A write by which one record replaces another (a
//! digest, a new name) waits for the commit (`outbox/journal.rs`).

mod entry;
mod keeper;
mod medium;
mod metrics;
mod settings;
mod store;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use prometheus::Registry;
use tokio::sync::{Mutex, Notify, OwnedMutexGuard, watch};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

pub use keeper::{Keeper, Opened};
pub use medium::{Bytes, Directory, Medium};
pub use settings::Settings;
pub use store::Error;

use crate::correlator::KeySecret;
use crate::metrics::value;
use crate::outbox::Changes;
use crate::shard::Shards;
use metrics::Metrics;
use settings::COMMIT_INTERVAL;

/// Interval between retries while the spool cannot be used.
const RETRY: Duration = Duration::from_secs(1);

/// Timeout of an operation on the disk; then the changes count as in memory only, until it ends.
const PATIENCE: Duration = Duration::from_secs(2);

/// Timeout of the last commit: of one that runs at the stop, and of the rest.
const LAST: Duration = Duration::from_secs(4);

/// The spool of a running program; clones share it.
#[derive(Debug, Clone)]
pub struct Spool(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    disk: Arc<Mutex<Disk>>,
    metrics: Metrics,
    commit_interval: Duration,
    /// The number of the last round that may have taken changes.
    started: AtomicU64,
    progress: watch::Sender<Progress>,
    /// Notified when a client waits for a commit.
    asked: Notify,
    /// Whether changes wait for at most the default interval.
    hurried: AtomicBool,
    degraded: AtomicBool,
    /// Whether the last failure was that the system has no thread.
    lacks_thread: AtomicBool,
}

/// The state that only one thread uses at a time.
#[derive(Debug)]
struct Disk {
    keeper: Keeper,
    /// The result of opening, which the next round restores: the round that opened the file may have timed out.
    opened: Option<Opened>,
    /// The last commit, unless the shards know its result. The next round reports it if its own round has timed out.
    commit: Option<Commit>,
}

#[derive(Debug)]
struct Commit {
    changes: Vec<Changes>,
    result: Result<Committed, Error>,
}

#[derive(Debug)]
struct Committed {
    had_changes: bool,
    entries: u64,
    bytes: u64,
}

type Locked = OwnedMutexGuard<Disk>;

#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    /// The number of the last round that has ended.
    ended: u64,
    /// Whether all changes were durable then.
    kept: bool,
}

/// A spool at the start of the program, with the content of the file if it could be opened.
#[derive(Debug)]
pub struct Beginning {
    spool: Spool,
    opened: Opened,
    secret: KeySecret,
}

impl Beginning {
    /// Opens the spool of `settings`; `None` without a directory. Registers the metrics in any case.
    pub fn of(settings: &Settings, secret: KeySecret, registry: &Registry) -> Option<Self> {
        let Some(dir) = settings.dir.clone() else {
            // They stay 0, so that alerts on them have data.
            Metrics::new(registry);
            return None;
        };
        Some(Self::new(Arc::new(Directory(dir)), settings.commit_interval, secret, registry))
    }

    /// Opens the spool. One that cannot be used is not an error: it is retried while the program runs.
    pub fn new(medium: Arc<dyn Medium>, commit_interval: Duration, secret: KeySecret, registry: &Registry) -> Self {
        let metrics = Metrics::new(registry);
        let mut keeper = Keeper::new(medium, fastrand::u64(..), secret);
        let opened = keeper.open();
        let secret = keeper.take_secret();
        let spool = Spool(Arc::new(Inner {
            disk: Arc::new(Mutex::new(Disk { keeper, opened: None, commit: None })),
            metrics,
            commit_interval,
            started: AtomicU64::new(0),
            progress: watch::Sender::default(),
            asked: Notify::new(),
            hurried: AtomicBool::new(false),
            degraded: AtomicBool::new(false),
            lacks_thread: AtomicBool::new(false),
        }));
        let opened = opened.inspect_err(|error| spool.degrade(error)).unwrap_or_default();
        Self { spool, opened, secret }
    }

    /// Returns the secret that the shards must hash keys with to find the records of an earlier process.
    pub const fn secret(&self) -> KeySecret {
        self.secret
    }

    /// Restores the entries of an earlier process, and starts to record the changes of the shards.
    #[must_use]
    pub fn restore(self, shards: &Shards) -> Spool {
        shards.keep_journal();
        self.spool.restore(self.opened, shards);
        self.spool
    }
}

impl Spool {
    /// Commits the changes of `shards` until `stop` is cancelled.
    pub async fn run(self, shards: Shards, stop: CancellationToken) {
        // At once: restored entries are only safe after a commit of this process.
        self.round(&shards, PATIENCE).await;
        loop {
            if self.is_degraded() {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(RETRY) => {}
                }
            } else {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = self.0.asked.notified() => {}
                    () = shards.changed() => tokio::select! {
                        () = stop.cancelled() => return,
                        () = self.0.asked.notified() => {}
                        () = tokio::time::sleep(self.delay()) => {}
                    },
                }
            }
            // While the disk hangs, new rounds fail at once.
            let patience = if self.is_degraded() { Duration::ZERO } else { PATIENCE };
            self.round(&shards, patience).await;
        }
    }

    /// Delays commits no longer than by default from now on, because what a drain folds or renames waits for them.
    pub fn hurry(&self) {
        self.0.hurried.store(true, Ordering::Relaxed);
        self.0.asked.notify_one();
    }

    fn delay(&self) -> Duration {
        let is_hurried = self.0.hurried.load(Ordering::Relaxed);
        self.0.commit_interval.min(if is_hurried { COMMIT_INTERVAL } else { Duration::MAX })
    }

    /// Waits until the current state of the shards is durable. False when it is in memory only.
    pub async fn durable(&self) -> bool {
        // The next round begins later, and therefore takes all current changes.
        let round = self.0.started.load(Ordering::SeqCst) + 1;
        let mut progress = self.0.progress.subscribe();
        self.0.asked.notify_one();
        progress.wait_for(|progress| progress.ended >= round).await.is_ok_and(|progress| progress.kept)
    }

    /// Whether waiting writes are in memory only, because the spool cannot be used.
    pub fn is_degraded(&self) -> bool {
        self.0.degraded.load(Ordering::Relaxed)
    }

    /// Runs the last round, then closes the file, unless the disk does not answer. False when waiting writes are in
    /// memory only.
    pub async fn finish(&self, shards: &Shards) -> bool {
        // The second one waits for the first one's commit, or takes what that could not commit.
        let last = async { self.round(shards, PATIENCE).await || self.round(shards, PATIENCE).await };
        let kept = timeout(LAST, last).await.unwrap_or(false);
        // The last round of `run` may be at its end. After a failure, the rounds above have waited already.
        let patience = if kept { PATIENCE } else { Duration::ZERO };
        if let Ok(disk) = timeout(patience, Arc::clone(&self.0.disk).lock_owned()).await {
            let close = |disk: &mut Disk| {
                disk.keeper.close();
                Ok(())
            };
            let _closed = blocking(disk, close).await;
        }
        // No round follows. The shards were closed before the last one, and running changes had time to end.
        self.0.progress.send_replace(Progress { ended: u64::MAX, kept });
        kept
    }

    /// Takes all changes and commits them. False when they are in memory only. Waits for an earlier operation on the
    /// disk for `patience`.
    async fn round(&self, shards: &Shards, patience: Duration) -> bool {
        let disk = timeout(patience, Arc::clone(&self.0.disk).lock_owned()).await;
        if disk.as_ref().is_ok_and(|disk| disk.keeper.is_closed()) {
            return false;
        }
        let round = self.0.started.fetch_add(1, Ordering::SeqCst) + 1;
        let disk = match disk {
            Ok(disk) => self.opened(disk, shards).await,
            // The owner of the lock waits for a thread.
            Err(_) if self.0.lacks_thread.load(Ordering::Relaxed) => {
                on_thread(|| ()).and_then(|_idle| Err(no_answer()))
            }
            Err(_) => Err(no_answer()),
        };
        let kept = match disk {
            Ok(disk) => self.commit(disk, shards).await,
            Err(error) => {
                shards.go_on_unkept();
                Err(error)
            }
        };
        let kept = kept.inspect_err(|error| self.degrade(error)).is_ok();
        // At the stop, a later round may have ended before.
        self.0.progress.send_if_modified(|progress| {
            let is_newest = progress.ended < round;
            if is_newest {
                *progress = Progress { ended: round, kept };
            }
            is_newest
        });
        kept
    }

    /// Opens the file, unless it is open, and restores its entries.
    async fn opened(&self, mut disk: Locked, shards: &Shards) -> Result<Locked, Error> {
        // The round of this commit has timed out, and has counted that as its error.
        let _late = self.settle(&mut disk, shards);
        // What an earlier round has opened too late is restored first.
        if disk.opened.is_none() && !disk.keeper.is_open() {
            let open = |disk: &mut Disk| {
                disk.opened = Some(disk.keeper.open()?);
                Ok(())
            };
            let (back, done) = blocking(disk, open).await?;
            done?;
            disk = back;
        }
        if let Some(opened) = disk.opened.take() {
            self.restore(opened, shards);
        }
        Ok(disk)
    }

    async fn commit(&self, mut disk: Locked, shards: &Shards) -> Result<(), Error> {
        let mut changes = shards.take_changes();
        let held: Vec<_> = changes.iter_mut().map(|changes| std::mem::take(&mut changes.held)).collect();
        disk.commit = Some(Commit { changes, result: Err(Error::Unavailable("its thread panicked".to_owned())) });
        let before = shards.clock().now().mono;
        let commit = |disk: &mut Disk| {
            let Disk { keeper, commit: Some(commit), .. } = disk else { return Ok(()) };
            commit.result = keeper.commit(&commit.changes).map(|had_changes| Committed {
                had_changes,
                entries: keeper.entries(),
                bytes: keeper.bytes(),
            });
            Ok(())
        };
        // The lock is kept until the shards know the result. At the stop another round waits for it, which must take all
        // that this one could not commit.
        let (_disk, committed) = match blocking(disk, commit).await {
            Ok((mut disk, _)) => {
                let committed = self.settle(&mut disk, shards);
                (Some(disk), committed)
            }
            Err(error) => (None, Err(error)),
        };
        // Also after a timeout: what waits for the commit must not wait for longer.
        shards.resume_held(&held);
        // A client may ask after the round that has taken its change.
        if !matches!(committed, Ok(false)) {
            self.0.metrics.committed(shards.clock().now().mono.since(before));
        }
        committed?;
        if self.0.degraded.swap(false, Ordering::Relaxed) {
            self.0.metrics.degraded.set(0);
            tracing::info!("the spool can be used again");
        }
        Ok(())
    }

    /// Reports the result of the last commit to the shards, and returns whether it had changes.
    fn settle(&self, disk: &mut Disk, shards: &Shards) -> Result<bool, Error> {
        let Some(commit) = disk.commit.take() else { return Ok(false) };
        match commit.result {
            Ok(Committed { had_changes, entries, bytes }) => {
                self.0.metrics.entries.set(value(entries));
                self.0.metrics.bytes.set(value(bytes));
                Ok(had_changes)
            }
            Err(error) => {
                shards.change_all();
                Err(error)
            }
        }
    }

    /// Restores the entries of an opened file, and logs and counts its damage.
    fn restore(&self, opened: Opened, shards: &Shards) {
        let Opened { entries, torn, was_empty, is_undone, damaged, has_other_keys } = opened;
        self.0.metrics.torn.inc_by(torn);
        if was_empty {
            self.0.metrics.damaged.inc();
            tracing::error!("the spool's file is empty: what it had is lost, unless it was never finished");
        }
        if is_undone {
            tracing::error!("the spool's last commit was interrupted or is damaged; what only it had is lost");
        }
        if torn > 0 {
            tracing::error!(entries = torn, "entries of the spool are damaged and lost");
        }
        if let Some((damage, file)) = damaged {
            self.0.metrics.damaged.inc();
            tracing::error!(
                damage,
                file,
                records = entries.len(),
                "the spool is damaged; it was set aside, and the intact entries found in it were recovered"
            );
        }
        if entries.is_empty() {
            return;
        }
        let occurrences = entries.iter().map(|entry| entry.occurrences().total()).sum();
        tracing::info!(records = entries.len(), occurrences, "restored the writes of an earlier process");
        self.0.metrics.restored.inc_by(occurrences);
        for entry in entries {
            shards.restore(if has_other_keys { shards.rekeyed(entry) } else { entry });
        }
    }

    /// Continues in memory.
    fn degrade(&self, error: &Error) {
        self.0.lacks_thread.store(matches!(error, Error::NoThread), Ordering::Relaxed);
        self.0.metrics.errors.inc();
        self.0.metrics.degraded.set(1);
        if !self.0.degraded.swap(true, Ordering::Relaxed) {
            tracing::error!(%error, "the spool cannot be used; waiting writes are in memory only until it can");
        }
    }
}

fn no_answer() -> Error {
    Error::Unavailable(format!("the disk has not answered for {PATIENCE:?}"))
}

/// Runs `act` on a thread for blocking calls. After the timeout it continues there, and keeps the lock until it ends.
async fn blocking<T: Send + 'static>(
    disk: Locked,
    act: impl FnOnce(&mut Disk) -> Result<T, Error> + Send + 'static,
) -> Result<(Locked, Result<T, Error>), Error> {
    let lock = Arc::clone(OwnedMutexGuard::mutex(&disk));
    let task = on_thread(move || {
        let mut disk = disk;
        let result = act(&mut disk);
        (disk, result)
    })?;
    match timeout(PATIENCE, task).await {
        Ok(Ok(done)) => Ok(done),
        // It panicked and released the lock.
        Ok(Err(error)) => Ok((lock.lock_owned().await, Err(Error::Unavailable(error.to_string())))),
        Err(_) => Err(no_answer()),
    }
}

/// Runs `act` on a thread for blocking calls. After an error it runs once the system has a thread for a later call.
fn on_thread<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>, Error> {
    // tokio panics without a thread, after it has queued `act`.
    catch_unwind(AssertUnwindSafe(|| spawn_blocking(act))).map_err(|_panic| Error::NoThread)
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io;
    use std::num::NonZeroUsize;
    use std::path::PathBuf;

    use redb::backends::FileBackend;
    use redb::{Builder, Database, DatabaseError, StorageBackend};

    use super::*;
    use crate::clock::Clock;
    use crate::correlator::Policy;
    use crate::event::Event;
    use crate::shard;

    fn begun(medium: Arc<dyn Medium>, registry: &Registry) -> (Shards, Spool) {
        let (secret, settings, clock) = (KeySecret(7, 9), shard::Settings::default(), Clock::manual(0));
        let shards = Shards::new(NonZeroUsize::MIN, &settings, Policy::default(), clock, secret, 1);
        let spool = Beginning::new(medium, Duration::ZERO, secret, registry).restore(&shards);
        (shards, spool)
    }

    #[derive(Debug, Default, PartialEq)]
    enum Fails {
        #[default]
        Never,
        /// Each sync fails.
        Sync,
        /// After each sync the file has been replaced.
        Place,
    }

    /// A disk whose syncs wait for the lock. It has their number, and what fails.
    #[derive(Debug, Clone)]
    struct Slow(PathBuf, Arc<parking_lot::Mutex<(u64, Fails)>>);

    #[derive(Debug)]
    struct Backend(FileBackend, Slow);

    impl StorageBackend for Backend {
        fn len(&self) -> io::Result<u64> {
            self.0.len()
        }
        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            self.0.read(offset, out)
        }
        fn set_len(&self, length: u64) -> io::Result<()> {
            self.0.set_len(length)
        }
        fn sync_data(&self) -> io::Result<()> {
            let mut state = self.1.1.lock();
            state.0 += 1;
            if state.1 == Fails::Sync { Err(io::Error::other("a fault")) } else { self.0.sync_data() }
        }
        fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            self.0.write(offset, data)
        }
    }

    impl Medium for Slow {
        fn open(&self, builder: &mut Builder) -> Result<Database, DatabaseError> {
            let mut options = OpenOptions::new();
            let file = options.read(true).write(true).create(true).truncate(false).open(&self.0)?;
            builder.create_with_backend(Backend(FileBackend::new(file)?, self.clone()))
        }
        fn is_empty(&self) -> bool {
            false
        }
        fn read(&self) -> io::Result<Box<dyn Bytes + '_>> {
            unreachable!("it is not damaged")
        }
        fn read_aside(&self) -> io::Result<Option<Box<dyn Bytes + '_>>> {
            Ok(None)
        }
        fn leave_aside(&self) {}
        fn set_aside(&self) -> io::Result<String> {
            unreachable!("it is not damaged")
        }
        fn identity(&self) -> io::Result<(u64, u64)> {
            let state = self.1.lock();
            Ok((0, if state.1 == Fails::Place { state.0 } else { 0 }))
        }
        fn bytes(&self) -> u64 {
            0
        }
    }

    /// Waits for a future while three seconds of simulated time pass although a thread is busy.
    async fn passing<T>(ends: impl Future<Output = T>) -> T {
        let passes = async {
            for _ in 0..60 {
                tokio::time::advance(Duration::from_millis(50)).await;
            }
            std::future::pending().await
        };
        tokio::select! { biased; result = ends => result, never = passes => never }
    }

    /// Faults: such a commit was never credited. Each round took the same changes again, so that the spool could stay
    /// degraded for as long as the disk was slow, and at the stop everything counted as lost.
    #[tokio::test(start_paused = true)]
    #[expect(clippy::await_holding_lock, reason = "the lock stops only the thread of the disk")]
    async fn a_commit_that_ends_late_counts() {
        let (folder, registry) = (tempfile::tempdir().unwrap(), Registry::new());
        let slow = Slow(folder.path().join("spool.redb"), Arc::default());
        let (shards, spool) = begun(Arc::new(slow.clone()), &registry);
        assert!(spool.round(&shards, PATIENCE).await);
        for fails in [false, true] {
            shards.accept(Event::default(), 1).unwrap();
            let mut state = slow.1.lock();
            assert!(!passing(spool.round(&shards, PATIENCE)).await && spool.is_degraded());
            state.1 = if fails { Fails::Sync } else { Fails::Never };
            drop(state);
            drop(spool.0.disk.lock().await);
            let (before, _) = std::mem::take(&mut *slow.1.lock());
            assert!(before > 0 && spool.round(&shards, Duration::ZERO).await && !spool.is_degraded());
            assert_eq!(slow.1.lock().0 > 0, fails, "only what a late commit has failed to keep is taken again");
        }
        shards.accept(Event::default(), 1).unwrap();
        let state = slow.1.lock();
        let ends = async {
            tokio::time::sleep(PATIENCE + Duration::from_millis(500)).await;
            drop(state);
        };
        let (kept, ()) = passing(async { tokio::join!(spool.finish(&shards), ends) }).await;
        assert!(kept);
        let owed = Keeper::new(Arc::new(slow), 1, KeySecret(1, 2)).open().unwrap().entries;
        assert_eq!(owed.iter().map(|entry| entry.occurrences().total()).collect::<Vec<_>>(), [3]);
    }

    /// Fault: each commit that failed added its records to what was noted for the next one.
    #[tokio::test]
    async fn after_failed_commits_the_next_one_has_what_waits_and_nothing_else() {
        let (folder, registry) = (tempfile::tempdir().unwrap(), Registry::new());
        let slow = Slow(folder.path().join("spool.redb"), Arc::default());
        let (shards, spool) = begun(Arc::new(slow.clone()), &registry);
        for number in 0..10 {
            shards.accept(Event { reason: number.to_string().into(), ..Event::default() }, 1).unwrap();
            slow.1.lock().1 = if number == 0 { Fails::Never } else { Fails::Place };
            assert_eq!(spool.round(&shards, PATIENCE).await, number == 0);
            if number < 9 {
                shards.with(0, |shard, now| assert_eq!(shard.write_all(now).len(), 1));
            }
        }
        slow.1.lock().1 = Fails::Never;
        let noted = shards.take_changes().remove(0).records.len();
        shards.change_all();
        assert!(spool.round(&shards, PATIENCE).await && spool.finish(&shards).await);
        let owed = Keeper::new(Arc::new(slow), 1, KeySecret(1, 2)).open().unwrap().entries;
        let reasons: Vec<_> = owed.iter().map(|entry| &*entry.event.reason).collect();
        assert_eq!((noted, &*reasons), (1, &["9"][..]));
    }

    /// Fault: such a round counted as a commit that took no time.
    #[tokio::test]
    async fn a_round_without_changes_is_no_commit() {
        let (folder, registry) = (tempfile::tempdir().unwrap(), Registry::new());
        let (shards, spool) = begun(Arc::new(Directory(folder.path().to_owned())), &registry);
        let commits = || {
            let families = registry.gather();
            let found = families.iter().find(|family| family.name() == "eventweir_spool_commit_duration_seconds");
            found.unwrap().get_metric()[0].get_histogram().get_sample_count()
        };
        // The first one marks the file.
        for expected in [1, 2] {
            for _ in 0..3 {
                assert!(spool.round(&shards, PATIENCE).await);
                assert_eq!(commits(), expected);
            }
            assert!(shards.accept(Event::default(), 1).is_ok());
        }
    }

    /// Fault: the panic ended the program.
    #[test]
    fn without_a_thread_for_it_the_spool_cannot_be_used() {
        // No thread gets a stack of this size.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().thread_stack_size(1 << 50).build();
        let folder = tempfile::tempdir().unwrap();
        let (shards, spool) = begun(Arc::new(Directory(folder.path().to_owned())), &Registry::new());
        assert!(!runtime.unwrap().block_on(spool.round(&shards, PATIENCE)));
        assert!(spool.is_degraded());
    }
}
