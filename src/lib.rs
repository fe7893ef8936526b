//! eventweir: an event-aggregation proxy for Kubernetes.
//!
//! Components POST raw Events as to the API server. A correlator per source folds them, and far fewer writes go
//! upstream. No occurrence vanishes silently. The modules below are in the order in which an event passes them;
//! `ARCHITECTURE.md` has the same path with the invariants.
//!
//! ```text
//! ingest ─ decode ─ validate ─ shard( correlator: aggregate → dedup → budget ─ outbox ) ─ deliver ─ upstream
//!                                        ▲                                        │            │
//!                                        └─────────── settle: name, count ────────┴── answer ──┘
//! ```

/// Declares an enum whose variants have a label each, for metrics, logs and answers, with the list `ALL` of its
/// variants.
macro_rules! labelled {
    ($(#[$meta:meta])* $vis:vis enum $name:ident { $($(#[$doc:meta])* $variant:ident = $label:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        $vis enum $name { $($(#[$doc])* $variant,)+ }

        impl $name {
            /// Every variant, in order.
            $vis const ALL: [Self; [$($label),+].len()] = [$(Self::$variant),+];

            /// Returns the label.
            $vis const fn label(self) -> &'static str {
                match self { $(Self::$variant => $label,)+ }
            }
        }
    };
}

// The edge that components talk to.
pub mod server;
pub mod passthrough;
pub mod access;
pub mod ingest;
pub mod event_log;
// The pure core: values, handed the time, no I/O.
pub mod event;
pub mod status;
pub mod shard;
pub mod correlator;
pub mod outbox;
pub mod explain;
pub mod ledger;
pub mod limits;
// The edge towards the API server.
pub mod deliver;
pub mod history;
pub mod upstream;
pub mod spool;
// Around it.
pub mod replay;
pub mod shadow;
pub mod clock;
pub mod metrics;
pub mod admin;
pub mod config;
pub mod app;
pub mod logging;
pub mod cli;
pub mod commands;
