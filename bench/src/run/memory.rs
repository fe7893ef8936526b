//! Memory of many objects after all writes, and its growth afterwards.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::ensure;

use super::bench::Bench;
use super::child::Child;
use super::table::{Figures, Target, short, verdict};
use super::weir::Weir;
use crate::load::Outcome;
use crate::machine;

/// Limits above the load.
const WIDE: &str =
    "correlation: {maxSources: 1000000, maxTrackedKeys: 20000000}\nupstream: {qps: 1000000, burst: 1000000}\n";
/// The same for builds with group budgets, so that nothing folds.
const UNGROUPED: &str = "correlation: {maxSources: 1000000, maxTrackedKeys: 20000000, groupBurstSize: 0}\nupstream: {qps: 1000000, burst: 1000000}\n";
/// Number of objects that are sent between two waits for the outbox.
const PART: usize = 10_000;
/// Time limit for the outbox to drain and for budgets to fill: a token is added every 300 s.
const SETTLE: Duration = Duration::from_secs(600);

/// A build of eventweir, with its figures of all rounds.
#[derive(Debug)]
struct Side<'a> {
    name: &'static str,
    program: &'a Path,
    /// Resident MiB right after the last write.
    written: Figures,
    /// Resident MiB once all budgets are full.
    steady: Figures,
}

impl<'a> Side<'a> {
    fn new(name: &'static str, program: &'a Path) -> Self {
        Self { name, program, written: Figures::default(), steady: Figures::default() }
    }
}

/// A running eventweir that has received an event about each object.
#[derive(Debug)]
struct Filled {
    weir: Weir,
    outcomes: Vec<Outcome>,
    /// Resident MiB before the first event.
    empty: f64,
    _stub: Child,
}

impl Filled {
    /// Sends one event about each object, in parts. Each part is written before the next is sent, so the outbox stays
    /// small and refuses nothing.
    fn new(bench: &Bench<'_>, program: &Path) -> anyhow::Result<Self> {
        let (objects, sources) = (bench.options.objects, bench.options.sources);
        let (stub, kubeconfig) = bench.stub(None)?;
        let schema = std::process::Command::new(program).arg("config-schema").output()?;
        let has_groups = String::from_utf8_lossy(&schema.stdout).contains("groupBurstSize");
        let weir = bench.weir(program, &kubeconfig, if has_groups { UNGROUPED } else { WIDE })?;
        let empty = mebibytes(&weir)?;
        let mut outcomes = Vec::new();
        for first in (0..objects).step_by(PART) {
            let end = objects.min(first + PART as u64);
            let flags =
                format!("--mix walk --first {first} --objects {end} --nodes {sources} --seconds 120 --warmup 0");
            outcomes.push(bench.load(weir.listen, &[weir.child.pid()], &flags)?);
            settle(&weir, "eventweir_ledger_waiting")?;
        }
        settle(&weir, "eventweir_outbox_records")?;
        weir.check(&outcomes.iter().collect::<Vec<_>>())?;
        Ok(Self { weir, outcomes, empty, _stub: stub })
    }

    /// Prints and returns the resident MiB.
    fn weigh(&self, name: &str, when: &str, objects: u64) -> anyhow::Result<f64> {
        let (full, samples) = (mebibytes(&self.weir)?, self.weir.scrape()?);
        println!(
            "  {name:<10} {when}: {} MiB resident ({} empty), {} bytes per object; {} keys tracked, {} budgets",
            short(full),
            short(self.empty),
            short((full - self.empty) * f64::from(1 << 20) / objects as f64),
            samples.value("eventweir_correlator_tracked_keys"),
            samples.value("eventweir_outbox_budgets"),
        );
        Ok(full)
    }

    /// Sends 2,000 events per second about the same objects, in ten parts.
    fn soak(mut self, bench: &Bench<'_>) -> anyhow::Result<()> {
        let (objects, sources, seconds) = (bench.options.objects, bench.options.sources, bench.options.soak / 10.0);
        let flags =
            format!("--mix draw --objects {objects} --nodes {sources} --rate 2000 --seconds {seconds} --warmup 0");
        let mut sizes = Vec::new();
        for part in 1..=10 {
            self.outcomes.push(bench.load(self.weir.listen, &[self.weir.child.pid()], &flags)?);
            let samples = self.weir.check(&self.outcomes.iter().collect::<Vec<_>>())?;
            let size = mebibytes(&self.weir)?;
            println!(
                "  soak, after {} s: {} MiB, {} records in the outbox, {} budgets",
                short(f64::from(part) * seconds),
                short(size),
                samples.value("eventweir_outbox_records"),
                samples.value("eventweir_outbox_budgets"),
            );
            sizes.push(size);
        }
        // Bounded tables fill in the first half, and each budget is full after 300 s.
        let late = Figures(vec![sizes[9] / sizes[4]]);
        verdict("resident memory at the end of the soak : at its middle", &late, Some(Target::AtMost(1.02)));
        Ok(())
    }
}

fn mebibytes(weir: &Weir) -> anyhow::Result<f64> {
    Ok(machine::resident_bytes(weir.child.pid())? as f64 / f64::from(1 << 20))
}

/// Waits until a metric is 0.
fn settle(weir: &Weir, name: &str) -> anyhow::Result<()> {
    let begin = Instant::now();
    while weir.scrape()?.sum(name) > 0.0 {
        ensure!(begin.elapsed() < SETTLE, "{name} is not 0 after {} s", SETTLE.as_secs());
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Each object is tracked under two keys. After the last round, a soak.
pub(super) fn memory(bench: &Bench<'_>) -> anyhow::Result<()> {
    let objects = bench.options.objects;
    println!("{objects} objects of {} sources", bench.options.sources);
    let mut sides = vec![Side::new("eventweir", &bench.options.eventweir)];
    sides.extend(bench.options.also.as_deref().map(|program| Side::new("also", program)));
    for round in 1..=bench.options.rounds {
        println!("round {round}");
        let mut filled = Vec::new();
        for side in &mut sides {
            let one = Filled::new(bench, side.program)?;
            side.written.push(one.weigh(side.name, "all written", objects)?);
            filled.push(one);
        }
        // A short run does not wait for full budgets, which takes minutes.
        for (side, one) in sides.iter_mut().zip(&filled).filter(|_| objects >= 1_000_000) {
            settle(&one.weir, "eventweir_outbox_budgets")?;
            side.steady.push(one.weigh(side.name, "budgets full", objects)?);
        }
        if round == bench.options.rounds {
            filled.swap_remove(0).soak(bench)?;
        }
    }
    let ours = &sides[0];
    verdict("resident MiB, after the last write", &ours.written, None);
    if objects >= 1_000_000 {
        verdict("resident MiB, in steady state", &ours.steady, Some(Target::AtMost(500.0)));
    }
    if let Some(also) = sides.get(1) {
        verdict("eventweir : also, after the last write", &ours.written.ratio(&also.written), None);
        if objects >= 1_000_000 {
            verdict("eventweir : also, in steady state", &ours.steady.ratio(&also.steady), None);
        }
    }
    Ok(())
}
