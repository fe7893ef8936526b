//! Measures eventweir: a load generator, servers for comparison, and the driver of each target (`run`).
//!
//! Each part runs in its own process of this program, with its own CPU time and memory.

mod bare;
mod events;
mod load;
mod machine;
mod proxy;
mod run;
mod shapes;
mod stub;
mod tls;

use clap::Parser;

/// The allocator of the measured program, so that the servers differ only in their work.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Measures eventweir; `bench/run TARGET` builds everything first.
#[derive(Debug, Parser)]
enum Command {
    /// Sends events, and prints the outcome as one JSON line.
    Load(load::Options),
    /// Reads a body and answers, and does nothing else: the server for comparison.
    Bare(bare::Options),
    /// Forwards all requests, and does nothing else: the proxy for comparison.
    Proxy(proxy::Options),
    /// Stands in for the apiserver.
    Stub(stub::Options),
    /// Runs a target: both sides in turn, and the ratio.
    Run(run::Options),
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Load(options) => load::main(&options),
        Command::Bare(options) => bare::main(&options),
        Command::Proxy(options) => proxy::main(&options),
        Command::Stub(options) => stub::main(&options),
        Command::Run(options) => run::main(&options),
    }
}
