//! A memory budget in a storm: the process stays within it, and refuses further events with 429.

use anyhow::{Context, ensure};

use super::bench::Bench;
use super::table::short;

/// The budget, in MiB.
const BUDGET: f64 = 128.0;
/// Without group budgets, so that nothing folds. The upstream accepts few writes, so that the outbox fills.
const CONFIG: &str = "memory: 128Mi\ncorrelation: {groupBurstSize: 0}\n";

/// Sends events about new objects from many sources at full speed.
pub(super) fn limited(bench: &Bench<'_>) -> anyhow::Result<()> {
    let (_stub, kubeconfig) = bench.stub(Some(20.0))?;
    let weir = bench.weir(&bench.options.eventweir, &kubeconfig, CONFIG)?;
    let flags = format!("--mix walk --first 0 --objects 1000000000 --nodes {} --warmup 0", bench.options.sources);
    let outcome = bench.load(weir.listen, &[weir.child.pid()], &flags)?;
    let samples = weir.scrape()?;
    let part = |name: &str| samples.sum(&format!("eventweir_ledger_{name}"));
    let [received, rejected, written] = ["received_total", "rejected_total", "written_total"].map(part);
    let [waiting, lost] = ["waiting", "lost_total"].map(part);
    let peak = peak_mebibytes(weir.child.pid())?;
    println!(
        "  {} events sent, {} answered with 429; at most {} MiB resident, of a budget of {BUDGET}",
        outcome.sent,
        outcome.failed,
        short(peak)
    );
    ensure!(received == rejected + written + waiting + lost, "the ledger does not balance");
    ensure!(
        received == outcome.sent as f64 && rejected == outcome.failed as f64 && lost == 0.0,
        "events are missing, or lost"
    );
    ensure!(rejected > 0.0, "nothing was refused: the outbox was not full");
    ensure!(peak <= BUDGET, "{peak} MiB are more than the budget");
    Ok(())
}

/// Returns the peak resident memory in MiB.
pub(super) fn peak_mebibytes(pid: u32) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    let kibibytes: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kibibytes / 1024.0)
}
