//! What the commands do, between the command line and the library.

mod demo;
mod healthcheck;
mod keys;
mod look;
mod observe;
mod replay;
mod report;
mod serve;
mod suggest;
mod table;
mod top;

use std::process::ExitCode;

pub use demo::demo;
pub use healthcheck::healthcheck;
pub use look::{explain, tap};
pub use observe::observe;
pub use replay::replay;
pub use serve::serve;
pub use top::top;

use crate::cli::CheckConfig;
use crate::{app, config};

/// Exit code for wrong flags and configurations (`EX_USAGE` of sysexits).
const USAGE: u8 = 64;

/// Exit code for an end with losses (`EX_TEMPFAIL` of sysexits).
const LOST: u8 = 75;

/// Why a command failed. The chain of causes is printed once, in `main`.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Everything that is wrong with the configuration.
    #[error("{0}")]
    Config(#[from] config::Errors),
    /// The program cannot start.
    #[error("starting")]
    Start(#[from] app::Error),
    /// A part ended that never should.
    #[error("a part of the program ended abnormally; the log tells which")]
    Broken,
    /// The drain's deadline passed, and nothing keeps what was left.
    #[error("{0} occurrences were given up at the end")]
    Lost(u64),
    /// Reading or writing failed.
    #[error("{what}")]
    Io {
        /// What was being done.
        what: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The input is missing, or not what it should be.
    #[error("{0}")]
    Input(String),
    /// A simulated proxy did not account for each occurrence.
    #[error("the account does not balance; this is a bug")]
    Unbalanced,
    /// The events of the cluster cannot be read.
    #[error("cannot read the events of {0}")]
    Observe(String),
    /// `explain` has found nothing.
    #[error("nothing is known")]
    NothingKnown,
    /// The program that was asked is not ready, or did not answer.
    #[error("{0}")]
    NotReady(String),
}

impl Error {
    /// The exit code of the program.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Config(_) | Self::Input(_) => ExitCode::from(USAGE),
            Self::Lost(_) => ExitCode::from(LOST),
            Self::NothingKnown => ExitCode::from(3),
            Self::Start(_)
            | Self::Broken
            | Self::Io { .. }
            | Self::NotReady(_)
            | Self::Unbalanced
            | Self::Observe(_) => ExitCode::FAILURE,
        }
    }
}

/// Prints what clap has to say: help and versions exit 0, wrong flags 64.
#[must_use]
pub fn usage(error: &clap::Error) -> ExitCode {
    match error.print() {
        Ok(()) if !error.use_stderr() => ExitCode::SUCCESS,
        Ok(()) | Err(_) => ExitCode::from(USAGE),
    }
}

/// `check-config FILE`
///
/// # Errors
/// Everything that is wrong with the file.
pub fn check_config(check: &CheckConfig) -> Result<(), Error> {
    let config = config::load(Some(&check.file), &config::Overrides::default())?;
    warn(&check.file, &config);
    if let Some(path) = &check.event {
        rules(&config, path)
    } else if check.print {
        print(&config.to_yaml())
    } else {
        print(&format!("{}: ok ({})\n", check.file.display(), config.hash()))
    }
}

/// Says on standard error what is allowed, and is hardly meant.
fn warn(file: &std::path::Path, config: &config::Config) {
    use std::io::Write as _;
    for number in config.policy.across_objects() {
        let place = number.map_or_else(String::new, |number| format!(".rules[{number}].set"));
        // Nobody may read it.
        drop(writeln!(
            std::io::stderr(),
            "warning: {}: correlation{place}.aggregateKey without involvedObject.name merges events of many objects into\n  \
             the record of one of them; `kubectl describe` of the others shows nothing",
            file.display()
        ));
    }
}

/// Says of each event which rule matches, and why those before it do not.
fn rules(config: &config::Config, path: &std::path::Path) -> Result<(), Error> {
    let mut text = String::new();
    replay::each(path, |event| {
        let object = &event.involved_object;
        let name = format!("{} {}/{} {}", event.reason, event.metadata.namespace, object.name, object.kind);
        text += &format!("{}\n", crate::explain::clean(&name, 300));
        let found = config.policy.rule(event).0;
        for (number, rule) in config.policy.rules.iter().enumerate().take(found.map_or(usize::MAX, |found| found + 1)) {
            let verdict = rule.matches.miss(event).map_or("matches: its settings hold".to_owned(), |(member, said)| {
                format!("does not match: {member} is {:?}", crate::explain::clean(said, 100))
            });
            text += &format!("  rules[{number}] {verdict}\n");
        }
        if found.is_none() {
            text += "  no rule matches: the settings of correlation hold\n";
        }
    })?;
    print(&text)
}

/// `config-schema`
///
/// # Errors
/// When standard output cannot be written.
pub fn config_schema() -> Result<(), Error> {
    print(&format!("{:#}\n", config::Config::json_schema()))
}

/// `completions SHELL`
///
/// # Errors
/// When standard output cannot be written.
pub fn completions(shell: clap_complete::Shell, command: &mut clap::Command) -> Result<(), Error> {
    let mut script = Vec::new();
    clap_complete::generate(shell, command, "eventweir", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// Writes to standard output. A reader that has gone away (`| head`) is no error.
fn print(text: &str) -> Result<(), Error> {
    use std::io::Write as _;
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::Io { what: "writing to standard output".to_owned(), source: error })
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The runtime that async commands run on.
fn runtime() -> Result<tokio::runtime::Runtime, Error> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|source| Error::Io { what: "starting the runtime".to_owned(), source })
}
