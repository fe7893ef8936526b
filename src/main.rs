//! The program: flags, logging, exit code.
//!
//! Exit codes: 0 for success, 1 when the work failed, 3 when `explain` knows nothing, 75 (`EX_TEMPFAIL`) when `serve` ended with occurrences that it had to give up, 64 (`EX_USAGE`) for a configuration or flags that are wrong.

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};
use eventweir::cli::{Cli, Command};
use eventweir::{commands, logging};

/// Chosen by measurement: the hot path allocates an answer and a decoded event a request, and this one hands out what was freed last, which
/// the processor still has at hand. Without transparent huge pages (`.cargo/config.toml`): the kernel clears one whole when it is first
/// touched, and everybody waits.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return commands::usage(&error),
    };
    let outcome = match cli.command {
        Command::Serve(serve) => commands::serve(*serve),
        Command::Demo(demo) => commands::demo(&demo),
        Command::Replay(replay) => commands::replay(&replay),
        Command::Observe(observe) => commands::observe(&observe),
        Command::Explain(explain) => commands::explain(&explain),
        Command::Tap(tap) => commands::tap(&tap),
        Command::Top(top) => commands::top(&top),
        Command::CheckConfig(check) => commands::check_config(&check),
        Command::ConfigSchema => commands::config_schema(),
        Command::Healthcheck(check) => commands::healthcheck(&check),
        Command::Completions { shell } => commands::completions(shell, &mut Cli::command()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            logging::report(&error);
            error.exit_code()
        }
    }
}
