//! The command line: what can be asked of the program, and help texts that teach.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::config::Overrides;
use crate::event::{MicroTime, Time};
use crate::replay::Until;

/// A proxy that merges repeated Kubernetes Events, limits writes to the API server, and accounts for each occurrence.
#[derive(Debug, Parser)]
#[command(name = "eventweir", version, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the proxy.
    ///
    /// Components post their Events to --listen as if it were the API server. Without flags everything runs on this machine
    /// alone: events end in an embedded store that can be read back at the same address.
    ///
    /// SIGTERM drains what waits (up to shutdown.drainTimeout) and exits 0; SIGHUP reloads the configuration file.
    Serve(Box<Serve>),
    /// See what it saves on a made-up storm: no cluster, no flags.
    ///
    /// Sends an hour of a CronJob and of pods in a crash loop through client-go's correlator and through eventweir's defaults, in
    /// simulated time, and prints what each writes and shows, beside a client without a correlator.
    Demo(Demo),
    /// Show what eventweir would write for recorded events.
    ///
    /// Reads what `kubectl get events -o json` prints, JSON lines, arrays, events of both API groups and audit logs of the API server
    /// (level Request), also compressed by gzip. Runs them in simulated time through client-go's correlator and through eventweir.
    ///
    /// Examples:
    ///   kubectl get events -A -o json | eventweir replay -
    ///   eventweir replay audit.log.gz --config new.yaml --by component
    #[command(verbatim_doc_comment)]
    Replay(Replay),
    /// Watch the events of a cluster, and show what eventweir would save there. Writes nothing to the cluster.
    ///
    /// Counts what is stored while it watches, until --for has passed or Ctrl-C, and prints the table of `replay`. What the clients' own
    /// limits never let through cannot be seen in this way; `replay` of an audit log counts each request.
    ///
    /// Examples:
    ///   eventweir observe --for 10m
    ///   eventweir observe -n shop --by reason
    #[command(verbatim_doc_comment)]
    Observe(Observe),
    /// Say where the events of an object are: shown, waiting, lost or never received, and why.
    ///
    /// Exits 0, or 3 where nothing is known.
    ///
    /// Examples:
    ///   eventweir explain pod/web-0 -n shop
    ///   eventweir explain cronjob/hello --reason SawCompletedJob --follow
    #[command(verbatim_doc_comment)]
    Explain(Explain),
    /// Print occurrences as they come, with what becomes of each.
    ///
    /// Conditions are lists with commas between; `*` at the end of a word stands for any ending.
    ///
    /// Examples:
    ///   eventweir tap -n shop --type Warning
    ///   eventweir tap --verdict dropped,lost -o json
    #[command(verbatim_doc_comment)]
    Tap(Tap),
    /// Show the noisiest objects, reasons, components or namespaces.
    ///
    /// Examples:
    ///   eventweir top
    ///   eventweir top --by namespace --once
    #[command(verbatim_doc_comment)]
    Top(Top),
    /// Check a configuration file and name everything that is wrong with it. Exits 0 or 64.
    CheckConfig(CheckConfig),
    /// Print the JSON schema of the configuration file, for editors and for the Helm chart.
    ConfigSchema,
    /// Ask a running eventweir whether it is ready. Exits 0 or 1.
    ///
    /// For containers, whose image has no curl.
    Healthcheck(Healthcheck),
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// Flags of `serve`; each overrides the configuration file.
#[derive(Debug, Args)]
pub struct Serve {
    /// Configuration file (YAML); every key is in docs/configuration.md.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print the configuration that results from file and flags, and exit.
    #[arg(long)]
    pub print_config: bool,
    /// The flags that override the file.
    #[command(flatten)]
    pub flags: Flags,
}

/// The principal settings.
#[derive(Debug, Args, Default)]
pub struct Flags {
    /// Where components post their events: an address, or unix:/path [default: 127.0.0.1:8080].
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Allow --listen on an address that other machines reach, although nobody is authenticated.
    #[arg(long)]
    pub insecure_listen: bool,
    /// Where /metrics, /livez and /readyz are [default: 127.0.0.1:9090].
    #[arg(long, value_name = "ADDR")]
    pub admin_listen: Option<String>,
    /// TLS, users and headers of --admin-listen, in the format of Prometheus' exporter-toolkit.
    #[arg(long = "web.config.file", value_name = "FILE")]
    pub web_config_file: Option<String>,
    /// Hosts that requests to a loopback address may name: regular expressions with commas between them
    /// [default: ^localhost$,^127\.0\.0\.1$,^\[::1\]$].
    #[arg(long, value_name = "REGEXPS")]
    pub accept_hosts: Option<String>,
    /// The certificate of --listen in PEM, and those between it and its authority; read again when it changes.
    #[arg(long, value_name = "FILE")]
    pub tls_cert_file: Option<String>,
    /// The private key of --tls-cert-file in PEM.
    #[arg(long, value_name = "FILE")]
    pub tls_private_key_file: Option<String>,
    /// The oldest TLS that is spoken: `VersionTLS12` (the default) or `VersionTLS13`.
    #[arg(long, value_name = "VERSION")]
    pub tls_min_version: Option<String>,
    /// Cipher suites of TLS 1.2 by Go's names, with commas between them [default: all that are known].
    #[arg(long, value_name = "NAMES")]
    pub tls_cipher_suites: Option<String>,
    /// Authorities of client certificates in PEM; a certificate of another one is refused.
    #[arg(long, value_name = "FILE")]
    pub client_ca_file: Option<String>,
    /// Where records live: `embedded` (in memory, the default) or `apiserver`.
    #[arg(long, value_name = "KIND")]
    pub upstream: Option<String>,
    /// The kubeconfig of the apiserver [default: as kubectl, else the pod's service account].
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<String>,
    /// The context of the kubeconfig.
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// What happens to an occurrence that finds no token: `defer` (the default) or `drop` (client-go's way).
    #[arg(long, value_name = "MODE")]
    pub suppression: Option<String>,
    /// A directory of this process alone, where what waits is kept too, so that it outlives a crash [default: none].
    #[arg(long, value_name = "DIR")]
    pub spool_dir: Option<String>,
    /// `none`, `stdout` or a file that takes every occurrence as a JSON line.
    #[arg(long, value_name = "TARGET")]
    pub event_log: Option<String>,
    /// How log lines look: `text` or `json`.
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<String>,
    /// A level, or directives such as `info,eventweir::deliver=debug`.
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
}

/// Flags of `demo`.
#[derive(Debug, Args)]
pub struct Demo {
    /// Also draw the writes per minute into this file.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// Flags of `replay`.
#[derive(Debug, Args)]
pub struct Replay {
    /// The events; `-` reads standard input.
    pub file: PathBuf,
    /// A second configuration, shown side by side; only rows that differ are listed.
    #[arg(long, value_name = "FILE")]
    pub against: Option<PathBuf>,
    /// How long simulated time goes on after the last event: `settled` (until nothing waits that can be written), `end` (not at all),
    /// `+1h`, or a time such as 2026-03-01T08:00:00Z.
    #[arg(long, value_name = "WHEN", default_value = "settled", value_parser = until)]
    pub until: Until,
    /// Leave out what is no event, and count it.
    #[arg(long)]
    pub skip_bad: bool,
    /// Read the whole input into memory and sort it by time; Lists and arrays always are.
    #[arg(long)]
    pub sort_by_time: bool,
    /// Accepted without effect: client-go is always shown.
    #[arg(long, hide = true)]
    pub client_go: bool,
    /// What is printed.
    #[command(flatten)]
    pub report: Report,
}

/// Flags of `observe`.
#[derive(Debug, Args)]
pub struct Observe {
    /// For how long, such as `90s`, `10m` or `1h` [default: until Ctrl-C].
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub time: Option<Duration>,
    /// The namespace to watch [default: all].
    #[arg(long, short, value_name = "NAME")]
    pub namespace: Option<String>,
    /// The kubeconfig [default: as kubectl, else the pod's service account].
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig.
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// Count what the API server appends to this audit log, instead of watching the cluster: each request, not only its result.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["kubeconfig", "context", "save"])]
    pub audit: Option<PathBuf>,
    /// Also keep what was observed in this file, as JSON lines compressed by gzip, for `replay`.
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// What is printed.
    #[command(flatten)]
    pub report: Report,
}

/// What `replay` and `observe` compare and print.
#[derive(Debug, Args)]
pub struct Report {
    /// The configuration to try [default: the defaults].
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Rows of each list; 0 lists all.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub top: usize,
    /// What a row stands for.
    #[arg(long, value_enum, default_value_t = By::Object)]
    pub by: By,
    /// By what rows are sorted.
    #[arg(long, value_enum, default_value_t = Sort::Writes)]
    pub sort: Sort,
    /// How the result is printed; docs/replay.md describes the JSON document.
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    pub output: Output,
    /// Also draw the writes per minute into this file.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Print no progress.
    #[arg(long, short)]
    pub quiet: bool,
}

/// What a row stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "the words of the command line")]
pub enum By {
    Object,
    Reason,
    Component,
    Namespace,
    Type,
}

/// By what rows are sorted; numbers are eventweir's, the largest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "the words of the command line")]
pub enum Sort {
    Writes,
    Sent,
    Lost,
    Wait,
    Name,
}

/// How a result is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Tables for people, 80 columns wide.
    #[value(alias = "text")]
    Table,
    /// The same with more columns.
    Wide,
    /// One JSON document.
    Json,
}

fn duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err("expected a time such as 90s, 10m or 1h".to_owned()),
    };
    let number: u64 = number.parse().map_err(|_error| "expected a time such as 90s, 10m or 1h".to_owned())?;
    Ok(Duration::from_secs(number.saturating_mul(seconds)))
}

fn until(text: &str) -> Result<Until, String> {
    match text.strip_prefix('+') {
        Some(time) => duration(time).map(Until::After),
        None if text == "settled" => Ok(Until::Settled),
        None if text == "end" => Ok(Until::After(Duration::ZERO)),
        None => Time::parse(text)
            .map(|time| Until::At(time.0.saturating_mul(1_000_000_000)))
            .or_else(|_error| MicroTime::parse(text).map(|time| Until::At(time.0.saturating_mul(1000))))
            .map_err(|_error| "expected `settled`, `end`, a time such as +1h, or 2026-03-01T08:00:00Z".to_owned()),
    }
}

/// Which eventweir is asked.
#[derive(Debug, Args)]
pub struct Remote {
    /// Where it listens. Given several times, `explain` asks each: an object's events are known to the replica that received them.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    pub server: Vec<String>,
    /// A file with the bearer token to show.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// The authorities of its certificate in PEM.
    #[arg(long, value_name = "FILE")]
    pub certificate_authority: Option<PathBuf>,
}

/// How an answer is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "the words of the command line")]
pub enum Format {
    Table,
    Json,
    Yaml,
}

/// Flags of `explain`.
#[derive(Debug, Args)]
pub struct Explain {
    /// The object, as kubectl names it: pod/web-0, deploy/web, cronjob.batch/hello.
    #[arg(value_name = "KIND/NAME", required_unless_present_any = ["uid", "event", "source"])]
    pub object: Option<String>,
    /// The namespace of its events; those of cluster-scoped objects are in `default`.
    #[arg(long, short, value_name = "NAME", default_value = "default")]
    pub namespace: String,
    /// The object's uid.
    #[arg(long)]
    pub uid: Option<String>,
    /// The name of an event: a client's, or a record's.
    #[arg(long, value_name = "NAME")]
    pub event: Option<String>,
    /// Only what this source reports.
    #[arg(long, value_name = "COMPONENT[/HOST]")]
    pub source: Option<String>,
    /// Only this reason.
    #[arg(long)]
    pub reason: Option<String>,
    /// How the answer is printed.
    #[arg(long, short, value_enum, default_value_t = Format::Table)]
    pub output: Format,
    /// Go on with what comes, until Ctrl-C.
    #[arg(long)]
    pub follow: bool,
    /// Which eventweir is asked.
    #[command(flatten)]
    pub remote: Remote,
}

/// Flags of `tap`.
#[derive(Debug, Args)]
pub struct Tap {
    /// Namespaces [default: all].
    #[arg(long, short, value_name = "NAMES")]
    pub namespace: Option<String>,
    /// Objects, such as pod/web-*.
    #[arg(long, value_name = "KIND/NAME")]
    pub object: Option<String>,
    /// Reasons.
    #[arg(long)]
    pub reason: Option<String>,
    /// Sources.
    #[arg(long, value_name = "COMPONENT[/HOST]")]
    pub source: Option<String>,
    /// Types.
    #[arg(long = "type")]
    pub event_type: Option<String>,
    /// What became of them: created, counted, combined, deferred, dropped, written, lost.
    #[arg(long)]
    pub verdict: Option<String>,
    /// Texts of which the message contains one.
    #[arg(long, value_name = "TEXT")]
    pub message: Option<String>,
    /// Lines a second at most; how many are left out is said. 0 prints all.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub max_rate: u64,
    /// For how long [default: until Ctrl-C].
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub time: Option<Duration>,
    /// How lines are printed; JSON as they come.
    #[arg(long, short, value_enum, default_value_t = Format::Table)]
    pub output: Format,
    /// Which eventweir is asked.
    #[command(flatten)]
    pub remote: Remote,
}

/// Flags of `top`.
#[derive(Debug, Args)]
pub struct Top {
    /// What a row stands for.
    #[arg(long, value_enum, default_value_t = By::Object)]
    pub by: By,
    /// How far back the numbers reach.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = ["1m", "10m", "1h"])]
    pub window: String,
    /// The namespace [default: all].
    #[arg(long, short, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Only events of which the namespace, kind, name, reason or component contains this.
    #[arg(long, value_name = "TEXT")]
    pub filter: Option<String>,
    /// Rows; 0 lists all.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub top: usize,
    /// Print one table and end; so it does without a terminal.
    #[arg(long)]
    pub once: bool,
    /// Time between two looks.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    pub interval: Duration,
    /// How the answer is printed.
    #[arg(long, short, value_enum, default_value_t = Format::Table)]
    pub output: Format,
    /// Which eventweir is asked.
    #[command(flatten)]
    pub remote: Remote,
}

/// Flags of `check-config`.
#[derive(Debug, Args)]
pub struct CheckConfig {
    /// The file to check.
    pub file: PathBuf,
    /// Also print the configuration that results from it.
    #[arg(long)]
    pub print: bool,
    /// Say of each event in this file, in any form that `replay` reads, which rule matches and why; `-` reads standard input.
    #[arg(long, value_name = "FILE")]
    pub event: Option<PathBuf>,
}

/// Flags of `healthcheck`.
#[derive(Debug, Args)]
pub struct Healthcheck {
    /// Where the admin port is, over plain HTTP.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9090")]
    pub admin: String,
}

impl Flags {
    /// As the configuration takes them.
    #[must_use]
    pub fn into_overrides(self) -> Overrides {
        Overrides {
            listen: self.listen,
            insecure_listen: self.insecure_listen,
            admin_listen: self.admin_listen,
            admin_web_config_file: self.web_config_file,
            accept_hosts: self.accept_hosts,
            tls_cert_file: self.tls_cert_file,
            tls_private_key_file: self.tls_private_key_file,
            tls_min_version: self.tls_min_version,
            tls_cipher_suites: self.tls_cipher_suites,
            client_ca_file: self.client_ca_file,
            upstream: self.upstream,
            kubeconfig: self.kubeconfig,
            context: self.context,
            log_format: self.log_format,
            log_level: self.log_level,
            event_log: self.event_log,
            suppression: self.suppression,
            spool_dir: self.spool_dir,
            container_memory: None,
        }
    }
}
