//! Processes that count exactly on the records of one store, each a shard with the news it has heard and the disk it keeps.

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

/// Whether the request was carried out is unknown.
pub(crate) const LOST: Answer = Answer::Retry(Retry { after: None, applied: Applied::Perhaps, fault: Fault::Timeout });

/// What every test with an upstream shares.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) processes: Vec<Process>,
    pub(crate) settings: Settings,
    pub(crate) limits: shard::Settings,
    pub(crate) store: Store,
    pub(crate) now: i64,
    pub(crate) admission: Admission,
    /// Shards of each process.
    shards: usize,
    lives: u32,
}

/// What the upstream's admission does with what is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    Nothing,
    /// Changes the message of what is created.
    ChangesMessage,
    /// Removes all annotations of what is created or patched.
    StripsAnnotations,
}

/// A process with one shard or several, of which the first has the storm records of all.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) shards: Vec<Shard>,
    /// The name that its writes carry.
    pub(crate) writer: String,
    /// The revision up to which it has read the store's changes.
    pub(crate) heard: u64,
    /// The spool: what outlives the process, by shard and record.
    pub(crate) disk: Disk,
    /// Answers on their way to it.
    pub(crate) answers: Vec<(i64, outbox::RecordId, Answer)>,
}

pub(crate) type Disk = BTreeMap<(usize, outbox::RecordId), outbox::Entry>;

impl Cluster {
    pub(crate) fn new(processes: usize, settings: Settings, limits: shard::Settings) -> Self {
        Self::sharded(processes, 1, settings, limits)
    }

    /// As [`new`](Self::new), where each process has so many shards.
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

    /// The next process on what an earlier one has kept.
    pub(crate) fn begin(&mut self, kept: Disk) -> Process {
        self.lives += 1;
        let first = Shard::new(KeySecret(7, 9), self.limits.clone(), 1);
        let mut others: Vec<Shard> = (1..self.shards).map(|_| first.another(2)).collect();
        others.iter_mut().for_each(Shard::fold_elsewhere);
        let writer = format!("life-{}", self.lives);
        let (heard, disk, answers) = (self.store.revision(), Disk::new(), Vec::new());
        let shards = std::iter::once(first).chain(others).collect();
        let mut process = Process { shards, writer, heard, disk, answers };
        for (number, shard) in process.shards.iter_mut().enumerate() {
            shard.identify(&format!("{}.{number}", process.writer));
            shard.keep_journal();
        }
        let policy = policy(self.settings.clone());
        for entry in kept.into_values() {
            // That of a storm record follows from its group, so it may be any.
            let last = process.shards.len() - 1;
            let shard = if entry.kind == outbox::Kind::Storm { last } else { process.shard_of(&entry.event) };
            process.shards[shard].restore(entry, self.now(), &policy);
        }
        process.keep(self.now());
        process
    }

    pub(crate) fn accept(&mut self, who: usize, event: Event) {
        self.accept_all(who, event, 1);
    }

    /// Accepts so many occurrences of an event.
    pub(crate) fn accept_all(&mut self, who: usize, event: Event, occurrences: u32) {
        let (now, policy) = (self.now(), policy(self.settings.clone()));
        let process = &mut self.processes[who];
        let shard = process.shard_of(&event);
        process.shards[shard].accept(event, occurrences, now, &policy).unwrap();
        process.hand_over(now);
    }

    /// How far a process knows a client to have counted.
    pub(crate) fn counted_under(&mut self, who: usize, event: &Event) -> i64 {
        let (now, policy) = (self.now(), policy(self.settings.clone()));
        self.processes[who].counted_under(event, now, &policy)
    }

    /// The same, as the line of the client says.
    pub(crate) fn line_of(&mut self, who: usize, event: &Event) -> i64 {
        let process = &mut self.processes[who];
        let shard = process.shard_of(event);
        process.shards[shard].line_of(event).unwrap_or(0).into()
    }

    /// After so much time, what the first process would write.
    pub(crate) fn next(&mut self, passed: i64) -> Write {
        self.now += passed;
        let now = self.now();
        self.processes[0].keep(now);
        self.processes[0].next_write(now).unwrap().1
    }

    pub(crate) fn carry_out(&mut self, request: &Request) -> Answer {
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
        // As a webhook would before it is stored: no reader sees it in between.
        let strip = |event: &mut Event| {
            event.metadata.rare = None;
            Ok(())
        };
        let stored = self.store.update(&stored.metadata.namespace, &stored.metadata.name, now, strip).unwrap();
        Answer::Stored(Box::new(stored))
    }

    pub(crate) fn settle(&mut self, who: usize, record: outbox::RecordId, answer: Answer) {
        self.settle_of(who, 0, record, answer);
    }

    /// Hands the answer to a write of this shard.
    pub(crate) fn settle_of(&mut self, who: usize, shard: usize, record: outbox::RecordId, answer: Answer) {
        let now = self.now();
        let process = &mut self.processes[who];
        process.shards[shard].settle(record, answer, now);
        process.hand_over(now);
        assert!(process.balance().is_exact());
    }

    /// Everything that the first process owes is written.
    pub(crate) fn write_all(&mut self) {
        for _ in 0..200 {
            if !self.processes[0].owes() {
                return;
            }
            self.now += SECOND;
            let now = self.now();
            self.processes[0].keep(now);
            self.write_now(0);
        }
        panic!("delivery does not come to rest");
    }

    /// Sends all that a process can send now. Returns whether there was anything.
    pub(crate) fn write_now(&mut self, who: usize) -> bool {
        let (now, mut is_any) = (self.now(), false);
        while let Some((shard, write)) = self.processes[who].next_write(now) {
            is_any = true;
            let answer = self.carry_out(&write.request);
            self.settle_of(who, shard, write.record, answer);
        }
        is_any
    }

    pub(crate) fn stored(&mut self) -> Vec<Event> {
        let page = self.store.list(None, &ListOptions::default(), self.now()).unwrap();
        page.items.iter().map(|event| Event::clone(event)).collect()
    }

    /// Occurrences that the store shows.
    pub(crate) fn shown(&mut self) -> i32 {
        self.stored().iter().map(|event| event.count).sum()
    }

    /// A process reads the next changes, or everything that there is.
    pub(crate) fn hear(&mut self, who: usize, number: Option<usize>) {
        let (now, policy) = (self.now(), policy(self.settings.clone()));
        let Some(number) = number else {
            let mut listed = Listed::default();
            let stored = self.stored();
            let process = &mut self.processes[who];
            for event in stored {
                listed.add(&event);
                let shard = process.shard_of(&event);
                process.shards[shard].learn(&event, now, &policy);
            }
            process.shards.iter_mut().for_each(|shard| shard.learn_list(&listed, now));
            process.hand_over(now);
            process.heard = self.store.revision();
            return;
        };
        let process = &mut self.processes[who];
        for change in self.store.changes_since(process.heard).unwrap().take(number) {
            process.heard = change.revision;
            match (&change.before, &change.after) {
                (_, Some(after)) => {
                    let shard = process.shard_of(after);
                    process.shards[shard].learn(after, now, &policy);
                }
                (Some(before), None) => {
                    let mut gone = Event::clone(before);
                    gone.metadata.resource_version = change.revision.to_string().into();
                    let shard = process.shard_of(&gone);
                    process.shards[shard].learn_gone(&gone, now, &policy);
                }
                (None, None) => unreachable!("a change of nothing"),
            }
            process.hand_over(now);
        }
    }

    /// Ends a process without warning; the next one begins with what was kept.
    pub(crate) fn crash(&mut self, who: usize) {
        let kept = std::mem::take(&mut self.processes[who].disk);
        self.processes[who] = self.begin(kept);
    }
}

impl Process {
    /// The number of the shard of an event's source: `node-0` is in the first. A storm record has no host.
    pub(crate) fn shard_of(&self, event: &Event) -> usize {
        let last = event.host().bytes().last().unwrap_or(b'0');
        usize::from(last) % self.shards.len()
    }

    /// Hands over what folds into the storm records of the first shard, as `Shards` does after each change of a shard.
    pub(crate) fn hand_over(&mut self, now: Now) {
        let (home, others) = self.shards.split_first_mut().unwrap();
        for other in others {
            other.hand_over(home, now);
        }
    }

    /// The next write of any shard, with the shard's number.
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

    /// The ledger of all shards. What has moved between them waits.
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

    /// What has changed is on the disk, of all shards in one instant.
    pub(crate) fn keep(&mut self, now: Now) {
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
