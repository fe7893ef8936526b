//! Reads what the user wrote into the checked configuration: every key, its member and its range. Pure.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Duration;

use rustix::fs::Access;
use serde_json::{Value as Json, json};
use smol_str::SmolStr;

use super::correlation::correlation;
use super::raw::{Node, Origin, Value};
use super::section::{Collector, Section, Shown};
use super::units::duration_text;
use super::values::{self, Form};
use super::{
    Admission, Backend, Config, Errors, Files, Log, LogFormat, Memory, Overrides, Passthrough, RawConfig, Shards,
    Shutdown, Tls, Upstream, Writes, auth, fault, memory, tls,
};
use crate::access;
use crate::correlator::Rate;
use crate::deliver::GateSettings;
use crate::event::ApiGroup;
use crate::event_log::Target;
use crate::explain;
use crate::history;
use crate::ingest::{self, Ack};
use crate::outbox::{self, UpstreamGroup};
use crate::server::{self, Address};
use crate::shadow;
use crate::shard;
use crate::spool;
use crate::upstream::store::{self, Namespaces};

pub(super) const WEEK: Duration = Duration::from_secs(7 * 86_400);
const HOUR: Duration = Duration::from_secs(3600);
const MINUTE: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// LIMIT: upper end of counts that memory has to hold; a larger number is refused as a typing error.
const COUNT_MAX: usize = 100_000_000;
/// LIMIT: upper end of byte limits that memory has to hold (64 GiB).
const MEMORY_MAX: usize = 64 << 30;
/// LIMIT: bytes of an annotation. All annotations of an object take at most 256 KiB, and its tags need some of them.
const ANNOTATION_MAX: usize = 32 << 10;
/// Most watches. The connections to the API server have room for 16,384 requests at once, writes and reads included.
const WATCHES_MAX: usize = 15_000;

/// LIMIT: memory of a shadow configuration that does not set `memory`; its limits follow from this.
const SHADOW_MEMORY: NonZeroUsize = const { NonZeroUsize::new(256 << 20).unwrap() };

/// The limit of all writes: a rate that hardly loads an apiserver of 5,000 nodes.
const CEILING: Rate = Rate { qps: 40.0, burst: 400 };
/// How the file writes that there is no such limit.
const UNLIMITED: Rate = Rate { qps: 0.0, burst: 0 };

const SWITCH: [(&str, bool); 2] = [("on", true), ("off", false)];
const FORMATS: [(&str, LogFormat); 2] = [("text", LogFormat::Text), ("json", LogFormat::Json)];
const BACKENDS: [(&str, Backend); 2] = [("embedded", Backend::Embedded), ("apiserver", Backend::Apiserver)];
const WRITES: [(&str, Writes); 2] = [("exact", Writes::Exact), ("plain", Writes::Plain)];
const UPSTREAM_GROUP: [(&str, UpstreamGroup); 3] =
    [("preserve", UpstreamGroup::Preserve), ("core", UpstreamGroup::Core), ("events", UpstreamGroup::Events)];
const ACK: [(&str, Ack); 3] = [("accepted", Ack::Accepted), ("durable", Ack::Durable), ("written", Ack::Written)];
const HISTORY: [(&str, history::Mode); 3] =
    [("watch", history::Mode::Watch), ("list", history::Mode::List), ("off", history::Mode::Off)];

impl Default for Config {
    fn default() -> Self {
        let mut shard = shard::Settings::default();
        shard.outbox.groups.ceiling = Some(CEILING);
        shard.explain.enabled = true;
        Self {
            listen: Address::Tcp(SocketAddr::new(LOOPBACK, 8080)),
            insecure_listen: false,
            admin_listen: SocketAddr::new(LOOPBACK, 9090),
            admin_web_config_file: None,
            accept_hosts: server::ACCEPT_HOSTS.map(SmolStr::new_static).to_vec(),
            tls: Tls::default(),
            log: Log::default(),
            event_log: None,
            upstream: Upstream::default(),
            gate: GateSettings { rate: Some(CEILING), ..GateSettings::default() },
            policy: super::correlation::default_policy(),
            shard,
            spool: spool::Settings::default(),
            ingest: ingest::Settings::default(),
            passthrough: Passthrough::default(),
            admission: Admission::default(),
            access: access::Settings::default(),
            limits_file: None,
            shadow: None,
            memory: Memory::Container,
            shutdown: Shutdown::default(),
            shards: Shards::Auto,
        }
    }
}

impl Config {
    /// Applies the flags to the file, fills in the defaults and checks everything.
    ///
    /// # Errors
    /// Everything that is wrong, at once.
    pub fn from_raw(raw: RawConfig, overrides: &Overrides) -> Result<Self, Errors> {
        Self::checked(raw, overrides, Files::Ignored)
    }

    /// Does the same with the files that the configuration names.
    pub(super) fn checked(raw: RawConfig, overrides: &Overrides, files: Files) -> Result<Self, Errors> {
        raw.read_through(overrides, files, |section| {
            let mut config = Self::default();
            read(section, &mut config, |config| {
                if let Some(bytes) = config.memory.bytes(overrides.container_memory) {
                    memory::divide(config, bytes);
                }
            });
            config
        })
    }

    /// The JSON schema of the file, for editors and the Helm chart. It refuses unknown keys, wrong types, and numbers
    /// out of range. Only the program checks ranges of durations, sizes and rates, and conflicts between values.
    pub fn json_schema() -> Json {
        let mut schema = Self::default().read_nothing(&Collector::of_schema()).schema(&json!("object"));
        if let Some(root) = schema.as_object_mut() {
            root.insert("$schema".to_owned(), "http://json-schema.org/draft-07/schema#".into());
            root.insert("title".to_owned(), "eventweir's configuration".into());
        }
        schema
    }

    /// The effective values. Fields without a value of their own, such as the path of a kubeconfig, are left out.
    pub(super) fn tree(&self) -> Json {
        let collector = Collector::new("", Errors::default(), Files::Ignored);
        let mut tree = self.clone().read_nothing(&collector).values;
        if let Some(correlation) = tree.get_mut("correlation").and_then(Json::as_object_mut) {
            let base = correlation.clone();
            for rule in correlation.get_mut("rules").and_then(Json::as_array_mut).into_iter().flatten() {
                // A rule sets only what differs from the base.
                if let Some(set) = rule.get_mut("set").and_then(Json::as_object_mut) {
                    set.retain(|key, value| base.get(key) != Some(value));
                }
            }
        }
        Json::Object(tree)
    }

    /// Reads an empty file over these values, which changes nothing and shows them.
    fn read_nothing(mut self, collector: &Collector) -> Shown {
        collector.read(&Node::default(), String::new(), |section| read(section, &mut self, |_| ())).1
    }
}

impl RawConfig {
    /// The limits of an EventRateLimit plugin's file. The plugin too refuses one without limits; an editor may be about to
    /// write it.
    pub(super) fn limits(self) -> Result<Vec<access::Limit>, Errors> {
        let empty = fault(Path::new(&self.file), "has no limits; allowed: 1 to 16");
        let limits = self.read_through(&Overrides::default(), Files::Ignored, |section| {
            let mut limits = Vec::new();
            auth::plugin(section, &mut limits);
            limits
        })?;
        if limits.is_empty() { Err(empty) } else { Ok(limits) }
    }

    /// Applies the flags, reads the whole file through `read`, and returns everything that is wrong.
    pub(super) fn read_through<T>(
        self,
        overrides: &Overrides,
        files: Files,
        read: impl FnOnce(&mut Section<'_>) -> T,
    ) -> Result<T, Errors> {
        let file = if self.file.is_empty() { "defaults" } else { &self.file }.to_owned();
        let (root, twice) = self.overlaid(overrides);
        let collector = Collector::new(&file, twice, files);
        let (value, _) = collector.read(&root, String::new(), read);
        collector.into_errors().or(value)
    }
}

const BEYOND_LOOPBACK: &str = "can be reached from other machines, and callers are not authenticated there; \
    allowed: a loopback address such as 127.0.0.1:8080, a Unix domain socket such as unix:/run/eventweir.sock, any with \
    auth.tokenReview.enabled: true or auth.clientCAFile, or any with insecureListen: true (--insecure-listen)";
const TOKENS_IN_CLEAR: &str = "can be reached from other machines, and without TLS the network reads the callers' tokens; \
    allowed: any with tls.certFile (--tls-cert-file) or tls.selfSigned.dir, a loopback address such as 127.0.0.1:8080, \
    or any with insecureListen: true (--insecure-listen)";
const WITHOUT_APISERVER: &str = "needs an API server; allowed: off, or on with upstream.kind: apiserver (--upstream)";

/// Reads every section over `config`. `divide` derives the default limits from the memory, which is read first.
fn read(section: &mut Section<'_>, config: &mut Config, divide: impl FnOnce(&mut Config)) {
    section.set("memory", &mut config.memory, &memory::memory());
    divide(config);
    listeners(section, config);
    section.within("tls", |section| tls::tls(section, &mut config.tls));
    section.within("log", |section| log(section, &mut config.log));
    section.set("eventLog", &mut config.event_log, &event_log());
    if let Some(Target::File(path)) = &config.event_log
        && section.checks_files()
        && let Err(error) = writable(path, path.parent().unwrap_or(path))
    {
        section.conflict("eventLog", &format!("cannot be opened: {error}; allowed: a file that can be written"));
    }
    section.within("upstream", |section| upstream(section, config));
    let backend = config.upstream.backend;
    section.within("auth", |section| {
        section.set_optional("clientCAFile", &mut config.tls.client_ca_file, &values::path());
        auth::auth(section, &mut config.access, backend);
    });
    tls::check(section, &config.listen, &config.tls);
    check_listen(section, config);
    section.within("correlation", |section| correlation(section, &mut config.policy, &mut config.shard));
    section.within("outbox", |section| outbox(section, &mut config.shard.outbox));
    section.within("spool", |section| spool(section, &mut config.spool));
    section.within("explain", |section| explain(section, &mut config.shard.explain));
    section.within("ingest", |section| ingest(section, &mut config.ingest, config.spool.dir.is_some()));
    config.shard.outbox.repair = config.ingest.repair.is_some();
    passthrough(section, &mut config.passthrough, backend, &config.access);
    admission(section, &mut config.admission, backend);
    limits(section, config);
    shadow(section, config);
    section.within("shutdown", |section| shutdown(section, &mut config.shutdown));
    section.set("shards", &mut config.shards, &shards());
}

fn listeners(section: &mut Section<'_>, config: &mut Config) {
    section.set("listen", &mut config.listen, &values::listen_address());
    section.set("insecureListen", &mut config.insecure_listen, &values::truth());
    section.set("adminListen", &mut config.admin_listen, &values::address());
    let admin = config.admin_listen;
    // An address of all interfaces includes the others.
    let is_taken = |tcp: SocketAddr| {
        tcp.port() == admin.port()
            && (tcp.ip() == admin.ip() || tcp.ip().is_unspecified() || admin.ip().is_unspecified())
    };
    if matches!(config.listen, Address::Tcp(tcp) if is_taken(tcp)) && admin.port() != 0 {
        let key = if section.has("adminListen") { "adminListen" } else { "listen" };
        section.conflict(key, "is the address of both listeners; allowed: two different ones");
    }
    tls::web_config_file(section, &mut config.admin_web_config_file);
    section.set("acceptHosts", &mut config.accept_hosts, &values::expressions());
}

/// Reports an address at which callers need to be authenticated, or their tokens encrypted.
fn check_listen(section: &Section<'_>, config: &Config) {
    let may_bind = |is_safe: bool| server::may_bind(&config.listen, is_safe, config.insecure_listen);
    if !may_bind(keeps_out(&config.access)) {
        section.conflict("listen", BEYOND_LOOPBACK);
    } else if config.access.tokens.is_on && !may_bind(config.tls.settings().is_some()) {
        section.conflict("listen", TOKENS_IN_CLEAR);
    }
}

fn log(section: &mut Section<'_>, log: &mut Log) {
    section.set("format", &mut log.format, &values::choice(&FORMATS));
    section.set("level", &mut log.level, &values::log_level());
}

/// Checks that a file can be written, or created in `folder`. Changes nothing.
fn writable(path: &Path, folder: &Path) -> io::Result<()> {
    match std::fs::metadata(path) {
        // Opening a pipe would block until it has a reader.
        Ok(found) if !found.is_file() && !found.is_dir() => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Ok(rustix::fs::access(folder.join("."), Access::WRITE_OK | Access::EXEC_OK)?)
        }
        Ok(_) | Err(_) => std::fs::OpenOptions::new().append(true).open(path).map(drop),
    }
}

fn event_log() -> Form<'static, Option<Target>> {
    Form::of_text(
        values::mixed(),
        "none, stdout, or the path of a file, which is ./name for one in this folder",
        |text| match text {
            "none" => Some(None),
            "stdout" => Some(Some(Target::Stdout)),
            // A slash is required, so that `stdot` is an error and not a file.
            path if path.contains('/') && path.len() <= values::TEXT_MAX => Some(Some(Target::File(path.into()))),
            _ => None,
        },
        |target| json!(target.as_ref().map_or("none".to_owned(), Target::to_string)),
    )
}

fn upstream(section: &mut Section<'_>, config: &mut Config) {
    let Config { upstream, gate, shard: shard::Settings { outbox, .. }, .. } = config;
    section.set("kind", &mut upstream.backend, &values::choice(&BACKENDS));
    section.set("group", &mut outbox.group, &values::choice(&UPSTREAM_GROUP));
    let apiserver = &mut upstream.apiserver;
    section.set_optional("kubeconfig", &mut apiserver.kubeconfig, &values::path());
    section.set_optional("context", &mut apiserver.context, &values::text(253));
    // A file may name a cluster that its kind, or `--upstream embedded`, leaves out for a first try.
    let has_kind = section.has("kind");
    let is_forgotten = |Node { origin, .. }: &Node| !has_kind || matches!(origin, Origin::Flag(_));
    for key in ["kubeconfig", "context"] {
        if upstream.backend == Backend::Embedded && section.find(key).is_some_and(is_forgotten) {
            section.conflict(
                key,
                "has no effect on the embedded store; allowed with upstream.kind: apiserver (--upstream apiserver)",
            );
        }
    }
    section.set("timeout", &mut apiserver.timeout, &values::duration(MILLISECOND..=Duration::from_secs(600)));
    // The service account may have access to that API group only.
    if outbox.group == UpstreamGroup::Events {
        apiserver.group = ApiGroup::Events;
    }
    section.set("writes", &mut upstream.writes, &values::choice(&WRITES));
    section.set("history", &mut upstream.history, &values::choice(&HISTORY));
    section.set("maxInFlight", &mut gate.max_in_flight, &values::whole(1..=10_000));
    ceiling(section, &mut gate.rate);
    // The outbox divides the rate among records; the gate limits each request to it, retries included.
    outbox.groups.ceiling = gate.rate;
    section.within("backoff", |section| backoff(section, gate));
    section.within("embedded", |section| store(section, &mut upstream.store));
    // The backoff of a record that failed is that of an upstream that is down.
    (outbox.first_backoff, outbox.max_backoff) = (gate.first_backoff, gate.max_backoff);
}

fn ceiling(section: &mut Section<'_>, ceiling: &mut Option<Rate>) {
    let Rate { mut qps, mut burst } = ceiling.unwrap_or(UNLIMITED);
    section.set("qps", &mut qps, &values::rate(1_000_000.0, Some("with burst: 0, unlimited")));
    section.set("burst", &mut burst, &values::whole(0..=1_000_000));
    if burst > 0 && qps <= 0.0 {
        section.conflict("qps", "is 0 with a burst; allowed: a rate above 0, or burst: 0 for an unlimited one");
    }
    *ceiling = (burst > 0).then_some(Rate { qps, burst });
}

fn backoff(section: &mut Section<'_>, gate: &mut GateSettings) {
    section.set("initial", &mut gate.first_backoff, &values::duration(MILLISECOND..=MINUTE));
    section.set("max", &mut gate.max_backoff, &values::duration(MILLISECOND..=HOUR));
    if gate.first_backoff > gate.max_backoff {
        let [initial, max] = [gate.first_backoff, gate.max_backoff].map(duration_text);
        if section.has("initial") {
            section.conflict("initial", &format!("is longer than max; allowed: up to {max}"));
        } else {
            section.conflict("max", &format!("is shorter than initial; allowed: {initial} or longer"));
        }
    }
}

fn store(section: &mut Section<'_>, store: &mut store::Settings) {
    section.set("ttl", &mut store.ttl, &values::duration(Duration::ZERO..=WEEK));
    section.set("namespaces", &mut store.namespaces, &namespaces());
    section.set("maxEvents", &mut store.max_events, &values::positive(COUNT_MAX));
    section.set("maxBytes", &mut store.max_bytes, &values::size(1 << 20..=MEMORY_MAX));
    section.set("maxChanges", &mut store.max_changes, &values::positive(COUNT_MAX));
}

fn namespaces() -> Form<'static, Namespaces> {
    let auto = values::choice(&[("auto", ())]);
    Form::new(
        values::mixed(),
        "auto (every one), or a list of names of lower-case letters, digits and -, one or more",
        move |value| {
            let list = || values::namespaces(value).map(|names| Namespaces::List(names.into_iter().collect()));
            auto.read(value).map(|()| Namespaces::Auto).or_else(list)
        },
        |namespaces| match namespaces {
            Namespaces::Auto => json!("auto"),
            Namespaces::List(names) => names.iter().map(SmolStr::as_str).collect(),
        },
    )
}

fn outbox(section: &mut Section<'_>, outbox: &mut outbox::Settings) {
    section.set("coalesceInterval", &mut outbox.coalesce_interval, &values::duration(Duration::ZERO..=HOUR));
    section.set("maxRecords", &mut outbox.max_records, &values::positive(COUNT_MAX));
    section.set("sourcePercent", &mut outbox.source_percent, &values::positive(100));
    section.set("maxBytes", &mut outbox.max_bytes, &values::size(1 << 20..=MEMORY_MAX));
    section.set("maxBudgets", &mut outbox.max_budgets, &values::positive(COUNT_MAX));
    section.set("maxAge", &mut outbox.max_age, &values::duration(SECOND..=WEEK));
    section.within("digest", |section| {
        section.set("after", &mut outbox.digest_after, &values::whole(0..=1_000_000));
        section.set("maxAge", &mut outbox.digest_max_age, &values::duration(SECOND..=WEEK));
        section.set("messageBytes", &mut outbox.digest_message_bytes, &values::whole(128..=1024));
        section.set("reasons", &mut outbox.digest_reasons, &values::whole(1..=1000));
    });
    section.within("storm", |section| {
        section.set("after", &mut outbox.groups.fold_after, &values::duration(SECOND..=WEEK));
        section.set("maxGroups", &mut outbox.groups.max_groups, &values::positive(1_000_000));
    });
}

fn explain(section: &mut Section<'_>, explain: &mut explain::Settings) {
    section.set("enabled", &mut explain.enabled, &values::truth());
    section.set("maxBytes", &mut explain.max_bytes, &values::size(memory::EXPLAIN_MIN.get()..=MEMORY_MAX));
    section.set("series", &mut explain.series, &values::whole(0..=10_000));
    section.set("messages", &mut explain.messages, &values::whole(1..=100));
    section.set("annotationBytes", &mut explain.annotation_bytes, &values::whole(0..=ANNOTATION_MAX));
}

fn spool(section: &mut Section<'_>, spool: &mut spool::Settings) {
    section.set_optional("dir", &mut spool.dir, &values::path());
    if let Some(dir) = &spool.dir
        && section.checks_files()
        && let Err(error) = usable(dir)
    {
        section.conflict("dir", &format!("cannot be used: {error}; allowed: a folder that can be written, or created"));
    }
    section.set("commitInterval", &mut spool.commit_interval, &values::duration(Duration::ZERO..=MINUTE));
}

/// Checks the rights and kinds of the spool's file and folders, and that their file system is not read-only. Another
/// fault of the disk does not prevent a start.
fn usable(dir: &Path) -> io::Result<()> {
    let existing = dir.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new(""));
    writable(&spool::Directory(dir.to_owned()).file(), existing)
        .or_else(|error| if is_of_path(&error) { Err(error) } else { Ok(()) })
}

/// Whether another path would not have this error.
fn is_of_path(error: &io::Error) -> bool {
    use ErrorKind::{IsADirectory, NotADirectory, PermissionDenied, ReadOnlyFilesystem};
    matches!(error.kind(), IsADirectory | NotADirectory | PermissionDenied | ReadOnlyFilesystem)
}

fn ingest(section: &mut Section<'_>, ingest: &mut ingest::Settings, has_spool: bool) {
    section.set("maxBodyBytes", &mut ingest.max_body_bytes, &values::size(1 << 10..=64 << 20));
    section.set("maxConnections", &mut ingest.max_connections, &values::positive(1_000_000));
    section.set("requestTimeout", &mut ingest.request_timeout, &values::duration(MILLISECOND..=HOUR));
    section.set("maxAliases", &mut ingest.max_aliases, &values::positive(COUNT_MAX));
    section.set("maxWatches", &mut ingest.max_watches, &values::positive(WATCHES_MAX));
    section.set("maxListBytes", &mut ingest.max_list_bytes, &values::size(1 << 10..=4 << 30));
    section.set("maxReadBytes", &mut ingest.max_read_bytes, &values::size(1 << 10..=4 << 30));
    section.set("ack", &mut ingest.ack, &values::choice(&ACK));
    if ingest.ack == Ack::Durable && !has_spool {
        section.conflict("ack", "needs spool.dir (--spool-dir); allowed without it: accepted, written");
    }
    let mut repairs = ingest.repair.is_some();
    let mut message_bytes = ingest.repair.unwrap_or(ingest::Settings::MESSAGE_BYTES);
    section.set("repair", &mut repairs, &values::choice(&SWITCH));
    section.set("messageBytes", &mut message_bytes, &values::size(128..=3 << 20));
    ingest.repair = repairs.then_some(message_bytes);
}

/// Reads a section with a key `enabled`, or `on` or `off` alone in its place. Returns the path of the switch.
fn switched(
    section: &mut Section<'_>,
    key: &'static str,
    enabled: &mut bool,
    rest: impl FnOnce(&mut Section<'_>),
) -> String {
    let switch = values::choice(&SWITCH);
    if let Some(Node { value: Value::Scalar(_), .. }) = section.find(key) {
        section.set(key, enabled, &switch.but(|names| format!("{names}, or a section of keys and values")));
        return key.to_owned();
    }
    section.within(key, |section| {
        section.set("enabled", enabled, &switch);
        rest(section);
    });
    section.extend_schema(key, json!({ "type": ["object", "string", "boolean", "null"], "pattern": "^(on|off)$" }));
    format!("{key}.enabled")
}

fn passthrough(section: &mut Section<'_>, settings: &mut Passthrough, backend: Backend, access: &access::Settings) {
    let Passthrough { enabled, insecure, impersonate, max_in_flight, max_upgrades } = settings;
    let switch = switched(section, "passthrough", enabled, |section| {
        section.set("insecure", insecure, &values::truth());
        section.set("impersonate", impersonate, &values::truth());
        section.set("maxInFlight", max_in_flight, &values::positive(16_000));
        section.set("maxUpgrades", max_upgrades, &values::positive(100_000));
    });
    if *enabled && backend != Backend::Apiserver {
        section.conflict(&switch, WITHOUT_APISERVER);
    }
    if *impersonate && !access.certificates {
        let problem = "needs auth.clientCAFile (--client-ca-file); allowed without it: false";
        section.conflict("passthrough.impersonate", problem);
    }
    if *enabled && !*insecure && !keeps_out(access) {
        section.conflict(
            &switch,
            "would let every caller that reaches this listener write events; allowed: off, or on with \
             auth.tokenReview.enabled: true, with auth.clientCAFile (--client-ca-file), or with \
             passthrough.insecure: true",
        );
    }
}

fn admission(section: &mut Section<'_>, Admission { enabled, settings }: &mut Admission, backend: Backend) {
    let switch = switched(section, "admission", enabled, |section| {
        section.set("timeout", &mut settings.timeout, &values::duration(MILLISECOND..=Duration::from_secs(30)));
        section.set("seriesInterval", &mut settings.series_interval, &values::duration(Duration::ZERO..=HOUR));
        section.set("callers", &mut settings.callers, &values::patterns().or_empty());
        section.set("exemptUsers", &mut settings.exempt_users, &values::patterns().or_empty());
    });
    if *enabled && backend != Backend::Apiserver {
        section.conflict(&switch, WITHOUT_APISERVER);
    }
}

/// Whether callers have to authenticate, or may do only what a rule or the apiserver allows.
const fn keeps_out(access: &access::Settings) -> bool {
    access.authenticates() && (access.authorizes() || !access.anonymous)
}

/// Reads how much callers may do, or the file that says so; the limits of a file are not shown.
fn limits(section: &mut Section<'_>, config: &mut Config) {
    if config.limits_file.is_none() {
        auth::limits(section, &mut config.access.limits);
    }
    section.within("fairness", |section| auth::fairness(section, &mut config.access.fairness));
    section.set_optional("limitsFile", &mut config.limits_file, &values::path());
    let Some(path) = &config.limits_file else { return };
    if !config.access.limits.is_empty() {
        section.conflict("limitsFile", "is given together with limits; allowed: one of the two");
    }
    if let Some(limits) = section.file("limitsFile", path, RawConfig::limits) {
        config.access.limits = limits;
    }
}

fn shadow(section: &mut Section<'_>, config: &mut Config) {
    let read = |value: &Value| {
        values::text(values::TEXT_MAX).read(value).map(|file| shadow::Rules { file, ..Default::default() })
    };
    let (path, write) = (values::path(), |shadow: &shadow::Rules| json!(shadow.file));
    let file = Form::new(path.schema(), path.allowed(), read, write);
    section.set_optional("shadowFile", &mut config.shadow, &file);
    let Some(shadow) = &mut config.shadow else { return };
    shadow.explain_bytes = config.shard.explain.max_bytes.get();
    if !config.shard.explain.enabled {
        section.conflict("shadowFile", "needs explain.enabled: true; allowed without it: no file");
    }
    let overrides = Overrides { container_memory: Some(SHADOW_MEMORY), ..Overrides::default() };
    let of_file = |raw: RawConfig| Config::checked(raw, &overrides, Files::Foreign);
    if let Some(Config { policy, shard, .. }) = section.file("shadowFile", Path::new(&shadow.file), of_file) {
        (shadow.policy, shadow.settings) = (policy, shard);
        shadow.settings.explain.enabled = true;
    }
}

fn shutdown(section: &mut Section<'_>, shutdown: &mut Shutdown) {
    section.set("drainTimeout", &mut shutdown.drain_timeout, &values::duration(Duration::ZERO..=HOUR));
    section.set("grace", &mut shutdown.grace, &values::duration(Duration::ZERO..=MINUTE));
}

fn shards() -> Form<'static, Shards> {
    let (auto, number) = (values::choice(&[("auto", Shards::Auto)]), values::positive(1024));
    let allowed = format!("auto (eight per core), or {}", number.allowed());
    let read = move |value: &Value| auto.read(value).or_else(|| number.read(value).map(Shards::Fixed));
    let schema = json!({ "anyOf": [{ "const": "auto" }, { "type": "integer", "minimum": 1, "maximum": 1024 }] });
    Form::new(schema, allowed, read, |shards| match shards {
        Shards::Auto => json!("auto"),
        Shards::Fixed(number) => json!(number),
    })
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    /// Fault: a read-only file system counted as a fault of the disk, and the program started without a spool.
    #[test]
    fn a_fault_of_the_disk_is_none_of_the_path() {
        let found = [Errno::ROFS, Errno::ACCESS, Errno::NOTDIR, Errno::ISDIR, Errno::IO, Errno::NOSPC]
            .map(|errno| is_of_path(&errno.into()));
        assert_eq!(found, [true, true, true, true, false, false]);
    }
}
