//! The driver: starts and loads the sides of a comparison in turn, and prints figures, ratios and verdicts.

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
    /// The core's benchmarks, compared with client-go's correlator.
    Core,
    /// A cached access decision.
    Access,
    /// One POST per event.
    Http,
    /// One POST per event through TLS, with cached authentication.
    Tls,
    /// NDJSON.
    Batch,
    /// Cost of explain, tap and counters.
    Look,
    /// Latency at a fixed rate, with a real apiserver behind eventweir.
    Latency,
    /// Requests in pass-through.
    Passthrough,
    /// A caller at 100 requests per second beside one at full speed.
    Fairness,
    /// A million objects, and a soak.
    Memory,
    /// A memory budget of 128 MiB in a storm.
    Limited,
    /// Memory and speed of `eventweir replay`.
    Replay,
    /// Writes for recorded shapes and their cost for a real apiserver, compared with client-go's recorder.
    Writes,
}

/// `run`
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    #[arg(value_enum)]
    what: What,
    /// Number of rounds; each round measures each side once.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Seconds of warm-up before each: caches fill, and each object gets its record.
    #[arg(long, default_value_t = 4.0)]
    warmup: f64,
    /// Writes per second that the stub accepts in measurements of throughput. A real kube-apiserver with etcd accepts
    /// at most 400 to 900 on the machine of the results.
    #[arg(long, default_value_t = 900.0)]
    upstream_writes: f64,
    /// The measured program.
    #[arg(long, default_value = "target/release/eventweir")]
    eventweir: PathBuf,
    /// Another build of eventweir, measured in the same rounds by `http`, `tls`, `batch`, `latency` and `memory`.
    #[arg(long)]
    also: Option<PathBuf>,
    /// The program of bench/go; without it there is no comparison with Go.
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
        println!("--also has no effect on this target");
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
