//! The settings of the HTTP interface.

use std::num::NonZeroUsize;
use std::time::Duration;

use super::Ack;

/// Settings of the HTTP interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// LIMIT: bytes of a body; larger ones are refused with 413. Default 3 MiB, as the API server.
    pub max_body_bytes: NonZeroUsize,
    /// LIMIT: connections at once; further ones wait to be accepted. Default 10,000.
    pub max_connections: NonZeroUsize,
    /// Longest time for a header or a body to arrive, and for a client to wait for the upstream's answer. Default 60 s.
    pub request_timeout: Duration,
    /// LIMIT: client names of events whose record has another name; the oldest is evicted. Default 100,000.
    pub max_aliases: NonZeroUsize,
    /// LIMIT: watches at once; further ones are refused with 429. Default 1,000.
    pub max_watches: NonZeroUsize,
    /// LIMIT: bytes of lists and other long answers that wait for their clients; further ones are refused with 429.
    /// Default 32 MiB.
    pub max_list_bytes: NonZeroUsize,
    /// LIMIT: lists that are read and encoded at once, of which a known caller has half; further ones wait, at most for
    /// the request timeout. Each takes up to 60 MiB, as YAML up to 100 MiB. Default 4.
    pub max_lists: NonZeroUsize,
    /// LIMIT: bytes of all bodies in memory; further ones are refused with 429. Default 32 MiB.
    pub max_read_bytes: NonZeroUsize,
    /// When a client is answered, if its request does not set it. Default accepted.
    pub ack: Ack,
    /// LIMIT: bytes that the message of an old-style event keeps if events are repaired that the API server would refuse;
    /// `None` refuses them. Default 16 KiB.
    pub repair: Option<NonZeroUsize>,
}

impl Settings {
    /// Default of `repair`, if it is on.
    pub const MESSAGE_BYTES: NonZeroUsize = const { NonZeroUsize::new(16 << 10).unwrap() };
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_body_bytes: const { NonZeroUsize::new(3 << 20).unwrap() },
            max_connections: const { NonZeroUsize::new(10_000).unwrap() },
            request_timeout: Duration::from_secs(60),
            max_aliases: const { NonZeroUsize::new(100_000).unwrap() },
            max_watches: const { NonZeroUsize::new(1_000).unwrap() },
            max_list_bytes: const { NonZeroUsize::new(32 << 20).unwrap() },
            max_lists: const { NonZeroUsize::new(4).unwrap() },
            max_read_bytes: const { NonZeroUsize::new(32 << 20).unwrap() },
            ack: Ack::Accepted,
            repair: Some(Self::MESSAGE_BYTES),
        }
    }
}
