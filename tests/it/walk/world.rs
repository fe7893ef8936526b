//! The world of a walk: the fake API server with its faults, the disks, and the processes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use eventweir::clock::{Clock, Mono};
use eventweir::shard::Sizes;
use http::Method;
use parking_lot::Mutex;
use proptest::prelude::*;

use super::super::support::disk::Disk;
use super::super::support::events::START;
use super::super::support::fake::{FakeApiserver, Fault};
use super::process::{Configuration, Process, Reply, Setup};
use super::reads::Reader;

/// Longest time, in seconds, after which a request without an answer is executed.
pub(super) const LATE: u64 = 60;

/// Returns faults of a read.
pub(super) fn faults_of_reads() -> impl Strategy<Value = Fault> {
    let faults = [Fault::Before(500), Fault::ResetAfter, Fault::GarbledAfter, Fault::TooMany(None), Fault::Hang];
    prop::sample::select(faults.to_vec())
}

/// Room on a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    None,
    Some,
}

pub(super) struct World {
    pub(super) setup: Setup,
    /// The configuration file of each process, which it reads at its start.
    pub(super) files: Vec<Configuration>,
    pub(super) fake: FakeApiserver,
    /// Faults of the next creates and patches.
    pub(super) faults: Arc<Mutex<VecDeque<Fault>>>,
    /// Faults of the next reads.
    pub(super) reads: Arc<Mutex<VecDeque<Fault>>>,
    /// Fault of the next DELETE.
    pub(super) deletes: Arc<Mutex<Option<Fault>>>,
    /// Until when a create without an answer may be executed.
    late: Arc<Mutex<Mono>>,
    pub(super) rng: fastrand::Rng,
    pub(super) disks: Vec<Disk>,
    /// Whether each disk has no room.
    pub(super) full: Vec<bool>,
    pub(super) processes: Vec<Option<Process>>,
    readers: Vec<Reader>,
}

impl World {
    /// Returns a world whose processes are not started.
    pub(super) fn new(setup: Setup, seed: u64) -> Self {
        let fake = FakeApiserver::new(Clock::simulated(START));
        let faults = Arc::new(Mutex::new(VecDeque::new()));
        let reads = Arc::new(Mutex::new(VecDeque::new()));
        let deletes = Arc::new(Mutex::new(None));
        let late = Arc::new(Mutex::new(Mono::default()));
        let (planned, planned_of_deletes, late_create) = (Arc::clone(&faults), Arc::clone(&deletes), Arc::clone(&late));
        let planned_of_reads = Arc::clone(&reads);
        fake.plan(move |seen| {
            if seen.method == Method::GET {
                return planned_of_reads.lock().pop_front().unwrap_or(Fault::None);
            }
            if seen.method == Method::DELETE {
                return planned_of_deletes.lock().take().unwrap_or(Fault::None);
            }
            if seen.method == Method::PUT {
                return Fault::Slow;
            }
            let is_write = [Method::POST, Method::PATCH].contains(&seen.method);
            let fault = if is_write { planned.lock().pop_front() } else { None };
            if let (&Method::POST, Some(Fault::LateAfter(seconds))) = (&seen.method, fault) {
                let mut late = late_create.lock();
                *late = (*late).max(seen.at.after(Duration::from_secs(seconds + 1)));
            }
            // Only a create may find its name taken.
            fault.filter(|fault| *fault != Fault::Taken || seen.method == Method::POST).unwrap_or(Fault::None)
        });
        let replicas = setup.replicas;
        Self {
            files: vec![setup.configuration.clone(); replicas],
            setup,
            fake,
            faults,
            reads,
            deletes,
            late,
            rng: fastrand::Rng::with_seed(seed),
            disks: (0..replicas).map(|_| Disk::default()).collect(),
            full: vec![false; replicas],
            processes: (0..replicas).map(|_| None).collect(),
            readers: Reader::several(),
        }
    }

    /// Whether a create without an answer may still be executed.
    pub(super) fn is_create_late(&self) -> bool {
        self.fake.clock().now().mono < *self.late.lock()
    }

    pub(super) fn start(&mut self, replica: usize) -> &Process {
        let process =
            Process::start(&self.setup, &self.files[replica], &self.fake, &self.disks[replica], &mut self.rng);
        self.processes[replica].insert(process)
    }

    pub(super) fn process(&self, replica: usize) -> &Process {
        self.processes[replica].as_ref().unwrap()
    }

    pub(super) fn process_mut(&mut self, replica: usize) -> &mut Process {
        self.processes[replica].as_mut().unwrap()
    }

    pub(super) fn running(&self) -> impl Iterator<Item = &Process> {
        self.processes.iter().flatten()
    }

    /// Reads the changes of the upstream at a process.
    pub(super) fn watch(&mut self, replica: usize) {
        self.process_mut(replica).watch();
    }

    /// Takes a process that is about to end.
    pub(super) fn take(&mut self, replica: usize) -> Process {
        self.processes[replica].take().unwrap()
    }

    /// Leaves no room on the disk of a process.
    pub(super) fn fill(&mut self, replica: usize) {
        self.full[replica] = self.setup.spool;
        self.disks[replica].set_full(self.setup.spool);
    }

    /// Leaves room on the disk of a process until its spool has everything.
    pub(super) async fn make_room(&mut self, replica: usize) {
        self.disks[replica].set_full(false);
        self.full[replica] = false;
        let Some(spool) = self.process(replica).spool.clone() else { return };
        while !spool.durable().await {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Whether a request was accepted: a full disk refuses it.
    pub(super) fn is_accepted(&self, replica: usize, reply: &Reply, status: u16) -> bool {
        if self.full[replica] && reply.status == 429 {
            return false;
        }
        assert_eq!(reply.status, status, "{}", reply.text);
        assert!(!reply.is_warned || self.full[replica], "not durable: {}", reply.text);
        true
    }

    /// Kills a process, and its disk keeps what was synchronized.
    pub(super) async fn kill(&mut self, replica: usize) {
        let process = self.take(replica);
        self.disks[replica].crash(&mut self.rng);
        process.kill().await;
    }

    /// Checks that the numbers of each process agree.
    pub(super) async fn check_numbers(&self) {
        for process in self.running() {
            process.check_numbers().await;
        }
    }

    /// Checks that each process explains every occurrence that it has received, as its tap does.
    pub(super) async fn check_explained(&self) {
        for process in self.running() {
            process.check_tap();
            for object in ["web-0", "web-1"] {
                process.explained_as_shown(object).await;
            }
        }
    }

    /// Checks that 30 hours later the processes keep nothing but what they may know for long, at most up to limits. The
    /// slowest budgets are full after 28 hours.
    pub(super) async fn check_forgotten(&self) {
        self.suspend_full_disks();
        tokio::time::sleep(Duration::from_hours(30)).await;
        for process in self.running() {
            let sizes = process.shards.sizes();
            let Sizes { sources, tracked_keys, evicted_keys, folded, lines, .. } = sizes;
            let kept = Sizes { sources, tracked_keys, evicted_keys, folded, lines, ..Sizes::default() };
            assert_eq!(sizes, kept);
        }
    }

    /// Checks what clients list and watch at any process.
    pub(super) async fn check_reads(&mut self) {
        let mut readers = std::mem::take(&mut self.readers);
        let processes: Vec<_> = self.running().collect();
        let reading = async {
            for (reader, process) in readers.iter_mut().zip(processes.into_iter().cycle()) {
                reader.read(process, || self.fake.all()).await;
            }
        };
        self.undisturbed(reading).await;
        self.readers = readers;
    }

    /// Looks while the upstream answers reads at once and without faults, so that nothing else happens meanwhile.
    pub(super) async fn undisturbed<T>(&self, look: impl Future<Output = T>) -> T {
        let condition = self.fake.set_condition((true, Duration::ZERO));
        let reads = std::mem::take(&mut *self.reads.lock());
        let seen = look.await;
        self.fake.set_condition(condition);
        *self.reads.lock() = reads;
        seen
    }

    /// Ends all faults that were planned.
    pub(super) fn end_faults(&self) {
        self.fake.set_up(true);
        self.faults.lock().clear();
        self.reads.lock().clear();
    }

    /// Ends all faults, until no late request can be executed any more.
    pub(super) async fn calm(&self) {
        self.end_faults();
        tokio::time::sleep(Duration::from_secs(LATE + 5)).await;
    }

    /// Leaves room on all disks for now: trying a full one each second for days takes minutes of a test.
    fn suspend_full_disks(&self) {
        self.disks.iter().for_each(|disk| disk.set_full(false));
    }

    /// Waits until no process owes a write, for so many days at most.
    pub(super) async fn rest(&self, days: u64) {
        let resting = async {
            let (mut waited, mut pause) = (Duration::ZERO, Duration::from_millis(500));
            while self.running().any(|process| process.shards.owe()) {
                for process in self.running() {
                    process.balance();
                }
                if waited > Duration::from_hours(1) {
                    self.suspend_full_disks();
                }
                tokio::time::sleep(pause).await;
                waited += pause;
                pause = (pause * 11 / 10).min(Duration::from_mins(1));
            }
            for (disk, is_full) in self.disks.iter().zip(&self.full) {
                disk.set_full(*is_full);
            }
        };
        let rested = tokio::time::timeout(Duration::from_secs(days * 86_400), resting).await;
        assert!(rested.is_ok(), "a write is still owed after {days} days");
    }
}

/// Runs a walk under tokio's paused time.
pub(super) fn run(walk: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(walk);
}
