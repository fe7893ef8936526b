//! The program: flags, logging, exit code.
//!
//! Exit codes: 0 for success, 1 for a failure, 3 if `explain` finds nothing, 64 (`EX_USAGE`) for wrong flags, a wrong
//! configuration or kubeconfig, 75 (`EX_TEMPFAIL`) if `serve` lost occurrences at its end.

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _};
use eventweir::cli::{Cli, Command};
use eventweir::{commands, logging};

/// jemalloc, because it returns recently freed memory, which is still in the processor's cache: each request allocates
/// an answer and a decoded event. Without transparent huge pages (`.cargo/config.toml`): the kernel clears a whole page
/// at its first use, and requests wait for that.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let cli = match Cli::grouped().try_get_matches().and_then(|flags| Cli::from_arg_matches(&flags)) {
        Ok(cli) => cli,
        Err(error) => return commands::usage(&error).unwrap_or_else(|error| ended(&error)),
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
        Err(error) => ended(&error),
    }
}

fn ended(error: &commands::Error) -> ExitCode {
    // The answer says the first already, and the reader has gone in the second.
    if !matches!(error, commands::Error::NothingKnown | commands::Error::Closed) {
        logging::report(error);
    }
    error.exit_code()
}
