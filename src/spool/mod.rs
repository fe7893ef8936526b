//! The spool: persists the outbox's waiting writes on a disk, so that they survive a crash.
//!
//! It has one entry per record that owes a write, in redb. A task commits the changes of all shards together: at once
//! if a client waits for it (`ack: durable`), otherwise shortly after the first change. Changes that cannot be
//! committed stay in memory and are retried (`eventweir_spool_degraded`). No fault of the disk prevents the program
//! from starting, or from accepting and delivering events. A disk that does not answer counts as unusable: its thread
//! continues and keeps the lock, and the changes are committed again when the lock is free.
//!
//! Nothing counts twice after a crash: an entry has what its record owed at the last commit, and the tag on the record
//! upstream (`outbox/tag.rs`) shows how much of that has arrived since. A write by which one record replaces another (a
//! digest, a new name) waits for the commit (`outbox/journal.rs`).

mod entry;
mod keeper;
mod medium;
mod metrics;
mod store;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use prometheus::Registry;
use tokio::sync::{Mutex, Notify, OwnedMutexGuard, watch};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

pub use keeper::{Keeper, Opened};
pub use medium::{Directory, Medium};
pub use store::Error;

use crate::correlator::KeySecret;
use crate::metrics::value;
use crate::shard::Shards;
use metrics::Metrics;

/// Settings of the spool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The directory of the file; `None` disables the spool.
    pub dir: Option<PathBuf>,
    /// Delay of a commit after a change, if no client waits for it; changes meanwhile share the commit. Default 10 ms.
    pub commit_interval: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { dir: None, commit_interval: Duration::from_millis(10) }
    }
}

/// Interval between retries while the spool cannot be used.
const RETRY: Duration = Duration::from_secs(1);

/// Timeout of an operation on the disk; then the changes count as in memory only.
const PATIENCE: Duration = Duration::from_secs(2);

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
            disk: Arc::new(Mutex::new(Disk { keeper, opened: None })),
            metrics,
            commit_interval,
            started: AtomicU64::new(0),
            progress: watch::Sender::default(),
            asked: Notify::new(),
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
                        () = tokio::time::sleep(self.0.commit_interval) => {}
                    },
                }
            }
            // While the disk hangs, new rounds fail at once.
            let patience = if self.is_degraded() { Duration::ZERO } else { PATIENCE };
            self.round(&shards, patience).await;
        }
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
        let kept = self.round(shards, PATIENCE).await;
        // The last round of `run` may be at its end. After a failure, the round above has waited already.
        let patience = if kept { PATIENCE } else { Duration::ZERO };
        if let Ok(disk) = timeout(patience, Arc::clone(&self.0.disk).lock_owned()).await {
            let close = |disk: &mut Disk| {
                disk.keeper.close();
                Ok(())
            };
            let _closed = blocking(disk, close).await;
        }
        // No round follows. The shards were closed before the last one, so it had everything that a client still waits for.
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

    async fn commit(&self, disk: Locked, shards: &Shards) -> Result<(), Error> {
        let changes = Arc::new(shards.take_changes());
        let taken = Arc::clone(&changes);
        let before = shards.clock().now().mono;
        let commit = move |disk: &mut Disk| {
            let had_changes = disk.keeper.commit(&taken)?;
            Ok((had_changes, disk.keeper.entries(), disk.keeper.bytes()))
        };
        // The lock is kept until the shards know the result. At the stop another round waits for it, which must take all
        // that this one could not commit.
        let (_disk, committed) = match blocking(disk, commit).await {
            Ok((disk, committed)) => (Some(disk), committed),
            Err(error) => (None, Err(error)),
        };
        // A client may ask after the round that has taken its change.
        if !matches!(committed, Ok((false, ..))) {
            self.0.metrics.committed(shards.clock().now().mono.since(before));
        }
        shards.settle_changes(&changes, committed.is_ok());
        let (_, entries, bytes) = committed?;
        self.0.metrics.entries.set(value(entries));
        self.0.metrics.bytes.set(value(bytes));
        if self.0.degraded.swap(false, Ordering::Relaxed) {
            self.0.metrics.degraded.set(0);
            tracing::info!("the spool can be used again");
        }
        Ok(())
    }

    /// Restores the entries of an opened file, and logs and counts its damage.
    fn restore(&self, opened: Opened, shards: &Shards) {
        let Opened { entries, torn, damaged, has_other_keys, is_anew } = opened;
        if is_anew {
            shards.change_all();
        }
        self.0.metrics.torn.inc_by(torn);
        if torn > 0 {
            tracing::error!(entries = torn, "entries of the spool are damaged and lost");
        }
        if let Some((damage, file)) = damaged {
            self.0.metrics.damaged.inc();
            tracing::error!(
                damage,
                file,
                records = entries.len(),
                "the spool is damaged; it was set aside, and its valid entries were recovered"
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
    use std::num::NonZeroUsize;

    use super::*;
    use crate::clock::Clock;
    use crate::correlator::Policy;
    use crate::event::Event;
    use crate::shard;

    /// Fault: such a round counted as a commit that took no time.
    #[tokio::test]
    async fn a_round_without_changes_is_no_commit() {
        let (folder, registry, secret) = (tempfile::tempdir().unwrap(), Registry::new(), KeySecret(7, 9));
        let (settings, clock) = (shard::Settings::default(), Clock::manual(0));
        let shards = Shards::new(NonZeroUsize::MIN, &settings, Policy::default(), clock, secret, 1);
        let medium = Arc::new(Directory(folder.path().to_owned()));
        let spool = Beginning::new(medium, Duration::ZERO, secret, &registry).restore(&shards);
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
        let (folder, secret) = (tempfile::tempdir().unwrap(), KeySecret(7, 9));
        let (settings, clock) = (shard::Settings::default(), Clock::manual(0));
        let shards = Shards::new(NonZeroUsize::MIN, &settings, Policy::default(), clock, secret, 1);
        let medium = Arc::new(Directory(folder.path().to_owned()));
        let spool = Beginning::new(medium, Duration::ZERO, secret, &Registry::new()).restore(&shards);
        assert!(!runtime.unwrap().block_on(spool.round(&shards, PATIENCE)));
        assert!(spool.is_degraded());
    }
}
