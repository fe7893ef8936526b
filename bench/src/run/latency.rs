//! Target 4: latencies at a fixed rate while the outbox writes to a real apiserver; and target 8: thousands of connections.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Context as _;
use serde_json::Value;

use super::bench::Bench;
use super::child::{Child, Says};
use super::table::{Figures, Target, short, verdict};
use crate::load::Outcome;
use crate::{machine, tls};

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

/// 5,000 connections with TLS, 0.1 events a second each.
pub(super) fn connections(bench: &Bench<'_>) -> anyhow::Result<()> {
    let count = bench.options.connections;
    let rate = bench.options.rate.unwrap_or(count as f64 / 10.0);
    machine::allow_many_files();
    let certificate = tls::make(&bench.folder)?;
    let plain = format!("--rate {rate} --connections {count}");
    let with_tls = format!("{plain} --tls {}", certificate.display());
    let [mut bare, mut ours, mut fronted, mut front_alone] = [(); 4].map(|()| Side::default());
    for round in 1..=bench.options.rounds {
        println!("round {round}");
        {
            let mut command = Bench::part("bare")?;
            let (server, address) = Bench::server(command.arg("--tls").arg(&bench.folder), &bench.server_cores)?;
            let (outcome, bytes) = bench.load_and_weigh(address, &[server.pid()], &with_tls)?;
            bare.add("bare, TLS", &outcome, bytes[0], "");
        }
        let (_stub, kubeconfig) = bench.stub(Some(bench.options.upstream_writes))?;
        {
            let weir = bench.weir(&kubeconfig, "")?;
            let (outcome, bytes) = bench.load_and_weigh(weir.listen, &[weir.child.pid()], &plain)?;
            weir.check(&[&outcome])?;
            ours.add("eventweir, no TLS", &outcome, bytes[0], "");
        }
        let weir = bench.weir(&kubeconfig, "")?;
        let mut command = Bench::part("front")?;
        command.arg("--tls").arg(&bench.folder).args(["--to", &weir.listen.to_string()]);
        let (front, address) = Bench::server(&mut command, &bench.server_cores)?;
        let (outcome, bytes) = bench.load_and_weigh(address, &[weir.child.pid(), front.pid()], &with_tls)?;
        weir.check(&[&outcome])?;
        let share = |at: usize| Outcome { watched_cpu: vec![outcome.watched_cpu[at]], ..outcome.clone() };
        fronted.add("eventweir behind TLS", &share(0), bytes[0], "");
        front_alone.add("  the TLS in front", &share(1), bytes[1], "");
    }
    bare.print("bare, TLS");
    ours.print("eventweir, no TLS");
    fronted.print("eventweir behind TLS");
    front_alone.print("  the TLS in front");
    verdict("p99 of eventweir behind TLS, ms", &fronted.p99, Target::AtMost(10.0));
    Ok(())
}
