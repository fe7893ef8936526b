//! The command line: subcommands, flags and help texts.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};

use crate::config::{Overrides, parse_duration};
use crate::event::{MicroTime, Time};
use crate::replay::Until;

/// A proxy that merges repeated Kubernetes Events, limits writes to the API server, and accounts for each occurrence.
#[derive(Debug, Parser)]
#[command(name = "eventweir", version, propagate_version = true)]
pub struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands in the order of `--help`, by what they are for.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Try it", &["demo", "replay", "observe"]),
    ("Run it", &["serve", "check-config", "healthcheck"]),
    ("Look inside", &["explain", "top", "tap"]),
    ("Other", &["config-schema", "completions"]),
];

impl Cli {
    /// Returns the command line, whose help lists the subcommands in groups.
    pub fn grouped() -> clap::Command {
        let command = Self::command();
        let mut text = String::new();
        for (title, names) in GROUPS {
            text += &format!("{title}:\n");
            let named = names.iter().filter_map(|name| command.find_subcommand(name));
            for about in named.map(|found| (found.get_name(), found.get_about().cloned().unwrap_or_default())) {
                text += &format!("  {:<14}{}\n", about.0, about.1);
            }
            text.push('\n');
        }
        let template = "{about-with-newline}\n{usage-heading} {usage}\n\n{after-help}Options:\n{options}";
        command.help_template(template).after_help(text)
    }
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the proxy
    ///
    /// Components post their Events to --listen as if it were the API server. Without flags, only this machine
    /// reaches it, and it writes to an embedded store, whose events can be read at the same address.
    ///
    /// SIGTERM writes what waits (up to shutdown.drainTimeout) and exits 0, or 75 if some of that is lost then. SIGHUP
    /// reloads the configuration file.
    ///
    /// Examples:
    ///   eventweir serve
    ///   eventweir serve --upstream apiserver --kubeconfig ~/.kube/config --config eventweir.yaml
    #[command(verbatim_doc_comment)]
    Serve(Box<Serve>),
    /// Show what it saves on generated events, without a cluster
    ///
    /// Simulates an hour of a CronJob, of pods in a crash loop, and of many pods that cannot be scheduled. Prints what
    /// client-go's correlator and eventweir with its defaults write and show, and what a client without a correlator
    /// would write.
    ///
    /// Examples:
    ///   eventweir demo
    ///   eventweir demo --svg demo.svg
    #[command(verbatim_doc_comment)]
    Demo(Demo),
    /// Show what eventweir would write for recorded events
    ///
    /// Reads the output of `kubectl get events -o json`, JSON lines, arrays, and audit logs of the API server (level
    /// Request), with events of both API groups, also compressed by gzip. Simulates client-go's correlator and
    /// eventweir with these events.
    ///
    /// Examples:
    ///   kubectl get events -A -o json | eventweir replay -
    ///   eventweir replay audit.log.gz --config new.yaml --by component
    #[command(verbatim_doc_comment)]
    Replay(Replay),
    /// Watch the events of a cluster, and show what eventweir would save there
    ///
    /// Writes nothing to the cluster. Counts the events that are stored until --for has passed or Ctrl-C, and prints
    /// the table of `replay`. It cannot see events that the clients' own limits suppress; `replay` of an audit log
    /// counts each request.
    ///
    /// Examples:
    ///   eventweir observe --for 10m
    ///   eventweir observe -n shop --by reason
    #[command(verbatim_doc_comment)]
    Observe(Observe),
    /// Explain where the events of an object are: shown, waiting, lost or never received, and why
    ///
    /// Exits 0, 3 if nothing is known, or 1 if eventweir does not answer.
    ///
    /// Examples:
    ///   eventweir explain pod/web-0 -n shop
    ///   eventweir explain cronjob/hello --reason SawCompletedJob --follow
    #[command(verbatim_doc_comment)]
    Explain(Explain),
    /// Print occurrences as they arrive, with the decision about each
    ///
    /// Conditions are comma-separated lists; `*` at the end of a word matches any ending, except in --message.
    ///
    /// Examples:
    ///   eventweir tap -n shop --type Warning
    ///   eventweir tap --verdict dropped,lost -o json
    #[command(verbatim_doc_comment)]
    Tap(Tap),
    /// Show the noisiest objects, reasons, components or namespaces
    ///
    /// Examples:
    ///   eventweir top
    ///   eventweir top --by namespace --once
    #[command(verbatim_doc_comment)]
    Top(Top),
    /// Check a configuration file and print all errors. Exits 0 or 64
    ///
    /// Examples:
    ///   eventweir check-config eventweir.yaml --files
    ///   kubectl get events -A -o json | eventweir check-config eventweir.yaml --event -
    #[command(verbatim_doc_comment)]
    CheckConfig(CheckConfig),
    /// Print the JSON schema of the configuration file, for editors and for the Helm chart.
    ConfigSchema,
    /// Check that a running eventweir is ready. Exits 0 or 1.
    ///
    /// For containers, because the image has no curl.
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
    /// Print the effective configuration of file and flags, and exit.
    #[arg(long)]
    pub print_config: bool,
    /// The flags that override the file.
    #[command(flatten)]
    pub flags: Flags,
}

/// The principal settings as flags.
#[derive(Debug, Args, Default)]
pub struct Flags {
    /// Address to which components post events, or unix:/path [default: 127.0.0.1:8080].
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Allow --listen on an address that other machines reach, without authentication.
    #[arg(long)]
    pub insecure_listen: bool,
    /// Address of /metrics, /livez and /readyz [default: 127.0.0.1:9090].
    #[arg(long, value_name = "ADDR")]
    pub admin_listen: Option<String>,
    /// File with TLS, users and headers of --admin-listen, in the format of Prometheus' exporter-toolkit.
    #[arg(long = "web.config.file", value_name = "FILE")]
    pub web_config_file: Option<String>,
    /// Hosts that a request may name if its listener is bound to a loopback address: comma-separated regular expressions
    /// [default: ^localhost$,^127\.0\.0\.1$,^\[::1\]$].
    #[arg(long, value_name = "REGEXPS")]
    pub accept_hosts: Option<String>,
    /// Certificate of --listen in PEM, with its intermediate certificates; reloaded when it changes.
    #[arg(long, value_name = "FILE")]
    pub tls_cert_file: Option<String>,
    /// Private key of --tls-cert-file in PEM.
    #[arg(long, value_name = "FILE")]
    pub tls_private_key_file: Option<String>,
    /// Oldest TLS version to accept: `VersionTLS12` (the default) or `VersionTLS13`.
    #[arg(long, value_name = "VERSION")]
    pub tls_min_version: Option<String>,
    /// Cipher suites of TLS 1.2 by Go's names, comma-separated [default: all supported ones].
    #[arg(long, value_name = "NAMES")]
    pub tls_cipher_suites: Option<String>,
    /// Authorities of client certificates in PEM; certificates of other authorities are refused.
    #[arg(long, value_name = "FILE")]
    pub client_ca_file: Option<String>,
    /// Where to store records: `embedded` (in memory, the default) or `apiserver`.
    #[arg(long, value_name = "KIND")]
    pub upstream: Option<String>,
    /// Kubeconfig for `--upstream apiserver` [default: as kubectl, else the pod's service account].
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<String>,
    /// Context of the kubeconfig.
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// What to do with an occurrence when the budget is empty: `defer` (the default) or `drop` (as client-go).
    #[arg(long, value_name = "MODE")]
    pub suppression: Option<String>,
    /// Directory of this process only; keeps what waits on the disk, to survive a crash [default: none].
    #[arg(long, value_name = "DIR")]
    pub spool_dir: Option<String>,
    /// Where to write every accepted occurrence as a JSON line: `none`, `stdout`, or the path of a file. Write `./name`
    /// for a file in this folder.
    #[arg(long, value_name = "TARGET")]
    pub event_log: Option<String>,
    /// Format of log lines: `text` or `json`.
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<String>,
    /// Log level, or directives such as `info,eventweir::deliver=debug`.
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
}

/// Flags of `demo`.
#[derive(Debug, Args)]
pub struct Demo {
    /// Also write an SVG drawing of the writes per minute to this file.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// Flags of `replay`.
#[derive(Debug, Args)]
pub struct Replay {
    /// File of events; `-` reads standard input.
    pub file: PathBuf,
    /// Second configuration, shown side by side; only rows that differ are listed.
    #[arg(long, value_name = "FILE")]
    pub against: Option<PathBuf>,
    /// How long the simulation continues after the last event: `settled` (until nothing waits that can be written),
    /// `end` (not at all), `+1h`, or until a time such as 2026-03-01T08:00:00Z.
    #[arg(long, value_name = "WHEN", default_value = "settled", value_parser = until)]
    pub until: Until,
    /// Skip and count documents that are no events.
    #[arg(long)]
    pub skip_bad: bool,
    /// Read the whole input into memory and sort it by time; Lists and arrays are always sorted.
    #[arg(long)]
    pub sort_by_time: bool,
    /// Flags of the report.
    #[command(flatten)]
    pub report: Report,
}

/// Flags of `observe`.
#[derive(Debug, Args)]
pub struct Observe {
    /// How long to observe, such as `90s`, `10m` or `1h` [default: until Ctrl-C].
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub time: Option<Duration>,
    /// Namespace to watch [default: all].
    #[arg(long, short, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Kubeconfig [default: as kubectl, else the pod's service account].
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig.
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// Count the requests that the API server appends to this audit log, instead of watching the cluster.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["kubeconfig", "context", "save"])]
    pub audit: Option<PathBuf>,
    /// Also save the observed events to this file for `replay`, as JSON lines compressed by gzip.
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// Flags of the report.
    #[command(flatten)]
    pub report: Report,
}

/// Flags of what `replay` and `observe` compare and print.
#[derive(Debug, Args)]
pub struct Report {
    /// Configuration to try [default: the defaults].
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Rows per list; 0 lists all.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub top: usize,
    /// What a row stands for.
    #[arg(long, value_enum, default_value_t = By::Object)]
    pub by: By,
    /// Sort order of rows.
    #[arg(long, value_enum, default_value_t = Sort::Writes)]
    pub sort: Sort,
    /// Format of the result; docs/replay.md describes the JSON document.
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    pub output: Output,
    /// Also write an SVG drawing of the writes per minute to this file.
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

/// Sort order of rows; numbers are eventweir's, the largest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "the words of the command line")]
pub enum Sort {
    Writes,
    Sent,
    Lost,
    Wait,
    Name,
}

/// Format of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Tables, 80 columns wide.
    #[value(alias = "text")]
    Table,
    /// Tables with more columns.
    Wide,
    /// One JSON document.
    Json,
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| "expected a time such as 90s, 10m or 1h".to_owned())
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

/// Accepts what `top` has a table of.
fn tables_of_top() -> impl TypedValueParser<Value = By> {
    PossibleValuesParser::new(["object", "reason", "component", "namespace"]).try_map(|by| By::from_str(&by, false))
}

/// The eventweir to query.
#[derive(Debug, Args)]
pub struct Remote {
    /// Address of eventweir, such as https://eventweir:8443 or unix:/run/eventweir.sock. `explain` takes several,
    /// because a replica finds only events that it has received itself.
    #[arg(long, value_name = "URL", env = "EVENTWEIR_SERVER", default_value = "http://127.0.0.1:8080")]
    pub server: Vec<String>,
    /// Query the pods of this Service instead, by the API server's port forwarding [default: eventweir/eventweir].
    #[arg(long, value_name = "NAMESPACE[/NAME]", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "eventweir")]
    pub in_cluster: Option<String>,
    /// Only this pod; `tap` and `top` need it if there are several.
    #[arg(long, value_name = "NAME", requires = "in_cluster")]
    pub pod: Option<String>,
    /// Kubeconfig for --in-cluster [default: as kubectl]. Its token is also sent to eventweir, by TLS only.
    #[arg(long, value_name = "FILE", requires = "in_cluster")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig.
    #[arg(long, value_name = "NAME", requires = "in_cluster")]
    pub context: Option<String>,
    /// File with the bearer token to send.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Authorities of the server's certificate in PEM [default: the system's; with --in-cluster those that the chart
    /// publishes].
    #[arg(long, value_name = "FILE")]
    pub certificate_authority: Option<PathBuf>,
    /// Client certificate to present, in PEM.
    #[arg(long, value_name = "FILE", requires = "client_key")]
    pub client_certificate: Option<PathBuf>,
    /// Its private key, in PEM.
    #[arg(long, value_name = "FILE", requires = "client_certificate")]
    pub client_key: Option<PathBuf>,
}

/// Format of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "the words of the command line")]
pub enum Format {
    Table,
    /// A table whose texts are not cut.
    Wide,
    Json,
    Yaml,
}

impl Format {
    /// Whether people read it, rather than programs.
    pub const fn is_table(self) -> bool {
        matches!(self, Self::Table | Self::Wide)
    }
}

/// Flags of `explain`.
#[derive(Debug, Args)]
pub struct Explain {
    /// Object, as kubectl names it: pod/web-0, deploy/web, cronjob.batch/hello.
    #[arg(value_name = "KIND/NAME", required_unless_present_any = ["uid", "event", "source"])]
    pub object: Option<String>,
    /// Namespace of its events; those of cluster-scoped objects are in `default` [default: the context's with
    /// --in-cluster, else `default`].
    #[arg(long, short, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Uid of the object.
    #[arg(long)]
    pub uid: Option<String>,
    /// Name of an event, as the client gave it or as it is stored.
    #[arg(long, value_name = "NAME")]
    pub event: Option<String>,
    /// Only events of this source.
    #[arg(long, value_name = "COMPONENT[/HOST]")]
    pub source: Option<String>,
    /// Only events with this reason.
    #[arg(long)]
    pub reason: Option<String>,
    /// Format of the answer.
    #[arg(long, short, value_enum, default_value_t = Format::Table)]
    pub output: Format,
    /// Continue with new occurrences until Ctrl-C.
    #[arg(long)]
    pub follow: bool,
    /// The eventweir to query.
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
    #[arg(long = "type", value_name = "TYPE")]
    pub event_type: Option<String>,
    /// Decisions: created, counted, combined, deferred, dropped, rejected, written, lost.
    #[arg(long)]
    pub verdict: Option<String>,
    /// Texts; the message must contain one of them, with `*` as it is.
    #[arg(long, value_name = "TEXT")]
    pub message: Option<String>,
    /// Most lines per second; a line counts those left out. 0 prints all.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub max_rate: u64,
    /// How long to print [default: until Ctrl-C].
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub time: Option<Duration>,
    /// Format of lines; JSON lines are printed as received, and YAML as one document per line.
    #[arg(long, short, value_enum, default_value_t = Format::Table)]
    pub output: Format,
    /// The eventweir to query.
    #[command(flatten)]
    pub remote: Remote,
}

/// Flags of `top`.
#[derive(Debug, Args)]
pub struct Top {
    /// What a row stands for.
    #[arg(long, default_value = "object", value_parser = tables_of_top())]
    pub by: By,
    /// Period that the numbers cover; `1h` has up to ten minutes more.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = ["1m", "10m", "1h"])]
    pub window: String,
    /// Namespace [default: all].
    #[arg(long, short, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Only events whose namespace, kind, name, reason or component contains this.
    #[arg(long, value_name = "TEXT")]
    pub filter: Option<String>,
    /// Number by which rows are chosen and sorted, the largest first; `lost` for objects only.
    #[arg(long, default_value = "received", value_parser = ["received", "perSecond", "writes", "lost"])]
    pub sort: String,
    /// Number of rows, 1 to 100; 0 shows as many as possible (100).
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub top: usize,
    /// Print one table and exit, which is the default without a terminal and with another --output.
    #[arg(long)]
    pub once: bool,
    /// Time between two refreshes.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    pub interval: Duration,
    /// Format of the answer.
    #[arg(long, short, value_enum, default_value_t = Format::Table)]
    pub output: Format,
    /// The eventweir to query.
    #[command(flatten)]
    pub remote: Remote,
}

/// Flags of `check-config`.
#[derive(Debug, Args)]
pub struct CheckConfig {
    /// File to check; `-` reads standard input.
    pub file: PathBuf,
    /// Also check what `serve` checks at its start: certificates, the admin port's web configuration, the event log,
    /// the spool.
    #[arg(long)]
    pub files: bool,
    /// Also print the effective configuration.
    #[arg(long)]
    pub print: bool,
    /// Print which rule matches each event of this file, and why; any form that `replay` reads, `-` for standard input.
    #[arg(long, value_name = "FILE")]
    pub event: Option<PathBuf>,
}

/// Flags of `healthcheck`.
#[derive(Debug, Args)]
pub struct Healthcheck {
    /// Address of the admin port, over plain HTTP.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9090")]
    pub admin: String,
}

impl Flags {
    /// Returns the flags as overrides of the configuration.
    pub fn into_overrides(self) -> Overrides {
        let flags = [
            ("--listen", "listen", self.listen),
            ("--insecure-listen", "insecureListen", self.insecure_listen.then(|| "true".to_owned())),
            ("--admin-listen", "adminListen", self.admin_listen),
            ("--web.config.file", "adminWebConfigFile", self.web_config_file),
            ("--accept-hosts", "acceptHosts", self.accept_hosts),
            ("--tls-cert-file", "tls.certFile", self.tls_cert_file),
            ("--tls-private-key-file", "tls.keyFile", self.tls_private_key_file),
            ("--tls-min-version", "tls.minVersion", self.tls_min_version),
            ("--tls-cipher-suites", "tls.cipherSuites", self.tls_cipher_suites),
            ("--client-ca-file", "auth.clientCAFile", self.client_ca_file),
            ("--upstream", "upstream.kind", self.upstream),
            ("--kubeconfig", "upstream.kubeconfig", self.kubeconfig),
            ("--context", "upstream.context", self.context),
            ("--log-format", "log.format", self.log_format),
            ("--log-level", "log.level", self.log_level),
            ("--event-log", "eventLog", self.event_log),
            ("--suppression", "correlation.suppression", self.suppression),
            ("--spool-dir", "spool.dir", self.spool_dir),
        ];
        let given = flags.into_iter().filter_map(|(flag, field, value)| Some((flag, field, value?)));
        Overrides { flags: given.collect(), container_memory: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_lists_each_subcommand_once() {
        let mut listed: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        let command = Cli::grouped();
        let mut known: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
        listed.sort_unstable();
        known.sort_unstable();
        assert_eq!(listed, known);
        let help = Cli::grouped().render_help().to_string();
        assert!(help.contains("\nRun it:\n  serve         Run the proxy\n") && !help.contains("Commands:"), "{help}");
    }
}
