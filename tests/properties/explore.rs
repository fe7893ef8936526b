//! Exhaustive search at small scope over the real `Shard` and `Store`: every order of a few actions, and every fate of each request.
//!
//! A state is reached by replaying a path of actions, so nothing has to be cloned; equal states are recognised by a hash of their
//! `Debug` text. In every state everything comes to rest, and what the store shows is compared with what was accepted. A path that
//! fails is printed. `EVENTWEIR_EXPLORE=2 cargo test --release --test properties explore` goes two actions deeper; with
//! `-- --nocapture` each scope says how many states it has.

use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::num::NonZeroUsize;
use std::time::Duration;

use eventweir::clock::Mono;
use eventweir::correlator::{Naming, Rate, Settings};
use eventweir::event::Event;
use eventweir::outbox::{self, Answer, Applied, Fault, GroupSettings, LostReason, Request, Retry, Write};
use eventweir::shard::{self, Lead};

use super::cluster::{Admission, Cluster, LOST, plain_event};
use super::{SECOND, policy};

/// How long after it was given up a request may still be carried out: less than an apiserver's request timeout.
const LIMBO: i64 = 60 * SECOND;
/// Turns of a second in which everything has to come to rest.
const TURNS: usize = 900;

/// One step of a path. Numbers are of processes, or of requests on their way.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Act {
    /// The next event of the script is accepted.
    Accept,
    /// Two seconds pass.
    Tick,
    Send(usize),
    /// Carried out and answered.
    Done(usize),
    /// Carried out, and the answer is lost.
    DoneUnanswered(usize),
    /// Not answered, and carried out later or never.
    ToLimbo(usize),
    /// Answered with 429.
    Busy(usize),
    /// A request of before is carried out.
    Late(usize),
    /// Somebody sets a label on the newest object.
    Label,
    /// Somebody deletes the newest object.
    Delete,
    /// Somebody counts on the newest object.
    Count,
    /// A client deletes the event of the script's first name.
    ClientDelete(usize),
    /// The same, but the client's answer is lost after it was carried out.
    ClientDeleteUnanswered(usize),
    /// What has changed is on the disk.
    Commit(usize),
    /// The process ends, and the next one begins with what is on its disk.
    Crash(usize),
    Drain(usize),
    List(usize),
    /// One item of a watch.
    Watch(usize),
}

/// What is explored.
struct Scope {
    name: &'static str,
    settings: Settings,
    limits: shard::Settings,
    admission: Admission,
    /// Who reports what.
    script: Vec<(usize, Event)>,
    /// Objects that are there already, made by others.
    strangers: Vec<Event>,
    processes: usize,
    /// What may go wrong: lost answers, others' doings, crashes.
    faults: usize,
    ticks: usize,
    news: usize,
    busy: bool,
    crashes: bool,
    /// Whether what changes is on the disk at once.
    commits_at_once: bool,
    labels: bool,
    deletes: bool,
    counts: bool,
    client_deletes: bool,
    drains: bool,
    lists: bool,
    watches: bool,
    depth: usize,
}

#[derive(Debug)]
struct Flight {
    who: usize,
    write: Write,
}

struct Sim<'s> {
    scope: &'s Scope,
    cluster: Cluster,
    flights: Vec<Flight>,
    limbo: Vec<(i64, Request)>,
    next: usize,
    faults: usize,
    ticks: usize,
    news: usize,
    drained: bool,
    client_deleted: bool,
    /// Whether the client knows that it is gone: a DELETE without an answer beside a create in limbo leaves that open.
    is_gone_for_good: bool,
    /// Occurrences that others have counted.
    others: i32,
    /// The largest value of each tag that any object has had.
    tags: BTreeMap<String, u64>,
    seen_revision: u64,
    /// Occurrences that were on no disk when their process ended.
    unkept: u64,
    /// By process: what it had restored, and what it has accepted since its last commit.
    restored: Vec<u64>,
    since_commit: Vec<u64>,
    /// Occurrences of processes that have ended: lost by their ledgers.
    lost_before: u64,
    is_late: bool,
}

impl<'s> Sim<'s> {
    fn new(scope: &'s Scope) -> Self {
        let mut cluster = Cluster::new(scope.processes, scope.settings.clone(), scope.limits.clone());
        cluster.admission = scope.admission;
        let now = cluster.now();
        for stranger in &scope.strangers {
            cluster.store.create(stranger.clone(), now).unwrap();
        }
        let seen_revision = cluster.store.revision();
        Self {
            scope,
            cluster,
            flights: Vec::new(),
            limbo: Vec::new(),
            next: 0,
            faults: scope.faults,
            ticks: scope.ticks,
            news: scope.news,
            drained: false,
            client_deleted: false,
            is_gone_for_good: true,
            others: scope.strangers.iter().map(|event| event.count).sum(),
            tags: BTreeMap::new(),
            seen_revision,
            unkept: 0,
            restored: vec![0; scope.processes],
            since_commit: vec![0; scope.processes],
            lost_before: 0,
            is_late: false,
        }
    }

    fn after(scope: &'s Scope, path: &[Act]) -> Self {
        let mut sim = Self::new(scope);
        path.iter().for_each(|act| sim.act(*act));
        sim
    }

    fn enabled(&self) -> Vec<Act> {
        let (scope, mut acts) = (self.scope, Vec::new());
        let (is_faulty, has_object) = (self.faults > 0, !self.cluster.store.is_empty());
        let mut when = |condition: bool, act: Act| {
            if condition {
                acts.push(act);
            }
        };
        when(self.next < scope.script.len(), Act::Accept);
        when(self.ticks > 0, Act::Tick);
        for who in 0..scope.processes {
            when(self.flights.iter().filter(|flight| flight.who == who).count() < 2, Act::Send(who));
            when(is_faulty && scope.crashes, Act::Crash(who));
            when(!scope.commits_at_once, Act::Commit(who));
            when(scope.lists && self.news > 0, Act::List(who));
            when(scope.watches && self.news > 0, Act::Watch(who));
        }
        for index in 0..self.flights.len() {
            when(true, Act::Done(index));
            when(is_faulty, Act::DoneUnanswered(index));
            when(is_faulty, Act::ToLimbo(index));
            when(is_faulty && scope.busy, Act::Busy(index));
        }
        for (index, (until, _)) in self.limbo.iter().enumerate() {
            when(*until >= self.cluster.now, Act::Late(index));
        }
        when(is_faulty && scope.labels && has_object, Act::Label);
        when(is_faulty && scope.deletes && has_object, Act::Delete);
        when(is_faulty && scope.counts && has_object, Act::Count);
        let may_delete = scope.client_deletes && !self.client_deleted && self.next > 0;
        when(may_delete, Act::ClientDelete(0));
        when(may_delete && is_faulty, Act::ClientDeleteUnanswered(0));
        when(scope.drains && !self.drained, Act::Drain(0));
        acts
    }

    #[expect(clippy::too_many_lines, reason = "one arm an action")]
    fn act(&mut self, act: Act) {
        match act {
            Act::Accept => {
                let (who, event) = self.scope.script[self.next].clone();
                self.next += 1;
                self.since_commit[who] += 1;
                self.cluster.accept(who, event);
            }
            Act::Tick => {
                self.ticks -= 1;
                self.cluster.now += 2 * SECOND;
            }
            Act::Send(who) => {
                let now = self.cluster.now();
                if let Some(write) = self.cluster.processes[who].shard.next_write(now) {
                    self.flights.push(Flight { who, write });
                }
            }
            Act::Done(index) => {
                let Flight { who, write } = self.flights.remove(index);
                let answer = self.cluster.carry_out(&write.request);
                self.cluster.settle(who, write.record, answer);
            }
            Act::DoneUnanswered(index) => {
                self.faults -= 1;
                let Flight { who, write } = self.flights.remove(index);
                self.cluster.carry_out(&write.request);
                self.cluster.settle(who, write.record, LOST);
            }
            Act::ToLimbo(index) => {
                self.faults -= 1;
                let Flight { who, write } = self.flights.remove(index);
                self.cluster.settle(who, write.record, LOST);
                self.give_up(write.request);
            }
            Act::Busy(index) => {
                self.faults -= 1;
                let Flight { who, write } = self.flights.remove(index);
                let busy = Retry { after: None, applied: Applied::No, fault: Fault::Overloaded };
                self.cluster.settle(who, write.record, Answer::Retry(busy));
            }
            Act::Late(index) => {
                let (_, request) = self.limbo.remove(index);
                self.cluster.carry_out(&request);
            }
            Act::Label | Act::Delete | Act::Count => {
                self.faults -= 1;
                self.interfere(act);
            }
            Act::ClientDelete(who) => self.client_delete(who, true),
            Act::ClientDeleteUnanswered(who) => {
                self.faults -= 1;
                self.client_delete(who, false);
            }
            Act::Commit(who) => self.commit(who),
            Act::Crash(who) => {
                self.faults -= 1;
                self.crash(who);
            }
            Act::Drain(who) => {
                self.drained = true;
                let now = self.cluster.now();
                self.cluster.processes[who].shard.drain(now);
            }
            Act::List(who) => {
                self.news -= 1;
                self.cluster.hear(who, None);
            }
            Act::Watch(who) => {
                self.news -= 1;
                self.cluster.hear(who, Some(1));
            }
        }
        if self.scope.commits_at_once {
            (0..self.scope.processes).for_each(|who| self.commit(who));
        }
        self.note_tags();
    }

    /// Reads cannot change anything, whenever they are carried out.
    fn give_up(&mut self, request: Request) {
        if !matches!(request, Request::Read { .. }) {
            self.limbo.push((self.cluster.now + LIMBO, request));
        }
    }

    fn commit(&mut self, who: usize) {
        let now = self.cluster.now();
        self.cluster.processes[who].keep(now);
        self.since_commit[who] = 0;
    }

    fn crash(&mut self, who: usize) {
        let (mine, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.flights).into_iter().partition(|f| f.who == who);
        self.flights = rest;
        mine.into_iter().for_each(|flight| self.give_up(flight.write.request));
        let balance = self.cluster.processes[who].shard.balance();
        self.lost_before += balance.ledger.total_lost();
        self.unkept += self.since_commit[who].min(balance.total_waiting());
        self.since_commit[who] = 0;
        self.restored[who] = self.cluster.processes[who].disk.values().map(|entry| entry.occurrences().total()).sum();
        self.cluster.crash(who);
    }

    /// What somebody else does to the newest object.
    fn interfere(&mut self, act: Act) {
        let Some(event) = self.cluster.stored().into_iter().max_by_key(|event| event.metadata.resource_version.clone())
        else {
            return;
        };
        let (now, name) = (self.cluster.now(), event.metadata.name);
        match act {
            Act::Delete => drop(self.cluster.store.delete("default", &name, now).unwrap()),
            Act::Count => {
                self.others += 1;
                let count = |event: &mut Event| {
                    event.count += 1;
                    Ok(())
                };
                self.cluster.store.update("default", &name, now, count).unwrap();
            }
            _ => {
                let number = self.faults.to_string();
                let label = |event: &mut Event| {
                    let rare = event.metadata.rare.get_or_insert_default();
                    rare.labels = [("a".into(), number.into())].into();
                    Ok(())
                };
                self.cluster.store.update("default", &name, now, label).unwrap();
            }
        }
    }

    /// As `ingest/delete.rs` does it.
    fn client_delete(&mut self, who: usize, is_answered: bool) {
        self.client_deleted = true;
        self.is_gone_for_good = is_answered || self.limbo.is_empty();
        let (now, policy) = (self.cluster.now(), policy(self.scope.settings.clone()));
        let event = self.scope.script[0].1.clone();
        let shard = &mut self.cluster.processes[who].shard;
        let Some(handle) = shard.hold(&event, &event.metadata.name, Lead::Alias, now, &policy) else { return };
        // A request on its way is waited for, and this one comes after it.
        if shard.is_in_flight(&handle) {
            shard.release(&handle, now);
            self.client_deleted = false;
            return;
        }
        let _gone = self.cluster.store.delete("default", &handle.name, now);
        let shard = &mut self.cluster.processes[who].shard;
        if is_answered {
            shard.forget_record(&handle, now);
        } else {
            shard.doubt(&handle, now);
        }
    }

    fn note_tags(&mut self) {
        let changes = self.cluster.store.changes_since(self.seen_revision).unwrap();
        for after in changes.filter_map(|change| change.after.as_ref()) {
            for (tag, value) in tags(after) {
                let known = self.tags.entry(tag).or_default();
                *known = value.max(*known);
            }
        }
        self.seen_revision = self.cluster.store.revision();
    }

    /// A hash of the state.
    fn print(&self) -> u64 {
        let state = (&self.cluster, &self.flights, &self.limbo, &self.since_commit, &self.tags);
        let numbers = (self.next, self.faults, self.ticks, self.news, self.drained, self.client_deleted, self.unkept);
        BuildHasherDefault::<DefaultHasher>::default().hash_one(format!("{state:?}{numbers:?}"))
    }

    /// Everything comes to rest. Requests in limbo are carried out first or, where `is_late`, as late as can be.
    fn rest(&mut self) -> Result<(), String> {
        while self.next < self.scope.script.len() {
            self.act(Act::Accept);
        }
        while !self.flights.is_empty() {
            self.act(Act::Done(0));
        }
        if self.scope.drains && !self.drained {
            self.act(Act::Drain(0));
        }
        if !self.is_late {
            self.release_limbo(i64::MAX);
        }
        for _ in 0..TURNS {
            if self.limbo.is_empty() && !self.cluster.processes.iter().any(|process| process.shard.owes()) {
                return Ok(());
            }
            let wakeups: Vec<Option<Mono>> = self.wakeups();
            self.cluster.now += SECOND;
            let now = self.cluster.now();
            // Those that end within this second.
            self.release_limbo(self.cluster.now + SECOND);
            for (who, wakeup) in wakeups.into_iter().enumerate() {
                self.cluster.processes[who].keep(now);
                let mut is_first = true;
                while let Some(write) = self.cluster.processes[who].shard.next_write(now) {
                    if is_first && wakeup.is_none_or(|wakeup| wakeup > now.mono) {
                        return Err(format!("a write at {now:?} which nothing would have woken: {wakeup:?}"));
                    }
                    is_first = false;
                    let answer = self.cluster.carry_out(&write.request);
                    self.cluster.settle(who, write.record, answer);
                }
            }
        }
        Err("never at rest".into())
    }

    /// When each process would ask for its next write, after all that can be written now is.
    fn wakeups(&mut self) -> Vec<Option<Mono>> {
        let now = self.cluster.now();
        let mut wakeups = Vec::new();
        for who in 0..self.scope.processes {
            self.cluster.processes[who].keep(now);
            while let Some(write) = self.cluster.processes[who].shard.next_write(now) {
                let answer = self.cluster.carry_out(&write.request);
                self.cluster.settle(who, write.record, answer);
            }
            self.cluster.processes[who].keep(now);
            wakeups.push(self.cluster.processes[who].shard.next_wakeup(now.mono));
        }
        wakeups
    }

    fn release_limbo(&mut self, before: i64) {
        let (due, rest) = std::mem::take(&mut self.limbo).into_iter().partition(|(until, _)| *until < before);
        self.limbo = rest;
        let due: Vec<(i64, Request)> = due;
        due.iter().for_each(|(_, request)| drop(self.cluster.carry_out(request)));
    }

    /// What must hold when everything is at rest.
    fn check(&mut self) -> Result<(), String> {
        self.note_tags();
        let objects = self.cluster.stored();
        let told = || {
            let told =
                |event: &Event| format!("{} {} x{} {:?}", event.metadata.name, event.reason, event.count, tags(event));
            objects.iter().map(told).collect::<Vec<_>>().join(", ")
        };
        let ledgers: Vec<_> = self.cluster.processes.iter().map(|process| process.shard.balance().ledger).collect();
        let lost = self.lost_before + ledgers.iter().map(|ledger| ledger.total_lost()).sum::<u64>();
        let accepted = self.scope.script.len() as u64 - lost;
        // What a client has deleted before its write was answered counts as lost, and its tag may have been there all the same.
        let at_most = if self.client_deleted { self.scope.script.len() as u64 } else { accepted };
        let bounds = accepted - self.unkept..=at_most;
        let has_tags = self.scope.admission != Admission::StripsAnnotations;
        let counted: u64 = self.tags.values().sum();
        if has_tags && !bounds.contains(&counted) {
            return Err(format!("{bounds:?} occurrences, tags say {counted}: {}", told()));
        }
        let shown =
            u64::try_from(objects.iter().map(|event| event.count).sum::<i32>() - self.others).unwrap_or(u64::MAX);
        if !(self.scope.deletes || self.scope.client_deletes || bounds.contains(&shown)) {
            return Err(format!("{bounds:?} occurrences, {shown} shown: {}", told()));
        }
        // Of each object the tags and what others have counted.
        let tagged: u64 = objects.iter().flat_map(|event| tags(event).into_values()).sum();
        if has_tags && shown != tagged && !self.scope.deletes {
            return Err(format!("{shown} shown, tags of what is there say {tagged}: {}", told()));
        }
        for (process, (ledger, restored)) in self.cluster.processes.iter().zip(ledgers.iter().zip(&self.restored)) {
            let own: u64 =
                self.tags.iter().filter(|(tag, _)| is_of(tag, &process.writer)).map(|(_, value)| value).sum();
            let written = ledger.total_written();
            let deleted = ledger.lost(LostReason::Deleted);
            if has_tags && !(own <= written + deleted && written <= own + restored) {
                return Err(format!(
                    "{} has written {written} of which {restored} were restored, its tags say {own}: {}",
                    process.writer,
                    told()
                ));
            }
        }
        if self.client_deleted && self.is_gone_for_good {
            let name = &self.scope.script[0].1.metadata.name;
            let others = self.scope.script.iter().filter(|(_, event)| event.metadata.name == *name).count();
            if others == 1 && objects.iter().any(|event| event.metadata.name == *name) {
                return Err(format!("what was deleted is back: {}", told()));
            }
        }
        Ok(())
    }
}

/// The tags of an object, and how much each counts.
fn tags(event: &Event) -> BTreeMap<String, u64> {
    let annotations = event.metadata.rare.as_deref().map(|rare| &rare.annotations);
    let tag = |(name, value): (&smol_str::SmolStr, &smol_str::SmolStr)| {
        let name = name.strip_prefix("tally.eventweir/")?;
        Some((name.to_owned(), value.split('@').next()?.parse().ok()?))
    };
    annotations.into_iter().flatten().filter_map(tag).collect()
}

fn is_of(tag: &str, writer: &str) -> bool {
    tag == writer || tag.strip_prefix(writer).is_some_and(|rest| rest.starts_with('.'))
}

/// By how much deeper to search than CI does.
#[expect(clippy::disallowed_methods, reason = "a test is no part of the program")]
fn deeper() -> usize {
    std::env::var("EVENTWEIR_EXPLORE").ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Searches a scope, and fails with the shortest path to a state from which something goes wrong.
#[expect(clippy::print_stderr, reason = "how much was searched can be asked for")]
fn explore(scope: &Scope) {
    let mut seen = HashSet::new();
    let mut frontier: Vec<Vec<Act>> = vec![Vec::new()];
    let mut wrong = Vec::new();
    for _depth in 0..=scope.depth + deeper() {
        let mut next = Vec::new();
        for path in frontier {
            let mut sim = Sim::after(scope, &path);
            if !seen.insert(sim.print()) {
                continue;
            }
            let acts = sim.enabled();
            let mut faults = Vec::new();
            for is_late in [false, true] {
                if is_late {
                    if sim_has_no_limbo(scope, &path) {
                        break;
                    }
                    sim = Sim::after(scope, &path);
                    sim.is_late = true;
                }
                faults.extend(sim.rest().and_then(|()| sim.check()).err());
            }
            if let Some(fault) = faults.pop() {
                wrong.push((seen.len(), path, fault));
                if wrong.len() >= 40 {
                    break;
                }
                continue;
            }
            next.extend(acts.into_iter().map(|act| [&path[..], &[act]].concat()));
        }
        frontier = next;
        if wrong.len() >= 40 {
            break;
        }
    }
    if let Some((states, path, fault)) = wrong.first() {
        panic!("{}: after {states} states ({} wrong in all): {fault}\n  {path:?}", scope.name, wrong.len());
    }
    eprintln!("{}: {} states, none wrong", scope.name, seen.len());
}

/// Whether nothing can be late after this path.
fn sim_has_no_limbo(scope: &Scope, path: &[Act]) -> bool {
    let sim = Sim::after(scope, path);
    sim.limbo.is_empty()
}

fn scope(name: &'static str, script: Vec<(usize, Event)>) -> Scope {
    Scope {
        name,
        settings: Settings::default(),
        limits: shard::Settings::default(),
        admission: Admission::Nothing,
        script,
        strangers: Vec::new(),
        processes: 1,
        faults: 1,
        ticks: 1,
        news: 2,
        busy: false,
        crashes: false,
        commits_at_once: true,
        labels: false,
        deletes: false,
        counts: false,
        client_deletes: false,
        drains: false,
        lists: false,
        watches: false,
        depth: 10,
    }
}

fn plain() -> Event {
    plain_event(0, "BackOff", "m")
}

/// The same event of another container, under a name of its own.
fn of_container(number: usize, message: &str) -> Event {
    plain_event(number, "Unhealthy", message)
}

fn of_instance(instance: &str) -> Event {
    Event { reporting_instance: instance.into(), ..plain() }
}

fn size(number: usize) -> NonZeroUsize {
    NonZeroUsize::new(number).unwrap()
}

fn combining(max_events: usize) -> Settings {
    Settings { max_events: size(max_events), ..Settings::default() }
}

fn deterministic() -> Settings {
    Settings { naming: Naming::Deterministic, ..Settings::default() }
}

/// No token, so that what never was written folds when the process ends.
fn without_tokens() -> Settings {
    Settings { burst_size: 0, qps: 0.05, ..Settings::default() }
}

#[test]
fn plain_repeats() {
    explore(&Scope {
        faults: 2,
        labels: true,
        crashes: true,
        depth: 9,
        ..scope("plain repeats", vec![(0, plain()), (0, plain()), (0, plain())])
    });
}

#[test]
fn plain_repeats_that_are_refused_for_now() {
    explore(&Scope { faults: 2, busy: true, depth: 9, ..scope("429s", vec![(0, plain()), (0, plain())]) });
}

#[test]
fn combined_records_of_two_containers() {
    let script = (0..3).map(|number| (0, of_container(number, &number.to_string()))).collect();
    explore(&Scope { settings: combining(2), labels: true, ..scope("combined, two containers", script) });
}

#[test]
fn two_instances() {
    let script = vec![(0, of_instance("a")), (0, of_instance("b"))];
    explore(&Scope { labels: true, ..scope("two instances", script) });
}

#[test]
fn a_record_that_was_evicted_begins_again_under_its_name() {
    for naming in [Naming::Client, Naming::Deterministic] {
        let settings = Settings { lru_cache_size: size(1), naming, ..Settings::default() };
        let script = vec![(0, plain()), (0, plain_event(1, "Other", "o")), (0, plain()), (0, plain())];
        explore(&Scope { settings, depth: 9, ..scope("evicted", script) });
    }
}

#[test]
fn a_drain_with_a_budget_for_each_reason() {
    use eventweir::correlator::{Field, SPAM_KEY};
    let spam_key = [&SPAM_KEY[..], &[Field::Reason]].concat();
    let script = ["A", "A", "B", "B"]
        .iter()
        .enumerate()
        .map(|(number, reason)| (0, plain_event(number, reason, &number.to_string())));
    explore(&Scope {
        settings: Settings { spam_key, ..without_tokens() },
        drains: true,
        ..scope("drain, budget a reason", script.collect())
    });
}

#[test]
fn a_drain_of_two_types() {
    let of = |kind: &str, number: usize| {
        (0, Event { event_type: kind.into(), ..plain_event(number, &format!("{kind}{number}"), "m") })
    };
    let script = vec![of("Normal", 0), of("Normal", 1), of("Warning", 2), of("Warning", 3)];
    explore(&Scope { settings: without_tokens(), drains: true, ..scope("drain, two types", script) });
}

#[test]
fn one_name_for_two_events() {
    let script = vec![(0, plain()), (0, plain_event(0, "Other", "o")), (0, plain()), (0, plain_event(0, "Other", "o"))];
    explore(&Scope { faults: 2, depth: 9, ..scope("one name for two events", script) });
}

#[test]
fn two_events_of_one_name_that_differ_in_their_action() {
    let of = |action: &str| {
        let event = Event { action: action.into(), event_time: Some(eventweir::event::MicroTime(5)), ..plain() };
        (0, Event { first_timestamp: None, last_timestamp: None, ..event })
    };
    explore(&Scope { depth: 9, ..scope("two actions", vec![of("Pull"), of("Push"), of("Pull")]) });
}

#[test]
fn combined_records_of_two_replicas_under_one_name() {
    let settings = Settings { naming: Naming::Deterministic, ..combining(1) };
    let script = vec![(0, of_container(0, "0")), (1, of_container(1, "1")), (0, of_container(2, "2"))];
    explore(&Scope { settings, processes: 2, lists: true, depth: 8, ..scope("combined, two replicas", script) });
}

#[test]
fn two_replicas_under_one_name() {
    let script = vec![(0, plain()), (1, plain()), (0, plain())];
    explore(&Scope {
        settings: deterministic(),
        processes: 2,
        labels: true,
        depth: 8,
        ..scope("two replicas", script)
    });
}

#[test]
fn two_replicas_that_crash_and_hear_of_each_other() {
    let script = vec![(0, plain()), (1, plain()), (0, plain())];
    explore(&Scope {
        settings: deterministic(),
        processes: 2,
        crashes: true,
        lists: true,
        watches: true,
        depth: 7,
        ..scope("two replicas, crash, news", script)
    });
}

#[test]
fn a_source_that_was_forgotten_and_is_heard_of_again() {
    let limits = shard::Settings { max_sources: size(1), ..shard::Settings::default() };
    let mut other = plain_event(7, "Other", "o");
    other.source.component = "scheduler".into();
    let script = vec![
        (0, plain()),
        (0, Event { metadata: plain_event(1, "", "").metadata, ..plain() }),
        (0, other),
        (0, plain()),
    ];
    explore(&Scope { limits, lists: true, watches: true, depth: 9, ..scope("source forgotten", script) });
}

#[test]
fn a_record_of_before_whose_patch_is_in_limbo() {
    let script = vec![(0, of_instance("a")), (0, of_instance("b")), (0, of_instance("a"))];
    explore(&Scope { faults: 2, crashes: true, lists: true, depth: 9, ..scope("heard of after a crash", script) });
}

#[test]
fn a_crash_before_the_commit() {
    let script = vec![(0, plain()), (0, plain()), (0, plain()), (0, plain())];
    explore(&Scope {
        faults: 2,
        crashes: true,
        commits_at_once: false,
        depth: 9,
        ..scope("crash before the commit", script)
    });
}

#[test]
fn admission_that_changes_the_message() {
    let admission = Admission::ChangesMessage;
    explore(&Scope {
        admission,
        faults: 2,
        labels: true,
        ..scope("admission changes", vec![(0, plain()), (0, plain()), (0, plain())])
    });
}

#[test]
fn admission_that_strips_annotations() {
    let admission = Admission::StripsAnnotations;
    explore(&Scope {
        admission,
        faults: 1,
        ..scope("admission strips", vec![(0, plain()), (0, plain()), (0, plain())])
    });
}

#[test]
fn a_stranger_under_the_name() {
    let stranger = Event { reason: "Stranger".into(), count: 3, ..plain() };
    let strangers = vec![stranger];
    explore(&Scope { strangers, faults: 2, ..scope("stranger", vec![(0, plain()), (0, plain())]) });
}

#[test]
fn an_equal_event_of_before_under_the_name() {
    let strangers = vec![Event { count: 3, ..plain() }];
    explore(&Scope {
        strangers,
        faults: 2,
        lists: true,
        depth: 8,
        ..scope("equal event of before", vec![(0, plain()), (0, plain())])
    });
}

#[test]
fn another_writer_counts_on_the_record() {
    explore(&Scope {
        counts: true,
        faults: 2,
        watches: true,
        depth: 8,
        ..scope("another writer", vec![(0, plain()), (0, plain()), (0, plain())])
    });
}

#[test]
fn another_writer_deletes_the_record() {
    explore(&Scope {
        deletes: true,
        faults: 2,
        watches: true,
        depth: 8,
        ..scope("deleted by another", vec![(0, plain()), (0, plain()), (0, plain())])
    });
}

#[test]
fn a_stranger_that_goes_while_a_create_is_in_limbo() {
    let strangers = vec![Event { reason: "Stranger".into(), count: 3, ..plain() }];
    explore(&Scope {
        strangers,
        deletes: true,
        faults: 3,
        depth: 8,
        ..scope("stranger goes", vec![(0, plain()), (0, plain())])
    });
}

#[test]
fn a_client_deletes_its_event() {
    let other = |number: usize| (0, Event { metadata: plain_event(number, "", "").metadata, ..plain() });
    explore(&Scope {
        client_deletes: true,
        faults: 2,
        depth: 8,
        ..scope("deleted by its client", vec![(0, plain()), other(1), other(2)])
    });
}

/// Records of one group that has a single token, and folds soon.
fn storm(name: &'static str) -> Scope {
    let groups = GroupSettings { fold_after: Duration::from_secs(1), ..GroupSettings::default() };
    let outbox = outbox::Settings { groups, ..outbox::Settings::default() };
    let script = (0..4).map(|number| (0, plain_event(number, "BackOff", &number.to_string()))).collect();
    Scope {
        settings: Settings { group: Some(Rate { qps: 0.05, burst: 1 }), ..Settings::default() },
        limits: shard::Settings { outbox, ..shard::Settings::default() },
        ticks: 2,
        depth: 8,
        ..scope(name, script)
    }
}

#[test]
fn a_storm_record_whose_writes_fail() {
    explore(&Scope { faults: 2, labels: true, ..storm("storm") });
}

#[test]
fn a_storm_record_across_a_crash() {
    explore(&Scope { crashes: true, lists: true, ..storm("storm, crash") });
}

#[test]
fn a_storm_record_across_a_crash_before_the_commit() {
    explore(&Scope { crashes: true, commits_at_once: false, ..storm("storm, crash before the commit") });
}

#[test]
fn a_storm_record_in_a_drain() {
    explore(&Scope { drains: true, ..storm("storm, drain") });
}
