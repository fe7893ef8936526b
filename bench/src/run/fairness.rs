//! A caller at full speed beside one at 100 requests per second, each authenticated by a token.

use std::thread;
use std::time::Duration;

use anyhow::Context as _;

use super::bench::Bench;
use super::http::REVIEWED;
use super::side::{Side, rounds};
use super::table::{Target, verdict};
use super::weir::ROOM;
use crate::load::Outcome;

/// The other load on the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Neighbour {
    /// No other load.
    None,
    /// A caller that sends each request right after the answer to the last, on 32 connections.
    Flood,
}

/// Seconds that the flood runs before and after the other caller.
const MARGIN: f64 = 1.0;

impl Neighbour {
    fn measure(self, bench: &Bench<'_>) -> anyhow::Result<(Outcome, String)> {
        let (_stub, kubeconfig) = bench.stub(Some(bench.options.upstream_writes))?;
        let weir = bench.weir(&bench.options.eventweir, &kubeconfig, &format!("{ROOM}{REVIEWED}"))?;
        let load = |flags: &str| bench.load(weir.listen, &[weir.child.pid()], flags);
        let steady =
            || load(&format!("--token steady00 --connections 4 --rate {}", bench.options.rate.unwrap_or(100.0)));
        if self == Self::None {
            let outcome = steady()?;
            weir.check(&[&outcome])?;
            return Ok((outcome, String::new()));
        }
        let flags = format!("--token flood000 --seconds {}", bench.options.seconds + 2.0 * MARGIN);
        let (flood, steady) = thread::scope(|scope| {
            let flood = scope.spawn(|| load(&flags));
            thread::sleep(Duration::from_secs_f64(MARGIN));
            let steady = steady()?;
            anyhow::Ok((flood.join().ok().context("the flood panicked")??, steady))
        })?;
        weir.check(&[&flood, &steady])?;
        Ok((steady, format!("  beside {:.0}/s", flood.per_second)))
    }
}

/// Measures the same requests without and with the flood.
pub(super) fn fairness(bench: &Bench<'_>) -> anyhow::Result<()> {
    let mut sides = [Side::new("unloaded", Neighbour::None), Side::new("loaded", Neighbour::Flood)];
    rounds(bench, &mut sides, |neighbour| neighbour.measure(bench))?;
    let [unloaded, loaded] = &sides;
    verdict("p99 loaded : unloaded", &loaded.p99().ratio(&unloaded.p99()), Some(Target::AtMost(2.0)));
    Ok(())
}
