//! The load generator: one thread with an epoll loop, HTTP/1.1, at most one request in flight per connection.
//!
//! Closed loop: each connection sends its next request when the last one is answered. Open loop (`--rate`): each
//! request has a time at which it is due, and its latency counts from then. A server that stalls is charged for every
//! request that it delays (no coordinated omission).

mod connection;
mod generator;

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::events::Population;
use crate::machine;

/// `load`; of a flag that is given twice the last value counts.
#[derive(Debug, Clone, clap::Args)]
#[command(args_override_self = true)]
pub(crate) struct Options {
    /// The server.
    #[arg(long)]
    to: SocketAddr,
    #[arg(long, default_value_t = 32)]
    connections: usize,
    /// Events per second; without it as many as are answered.
    #[arg(long)]
    rate: Option<f64>,
    /// Events per request, as NDJSON; without it each event is a POST of its own.
    #[arg(long)]
    batch: Option<usize>,
    /// GETs of this path, instead of events.
    #[arg(long, conflicts_with = "batch")]
    get: Option<String>,
    /// Speaks TLS, and trusts the certificate in this folder.
    #[arg(long)]
    tls: Option<PathBuf>,
    /// The bearer token of each request.
    #[arg(long)]
    token: Option<String>,
    /// Seconds that count.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Seconds before them that do not count.
    #[arg(long, default_value_t = 1.0)]
    warmup: f64,
    #[command(flatten)]
    population: Population,
    /// Processes whose CPU time is printed too.
    #[arg(long)]
    watch: Vec<u32>,
}

/// What was sent and what was answered. All but `sent` and `failed` are of the seconds that count.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Events sent, those of the warm-up included.
    pub(crate) sent: u64,
    /// Events sent without an answer of success.
    pub(crate) failed: u64,
    /// Length of the time that counts.
    pub(crate) seconds: f64,
    /// Events answered per second.
    pub(crate) per_second: f64,
    /// Latencies in microseconds.
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
    pub(crate) max: u64,
    /// CPU seconds of the generator.
    pub(crate) own_cpu: f64,
    /// CPU seconds of each watched process.
    pub(crate) watched_cpu: Vec<f64>,
}

impl Outcome {
    /// CPU time of the first watched process, in microseconds per event.
    pub(crate) fn cpu_micros(&self) -> f64 {
        self.watched_cpu[0] / (self.per_second * self.seconds) * 1e6
    }
}

/// Generates load, and prints the [`Outcome`].
pub(crate) fn main(options: &Options) -> anyhow::Result<()> {
    machine::be_first();
    let outcome = generator::Generator::connect(options)?.run()?;
    println!("{}", serde_json::to_string(&outcome)?);
    Ok(())
}
