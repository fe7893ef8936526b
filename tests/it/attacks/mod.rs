//! Attacks of a client, each by plain HTTP, by TLS, and by TLS with pass-through.

mod bodies;
mod connections;
mod framing;
pub(crate) mod http2;
mod targets;

/// A path of the API server that has no events.
const PODS: &str = "/api/v1/namespaces/shop/pods";
