//! eventweir: an event-aggregation proxy for Kubernetes.
#![allow(missing_docs, reason = "skeleton")]

pub mod admin;
pub mod app;
pub mod cli;
pub mod clock;
pub mod commands;
pub mod config;
pub mod correlator;
pub mod deliver;
pub mod event;
pub mod event_log;
pub mod ingest;
pub mod ledger;
pub mod logging;
pub mod metrics;
pub mod outbox;
pub mod server;
pub mod shard;
pub mod status;
pub mod upstream;
