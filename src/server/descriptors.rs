//! The process's limit of file descriptors, of which each connection takes one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// LIMIT: file descriptors. An exec plugin inherits the number, and may close as many one by one.
const DESCRIPTORS_MAX: u64 = 1 << 20;
/// File descriptors for all but the connections of clients.
const OTHER_DESCRIPTORS: u64 = 500;

/// Raises the number of file descriptors as far as the system allows, as Go's programs do. Shells and systemd give 1,024,
/// which clients' connections would use up: then also health, delivery and the spool fail.
pub fn raise_descriptors(connections: usize) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let most = maximum.unwrap_or(DESCRIPTORS_MAX).min(DESCRIPTORS_MAX);
    let Some(mut allowed) = current else { return };
    if allowed < most && setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum }).is_ok() {
        allowed = most;
    }
    if allowed < connections as u64 + OTHER_DESCRIPTORS {
        tracing::warn!(
            allowed,
            "ingest.maxConnections needs more file descriptors than the system allows: lower it, or raise the limit"
        );
    }
}
