//! The configuration: a YAML file and the flags become one checked [`Config`], or a list of all errors.
//!
//! [`RawConfig`] is what the user wrote. [`Config`] is what the program runs on: no absent values, every number within
//! its range. [`Config::from_raw`] turns one into the other and is pure; loading and [`file_hash`] read files.
//! Defaults come from each module's own `Settings`. One line in `read.rs`, `auth.rs` or `correlation.rs` per key gives
//! its member and its form. It serves reading, `--print-config`, the differences at a reload, and the schema.
//! `docs/configuration.md` describes every key, and a test compares it with the schema.

#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

mod admin_web;
mod auth;
mod correlation;
mod effective;
mod error;
mod memory;
mod parts;
mod raw;
mod read;
mod section;
mod tls;
mod units;
mod values;

use std::io::Read;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

pub use admin_web::{AdminWeb, load_web};
pub use effective::{ReloadDiff, file_hash};
pub use error::Errors;
pub use memory::{Memory, container_memory};
pub use parts::{Admission, Backend, Log, LogFormat, Passthrough, Shards, Shutdown, Tls, Upstream, Writes};
pub use raw::RawConfig;
pub use units::parse_duration;

use crate::access;
use crate::correlator::Policy;
use crate::deliver::GateSettings;
use crate::event_log::Target;
use crate::ingest;
use crate::server::Address;
use crate::shadow;
use crate::shard;
use crate::spool;
use error::{Error, Problem};
use raw::Origin;
use smol_str::SmolStr;

/// LIMIT: bytes of the configuration file; a larger one is refused.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

/// The whole configuration, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Address to which components post their events. Default `127.0.0.1:8080`.
    pub listen: Address,
    /// Whether other machines may reach `listen` without authentication. Default `false`.
    pub insecure_listen: bool,
    /// Address of metrics and health. Default `127.0.0.1:9090`.
    pub admin_listen: SocketAddr,
    /// File with TLS, users and headers of `admin_listen`, in Prometheus' format.
    pub admin_web_config_file: Option<PathBuf>,
    /// Regular expressions of the hosts that requests to a loopback address may name. Default its names and addresses.
    pub accept_hosts: Vec<SmolStr>,
    /// TLS for clients. Default none.
    pub tls: Tls,
    /// The program's own log.
    pub log: Log,
    /// Where to write every accepted occurrence as a JSON line. Default nowhere.
    pub event_log: Option<Target>,
    /// The upstream, which stores records.
    pub upstream: Upstream,
    /// How many requests the upstream gets, and when; `upstream.maxInFlight`, `qps`, `burst` and `backoff` in the file.
    pub gate: GateSettings,
    /// How events are correlated.
    pub policy: Policy,
    /// The shards with their outbox, whose backoff is the gate's.
    pub shard: shard::Settings,
    /// The spool, which keeps what waits on a disk.
    pub spool: spool::Settings,
    /// Limits and answers of client requests.
    pub ingest: ingest::Settings,
    /// Pass-through of requests to the apiserver.
    pub passthrough: Passthrough,
    /// The admission webhook for events.
    pub admission: Admission,
    /// Rights and limits of the callers of `listen`; `auth`, `limits` and `fairness` in the file. Default every caller,
    /// without limits.
    pub access: access::Settings,
    /// File of `access.limits`. Default none.
    pub limits_file: Option<PathBuf>,
    /// A second configuration, which writes nothing. Default none.
    pub shadow: Option<shadow::Rules>,
    /// Memory that the program may take; limits that the file does not set follow from it. Default the container's.
    pub memory: Memory,
    /// Timeouts of the orderly stop.
    pub shutdown: Shutdown,
    /// Number of shards. Default eight per core.
    pub shards: Shards,
}

/// The flags of the command line, which override the file's values and are checked in the same way.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Overrides {
    /// The given flags: the name of each, the path of its key, and its value.
    pub flags: Vec<(&'static str, &'static str, String)>,
    /// The memory of the container that the program runs in.
    pub container_memory: Option<NonZeroUsize>,
}

/// Reads the file at `path`, or only defaults without one, and applies the flags.
///
/// # Errors
/// Everything that is wrong, at once: the file cannot be read, is larger than [`FILE_BYTES_MAX`], is no YAML, or holds
/// unknown keys or values that are not allowed.
pub fn load(path: Option<&Path>, overrides: &Overrides, files: Files) -> Result<Config, Errors> {
    Config::checked(read_raw(path, overrides)?, overrides, files)
}

/// Does the same while the program runs with the configuration `active`.
///
/// # Errors
/// Everything that is wrong, at once. Also an empty file that changes `active`, because an editor may be about to write
/// it, and a pipe, also one that the file names.
pub fn load_again(path: Option<&Path>, overrides: &Overrides, active: &Config) -> Result<Config, Errors> {
    let Some(path) = path else { return load(None, overrides, Files::Read) };
    if is_read_once(path) {
        return Err(fault(path, "is not a regular file, so it was read at the start only"));
    }
    let text = read_file(path).map_err(|reason| fault(path, reason))?;
    let new = Config::checked(RawConfig::parse(&path.display().to_string(), &text)?, overrides, Files::ReadAgain)?;
    if text.trim().is_empty() && !active.reload_diff(&new).is_empty() {
        return Err(fault(path, "is empty; write `{}` for the defaults"));
    }
    Ok(new)
}

/// What happens to the files that a configuration names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Files {
    /// None is opened: only correlation and outbox are used. The rest may be of another machine or need flags: its keys
    /// and values are checked, but not how they fit together.
    Foreign,
    /// None is opened.
    Ignored,
    /// Those of limits and of the shadow configuration are read.
    Read,
    /// The same, but no pipe: it would block the task that handles signals.
    ReadAgain,
    /// In addition, those that a start needs are checked.
    Checked,
}

/// Whether `path` is a pipe or another file that cannot be read twice. Opening one may block.
pub fn is_read_once(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file())
}

/// Reads the file at `path`. If it cannot be read, the errors also name the flags with values that no file allows.
fn read_raw(path: Option<&Path>, overrides: &Overrides) -> Result<RawConfig, Errors> {
    let Some(path) = path else { return Ok(RawConfig::default()) };
    let read = read_file(path).map_err(|reason| fault(path, reason));
    let read = read.and_then(|text| RawConfig::parse(&path.display().to_string(), &text));
    read.map_err(|mut errors| {
        let of_flags = Config::from_raw(RawConfig::default(), overrides).err().unwrap_or_default();
        errors.append(of_flags.of_values());
        errors
    })
}

/// Returns the error of a file as a whole.
fn fault(path: &Path, reason: impl Into<String>) -> Errors {
    Error::new(&path.display().to_string(), Origin::Nowhere, String::new(), Problem::File(reason.into())).into()
}

fn read_file(path: &Path) -> Result<String, String> {
    let file = std::fs::File::open(path).map_err(|error| format!("cannot be opened: {error}"))?;
    let mut bytes = Vec::new();
    let read = file.take(FILE_BYTES_MAX.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|error| format!("cannot be read: {error}"))?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > FILE_BYTES_MAX) {
        return Err("is larger than 1 MiB, the limit of a configuration file".to_owned());
    }
    let wrong = |error: std::string::FromUtf8Error| error.utf8_error().valid_up_to().saturating_add(1);
    String::from_utf8(bytes).map_err(|error| format!("is not UTF-8 at byte {}", wrong(error)))
}
