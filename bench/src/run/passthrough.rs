//! Requests to the stub through eventweir, through the bare proxy, and directly.

use anyhow::ensure;

use super::bench::Bench;
use super::side::{Side, rounds};
use super::table::{Target, verdict};
use crate::load::Outcome;
use crate::stub::{POD, PODS};

const ON: &str = "passthrough: {enabled: on, insecure: true}\nupstream: {history: off}\n";

/// The server in front of the stub.
#[derive(Debug, Clone, Copy)]
enum Front {
    Eventweir,
    Proxy,
    None,
}

impl Front {
    /// Starts new processes and loads them.
    fn measure(self, bench: &Bench<'_>, flags: &str) -> anyhow::Result<(Outcome, String)> {
        let (stub, address) = bench.upstream(None)?;
        let outcome = match self {
            Self::None => bench.load(address, &[stub.pid()], flags)?,
            Self::Proxy => {
                let mut command = Bench::part("proxy")?;
                let (proxy, to) = Bench::server(command.args(["--to", &address.to_string()]), &bench.server_cores)?;
                bench.load(to, &[proxy.pid()], flags)?
            }
            Self::Eventweir => {
                let weir = bench.weir(&bench.options.eventweir, &bench.kubeconfig(address)?, ON)?;
                let outcome = bench.load(weir.listen, &[weir.child.pid()], flags)?;
                let forwarded = weir.scrape()?.value("eventweir_passthrough_requests_total{kind=\"forwarded\"}");
                ensure!(forwarded == outcome.sent as f64, "{} sent, {forwarded} forwarded", outcome.sent);
                outcome
            }
        };
        ensure!(outcome.failed == 0, "{self:?}: {} of {} failed", outcome.failed, outcome.sent);
        ensure!(outcome.per_second > 0.0, "{self:?}: no answer in the measured time");
        Ok((outcome, String::new()))
    }
}

/// Measures a GET of a pod, and a LIST of 5,000 pods.
pub(super) fn passthrough(bench: &Bench<'_>) -> anyhow::Result<()> {
    for (what, path, connections) in [("GET of a pod", POD, 32), ("LIST of 5,000 pods", PODS, 4)] {
        println!("{what}");
        let mut sides = [
            Side::new("eventweir", Front::Eventweir),
            Side::new("proxy", Front::Proxy),
            Side::new("none", Front::None),
        ];
        let flags = format!("--get {path} --connections {connections} --token bench");
        rounds(bench, &mut sides, |front| front.measure(bench, &flags))?;
        let [eventweir, proxy, none] = &sides;
        eventweir.compare(proxy, Some(0.8));
        let less = eventweir.p99().less(&proxy.p99());
        verdict("p99 of eventweir less p99 of proxy, ms", &less, Some(Target::AtMost(1.0)));
        verdict("eventweir : none, throughput", &eventweir.per_second().ratio(&none.per_second()), None);
    }
    Ok(())
}
