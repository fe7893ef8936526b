//! Throughput of single posts and of batches: eventweir, the bare server, and Go; over TLS; with `explain` on and off.

use std::path::Path;
use std::process::Command;

use anyhow::ensure;

use super::bench::Bench;
use super::side::{Side, rounds};
use super::weir::ROOM;
use crate::load::Outcome;
use crate::tls;

const BATCHES: &str = "--batch 500 --connections 4";
/// The stub authenticates callers by tokens and allows all requests. Its answers stay cached for the whole measurement.
pub(super) const REVIEWED: &str =
    "auth: {tokenReview: {enabled: true, cacheTTL: 1h}, subjectAccessReview: {enabled: true}}\n";

/// The measured program.
#[derive(Debug)]
enum Program<'a> {
    /// The bare server with these arguments.
    Bare(&'a [&'a str]),
    /// A build of eventweir with this configuration.
    Eventweir(&'a Path, String, Tap),
    Go(&'a Path),
}

/// Whether a client reads the tap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tap {
    Unread,
    Read,
}

impl Program<'_> {
    /// Starts the program, with a stub behind eventweir, and loads it.
    fn measure(&self, bench: &Bench<'_>, flags: &str) -> anyhow::Result<(Outcome, String)> {
        let load = |command: &mut Command| {
            let (server, address) = Bench::server(command, &bench.server_cores)?;
            Ok((bench.load(address, &[server.pid()], flags)?, String::new()))
        };
        match self {
            Self::Bare(arguments) => load(Bench::part("bare")?.args(*arguments)),
            Self::Go(program) => load(Command::new(program).arg("serve")),
            Self::Eventweir(program, config, tap) => {
                let (_stub, kubeconfig) = bench.stub(Some(bench.options.upstream_writes))?;
                let weir = bench.weir(program, &kubeconfig, &format!("{ROOM}{config}"))?;
                if *tap == Tap::Read {
                    weir.read_tap()?;
                }
                let outcome = bench.load(weir.listen, &[weir.child.pid()], flags)?;
                let samples = weir.check(&[&outcome])?;
                let records = samples.value("eventweir_outbox_records");
                if config.contains(REVIEWED) {
                    let misses = samples.value("eventweir_access_cache_lookups_total{cache=\"token\",result=\"miss\"}");
                    ensure!((1.0..=32.0).contains(&misses), "{misses} misses in the token cache, expected 1 to 32");
                }
                Ok((outcome, format!("  {} written, {records} records wait", samples.writes())))
            }
        }
    }
}

/// Measures one POST per event.
pub(super) fn single(bench: &Bench<'_>) -> anyhow::Result<()> {
    let mut others = vec![(Side::new("bare", Program::Bare(&[])), 0.6)];
    others.extend(bench.options.go.as_deref().map(|program| (Side::new("Go", Program::Go(program)), 6.0)));
    run(bench, "", "", others)
}

/// Measures NDJSON batches.
pub(super) fn batch(bench: &Bench<'_>) -> anyhow::Result<()> {
    run(bench, BATCHES, "", vec![(Side::new("bare", Program::Bare(&[])), 0.4)])
}

/// Measures one POST per event through TLS, with a token as long as a service account's.
pub(super) fn tls(bench: &Bench<'_>) -> anyhow::Result<()> {
    tls::write(&bench.folder)?;
    let folder = bench.folder.display().to_string();
    let [cert, key] = [tls::CERTIFICATE, tls::KEY].map(|file| bench.folder.join(file).display().to_string());
    let config = format!("tls: {{certFile: {cert}, keyFile: {key}}}\n{REVIEWED}");
    let flags = format!("--tls {folder} --token {}", "reporter".repeat(125));
    run(bench, &flags, &config, vec![(Side::new("bare", Program::Bare(&["--tls", &folder])), 0.5)])
}

/// Measures the cost of `explain`, tap and counters, with single posts and with batches.
pub(super) fn look(bench: &Bench<'_>) -> anyhow::Result<()> {
    for (name, flags) in [("single posts", ""), ("batches", BATCHES)] {
        println!("{name}");
        let side = |name, config: &str, tap| {
            Side::new(name, Program::Eventweir(&bench.options.eventweir, config.to_owned(), tap))
        };
        let mut sides = [
            side("on", "", Tap::Unread),
            side("off", "explain: {enabled: false}\n", Tap::Unread),
            side("tap read", "", Tap::Read),
        ];
        rounds(bench, &mut sides, |program| program.measure(bench, flags))?;
        let [on, off, read] = &sides;
        on.compare(off, Some(0.97));
        read.compare(off, None);
    }
    Ok(())
}

/// Compares eventweir with each other side and its target.
fn run(bench: &Bench<'_>, flags: &str, config: &str, others: Vec<(Side<Program<'_>>, f64)>) -> anyhow::Result<()> {
    let eventweir = |name, program| Side::new(name, Program::Eventweir(program, config.to_owned(), Tap::Unread));
    let (others, mut targets): (Vec<_>, Vec<_>) = others.into_iter().map(|(side, target)| (side, Some(target))).unzip();
    let mut sides = vec![eventweir("eventweir", bench.options.eventweir.as_path())];
    sides.extend(others);
    if let Some(also) = &bench.options.also {
        sides.push(eventweir("also", also));
        targets.push(None);
    }
    rounds(bench, &mut sides, |program| program.measure(bench, flags))?;
    for (other, target) in sides[1..].iter().zip(targets) {
        sides[0].compare(other, target);
    }
    Ok(())
}
