//! Connections to the API server that many requests share.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hyper::body::Body as HttpBody;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use kube::client::Body;
use tower::BoxError;

use super::transport::Transport;

/// LIMIT: concurrent requests of one HTTP/2 connection; further ones use the next connection. An API server allows 100,
/// and each watch counts: beyond that, requests would wait for the end of watches.
const STREAMS: usize = 64;
/// LIMIT: HTTP/2 connections; further requests share the last one.
const CONNECTIONS: usize = 256;

/// HTTP/2 connections, each for a limited number of requests. Over HTTP/1.1 each request in flight has its own.
#[derive(Debug)]
pub(super) struct SharedConnections<B = Body> {
    https: HttpsConnector<HttpConnector>,
    timeout: Duration,
    connections: Box<[SharedConnection<B>]>,
}

#[derive(Debug)]
struct SharedConnection<B> {
    in_flight: Arc<AtomicUsize>,
    // Boxed, because few connections are used.
    transport: OnceLock<Box<Transport<B>>>,
}

/// A request's permit on a connection. Keep it until the end of the answer's body.
#[derive(Debug)]
pub struct StreamPermit(Arc<AtomicUsize>);

impl<B> SharedConnections<B>
where
    B: HttpBody<Data: Send, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    /// Connects over `https`; see [`Transport::over`].
    pub(super) fn over(https: HttpsConnector<HttpConnector>, timeout: Duration) -> Self {
        let connection = || SharedConnection { in_flight: Arc::default(), transport: OnceLock::new() };
        Self { https, timeout, connections: std::iter::repeat_with(connection).take(CONNECTIONS).collect() }
    }

    /// Takes a permit on the first connection that has one, otherwise on the last.
    pub(super) fn permit(&self) -> (StreamPermit, &Transport<B>) {
        let take = |connection: &&SharedConnection<B>| {
            let room = |taken: usize| (taken < STREAMS).then(|| taken.saturating_add(1));
            connection.in_flight.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok()
        };
        let connection = self.connections.iter().find(take).unwrap_or_else(|| {
            let last = self.connections.last().expect("there is one");
            last.in_flight.fetch_add(1, Ordering::Relaxed);
            last
        });
        let make = || Box::new(Transport::over(self.https.clone(), self.timeout));
        (StreamPermit(Arc::clone(&connection.in_flight)), connection.transport.get_or_init(make))
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
