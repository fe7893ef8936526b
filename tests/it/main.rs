//! The program in process, against an upstream that does everything an apiserver has ever been seen doing.
//!
//! No test waits on real time or depends on the clock: the ones with faults run under tokio's paused time, the ones over
//! sockets wait for a metric, the ledger or an answer with a deadline. Every scenario ends with an exact ledger.

mod support;

// Faults of the upstream, one by one and mixed: counts upstream equal occurrences accepted.
mod exact;
mod threads;
mod trouble;
mod faults;
mod forms;
mod refusals;
mod mix;
mod outage;
// What delivery promises: few writes, fair, within its limits.
mod pacing;
mod fairness;
mod storms;
mod limits;
mod shutdown;
// The group that records are written through.
mod group;
// What outlives a crash.
mod spool;
mod crash;
// The face over real sockets.
mod history;
mod http_refusals;
mod http_events;
mod http_clients;
mod recorded;
mod patches;
mod deletes;
mod websocket;
mod http_limits;
mod access;
mod api_groups;
mod ack;
mod batch;
mod admin;
mod explain;
mod explain_refusals;
mod shadow;
mod reload;
mod tls;
mod callers;
mod pages;
mod web_config;
mod tokens;
// Where the apiserver stood.
mod passthrough;
mod passthrough_callers;
mod passthrough_streams;
// Where the apiserver asks.
mod admission;
