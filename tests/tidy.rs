//! The rules of our style that a test can keep: which module may name which, the shape of a file, what must not be committed.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A top-level module, what it may name in the crate, and which of [`WATCHED`] it may name outside.
type Row = (&'static str, &'static [&'static str], &'static [&'static str]);

/// From the bottom to the top: a module names only modules of rows above its own, so there are no cycles.
const MODULES: &[Row] = &[
    // The pure core. `shard` is pure but for its table of locks; see `PURE`.
    ("clock", &[], &["tokio"]),
    ("status", &[], &[]),
    ("event", &["status"], &[]),
    ("correlator", &["event", "clock"], &[]),
    ("limits", &[], &[]),
    ("metrics", &[], &["prometheus"]),
    ("ledger", &[], &[]),
    ("outbox", &["event", "clock", "correlator", "limits", "status", "ledger"], &[]),
    ("explain", &["event", "clock", "correlator", "limits", "outbox"], &["parking_lot", "tokio"]),
    (
        "shard",
        &["event", "clock", "correlator", "explain", "limits", "outbox", "ledger", "metrics"],
        &["arc_swap", "parking_lot", "prometheus", "tokio"],
    ),
    // The edges.
    (
        "upstream",
        &["event", "clock", "outbox", "status", "metrics"],
        &[
            "arc_swap",
            "hyper",
            "hyper_util",
            "kube",
            "parking_lot",
            "prometheus",
            "tokio",
            "tokio_util",
            "tower",
            "tracing",
        ],
    ),
    (
        "deliver",
        &["clock", "correlator", "event", "outbox", "shard", "upstream", "metrics"],
        &["arc_swap", "prometheus", "tokio", "tokio_util", "tracing"],
    ),
    ("history", &["clock", "shard", "upstream", "metrics"], &["prometheus", "tokio", "tokio_util", "tracing"]),
    (
        "spool",
        &["correlator", "event", "outbox", "shard", "metrics"],
        &["prometheus", "tokio", "tokio_util", "tracing"],
    ),
    ("event_log", &["clock", "event", "shard", "metrics"], &["prometheus", "tokio", "tokio_util", "tracing"]),
    (
        "server",
        &["clock", "metrics"],
        &[
            "arc_swap",
            "axum",
            "hyper",
            "hyper_util",
            "parking_lot",
            "prometheus",
            "tokio",
            "tokio_util",
            "tower",
            "tracing",
        ],
    ),
    (
        "access",
        &["clock", "correlator", "event", "server", "status", "metrics"],
        &["arc_swap", "parking_lot", "prometheus", "tokio", "tokio_util", "tracing"],
    ),
    (
        "shadow",
        &["clock", "correlator", "event", "explain", "ledger", "outbox", "shard"],
        &["parking_lot", "tokio", "tokio_util"],
    ),
    (
        "ingest",
        &[
            "access",
            "clock",
            "correlator",
            "event",
            "event_log",
            "explain",
            "ledger",
            "outbox",
            "server",
            "shadow",
            "shard",
            "spool",
            "status",
            "upstream",
            "metrics",
        ],
        &["axum", "parking_lot", "prometheus", "tokio", "tokio_util", "tower"],
    ),
    (
        "passthrough",
        &["access", "event", "ingest", "metrics", "server", "status", "upstream"],
        &["axum", "hyper", "hyper_util", "parking_lot", "prometheus", "tokio", "tokio_util", "tower", "tracing"],
    ),
    (
        "admin",
        &["correlator", "deliver", "event", "explain", "history", "ingest", "metrics", "server", "shard", "upstream"],
        &["arc_swap", "axum", "parking_lot", "prometheus", "tokio", "tower"],
    ),
    // Around them: what is configured, what is wired, what is asked for on the command line.
    (
        "config",
        &[
            "access",
            "admin",
            "correlator",
            "deliver",
            "event",
            "event_log",
            "explain",
            "history",
            "ingest",
            "outbox",
            "server",
            "shadow",
            "shard",
            "spool",
            "upstream",
        ],
        &[],
    ),
    ("logging", &["config"], &["tracing", "tracing_appender", "tracing_subscriber"]),
    (
        "app",
        &[
            "access",
            "admin",
            "clock",
            "config",
            "correlator",
            "deliver",
            "event_log",
            "history",
            "ingest",
            "ledger",
            "metrics",
            "passthrough",
            "server",
            "shadow",
            "shard",
            "spool",
            "status",
            "upstream",
        ],
        &["parking_lot", "prometheus", "tokio", "tokio_util", "tracing"],
    ),
    ("replay", &["clock", "correlator", "event", "outbox", "shard"], &[]),
    ("cli", &["config", "event", "replay"], &["clap", "clap_complete"]),
    (
        "commands",
        &["app", "cli", "clock", "config", "event", "explain", "logging", "outbox", "replay", "upstream"],
        &["clap", "clap_complete", "hyper", "hyper_util", "kube", "parking_lot", "prometheus", "tokio", "tower"],
    ),
];

/// Crates that tie code to a runtime, to the network, to locks or to what an operator sees.
const WATCHED: [&str; 15] = [
    "arc_swap",
    "axum",
    "clap",
    "clap_complete",
    "hyper",
    "hyper_util",
    "kube",
    "parking_lot",
    "prometheus",
    "tokio",
    "tokio_util",
    "tower",
    "tracing",
    "tracing_appender",
    "tracing_subscriber",
];

/// What decides: values that are handed the time, and do no I/O.
const PURE: [&str; 10] = [
    "src/event/",
    "src/status.rs",
    "src/correlator/",
    "src/outbox/",
    "src/explain/mod.rs",
    "src/explain/history.rs",
    "src/explain/recent.rs",
    "src/ledger.rs",
    "src/shard/mod.rs",
    "src/replay/",
];

/// What a pure file must not name.
const IMPURE: [&str; 15] = [
    "arc_swap",
    "async fn",
    "axum",
    "hyper",
    "kube",
    "parking_lot",
    "prometheus",
    "std::env",
    "std::fs",
    "std::net",
    "std::sync::Mutex",
    "std::time::Instant",
    "std::time::SystemTime",
    "tokio",
    "tracing",
];

/// A tracked text file of ours: its path from the root, and its text.
struct File {
    path: String,
    text: String,
}

impl File {
    /// Code without comments and without the file's unit tests.
    fn code(&self) -> String {
        if self.path.ends_with("/tests.rs") {
            return String::new();
        }
        let code = self.text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        lines.map(|line| line.split(" // ").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
    }

    /// The top-level module it belongs to.
    fn module(&self) -> &str {
        let path = self.path.strip_prefix("src/").unwrap_or(&self.path);
        path.split('/').next().unwrap_or_default().trim_end_matches(".rs")
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        // Neither git's, nor the build's, nor an editor's; `.ci` is ours.
        if name == "target" || (name.starts_with('.') && name != ".ci") {
            continue;
        }
        if path.is_dir() {
            walk(&path, files);
        } else {
            files.push(path);
        }
    }
}

fn files(below: &str) -> Vec<File> {
    let mut paths = Vec::new();
    walk(&root().join(below), &mut paths);
    paths.sort();
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).ok()?;
        Some(File { path: path.strip_prefix(root()).unwrap().to_string_lossy().into_owned(), text })
    };
    paths.into_iter().filter_map(read).collect()
}

fn sources() -> Vec<File> {
    let sources: Vec<File> = files("src").into_iter().filter(|file| file.path.ends_with(".rs")).collect();
    assert!(sources.len() > 50, "the sources were not found");
    sources
}

/// The sources of the library's modules.
fn modules() -> impl Iterator<Item = File> {
    sources().into_iter().filter(|file| !["lib", "main"].contains(&file.module()))
}

/// The first names of all `crate::…` paths, `use crate::{a, b::c}` included.
fn crate_names(code: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        let group = match rest.strip_prefix('{') {
            Some(group) => group.split('}').next().unwrap_or_default(),
            None => rest,
        };
        let ident =
            |text: &str| text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
        if rest.starts_with('{') {
            names.extend(group.split(',').map(ident).filter(|name| !name.is_empty()));
        } else {
            names.insert(ident(group));
        }
    }
    names
}

/// Whether `code` names this crate or path, and not only a longer word.
fn names(code: &str, wanted: &str) -> bool {
    let is_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    code.match_indices(wanted).any(|(at, _)| {
        let (before, after) = (code[..at].chars().next_back(), code[at + wanted.len()..].chars().next());
        !is_word(before) && !is_word(after) && before != Some('"') && before != Some('.')
    })
}

/// Fails with all faults, if there are any.
fn report(rule: &str, faults: &[String]) {
    assert!(faults.is_empty(), "{rule}:\n  {}", faults.join("\n  "));
}

#[test]
fn a_module_names_only_what_its_row_lists() {
    let rows: BTreeMap<&str, &Row> = MODULES.iter().map(|row| (row.0, row)).collect();
    let mut faults = Vec::new();
    for file in modules() {
        let module = file.module().to_owned();
        let Some((_, inside, outside)) = rows.get(module.as_str()) else {
            faults.push(format!("{}: the module has no row in tests/tidy.rs", file.path));
            continue;
        };
        let code = file.code();
        for name in crate_names(&code).iter().filter(|name| **name != module && !inside.contains(&name.as_str())) {
            faults.push(format!("{}: names crate::{name}", file.path));
        }
        for name in WATCHED.iter().filter(|name| names(&code, name) && !outside.contains(name)) {
            faults.push(format!("{}: names {name}", file.path));
        }
    }
    report("a module names only what its row in tests/tidy.rs lists", &faults);
}

#[test]
fn modules_form_no_cycle() {
    let mut below = BTreeSet::new();
    let mut faults = Vec::new();
    for (module, inside, _) in MODULES {
        faults.extend(inside.iter().filter(|name| !below.contains(*name)).map(|name| format!("{module} -> {name}")));
        below.insert(module);
    }
    report("a row names only rows above it", &faults);
}

#[test]
fn a_row_lists_only_what_its_module_names() {
    let mut named: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in modules() {
        let code = file.code();
        let outside = WATCHED.iter().filter(|name| names(&code, name)).map(|name| (*name).to_owned());
        named.entry(file.module().to_owned()).or_default().extend(crate_names(&code).into_iter().chain(outside));
    }
    let mut faults = Vec::new();
    for (module, inside, outside) in MODULES {
        let named = named.get(*module).unwrap_or_else(|| panic!("{module} is no module"));
        let idle = inside.iter().chain(*outside).filter(|name| !named.contains(**name));
        faults.extend(idle.map(|name| format!("{module}: {name}")));
    }
    report("tests/tidy.rs allows what nobody uses", &faults);
}

#[test]
fn the_core_is_pure() {
    let mut faults = Vec::new();
    let mut seen = 0;
    for file in sources().into_iter().filter(|file| PURE.iter().any(|pure| file.path.starts_with(pure))) {
        seen += 1;
        let code = file.code();
        faults.extend(IMPURE.iter().filter(|name| names(&code, name)).map(|name| format!("{}: {name}", file.path)));
    }
    assert!(seen > 20, "the core was not found");
    report("the core does no I/O, takes no locks, reads no clock and logs nothing", &faults);
}

#[test]
fn a_file_begins_with_its_head_and_has_at_most_600_lines() {
    let mut faults = Vec::new();
    for file in sources() {
        if !file.text.starts_with("//! ") {
            faults.push(format!("{}: does not begin with a `//!` head", file.path));
        }
        let lines = file.text.lines().count();
        if lines > 600 {
            faults.push(format!("{}: {lines} lines", file.path));
        }
        let folder = root().join(file.path.trim_end_matches(".rs"));
        if folder.is_dir() && !file.path.ends_with("mod.rs") {
            faults.push(format!("{}: beside a folder of its name; use mod.rs", file.path));
        }
    }
    report("the shape of a file", &faults);
}

#[test]
fn what_grows_has_a_limit_that_is_written_down() {
    const GROWING: [&str; 9] = [
        "BTreeMap<",
        "BTreeSet<",
        "BinaryHeap<",
        "HashMap<",
        "HashSet<",
        "JoinSet<",
        "LruCache<",
        "VecDeque<",
        "mpsc::Sender<",
    ];
    let mut faults = Vec::new();
    for file in sources().into_iter().filter(|file| !file.path.starts_with("src/commands/")) {
        let code = file.code();
        // A field of a long-lived struct: `name: Type,` one level in.
        let field = code.lines().find(|line| {
            let declares = line.trim_end().ends_with(',') && line.contains(": ") && !line.contains(['(', '=']);
            line.starts_with("    ")
                && !line.starts_with("     ")
                && declares
                && GROWING.iter().any(|kind| line.contains(kind))
        });
        if let Some(field) = field
            && !file.text.contains("LIMIT:")
        {
            faults.push(format!("{}: `{}`", file.path, field.trim()));
        }
    }
    report("a queue or map has a `LIMIT:` comment that says what happens at the limit", &faults);
}

/// Fault: the secret of the callers' caches came from `fastrand`, whose seed is the time of the start.
#[test]
fn no_secret_comes_from_fastrand() {
    let is_wrong = |file: &File| file.code().contains("KeySecret(fastrand");
    let faults: Vec<String> = sources().into_iter().filter(is_wrong).map(|file| file.path).collect();
    report("a secret comes from the operating system", &faults);
}

#[test]
fn a_todo_names_its_issue() {
    let word = ["TO", "DO"].concat();
    let mut faults = Vec::new();
    for file in sources().into_iter().chain(files("tests")).chain(files("benches")) {
        for (number, line) in file.text.lines().enumerate().filter(|_| file.path.ends_with(".rs")) {
            if names(line, &word) && !line.contains(&format!("{word}(#")) {
                faults.push(format!("{}:{}", file.path, number + 1));
            }
        }
    }
    report("nothing is left to do without the number of an issue", &faults);
}

#[test]
fn every_module_is_on_the_map() {
    let library = std::fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let map = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let modules: Vec<&str> =
        library.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';')).collect();
    assert_eq!(modules.len(), MODULES.len(), "src/lib.rs and tests/tidy.rs know the same modules");
    let missing: Vec<String> = modules
        .iter()
        .filter(|module| !map.contains(&format!("`{module}`")) && !map.contains(&format!("`{module}/`")))
        .map(ToString::to_string)
        .collect();
    report("ARCHITECTURE.md has a line for every module", &missing);
}

#[test]
fn files_that_architecture_names_exist() {
    let map = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let quoted = map.split('`').skip(1).step_by(2).filter(|name| name.contains('/') && name.contains('.'));
    let missing: Vec<String> = quoted
        .filter(|name| !root().join(name).exists() && !root().join("src").join(name).exists())
        .map(ToOwned::to_owned)
        .collect();
    report("ARCHITECTURE.md names files that exist", &missing);
}

/// Cargo builds nothing if a target that Cargo.toml names has no file.
#[test]
fn the_image_builds_its_dependencies_beside_the_targets_that_cargo_names() {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).unwrap();
    let (manifest, image) = (read("Cargo.toml"), read("Dockerfile"));
    let stage = image.split(" AS dependencies\n").nth(1).unwrap().split("FROM ").next().unwrap();
    for (target, folder) in [("[[bench]]", "benches"), ("[[example]]", "examples"), ("[[test]]", "tests")] {
        let is_copied = stage.contains(&format!("COPY {folder} {folder}\n"));
        assert_eq!(is_copied, manifest.contains(target), "{folder} in the Dockerfile's stage `dependencies`");
    }
}

/// Docker's builder hands an ARG on to the stages that are based on its own; buildah and podman do not.
#[test]
fn each_stage_of_the_image_declares_the_arguments_that_it_uses() {
    let image = std::fs::read_to_string(root().join("Dockerfile")).unwrap();
    let faults: Vec<&str> = image
        .split("\nFROM ")
        .filter(|stage| stage.contains("$TARGETARCH") && !stage.contains("\nARG TARGETARCH\n"))
        .filter_map(|stage| stage.lines().next())
        .collect();
    assert!(faults.is_empty(), "these stages use TARGETARCH without ARG: {faults:?}");
}

/// Of the image, of the release workflow, and of `.ci/run`.
#[test]
fn the_tools_of_the_release_have_one_version() {
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for path in ["Dockerfile", ".github/workflows/release.yaml", ".ci/run"] {
        let text = std::fs::read_to_string(root().join(path)).unwrap();
        for tool in ["cargo-about", "cargo-auditable", "cargo-zigbuild", "ziglang"] {
            // crates.io writes one sign, PyPI two.
            let signs = ["@", "=="].map(|sign| format!("{tool}{sign}"));
            for rest in signs.iter().flat_map(|sign| text.split(sign).skip(1)) {
                let version = rest.split([' ', '"', ';', '\n']).next().unwrap();
                if version.starts_with(|first: char| first.is_ascii_digit()) {
                    versions.entry(tool.to_owned()).or_default().insert(version.to_owned());
                }
            }
        }
    }
    assert!(versions.len() == 4 && versions.values().all(|one| one.len() == 1), "{versions:?}");
}

#[test]
fn the_version_of_cargo_toml_is_everywhere() {
    let version = env!("CARGO_PKG_VERSION");
    // A tag, and not a port.
    let is_tag = |text: &str| text.split_once('.').is_some_and(|(major, _)| major.parse::<u16>().is_ok());
    let mut faults = Vec::new();
    for file in files("") {
        let mut images = file.text.split("eventweir:").skip(1);
        let wanted = match file.path.as_str() {
            "Dockerfile" => format!("\nARG VERSION={version}\n"),
            "fuzz/Cargo.lock" => format!("\nname = \"eventweir\"\nversion = \"{version}\"\n"),
            "helm/eventweir/Chart.yaml" => format!("\nversion: {version}\nappVersion: {version}\n"),
            _ => String::new(),
        };
        if images.any(|tag| is_tag(tag) && !tag.starts_with(version)) || !file.text.contains(&wanted) {
            faults.push(file.path);
        }
    }
    report("these files have the version of Cargo.toml", &faults);
}

#[test]
fn each_scenario_of_delivery_is_described() {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).unwrap();
    let (program, document) = (read("tests/delivery/main.go"), read("tests/apiserver/README.md"));
    let names = program.split("\t{name: \"").skip(1).map(|rest| rest.split('"').next().unwrap());
    // A row may have several numbers: replicas-2, -3.
    let missing =
        names.map(|name| name.trim_end_matches("-3")).filter(|name| !document.contains(&format!("\n| {name}")));
    report("tests/apiserver/README.md describes each scenario", &missing.map(ToOwned::to_owned).collect::<Vec<_>>());
}

/// `tests/passthrough` runs the recipes for clients with an endpoint of their own.
#[test]
fn the_clients_of_ci_run_the_recipes_of_the_documentation() {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).unwrap().replace('\'', "\"");
    let text = read("docs/clients.md").replace("\"https://eventweir.eventweir.svc:8080\"", "endpoint");
    for (language, program) in [
        ("go", "go/recipes.go"),
        ("java", "java/Pass.java"),
        ("js", "javascript/pass.js"),
        ("python", "python/pass.py"),
        ("rust", "kube-rs/src/main.rs"),
    ] {
        let (program, fence) = (read(&format!("tests/passthrough/{program}")), format!("```{language}\n"));
        let run: BTreeSet<&str> = program.lines().map(str::trim).collect();
        let recipes = text.split(&fence).skip(1).filter_map(|rest| rest.split("```").next());
        let lines = recipes.flat_map(str::lines).map(str::trim);
        let faults: Vec<String> = lines.filter(|line| !run.contains(line)).map(ToOwned::to_owned).collect();
        assert!(text.contains(&fence), "docs/clients.md has no recipe in {language}");
        report(&format!("tests/passthrough runs each line of docs/clients.md ({language})"), &faults);
    }
}

#[test]
fn nothing_of_a_machine_is_committed() {
    // Put together here, so that this file does not name them itself.
    let machine =
        [["/wo", "rk/"], ["/ro", "ot/"], ["/ho", "me/"], ["/Us", "ers/"], ["replace-", "with"], ["index-", "url"]];
    let mut faults = Vec::new();
    for file in files("") {
        for pattern in machine.map(|halves| halves.concat()) {
            if let Some(line) = file.text.lines().position(|line| line.contains(&pattern)) {
                faults.push(format!("{}:{}: {pattern}", file.path, line + 1));
            }
        }
        let sources =
            file.text.lines().filter(|line| file.path.ends_with("Cargo.lock") && line.starts_with("source = "));
        let foreign = sources.filter(|line| !line.contains("registry+https://github.com/rust-lang/crates.io-index"));
        faults.extend(foreign.map(|line| format!("{}: {line}", file.path)));
    }
    report("no paths of a machine and no registries but the public ones", &faults);
}
