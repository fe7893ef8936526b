//! The driver: starts and loads the sides of a comparison in turn; prints figures, ratios and verdicts.

mod bench;
mod child;
mod core;
mod fairness;
mod http;
mod latency;
mod limited;
mod memory;
mod passthrough;
mod replay;
mod side;
mod table;
mod weir;
mod writes;

use std::path::PathBuf;

use crate::machine;

/// A target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum What {
    /// The core's own benchmarks, beside client-go's correlator.
    Core,
    /// A cached access decision.
    Access,
    /// One POST per event.
    Http,
    /// One POST per event through TLS, with cached authentication.
    Tls,
    /// NDJSON.
    Batch,
    /// What explain, tap and counters cost.
    Look,
    /// At a fixed rate, in front of a real apiserver.
    Latency,
    /// Requests that are passed on.
    Passthrough,
    /// A caller at 100 requests per second beside one at full speed.
    Fairness,
    /// A million objects, and a soak.
    Memory,
    /// A memory budget of 128 MiB under a storm.
    Limited,
    /// Memory and speed of `eventweir replay`.
    Replay,
    /// Writes of recorded shapes and their cost for a real apiserver, beside client-go's recorder.
    Writes,
}

/// `run`
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    #[arg(value_enum)]
    what: What,
    /// Rounds, each with every side once.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Seconds before each that do not count: caches fill, and every object gets its record.
    #[arg(long, default_value_t = 4.0)]
    warmup: f64,
    /// Writes per second that the stub takes while throughput is measured. A real kube-apiserver with etcd takes at
    /// most 400 to 900 on the machine of the results.
    #[arg(long, default_value_t = 900.0)]
    upstream_writes: f64,
    /// The program that is measured.
    #[arg(long, default_value = "target/release/eventweir")]
    eventweir: PathBuf,
    /// Another build of eventweir, measured in the same rounds by `http`, `tls`, `batch`, `latency` and `memory`.
    #[arg(long)]
    also: Option<PathBuf>,
    /// The program of bench/go; without it nothing is compared with Go.
    #[arg(long)]
    go: Option<PathBuf>,
    /// The program of tests/apiserver: a real kube-apiserver.
    #[arg(long)]
    apiserver: Option<PathBuf>,
    /// Cargo profile of the benchmarks that `access` and `core` run.
    #[arg(long, default_value = "bench")]
    profile: String,
    /// Events per second of `latency` and `writes`, and of the slow caller of `fairness`.
    #[arg(long)]
    rate: Option<f64>,
    /// The only shape of `writes`.
    #[arg(long)]
    shape: Option<String>,
    /// Objects of `memory`, and the sources that report them.
    #[arg(long, default_value_t = 1_000_000)]
    objects: u64,
    #[arg(long, default_value_t = 4000)]
    sources: u64,
    /// Seconds of the soak of `memory`.
    #[arg(long, default_value_t = 1800.0)]
    soak: f64,
}

/// Runs a target.
pub(crate) fn main(options: &Options) -> anyhow::Result<()> {
    println!("{:?}: {} rounds of {} s; {}", options.what, options.rounds, options.seconds, machine::describe());
    let bench = bench::Bench::new(options)?;
    let takes_another = [What::Http, What::Tls, What::Batch, What::Latency, What::Memory].contains(&options.what);
    if options.also.is_some() && !takes_another {
        println!("--also is not for this target");
    }
    match options.what {
        What::Core => core::core(&bench),
        What::Access => core::access(&bench),
        What::Http => http::single(&bench),
        What::Tls => http::tls(&bench),
        What::Batch => http::batch(&bench),
        What::Look => http::look(&bench),
        What::Latency => latency::latency(&bench),
        What::Passthrough => passthrough::passthrough(&bench),
        What::Fairness => fairness::fairness(&bench),
        What::Memory => memory::memory(&bench),
        What::Limited => limited::limited(&bench),
        What::Replay => replay::replay(&bench),
        What::Writes => writes::writes(&bench),
    }
}
