//! What measures eventweir: a load generator, servers to compare with, and the driver of each target (`run`).
//!
//! Every part is a process of its own, started from this one program, so that CPU time and memory are told apart.

mod bare;
mod events;
mod load;
mod machine;
mod proxy;
mod run;
mod shapes;
mod stub;

use clap::Parser;

/// The allocator of the program that is measured, so that the servers differ in their work only.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Measures eventweir; `bench/run TARGET` builds everything first.
#[derive(Debug, Parser)]
enum Command {
    /// Sends events, and prints what came back as one JSON line.
    Load(load::Options),
    /// Serves what eventweir is compared with: reads a body and answers, nothing else.
    Bare,
    /// Passes everything on to a server, nothing else.
    Proxy(proxy::Options),
    /// Stands in for the apiserver: stores what is written, and counts it.
    Stub(stub::Options),
    /// Runs a target: both sides in turn, and the ratio.
    Run(run::Options),
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Load(options) => load::main(&options),
        Command::Bare => bare::main(),
        Command::Proxy(options) => proxy::main(&options),
        Command::Stub(options) => stub::main(&options),
        Command::Run(options) => run::main(&options),
    }
}
