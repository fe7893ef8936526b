//! The effective configuration as YAML (`--print-config`), as a flat list of fields, and as a hash. What is printed here
//! reads back as an equal [`Config`].

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};
use smol_str::SmolStr;

use super::auth;
use super::correlation::{COUNT_OVERFLOW, GROUP, KEY_ENCODING, MESSAGES, NAMING, SUPPRESSION};
use super::parts::MESSAGE_BYTES;
use super::read::{ACK, HISTORY, SWITCH, UNLIMITED, UPSTREAM_GROUP, WRITES};
use super::tls::MIN_VERSION;
use super::units::{duration_text, size_text};
use super::{
    Admission, Backend, Config, EventLog, Ingest, LogFormat, Memory, Passthrough, Shards, Tls, Upstream,
    memory as memory_of,
};
use crate::correlator::{Correlation, Field, Matches, Pattern, Policy, Rule, Settings};
use crate::deliver::GateSettings;
use crate::explain;
use crate::ingest::Repair;
use crate::outbox::{self, GroupSettings};
use crate::shard;
use crate::spool;
use crate::upstream::store::Namespaces;
use crate::upstream::{apiserver, store};

impl Config {
    /// The effective values as a YAML file. Fields without a value of their own, such as an unlimited rate, are left out.
    #[must_use]
    pub fn to_yaml(&self) -> String {
        serde_saphyr::to_string(&tree(self)).unwrap_or_else(|error| format!("# {error}\n"))
    }

    /// Sixteen hex digits that equal configurations share, on every machine and in every version that knows the same keys.
    #[must_use]
    pub fn hash(&self) -> String {
        format!("{:016x}", hash_of(self.to_yaml().as_bytes()))
    }
}

/// FNV-1a: short, and the same everywhere. Nobody gains by a collision here.
pub(super) fn hash_of(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Every field that is no section, by its path. Lists are one field.
pub(super) fn leaves(config: &Config) -> BTreeMap<String, Value> {
    let mut leaves = BTreeMap::new();
    collect(String::new(), tree(config), &mut leaves);
    leaves
}

fn collect(path: String, value: Value, leaves: &mut BTreeMap<String, Value>) {
    if let Value::Object(members) = value {
        let dot = if path.is_empty() { "" } else { "." };
        for (key, member) in members {
            collect(format!("{path}{dot}{key}"), member, leaves);
        }
    } else {
        leaves.insert(path, value);
    }
}

/// The configuration in the order of the documentation.
#[expect(clippy::too_many_lines, reason = "a line for each section")]
fn tree(config: &Config) -> Value {
    let Config {
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
        shard: shard::Settings { max_sources, max_tracked_keys, outbox, explain },
        spool: spool::Settings { dir, commit_interval },
        ingest,
        passthrough,
        admission,
        access,
        limits_file,
        shadow,
        memory,
        shutdown,
        shards,
    } = config;
    let mut spool_tree = Map::new();
    if let Some(dir) = dir {
        spool_tree.insert("dir".to_owned(), json!(dir.display().to_string()));
    }
    spool_tree.insert("commitInterval".to_owned(), duration(*commit_interval));
    let mut correlation_tree = settings(&policy.base);
    correlation_tree.insert("rules".into(), rules(policy));
    correlation_tree.insert("maxSources".into(), json!(max_sources));
    correlation_tree.insert("maxTrackedKeys".into(), json!(max_tracked_keys));
    let mut tree = json!({
        "listen": listen.to_string(),
        "insecureListen": insecure_listen,
        "adminListen": admin_listen.to_string(),
        "acceptHosts": texts(accept_hosts),
        "tls": tls_tree(tls),
        "log": {
            "format": match log.format { LogFormat::Text => "text", LogFormat::Json => "json" },
            "level": log.level.as_str(),
        },
        "eventLog": match event_log {
            EventLog::None => "none".to_owned(),
            EventLog::Stdout => "stdout".to_owned(),
            EventLog::File(path) => path.display().to_string(),
        },
        "upstream": upstream_tree(upstream, gate, outbox),
        "correlation": correlation_tree,
        "outbox": outbox_tree(outbox),
        "spool": spool_tree,
        "explain": explain_tree(explain),
        "ingest": ingest_tree(ingest),
        "passthrough": passthrough_tree(passthrough),
        "admission": admission_tree(admission),
        "memory": memory_tree(*memory),
        "shutdown": { "drainTimeout": duration(shutdown.drain_timeout), "grace": duration(shutdown.grace) },
        "auth": auth::auth_tree(access, auth),
        "fairness": auth::fairness_tree(&access.fairness),
        "shards": match shards { Shards::Auto => json!("auto"), Shards::Fixed(number) => json!(number) },
    });
    let limits = match limits_file {
        Some(path) => ("limitsFile", json!(path.display().to_string())),
        None => ("limits", auth::limits_tree(&access.limits)),
    };
    let web = admin_web_config_file.as_ref().map(|file| ("adminWebConfigFile", json!(file.display().to_string())));
    if let Some(tree) = tree.as_object_mut() {
        let shadow = shadow.as_ref().map(|shadow| ("shadowFile", json!(shadow.file.display().to_string())));
        tree.extend(web.into_iter().chain([limits]).chain(shadow).map(|(key, value)| (key.to_owned(), value)));
    }
    tree
}

fn ingest_tree(ingest: &Ingest) -> Value {
    json!({
        "maxBodyBytes": bytes(ingest.max_body_bytes.get()),
        "maxConnections": ingest.max_connections,
        "requestTimeout": duration(ingest.request_timeout),
        "maxAliases": ingest.max_aliases,
        "maxWatches": ingest.max_watches,
        "ack": named(&ACK, ingest.ack),
        "repair": if ingest.repair == Repair::Off { "off" } else { "on" },
        "messageBytes": bytes(match ingest.repair {
            Repair::On { message_bytes } => message_bytes,
            Repair::Off => MESSAGE_BYTES.get(),
        }),
    })
}

fn explain_tree(explain: &explain::Settings) -> Value {
    json!({
        "enabled": explain.enabled,
        "maxBytes": bytes(explain.max_bytes.get()),
        "series": explain.series,
        "messages": explain.messages,
        "annotationBytes": explain.annotation_bytes,
    })
}

fn passthrough_tree(passthrough: &Passthrough) -> Value {
    json!({
        "enabled": named(&SWITCH, passthrough.enabled),
        "insecure": passthrough.insecure,
        "maxInFlight": passthrough.max_in_flight,
        "maxUpgrades": passthrough.max_upgrades,
    })
}

fn memory_tree(memory: Memory) -> Value {
    match memory {
        Memory::Bytes(memory) => bytes(memory.get()),
        named => self::named(&memory_of::NAMED, named),
    }
}

fn admission_tree(Admission { enabled, settings }: &Admission) -> Value {
    json!({
        "enabled": named(&SWITCH, *enabled),
        "timeout": duration(settings.timeout),
        "seriesInterval": duration(settings.series_interval),
        "callers": auth::patterns(&settings.callers),
        "exemptUsers": auth::patterns(&settings.exempt_users),
    })
}

fn tls_tree(tls: &Tls) -> Value {
    let Tls { files, min_version, cipher_suites, self_signed_dir, self_signed_hosts } = tls;
    let mut tree = Map::new();
    if let Some((certificate, key)) = files {
        tree.insert("certFile".to_owned(), json!(certificate.display().to_string()));
        tree.insert("keyFile".to_owned(), json!(key.display().to_string()));
    }
    tree.insert("minVersion".to_owned(), named(&MIN_VERSION, *min_version));
    if !cipher_suites.is_empty() {
        let names = cipher_suites.iter().map(|suite| json!(suite.name()));
        tree.insert("cipherSuites".to_owned(), names.collect());
    }
    let mut self_signed = Map::new();
    if let Some(dir) = self_signed_dir {
        self_signed.insert("dir".to_owned(), json!(dir.display().to_string()));
    }
    self_signed.insert("hosts".to_owned(), texts(self_signed_hosts));
    tree.insert("selfSigned".to_owned(), Value::Object(self_signed));
    Value::Object(tree)
}

fn texts(texts: &[SmolStr]) -> Value {
    texts.iter().map(|text| json!(text.as_str())).collect()
}

fn outbox_tree(outbox: &outbox::Settings) -> Value {
    let outbox::Settings {
        coalesce_interval,
        max_records,
        source_percent,
        max_bytes,
        max_budgets,
        digest_after,
        digest_max_age,
        digest_message_bytes,
        digest_reasons,
        max_age,
        first_backoff: _,
        max_backoff: _,
        repair: _, // stands under `ingest`
        groups: GroupSettings { ceiling: _, fold_after, max_groups },
        group: _, // stands under `upstream`
    } = outbox;
    json!({
        "coalesceInterval": duration(*coalesce_interval),
        "maxRecords": max_records,
        "sourcePercent": source_percent,
        "maxBytes": bytes(max_bytes.get()),
        "maxBudgets": max_budgets,
        "maxAge": duration(*max_age),
        "digest": {
            "after": digest_after,
            "maxAge": duration(*digest_max_age),
            "messageBytes": digest_message_bytes,
            "reasons": digest_reasons,
        },
        "storm": { "after": duration(*fold_after), "maxGroups": max_groups },
    })
}

fn upstream_tree(upstream: &Upstream, gate: &GateSettings, outbox: &outbox::Settings) -> Map<String, Value> {
    let (group, ceiling) = (outbox.group, outbox.groups.ceiling.unwrap_or(UNLIMITED));
    let Upstream {
        backend,
        apiserver: apiserver::Settings { kubeconfig, context, timeout, group: _ },
        writes,
        history,
        store,
    } = upstream;
    let GateSettings { max_in_flight, rate: _, first_backoff, max_backoff } = gate;
    let mut tree = Map::new();
    let mut put = |key: &str, value: Value| tree.insert(key.to_owned(), value);
    put(
        "kind",
        json!(match backend {
            Backend::Embedded => "embedded",
            Backend::Apiserver => "apiserver",
        }),
    );
    put("group", named(&UPSTREAM_GROUP, group));
    if let Some(path) = kubeconfig {
        put("kubeconfig", json!(path.display().to_string()));
    }
    if let Some(context) = context {
        put("context", json!(context));
    }
    put("timeout", duration(*timeout));
    put("writes", named(&WRITES, *writes));
    put("history", named(&HISTORY, *history));
    put("maxInFlight", json!(max_in_flight));
    put("qps", number(ceiling.qps));
    put("burst", json!(ceiling.burst));
    put("backoff", json!({ "initial": duration(*first_backoff), "max": duration(*max_backoff) }));
    put("embedded", store_tree(store));
    tree
}

fn store_tree(store: &store::Settings) -> Value {
    let store::Settings { ttl, namespaces, max_events, max_bytes, max_changes } = store;
    let namespaces = match namespaces {
        Namespaces::Auto => json!("auto"),
        Namespaces::List(names) => names.iter().map(|name| json!(name.as_str())).collect(),
    };
    json!({
        "ttl": duration(*ttl),
        "namespaces": namespaces,
        "maxEvents": max_events,
        "maxBytes": bytes(max_bytes.get()),
        "maxChanges": max_changes,
    })
}

fn settings(settings: &Settings) -> Map<String, Value> {
    let Settings {
        correlation,
        suppression,
        lru_cache_size,
        burst_size,
        qps,
        group,
        max_events,
        max_interval,
        spam_key,
        aggregate_key,
        local_key,
        messages,
        message_prefix,
        key_encoding,
        count_overflow,
        naming,
    } = settings;
    [
        ("enabled", json!(*correlation == Correlation::On)),
        ("suppression", named(&SUPPRESSION, *suppression)),
        ("lruCacheSize", json!(lru_cache_size)),
        ("burstSize", json!(burst_size)),
        ("qps", number(*qps)),
        ("groupBurstSize", json!(group.map_or(0, |group| group.burst))),
        ("groupQps", number(group.unwrap_or(GROUP).qps)),
        ("maxEvents", json!(max_events)),
        ("maxInterval", duration(*max_interval)),
        ("spamKey", fields(spam_key)),
        ("aggregateKey", fields(aggregate_key)),
        ("localKey", fields(local_key)),
        ("messages", named(&MESSAGES, *messages)),
        ("messagePrefix", json!(message_prefix.as_str())),
        ("keyEncoding", named(&KEY_ENCODING, *key_encoding)),
        ("countOverflow", named(&COUNT_OVERFLOW, *count_overflow)),
        ("naming", named(&NAMING, *naming)),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into_iter()
    .collect()
}

fn rules(policy: &Policy) -> Value {
    let base = settings(&policy.base);
    let rule = |rule: &Rule| {
        let mut set = settings(&rule.settings);
        set.retain(|key, value| base.get(key) != Some(value));
        json!({ "match": matches(&rule.matches), "set": set })
    };
    policy.rules.iter().map(rule).collect()
}

fn matches(matches: &Matches) -> Map<String, Value> {
    let Matches { component, namespace, kind, reason, event_type } = matches;
    let conditions =
        [("component", component), ("namespace", namespace), ("kind", kind), ("reason", reason), ("type", event_type)];
    let given = conditions.into_iter().filter(|(_, patterns)| !patterns.is_empty());
    given.map(|(key, patterns)| (key.to_owned(), patterns.iter().map(pattern).collect())).collect()
}

fn pattern(pattern: &Pattern) -> Value {
    match pattern {
        Pattern::Exact(text) => json!(text.as_str()),
        Pattern::Prefix(text) => json!(format!("{text}*")),
    }
}

fn named<T: PartialEq + Copy>(names: &[(&'static str, T)], value: T) -> Value {
    names.iter().find(|(_, named)| *named == value).map_or(Value::Null, |(name, _)| json!(name))
}

fn fields(fields: &[Field]) -> Value {
    fields.iter().map(|field| json!(field.path())).collect()
}

fn duration(duration: Duration) -> Value {
    json!(duration_text(duration))
}

fn bytes(bytes: usize) -> Value {
    json!(size_text(u64::try_from(bytes).unwrap_or(u64::MAX)))
}

/// The shortest decimal that reads back as this 32-bit number.
fn number(number: f32) -> Value {
    number.to_string().parse::<f64>().map_or(Value::Null, |number| json!(number))
}
