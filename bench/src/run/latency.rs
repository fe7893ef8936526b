//! Latency at a fixed rate, while the outbox writes to a real apiserver.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use serde_json::Value;

use super::bench::Bench;
use super::child::{Child, Stream};
use super::side::{Side, rounds};
use super::table::{Target, short, verdict};
use crate::load::Outcome;
use crate::machine;

/// A real kube-apiserver with its etcd (tests/apiserver).
#[derive(Debug)]
pub(super) struct Apiserver {
    pub(super) child: Child,
    pub(super) kubeconfig: PathBuf,
}

impl Apiserver {
    /// Starts the apiserver on the cores of the load.
    ///
    /// # Errors
    /// When there is no program, or it does not become ready.
    pub(super) fn start(bench: &Bench<'_>) -> anyhow::Result<Self> {
        let program = bench.options.apiserver.as_ref().context("--apiserver names no program")?;
        let folder = bench.folder.join("apiserver");
        drop(std::fs::remove_dir_all(&folder));
        let mut command = Command::new(program);
        command.args(["--unsafe-no-fsync", "--namespaces", "shop", "--dir"]).arg(&folder);
        let (child, kubeconfig) = Child::start(&mut command, &bench.load_cores, Stream::Out, |line| {
            let info: Value = serde_json::from_str(line.strip_prefix("READY ")?).ok()?;
            Some(PathBuf::from(info.get("kubeconfig")?.as_str()?))
        })?;
        Ok(Self { child, kubeconfig })
    }
}

/// Starts an apiserver and a server, and loads the server. Without a program this is the bare server, beside an idle
/// apiserver.
fn measure(bench: &Bench<'_>, program: Option<&Path>, flags: &str) -> anyhow::Result<(Outcome, String)> {
    let apiserver = Apiserver::start(bench)?;
    let Some(program) = program else {
        let (server, address) = Bench::server(&mut Bench::part("bare")?, &bench.server_cores)?;
        return Ok((bench.load(address, &[server.pid()], flags)?, String::new()));
    };
    let weir = bench.weir(program, &apiserver.kubeconfig, "")?;
    let before = machine::cpu_seconds(apiserver.child.pid())?;
    let outcome = bench.load(weir.listen, &[weir.child.pid()], flags)?;
    let spent = machine::cpu_seconds(apiserver.child.pid())? - before;
    let writes = weir.check(&[&outcome])?.writes();
    Ok((outcome, format!("  {writes} writes upstream, which cost the apiserver {} s CPU", short(spent))))
}

/// Measures 5,000 events per second.
pub(super) fn latency(bench: &Bench<'_>) -> anyhow::Result<()> {
    let flags = format!("--rate {} --connections 64", bench.options.rate.unwrap_or(5000.0));
    let mut sides = vec![Side::new("bare", None), Side::new("eventweir", Some(bench.options.eventweir.as_path()))];
    sides.extend(bench.options.also.as_deref().map(|program| Side::new("also", Some(program))));
    rounds(bench, &mut sides, |program| measure(bench, *program, &flags))?;
    let less = sides[1].p99().less(&sides[0].p99());
    verdict("p99 of eventweir less p99 of bare, ms", &less, Some(Target::AtMost(1.0)));
    if let Some(also) = sides.get(2) {
        verdict("eventweir : also, p99", &sides[1].p99().ratio(&also.p99()), None);
        verdict("eventweir : also, CPU", &sides[1].cpu_micros().ratio(&also.cpu_micros()), None);
    }
    Ok(())
}
