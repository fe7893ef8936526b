//! eventweir: an event-aggregation proxy for Kubernetes.
#![allow(missing_docs, reason = "skeleton")]

pub mod clock;
pub mod config;
pub mod correlator;
pub mod deliver;
pub mod event;
pub mod ledger;
pub mod outbox;
pub mod shard;
pub mod status;
pub mod upstream;
