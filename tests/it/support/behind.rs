//! An apiserver over real connections with a handler per test, and a program in pass-through in front of it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use http::{Request, StatusCode, Version};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;

use super::app::{Program, start_with_kubeconfig};

/// Credentials of eventweir itself.
pub(crate) const OURS: &str = "Bearer ours";
/// Streams per HTTP/2 connection, as in an apiserver.
const STREAMS: u32 = 100;
/// Bytes with which an HTTP/2 connection begins.
const PREFACE: usize = 24;

type Answering = Pin<Box<dyn Future<Output = Response> + Send>>;
type Handler = Arc<dyn Fn(Request<Incoming>) -> Answering + Send + Sync>;

/// A received request.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) line: String,
    pub(crate) version: Version,
    pub(crate) headers: Vec<(String, String)>,
    /// Number of its connection.
    pub(crate) connection: usize,
    /// Whether the connection showed a client certificate.
    pub(crate) has_certificate: bool,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Whether it has eventweir's own credentials.
    pub(crate) fn is_ours(&self) -> bool {
        self.header("authorization") == Some(OURS)
    }
}

/// A server, stopped when dropped.
pub(crate) struct Behind {
    pub(crate) address: SocketAddr,
    is_tls: bool,
    seen: Arc<Mutex<Vec<Seen>>>,
    _tasks: JoinSet<()>,
}

impl Behind {
    /// Starts it without TLS, and so with HTTP/1.1 only.
    pub(crate) async fn plain<F: Future<Output = Response> + Send + 'static>(
        handler: impl Fn(Request<Incoming>) -> F + Send + Sync + 'static,
    ) -> Self {
        Self::at(([127, 0, 0, 1], 0).into(), handler).await
    }

    /// Starts it without TLS at an address.
    pub(crate) async fn at<F: Future<Output = Response> + Send + 'static>(
        address: SocketAddr,
        handler: impl Fn(Request<Incoming>) -> F + Send + Sync + 'static,
    ) -> Self {
        Self::start(address, None, Arc::new(move |request| Box::pin(handler(request)))).await
    }

    /// Starts it with TLS that offers these protocols and requests a client certificate.
    pub(crate) async fn tls<F: Future<Output = Response> + Send + 'static>(
        offers: &[&str],
        handler: impl Fn(Request<Incoming>) -> F + Send + Sync + 'static,
    ) -> Self {
        let handler: Handler = Arc::new(move |request| Box::pin(handler(request)));
        Self::start(([127, 0, 0, 1], 0).into(), Some(acceptor(offers)), handler).await
    }

    /// Starts it with HTTP/2 whose first connection ends with a GOAWAY that processes no request. Others answer each
    /// request with an empty 200 once its headers have arrived.
    pub(crate) async fn going_away() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let (mut connections, mut is_going) = (JoinSet::new(), true);
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let mut stream = acceptor(&["h2"]).accept(stream).await.unwrap();
                // The handshake that determines the protocol sends nothing.
                if stream.read_exact(&mut [0; PREFACE]).await.is_ok() {
                    connections.spawn(frames(stream, std::mem::take(&mut is_going)));
                }
            }
        });
        Self { address, is_tls: true, seen: Arc::default(), _tasks: tasks }
    }

    async fn start(address: SocketAddr, acceptor: Option<TlsAcceptor>, handler: Handler) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let is_tls = acceptor.is_some();
        let (seen, mut tasks) = (Arc::<Mutex<Vec<Seen>>>::default(), JoinSet::new());
        let log = Arc::clone(&seen);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            for connection in 0.. {
                let (stream, _) = listener.accept().await.unwrap();
                let (acceptor, handler, log) = (acceptor.clone(), Arc::clone(&handler), Arc::clone(&log));
                connections.spawn(async move {
                    let Some(acceptor) = acceptor else {
                        return serve(stream, connection, false, handler, log).await;
                    };
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let has_certificate = stream.get_ref().1.peer_certificates().is_some();
                    serve(stream, connection, has_certificate, handler, log).await;
                });
            }
        });
        Self { address, is_tls, seen, _tasks: tasks }
    }

    /// Returns all requests so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().clone()
    }

    /// Returns the forwarded requests of clients.
    pub(crate) fn passed_on(&self) -> Vec<Seen> {
        self.seen().into_iter().filter(|seen| !seen.is_ours()).collect()
    }

    /// Starts a program in pass-through in front of it, with more configuration.
    pub(crate) async fn program(&self, passthrough: &str, more: &str) -> Program {
        self.program_as("", passthrough, more).await
    }

    /// Starts a program whose kubeconfig has these further members of its user.
    pub(crate) async fn program_as(&self, user: &str, passthrough: &str, more: &str) -> Program {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kubeconfig");
        let fixture = |name: &str| format!("{}/tests/fixtures/tls/{name}", env!("CARGO_MANIFEST_DIR"));
        let [ca, certificate, key] = ["ca.crt", "client.crt", "client.key"].map(fixture);
        let [scheme, tls] = if self.is_tls { ["https", "tls-server-name: apiserver.test"] } else { ["http", ""] };
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: x\ncontexts: [{{name: x, context: {{cluster: c, user: u}}}}]\n\
             clusters: [{{name: c, cluster: {{server: '{scheme}://{}', certificate-authority: '{ca}', {tls}}}}}]\n\
             users: [{{name: u, user: {{client-certificate: '{certificate}', client-key: '{key}', token: ours, {user}}}}}]\n",
            self.address
        );
        std::fs::write(&path, text).unwrap();
        let insecure = !more.contains("auth:");
        let yaml = format!(
            "upstream: {{kind: apiserver, history: off}}\n\
             passthrough: {{enabled: on, insecure: {insecure}, {passthrough}}}\n{more}"
        );
        start_with_kubeconfig(&path, &yaml).await
    }
}

fn acceptor(offers: &[&str]) -> TlsAcceptor {
    let fixture = |name: &str| format!("{}/tests/fixtures/tls/{name}", env!("CARGO_MANIFEST_DIR"));
    let certificate = |name| CertificateDer::from_pem_file(fixture(name)).unwrap();
    let mut clients = RootCertStore::empty();
    clients.add(certificate("ca.crt")).unwrap();
    let verifier = WebPkiClientVerifier::builder(Arc::new(clients)).allow_unauthenticated().build().unwrap();
    let key = PrivateKeyDer::from_pem_file(fixture("server.key")).unwrap();
    let config = ServerConfig::builder().with_client_cert_verifier(verifier);
    let mut config = config.with_single_cert(vec![certificate("server.crt")], key).unwrap();
    config.alpn_protocols = offers.iter().map(|name| name.as_bytes().to_vec()).collect();
    TlsAcceptor::from(Arc::new(config))
}

async fn serve<S>(stream: S, connection: usize, has_certificate: bool, handler: Handler, log: Arc<Mutex<Vec<Seen>>>)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        log.lock().push(Seen {
            line: format!("{} {}", request.method(), request.uri().path_and_query().unwrap()),
            version: request.version(),
            headers: request.headers().iter().map(|(name, value)| (name.to_string(), text(value))).collect(),
            connection,
            has_certificate,
        });
        let answering = handler(request);
        async move { Ok::<_, std::convert::Infallible>(answering.await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http2().max_concurrent_streams(STREAMS);
    // Clients may disconnect at any time.
    let _ended = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
}

/// Answers frames of HTTP/2 (RFC 9113).
async fn frames(mut stream: TlsStream<TcpStream>, is_going: bool) {
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    const GOAWAY: u8 = 7;
    let frame = |kind: u8, flags: u8, stream: [u8; 4], payload: &[u8]| {
        let length = u8::try_from(payload.len()).unwrap();
        [&[0, 0, length, kind, flags][..], &stream, payload].concat()
    };
    stream.write_all(&frame(SETTINGS, 0, [0; 4], &[])).await.unwrap();
    let mut head = [0; 9];
    while stream.read_exact(&mut head).await.is_ok() {
        let [long, middle, short, kind, flags, id @ ..] = head;
        let length = usize::from(long) << 16 | usize::from(middle) << 8 | usize::from(short);
        stream.read_exact(&mut vec![0; length]).await.unwrap();
        let reply = match kind {
            SETTINGS if flags == 0 => frame(SETTINGS, 1, [0; 4], &[]),
            // No stream is processed, and there is no error.
            HEADERS if is_going => frame(GOAWAY, 0, [0; 4], &[0; 8]),
            // `:status: 200` in HPACK, the end of the headers and of the stream.
            HEADERS => frame(HEADERS, 5, id, &[0x88]),
            _ => continue,
        };
        stream.write_all(&reply).await.unwrap();
    }
}

/// Returns an answer with a code and a body.
pub(crate) fn answer(code: u16, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    response
}

/// Answers a create of an event like an apiserver.
pub(crate) async fn created(request: Request<Incoming>) -> Response {
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let mut event: Value = serde_json::from_slice(&body).unwrap();
    event["metadata"]["uid"] = "u-1".into();
    event["metadata"]["resourceVersion"] = "7".into();
    answer(201, event.to_string())
}
