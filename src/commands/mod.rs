//! The subcommands, between the command line and the library.

mod demo;
mod in_cluster;
mod keys;
mod explain;
mod observe;
mod remote;
mod replay;
mod report;
mod serve;
mod suggest;
mod table;
mod top;

use std::io::{ErrorKind, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

pub use demo::demo;
pub use explain::{explain, tap};
pub use observe::observe;
pub use replay::replay;
pub use serve::serve;
pub use top::top;

use crate::cli::{CheckConfig, Healthcheck};
use crate::clock::Clock;
use crate::config::Files;
use crate::explain::{clean, is_safe};
use crate::{app, config};

/// Exit code for wrong flags and configurations (`EX_USAGE` of sysexits).
const USAGE: u8 = 64;

/// Exit code for an end with lost occurrences (`EX_TEMPFAIL` of sysexits).
const LOST: u8 = 75;

/// Exit code after a second Ctrl-C, as of a shell after SIGINT.
const INTERRUPTED: i32 = 130;

/// Longest wait for the answer of `healthcheck`.
const DEADLINE: Duration = Duration::from_secs(5);

/// Why a command failed. The chain of causes is printed once, in `main`.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The errors of the configuration.
    #[error("{0}")]
    Config(#[from] config::Errors),
    /// The program cannot start.
    #[error("starting")]
    Start(#[from] app::Error),
    /// A task ended before the stop.
    #[error("a part of the program ended abnormally; see the log")]
    Broken,
    /// The drain's deadline passed, and there was no spool for what was left.
    #[error("occurrences lost at the end: {0}")]
    Lost(u64),
    /// Reading or writing failed.
    #[error("{what}")]
    Io {
        /// The operation that failed.
        what: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The input is missing or invalid.
    #[error("{0}")]
    Input(String),
    /// A simulated proxy did not account for every occurrence.
    #[error("the ledger does not balance; this is a bug")]
    Unbalanced,
    /// The events of the cluster cannot be read.
    #[error("cannot read the events of {0}")]
    Observe(String),
    /// `explain` found nothing.
    #[error("nothing is known")]
    NothingKnown,
    /// The server is not ready, or did not answer.
    #[error("{0}")]
    NotReady(String),
    /// The reader of standard output has closed it (`| head`): an end, and no failure.
    #[error("standard output is closed")]
    Closed,
}

impl Error {
    /// Returns the exit code of the program.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Config(_) | Self::Input(_) | Self::Start(app::Error::Upstream(_)) => ExitCode::from(USAGE),
            Self::Lost(_) => ExitCode::from(LOST),
            Self::NothingKnown => ExitCode::from(3),
            Self::Closed => ExitCode::SUCCESS,
            Self::Start(_)
            | Self::Broken
            | Self::Io { .. }
            | Self::NotReady(_)
            | Self::Unbalanced
            | Self::Observe(_) => ExitCode::FAILURE,
        }
    }
}

/// Prints a message of clap: help and version exit 0, wrong flags 64.
///
/// # Errors
/// When standard output cannot be written.
pub fn usage(error: &clap::Error) -> Result<ExitCode, Error> {
    let printed = error.print();
    if error.use_stderr() { Ok(ExitCode::from(USAGE)) } else { printed.map_err(unwritten).map(|()| ExitCode::SUCCESS) }
}

/// Runs `check-config FILE`.
///
/// # Errors
/// Everything that is wrong with the file.
pub fn check_config(check: &CheckConfig) -> Result<(), Error> {
    let files = if check.files { Files::Checked } else { Files::Read };
    let file = if check.file == Path::new("-") { Path::new("/dev/stdin") } else { &check.file };
    let config = config::load(Some(file), &config::Overrides::default(), files)?;
    warn(file, &config);
    if check.files {
        app::doubts(&config, Clock::system().now()).iter().for_each(|doubt| print_warning(file, doubt));
    }
    if check.print {
        print_document(&config.to_yaml())?;
    }
    if let Some(path) = &check.event {
        rules(&config, path)
    } else if check.print {
        Ok(())
    } else {
        print(&format!("{}: ok ({})\n", file.display(), config.hash()))
    }
}

/// Warns on standard error about settings that are allowed and probably a mistake.
fn warn(file: &Path, config: &config::Config) {
    let across = config.policy.across_objects().map(|number| {
        let place = number.map_or_else(String::new, |number| format!(".rules[{number}].set"));
        format!(
            "correlation{place}.aggregateKey without involvedObject.name combines events of many objects in\n  \
             the record of one of them; `kubectl describe` of the others shows nothing"
        )
    });
    let unreached = config.policy.unreached().map(|(number, before)| {
        format!("correlation.rules[{number}] has no effect, because rules[{before}] matches all of its events")
    });
    let without_type = config.policy.without_type().map(|number| {
        format!("correlation.rules[{number}].match.type matches neither `Normal` nor `Warning`, which all events are")
    });
    across.chain(unreached).chain(without_type).for_each(|warning| print_warning(file, &warning));
}

fn print_warning(file: &Path, warning: &str) {
    // A closed standard error is no failure.
    drop(writeln!(std::io::stderr(), "warning: {}: {warning}", file.display()));
}

/// Prints which rule matches each event, and why the rules before it do not.
fn rules(config: &config::Config, path: &Path) -> Result<(), Error> {
    let mut text = String::new();
    replay::each(path, |mut event| {
        // As for `serve` and `replay`.
        event.default_namespace();
        let (event, object) = (&event, &event.involved_object);
        let name = format!("{} {}/{} {}", event.reason, event.metadata.namespace, object.name, object.kind);
        text += &format!("{}\n", clean(&name, 300));
        let found = config.policy.rule(event).0;
        for (number, rule) in config.policy.rules.iter().enumerate().take(found.map_or(usize::MAX, |found| found + 1)) {
            let verdict =
                rule.matches.miss(event).map_or("matches: its settings apply".to_owned(), |(member, said)| {
                    format!("does not match: {member} is {:?}", clean(said, 100))
                });
            text += &format!("  rules[{number}] {verdict}\n");
        }
        if found.is_none() {
            text += "  no rule matches: the settings of correlation apply\n";
        }
    })?;
    print(&text)
}

/// Runs `config-schema`.
///
/// # Errors
/// When standard output cannot be written.
pub fn config_schema() -> Result<(), Error> {
    print_document(&format!("{:#}\n", config::Config::json_schema()))
}

/// Runs `healthcheck`.
///
/// # Errors
/// When it is not ready, or does not answer within five seconds.
pub fn healthcheck(check: &Healthcheck) -> Result<(), Error> {
    remote::uri_of("--admin", &check.admin, &["http"])?;
    let uri = format!("{}/readyz", check.admin.trim_end_matches('/'));
    let answer = runtime()?.block_on(async { tokio::time::timeout(DEADLINE, ask(&uri)).await });
    let fault = match answer {
        Ok(Ok((code, body))) if code.is_success() => return print(&String::from_utf8_lossy(&body)),
        Ok(Ok((code, body))) => remote::refusal(code, &body),
        Ok(Err(error)) => remote::unanswered(&*error),
        Err(_elapsed) => format!("no answer within {} s", DEADLINE.as_secs()),
    };
    Err(Error::NotReady(format!("{uri}: {fault}")))
}

async fn ask(uri: &str) -> Result<(http::StatusCode, Bytes), Box<dyn std::error::Error + Send + Sync>> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let answer = client.get(uri.parse()?).await?;
    Ok((answer.status(), answer.into_body().collect().await?.to_bytes()))
}

/// Runs `completions SHELL`.
///
/// # Errors
/// When standard output cannot be written.
pub fn completions(shell: clap_complete::Shell, command: &mut clap::Command) -> Result<(), Error> {
    let mut script = Vec::new();
    clap_complete::generate(shell, command, "eventweir", &mut script);
    write(&String::from_utf8_lossy(&script))
}

/// Prints a text for people. Characters of events that control a terminal are replaced.
fn print(text: &str) -> Result<(), Error> {
    write(&printable(text))
}

fn printable(text: &str) -> String {
    text.replace(|c| !is_safe(c) && !matches!(c, '\n' | '\t'), "\u{fffd}")
}

/// Prints a document in JSON or YAML. Both write the control characters that JSON allows in a text in this way too.
fn print_document(text: &str) -> Result<(), Error> {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\u{7f}'..='\u{9f}' => shown += &format!("\\u{:04x}", u32::from(c)),
            c => shown.push(c),
        }
    }
    write(&shown)
}

fn write(text: &str) -> Result<(), Error> {
    let mut output = std::io::stdout().lock();
    output.write_all(text.as_bytes()).and_then(|()| output.flush()).map_err(unwritten)
}

fn unwritten(source: std::io::Error) -> Error {
    match source.kind() {
        ErrorKind::BrokenPipe => Error::Closed,
        _ => Error::Io { what: "writing to standard output".to_owned(), source },
    }
}

/// Waits until `time` has passed or Ctrl-C; without a time, until Ctrl-C. The next Ctrl-C ends the program at once,
/// because the report may take long.
async fn end(time: Option<Duration>) {
    let _ended = tokio::time::timeout(time.unwrap_or(Duration::MAX), tokio::signal::ctrl_c()).await;
    #[expect(clippy::disallowed_methods, reason = "there is nothing to drain")]
    drop(tokio::spawn(end_at_once()));
}

#[expect(clippy::exit, reason = "the main thread may be busy or blocked")]
async fn end_at_once() {
    if tokio::signal::ctrl_c().await.is_ok() {
        std::process::exit(INTERRUPTED);
    }
}

/// Starts the runtime of async commands.
fn runtime() -> Result<tokio::runtime::Runtime, Error> {
    tokio::runtime::Builder::new_multi_thread()
        // Under load a worker looks for new data of its connections after so many tasks. With tokio's 61, a quiet
        // client waits for 61 requests of a busy one.
        .event_interval(8)
        .enable_all()
        .build()
        .map_err(|source| Error::Io { what: "starting the runtime".to_owned(), source })
}
