//! The effective configuration: as YAML (`--print-config`), as a hash, and compared with a changed file. A printed file
//! reads back as an equal [`Config`]. Polling the file is the app's task.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde_json::Value;

use super::Config;
use super::section::is_within;
use crate::shadow;

/// Fields and sections that a reload applies to the running process.
const AT_RUN_TIME: [&str; 18] = [
    "correlation",
    "outbox",
    "explain",
    "log.level",
    "upstream.maxInFlight",
    "upstream.qps",
    "upstream.burst",
    "upstream.backoff",
    "shutdown",
    "auth.outageTTL",
    "auth.policy",
    "auth.allowPaths",
    "auth.callerAnnotation",
    "auth.sourceBinding",
    "limits",
    "limitsFile",
    "shadowFile",
    "fairness",
];

/// The keys that differ between two configurations, by when the new value applies.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReloadDiff {
    /// Paths of changed keys that apply at once.
    pub at_run_time: Vec<String>,
    /// Paths of changed keys that apply only after a restart.
    pub at_restart: Vec<String>,
}

impl ReloadDiff {
    /// True when nothing differs.
    pub const fn is_empty(&self) -> bool {
        self.at_run_time.is_empty() && self.at_restart.is_empty()
    }
}

impl Config {
    /// The effective values as a YAML file. Fields without a value of their own, such as the path of a kubeconfig, are
    /// left out.
    pub fn to_yaml(&self) -> String {
        serde_saphyr::to_string(&self.tree()).unwrap_or_else(|error| format!("# {error}\n"))
    }

    /// Sixteen hex digits that equal configurations share, on every machine and in every version that knows the same
    /// keys. Covers the files of limits and of the shadow configuration.
    pub fn hash(&self) -> String {
        let mut text = self.to_yaml();
        if self.limits_file.is_some() {
            // Without a file, the limits are shown.
            text += &Self { limits_file: None, ..self.clone() }.to_yaml();
        }
        if let Some(shadow::Rules { policy, settings, .. }) = self.shadow.clone() {
            text += &Self { policy, shard: settings, ..Self::default() }.to_yaml();
        }
        format!("{:016x}", hash_of(text.as_bytes()))
    }

    /// Returns the keys that `new` changes. Rules count as one key, `correlation.rules`, and a file that a key names
    /// belongs to that key.
    pub fn reload_diff(&self, new: &Self) -> ReloadDiff {
        let files = [
            ("limitsFile", self.limits_file.is_some() && self.access.limits != new.access.limits),
            ("shadowFile", self.shadow.is_some() && self.shadow != new.shadow),
        ];
        let [old, new] = [self, new].map(|config| {
            let mut found = BTreeMap::new();
            leaves("", config.tree(), &mut found);
            found
        });
        let mut diff = ReloadDiff::default();
        let changed = old.iter().filter(|(path, value)| new.get(*path) != Some(*value));
        let added = new.iter().filter(|(path, _)| !old.contains_key(*path));
        for (path, _) in changed.chain(added) {
            let list = if is_within(path, &AT_RUN_TIME) { &mut diff.at_run_time } else { &mut diff.at_restart };
            list.push(path.clone());
        }
        for (path, differs) in files {
            if differs && !diff.at_run_time.iter().any(|known| known == path) {
                diff.at_run_time.push(path.to_owned());
            }
        }
        diff
    }
}

/// FNV-1a: short, and the same on every machine. Collisions are no danger here.
fn hash_of(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Collects every key that is no section, by its path. A list is one key.
fn leaves(path: &str, value: Value, found: &mut BTreeMap<String, Value>) {
    if let Value::Object(members) = value {
        let dot = if path.is_empty() { "" } else { "." };
        for (key, member) in members {
            leaves(&format!("{path}{dot}{key}"), member, found);
        }
    } else {
        found.insert(path.to_owned(), value);
    }
}

/// Returns the hash of a configuration file.
///
/// # Errors
/// When the file cannot be read, or exceeds the limit of a configuration file.
pub fn file_hash(path: &Path) -> io::Result<u64> {
    if !std::fs::metadata(path)?.is_file() {
        // Opening a pipe may block.
        return Err(io::Error::other("it is not a regular file"));
    }
    super::read_file(path).map(|text| hash_of(text.as_bytes())).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documentation_marks_what_applies_at_run_time() {
        let (mut live_section, mut rows) = (false, 0);
        for line in include_str!("../../docs/configuration.md").lines() {
            if line.starts_with("## ") {
                live_section = false;
            }
            live_section |= line.starts_with("All keys of this section are live.");
            let Some((key, rest)) = line.strip_prefix("| `").and_then(|row| row.split_once('`')) else { continue };
            rows += 1;
            if !key.starts_with('-') {
                assert_eq!(
                    live_section || rest.contains("| live; "),
                    is_within(&key.replace("[]", ""), &AT_RUN_TIME),
                    "{key}"
                );
            }
        }
        assert!(rows > 100, "{rows}");
    }
}
