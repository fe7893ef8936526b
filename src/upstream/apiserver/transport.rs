//! HTTP to the API server: HTTP/2 with one connection if TLS offers it, otherwise HTTP/1.1 with one connection per
//! request in flight. kube's connector has only HTTP/1.1.
//!
//! A handshake before the first request determines the protocol. Without it, hyper's client opens a connection for each
//! request of a burst that comes before the first handshake is done.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::FutureExt as _;
use http::uri::Scheme;
use http::{Request, Response, Uri};
use hyper::body::{Body as HttpBody, Incoming};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::connect::dns::GaiResolver;
use hyper_util::client::legacy::connect::{Connection, HttpConnector};
use hyper_util::client::legacy::{Builder, Client};
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use kube::client::ConfigExt as _;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio::time::{Sleep, sleep};
use tower::util::BoxCloneSyncService;
use tower::{BoxError, ServiceExt as _};

use super::connect::{Error, Shared, causes};

pub(super) type Connector = BoxCloneSyncService<Uri, MaybeHttpsStream<TokioIo<TcpStream>>, BoxError>;

/// LIMIT: shortest silence before a ping, with any deadline of requests: a slow answer to a ping is not a dead peer.
const SILENCE_MIN: Duration = Duration::from_secs(1);
/// LIMIT: longest silence before a ping, and before a probe of TCP; client-go's value.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// LIMIT: bytes of one answer that are received before its reader takes them; more would let clients that do not read
/// fill the memory. With the buffers of both connections it takes up to 512 KiB.
const STREAM_WINDOW: u32 = 128 << 10;
/// LIMIT: such bytes of one HTTP/2 connection. Every stream has room, so that a slow reader delays no other answer: an
/// API server allows 100 streams.
const CONNECTION_WINDOW: u32 = 128 * STREAM_WINDOW;
/// LIMIT: bytes of the header of an answer over HTTP/2. A longer one is 502; much longer ones end the connection.
const HEADER_BYTES: u32 = 256 << 10;

/// LIMIT: time after a failed attempt to connect in which further ones fail at once. Otherwise requests that have waited
/// for it would try again, one after another, and each would take `timeout`.
const PAUSE: Duration = Duration::from_millis(500);

/// The connections to one API server.
#[derive(Debug)]
pub(super) struct Transport<B> {
    probe: Connector,
    /// One connection, which hyper shares. One request opens a new one while the others wait.
    http2: Client<Connector, B>,
    /// LIMIT: one connection per request in flight, which the gate limits; idle ones are closed after `timeout`.
    http1: Client<Connector, B>,
    /// Whether the API server has HTTP/2; empty before the first request, and after a change was detected.
    multiplexes: ArcSwap<OnceCell<bool>>,
}

/// The error of a request that was not sent, because there was no connection.
#[derive(Debug, thiserror::Error)]
#[error("connecting to the API server")]
pub(super) struct NoConnection(#[source] BoxError);

/// The error of a connection without HTTP/2, after the API server had it.
#[derive(Debug, thiserror::Error)]
#[error("the API server no longer offers HTTP/2")]
struct NotHttp2;

impl<B> Transport<B>
where
    B: HttpBody<Data: Send, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    /// Connects over `https`. `timeout` limits connecting, with TLS. An HTTP/2 connection that is silent for that long,
    /// idle or not, is pinged, and closed after half that time again. Otherwise a dead connection would fail every
    /// request until TCP closes it. HTTP/1.1 has no pings, so an idle connection is used again for that long only: once
    /// a request has failed, no dead one is left.
    pub(super) fn over(https: HttpsConnector<HttpConnector>, timeout: Duration) -> Self {
        let silence = timeout.clamp(SILENCE_MIN, SILENCE_MAX);
        let mut builder = Client::builder(TokioExecutor::new());
        builder.timer(TokioTimer::new()).pool_timer(TokioTimer::new());
        builder
            .http2_initial_stream_window_size(STREAM_WINDOW)
            .http2_initial_connection_window_size(CONNECTION_WINDOW)
            .http2_max_header_list_size(HEADER_BYTES)
            .http2_keep_alive_interval(silence)
            .http2_keep_alive_timeout(silence / 2)
            .http2_keep_alive_while_idle(true);
        // LIMIT: the same over HTTP/1.1, and bytes of the header of an answer there.
        builder.http1_max_buf_size(STREAM_WINDOW as usize);
        let any = connector(https.clone(), timeout, |_| Ok::<_, Infallible>(()));
        let http2 = connector(https, timeout, |http2| if http2 { Ok(()) } else { Err(NotHttp2) });
        Self {
            probe: pausing(any.clone()),
            http2: Builder::clone(&builder).http2_only(true).build(pausing(http2)),
            http1: builder.pool_idle_timeout(silence).build(any),
            multiplexes: ArcSwap::default(),
        }
    }

    /// Sends a request and waits for the head of the answer. The first request determines the protocol.
    pub(super) async fn send(&self, request: Request<B>) -> Result<Response<Incoming>, BoxError> {
        let (multiplexes, uri) = (self.multiplexes.load_full(), request.uri().clone());
        if !*multiplexes.get_or_try_init(|| self.ask(uri)).await? {
            return Ok(self.http1.request(request).await?);
        }
        let result = self.http2.request(request).await;
        if result.as_ref().is_err_and(|fault| causes(fault).any(|error| error.is::<NotHttp2>())) {
            self.multiplexes.store(Arc::default());
        }
        Ok(result?)
    }

    /// Returns whether the API server has HTTP/2.
    async fn ask(&self, uri: Uri) -> Result<bool, NoConnection> {
        if uri.scheme() != Some(&Scheme::HTTPS) {
            return Ok(false);
        }
        let connection = self.probe.clone().oneshot(uri).await.map_err(NoConnection)?;
        Ok(connection.connected().is_negotiated_h2())
    }
}

/// Whether the API server has not processed a request that it received (RFC 9113, 8.7): it closes the connection with a
/// GOAWAY, as `--goaway-chance` and its stop make it, or has no room for the stream.
pub(super) fn is_unprocessed(fault: &(dyn std::error::Error + 'static)) -> bool {
    causes(fault).any(|error| {
        // The `h2` crate gives the error of a GOAWAY only to streams that it leaves unprocessed; hyper rarely also to one
        // that is sent just then.
        let of_stream = |error: &h2::Error| error.is_go_away() || error.reason() == Some(h2::Reason::REFUSED_STREAM);
        error.downcast_ref::<h2::Error>().is_some_and(|error| error.is_remote() && of_stream(error))
    })
}

/// The protocols that are offered to the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocols {
    /// HTTP/2 and HTTP/1.1.
    All,
    /// HTTP/1.1, the only one with protocol upgrades.
    Http1,
}

pub(super) fn https_connector(
    config: &kube::Config,
    protocols: Protocols,
    timeout: Duration,
) -> Result<HttpsConnector<HttpConnector>, Error> {
    let tls = config.rustls_client_config()?;
    let mut builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    if let Some(name) = &config.tls_server_name {
        let name = name.clone().try_into().map_err(|_not_a_name| Error::ServerName(name.clone()))?;
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    let tcp = tcp(GaiResolver::new(), timeout);
    Ok(match protocols {
        Protocols::All => builder.enable_all_versions().wrap_connector(tcp),
        Protocols::Http1 => builder.enable_http1().wrap_connector(tcp),
    })
}

/// Returns the connector of TCP. The addresses of a name share `timeout`, so that a dead one does not take all of it.
pub(super) fn tcp<R>(resolver: R, timeout: Duration) -> HttpConnector<R> {
    let mut tcp = HttpConnector::new_with_resolver(resolver);
    tcp.enforce_http(false); // https is the layer above
    tcp.set_nodelay(true); // small frames would wait for the peer's delayed acknowledgements
    tcp.set_connect_timeout(Some(timeout));
    // A peer that has vanished without a word would keep a connection with an upgraded protocol for ever.
    tcp.set_keepalive(Some(SILENCE_MAX));
    tcp.set_keepalive_interval(Some(SILENCE_MAX));
    tcp
}

/// Whether the proxy is that of the environment, and `NO_PROXY` excepts the API server. kube ignores `NO_PROXY`.
#[expect(clippy::disallowed_methods, reason = "as kube, which does not say where a proxy's address is from")]
pub(super) fn is_spared(url: &Uri, proxy: &Uri) -> bool {
    let environment = ["HTTPS_PROXY", "https_proxy"].map(|name| std::env::var(name).ok());
    let is_of_environment =
        environment.iter().flatten().any(|text| text.parse().is_ok_and(|known: Uri| known == *proxy));
    is_of_environment && Matcher::from_env().intercept(url).is_none()
}

pub(super) fn connector<E: Into<BoxError> + 'static>(
    https: HttpsConnector<HttpConnector>,
    timeout: Duration,
    accept: impl Fn(bool) -> Result<(), E> + Copy + Send + Sync + 'static,
) -> Connector {
    BoxCloneSyncService::new(tower::service_fn(move |uri: Uri| {
        let connecting = tokio::time::timeout(timeout, https.clone().oneshot(uri));
        async move {
            let connection = connecting.await??;
            let http2 = connection.connected().is_negotiated_h2();
            tracing::debug!(http2, "connected to the API server");
            accept(http2).map_err(Into::into)?;
            Ok(connection)
        }
    }))
}

/// Returns a connector of one connection that many requests share. See [`PAUSE`].
fn pausing(connector: Connector) -> Connector {
    /// The newest failure, and the end of its pause.
    type Failed = Option<(Pin<Box<Sleep>>, Shared)>;
    let failed = Arc::<Mutex<Failed>>::default();
    BoxCloneSyncService::new(tower::service_fn(move |uri: Uri| {
        let (connector, failed) = (connector.clone(), Arc::clone(&failed));
        async move {
            if let Some((pause, fault)) = &mut *failed.lock()
                && pause.as_mut().now_or_never().is_none()
            {
                return Err(fault.clone().into());
            }
            connector.oneshot(uri).await.map_err(|fault| {
                let fault = Shared::from(fault);
                *failed.lock() = Some((Box::pin(sleep(PAUSE)), fault.clone()));
                fault.into()
            })
        }
    }))
}
