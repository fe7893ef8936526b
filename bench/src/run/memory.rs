//! Memory of a million objects, and that nothing grows after that.

use std::time::{Duration, Instant};

use anyhow::ensure;

use super::bench::Bench;
use super::table::{Figures, Target, short, verdict};
use super::weir::Weir;
use crate::load::Outcome;
use crate::machine;

/// Limits that a million keys over 100,000 sources stay below.
const WIDE: &str = "correlation: {maxSources: 1000000, maxTrackedKeys: 20000000}\n";

/// Keys that are sent before the outbox is waited for.
const PART: usize = 10_000;

/// Longest time for the outbox to write what it may, and for budgets to be full again: a token comes every 300 s.
const SETTLE: Duration = Duration::from_secs(600);

fn mebibytes(pid: u32) -> anyhow::Result<f64> {
    Ok(machine::resident_bytes(pid)? as f64 / f64::from(1 << 20))
}

/// Waits until everything accepted is written.
fn settle(weir: &Weir, name: &str) -> anyhow::Result<()> {
    let begin = Instant::now();
    while weir.scrape()?.sum(name) > 0.0 {
        ensure!(begin.elapsed() < SETTLE, "{name} is not 0 after {} s", SETTLE.as_secs());
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Sends one event about each of `keys` objects of `sources` sources. In parts, each of which is written before the next, so
/// that the outbox neither refuses nor grows beyond what it ever needs.
fn fill(bench: &Bench<'_>, weir: &Weir, keys: u64, sources: u64) -> anyhow::Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    for first in (0..keys).step_by(PART) {
        let end = keys.min(first + PART as u64);
        let flags = format!("--mix walk --first {first} --objects {end} --nodes {sources} --seconds 120 --warmup 0");
        outcomes.push(bench.load(weir.listen, &[weir.child.pid()], &flags)?);
        settle(weir, "eventweir_ledger_waiting")?;
    }
    settle(weir, "eventweir_outbox_records")?;
    weir.check(&outcomes.iter().collect::<Vec<_>>())?;
    Ok(outcomes)
}

/// Prints what so many objects weigh, and returns the resident MiB.
fn tell(weir: &Weir, when: &str, empty: f64, keys: u64) -> anyhow::Result<f64> {
    let (full, samples) = (mebibytes(weir.child.pid())?, weir.scrape()?);
    println!(
        "  {when}: {} MiB resident ({} empty), {} bytes an object; {} keys tracked, {} budgets",
        short(full),
        short(empty),
        short((full - empty) * f64::from(1 << 20) / keys as f64),
        samples.value("eventweir_correlator_tracked_keys"),
        samples.value("eventweir_outbox_budgets"),
    );
    Ok(full)
}

/// Memory of a million objects, each under two keys, and a soak after the last round.
pub(super) fn memory(bench: &Bench<'_>) -> anyhow::Result<()> {
    let keys = bench.options.keys;
    let mut busy = [Figures::default(), Figures::default()];
    let mut steady = [Figures::default(), Figures::default()];
    let populations = [keys / 250, keys / 10];
    for round in 1..=bench.options.rounds {
        println!("round {round}");
        let mut servers = Vec::new();
        for (sources, busy) in populations.into_iter().zip(&mut busy) {
            let (stub, kubeconfig) = bench.stub(None)?;
            let weir = bench.weir(&kubeconfig, WIDE)?;
            let empty = mebibytes(weir.child.pid())?;
            let filled = fill(bench, &weir, keys, sources)?;
            busy.push(tell(&weir, &format!("{sources} sources, all written"), empty, keys)?);
            servers.push((stub, weir, filled, empty, sources));
        }
        if keys >= 1_000_000 {
            // Takes minutes, which a short run does not have.
            for ((_, weir, _, empty, sources), steady) in servers.iter().zip(&mut steady) {
                settle(weir, "eventweir_outbox_budgets")?;
                steady.push(tell(weir, &format!("{sources} sources, budgets full again"), *empty, keys)?);
            }
        }
        if round == bench.options.rounds
            && let Some((_, weir, filled, _, sources)) = servers.pop()
        {
            soak(bench, &weir, keys, sources, filled)?;
        }
    }
    if keys >= 1_000_000 {
        for ((sources, busy), steady) in populations.into_iter().zip(busy).zip(steady) {
            verdict(
                &format!("{sources} sources: resident MiB, as soon as all was written"),
                &busy,
                Target::AtMost(400.0),
            );
            verdict(&format!("{sources} sources: resident MiB, in steady state"), &steady, Target::AtMost(400.0));
        }
    }
    Ok(())
}

/// Goes on at 2,000 events a second about the same keys, in ten parts.
fn soak(bench: &Bench<'_>, weir: &Weir, keys: u64, sources: u64, filled: Vec<Outcome>) -> anyhow::Result<()> {
    let seconds = bench.options.soak / 10.0;
    let mut outcomes = filled;
    let mut sizes = Vec::new();
    for part in 1..=10 {
        let flags = format!("--mix draw --objects {keys} --nodes {sources} --rate 2000 --seconds {seconds} --warmup 0");
        outcomes.push(bench.load(weir.listen, &[weir.child.pid()], &flags)?);
        let size = mebibytes(weir.child.pid())?;
        let samples = weir.check(&outcomes.iter().collect::<Vec<_>>())?;
        println!(
            "  soak, after {} s: {} MiB, {} records in the outbox, {} budgets",
            short(f64::from(part) * seconds),
            short(size),
            samples.value("eventweir_outbox_records"),
            samples.value("eventweir_outbox_budgets"),
        );
        sizes.push(size);
    }
    // The first half is given to fill what has a limit of its own: budgets are full again after 300 s.
    let late = sizes[sizes.len() - 1] / sizes[sizes.len() / 2 - 1];
    verdict("resident memory at the soak's end to that at its middle", &Figures(vec![late]), Target::AtMost(1.02));
    Ok(())
}
