//! The load generator: one thread with an epoll loop, HTTP/1.1, at most one request in flight per connection.
//!
//! Closed loop: each connection sends its next request after the answer to the last one. Open loop (`--rate`): each
//! request has a due time, from which its latency counts. So a stalled server is charged for each request that it
//! delays (no coordinated omission).

mod connection;
mod generator;

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::events::Population;
use crate::machine;

/// `load`. The last value of a repeated flag counts.
#[derive(Debug, Clone, clap::Args)]
#[command(args_override_self = true)]
pub(crate) struct Options {
    /// The server.
    #[arg(long)]
    to: SocketAddr,
    #[arg(long, default_value_t = 32)]
    connections: usize,
    /// Events per second; without it, the next event follows the answer.
    #[arg(long)]
    rate: Option<f64>,
    /// Events per request, as NDJSON; without it each event is a POST.
    #[arg(long)]
    batch: Option<usize>,
    /// Sends GETs of this path instead of events.
    #[arg(long, conflicts_with = "batch")]
    get: Option<String>,
    /// Speaks TLS, and trusts the certificate in this folder.
    #[arg(long)]
    tls: Option<PathBuf>,
    /// The bearer token of each request.
    #[arg(long)]
    token: Option<String>,
    /// Length of the measured time in seconds.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Length of the warm-up in seconds.
    #[arg(long, default_value_t = 1.0)]
    warmup: f64,
    #[command(flatten)]
    population: Population,
    /// Processes whose CPU time is printed too.
    #[arg(long)]
    watch: Vec<u32>,
}

/// The events sent and answered. All but `sent` and `failed` are of the measured time.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Events sent, with those of the warm-up.
    pub(crate) sent: u64,
    /// Events sent without a successful answer.
    pub(crate) failed: u64,
    /// Length of the measured time.
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
