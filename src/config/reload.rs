//! Following the file: whether it changed, and which changes take effect without a restart. The polling is the app's.

use std::io;
use std::path::Path;
use std::time::SystemTime;

use super::Config;
use super::effective::{hash_of, leaves};

/// Fields, and sections of fields, that a running process takes over.
const AT_RUN_TIME: [&str; 17] = [
    "correlation",
    "outbox",
    "explain",
    "log.level",
    "upstream.maxInFlight",
    "upstream.qps",
    "upstream.burst",
    "upstream.backoff",
    "shutdown",
    "auth.policy",
    "auth.allowPaths",
    "auth.callerAnnotation",
    "auth.sourceBinding",
    "limits",
    "limitsFile",
    "shadowFile",
    "fairness",
];

/// Which fields differ between two configurations, by what it takes for the new one to apply.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReloadDiff {
    /// Paths of fields that apply at once.
    pub at_run_time: Vec<String>,
    /// Paths of fields that apply after a restart only.
    pub at_restart: Vec<String>,
}

impl ReloadDiff {
    /// True when nothing differs.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.at_run_time.is_empty() && self.at_restart.is_empty()
    }
}

impl Config {
    /// Which fields `new` changes. Rules count as one field, `correlation.rules`.
    #[must_use]
    pub fn reload_diff(&self, new: &Self) -> ReloadDiff {
        let (old, new) = (leaves(self), leaves(new));
        let mut diff = ReloadDiff::default();
        let changed = old.iter().filter(|(path, value)| new.get(*path) != Some(*value));
        let added = new.iter().filter(|(path, _)| !old.contains_key(*path));
        for (path, _) in changed.chain(added) {
            let list = if applies_at_run_time(path) { &mut diff.at_run_time } else { &mut diff.at_restart };
            list.push(path.clone());
        }
        diff
    }
}

fn applies_at_run_time(path: &str) -> bool {
    AT_RUN_TIME
        .iter()
        .any(|field| path.strip_prefix(field).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
}

/// What a file was like when it was last looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileStamp {
    modified: Option<SystemTime>,
    length: u64,
    content: u64,
}

impl FileStamp {
    /// Looks at the file. Take the stamp before loading, so that a change in between is seen at the next look.
    ///
    /// # Errors
    /// When the file cannot be read, or is longer than a configuration may be.
    pub fn of(path: &Path) -> io::Result<Self> {
        let (modified, length) = outside(path)?;
        let text = super::read_file(path).map_err(io::Error::other)?;
        Ok(Self { modified, length, content: hash_of(text.as_bytes()) })
    }

    /// Looks again, and tells whether the content differs. The content is read only when length or time of change differ,
    /// as they do when a `ConfigMap`'s link is swapped.
    ///
    /// # Errors
    /// When the file cannot be read; the stamp then stays as it was.
    pub fn refresh(&mut self, path: &Path) -> io::Result<bool> {
        if outside(path)? == (self.modified, self.length) {
            return Ok(false);
        }
        let before = std::mem::replace(self, Self::of(path)?);
        Ok(before.content != self.content)
    }
}

/// Time of change and length.
fn outside(path: &Path) -> io::Result<(Option<SystemTime>, u64)> {
    let metadata = std::fs::metadata(path)?;
    Ok((metadata.modified().ok(), metadata.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documentation_marks_what_applies_at_run_time() {
        let mut live_section = false;
        for line in include_str!("../../docs/configuration.md").lines() {
            if line.starts_with("## ") {
                live_section = false;
            }
            live_section |= line.starts_with("All keys of this section are live.");
            let Some((key, rest)) = line.strip_prefix("| `").and_then(|row| row.split_once('`')) else { continue };
            if !key.starts_with('-') {
                assert_eq!(
                    live_section || rest.contains("| live; "),
                    applies_at_run_time(&key.replace("[]", "")),
                    "{key}"
                );
            }
        }
    }
}
