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
const LANES: usize = 256;

/// HTTP/2 connections, each for a limited number of requests. Over HTTP/1.1 each request in flight has its own.
#[derive(Debug)]
pub(super) struct Lanes<B = Body> {
    https: HttpsConnector<HttpConnector>,
    timeout: Duration,
    lanes: Box<[Lane<B>]>,
}

#[derive(Debug)]
struct Lane<B> {
    in_flight: Arc<AtomicUsize>,
    // Boxed, because few lanes are used.
    transport: OnceLock<Box<Transport<B>>>,
}

/// A request's permit on a connection. Keep it until the end of the answer's body.
#[derive(Debug)]
pub struct Seat(Arc<AtomicUsize>);

impl<B> Lanes<B>
where
    B: HttpBody<Data: Send, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    /// Connects over `https`; see [`Transport::over`].
    pub(super) fn over(https: HttpsConnector<HttpConnector>, timeout: Duration) -> Self {
        let lane = || Lane { in_flight: Arc::default(), transport: OnceLock::new() };
        Self { https, timeout, lanes: std::iter::repeat_with(lane).take(LANES).collect() }
    }

    /// Takes a permit on the first connection that has one, otherwise on the last.
    pub(super) fn seat(&self) -> (Seat, &Transport<B>) {
        let take = |lane: &&Lane<B>| {
            let room = |taken: usize| (taken < STREAMS).then(|| taken.saturating_add(1));
            lane.in_flight.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok()
        };
        let lane = self.lanes.iter().find(take).unwrap_or_else(|| {
            let last = self.lanes.last().expect("there is one");
            last.in_flight.fetch_add(1, Ordering::Relaxed);
            last
        });
        let make = || Box::new(Transport::over(self.https.clone(), self.timeout));
        (Seat(Arc::clone(&lane.in_flight)), lane.transport.get_or_init(make))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
