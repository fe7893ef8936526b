//! Latency at a fixed rate while the outbox writes to a real apiserver.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use serde_json::Value;

use super::bench::Bench;
use super::child::{Child, Says};
use super::table::{Figures, Target, short, verdict};
use crate::load::Outcome;
use crate::machine;

/// A real kube-apiserver with its etcd (tests/apiserver).
#[derive(Debug)]
pub(super) struct Apiserver {
    pub(super) child: Child,
    pub(super) kubeconfig: PathBuf,
}

impl Apiserver {
    /// Starts it on the cores of the load.
    ///
    /// # Errors
    /// When there is none, or it does not come up.
    pub(super) fn start(bench: &Bench<'_>) -> anyhow::Result<Self> {
        let program = bench.options.apiserver.as_ref().context("--apiserver names no program")?;
        let folder = bench.folder.join("apiserver");
        drop(std::fs::remove_dir_all(&folder));
        let mut command = Command::new(program);
        command.args(["--unsafe-no-fsync", "--namespaces", "shop", "--dir"]).arg(&folder);
        let (child, kubeconfig) = Child::start(&mut command, &bench.load_cores, Says::Out, |line| {
            let info: Value = serde_json::from_str(line.strip_prefix("READY ")?).ok()?;
            Some(PathBuf::from(info.get("kubeconfig")?.as_str()?))
        })?;
        Ok(Self { child, kubeconfig })
    }
}

/// A side of the comparison, with its figures of every round.
#[derive(Debug)]
struct Side<'a> {
    name: &'static str,
    /// A build of eventweir; `None` is the bare server.
    program: Option<&'a Path>,
    p50: Figures,
    p99: Figures,
    p999: Figures,
    cpu_percent: Figures,
    mebibytes: Figures,
}

impl<'a> Side<'a> {
    fn new(name: &'static str, program: Option<&'a Path>) -> Self {
        let [p50, p99, p999, cpu_percent, mebibytes] = [(); 5].map(|()| Figures::default());
        Self { name, program, p50, p99, p999, cpu_percent, mebibytes }
    }

    /// Starts an apiserver and the server anew, and loads the server. The apiserver is idle beside the bare one.
    fn measure(&mut self, bench: &Bench<'_>, flags: &str) -> anyhow::Result<()> {
        let apiserver = Apiserver::start(bench)?;
        let Some(program) = self.program else {
            let (server, address) = Bench::server(&mut Bench::part("bare")?, &bench.server_cores)?;
            let outcome = bench.load(address, &[server.pid()], flags)?;
            self.add(&outcome, machine::resident_bytes(server.pid())?, "");
            return Ok(());
        };
        let weir = bench.weir(program, &apiserver.kubeconfig, "")?;
        let before = machine::cpu_seconds(apiserver.child.pid())?;
        let outcome = bench.load(weir.listen, &[weir.child.pid()], flags)?;
        let spent = machine::cpu_seconds(apiserver.child.pid())? - before;
        let samples = weir.check(&[&outcome])?;
        let rest = format!("; {} writes upstream, which cost the apiserver {} s CPU", samples.writes(), short(spent));
        self.add(&outcome, machine::resident_bytes(weir.child.pid())?, &rest);
        Ok(())
    }

    fn add(&mut self, outcome: &Outcome, bytes: u64, rest: &str) {
        let millis = |micros: u64| micros as f64 / 1000.0;
        let percent = outcome.watched_cpu[0] / outcome.seconds * 100.0;
        let mebibytes = bytes as f64 / f64::from(1 << 20);
        println!(
            "  {:<10} {:>7} events/s  p50 {:>5} ms  p99 {:>5} ms  p99.9 {:>5} ms  longest {:>5} ms  server {:>3.0} % CPU, {} MiB  failed {}{rest}",
            self.name,
            short(outcome.per_second),
            short(millis(outcome.p50)),
            short(millis(outcome.p99)),
            short(millis(outcome.p999)),
            short(millis(outcome.max)),
            percent,
            short(mebibytes),
            outcome.failed,
        );
        self.p50.push(millis(outcome.p50));
        self.p99.push(millis(outcome.p99));
        self.p999.push(millis(outcome.p999));
        self.cpu_percent.push(percent);
        self.mebibytes.push(mebibytes);
    }
}

/// 5,000 events per second.
pub(super) fn latency(bench: &Bench<'_>) -> anyhow::Result<()> {
    let flags = format!("--rate {} --connections 64", bench.options.rate.unwrap_or(5000.0));
    let mut sides = vec![Side::new("bare", None), Side::new("eventweir", Some(&bench.options.eventweir))];
    sides.extend(bench.options.also.as_deref().map(|program| Side::new("also", Some(program))));
    for round in 1..=bench.options.rounds {
        println!("round {round}");
        for side in &mut sides {
            side.measure(bench, &flags)?;
        }
    }
    for side in &sides {
        println!(
            "{:<10} p50 {} ms, p99 {} ms, p99.9 {} ms, {} % CPU, {} MiB",
            side.name, side.p50, side.p99, side.p999, side.cpu_percent, side.mebibytes
        );
    }
    let less = sides[1].p99.less(&sides[0].p99);
    verdict("p99 of eventweir less p99 of bare, ms", &less, Some(Target::AtMost(1.0)));
    if let Some(also) = sides.get(2) {
        verdict("eventweir : also, p99", &sides[1].p99.ratio(&also.p99), None);
        verdict("eventweir : also, CPU", &sides[1].cpu_percent.ratio(&also.cpu_percent), None);
        verdict("eventweir : also, resident memory", &sides[1].mebibytes.ratio(&also.mebibytes), None);
    }
    Ok(())
}
