//! Throughput of single posts and of batches: eventweir, servers that do less, and Go; eventweir with and without what `explain` keeps.

use std::path::Path;
use std::process::Command;

use super::bench::Bench;
use super::table::{Figures, Target, short, verdict};
use super::weir::ROOM;
use crate::load::Outcome;

/// What is loaded.
#[derive(Debug)]
enum Program<'a> {
    Bare,
    Eventweir(&'a Path, Look),
    Go(&'a Path),
}

/// How much eventweir tells of occurrences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// Nothing is kept.
    Off,
    /// What is kept by default: decisions, counters, and a tap that nobody reads.
    On,
    /// The same, and the tap is read.
    Read,
}

/// A side of the comparison, with its figures of every round.
#[derive(Debug)]
struct Side<'a> {
    name: &'static str,
    program: Program<'a>,
    per_second: Figures,
    /// CPU time of the server, in microseconds per event.
    cpu_micros: Figures,
}

impl<'a> Side<'a> {
    fn new(name: &'static str, program: Program<'a>) -> Self {
        Self { name, program, per_second: Figures::default(), cpu_micros: Figures::default() }
    }

    /// Starts the server anew and loads it.
    fn measure(&mut self, bench: &Bench<'_>, flags: &str) -> anyhow::Result<()> {
        let load = |command: &mut Command| {
            let (server, address) = Bench::server(command, &bench.server_cores)?;
            bench.load(address, &[server.pid()], flags)
        };
        match self.program {
            Program::Bare => self.add(&load(&mut Bench::part("bare")?)?, ""),
            Program::Go(program) => self.add(&load(Command::new(program).arg("serve"))?, ""),
            Program::Eventweir(program, look) => {
                let (_stub, kubeconfig) = bench.stub(Some(bench.options.upstream_writes))?;
                let off = if look == Look::Off { "explain: {enabled: false}\n" } else { "" };
                let weir = bench.weir(program, &kubeconfig, &format!("{ROOM}{off}"))?;
                if look == Look::Read {
                    weir.read_tap()?;
                }
                let outcome = bench.load(weir.listen, &[weir.child.pid()], flags)?;
                let samples = weir.check(&[&outcome])?;
                let [received, records] =
                    ["eventweir_ledger_received_total", "eventweir_outbox_records"].map(|name| samples.value(name));
                let writes = samples.writes();
                self.add(&outcome, &format!("  {received} received, {writes} written, {records} records wait"));
            }
        }
        Ok(())
    }

    fn add(&mut self, outcome: &Outcome, account: &str) {
        let cpu_micros = outcome.cpu_micros();
        println!(
            "  {:<10} {:>9} events/s  {:>6} µs CPU an event  server {:>4.0} %  generator {:>4.0} %  p50 {} µs  p99 {} µs{account}{}",
            self.name,
            short(outcome.per_second),
            short(cpu_micros),
            outcome.watched_cpu[0] / outcome.seconds * 100.0,
            outcome.own_cpu / outcome.seconds * 100.0,
            outcome.p50,
            outcome.p99,
            if outcome.failed > 0 { format!("  {} FAILED", outcome.failed) } else { String::new() }
        );
        self.per_second.push(outcome.per_second);
        self.cpu_micros.push(cpu_micros);
    }

    /// Prints how much more this side does than the other, per second and per CPU second.
    fn compare(&self, other: &Self, target: Option<f64>) {
        let target = target.map(Target::AtLeast);
        let events = self.per_second.ratio(&other.per_second);
        verdict(&format!("{} : {}, events/s", self.name, other.name), &events, target);
        // Other work on the machine changes this one least.
        verdict("the same, by CPU an event", &other.cpu_micros.ratio(&self.cpu_micros), target);
    }
}

/// One POST per event.
pub(super) fn single(bench: &Bench<'_>) -> anyhow::Result<()> {
    let mut others = vec![(Side::new("bare", Program::Bare), Some(0.6))];
    others.extend(bench.options.go.as_deref().map(|program| (Side::new("Go", Program::Go(program)), Some(6.0))));
    run(bench, "", others)
}

/// NDJSON.
pub(super) fn batch(bench: &Bench<'_>) -> anyhow::Result<()> {
    run(bench, "--batch 500 --connections 4", vec![(Side::new("bare", Program::Bare), Some(0.4))])
}

/// What it costs to say where events are: as single posts and as batches, on against off.
pub(super) fn look(bench: &Bench<'_>) -> anyhow::Result<()> {
    for (name, flags) in [("single posts", ""), ("batches", "--batch 500 --connections 4")] {
        println!("{name}");
        let side = |name, look| Side::new(name, Program::Eventweir(&bench.options.eventweir, look));
        let (mut on, mut off, mut read) = (side("on", Look::On), side("off", Look::Off), side("tap read", Look::Read));
        for round in 1..=bench.options.rounds {
            println!("round {round}");
            // By turns first, so that what a round has before it favours neither.
            let [first, second] = if round % 2 == 1 { [&mut on, &mut off] } else { [&mut off, &mut on] };
            first.measure(bench, flags)?;
            second.measure(bench, flags)?;
            read.measure(bench, flags)?;
        }
        for side in [&on, &off, &read] {
            println!("{:<10} events/s {:<28} µs CPU an event {}", side.name, side.per_second, side.cpu_micros);
        }
        on.compare(&off, Some(0.97));
        read.compare(&off, None);
    }
    Ok(())
}

/// Measures eventweir and the others in turn, and compares it with each. Beside a side stands the target against it.
fn run<'a>(bench: &Bench<'a>, flags: &str, mut others: Vec<(Side<'a>, Option<f64>)>) -> anyhow::Result<()> {
    let mut ours = Side::new("eventweir", Program::Eventweir(&bench.options.eventweir, Look::On));
    if let Some(program) = &bench.options.also {
        others.insert(0, (Side::new("also", Program::Eventweir(program, Look::On)), None));
    }
    for round in 1..=bench.options.rounds {
        println!("round {round}");
        ours.measure(bench, flags)?;
        for (side, _) in &mut others {
            side.measure(bench, flags)?;
        }
    }
    for side in std::iter::once(&ours).chain(others.iter().map(|(side, _)| side)) {
        println!("{:<10} events/s {:<28} µs CPU an event {}", side.name, side.per_second, side.cpu_micros);
    }
    for (other, target) in &others {
        ours.compare(other, *target);
    }
    Ok(())
}
