//! Throughput of single posts and of batches: eventweir, servers that do less, and Go.

use std::process::Command;

use super::bench::Bench;
use super::table::{Figures, Target, short, verdict};
use super::weir::ROOM;
use crate::load::Outcome;

/// What one side has shown, round by round.
#[derive(Debug, Default)]
struct Side {
    per_second: Figures,
    /// CPU time of the server, in microseconds an event.
    cpu_micros: Figures,
}

impl Side {
    fn add(&mut self, name: &str, outcome: &Outcome) {
        let cpu_micros = outcome.cpu_micros();
        println!(
            "  {name:<10} {:>9} events/s  {:>6} µs CPU an event  server {:>4.0} %  generator {:>4.0} %  p50 {} µs  p99 {} µs{}",
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

    fn print(&self, name: &str) {
        println!("{name:<10} events/s {:<28} µs CPU an event {}", self.per_second, self.cpu_micros);
    }
}

/// One POST per event.
pub(super) fn single(bench: &Bench<'_>) -> anyhow::Result<()> {
    compare(bench, "", 0.7, Some(6.0))
}

/// NDJSON.
pub(super) fn batch(bench: &Bench<'_>) -> anyhow::Result<()> {
    compare(bench, "--batch 500 --connections 4", 0.6, None)
}

fn compare(bench: &Bench<'_>, flags: &str, least: f64, least_go: Option<f64>) -> anyhow::Result<()> {
    let [mut bare, mut ours, mut go] = [(); 3].map(|()| Side::default());
    for round in 1..=bench.options.rounds {
        println!("round {round}");
        let load = |command: &mut Command| {
            let (server, address) = Bench::server(command, &bench.server_cores)?;
            bench.load(address, &[server.pid()], flags)
        };
        bare.add("bare", &load(&mut Bench::part("bare")?)?);
        {
            let (_stub, kubeconfig) = bench.stub(Some(bench.options.upstream_writes))?;
            // However fast it is.
            let weir = bench.weir(&kubeconfig, ROOM)?;
            let outcome = bench.load(weir.listen, &[weir.child.pid()], flags)?;
            ours.add("eventweir", &outcome);
            let samples = weir.check(&[&outcome])?;
            println!(
                "             account in order: {} received, {} writes upstream, {} records",
                samples.value("eventweir_ledger_received_total"),
                samples.writes(),
                samples.value("eventweir_outbox_records"),
            );
        }
        if let (Some(program), true) = (&bench.options.go, least_go.is_some()) {
            go.add("Go", &load(Command::new(program).arg("serve"))?);
        }
    }
    bare.print("bare");
    ours.print("eventweir");
    let ratio = ours.per_second.ratio(&bare.per_second);
    verdict("eventweir : bare, events/s", &ratio, Target::AtLeast(least));
    // Other work on the machine touches this one least.
    verdict("the same, by CPU an event", &bare.cpu_micros.ratio(&ours.cpu_micros), Target::AtLeast(least));
    if let (Some(least), false) = (least_go, go.per_second.0.is_empty()) {
        go.print("Go");
        verdict("eventweir : Go, events/s", &ours.per_second.ratio(&go.per_second), Target::AtLeast(least));
        verdict("the same, by CPU an event", &go.cpu_micros.ratio(&ours.cpu_micros), Target::AtLeast(least));
    }
    Ok(())
}
