//! Exhaustive search at small scope over the real `Shard` and `Store`: all orders of a few actions, and all outcomes of
//! each request.
//!
//! A state is reached by replaying a path of actions, so nothing needs to be cloned. A hash of the states' `Debug` text
//! detects equal states. From each state the search runs until all processes are idle, and compares the store with the
//! accepted occurrences. It prints a path that fails.
//!
//! `EVENTWEIR_EXPLORE=2 cargo test --release --test properties explore` searches two actions deeper. With
//! `-- --nocapture` each scope prints its number of states.

mod scopes;
mod storms;
mod totals;

use std::collections::{BTreeMap, HashSet};

use eventweir::clock::Mono;
use eventweir::correlator::Settings;
use eventweir::event::Event;
use eventweir::outbox::{Answer, Applied, Fault, LostReason, Request, Retry, Write};
use eventweir::shard::{self, Lookup};
use eventweir::upstream::DeleteOptions;
use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};

use super::cluster::{Admission, Cluster, LOST, Process};
use super::{SECOND, policy};

/// Time in which an abandoned request may still be executed: less than an apiserver's request timeout.
const LIMBO: i64 = 60 * SECOND;
/// Time limit for all processes to become idle.
const IDLE_LIMIT: i64 = 900 * SECOND;

/// One step of a path. A number is the index of a process, or of a request in flight.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Act {
    /// Accepts the next event of the script.
    Accept,
    /// Advances the clock by two seconds.
    Tick,
    Send(usize),
    /// The request is executed and answered.
    Done(usize),
    /// The request is executed, and its answer is lost.
    DoneUnanswered(usize),
    /// The request is not answered, and executed later or never.
    ToLimbo(usize),
    /// The request is answered 429.
    Busy(usize),
    /// A request in limbo is executed.
    Late(usize),
    /// Another writer sets a label on the newest object.
    Label,
    /// Another writer deletes the newest object.
    Delete,
    /// Another writer counts on the newest object.
    Count,
    /// A client deletes the event with the first name of the script.
    ClientDelete(usize),
    /// As `ClientDelete`, but the answer is lost after the execution.
    ClientDeleteUnanswered(usize),
    /// The process commits its changes to disk.
    Commit(usize),
    /// The process crashes, and the next one starts from its disk.
    Crash(usize),
    Drain(usize),
    List(usize),
    /// The process reads one item of its watch.
    Watch(usize),
    /// The process evicts all aliases, and so the totals of its clients (`ingest.maxAliases`).
    ForgetAliases(usize),
}

/// The parameters of a search.
struct Scope {
    name: &'static str,
    settings: Settings,
    limits: shard::Settings,
    admission: Admission,
    /// The reported events, each with the process that receives it.
    script: Vec<(usize, Event)>,
    /// Objects of other writers that exist at the start.
    existing: Vec<Event>,
    processes: usize,
    /// Number of shards per process.
    shards: usize,
    /// Whether an event's count is the number of occurrences since its client's last report; see `totals.rs`.
    totals: bool,
    /// Number of times that a process may evict its aliases.
    forgets: usize,
    /// Whether a request without an answer may be executed later.
    limbo: bool,
    /// Number of faults: lost answers, changes by other writers, crashes.
    faults: usize,
    ticks: usize,
    reads: usize,
    busy: bool,
    crashes: bool,
    /// Whether each change is committed to disk at once.
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
    shard: usize,
    write: Write,
}

struct Sim<'s> {
    scope: &'s Scope,
    cluster: Cluster,
    clients: totals::Clients,
    flights: Vec<Flight>,
    limbo: Vec<(i64, Request)>,
    next: usize,
    faults: usize,
    ticks: usize,
    reads: usize,
    forgets: usize,
    /// Occurrences that clients have reported.
    happened: u64,
    drained: bool,
    client_deleted: bool,
    /// Whether the deletion is final. It may not be after a DELETE without an answer while a create is in limbo.
    is_deletion_final: bool,
    /// Occurrences counted by other writers.
    others: i32,
    /// The largest value of each tag on any object.
    tags: BTreeMap<String, u64>,
    seen_revision: u64,
    /// Occurrences that were on no disk when their process crashed.
    uncommitted: u64,
    /// Occurrences restored per process, and those accepted since its last commit.
    restored: Vec<u64>,
    since_commit: Vec<u64>,
    /// Occurrences that the ledgers of earlier processes counted as lost.
    lost_before: u64,
    is_late: bool,
}

impl<'s> Sim<'s> {
    fn new(scope: &'s Scope) -> Self {
        let (settings, limits) = (scope.settings.clone(), scope.limits.clone());
        let mut cluster = Cluster::sharded(scope.processes, scope.shards, settings, limits);
        cluster.admission = scope.admission;
        let now = cluster.now();
        for event in &scope.existing {
            cluster.store.create(event.clone(), now).unwrap();
        }
        let seen_revision = cluster.store.revision();
        Self {
            scope,
            cluster,
            clients: totals::Clients::new(scope.processes),
            flights: Vec::new(),
            limbo: Vec::new(),
            next: 0,
            faults: scope.faults,
            ticks: scope.ticks,
            reads: scope.reads,
            forgets: scope.forgets,
            happened: 0,
            drained: false,
            client_deleted: false,
            is_deletion_final: true,
            others: scope.existing.iter().map(|event| event.count).sum(),
            tags: BTreeMap::new(),
            seen_revision,
            uncommitted: 0,
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
        when(self.next < scope.script.len() && self.may_accept(), Act::Accept);
        when(self.ticks > 0, Act::Tick);
        for who in 0..scope.processes {
            let flights = self.flights.iter().filter(|flight| flight.who == who).count();
            when(flights < 2 && !self.is_idle(who), Act::Send(who));
            when(is_faulty && scope.crashes, Act::Crash(who));
            when(!scope.commits_at_once, Act::Commit(who));
            when(scope.lists && self.reads > 0, Act::List(who));
            when(scope.watches && self.reads > 0, Act::Watch(who));
            when(self.forgets > 0 && self.clients.has_aliases(who), Act::ForgetAliases(who));
        }
        for index in 0..self.flights.len() {
            when(true, Act::Done(index));
            when(is_faulty, Act::DoneUnanswered(index));
            when(is_faulty && scope.limbo, Act::ToLimbo(index));
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

    /// Whether a process needs no wakeup now.
    fn is_idle(&self, who: usize) -> bool {
        let now = self.cluster.now().mono;
        self.cluster.processes[who].next_wakeup(now).is_none_or(|wakeup| wakeup > now)
    }

    /// Checks that an idle process has nothing to write, because paths omit its sends.
    fn check_idle(&mut self) -> Result<(), String> {
        let now = self.cluster.now();
        for who in 0..self.scope.processes {
            if self.is_idle(who) && self.cluster.processes[who].next_write(now).is_some() {
                return Err(format!("process {who} has a write but no wakeup"));
            }
        }
        Ok(())
    }

    #[expect(clippy::too_many_lines, reason = "one arm per action")]
    fn act(&mut self, act: Act) {
        match act {
            Act::Accept => {
                let (who, event) = self.scope.script[self.next].clone();
                self.next += 1;
                self.accept(who, event);
            }
            Act::Tick => {
                self.ticks -= 1;
                self.cluster.now += 2 * SECOND;
            }
            Act::Send(who) => {
                let now = self.cluster.now();
                if let Some((shard, write)) = self.cluster.processes[who].next_write(now) {
                    self.flights.push(Flight { who, shard, write });
                }
            }
            Act::Done(index) => {
                let flight = self.flights.remove(index);
                let answer = self.cluster.execute(&flight.write.request);
                self.settle(&flight, answer);
            }
            Act::DoneUnanswered(index) => {
                self.faults -= 1;
                let flight = self.flights.remove(index);
                self.cluster.execute(&flight.write.request);
                self.settle(&flight, LOST);
            }
            Act::ToLimbo(index) => {
                self.faults -= 1;
                let flight = self.flights.remove(index);
                self.settle(&flight, LOST);
                self.give_up(flight.write.request);
            }
            Act::Busy(index) => {
                self.faults -= 1;
                let flight = self.flights.remove(index);
                let busy = Retry::new(Fault::Overloaded, Applied::No);
                self.settle(&flight, Answer::Retry(busy));
            }
            Act::Late(index) => {
                let (_, request) = self.limbo.remove(index);
                self.cluster.execute(&request);
            }
            Act::Label | Act::Delete | Act::Count => {
                self.faults -= 1;
                self.change_as_other(act);
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
                self.cluster.processes[who].drain(now);
            }
            Act::List(who) => {
                self.reads -= 1;
                self.cluster.read_changes(who, None);
            }
            Act::Watch(who) => {
                self.reads -= 1;
                self.cluster.read_changes(who, Some(1));
            }
            Act::ForgetAliases(who) => {
                self.forgets -= 1;
                self.clients.forget_aliases(who);
            }
        }
        if self.scope.commits_at_once {
            (0..self.scope.processes).for_each(|who| self.commit(who));
        }
        self.note_tags();
    }

    fn accept(&mut self, who: usize, event: Event) {
        if self.scope.totals {
            self.report(who, event);
        } else {
            self.happened += 1;
            self.since_commit[who] += 1;
            self.cluster.accept(who, event);
        }
    }

    fn settle(&mut self, flight: &Flight, answer: Answer) {
        self.cluster.settle_of(flight.who, flight.shard, flight.write.record, answer);
    }

    /// Puts an abandoned write into limbo. A late read has no effect, so reads are dropped.
    fn give_up(&mut self, request: Request) {
        if self.scope.limbo && !matches!(request, Request::Read { .. }) {
            self.limbo.push((self.cluster.now + LIMBO, request));
        }
    }

    fn commit(&mut self, who: usize) {
        let now = self.cluster.now();
        self.cluster.processes[who].commit(now);
        self.since_commit[who] = 0;
    }

    fn crash(&mut self, who: usize) {
        let (mine, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.flights).into_iter().partition(|f| f.who == who);
        self.flights = rest;
        mine.into_iter().for_each(|flight| self.give_up(flight.write.request));
        let balance = self.cluster.processes[who].balance();
        self.lost_before += balance.ledger.total_lost();
        self.uncommitted += self.since_commit[who].min(balance.total_waiting());
        self.since_commit[who] = 0;
        self.restored[who] = self.cluster.processes[who].disk.values().map(|entry| entry.occurrences().total()).sum();
        self.cluster.crash(who);
        if self.scope.totals {
            // It accepts clients only after its list.
            self.cluster.read_changes(who, None);
            self.clients.forget_aliases(who);
        }
    }

    /// Changes the newest object as another writer.
    fn change_as_other(&mut self, act: Act) {
        let Some(event) = self.cluster.stored().into_iter().max_by_key(|event| event.metadata.resource_version.clone())
        else {
            return;
        };
        let (now, name) = (self.cluster.now(), event.metadata.name);
        match act {
            Act::Delete => drop(self.cluster.store.delete("default", &name, &DeleteOptions::default(), now).unwrap()),
            Act::Count => {
                self.others += 1;
                self.cluster.store.update("default", &name, now, |event| event.count += 1).unwrap();
            }
            _ => {
                let number = self.faults.to_string();
                let label = |event: &mut Event| {
                    let rare = event.metadata.rare.get_or_insert_default();
                    rare.labels = [("a".into(), number.into())].into();
                };
                self.cluster.store.update("default", &name, now, label).unwrap();
            }
        }
    }

    /// Deletes an event as `ingest/delete.rs` does.
    fn client_delete(&mut self, who: usize, is_answered: bool) {
        self.client_deleted = true;
        self.is_deletion_final = is_answered || self.limbo.is_empty();
        let (now, policy) = (self.cluster.now(), policy(self.scope.settings.clone()));
        let event = self.scope.script[0].1.clone();
        let shard = &mut self.cluster.processes[who].shards[0];
        let Some(handle) = shard.pause(&event, &event.metadata.name, Lookup::Alias, now, &policy) else { return };
        let _gone = self.cluster.store.delete("default", &handle.name, &DeleteOptions::default(), now);
        let shard = &mut self.cluster.processes[who].shards[0];
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

    /// Returns a hash of the state. `format!` and `digest` are optimised in a debug build too, and take most of the time.
    fn fingerprint(&self) -> [u8; SHA256_OUTPUT_LEN] {
        let Cluster { processes, store, now, .. } = &self.cluster;
        let state =
            ((processes, store, now), &self.clients, &self.flights, &self.limbo, &self.since_commit, &self.tags);
        let budgets = (self.faults, self.ticks, self.reads, self.forgets);
        let numbers = (self.next, self.happened, budgets, self.drained, self.client_deleted, self.uncommitted);
        let hash = digest(&SHA256, format!("{state:?}{numbers:?}").as_bytes());
        hash.as_ref().try_into().unwrap()
    }

    /// Accepts the rest of the script, and runs until all processes are idle. If `is_late`, requests in limbo are
    /// executed as late as possible, otherwise first.
    fn finish(&mut self) -> Result<(), String> {
        while self.next < self.scope.script.len() {
            if !self.may_accept() {
                self.run_until_idle()?;
            }
            self.act(Act::Accept);
        }
        if self.scope.drains && !self.drained {
            while !self.flights.is_empty() {
                self.act(Act::Done(0));
            }
            self.act(Act::Drain(0));
        }
        self.run_until_idle()?;
        if self.scope.totals {
            self.report_all();
            self.run_until_idle()?;
        }
        Ok(())
    }

    fn run_until_idle(&mut self) -> Result<(), String> {
        while !self.flights.is_empty() {
            self.act(Act::Done(0));
        }
        if !self.is_late {
            self.release_limbo(i64::MAX);
        }
        let until = self.cluster.now + IDLE_LIMIT;
        while !self.limbo.is_empty() || self.cluster.processes.iter().any(Process::owes) {
            if self.cluster.now >= until {
                return Err("a process is not idle after 900 s".into());
            }
            let wakeups: Vec<Option<Mono>> = self.wakeups();
            self.cluster.now += self.turn(&wakeups);
            let now = self.cluster.now();
            // Execute the requests whose limbo ends within this second.
            self.release_limbo(self.cluster.now + SECOND);
            for (who, wakeup) in wakeups.into_iter().enumerate() {
                self.cluster.processes[who].commit(now);
                if self.cluster.write_now(who) && wakeup.is_none_or(|wakeup| wakeup > now.mono) {
                    return Err(format!("a write at {now:?}, but the wakeup is {wakeup:?}"));
                }
            }
        }
        Ok(())
    }

    /// Returns a second, or the seconds to the last one before the next wakeup or end of limbo. A write that was
    /// possible earlier is still possible then.
    fn turn(&self, wakeups: &[Option<Mono>]) -> i64 {
        let now = self.cluster.now();
        let wakeups = wakeups.iter().flatten().map(|wakeup| wakeup.0 - now.mono.0);
        let next = wakeups.chain(self.limbo.iter().map(|(until, _)| until - self.cluster.now)).min().unwrap_or(0);
        (next / SECOND - 1).max(1) * SECOND
    }

    /// Sends all writes that can be sent now, and returns the next wakeup of each process.
    fn wakeups(&mut self) -> Vec<Option<Mono>> {
        let now = self.cluster.now();
        let mut wakeups = Vec::new();
        for who in 0..self.scope.processes {
            self.cluster.processes[who].commit(now);
            self.cluster.write_now(who);
            self.cluster.processes[who].commit(now);
            wakeups.push(self.cluster.processes[who].next_wakeup(now.mono));
        }
        wakeups
    }

    fn release_limbo(&mut self, before: i64) {
        let (due, rest) = std::mem::take(&mut self.limbo).into_iter().partition(|(until, _)| *until < before);
        self.limbo = rest;
        let due: Vec<(i64, Request)> = due;
        due.iter().for_each(|(_, request)| drop(self.cluster.execute(request)));
    }

    /// Checks the invariants of an idle state.
    fn check(&mut self) -> Result<(), String> {
        self.note_tags();
        let objects = self.cluster.stored();
        let listing = || {
            let line =
                |event: &Event| format!("{} {} x{} {:?}", event.metadata.name, event.reason, event.count, tags(event));
            objects.iter().map(line).collect::<Vec<_>>().join(", ")
        };
        let ledgers: Vec<_> = self.cluster.processes.iter().map(|process| process.balance().ledger).collect();
        let lost = self.lost_before + ledgers.iter().map(|ledger| ledger.total_lost()).sum::<u64>();
        let accepted = self.happened - lost;
        // A client's DELETE before the answer to the write counts as lost, although the tag may have been stored.
        let at_most = if self.client_deleted { self.happened } else { accepted };
        // Occurrences lost in a crash are part of the client's next total.
        let bounds = if self.scope.totals { accepted..=accepted } else { accepted - self.uncommitted..=at_most };
        let has_tags = self.scope.admission != Admission::StripsAnnotations;
        let counted: u64 = self.tags.values().sum();
        if has_tags && !bounds.contains(&counted) {
            return Err(format!("{bounds:?} occurrences, tags count {counted}: {}", listing()));
        }
        let shown =
            u64::try_from(objects.iter().map(|event| event.count).sum::<i32>() - self.others).unwrap_or(u64::MAX);
        if !(self.scope.deletes || self.scope.client_deletes || bounds.contains(&shown)) {
            return Err(format!("{bounds:?} occurrences, {shown} shown: {}", listing()));
        }
        // The count of each object is the sum of its tags and of other writers' occurrences.
        let tagged: u64 = objects.iter().flat_map(|event| tags(event).into_values()).sum();
        if has_tags && shown != tagged && !self.scope.deletes {
            return Err(format!("{shown} shown, tags of the objects count {tagged}: {}", listing()));
        }
        for (process, (ledger, restored)) in self.cluster.processes.iter().zip(ledgers.iter().zip(&self.restored)) {
            let own: u64 =
                self.tags.iter().filter(|(tag, _)| is_of(tag, &process.writer)).map(|(_, value)| value).sum();
            let written = ledger.total_written();
            let deleted = ledger.lost(LostReason::Deleted);
            if has_tags && !(own <= written + deleted && written <= own + restored) {
                return Err(format!(
                    "{} wrote {written}, of which {restored} were restored, but its tags count {own}: {}",
                    process.writer,
                    listing()
                ));
            }
        }
        if self.client_deleted && self.is_deletion_final {
            let name = &self.scope.script[0].1.metadata.name;
            let others = self.scope.script.iter().filter(|(_, event)| event.metadata.name == *name).count();
            if others == 1 && objects.iter().any(|event| event.metadata.name == *name) {
                return Err(format!("the deleted event exists again: {}", listing()));
            }
        }
        if self.scope.totals { self.check_totals().map_err(|fault| format!("{fault}: {}", listing())) } else { Ok(()) }
    }
}

/// Returns the tags of an object with their counts.
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

/// Returns by how many actions to search deeper than in CI.
#[expect(clippy::disallowed_methods, reason = "a test is no part of the program")]
fn deeper() -> usize {
    std::env::var("EVENTWEIR_EXPLORE").ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Searches a scope, and fails with the shortest path to a wrong state.
#[expect(clippy::print_stderr, reason = "the number of states is shown on request")]
fn explore(scope: &Scope) {
    let mut seen = HashSet::new();
    let mut frontier: Vec<Vec<Act>> = vec![Vec::new()];
    let mut wrong = Vec::new();
    for _depth in 0..=scope.depth + deeper() {
        let mut next = Vec::new();
        for path in frontier {
            let mut sim = Sim::after(scope, &path);
            if !seen.insert(sim.fingerprint()) {
                continue;
            }
            let (acts, has_limbo) = (sim.enabled(), !sim.limbo.is_empty());
            let mut faults = Vec::new();
            for is_late in [false, true] {
                if is_late {
                    if !has_limbo {
                        break;
                    }
                    sim = Sim::after(scope, &path);
                    sim.is_late = true;
                }
                faults.extend(sim.check_idle().and_then(|()| sim.finish()).and_then(|()| sim.check()).err());
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
        panic!("{}: after {states} states ({} are wrong): {fault}\n  {path:?}", scope.name, wrong.len());
    }
    assert!(seen.len() > 100, "{}: only {} states", scope.name, seen.len());
    eprintln!("{}: {} states, all correct", scope.name, seen.len());
}

fn scope(name: &'static str, script: Vec<(usize, Event)>) -> Scope {
    Scope {
        name,
        settings: Settings::default(),
        limits: shard::Settings::default(),
        admission: Admission::Nothing,
        script,
        existing: Vec::new(),
        processes: 1,
        shards: 1,
        totals: false,
        forgets: 0,
        limbo: true,
        faults: 1,
        ticks: 1,
        reads: 2,
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
