//! Writes to the apiserver for recorded shapes, by eventweir and by client-go's recorder.
//!
//! First both sides are simulated in the shapes' own time, with an hour's budgets and windows. Then both write for
//! real, at a fixed rate to the same kube-apiserver, whose CPU time is measured.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde::Deserialize;
use serde_json::Value;

use super::bench::Bench;
use super::child;
use super::latency::Apiserver;
use super::table::{Figures, Target, short, verdict};
use crate::machine;

const SHAPES: [&str; 6] = ["crash-loop", "failed-scheduling", "image-pull", "node-loss", "cronjob-hour", "one-object"];
/// Time limit for eventweir to write all records that need no new token.
const QUIET: Duration = Duration::from_secs(300);

#[derive(Debug, Deserialize)]
struct Written {
    occurrences: f64,
    writes: f64,
    seconds: f64,
}

#[derive(Debug, Deserialize)]
struct Simulated {
    occurrences: f64,
    writes: f64,
    shown: f64,
}

#[derive(Debug, Deserialize)]
struct Stored {
    records: f64,
    occurrences: f64,
}

/// The writes of one side for a shape, in each round.
#[derive(Debug, Default)]
struct Side {
    writes: Figures,
    shown: Figures,
    apiserver_cpu: Figures,
}

/// Runs the Go program with these arguments and a path, and parses its output.
fn go<T: serde::de::DeserializeOwned>(bench: &Bench<'_>, arguments: &[&str], last: &Path) -> anyhow::Result<T> {
    let program = bench.options.go.as_ref().context("--go names no program")?;
    let mut command = Command::new(program);
    let printed = child::output(command.args(arguments).arg(last), &bench.load_cores)?;
    serde_json::from_str(&printed).with_context(|| format!("the Go program printed {printed:?}"))
}

/// Runs both parts for each shape.
pub(super) fn writes(bench: &Bench<'_>) -> anyhow::Result<()> {
    let _: usize = go(bench, &["shapes", "--dir"], &bench.folder)?;
    let wanted = |shape: &&&str| bench.options.shape.as_deref().is_none_or(|only| only == **shape);
    println!("simulated, in the shapes' own time:");
    for shape in SHAPES.iter().filter(wanted) {
        simulated(bench, shape)?;
    }
    if bench.options.apiserver.is_none() {
        println!("without --apiserver, only the simulation runs");
        return Ok(());
    }
    let rate = bench.options.rate.unwrap_or(1000.0);
    println!("to a real apiserver, {rate} occurrences per second:");
    let apiserver = Apiserver::start(bench)?;
    for shape in SHAPES.iter().filter(wanted) {
        let [mut ours, mut theirs] = [(); 2].map(|()| Side::default());
        let mut occurrences = 0.0;
        for _ in 0..bench.options.rounds {
            occurrences = through_client_go(bench, &apiserver, shape, rate, &mut theirs)?;
            through_eventweir(bench, &apiserver, shape, rate, &mut ours)?;
        }
        println!("{shape}, {occurrences} occurrences:");
        for (name, side) in [("client-go", &theirs), ("eventweir", &ours)] {
            let each = Figures(side.writes.0.iter().map(|writes| writes / occurrences).collect());
            println!(
                "  {name:<10} {} writes, {each} per occurrence; {} occurrences shown; apiserver {} s CPU",
                side.writes, side.shown, side.apiserver_cpu
            );
        }
        println!(
            "  eventweir : client-go, writes {}, the apiserver's CPU {}",
            ours.writes.ratio(&theirs.writes),
            ours.apiserver_cpu.ratio(&theirs.apiserver_cpu)
        );
        if *shape == "one-object" {
            // No token is added in half a minute.
            verdict("writes of one object: its budget", &ours.writes, Some(Target::AtMost(25.0)));
        }
    }
    Ok(())
}

fn simulated(bench: &Bench<'_>, shape: &str) -> anyhow::Result<()> {
    let file = bench.folder.join(format!("{shape}.ndjson"));
    let theirs: Simulated = go(bench, &["simulate", "--file"], &file)?;
    let mut replay = Command::new(&bench.options.eventweir);
    replay.arg("replay").arg(&file).args(["--until", "end", "--output", "json"]);
    let printed: Value = serde_json::from_str(&child::output(&mut replay, &bench.load_cores)?)?;
    let column = |number: usize, key: &str| printed["columns"][number][key].as_f64().unwrap_or_default();
    let ours = |key: &str| column(1, key);
    ensure!(printed["input"]["events"].as_f64() == Some(theirs.occurrences), "the sides have different shapes");
    let [writes, shown] = ["writes", "shown"].map(|key| column(0, key));
    ensure!(
        writes == theirs.writes && shown == theirs.shown,
        "{shape}: replay predicts {writes} writes of client-go, which show {shown} occurrences; client-go itself: {theirs:?}"
    );
    println!(
        "  {shape}: {} occurrences; client-go writes {} and shows {}, as replay predicts; eventweir writes {} (ratio {}), and shows {} of them; {} wait at the end, {} are lost",
        theirs.occurrences,
        theirs.writes,
        theirs.shown,
        ours("writes"),
        short(ours("writes") / theirs.writes),
        ours("shown"),
        ours("waiting"),
        ours("lost"),
    );
    Ok(())
}

/// Counts the events of the apiserver, and deletes them.
fn take_stored(bench: &Bench<'_>, apiserver: &Apiserver) -> anyhow::Result<Stored> {
    go(bench, &["show", "--clear", "--kubeconfig"], &apiserver.kubeconfig)
}

fn through_client_go(
    bench: &Bench<'_>,
    apiserver: &Apiserver,
    shape: &str,
    rate: f64,
    side: &mut Side,
) -> anyhow::Result<f64> {
    let file = bench.folder.join(format!("{shape}.ndjson"));
    let kubeconfig = apiserver.kubeconfig.display().to_string();
    let before = machine::cpu_seconds(apiserver.child.pid())?;
    let arguments = ["broadcast", "--kubeconfig", &kubeconfig, "--rate", &rate.to_string(), "--file"];
    let written: Written = go(bench, &arguments, &file)?;
    let spent = machine::cpu_seconds(apiserver.child.pid())? - before;
    let stored = take_stored(bench, apiserver)?;
    println!(
        "    {shape}, client-go: {} writes in {} s; {} records show {} occurrences of {}; apiserver {} s CPU",
        written.writes,
        short(written.seconds),
        stored.records,
        stored.occurrences,
        written.occurrences,
        short(spent)
    );
    side.writes.push(written.writes);
    side.shown.push(stored.occurrences);
    side.apiserver_cpu.push(spent);
    Ok(written.occurrences)
}

fn through_eventweir(
    bench: &Bench<'_>,
    apiserver: &Apiserver,
    shape: &str,
    rate: f64,
    side: &mut Side,
) -> anyhow::Result<()> {
    let file = bench.folder.join(format!("{shape}.ndjson"));
    let weir = bench.weir(&bench.options.eventweir, &apiserver.kubeconfig, "")?;
    let before = machine::cpu_seconds(apiserver.child.pid())?;
    let to = format!("http://{}", weir.listen);
    let posted: Written = go(bench, &["post", "--to", &to, "--rate", &rate.to_string(), "--file"], &file)?;
    let begin = Instant::now();
    let samples = loop {
        let samples = weir.scrape()?;
        let waiting = samples.sum("eventweir_ledger_waiting");
        if waiting == samples.value("eventweir_ledger_waiting{why=\"budget\"}") {
            break samples;
        }
        ensure!(begin.elapsed() < QUIET, "eventweir still writes after {} s", QUIET.as_secs());
        std::thread::sleep(Duration::from_millis(200));
    };
    ensure!(
        samples.value("eventweir_ledger_received_total") == posted.occurrences,
        "not all posted events were received"
    );
    let spent = machine::cpu_seconds(apiserver.child.pid())? - before;
    let stored = take_stored(bench, apiserver)?;
    let writes = samples.attempts();
    println!(
        "    {shape}, eventweir: {writes} writes; {} records show {} occurrences of {}, {} wait for a token; apiserver {} s CPU",
        stored.records,
        stored.occurrences,
        posted.occurrences,
        samples.sum("eventweir_ledger_waiting"),
        short(spent)
    );
    side.writes.push(writes);
    side.shown.push(stored.occurrences);
    side.apiserver_cpu.push(spent);
    Ok(())
}
