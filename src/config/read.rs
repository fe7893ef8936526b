//! From what the user wrote to the checked configuration: every key, its default and its range. Pure.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use super::auth;
use super::correlation::correlation;
use super::parts::MESSAGE_BYTES;
use super::raw::{Node, Value};
use super::section::{Collector, Section};
use super::units::duration_text;
use super::{
    Admission, Auth, Backend, Config, Errors, EventLog, Ingest, Log, LogFormat, Memory, Overrides, Passthrough,
    RawConfig, Shadow, Shards, Shutdown, Tls, Upstream, Writes, memory, schema, tls, values,
};
use crate::access;
use crate::correlator::{Pattern, Rate};
use crate::deliver::GateSettings;
use crate::event::ApiGroup;
use crate::explain;
use crate::history;
use crate::ingest::{self, Ack, Repair};
use crate::outbox::{self, UpstreamGroup};
use crate::server::{self, Address};
use crate::shard;
use crate::spool;
use crate::upstream::store::Namespaces;
use crate::upstream::{apiserver, store};
use smol_str::SmolStr;

const WEEK: Duration = Duration::from_secs(7 * 86_400);
const MILLISECOND: Duration = Duration::from_millis(1);
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// LIMIT: upper end of counts that memory has to hold; more is refused as a slip of the pen.
const COUNT_MAX: usize = 100_000_000;
/// LIMIT: upper end of byte limits that memory has to hold (64 GiB).
const MEMORY_MAX: usize = 64 << 30;

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: Address::Tcp(SocketAddr::new(LOOPBACK, 8080)),
            insecure_listen: false,
            admin_listen: SocketAddr::new(LOOPBACK, 9090),
            admin_web_config_file: None,
            accept_hosts: server::ACCEPT_HOSTS.map(SmolStr::new_static).to_vec(),
            tls: Tls::default(),
            auth: Auth::default(),
            log: Log::default(),
            event_log: EventLog::None,
            upstream: Upstream::default(),
            gate: GateSettings { rate: Some(CEILING), ..GateSettings::default() },
            policy: super::correlation::default_policy(),
            shard: default_shard(),
            spool: spool::Settings::default(),
            ingest: Ingest::default(),
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

/// The limits of shards, with a ceiling for all writes.
fn default_shard() -> shard::Settings {
    let mut shard = shard::Settings::default();
    shard.outbox.groups.ceiling = Some(CEILING);
    shard.explain.enabled = true;
    shard
}

impl Config {
    /// Lays the flags over the file, fills in the defaults and checks everything.
    ///
    /// # Errors
    /// Everything that is wrong, at once.
    pub fn from_raw(raw: RawConfig, overrides: &Overrides) -> Result<Self, Errors> {
        Self::checked(raw, overrides, false)
    }

    /// Does the same, and also looks whether the files of the listeners can be used.
    pub(super) fn from_raw_and_files(raw: RawConfig, overrides: &Overrides) -> Result<Self, Errors> {
        Self::checked(raw, overrides, true)
    }

    /// The JSON schema of the file.
    #[must_use]
    pub fn json_schema() -> serde_json::Value {
        let collector = Collector::of_questions();
        collector.read(&Node::default(), String::new(), |section| config(section, None));
        let mut schema = schema::schema(&collector.into_asked());
        if let Some(root) = schema.as_object_mut() {
            root.insert("$schema".to_owned(), "http://json-schema.org/draft-07/schema#".into());
            root.insert("title".to_owned(), "eventweir's configuration".into());
        }
        schema
    }

    fn checked(raw: RawConfig, overrides: &Overrides, checks_files: bool) -> Result<Self, Errors> {
        let file = if raw.file().is_empty() { "defaults" } else { raw.file() }.to_owned();
        let (root, twice) = raw.overlaid(overrides);
        let collector = Collector::new(&file, twice, checks_files);
        let config = collector.read(&root, String::new(), |section| config(section, overrides.container_memory));
        let errors = collector.into_errors();
        if errors.is_empty() { Ok(config) } else { Err(errors) }
    }
}

impl RawConfig {
    /// The limits of an EventRateLimit plugin's file.
    pub(super) fn limits(self) -> Result<Vec<access::Limit>, Errors> {
        let file = self.file().to_owned();
        let (root, twice) = self.overlaid(&Overrides::default());
        let collector = Collector::new(&file, twice, false);
        let limits = collector.read(&root, String::new(), auth::plugin);
        let errors = collector.into_errors();
        if errors.is_empty() { Ok(limits) } else { Err(errors) }
    }
}

const BEYOND_LOOPBACK: &str = "can be reached from other machines, and nobody is authenticated there; \
    allowed: a loopback address such as 127.0.0.1:8080, a Unix domain socket such as unix:/run/eventweir.sock, any with \
    auth.tokenReview.enabled: true or auth.clientCAFile, or any with insecureListen: true (--insecure-listen)";
const TOKENS_IN_CLEAR: &str = "can be reached from other machines, and without TLS the network reads the callers' tokens; \
    allowed: any with tls.certFile (--tls-cert-file) or tls.selfSigned.dir, a loopback address such as 127.0.0.1:8080, \
    or any with insecureListen: true (--insecure-listen)";

#[expect(clippy::too_many_lines, reason = "a line or two for each section")]
fn config(section: &mut Section<'_>, container_memory: Option<NonZeroUsize>) -> Config {
    let mut default = Config::default();
    let memory = section.value("memory", default.memory, memory::memory);
    if let Some(bytes) = memory.bytes(container_memory) {
        let Config { shard, upstream: Upstream { store, .. }, ingest: Ingest { max_aliases, .. }, .. } = &mut default;
        memory::Limits { shard, store, max_aliases }.divide(bytes);
    }
    let listen = section.value("listen", default.listen, values::listen_address);
    let insecure_listen = section.value("insecureListen", default.insecure_listen, values::truth);
    let admin_listen = section.value("adminListen", default.admin_listen, values::address);
    if listen == Address::Tcp(admin_listen) && admin_listen.port() != 0 {
        let key = if section.has("adminListen") { "adminListen" } else { "listen" };
        section.conflict(key, "is the address of both listeners; allowed: two different ones");
    }
    let admin_web_config_file = tls::web_config_file(section);
    let accept_hosts = section.value("acceptHosts", default.accept_hosts, values::expressions);
    let tls = section.within("tls", tls::tls);
    let log = section.within("log", log);
    let event_log = section.value("eventLog", default.event_log, event_log);
    let Config { mut gate, mut shard, .. } = default;
    let upstream = section.within("upstream", |section| {
        shard.outbox.group = section.value("group", shard.outbox.group, values::choice(&UPSTREAM_GROUP));
        let mut upstream = upstream(section, default.upstream, &mut gate);
        // The outbox shares it out to what is owed, the gate holds each request to it, also those that repeat.
        gate.rate = ceiling(section);
        shard.outbox.groups.ceiling = gate.rate;
        // A role may name that group alone.
        if shard.outbox.group == UpstreamGroup::Events {
            upstream.apiserver.group = ApiGroup::Events;
        }
        upstream
    });
    let (auth, access) = section.within("auth", |section| (tls::auth(section), auth::auth(section, upstream.backend)));
    tls::check(section, &listen, &tls, &auth);
    let may_bind = |is_safe: bool| server::may_bind(&listen, is_safe, insecure_listen);
    if !may_bind(keeps_out(&access)) {
        section.conflict("listen", BEYOND_LOOPBACK);
    } else if access.tokens.is_on && !may_bind(tls.settings(&auth).is_some()) {
        section.conflict("listen", TOKENS_IN_CLEAR);
    }
    let policy = section.within("correlation", |section| correlation(section, &mut shard));
    section.within("outbox", |section| outbox(section, &mut shard.outbox));
    // The same pauses for a record that failed and for an upstream that is down.
    (shard.outbox.first_backoff, shard.outbox.max_backoff) = (gate.first_backoff, gate.max_backoff);
    let spool = section.within("spool", spool);
    section.within("explain", |section| explain(section, &mut shard.explain));
    let ingest = section.within("ingest", |section| ingest(section, &default.ingest, spool.dir.is_some()));
    shard.outbox.repair = ingest.repair != Repair::Off;
    let (passthrough, admission) =
        (passthrough(section, upstream.backend, &access), admission(section, upstream.backend));
    let (access, limits_file) = limited(section, access);
    let shadow = section.optional("shadowFile", values::text(4096)).map(|path| Shadow::of_file(path.as_str()));
    if shadow.is_some() && !shard.explain.enabled {
        section.conflict("shadowFile", "needs explain.enabled: true; allowed without it: no file");
    }
    Config {
        listen,
        insecure_listen,
        admin_listen,
        admin_web_config_file,
        accept_hosts,
        tls,
        auth,
        log,
        event_log,
        upstream,
        gate,
        policy,
        shard,
        spool,
        ingest,
        passthrough,
        admission,
        access,
        limits_file,
        shadow,
        memory,
        shutdown: section.within("shutdown", shutdown),
        shards: section.value("shards", default.shards, shards),
    }
}

/// Adds how much callers may do, and the file that says so.
fn limited(section: &mut Section<'_>, access: access::Settings) -> (access::Settings, Option<PathBuf>) {
    let access = access::Settings {
        limits: auth::limits(section),
        fairness: section.within("fairness", auth::fairness),
        ..access
    };
    let limits_file = section.optional("limitsFile", values::text(4096)).map(|path| PathBuf::from(path.as_str()));
    if limits_file.is_some() && !access.limits.is_empty() {
        section.conflict("limitsFile", "stands beside limits; allowed: one of the two");
    }
    (access, limits_file)
}

fn log(section: &mut Section<'_>) -> Log {
    let default = Log::default();
    let formats = [("text", LogFormat::Text), ("json", LogFormat::Json)];
    Log {
        format: section.value("format", default.format, values::choice(&formats)),
        level: section.value("level", default.level, values::log_level),
    }
}

fn event_log(value: &Value) -> Result<EventLog, String> {
    let text = values::text(4096)(value);
    let text = text.map_err(|_too_long| "none, stdout or the path of a file, with a / in it".to_owned())?;
    match text.as_str() {
        "none" => Ok(EventLog::None),
        "stdout" => Ok(EventLog::Stdout),
        // A slash is asked for, so that `stdot` is an error and not a file.
        path if path.contains('/') => Ok(EventLog::File(PathBuf::from(path))),
        _ => Err("none, stdout or the path of a file, with a / in it".to_owned()),
    }
}

fn upstream(section: &mut Section<'_>, default: Upstream, gate: &mut GateSettings) -> Upstream {
    let kinds = [("embedded", Backend::Embedded), ("apiserver", Backend::Apiserver)];
    let backend = section.value("kind", default.backend, values::choice(&kinds));
    let timeouts = MILLISECOND..=Duration::from_secs(600);
    let apiserver = apiserver::Settings {
        kubeconfig: section.optional("kubeconfig", values::text(4096)).map(|path| PathBuf::from(path.as_str())),
        context: section.optional("context", values::text(253)).map(|context| context.to_string()),
        timeout: section.value("timeout", default.apiserver.timeout, values::duration(timeouts)),
        group: default.apiserver.group,
    };
    let writes = section.value("writes", default.writes, values::choice(&WRITES));
    let history = section.value("history", default.history, values::choice(&HISTORY));
    gate.max_in_flight = section.value("maxInFlight", gate.max_in_flight, values::whole(1..=10_000));
    section.within("backoff", |section| backoff(section, gate));
    Upstream {
        backend,
        apiserver,
        writes,
        history,
        store: section.within("embedded", |section| store(section, default.store)),
    }
}

/// All writes in a second: what an apiserver of 5,000 nodes hardly notices.
pub(super) const CEILING: Rate = Rate { qps: 40.0, burst: 400 };

/// LIMIT: bytes of an annotation; all of an object take at most 256 KiB, and its tallies need some of them.
const ANNOTATION_MAX: usize = 32 << 10;

/// What stands for no ceiling.
pub(super) const UNLIMITED: Rate = Rate { qps: 0.0, burst: 0 };

fn ceiling(section: &mut Section<'_>) -> Option<Rate> {
    let qps = section.value("qps", CEILING.qps, values::rate(1_000_000.0, Some("with burst: 0, unlimited")));
    let burst = section.value("burst", CEILING.burst, values::whole_32(0..=1_000_000));
    if burst > 0 && qps <= 0.0 {
        section.conflict("qps", "is 0 with a burst; allowed: a rate above 0, or burst: 0 for an unlimited one");
    }
    (burst > 0).then_some(Rate { qps, burst })
}

fn backoff(section: &mut Section<'_>, gate: &mut GateSettings) {
    let [firsts, longests] = [60, 3600].map(|most| MILLISECOND..=Duration::from_secs(most));
    gate.first_backoff = section.value("initial", gate.first_backoff, values::duration(firsts));
    gate.max_backoff = section.value("max", gate.max_backoff, values::duration(longests));
    if gate.first_backoff > gate.max_backoff {
        let [initial, max] = [gate.first_backoff, gate.max_backoff].map(duration_text);
        if section.has("initial") {
            section.conflict("initial", &format!("is longer than max; allowed: up to {max}"));
        } else {
            section.conflict("max", &format!("is shorter than initial; allowed: {initial} or longer"));
        }
    }
}

fn store(section: &mut Section<'_>, default: store::Settings) -> store::Settings {
    store::Settings {
        ttl: section.value("ttl", default.ttl, values::duration(Duration::ZERO..=WEEK)),
        namespaces: section.value("namespaces", default.namespaces, namespaces),
        max_events: section.value("maxEvents", default.max_events, values::positive(COUNT_MAX)),
        max_bytes: section.value("maxBytes", default.max_bytes, values::size(1 << 20..=MEMORY_MAX)),
        max_changes: section.value("maxChanges", default.max_changes, values::positive(COUNT_MAX)),
    }
}

fn namespaces(value: &Value) -> Result<Namespaces, String> {
    if values::choice(&[("auto", ())])(value).is_ok() {
        return Ok(Namespaces::Auto);
    }
    values::namespaces(value).map(|names| Namespaces::List(names.into_iter().collect())).ok_or_else(|| {
        "auto (every one), or a list of names of lower-case letters, digits and -, one or more".to_owned()
    })
}

/// Reads the section; its backoff stands under `upstream`.
fn outbox(section: &mut Section<'_>, outbox: &mut outbox::Settings) {
    let intervals = Duration::ZERO..=Duration::from_secs(3600);
    outbox.coalesce_interval = section.value("coalesceInterval", outbox.coalesce_interval, values::duration(intervals));
    outbox.max_records = section.value("maxRecords", outbox.max_records, values::positive(COUNT_MAX));
    outbox.source_percent = section.value("sourcePercent", outbox.source_percent, values::positive(100));
    outbox.max_bytes = section.value("maxBytes", outbox.max_bytes, values::size(1 << 20..=MEMORY_MAX));
    outbox.max_budgets = section.value("maxBudgets", outbox.max_budgets, values::positive(COUNT_MAX));
    outbox.max_age = section.value("maxAge", outbox.max_age, values::duration(Duration::from_secs(1)..=WEEK));
    section.within("digest", |section| {
        let ages = Duration::from_secs(1)..=WEEK;
        outbox.digest_after = section.value("after", outbox.digest_after, values::whole(0..=1_000_000));
        outbox.digest_max_age = section.value("maxAge", outbox.digest_max_age, values::duration(ages));
        outbox.digest_message_bytes =
            section.value("messageBytes", outbox.digest_message_bytes, values::whole(128..=1024));
        outbox.digest_reasons = section.value("reasons", outbox.digest_reasons, values::whole(1..=1000));
    });
    let groups = &mut outbox.groups;
    section.within("storm", |section| {
        let ages = Duration::from_secs(1)..=WEEK;
        groups.fold_after = section.value("after", groups.fold_after, values::duration(ages));
        groups.max_groups = section.value("maxGroups", groups.max_groups, values::positive(1_000_000));
    });
}

fn explain(section: &mut Section<'_>, explain: &mut explain::Settings) {
    explain.enabled = section.value("enabled", explain.enabled, values::truth);
    explain.max_bytes = section.value("maxBytes", explain.max_bytes, values::size(1 << 20..=MEMORY_MAX));
    explain.series = section.value("series", explain.series, values::whole(0..=10_000));
    explain.messages = section.value("messages", explain.messages, values::whole(1..=100));
    explain.annotation_bytes =
        section.value("annotationBytes", explain.annotation_bytes, values::whole(0..=ANNOTATION_MAX));
}

pub(super) const UPSTREAM_GROUP: [(&str, UpstreamGroup); 3] =
    [("preserve", UpstreamGroup::Preserve), ("core", UpstreamGroup::Core), ("events", UpstreamGroup::Events)];

fn spool(section: &mut Section<'_>) -> spool::Settings {
    let intervals = Duration::ZERO..=Duration::from_secs(60);
    let commit_interval = spool::Settings::default().commit_interval;
    spool::Settings {
        dir: section.optional("dir", values::text(4096)).map(|path| PathBuf::from(path.as_str())),
        commit_interval: section.value("commitInterval", commit_interval, values::duration(intervals)),
    }
}

pub(super) const ACK: [(&str, Ack); 3] =
    [("accepted", Ack::Accepted), ("durable", Ack::Durable), ("written", Ack::Written)];

pub(super) const HISTORY: [(&str, history::Mode); 3] =
    [("watch", history::Mode::Watch), ("list", history::Mode::List), ("off", history::Mode::Off)];

pub(super) const WRITES: [(&str, Writes); 2] = [("exact", Writes::Exact), ("plain", Writes::Plain)];

/// On or off.
pub(super) const SWITCH: [(&str, bool); 2] = [("on", true), ("off", false)];

fn ingest(section: &mut Section<'_>, default: &Ingest, has_spool: bool) -> Ingest {
    let ack = section.value("ack", default.ack, values::choice(&ACK));
    if ack == Ack::Durable && !has_spool {
        section.conflict("ack", "needs spool.dir (--spool-dir); allowed without it: accepted, written");
    }
    let timeouts = MILLISECOND..=Duration::from_secs(3600);
    Ingest {
        max_body_bytes: section.value("maxBodyBytes", default.max_body_bytes, values::size(1 << 10..=64 << 20)),
        max_connections: section.value("maxConnections", default.max_connections, values::positive(1_000_000)),
        request_timeout: section.value("requestTimeout", default.request_timeout, values::duration(timeouts)),
        max_aliases: section.value("maxAliases", default.max_aliases, values::positive(COUNT_MAX)),
        max_watches: section.value("maxWatches", default.max_watches, values::positive(1_000_000)),
        ack,
        repair: repair(section),
    }
}

fn repair(section: &mut Section<'_>) -> Repair {
    let repairs = section.value("repair", true, values::choice(&SWITCH));
    let message_bytes = section.value("messageBytes", MESSAGE_BYTES, values::size(128..=3 << 20)).get();
    if repairs { Repair::On { message_bytes } } else { Repair::Off }
}

/// A section, or `on` or `off` alone.
fn passthrough(section: &mut Section<'_>, backend: Backend, access: &access::Settings) -> Passthrough {
    const KEY: &str = "passthrough";
    if !section.is_scalar(KEY) {
        return section.within(KEY, |section| {
            let default = Passthrough::default();
            let passthrough = Passthrough {
                enabled: section.value("enabled", default.enabled, values::choice(&SWITCH)),
                insecure: section.value("insecure", default.insecure, values::truth),
                max_in_flight: section.value("maxInFlight", default.max_in_flight, values::positive(16_000)),
                max_upgrades: section.value("maxUpgrades", default.max_upgrades, values::positive(100_000)),
            };
            check_passthrough(section, "enabled", &passthrough, backend, access);
            passthrough
        });
    }
    let passthrough = Passthrough { enabled: section.value(KEY, false, switch), ..Passthrough::default() };
    check_passthrough(section, KEY, &passthrough, backend, access);
    passthrough
}

/// `on` or `off` alone, in the place of a section.
fn switch(value: &Value) -> Result<bool, String> {
    values::choice(&SWITCH)(value).map_err(|names| format!("{names}, or a section of keys and values"))
}

/// A section, or `on` or `off` alone.
fn admission(section: &mut Section<'_>, backend: Backend) -> Admission {
    const KEY: &str = "admission";
    let default = ingest::Admission::default();
    let check = |section: &Section<'_>, key: &str, enabled: bool| {
        if enabled && backend != Backend::Apiserver {
            section.conflict(key, "needs an apiserver; allowed: off, or on with upstream.kind: apiserver (--upstream)");
        }
    };
    if section.is_scalar(KEY) {
        let enabled = section.value(KEY, false, switch);
        check(section, KEY, enabled);
        return Admission { enabled, settings: default };
    }
    section.within(KEY, |section| {
        let enabled = section.value("enabled", false, values::choice(&SWITCH));
        check(section, "enabled", enabled);
        let timeouts = MILLISECOND..=Duration::from_secs(30);
        let intervals = Duration::ZERO..=Duration::from_secs(3600);
        let settings = ingest::Admission {
            timeout: section.value("timeout", default.timeout, values::duration(timeouts)),
            series_interval: section.value("seriesInterval", default.series_interval, values::duration(intervals)),
            callers: section.value("callers", Vec::new(), users),
            exempt_users: section.value("exemptUsers", Vec::new(), users),
        };
        Admission { enabled, settings }
    })
}

/// Names of users, or none.
fn users(value: &Value) -> Result<Vec<Pattern>, String> {
    if matches!(value, Value::List(members) if members.is_empty()) { Ok(Vec::new()) } else { values::patterns(value) }
}

fn check_passthrough(
    section: &Section<'_>,
    key: &str,
    passthrough: &Passthrough,
    backend: Backend,
    access: &access::Settings,
) {
    if passthrough.enabled && backend != Backend::Apiserver {
        section.conflict(key, "needs an apiserver; allowed: off, or on with upstream.kind: apiserver (--upstream)");
    }
    if passthrough.enabled && !passthrough.insecure && !keeps_out(access) {
        section.conflict(
            key,
            "would let everybody who reaches this listener write events; allowed: off, or on with \
             auth.tokenReview.enabled: true, with auth.clientCAFile (--client-ca-file), or with \
             passthrough.insecure: true",
        );
    }
}

/// Whether callers have to show who they are, or are allowed only what a rule or the apiserver allows them.
const fn keeps_out(access: &access::Settings) -> bool {
    access.authenticates() && (access.authorizes() || !access.anonymous)
}

fn shutdown(section: &mut Section<'_>) -> Shutdown {
    let default = Shutdown::default();
    let [drains, graces] = [3600, 60].map(|most| Duration::ZERO..=Duration::from_secs(most));
    Shutdown {
        drain_timeout: section.value("drainTimeout", default.drain_timeout, values::duration(drains)),
        grace: section.value("grace", default.grace, values::duration(graces)),
    }
}

fn shards(value: &Value) -> Result<Shards, String> {
    let auto = values::choice(&[("auto", Shards::Auto)])(value);
    auto.or_else(|_other| values::positive(1024)(value).map(Shards::Fixed))
        .map_err(|range| format!("auto (eight per core), or {range}"))
}
