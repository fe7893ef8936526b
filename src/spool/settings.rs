//! Settings of the spool.

use std::path::PathBuf;
use std::time::Duration;

/// Default delay of a commit, and the longest one in a drain.
pub(super) const COMMIT_INTERVAL: Duration = Duration::from_millis(10);

/// Settings of the spool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The directory of the file; `None` disables the spool.
    pub dir: Option<PathBuf>,
    /// Delay of a commit after a change, if no client waits for it; changes meanwhile share the commit. Default 10 ms.
    pub commit_interval: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { dir: None, commit_interval: COMMIT_INTERVAL }
    }
}
