//! Requests that are passed on: eventweir, a proxy that does nothing else, and none at all, in front of the stub.

use std::path::Path;

use anyhow::ensure;

use super::bench::Bench;
use super::table::{Figures, short, verdict};
use crate::load::Outcome;
use crate::stub::{POD, PODS};

const ON: &str = "passthrough: {enabled: on, insecure: true}\nupstream: {history: off}\n";
const SIDES: [Side; 3] = [Side::Eventweir, Side::Proxy, Side::None];

/// What stands in front of the stub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Eventweir,
    Proxy,
    None,
}

impl Side {
    const fn name(self) -> &'static str {
        match self {
            Self::Eventweir => "eventweir",
            Self::Proxy => "proxy",
            Self::None => "none",
        }
    }

    /// Starts everything anew and loads it.
    fn measure(self, bench: &Bench<'_>, program: &Path, flags: &str) -> anyhow::Result<Outcome> {
        let (stub, address) = bench.upstream(None)?;
        match self {
            Self::None => bench.load(address, &[stub.pid()], flags),
            Self::Proxy => {
                let mut command = Bench::part("proxy")?;
                let (proxy, to) = Bench::server(command.args(["--to", &address.to_string()]), &bench.server_cores)?;
                bench.load(to, &[proxy.pid()], flags)
            }
            Self::Eventweir => {
                let weir = bench.weir(program, &bench.kubeconfig(address)?, ON)?;
                let outcome = bench.load(weir.listen, &[weir.child.pid()], flags)?;
                let passed_on = weir.scrape()?.value("eventweir_passthrough_requests_total{kind=\"forwarded\"}");
                ensure!(passed_on == outcome.sent as f64, "{} sent, {passed_on} passed on", outcome.sent);
                Ok(outcome)
            }
        }
    }
}

/// A pod, and a LIST of 5,000.
pub(super) fn passthrough(bench: &Bench<'_>) -> anyhow::Result<()> {
    shape(bench, "GET of a pod", &format!("--get {POD}"))?;
    shape(bench, "LIST of 5,000 pods", &format!("--get {PODS} --connections 4"))
}

fn shape(bench: &Bench<'_>, what: &str, flags: &str) -> anyhow::Result<()> {
    println!("{what}");
    let mut per_second = SIDES.map(|_| Figures::default());
    let mut p99 = SIDES.map(|_| Figures::default());
    for round in 1..=bench.options.rounds {
        println!("round {round}");
        for (at, side) in SIDES.into_iter().enumerate() {
            let outcome = side.measure(bench, &bench.options.eventweir, flags)?;
            ensure!(outcome.failed == 0, "{}: {} of {} failed", side.name(), outcome.failed, outcome.sent);
            ensure!(outcome.per_second > 0.0, "{}: nothing was answered in the seconds that count", side.name());
            println!(
                "  {:<10} {:>9} requests/s  {:>6} µs CPU a request  p50 {} µs  p99 {} µs",
                side.name(),
                short(outcome.per_second),
                short(outcome.cpu_micros()),
                outcome.p50,
                outcome.p99
            );
            per_second[at].push(outcome.per_second);
            p99[at].push(outcome.p99 as f64);
        }
    }
    for ((side, per_second), p99) in SIDES.into_iter().zip(&per_second).zip(&p99) {
        println!("{:<10} requests/s {per_second:<28} p99 µs {p99}", side.name());
    }
    for other in [1, 2] {
        let name = SIDES[other].name();
        verdict(&format!("eventweir : {name}, requests/s"), &per_second[0].ratio(&per_second[other]), None);
        verdict(&format!("eventweir - {name}, p99 µs"), &p99[0].less(&p99[other]), None);
    }
    Ok(())
}
