//! The core and the access decision without a server: `benches/correlate.rs`, compared with client-go's correlator, and
//! `benches/access.rs`.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context as _, ensure};
use serde::Deserialize;

use super::bench::Bench;
use super::table::{Figures, Target, short, verdict};
use super::{Options, child};

/// Names of cases in `benches/correlate.rs`.
const FLOOR: &str = "floor, 4,000 keys";
const REPEAT: &str = "repeat: accept and write the patch, 4,000 keys";
/// Names in go/micro.go and in `benches/correlate.rs`, with the least ratio of their CPU times.
const PAIRS: [(&str, &str, Option<f64>); 3] = [
    ("repeat", REPEAT, Some(30.0)),
    ("combining", "combining: accept, a new message each", None),
    ("new object", "new object: accept, create, settle", None),
];

/// A line of the reference program.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Cost {
    name: String,
    cpu_micros: f64,
    allocations: f64,
    bytes: f64,
}

/// Runs one of `benches/`, prints its times, and returns the microseconds by name.
fn criterion(bench: &Bench<'_>, name: &str) -> anyhow::Result<BTreeMap<String, f64>> {
    let Options { profile, seconds, warmup, .. } = bench.options;
    let cargo = ["bench", "--locked", "--profile", profile, "--bench", name];
    child::output(Command::new("cargo").args(cargo).args(["--no-run", "--quiet"]), &bench.server_cores)?;
    let mut command = Command::new("cargo");
    command.args(cargo).args(["--", "--measurement-time", &seconds.to_string()]);
    // Only the estimate is read, so few resamples are enough.
    command.args(["--warm-up-time", &warmup.min(1.0).to_string(), "--nresamples", "1000"]);
    // Hides criterion's progress.
    command.stderr(std::process::Stdio::null());
    let times = read(&child::output(&mut command, &bench.server_cores)?);
    for (name, micros) in &times {
        println!("  {name}: {} µs", short(*micros));
    }
    Ok(times)
}

/// Reads microseconds by name from criterion's output. A long name is on a separate line before its time.
fn read(output: &str) -> BTreeMap<String, f64> {
    let mut times = BTreeMap::new();
    let mut before = "";
    for line in output.lines() {
        if let Some((name, rest)) = line.split_once("time:") {
            let name = if name.trim().is_empty() { before } else { name };
            let words: Vec<&str> = rest.trim().trim_matches(['[', ']']).split_whitespace().collect();
            // Lower bound, estimate and upper bound, each with its unit.
            if let [_, _, estimate, unit, ..] = words[..]
                && let Ok(estimate) = estimate.parse::<f64>()
            {
                let micros = match unit {
                    "ps" => estimate / 1e6,
                    "ns" => estimate / 1e3,
                    "ms" => estimate * 1e3,
                    "s" => estimate * 1e6,
                    _ => estimate,
                };
                times.insert(name.trim().to_owned(), micros);
            }
        }
        before = line;
    }
    times
}

/// Measures the three parts of a cached access decision, and their sum.
pub(super) fn access(bench: &Bench<'_>) -> anyhow::Result<()> {
    let mut sums = Figures::default();
    for round in 1..=bench.options.rounds {
        println!("round {round}");
        let times = criterion(bench, "access")?;
        let parts = ["access/token", "access/permission", "access/place"].map(|part| times.get(part));
        ensure!(parts.iter().all(Option::is_some), "benches/access.rs lacks a part: {times:?}");
        sums.push(parts.into_iter().flatten().sum());
    }
    verdict("a cached access decision, µs", &sums, Some(Target::AtMost(2.0)));
    Ok(())
}

/// Suffix in `benches/correlate.rs` of cases with group budgets that have tokens.
const BUDGETED: &str = ", group budgets";

/// Measures eventweir's core and client-go's correlator in turn.
pub(super) fn core(bench: &Bench<'_>) -> anyhow::Result<()> {
    let program = bench.options.go.as_ref().context("--go names no program")?;
    let seconds = bench.options.seconds.to_string();
    let mut ours: BTreeMap<String, Figures> = BTreeMap::new();
    let mut theirs: BTreeMap<String, Figures> = BTreeMap::new();
    for round in 1..=bench.options.rounds {
        println!("round {round}");
        for (name, micros) in criterion(bench, "correlate")? {
            ours.entry(name).or_default().push(micros);
        }
        let printed = child::output(Command::new(program).args(["micro", "--seconds", &seconds]), &bench.server_cores)?;
        for line in printed.lines() {
            let cost: Cost = serde_json::from_str(line)?;
            let (micros, allocations) = (short(cost.cpu_micros), short(cost.allocations));
            println!(
                "  client-go, {}: {micros} µs CPU, {allocations} allocations, {} bytes",
                cost.name,
                short(cost.bytes)
            );
            theirs.entry(cost.name).or_default().push(cost.cpu_micros);
        }
    }
    let find = |side: &BTreeMap<String, Figures>, name: &str| {
        side.get(name).cloned().with_context(|| format!("there is no benchmark {name:?}"))
    };
    let repeat = find(&ours, REPEAT)?;
    ensure!(!repeat.0.is_empty(), "no round");
    verdict("a repeat with its patch : the floor", &repeat.ratio(&find(&ours, FLOOR)?), Some(Target::AtMost(3.0)));
    for name in [REPEAT, "new object: accept, create, settle"] {
        let budgeted = find(&ours, &format!("{name}{BUDGETED}"))?;
        let ratio = budgeted.ratio(&find(&ours, name)?);
        verdict(&format!("{name}: with group budgets : without"), &ratio, Some(Target::AtMost(1.2)));
    }
    for (theirs_name, ours_name, least) in PAIRS {
        let (ours, theirs) = (find(&ours, ours_name)?, find(&theirs, theirs_name)?);
        println!("{theirs_name}: client-go {theirs} µs, eventweir {ours} µs");
        verdict(&format!("client-go : eventweir, {theirs_name}"), &theirs.ratio(&ours), least.map(Target::AtLeast));
    }
    Ok(())
}
