//! The driver: starts both sides of a comparison in turn, loads them alike, and prints figures, ratios and verdicts.

mod bench;
mod child;
mod core;
mod http;
mod latency;
mod memory;
mod table;
mod weir;
mod writes;

use std::path::PathBuf;

use crate::machine;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum What {
    /// The core's own benchmarks, against client-go's correlator.
    Core,
    /// One POST per event.
    Http,
    /// NDJSON.
    Batch,
    /// At a fixed rate, in front of a real apiserver.
    Latency,
    /// A million objects, and a soak.
    Memory,
    /// What is written of recorded shapes, and what that costs a real apiserver, against client-go's recorder.
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
    /// Writes a second that the stub takes where throughput is measured. What a real kube-apiserver with etcd takes at most on
    /// such a machine is 400 to 900: eventweir is not measured writing to an apiserver that does not exist.
    #[arg(long, default_value_t = 900.0)]
    upstream_writes: f64,
    /// The program that is measured.
    #[arg(long, default_value = "target/release/eventweir")]
    eventweir: PathBuf,
    /// The reference program of bench/go; without it there is no comparison with Go.
    #[arg(long)]
    go: Option<PathBuf>,
    /// The program of tests/apiserver: a real kube-apiserver.
    #[arg(long)]
    apiserver: Option<PathBuf>,
    /// Events a second, where a target has a fixed rate.
    #[arg(long)]
    rate: Option<f64>,
    /// Only this shape of the writes.
    #[arg(long)]
    shape: Option<String>,
    /// Keys, where a target has many.
    #[arg(long, default_value_t = 1_000_000)]
    keys: u64,
    /// Seconds of the soak.
    #[arg(long, default_value_t = 1800.0)]
    soak: f64,
    /// Server and generator share all cores, instead of each having its own.
    #[arg(long)]
    share_cores: bool,
}

/// Runs a target.
pub(crate) fn main(options: &Options) -> anyhow::Result<()> {
    println!("{:?}: {} rounds of {} s; {}", options.what, options.rounds, options.seconds, machine::describe());
    let bench = bench::Bench::new(options)?;
    match options.what {
        What::Core => core::core(&bench),
        What::Http => http::single(&bench),
        What::Batch => http::batch(&bench),
        What::Latency => latency::latency(&bench),
        What::Memory => memory::memory(&bench),
        What::Writes => writes::writes(&bench),
    }
}
