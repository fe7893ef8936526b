//! Who is at the other end of a connection.

use std::net::SocketAddr;

/// What a listener knows of a connection's other end. Each request has it among its extensions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Peer {
    /// Its address; absent for a Unix domain socket.
    pub address: Option<SocketAddr>,
    /// The client certificate that it proved to hold, verified against the client CA.
    pub certificate: Option<PeerCertificate>,
    /// Whether the connection is encrypted.
    pub is_tls: bool,
}

/// Whom a client certificate names, as the apiserver reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerCertificate {
    /// The subject's common name: the user.
    pub common_name: String,
    /// The subject's organizations: the groups.
    pub organizations: Vec<String>,
    /// The last second for which it is good, since 1970. A connection may outlive it.
    pub expires: i64,
}
