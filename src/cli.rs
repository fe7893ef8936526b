//! The command line: what can be asked of the program, and help texts that teach.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::config::Overrides;

/// Folds storms of Kubernetes Events before they reach the API server, and loses none.
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
    /// See a storm folded: no cluster, no flags.
    ///
    /// Starts two proxies with embedded upstreams, one that behaves like client-go's own correlator and one with eventweir's
    /// defaults, sends both the same hour of a CronJob and a crash loop through real HTTP in simulated time, and prints what
    /// can be seen afterwards and how many writes it took.
    Demo(Demo),
    /// Try a configuration on recorded events.
    ///
    /// Reads raw core/v1 Events, one JSON object a line, in the order of their lastTimestamp (or eventTime), and runs them
    /// through the correlator in simulated time. Prints per object and reason what would be written, deferred and lost.
    Replay(Replay),
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
    /// Stay up afterwards, to look around with curl or kubectl; ends with Ctrl-C.
    #[arg(long)]
    pub keep: bool,
}

/// Flags of `replay`.
#[derive(Debug, Args)]
pub struct Replay {
    /// The events: one core/v1 Event as JSON a line; `-` reads standard input.
    pub file: PathBuf,
    /// The configuration to try [default: the defaults].
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// A second configuration, shown side by side.
    #[arg(long, value_name = "FILE", conflicts_with = "client_go")]
    pub against: Option<PathBuf>,
    /// Show client-go's own behaviour side by side.
    #[arg(long)]
    pub client_go: bool,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

/// How a result is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// A table for people.
    Text,
    /// One JSON document.
    Json,
}

/// Flags of `check-config`.
#[derive(Debug, Args)]
pub struct CheckConfig {
    /// The file to check.
    pub file: PathBuf,
    /// Also print the configuration that results from it.
    #[arg(long)]
    pub print: bool,
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
        }
    }
}
