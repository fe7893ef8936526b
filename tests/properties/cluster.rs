//! Processes with exact counts on the records of one store. Each has shards, a read position in the store's changes,
//! and a disk.

use std::collections::BTreeMap;
use std::time::Duration;

use eventweir::clock::{Mono, Now};
use eventweir::correlator::{KeySecret, Policy, Settings};
use eventweir::event::Event;
use eventweir::ledger::Balance;
use eventweir::outbox::{self, Answer, Applied, Fault, Request, Retry, Write};
use eventweir::shard::{self, Listed, Shard};
use eventweir::upstream::store::{self, Store};
use eventweir::upstream::{ListOptions, answer_from_store};

use super::{SECOND, event, policy};

/// The request may or may not have been executed.
pub(crate) const LOST: Answer = Answer::Retry(Retry::new(Fault::Timeout, Applied::Perhaps));

/// The state that all tests with an upstream share.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) processes: Vec<Process>,
    pub(crate) settings: Settings,
    pub(crate) limits: shard::Settings,
    pub(crate) store: Store,
    pub(crate) now: i64,
    pub(crate) admission: Admission,
    /// Number of shards per process.
    shards: usize,
    lives: u32,
}

/// The change that the upstream's admission makes to a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    Nothing,
    /// Changes the message of each created event.
    ChangesMessage,
    /// Removes all annotations of each created or patched event.
    StripsAnnotations,
}

/// A process with one or more shards. The first shard owns the storm records of all.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) shards: Vec<Shard>,
    /// The name that its writes carry.
    pub(crate) writer: String,
    /// The revision up to which it has read the store's changes.
    pub(crate) read_revision: u64,
    /// The spool, by shard and record. It survives a crash.
    pub(crate) disk: Disk,
    /// Answers in flight, with the time of their arrival.
    pub(crate) answers: Vec<(i64, outbox::RecordId, Answer)>,
}

pub(crate) type Disk = BTreeMap<(usize, outbox::RecordId), outbox::Entry>;

impl Cluster {
    pub(crate) fn new(processes: usize, settings: Settings, limits: shard::Settings) -> Self {
        Self::sharded(processes, 1, settings, limits)
    }

    /// As [`new`](Self::new), with this many shards per process.
    pub(crate) fn sharded(processes: usize, shards: usize, settings: Settings, limits: shard::Settings) -> Self {
        let unlimited = store::Settings { ttl: Duration::ZERO, ..store::Settings::default() };
        let store = Store::new(unlimited, 1);
        let now = 1_772_352_000 * SECOND;
        let admission = Admission::Nothing;
        let mut cluster = Self { processes: Vec::new(), settings, limits, store, now, admission, shards, lives: 0 };
        cluster.processes = (0..processes).map(|_| cluster.begin(Disk::new())).collect();
        cluster
    }

    pub(crate) fn now(&self) -> Now {
        Now { wall: self.now, mono: Mono(self.now - 1_772_000_000 * SECOND) }
    }

    /// Starts the next process with the disk of an earlier one.
    pub(crate) fn begin(&mut self, earlier: Disk) -> Process {
        self.lives += 1;
        let first = Shard::new(KeySecret(7, 9), self.limits.clone(), 1);
        let others: Vec<Shard> = (1..self.shards).map(|_| first.another(2)).collect();
        let writer = format!("life-{}", self.lives);
        let (read_revision, disk, answers) = (self.store.revision(), Disk::new(), Vec::new());
        let shards = std::iter::once(first).chain(others).collect();
        let mut process = Process { shards, writer, read_revision, disk, answers };
        for (number, shard) in process.shards.iter_mut().enumerate() {
            shard.identify(&format!("{}.{number}", process.writer));
            shard.keep_journal();
        }
        let policy = policy(self.settings.clone());
        for entry in earlier.into_values() {
            // The shard of a storm record follows from its group, so any shard will do.
            let last = process.shards.len() - 1;
            let shard = if entry.kind == outbox::Kind::Storm { last } else { process.shard_of(&entry.event) };
            process.shards[shard].restore(entry, self.now(), &policy);
        }
        process.commit(self.now());
        process
    }

    pub(crate) fn accept(&mut self, who: usize, event: Event) {
        self.accept_all(who, event, 1);
    }

    /// Accepts this many occurrences of an event.
    pub(crate) fn accept_all(&mut self, who: usize, event: Event, occurrences: u32) {
        let (now, policy) = (self.now(), policy(self.settings.clone()));
        let process = &mut self.processes[who];
        let shard = process.shard_of(&event);
        process.shards[shard].accept(event, occurrences, now, &policy).unwrap();
        process.hand_over(now);
    }

    /// Returns the total that a process has for a client.
    pub(crate) fn counted_under(&mut self, who: usize, event: &Event) -> i64 {
        let (now, policy) = (self.now(), policy(self.settings.clone()));
        self.processes[who].counted_under(event, now, &policy)
    }

    /// Returns the total in the client's line.
    pub(crate) fn line_of(&mut self, who: usize, event: &Event) -> i64 {
        let process = &mut self.processes[who];
        let shard = process.shard_of(event);
        process.shards[shard].line_of(event).unwrap_or(0).into()
    }

    /// Advances the clock by `passed` and returns the first process's next write.
    pub(crate) fn next(&mut self, passed: i64) -> Write {
        self.now += passed;
        let now = self.now();
        self.processes[0].commit(now);
        self.processes[0].next_write(now).unwrap().1
    }

    pub(crate) fn execute(&mut self, request: &Request) -> Answer {
        let now = self.now();
        let answer = match (self.admission, request) {
            (Admission::ChangesMessage, Request::Create { group, event }) => {
                let event = Event { message: format!("[cluster-a] {}", event.message).into(), ..(**event).clone() };
                answer_from_store(&mut self.store, &Request::Create { group: *group, event: Box::new(event) }, now)
            }
            _ => answer_from_store(&mut self.store, request, now),
        };
        let Answer::Stored(stored) = answer else { return answer };
        if self.admission != Admission::StripsAnnotations || matches!(request, Request::Read { .. }) {
            return Answer::Stored(stored);
        }
        // As a webhook does before the event is stored: no reader may see it in between.
        let strip = |event: &mut Event| event.metadata.rare = None;
        let stored = self.store.update(&stored.metadata.namespace, &stored.metadata.name, now, strip).unwrap();
        Answer::Stored(Box::new(stored))
    }

    pub(crate) fn settle(&mut self, who: usize, record: outbox::RecordId, answer: Answer) {
        self.settle_of(who, 0, record, answer);
    }

    /// Passes the answer to a write to its shard.
    pub(crate) fn settle_of(&mut self, who: usize, shard: usize, record: outbox::RecordId, answer: Answer) {
        let now = self.now();
        let process = &mut self.processes[who];
        process.shards[shard].settle(record, answer, now);
        process.hand_over(now);
        assert!(process.balance().is_exact());
    }

    /// Writes until the first process owes nothing.
    pub(crate) fn write_all(&mut self) {
        for _ in 0..200 {
            if !self.processes[0].owes() {
                return;
            }
            self.now += SECOND;
            let now = self.now();
            self.processes[0].commit(now);
            self.write_now(0);
        }
        panic!("the process still owes writes after 200 seconds");
    }

    /// Sends all writes that a process can send now. Returns whether there were any.
    pub(crate) fn write_now(&mut self, who: usize) -> bool {
        let (now, mut is_any) = (self.now(), false);
        while let Some((shard, write)) = self.processes[who].next_write(now) {
            is_any = true;
            let answer = self.execute(&write.request);
            self.settle_of(who, shard, write.record, answer);
        }
        is_any
    }

    pub(crate) fn stored(&mut self) -> Vec<Event> {
        let page = self.store.list(None, &ListOptions::default(), self.now()).unwrap();
        page.items.iter().map(|event| Event::clone(event)).collect()
    }

    /// Returns the number of occurrences that the store shows.
    pub(crate) fn shown(&mut self) -> i32 {
        self.stored().iter().map(|event| event.count).sum()
    }

    /// Makes a process read this many changes of the watch, or list all events if `None`.
    pub(crate) fn read_changes(&mut self, who: usize, number: Option<usize>) {
        let (now, policy) = (self.now(), policy(self.settings.clone()));
        let Some(number) = number else {
            let mut listed = Listed::default();
            let stored = self.stored();
            let process = &mut self.processes[who];
            for event in stored {
                listed.add(&event);
                let shard = process.shard_of(&event);
                process.shards[shard].apply_watch(&event, now, &policy);
            }
            process.shards.iter_mut().for_each(|shard| shard.apply_list(&listed, now));
            process.hand_over(now);
            process.read_revision = self.store.revision();
            return;
        };
        let process = &mut self.processes[who];
        for change in self.store.changes_since(process.read_revision).unwrap().take(number) {
            process.read_revision = change.revision;
            match (&change.before, &change.after) {
                (_, Some(after)) => {
                    let shard = process.shard_of(after);
                    process.shards[shard].apply_watch(after, now, &policy);
                }
                (Some(before), None) => {
                    let mut gone = Event::clone(before);
                    gone.metadata.resource_version = change.revision.to_string().into();
                    let shard = process.shard_of(&gone);
                    process.shards[shard].apply_deletion(&gone, now, &policy);
                }
                (None, None) => unreachable!("a change of nothing"),
            }
            process.hand_over(now);
        }
    }

    /// Crashes a process and starts the next one with its disk.
    pub(crate) fn crash(&mut self, who: usize) {
        let disk = std::mem::take(&mut self.processes[who].disk);
        self.processes[who] = self.begin(disk);
    }
}

impl Process {
    /// Returns the index of the shard for an event's source: `node-0` is in the first. A storm record has no host.
    pub(crate) fn shard_of(&self, event: &Event) -> usize {
        let last = event.host().bytes().last().unwrap_or(b'0');
        usize::from(last) % self.shards.len()
    }

    /// Moves folded records to the first shard, which owns the storm records, as `Shards` does after each change.
    pub(crate) fn hand_over(&mut self, now: Now) {
        let (home, others) = self.shards.split_first_mut().unwrap();
        for other in others {
            other.hand_over(home, now);
        }
    }

    /// Returns the next write of any shard, with the shard's index.
    pub(crate) fn next_write(&mut self, now: Now) -> Option<(usize, Write)> {
        for number in 0..self.shards.len() {
            let write = self.shards[number].next_write(now);
            self.hand_over(now);
            if let Some(write) = write {
                return Some((number, write));
            }
        }
        None
    }

    pub(crate) fn owes(&self) -> bool {
        self.shards.iter().any(Shard::owes)
    }

    pub(crate) fn next_wakeup(&self, now: Mono) -> Option<Mono> {
        self.shards.iter().filter_map(|shard| shard.next_wakeup(now)).min()
    }

    pub(crate) fn drain(&mut self, now: Now) {
        for number in 0..self.shards.len() {
            self.shards[number].drain(now);
            self.hand_over(now);
        }
    }

    /// Returns the sum of all shards' ledgers. Occurrences in transit between shards count as waiting.
    pub(crate) fn balance(&self) -> Balance {
        let mut sum = Balance::default();
        self.shards.iter().for_each(|shard| sum.merge(&shard.balance()));
        sum.settle_moved();
        sum
    }

    pub(crate) fn counted_under(&mut self, event: &Event, now: Now, policy: &Policy) -> i64 {
        let shard = self.shard_of(event);
        self.shards[shard].counted_under(event, &event.metadata.name, now, policy)
    }

    /// Writes the changes of all shards to the disk in one commit.
    pub(crate) fn commit(&mut self, now: Now) {
        let changes: Vec<_> = self.shards.iter_mut().map(Shard::take_changes).collect();
        for (number, (shard, changes)) in self.shards.iter_mut().zip(changes).enumerate() {
            for (id, entry) in changes.records {
                match entry {
                    Some(entry) => self.disk.insert((number, id), *entry),
                    None => self.disk.remove(&(number, id)),
                };
            }
            shard.changes_kept(&changes.held, now);
        }
    }
}

pub(crate) fn plain_event(number: usize, reason: &str, message: &str) -> Event {
    let mut event = event(0, 0, 0, true, 1_772_352_000 * SECOND);
    event.metadata.name = format!("web-0.{number}").into();
    event.involved_object.field_path = format!("spec.containers{{{}}}", number % 2).into();
    (event.reason, event.message) = (reason.into(), message.into());
    event
}
