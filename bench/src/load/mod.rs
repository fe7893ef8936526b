//! The load generator: one thread a core it may use, each with its own share of the connections and its own epoll loop.
//!
//! Closed loop: each connection has `depth` requests on their way, and sends the next when one is answered. Open loop
//! (`--rate`): requests have a time at which they are due, and latency counts from then, so that a server that stalls is
//! charged for all that waited ("coordinated omission" does not occur).

mod connection;
mod http1;
mod http2;
mod worker;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::events::{Encoding, Mix, Population};
use crate::machine;

/// What is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Protocol {
    Http1,
    /// With prior knowledge, without TLS.
    Http2,
}

/// `load`; a flag that is given twice has its last value.
#[derive(Debug, Clone, clap::Args)]
#[command(args_override_self = true)]
pub(crate) struct Options {
    /// The server.
    #[arg(long)]
    to: SocketAddr,
    #[arg(long, value_enum, default_value = "http1")]
    protocol: Protocol,
    #[arg(long, value_enum, default_value = "json")]
    encoding: Encoding,
    #[arg(long, default_value_t = 32)]
    connections: usize,
    /// Requests on their way on one connection; with HTTP/1.1 always 1.
    #[arg(long, default_value_t = 1)]
    depth: usize,
    /// Events a second, in all; without it as many as are answered.
    #[arg(long)]
    rate: Option<f64>,
    /// Events in a request, as NDJSON; without it each event is a POST of its own.
    #[arg(long)]
    batch: Option<usize>,
    /// TLS to a server with this certificate.
    #[arg(long)]
    tls: Option<PathBuf>,
    /// Seconds that count.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Seconds before them that do not.
    #[arg(long, default_value_t = 1.0)]
    warmup: f64,
    #[arg(long, value_enum, default_value = "mixed")]
    mix: Mix,
    /// Objects have numbers below this.
    #[arg(long, default_value_t = 4000)]
    objects: u64,
    /// The number of a walk's first object.
    #[arg(long, default_value_t = 0)]
    first: u64,
    #[arg(long, default_value_t = 200)]
    nodes: u64,
    /// Of a thousand events, those about new pods.
    #[arg(long, default_value_t = 10)]
    new_permille: u64,
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Microseconds that a closed loop sleeps before it looks for answers again, for a server that needs the generator's core too.
    #[arg(long)]
    pause: Option<u64>,
    /// Processes whose CPU time in the seconds that count is told, too.
    #[arg(long)]
    watch: Vec<u32>,
}

/// What was sent and what came back.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Events sent in all, before the seconds that count too.
    pub(crate) sent: u64,
    /// Of them those answered with 201 or, in a batch, 200.
    pub(crate) answered: u64,
    /// Of them those refused, lost with a connection, or not answered at the end.
    pub(crate) failed: u64,
    /// Length of the time that counts, in seconds.
    pub(crate) seconds: f64,
    /// Events a second in it.
    pub(crate) per_second: f64,
    /// Latencies in it, in microseconds.
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
    pub(crate) max: u64,
    /// CPU seconds in it: our own, and those of the processes watched.
    pub(crate) own_cpu: f64,
    pub(crate) watched_cpu: Vec<f64>,
}

impl Outcome {
    /// CPU time of the first process watched, in microseconds an event.
    pub(crate) fn cpu_micros(&self) -> f64 {
        self.watched_cpu[0] / (self.per_second * self.seconds) * 1e6
    }
}

/// What a worker has counted.
#[derive(Debug)]
struct Tally {
    sent: u64,
    answered: u64,
    failed: u64,
    /// Answered in the time that counts.
    counted: u64,
    /// Nanoseconds.
    latencies: Histogram<u64>,
}

impl Tally {
    fn new() -> anyhow::Result<Self> {
        let latencies = Histogram::new_with_bounds(100, 100_000_000_000, 3)?;
        Ok(Self { sent: 0, answered: 0, failed: 0, counted: 0, latencies })
    }
}

/// When the time that counts begins and ends.
#[derive(Debug, Clone, Copy)]
struct Window {
    begin: Instant,
    end: Instant,
}

impl Options {
    fn population(&self) -> Population {
        Population {
            mix: self.mix,
            first: self.first,
            objects: self.objects,
            nodes: self.nodes,
            new_permille: self.new_permille,
        }
    }
}

/// Generates load, and prints the [`Outcome`].
pub(crate) fn main(options: &Options) -> anyhow::Result<()> {
    machine::allow_many_files();
    machine::be_first();
    let client = options.tls.as_deref().map(crate::tls::client).transpose()?;
    let workers: Vec<_> = (0..options.threads)
        .map(|worker| worker::Worker::connect(options, client.as_ref(), worker))
        .collect::<anyhow::Result<_>>()?;
    let begin = Instant::now() + Duration::from_secs_f64(options.warmup);
    let window = Window { begin, end: begin + Duration::from_secs_f64(options.seconds) };
    let threads: Vec<_> = workers.into_iter().map(|worker| std::thread::spawn(move || worker.run(window))).collect();
    let cpu = || -> anyhow::Result<Vec<f64>> {
        std::iter::once(std::process::id()).chain(options.watch.iter().copied()).map(machine::cpu_seconds).collect()
    };
    std::thread::sleep(window.begin.saturating_duration_since(Instant::now()));
    let before = cpu()?;
    // A walk is over when all have been sent.
    while Instant::now() < window.end && !threads.iter().all(std::thread::JoinHandle::is_finished) {
        let left = window.end.saturating_duration_since(Instant::now());
        std::thread::sleep(if options.mix == Mix::Walk { left.min(Duration::from_millis(20)) } else { left });
    }
    let seconds = window.begin.elapsed().as_secs_f64();
    let spent: Vec<f64> = cpu()?.iter().zip(&before).map(|(after, before)| after - before).collect();
    let mut total = Tally::new()?;
    for thread in threads {
        let tally = thread.join().map_err(|_| anyhow::anyhow!("a worker panicked"))??;
        total.sent += tally.sent;
        total.answered += tally.answered;
        total.failed += tally.failed;
        total.counted += tally.counted;
        total.latencies.add(&tally.latencies)?;
    }
    let micros = |quantile| total.latencies.value_at_quantile(quantile) / 1000;
    let outcome = Outcome {
        sent: total.sent,
        answered: total.answered,
        failed: total.failed,
        seconds,
        per_second: total.counted as f64 / seconds,
        p50: micros(0.5),
        p99: micros(0.99),
        p999: micros(0.999),
        max: total.latencies.max() / 1000,
        own_cpu: spent[0],
        watched_cpu: spent[1..].to_vec(),
    };
    println!("{}", serde_json::to_string(&outcome)?);
    Ok(())
}
