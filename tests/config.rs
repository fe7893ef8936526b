//! Tests the configuration with its fixtures, its documentation and arbitrary bytes.
//!
//! For each rule, `tests/fixtures/config/` has a `<rule>.good.yaml`, a `<rule>.bad.yaml`, and the full text of the
//! latter's errors in `<rule>.bad.err`. `BLESS=1 cargo test --test config` writes the `.err` files; read the
//! difference.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::CommandFactory as _;
use eventweir::cli::{Cli, Flags};
use eventweir::config::{
    Backend, Config, Errors, FILE_BYTES_MAX, Files, LogFormat, Overrides, RawConfig, Shards, file_hash, load_again,
};
use eventweir::correlator::{Correlation, LEGACY_SPAM_KEY, Rate, SPAM_KEY, Suppression};
use eventweir::event_log::Target;
use eventweir::server::tls::MinVersion;
use proptest::prelude::*;

const KEYS_WITHOUT_DEFAULT: [&str; 14] = [
    "adminWebConfigFile",
    "tls.certFile",
    "tls.keyFile",
    "tls.cipherSuites",
    "tls.selfSigned.dir",
    "auth.clientCAFile",
    "auth.callerAnnotation",
    "limitsFile",
    "shadowFile",
    "upstream.kubeconfig",
    "upstream.context",
    "upstream.qps",
    "upstream.burst",
    "spool.dir",
];
/// Keys whose values have several forms, so that the schema accepts any text, number or list.
const KEYS_OF_MIXED_FORM: [&str; 6] = [
    "auth.callerAnnotation",
    "auth.sourceBinding.components",
    "eventLog",
    "log.level",
    "memory",
    "upstream.embedded.namespaces",
];
fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/config")
}

fn document(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name)).unwrap()
}

fn load(path: Option<&Path>, overrides: &Overrides) -> Result<Config, Errors> {
    eventweir::config::load(path, overrides, Files::Read)
}

fn parse(text: &str) -> Result<Config, Errors> {
    with_flags(text, &Overrides::default())
}

fn with_flags(text: &str, overrides: &Overrides) -> Result<Config, Errors> {
    Config::from_raw(RawConfig::parse("eventweir.yaml", text)?, overrides)
}

/// Returns each rule with the endings of its files.
fn rules() -> BTreeMap<String, BTreeSet<String>> {
    let mut rules: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for entry in fs::read_dir(fixtures()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let (rule, ending) = name.split_once('.').unwrap();
        rules.entry(rule.to_owned()).or_default().insert(ending.to_owned());
    }
    rules
}

fn read(rule: &str, ending: &str) -> String {
    fs::read_to_string(fixtures().join(format!("{rule}.{ending}"))).unwrap_or_default()
}

#[test]
fn each_rule_has_a_good_and_a_bad_file() {
    let expected = BTreeSet::from(["good.yaml", "bad.yaml", "bad.err"].map(str::to_owned));
    for (rule, endings) in rules() {
        assert_eq!(endings, expected, "{rule}");
    }
}

#[test]
fn good_files_are_read_and_come_back_from_their_effective_values() {
    for rule in rules().keys() {
        let config = parse(&read(rule, "good.yaml")).unwrap_or_else(|errors| panic!("{rule}:\n{errors}"));
        let yaml = config.to_yaml();
        let back = parse(&yaml).unwrap_or_else(|errors| panic!("{rule}:\n{errors}\n{yaml}"));
        assert_eq!(back, config, "{rule}:\n{yaml}");
        assert_eq!(back.hash(), config.hash(), "{rule}");
    }
}

#[test]
fn bad_files_give_their_errors() {
    let bless = std::env::var_os("BLESS").is_some();
    for rule in rules().keys() {
        let errors = match parse(&read(rule, "bad.yaml")) {
            Ok(_) => panic!("{rule} is accepted"),
            Err(errors) => format!("{errors}\n"),
        };
        if bless {
            fs::write(fixtures().join(format!("{rule}.bad.err")), &errors).unwrap();
        }
        assert_eq!(errors, read(rule, "bad.err"), "{rule}; if this is intended: BLESS=1 cargo test --test config");
    }
}

#[test]
fn nothing_given_is_the_default() {
    assert_eq!(load(None, &Overrides::default()).unwrap(), Config::default());
    assert_eq!(parse("").unwrap(), Config::default());
    assert_eq!(parse("# nothing\n---\n").unwrap(), Config::default());
    assert_eq!(parse(&Config::default().to_yaml()).unwrap(), Config::default());
    assert_eq!(parse("correlation: {qps: 1/300}").unwrap(), Config::default());
    assert_eq!(parse("{listen: localhost:8080, adminListen: localhost:9090}").unwrap(), Config::default());
}

#[test]
fn off_is_off_after_helm_has_read_it() {
    let text = "upstream: {history: off}\ningest: {repair: off}\nlog: {level: off}";
    assert_eq!(parse(&text.replace("off", "false")).unwrap(), parse(text).unwrap());
    assert_eq!(parse("ingest: {repair: true}").unwrap(), Config::default());
    assert!(parse("correlation: {suppression: false}").is_err());
    assert!(parse("correlation: {enabled: off}").is_err());
}

#[test]
fn zero_means_zero() {
    let correlation = "correlation: {burstSize: 0, qps: 0, maxInterval: 0s}";
    let config = parse(&format!("{correlation}\noutbox: {{coalesceInterval: 0s, digest: {{after: 0}}}}")).unwrap();
    let base = &config.policy.base;
    assert_eq!((base.burst_size, base.qps, base.max_interval), (0, 0.0, Duration::ZERO));
    assert_eq!((config.shard.outbox.coalesce_interval, config.shard.outbox.digest_after), (Duration::ZERO, 0));
}

#[test]
fn profile_then_base_then_rule() {
    let config = parse(
        "correlation:
  profile: client-go-legacy
  burstSize: 7
  suppression: drop
  rules:
    - match: {reason: Pulled}
      set: {enabled: false, burstSize: 9}
    - match: {component: kubelet}
",
    )
    .unwrap();
    let policy = &config.policy;
    assert_eq!(policy.base.spam_key, LEGACY_SPAM_KEY);
    assert_eq!((policy.base.burst_size, policy.base.suppression), (7, Suppression::Drop));
    let [first, second] = policy.rules.as_slice() else { panic!("two rules") };
    assert_eq!((first.settings.burst_size, first.settings.suppression), (9, Suppression::Drop));
    assert_eq!(first.settings.correlation, Correlation::Off);
    assert_eq!(first.settings.spam_key, LEGACY_SPAM_KEY);
    assert_eq!(second.settings, policy.base);
    let own_key = parse("correlation: {profile: client-go-legacy, spamKey: [reason]}").unwrap();
    assert_ne!(own_key.policy.base.spam_key, SPAM_KEY);
    assert_ne!(own_key.policy.base.spam_key, LEGACY_SPAM_KEY);
}

/// Fault: a rule with a budget of groups had the default rate if the base has no such budget.
#[test]
fn a_rule_inherits_the_rate_of_groups_without_a_budget() {
    let rules = "rules: [{match: {reason: Pulled}, set: {groupBurstSize: 5}}, {match: {reason: Killing}}]";
    let config = parse(&format!("correlation: {{groupQps: 7, groupBurstSize: 0, {rules}}}")).unwrap();
    assert_eq!(config.policy.base.group, None);
    let groups: Vec<_> = config.policy.rules.iter().map(|rule| rule.settings.group).collect();
    assert_eq!(groups, [Some(Rate { qps: 7.0, burst: 5 }), None]);
}

/// Fault: the effective values, the hash and the difference of a reload left it out.
#[test]
fn a_rule_without_a_budget_of_groups_says_so() {
    let of = |set: &str| {
        let rules = format!("rules: [{{match: {{component: cluster-autoscaler}}{set}}}]");
        parse(&format!("correlation: {{{rules}}}")).unwrap()
    };
    let (with, without) = (of(""), of(", set: {groupBurstSize: 0}"));
    assert_eq!(parse(&without.to_yaml()).unwrap(), without);
    assert_ne!(with.hash(), without.hash());
    assert_eq!(with.reload_diff(&without).at_run_time, ["correlation.rules"]);
}

#[test]
fn flags_override_the_file_and_are_checked_like_it() {
    let overrides = Flags {
        listen: Some("0.0.0.0:1".into()),
        insecure_listen: true,
        admin_listen: Some("127.0.0.1:2".into()),
        web_config_file: Some("/w".into()),
        accept_hosts: Some("^a$, ^b$".into()),
        tls_cert_file: Some("/t".into()),
        tls_private_key_file: Some("/u".into()),
        tls_min_version: Some("VersionTLS13".into()),
        tls_cipher_suites: Some("TLS_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256".into()),
        client_ca_file: Some("/v".into()),
        upstream: Some("apiserver".into()),
        kubeconfig: Some("/k".into()),
        context: Some("c".into()),
        log_format: Some("json".into()),
        // Fault: with the space, the second directive was ignored.
        log_level: Some("debug, hyper=off".into()),
        event_log: Some("stdout".into()),
        suppression: Some("drop".into()),
        spool_dir: Some("/s".into()),
    };
    let overrides = overrides.into_overrides();
    for file in ["", "listen: nonsense\nlog: {level: loud}\nupstream: ~\ncorrelation: {suppression: x}"] {
        let config = with_flags(file, &overrides).unwrap();
        let port = config.listen.tcp().unwrap().port();
        assert_eq!((port, config.admin_listen.port(), config.insecure_listen), (1, 2, true));
        assert_eq!(config.admin_web_config_file.as_deref(), Some(Path::new("/w")));
        assert_eq!(config.accept_hosts, ["^a$", "^b$"]);
        assert_eq!(config.tls.files, Some(("/t".into(), "/u".into())));
        assert_eq!((config.tls.min_version, config.tls.cipher_suites.len()), (MinVersion::Tls13, 2));
        assert_eq!(config.tls.client_ca_file.as_deref(), Some(Path::new("/v")));
        assert_eq!((config.upstream.backend, &config.event_log), (Backend::Apiserver, &Some(Target::Stdout)));
        assert_eq!(config.upstream.apiserver.kubeconfig.as_deref(), Some(Path::new("/k")));
        assert_eq!(config.upstream.apiserver.context.as_deref(), Some("c"));
        assert_eq!(config.spool.dir.as_deref(), Some(Path::new("/s")));
        assert_eq!((config.log.format, config.log.level.as_str()), (LogFormat::Json, "debug,hyper=off"));
        assert_eq!(config.policy.base.suppression, Suppression::Drop);
    }
    let bad = Flags { listen: Some("0.0.0.0:80".into()), log_level: Some("loud".into()), ..Flags::default() };
    let bad = bad.into_overrides();
    let errors = with_flags("log: {format: text}", &bad).unwrap_err();
    assert_eq!(errors.to_string().lines().count(), 2);
    let text = errors.to_string();
    assert!(text.starts_with("--listen: `0.0.0.0:80` can be reached from other machines"), "{text}");
    assert!(text.contains("\n--log-level: `loud` is not allowed; allowed: off, "), "{text}");
    let shape = with_flags("log: debug", &bad).unwrap_err().to_string();
    assert!(shape.contains("eventweir.yaml:1: log: `debug` is not allowed; allowed: a section"), "{shape}");
}

/// Fault: a value that conflicts with another one was printed raw, over several lines.
#[test]
fn an_error_is_one_line_without_control_characters() {
    let error = parse("tls: {certFile: \"a\\n\\e[31mb\"}\n").unwrap_err().to_string();
    let expected =
        "eventweir.yaml:1: tls.certFile: `a\\n\\u{1b}[31mb` is given without keyFile; allowed: both, or neither";
    assert_eq!(error, expected);
}

/// Fault: a password in place of its hash was in the error.
#[test]
fn an_error_does_not_repeat_a_secret() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("web.yaml");
    for text in ["basic_auth_users: {a: SECRET}", "basic_auth_users: [SECRET]", "basic_auth_users: a:SECRET", "SECRET"]
    {
        fs::write(&path, text).unwrap();
        let errors = eventweir::config::load_web(&path).unwrap_err().to_string();
        assert!(errors.contains("the value is not allowed; allowed: a ") && !errors.contains("SECRET"), "{errors}");
    }
}

#[test]
fn files_are_refused_with_their_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.yaml");
    let fault = || {
        let text = load(Some(&path), &Overrides::default()).unwrap_err().to_string();
        text.strip_prefix(path.to_str().unwrap()).unwrap().to_owned()
    };
    assert!(fault().starts_with(": cannot be opened: "));
    // The values of flags are checked without the file; whether they conflict is not known.
    let flags = Flags { listen: Some("0.0.0.0:80".into()), log_level: Some("loud".into()), ..Flags::default() };
    let errors = load(Some(&path), &flags.into_overrides()).unwrap_err().to_string();
    assert!(errors.lines().count() == 2 && errors.contains("\n--log-level: `loud` is not allowed"), "{errors}");
    fs::write(&path, "#".repeat(usize::try_from(FILE_BYTES_MAX).unwrap() + 1)).unwrap();
    assert_eq!(fault(), ": is larger than 1 MiB, the limit of a configuration file");
    fs::write(&path, b"a: \xff\n").unwrap();
    assert_eq!(fault(), ": is not UTF-8 at byte 4");
    fs::write(&path, "a: 1\n").unwrap();
    assert!(fault().starts_with(
        ":1: a: no such key; allowed: memory, listen, insecureListen, adminListen, adminWebConfigFile, acceptHosts, tls, log, "
    ));
    fs::write(&path, "#".repeat(usize::try_from(FILE_BYTES_MAX).unwrap())).unwrap();
    assert_eq!(load(Some(&path), &Overrides::default()).unwrap(), Config::default());
}

#[test]
fn a_shadow_configuration_has_its_own_limits() {
    let folder = tempfile::tempdir().unwrap();
    let (path, shadow) = (folder.path().join("c.yaml"), folder.path().join("shadow.yaml"));
    fs::write(&path, format!("shadowFile: {}\n", shadow.display())).unwrap();
    fs::write(&shadow, "correlation: {burstSize: 7, maxSources: 5}\n").unwrap();
    let config = load(Some(&path), &Overrides::default()).unwrap();
    let read = config.shadow.clone().unwrap();
    assert_eq!(
        (read.policy.base.burst_size, read.settings.max_sources.get(), config.policy.base.burst_size),
        (7, 5, 25)
    );
    // The limits are those of a program with 256 MiB.
    assert!(read.settings.outbox.max_bytes < config.shard.outbox.max_bytes && read.settings.explain.enabled);
    fs::write(&shadow, "memory: unlimited\nexplain: {enabled: false}\n").unwrap();
    let changed = load(Some(&path), &Overrides::default()).unwrap();
    // Fault: a changed file did not change the hash.
    assert_ne!(changed.hash(), config.hash());
    let read = changed.shadow.unwrap();
    assert!(read.settings.outbox.max_bytes == config.shard.outbox.max_bytes && read.settings.explain.enabled);
    fs::write(&shadow, "correlation: {burstSize: many}\n").unwrap();
    let errors = load(Some(&path), &Overrides::default()).unwrap_err();
    assert!(errors.to_string().starts_with(&format!("{}:1: correlation.burstSize", shadow.display())), "{errors}");
}

#[test]
fn limits_come_from_the_plugins_own_file() {
    let folder = tempfile::tempdir().unwrap();
    let (path, limits) = (folder.path().join("c.yaml"), folder.path().join("limits.yaml"));
    fs::write(&path, format!("limitsFile: {}\n", limits.display())).unwrap();
    let plugin = "apiVersion: eventratelimit.admission.k8s.io/v1alpha1\nkind: Configuration\nlimits:\n";
    let list = "- {type: Namespace, qps: 50, burst: 100, cacheSize: 2000}\n- {type: User, qps: 10, burst: 50}\n";
    fs::write(&limits, format!("{plugin}{list}")).unwrap();
    let config = load(Some(&path), &Overrides::default()).unwrap();
    assert_eq!(config.limits_file.as_deref(), Some(limits.as_path()));
    // The plugin's file or its list inside our own file has the same effect.
    let indented: String = format!("{plugin}{list}").lines().map(|line| format!("  {line}\n")).collect();
    for text in [format!("limits:\n{indented}"), format!("limits:\n{list}")] {
        assert_eq!(parse(&text).unwrap().access, config.access, "{text}");
    }
    // Fault: the plugin's 0, which stands for its default, was refused.
    let limit = |more: &str| parse(&format!("limits: [{{type: User, qps: 1, burst: 1{more}}}]")).unwrap().access.limits;
    assert_eq!(limit(", cacheSize: 0"), limit(""));
    // A change of a named file is one of its key.
    fs::write(&limits, format!("{plugin}- {{type: User, qps: 1, burst: 5}}\n")).unwrap();
    let changed = load(Some(&path), &Overrides::default()).unwrap();
    assert_eq!(config.reload_diff(&changed).at_run_time, ["limitsFile"]);
    // Fault: it did not change the hash.
    assert_ne!(changed.hash(), config.hash());
    assert_eq!(load(Some(&path), &Overrides::default()).unwrap().hash(), changed.hash());
    fs::write(&limits, format!("{plugin}- {{type: Node, qps: 0}}\n")).unwrap();
    let errors = load(Some(&path), &Overrides::default()).unwrap_err();
    assert_eq!(errors.to_string().lines().count(), 3, "{errors}");
    assert!(errors.to_string().starts_with(&format!("{}:4: limits[0]", limits.display())), "{errors}");
    // Fault: a file that an editor was about to write ended all limits, and its content did not bring them back.
    for text in ["", "\n", plugin, "limits: []\n"] {
        fs::write(&limits, text).unwrap();
        let errors = load(Some(&path), &Overrides::default()).unwrap_err();
        assert_eq!(errors.to_string(), format!("{}: has no limits; allowed: 1 to 16", limits.display()));
        assert!(errors.are_of_files(), "it is not read again");
    }
    fs::remove_file(&limits).unwrap();
    assert!(load(Some(&path), &Overrides::default()).unwrap_err().to_string().contains("cannot be opened"));
}

/// Fault: a reload waited for ever for the writer of a pipe, and with it the handling of signals.
#[test]
fn no_reload_reads_a_pipe_that_the_file_names() {
    let folder = tempfile::tempdir().unwrap();
    let (path, limits) = (folder.path().join("c.yaml"), folder.path().join("limits"));
    fs::write(&path, format!("limitsFile: {}\n", limits.display())).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&limits).status().unwrap().success());
    let write = || {
        let limits = limits.clone();
        std::thread::spawn(move || fs::write(limits, "limits: [{type: Server, qps: 1, burst: 1}]\n"))
    };
    let writer = write();
    let started = load(Some(&path), &Overrides::default()).unwrap();
    assert_eq!(started.access.limits.len(), 1);
    writer.join().unwrap().unwrap();
    // It waits for a reader as long as the test runs.
    let _waiting = write();
    let errors = load_again(Some(&path), &Overrides::default(), &started).unwrap_err();
    assert!(errors.to_string().contains("limitsFile: ") && errors.to_string().contains(" is a pipe"), "{errors}");
}

/// Fault: the check read the users and TLS of a pipe, and the start read it again as an empty file, without a password.
#[test]
fn the_admin_ports_web_configuration_is_no_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let (path, web) = (folder.path().join("c.yaml"), folder.path().join("web"));
    fs::write(&path, format!("adminWebConfigFile: {}\n", web.display())).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&web).status().unwrap().success());
    // It waits for a reader as long as the test runs.
    let written = web.clone();
    let _waiting = std::thread::spawn(move || fs::write(written, "basic_auth_users: {}\n"));
    let of_start = eventweir::config::load(Some(&path), &Overrides::default(), Files::Checked).unwrap_err();
    assert!(of_start.to_string().contains("c.yaml:1: adminWebConfigFile: "), "{of_start}");
    let again = eventweir::config::load_web(&web).unwrap_err();
    for errors in [of_start, again] {
        assert!(errors.to_string().contains(" is not a regular file"), "{errors}");
    }
}

#[test]
fn the_hash_of_a_file_differs_with_its_content_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.yaml");
    fs::write(&path, "shards: 1\n").unwrap();
    let first = file_hash(&path).unwrap();
    assert_eq!(file_hash(&path).unwrap(), first);
    fs::write(&path, "shards: 2\n").unwrap();
    let second = file_hash(&path).unwrap();
    assert_ne!(first, second);
    let later = fs::File::options().append(true).open(&path).unwrap();
    later.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1)).unwrap();
    assert_eq!(file_hash(&path).unwrap(), second);
    fs::remove_file(&path).unwrap();
    assert!(file_hash(&path).is_err());
}

#[test]
fn reload_names_what_needs_a_restart() {
    let old = Config::default();
    let new = parse(
        "listen: 127.0.0.1:81
log: {level: debug, format: json}
upstream: {kind: apiserver, group: events, qps: 5, burst: 5, maxInFlight: 4, backoff: {max: 6s}, embedded: {ttl: 2h}}
correlation: {burstSize: 1, rules: [{match: {reason: A}}]}
outbox: {digest: {after: 1}}
shards: 2
",
    )
    .unwrap();
    let diff = old.reload_diff(&new);
    assert_eq!(
        diff.at_restart,
        ["listen", "log.format", "shards", "upstream.embedded.ttl", "upstream.group", "upstream.kind"]
    );
    let at_run_time = [
        "correlation.burstSize",
        "correlation.rules",
        "log.level",
        "outbox.digest.after",
        "upstream.backoff.max",
        "upstream.burst",
        "upstream.maxInFlight",
        "upstream.qps",
    ];
    assert_eq!(diff.at_run_time, at_run_time);
    assert!(old.reload_diff(&old.clone()).is_empty());
    assert_eq!(new.reload_diff(&old).at_run_time.len(), at_run_time.len());
    assert_ne!(old.hash(), new.hash());
    assert_eq!(old.hash().len(), 16);
}

#[test]
fn limits_follow_from_the_memory_unless_they_are_set() {
    let limits = |file: &str, container: Option<usize>| {
        let overrides =
            Overrides { container_memory: container.and_then(std::num::NonZeroUsize::new), ..Overrides::default() };
        let config = with_flags(file, &overrides).unwrap();
        let outbox = &config.shard.outbox;
        let keys = config.shard.max_tracked_keys.get();
        [outbox.max_bytes.get() >> 20, outbox.max_records.get(), keys, config.ingest.max_aliases.get()]
    };
    let defaults = [256, 100_000, 1_000_000, 100_000];
    assert_eq!(limits("", None), defaults);
    assert_eq!(limits("", Some(1536 << 20)), defaults);
    assert_eq!(limits("memory: unlimited", Some(128 << 20)), defaults);
    let small = [11, 4347, 43_478, 4347];
    assert_eq!(limits("", Some(128 << 20)), small);
    assert_eq!(limits("memory: 128Mi", Some(8 << 30)), small);
    assert_eq!(limits("memory: 3008Mi", None), defaults.map(|limit| 2 * limit));
    let set = "memory: 128Mi\ncorrelation: {maxTrackedKeys: 7}\ningest: {maxAliases: 8}";
    assert_eq!(limits(set, None), [11, 4347, 7, 8]);
    // Fault: however small the memory, four lists of up to 60 MiB each were made at once.
    for (memory, lists) in [("96Mi", 1), ("511Mi", 1), ("512Mi", 2), ("1Gi", 4), ("16Ti", 4), ("unlimited", 4)] {
        assert_eq!(parse(&format!("memory: {memory}")).unwrap().ingest.max_lists.get(), lists, "{memory}");
    }
    let error = parse("memory: 1Mi").unwrap_err().to_string();
    assert!(error.contains("allowed: container, unlimited, or bytes"), "{error}");
    // Fault: the printed limits were below or above what their keys allow.
    for memory in ["96Mi", "92Gi", "16Ti"] {
        let config = parse(&format!("memory: {memory}")).unwrap();
        assert_eq!(parse(&config.to_yaml()).unwrap(), config, "{memory}");
    }
}

#[test]
fn shards_follow_the_cores_unless_fixed() {
    let count = |config: &str, cores| {
        let cores = std::num::NonZeroUsize::new(cores).unwrap();
        parse(config).unwrap().shards.count(cores).get()
    };
    assert_eq!([1, 6, 12, 100].map(|cores| count("", cores)), [8, 48, 64, 100]);
    assert_eq!(count("shards: 2", 6), 2);
    assert_eq!(parse("shards: auto").unwrap().shards, Shards::Auto);
}

/// Returns key and default of each row `| `key` | `default` | …` of the documentation's tables.
fn documented() -> BTreeMap<String, String> {
    let code = |cell: &str| cell.trim().strip_prefix('`').and_then(|cell| cell.strip_suffix('`')).map(str::to_owned);
    let mut rows = BTreeMap::new();
    for line in document("configuration.md").lines() {
        let mut cells = line.split('|').skip(1);
        let Some(key) = cells.next().and_then(code).filter(|key| !key.starts_with('-')) else { continue };
        let default = cells.next().and_then(code).unwrap_or_default();
        assert!(rows.insert(key.clone(), default).is_none(), "{key} is documented twice");
    }
    rows
}

/// Adds each key of a schema, in order. A rule's `set` is one key, because its members are those of the section. `limits`
/// is a list, and also accepts the plugin's whole file.
fn add_keys(path: &str, schema: &serde_json::Value, found: &mut Vec<String>) {
    for (key, member) in schema["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        if member["properties"].is_object() && member["items"].is_null() && key != "set" {
            add_keys(&path, member, found);
        } else {
            add_keys(&format!("{path}[]"), &member["items"], found);
            found.push(path);
        }
    }
}

#[test]
fn documentation_names_every_key() {
    let mut keys = Vec::new();
    add_keys("", &Config::json_schema(), &mut keys);
    let (keys, documented) = (BTreeSet::from_iter(keys), documented().into_keys().collect::<BTreeSet<_>>());
    let different: Vec<_> = documented.symmetric_difference(&keys).collect();
    assert!(different.is_empty(), "only in docs/configuration.md, or only in the program: {different:?}");
}

/// Fault: `--print-config` and the errors of a wrong key had another order in five sections.
#[test]
fn keys_of_a_section_are_in_the_order_of_the_documentation() {
    let mut keys = Vec::new();
    add_keys("", &Config::json_schema(), &mut keys);
    let sections: BTreeSet<_> = keys.iter().filter_map(|key| key.split_once('.')).map(|(section, _)| section).collect();
    let text = document("configuration.md");
    for section in sections {
        let is_own = |key: &&str| key.starts_with(&format!("{section}.")) && !key.contains("[]");
        let documented = text.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`')).map(|(key, _)| key);
        let documented: Vec<_> = documented.filter(is_own).collect();
        assert_eq!(keys.iter().map(String::as_str).filter(is_own).collect::<Vec<_>>(), documented);
    }
}

#[test]
fn documented_defaults_are_the_defaults() {
    for (key, default) in documented() {
        if default.is_empty() {
            assert!(KEYS_WITHOUT_DEFAULT.contains(&key.as_str()) || key.contains("[]"), "{key} has no default");
            continue;
        }
        let yaml = key.rsplit('.').fold(default, |value, key| format!("{{{key}: {value}}}"));
        let config = parse(&yaml).unwrap_or_else(|errors| panic!("{yaml}\n{errors}"));
        assert_eq!(config, Config::default(), "{yaml}");
    }
}

/// Ranges that depend on another key say so, and are left out.
#[test]
fn documented_ranges_are_the_ranges_and_live_keys_are_live() {
    let row = r"\n\| `([a-zA-Z.]+)` \| \S+ \| (?:`auto` or )?([\d,]+)(\w*)(?: \(.*?\))? to ([\d,]+)(\w*) \| (live;)?";
    let (row, text, mut rows) = (regex::Regex::new(row).unwrap(), document("configuration.md"), 0);
    // Keys of `auth` need a way to know callers.
    let [tls_cert_file, tls_private_key_file, client_ca_file] = ["/t", "/u", "/v"].map(|path| Some(path.into()));
    let callers = Flags { tls_cert_file, tls_private_key_file, client_ca_file, ..Flags::default() }.into_overrides();
    for (section, cells) in
        text.split("\n## ").flat_map(|section| row.captures_iter(section).map(move |row| (section, row)))
    {
        let (key, number) = (&cells[1], |cell: usize| cells[cell].replace(',', "").parse::<i64>().unwrap());
        let at = |cell, more| {
            let value = format!("{}{}", number(cell) + more, &cells[cell + 1]);
            with_flags(&key.rsplit('.').fold(value, |value, key| format!("{{{key}: {value}}}")), &callers)
        };
        let (least, most) = (at(2, 0).unwrap(), at(4, 0).unwrap());
        assert!(at(2, -1).is_err() && at(4, 1).is_err(), "{key}");
        let is_live = cells.get(6).is_some() || section.contains("All keys of this section are live.");
        assert_eq!(least.reload_diff(&most).at_restart.is_empty(), is_live, "{key}");
        rows += 1;
    }
    assert!(rows > 50, "{rows}");
}

#[test]
fn documentation_names_every_flag_and_field() {
    let text = document("configuration.md");
    for field in eventweir::correlator::Field::ALL {
        assert!(text.contains(&format!("`{}`", field.label())), "{}", field.label());
    }
    let cli = Cli::command();
    let flags = cli.find_subcommand("serve").unwrap().get_arguments().filter_map(|flag| flag.get_long());
    let flags: Vec<&str> = flags.filter(|flag| !["config", "help", "version"].contains(flag)).collect();
    assert!(flags.len() >= 18, "{flags:?}");
    for flag in flags {
        assert!(text.contains(&format!("`--{flag}`")), "--{flag}");
    }
}

#[test]
fn example_is_the_default_and_its_suggestions_are_valid() {
    let example = document("eventweir.example.yaml");
    assert_eq!(parse(&example).unwrap_or_else(|errors| panic!("{errors}")), Config::default());
    let with_suggestions: String = example
        .lines()
        .map(|line| match line.split_once("#: ") {
            Some((indent, text)) => format!("{indent}{text}\n"),
            None => format!("{line}\n"),
        })
        .collect();
    let config = parse(&with_suggestions).unwrap_or_else(|errors| panic!("{errors}"));
    assert!(!config.policy.rules.is_empty());
    for key in documented().keys().filter(|key| !key.contains("[]")) {
        let name = key.rsplit('.').next().unwrap();
        assert!(example.contains(&format!("{name}:")), "{key} is missing in the example");
    }
}

#[test]
fn documentation_snippets_are_valid() {
    let text = document("configuration.md");
    let snippets: Vec<&str> = text.split("```yaml\n").skip(1).map(|rest| rest.split_once("```").unwrap().0).collect();
    assert!(!snippets.is_empty());
    for snippet in snippets {
        parse(snippet).unwrap_or_else(|errors| panic!("{snippet}\n{errors}"));
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
        drop(parse(&String::from_utf8_lossy(&bytes)).map(|config| config.to_yaml()));
    }

    #[test]
    fn arbitrary_changes_of_a_real_file_never_panic(
        at: prop::sample::Index, cut in 0_usize..40, put in "([-:{}\\[\\]#&*!|>'\"%@` \\n\\t0-9a-z,.]|\\PC){0,20}",
    ) {
        let chars: Vec<char> = Config::default().to_yaml().chars().collect();
        let (before, after) = chars.split_at(at.index(chars.len()));
        let text: String = before.iter().copied().chain(put.chars()).chain(after.iter().copied().skip(cut)).collect();
        if let Ok(config) = parse(&text) {
            prop_assert_eq!(parse(&config.to_yaml()).unwrap(), config);
        }
    }

    #[test]
    fn effective_values_read_back(
        burst in 0_u32..=1_000_000, qps in 0.0..=1_000_000.0_f32, nanos in 0_u64..=604_800_000_000_000,
        prefix in "\\PC{1,40}", reason in "\\PC{1,20}", records in 1_usize..=100_000_000,
    ) {
        let quoted = |text: &str| serde_json::to_string(text).unwrap();
        let text = format!(
            "correlation: {{burstSize: {burst}, maxInterval: {nanos}ns, messagePrefix: {}, rules: [{{match: {{reason: {}}}, \
             set: {{qps: {qps}}}}}]}}\noutbox: {{maxRecords: {records}}}\n",
            quoted(&prefix), quoted(&reason.replace('*', "x")),
        );
        let config = parse(&text).unwrap_or_else(|errors| panic!("{text}\n{errors}"));
        prop_assert_eq!(config.policy.rules[0].settings.qps, qps);
        prop_assert_eq!(config.policy.base.message_prefix.as_str(), prefix);
        prop_assert_eq!(parse(&config.to_yaml()).unwrap(), config);
    }
}

const CHART_SCHEMA: &str = include_str!("../helm/eventweir/values.schema.json");

#[test]
fn the_chart_has_the_schema_of_the_program() {
    let chart: serde_json::Value = serde_json::from_str(CHART_SCHEMA).unwrap();
    let mut own = Config::json_schema();
    own.as_object_mut().unwrap().remove("$schema");
    let lines = |schema| serde_json::to_string_pretty(schema).unwrap().lines().map(str::to_owned).collect::<Vec<_>>();
    let (chart, own) = (lines(&chart["definitions"]["config"]), lines(&own));
    let different = chart.iter().zip(&own).find(|(chart, own)| chart != own);
    assert!(chart == own, "run make render; the first difference, in the chart and in the program: {different:?}");
}

/// Returns the schema of the value at a path such as `correlation.rules[].match.kind`.
fn schema_at<'a>(schema: &'a serde_json::Value, path: &str) -> &'a serde_json::Value {
    path.split('.').fold(schema, |schema, key| match key.strip_suffix("[]") {
        Some(key) => &schema["properties"][key]["items"],
        None => &schema["properties"][key],
    })
}

#[test]
fn the_schema_has_a_type_for_every_key() {
    let schema = Config::json_schema();
    let mut open = vec![(String::new(), &schema)];
    let mut untyped = Vec::new();
    while let Some((path, schema)) = open.pop() {
        for (key, member) in schema["properties"].as_object().unwrap() {
            let path = format!("{path}{key}");
            let member = if member["items"]["properties"].is_object() { &member["items"] } else { member };
            if member["properties"].is_object() {
                open.push((format!("{path}."), member));
            } else if !["type", "enum", "anyOf"].iter().any(|word| member.get(word).is_some())
                || member["type"] == serde_json::json!(["array", "boolean", "number", "string"])
            {
                untyped.push(path);
            }
        }
    }
    untyped.sort();
    assert_eq!(untyped, KEYS_OF_MIXED_FORM);
    let burst = schema_at(&schema, "correlation.burstSize");
    assert_eq!((&burst["type"], &burst["minimum"]), (&"integer".into(), &0.into()));
    assert_eq!(schema_at(&schema, "correlation.rules[].set.burstSize"), burst);
    assert_eq!(schema_at(&schema, "correlation.rules[].match").get("additionalProperties"), Some(&false.into()));
    // Fault: editors and Helm refused `passthrough: on`, `admission: on`, and the plugin's whole file as `limits`.
    for key in ["passthrough", "admission"] {
        let schema = schema_at(&schema, key);
        assert_eq!(schema["type"], serde_json::json!(["object", "string", "boolean", "null"]));
        assert_eq!(schema["pattern"], "^(on|off)$");
        assert!(schema["properties"]["enabled"].is_object());
    }
    assert_eq!(schema_at(&schema, "limits")["type"], serde_json::json!(["array", "object", "null"]));
}

/// Fault: editors and Helm refused a section or a list whose members are all comments, which the program accepts.
#[test]
fn a_section_without_a_value_has_its_defaults() {
    let yaml = "correlation:\n  # burstSize: 50\nupstream: {backoff: }\nlimits:\nauth: {policy: ~}\npassthrough:\n";
    assert_eq!(parse(yaml).unwrap(), parse("").unwrap());
    let schema = Config::json_schema();
    for key in ["correlation", "upstream.backoff", "limits", "auth.policy", "passthrough"] {
        let types = &schema_at(&schema, key)["type"];
        assert!(types.as_array().is_some_and(|types| types.contains(&"null".into())), "{key}: {types}");
    }
}
