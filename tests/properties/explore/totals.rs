//! Clients that count by themselves, as client-go does. Each posts its event under its own name with a total of 1, and
//! then reports larger totals. A process without the client's last total compares with the records that have the name.
//!
//! At the end each client reports once more, to a process without aliases. Then each occurrence is in exactly one
//! count. A process without memory reads the total of each client from the store.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use eventweir::correlator::{Naming, Settings};
use eventweir::event::Event;

use super::super::cluster::{Disk, plain_event};
use super::{Scope, Sim, explore, scope};

/// Growth of a client's last total: more than one, because any POST counts at least one occurrence.
const LAST: i32 = 3;

/// The clients' totals, and the totals that processes have for them.
#[derive(Debug)]
pub(super) struct Clients {
    by_name: BTreeMap<String, Client>,
    /// The totals in the aliases of each process.
    aliases: Vec<BTreeMap<String, i32>>,
}

#[derive(Debug, Clone)]
struct Client {
    /// The process of its last report.
    who: usize,
    /// The event, with the client's total as its count.
    event: Event,
}

impl Clients {
    pub(super) fn new(processes: usize) -> Self {
        Self { by_name: BTreeMap::new(), aliases: vec![BTreeMap::new(); processes] }
    }

    pub(super) fn has_aliases(&self, who: usize) -> bool {
        !self.aliases[who].is_empty()
    }

    pub(super) fn forget_aliases(&mut self, who: usize) {
        self.aliases[who].clear();
    }
}

impl Sim<'_> {
    /// Whether the next client may report. A client changes to another process only when the first one owes nothing.
    pub(super) fn may_accept(&self) -> bool {
        let (who, event) = &self.scope.script[self.next];
        match self.clients.by_name.get(event.metadata.name.as_str()) {
            Some(client) if client.who != *who => {
                let is_quiet = self.flights.iter().all(|flight| flight.who != client.who);
                is_quiet && !self.cluster.processes[client.who].owes()
            }
            _ => true,
        }
    }

    /// Reports an event, and counts it as `ingest/occurrence.rs` does. The event's count is the number of occurrences
    /// since the last report. A count of 0 is one occurrence of a client without totals.
    pub(super) fn report(&mut self, who: usize, mut event: Event) {
        let name = event.metadata.name.to_string();
        let grown = event.count.abs();
        if grown == 0 {
            self.accept_growth(who, event, 1, 1);
            return;
        }
        let before = self.clients.by_name.get(&name).filter(|_| event.count > 0).cloned();
        event.count = grown;
        if before.as_ref().is_some_and(|client| client.who != who) {
            self.cluster.read_changes(who, None);
        }
        event.count += before.map_or(0, |client| client.event.count);
        let growth = if event.count == 1 {
            1
        } else {
            let alias = self.clients.aliases[who].get(&name).copied();
            let known = alias.map_or_else(|| self.cluster.counted_under(who, &event), i64::from);
            (i64::from(event.count) - known.max(self.cluster.line_of(who, &event))).max(1)
        };
        self.clients.aliases[who].insert(name.clone(), event.count);
        self.clients.by_name.insert(name, Client { who, event: event.clone() });
        self.accept_growth(who, event, u32::try_from(growth).unwrap(), u64::try_from(grown).unwrap());
    }

    fn accept_growth(&mut self, who: usize, event: Event, growth: u32, happened: u64) {
        self.happened += happened;
        self.since_commit[who] += u64::from(growth);
        self.cluster.accept_all(who, event, growth);
    }

    /// Reports each client's final total.
    pub(super) fn report_all(&mut self) {
        for Client { who, event } in self.clients.by_name.clone().into_values() {
            if !self.begins_again() {
                self.clients.forget_aliases(who);
            }
            self.list_store(who);
            self.report(who, Event { count: LAST, ..event });
        }
    }

    /// Whether a client begins again at 1 under its name. The store then has the sum of all its series, and only a
    /// process with the client's alias can compute the growth.
    fn begins_again(&self) -> bool {
        self.scope.script.iter().any(|(_, event)| event.count < 0)
    }

    /// Lists the store: an open watch has received everything once all processes are idle.
    fn list_store(&mut self, who: usize) {
        if self.scope.watches {
            self.cluster.read_changes(who, None);
        }
    }

    pub(super) fn check_totals(&mut self) -> Result<(), String> {
        if self.begins_again() {
            return Ok(());
        }
        let next = self.cluster.begin(Disk::new());
        self.cluster.processes.push(next);
        let reader = self.scope.processes;
        self.cluster.read_changes(reader, None);
        for Client { who, event } in self.clients.by_name.clone().into_values() {
            self.list_store(who);
            for process in [who, reader] {
                let known = self.cluster.counted_under(process, &event);
                if known != i64::from(event.count) {
                    let name = &event.metadata.name;
                    return Err(format!(
                        "process {process} has the total {known} of {name}, which has reported {}",
                        event.count
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Returns an event of this client with the number of occurrences since its last report; -1 begins a new series under
/// the old name. All clients count on one record.
fn happened(number: usize, count: i32) -> Event {
    Event { count, metadata: plain_event(number, "", "").metadata, ..plain_event(0, "BackOff", "m") }
}

/// Each item of the script is a process, a client, and the number of its occurrences since its last report.
fn totals(name: &'static str, script: &[(usize, usize, i32)]) -> Scope {
    let script = script.iter().map(|(who, number, count)| (*who, happened(*number, *count))).collect();
    Scope { totals: true, forgets: 1, depth: 7, ..scope(name, script) }
}

#[test]
fn a_client_with_totals() {
    let script = [(0, 0, 1), (0, 0, 1), (0, 0, 2)];
    explore(&Scope { faults: 2, labels: true, ..totals("totals", &script) });
    explore(&Scope { faults: 2, crashes: true, ..totals("totals, crash", &script) });
    let late = totals("totals, crash before the commit", &script);
    // A request outside of the spool that is executed after the next process's list counts in addition to the client's
    // total. So there is no limbo.
    explore(&Scope { faults: 2, crashes: true, limbo: false, commits_at_once: false, ..late });
}

#[test]
fn two_clients_on_one_record() {
    let script = [(0, 0, 1), (0, 1, 1), (0, 0, 2), (0, 1, 1)];
    explore(&Scope { watches: true, ..totals("two totals", &script) });
    explore(&Scope { crashes: true, ..totals("two totals, crash", &script) });
    let late = totals("two totals, crash before the commit", &script);
    explore(&Scope { crashes: true, limbo: false, commits_at_once: false, ..late });
}

#[test]
fn a_client_beside_others_without_totals() {
    let script = [(0, 0, 1), (0, 0, 2), (0, 1, 0), (0, 0, 1)];
    explore(&Scope { crashes: true, ..totals("totals and others", &script) });
}

#[test]
fn clients_of_two_processes_on_one_record() {
    let script = [(0, 0, 1), (1, 1, 1), (0, 0, 2), (1, 1, 1)];
    let two = || Scope { processes: 2, lists: true, depth: 6, ..totals("totals of two processes", &script) };
    explore(&two());
    explore(&Scope { crashes: true, ..two() });
}

#[test]
fn a_client_that_comes_to_another_process() {
    let two = |name, script: &[_]| Scope { processes: 2, lists: true, depth: 6, ..totals(name, script) };
    explore(&two("totals from another process", &[(0, 0, 1), (0, 0, 2), (1, 0, 1), (0, 0, 2)]));
    let others = [(0, 0, 1), (1, 1, 0), (1, 0, 2), (0, 1, 0), (0, 0, 1)];
    explore(&two("totals from another process, and others", &others));
    explore(&two("two totals from another process", &[(0, 0, 1), (0, 1, 1), (1, 0, 2), (1, 1, 1), (0, 0, 1)]));
}

#[test]
fn a_client_that_begins_again_under_its_name() {
    let again = |name, script: &[_]| Scope { forgets: 0, faults: 2, watches: true, ..totals(name, script) };
    let script = [(0, 0, 1), (0, 0, 2), (0, 0, -1), (0, 0, 1)];
    explore(&again("totals, again", &script));
    explore(&Scope { labels: true, counts: true, ..again("totals, again, another writer", &script) });
    let others = [(0, 0, 1), (0, 1, 1), (0, 0, 2), (0, 0, -1), (0, 1, 1), (0, 0, 1)];
    explore(&again("two totals, again", &others));
}

#[test]
fn a_client_whose_record_is_evicted() {
    // The other event evicts the key of the client's record.
    let other = Event { count: 0, ..plain_event(1, "Other", "o") };
    let script = vec![(0, happened(0, 1)), (0, happened(0, 2)), (0, other), (0, happened(0, 1)), (0, happened(0, 1))];
    let evicted = |name, naming| Scope {
        settings: Settings { lru_cache_size: NonZeroUsize::MIN, naming, ..Settings::default() },
        script: script.clone(),
        watches: true,
        ..totals(name, &[])
    };
    explore(&evicted("totals, evicted, one name", Naming::Deterministic));
    explore(&evicted("totals, evicted", Naming::Client));
    explore(&Scope { crashes: true, ..evicted("totals, evicted, crash", Naming::Client) });
}
