//! Processes that count exactly on the records of one store, each a shard with the news it has heard and the disk it keeps.

use std::collections::BTreeMap;
use std::time::Duration;

use eventweir::clock::{Mono, Now};
use eventweir::correlator::{KeySecret, Settings};
use eventweir::event::Event;
use eventweir::outbox::{self, Answer, Applied, Fault, Request, Retry, Write};
use eventweir::shard::{self, Listed, Shard};
use eventweir::upstream::store::{self, Store};
use eventweir::upstream::{ListOptions, answer_from_store};

use super::{SECOND, event, policy};

/// Nobody knows whether the request was carried out.
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

#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) shard: Shard,
    /// The name that its writes carry.
    pub(crate) writer: String,
    /// The revision that it has heard of.
    pub(crate) heard: u64,
    /// What outlives it.
    pub(crate) disk: BTreeMap<outbox::RecordId, outbox::Entry>,
    /// Answers on their way to it.
    pub(crate) answers: Vec<(i64, outbox::RecordId, Answer)>,
}

impl Cluster {
    pub(crate) fn new(processes: usize, settings: Settings, limits: shard::Settings) -> Self {
        let unlimited = store::Settings { ttl: Duration::ZERO, ..store::Settings::default() };
        let store = Store::new(unlimited, 1);
        let now = 1_772_352_000 * SECOND;
        let admission = Admission::Nothing;
        let mut cluster = Self { processes: Vec::new(), settings, limits, store, now, admission, lives: 0 };
        cluster.processes = (0..processes).map(|_| cluster.begin(BTreeMap::new())).collect();
        cluster
    }

    pub(crate) fn now(&self) -> Now {
        Now { wall: self.now, mono: Mono(self.now - 1_772_000_000 * SECOND) }
    }

    /// The next process on what an earlier one has kept.
    pub(crate) fn begin(&mut self, kept: BTreeMap<outbox::RecordId, outbox::Entry>) -> Process {
        self.lives += 1;
        let mut shard = Shard::new(KeySecret(7, 9), self.limits.clone(), 1);
        let writer = format!("life-{}", self.lives);
        shard.identify(&writer);
        shard.keep_journal();
        let policy = policy(self.settings.clone());
        kept.into_values().for_each(|entry| shard.restore(entry, self.now(), &policy));
        let heard = self.store.revision();
        let mut process = Process { shard, writer, heard, disk: BTreeMap::new(), answers: Vec::new() };
        process.keep(self.now());
        process
    }

    pub(crate) fn accept(&mut self, who: usize, event: Event) {
        let (now, policy) = (self.now(), policy(self.settings.clone()));
        self.processes[who].shard.accept(event, 1, now, &policy).unwrap();
    }

    /// After so much time, what the first process would write.
    pub(crate) fn next(&mut self, passed: i64) -> Write {
        self.now += passed;
        let now = self.now();
        self.processes[0].keep(now);
        self.processes[0].shard.next_write(now).unwrap()
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
        // As a webhook would before it is stored: nobody has seen it in between.
        let strip = |event: &mut Event| {
            event.metadata.rare = None;
            Ok(())
        };
        let stored = self.store.update(&stored.metadata.namespace, &stored.metadata.name, now, strip).unwrap();
        Answer::Stored(Box::new(stored))
    }

    pub(crate) fn settle(&mut self, who: usize, record: outbox::RecordId, answer: Answer) {
        let now = self.now();
        self.processes[who].shard.settle(record, answer, now);
        assert!(self.processes[who].shard.balance().is_exact());
    }

    /// Everything that the first process owes is written.
    pub(crate) fn write_all(&mut self) {
        for _ in 0..200 {
            if !self.processes[0].shard.owes() {
                return;
            }
            self.now += SECOND;
            let now = self.now();
            self.processes[0].keep(now);
            while let Some(write) = self.processes[0].shard.next_write(now) {
                let answer = self.carry_out(&write.request);
                self.settle(0, write.record, answer);
            }
        }
        panic!("delivery does not come to rest");
    }

    pub(crate) fn stored(&mut self) -> Vec<Event> {
        let page = self.store.list(None, &ListOptions::default(), self.now()).unwrap();
        page.items.iter().map(|event| Event::clone(event)).collect()
    }

    /// Occurrences that the store shows.
    pub(crate) fn shown(&mut self) -> i32 {
        self.stored().iter().map(|event| event.count).sum()
    }

    /// A process hears of the next changes, or reads everything that there is.
    pub(crate) fn hear(&mut self, who: usize, number: Option<usize>) {
        let (now, policy) = (self.now(), policy(self.settings.clone()));
        let Some(number) = number else {
            let mut listed = Listed::default();
            for event in self.stored() {
                listed.add(&event);
                self.processes[who].shard.learn(&event, now, &policy);
            }
            self.processes[who].shard.learn_list(&listed, now);
            self.processes[who].heard = self.store.revision();
            return;
        };
        let process = &mut self.processes[who];
        for change in self.store.changes_since(process.heard).unwrap().take(number) {
            process.heard = change.revision;
            match (&change.before, &change.after) {
                (_, Some(after)) => process.shard.learn(after, now, &policy),
                (Some(before), None) => {
                    let mut gone = Event::clone(before);
                    gone.metadata.resource_version = change.revision.to_string().into();
                    process.shard.learn_gone(&gone, now, &policy);
                }
                (None, None) => unreachable!("a change of nothing"),
            }
        }
    }

    /// Ends a process without warning; the next one begins with what was kept.
    pub(crate) fn crash(&mut self, who: usize) {
        let kept = std::mem::take(&mut self.processes[who].disk);
        self.processes[who] = self.begin(kept);
    }
}

impl Process {
    /// What has changed is on the disk.
    pub(crate) fn keep(&mut self, now: Now) {
        let changes = self.shard.take_changes();
        for (id, entry) in changes.records {
            match entry {
                Some(entry) => self.disk.insert(id, *entry),
                None => self.disk.remove(&id),
            };
        }
        self.shard.changes_kept(&changes.held, now);
    }
}

pub(crate) fn plain_event(number: usize, reason: &str, message: &str) -> Event {
    let mut event = event(0, 0, 0, true, 1_772_352_000 * SECOND);
    event.metadata.name = format!("web-0.{number}").into();
    event.involved_object.field_path = format!("spec.containers{{{}}}", number % 2).into();
    (event.reason, event.message) = (reason.into(), message.into());
    event
}
