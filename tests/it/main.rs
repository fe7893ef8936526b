//! The program in process, in front of an upstream with every observed fault of an apiserver.
//!
//! No test sleeps or depends on the clock. Tests with faults run under tokio's paused time; tests over
//! sockets wait for a metric, the ledger or an answer with a timeout. Every scenario ends with an exact ledger.

mod support;

// Faults of the upstream, single and mixed: counts in the upstream equal accepted occurrences.
mod exact;
mod threads;
mod trouble;
mod faults;
mod forms;
mod refusals;
mod odd;
mod mix;
mod outage;
mod chain;
// Delivery: few writes, fairness, limits.
mod pacing;
mod fairness;
mod storms;
mod limits;
mod shutdown;
// The API group of writes.
mod group;
// Crashes.
mod spool;
mod crash;
// Ingest over real sockets.
mod history;
mod http_refusals;
mod http_events;
mod http_clients;
mod recorded;
mod patches;
mod deletes;
mod walk;
mod websocket;
mod http_limits;
mod access;
mod api_groups;
mod ack;
mod batch;
mod admin;
mod explain;
mod explain_refusals;
mod in_cluster;
mod shadow;
mod reload;
mod tls;
mod callers;
mod pages;
mod web_config;
mod tokens;
// Attacks, by each way in.
mod attacks;
// Every metric.
mod metrics_audit;
// Pass-through.
mod passthrough;
mod passthrough_callers;
mod passthrough_counted;
mod passthrough_doubt;
mod passthrough_impersonation;
mod passthrough_shares;
mod passthrough_streams;
// Admission.
mod admission;
mod admission_adders;
mod admission_given_up;
