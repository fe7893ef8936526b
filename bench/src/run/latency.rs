//! Latency at a fixed rate while the outbox writes to a real apiserver.

use std::path::PathBuf;
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
    /// Starts it on the cores of the load, or on all.
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

/// What one side has shown, round by round.
#[derive(Debug, Default)]
struct Side {
    p50: Figures,
    p99: Figures,
    p999: Figures,
    cpu_percent: Figures,
    mebibytes: Figures,
}

impl Side {
    fn add(&mut self, name: &str, outcome: &Outcome, bytes: u64, rest: &str) {
        let millis = |micros: u64| micros as f64 / 1000.0;
        let percent = outcome.watched_cpu.iter().sum::<f64>() / outcome.seconds * 100.0;
        let mebibytes = bytes as f64 / f64::from(1 << 20);
        println!(
            "  {name:<22} {:>7} events/s  p50 {:>5} ms  p99 {:>5} ms  p99.9 {:>5} ms  longest {:>5} ms  server {:>3.0} % CPU, {} MiB  failed {}{rest}",
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

    fn print(&self, name: &str) {
        println!(
            "{name:<22} p50 {} ms, p99 {} ms, p99.9 {} ms, {} % CPU, {} MiB",
            self.p50, self.p99, self.p999, self.cpu_percent, self.mebibytes
        );
    }
}

/// 5,000 events a second.
pub(super) fn latency(bench: &Bench<'_>) -> anyhow::Result<()> {
    let flags = format!("--rate {} --connections 64", bench.options.rate.unwrap_or(5000.0));
    let [mut bare, mut ours] = [(); 2].map(|()| Side::default());
    for round in 1..=bench.options.rounds {
        println!("round {round}");
        // The apiserver stands idle beside the bare server.
        let apiserver = Apiserver::start(bench)?;
        {
            let (server, address) = Bench::server(&mut Bench::part("bare")?, &bench.server_cores)?;
            let outcome = bench.load(address, &[server.pid()], &flags)?;
            bare.add("bare", &outcome, machine::resident_bytes(server.pid())?, "");
        }
        let weir = bench.weir(&apiserver.kubeconfig, "")?;
        let before = machine::cpu_seconds(apiserver.child.pid())?;
        let outcome = bench.load(weir.listen, &[weir.child.pid()], &flags)?;
        let spent = machine::cpu_seconds(apiserver.child.pid())? - before;
        let samples = weir.check(&[&outcome])?;
        let rest = format!("; {} writes upstream, which cost the apiserver {} s CPU", samples.writes(), short(spent));
        ours.add("eventweir", &outcome, machine::resident_bytes(weir.child.pid())?, &rest);
    }
    bare.print("bare");
    ours.print("eventweir");
    verdict("p99 of eventweir less p99 of bare, ms", &ours.p99.less(&bare.p99), Target::AtMost(1.0));
    Ok(())
}
