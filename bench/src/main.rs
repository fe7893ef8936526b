//! Measures eventweir: a load generator, servers to compare with, and the driver of each target (`run`).
//!
//! Each part runs in its own process, started from this program, so that each has its own CPU time and memory.

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

/// The allocator of the program that is measured, so that the servers differ in their work only.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Measures eventweir; `bench/run TARGET` builds everything first.
#[derive(Debug, Parser)]
enum Command {
    /// Sends events, and prints what came back as one JSON line.
    Load(load::Options),
    /// Reads a body and answers, nothing else: the server that eventweir is compared with.
    Bare(bare::Options),
    /// Passes every request on, nothing else: the proxy that eventweir is compared with.
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
