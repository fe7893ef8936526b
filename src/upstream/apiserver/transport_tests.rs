//! The whole client against an API server in this process: TCP, TLS with a client certificate, ALPN, HTTP/2 and
//! HTTP/1.1.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::stream;
use http::{Response, Uri, Version};
use http_body_util::{BodyExt, Either, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use parking_lot::Mutex;
use serde_json::json;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Barrier, Notify};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use super::tests::{create, retry, stored, stored_json, without_cause};
use super::*;
use crate::outbox::{Applied, Fault};

/// LIMIT: duration of a wait in a test.
const SOON: Duration = Duration::from_secs(30);

/// Requests at once over one HTTP/2 connection, as at an API server.
const STREAMS: u32 = 100;

/// The body of an answer: whole, or without an end.
type Answered = Either<String, StreamBody<stream::Pending<Result<Frame<Bytes>, Infallible>>>>;

/// The treatment of a request.
#[derive(Debug, Clone)]
enum Act {
    Answer,
    /// Answers 401.
    Refuse,
    /// Begins an answer that does not end.
    Watch,
    /// Answers when all requests of the barrier have arrived.
    Together(Arc<Barrier>),
    /// Leaves the request unprocessed.
    RefuseStream,
    /// Closes the connection.
    HangUp,
    /// Stops reading and writing, like a host without power.
    Freeze,
}

/// The connections and requests of the API server.
#[derive(Debug, Default)]
struct Seen {
    /// The ALPN protocol of each connection on which TLS was established.
    connections: Vec<String>,
    /// The client's certificate on each of them.
    clients: Vec<CertificateDer<'static>>,
    /// The number of the connection, and the HTTP version, of each request.
    requests: Vec<(usize, Version)>,
    credentials: BTreeSet<String>,
    agents: BTreeSet<String>,
}

struct FakeApiserver {
    address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
    offers: Arc<Mutex<Vec<&'static str>>>,
    /// Further authorities of clients.
    trusts: Arc<Mutex<Vec<CertificateDer<'static>>>>,
    // Dropping it stops the server.
    _tasks: JoinSet<()>,
}

fn fixture(name: &str) -> String {
    format!("{}/tests/fixtures/tls/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn tls(offers: &[&str], more: &[CertificateDer<'static>]) -> TlsAcceptor {
    let certificate = |name| CertificateDer::from_pem_file(fixture(name)).unwrap();
    let mut clients = RootCertStore::empty();
    clients.add(certificate("ca.crt")).unwrap();
    for root in more {
        clients.add(root.clone()).unwrap();
    }
    let verifier = WebPkiClientVerifier::builder(Arc::new(clients)).build().unwrap();
    let key = PrivateKeyDer::from_pem_file(fixture("server.key")).unwrap();
    let config = ServerConfig::builder().with_client_cert_verifier(verifier);
    let mut config = config.with_single_cert(vec![certificate("server.crt")], key).unwrap();
    config.alpn_protocols = offers.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(config).into()
}

impl FakeApiserver {
    async fn start(offers: &[&'static str], act: impl Fn(usize) -> Act + Clone + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, offers) = (Arc::<Mutex<Seen>>::default(), Arc::new(Mutex::new(offers.to_vec())));
        let trusts = Arc::<Mutex<Vec<_>>>::default();
        let (log, offered, trusted) = (Arc::clone(&seen), Arc::clone(&offers), Arc::clone(&trusts));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let acceptor = tls(&offered.lock(), &trusted.lock());
                connections.spawn(serve(stream, acceptor, Arc::clone(&log), act.clone()));
            }
        });
        Self { address, seen, offers, trusts, _tasks: tasks }
    }

    async fn client(&self, timeout: Duration) -> Apiserver {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kubeconfig");
        write_kubeconfig(&path, self.address, NAME);
        connect(&path, timeout).await.unwrap()
    }
}

async fn serve(stream: TcpStream, acceptor: TlsAcceptor, seen: Arc<Mutex<Seen>>, act: impl Fn(usize) -> Act + Clone) {
    // Ignores connections without a complete handshake.
    let Ok(stream) = acceptor.accept(stream).await else { return };
    let session = stream.get_ref().1;
    let protocol = String::from_utf8(session.alpn_protocol().unwrap_or_default().to_vec()).unwrap();
    let number = {
        let mut seen = seen.lock();
        seen.connections.push(protocol);
        seen.clients.push(session.peer_certificates().unwrap()[0].clone().into_owned());
        seen.connections.len() - 1
    };
    let (end, freeze) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (on_end, on_freeze) = (Arc::clone(&end), Arc::clone(&freeze));
    let service = hyper::service::service_fn(move |request: http::Request<Incoming>| {
        let (end, freeze, seen, act) = (Arc::clone(&end), Arc::clone(&freeze), Arc::clone(&seen), act(number));
        async move {
            let (parts, body) = request.into_parts();
            body.collect().await.map_err(|_gone| h2::Error::from(h2::Reason::CANCEL))?;
            let header = |name: &str| parts.headers[name].to_str().unwrap().to_owned();
            {
                let mut seen = seen.lock();
                seen.requests.push((number, parts.version));
                seen.credentials.insert(header("authorization"));
                seen.agents.insert(header("user-agent"));
            }
            match act {
                Act::Answer => {}
                Act::Refuse => return Ok(Response::builder().status(401).body(Either::Left(String::new())).unwrap()),
                Act::Watch => return Ok(Response::new(Either::Right(StreamBody::new(stream::pending())))),
                Act::Together(barrier) => {
                    barrier.wait().await;
                }
                Act::RefuseStream => return Err(h2::Reason::REFUSED_STREAM.into()),
                Act::HangUp => {
                    end.notify_one();
                    std::future::pending::<()>().await;
                }
                Act::Freeze => {
                    freeze.notify_one();
                    std::future::pending::<()>().await;
                }
            }
            Ok::<_, h2::Error>(Response::builder().status(201).body(Answered::Left(stored_json())).unwrap())
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http2().max_concurrent_streams(STREAMS);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    tokio::select! {
        () = on_end.notified() => {}
        () = on_freeze.notified() => std::future::pending().await,
        _ = &mut connection => {}
    }
}

/// The name in the server's certificate.
const NAME: [&str; 2] = ["tls-server-name", "apiserver.test"];

fn write_kubeconfig(path: &Path, address: SocketAddr, more_of_the_cluster: [&str; 2]) {
    write_kubeconfig_of(path, address, more_of_the_cluster, ["client.crt", "client.key"].map(fixture));
}

fn write_kubeconfig_of(path: &Path, address: SocketAddr, [more, value]: [&str; 2], [certificate, key]: [String; 2]) {
    let server = format!("https://{address}");
    let cluster = json!({ "server": server, "certificate-authority": fixture("ca.crt"), more: value });
    let user = json!({ "client-certificate": certificate, "client-key": key, "token": "t" });
    super::tests::write_kubeconfig(path, &cluster, &user);
}

async fn connect(kubeconfig: &Path, timeout: Duration) -> Result<Apiserver, Error> {
    let settings = Settings { kubeconfig: Some(kubeconfig.to_owned()), timeout, ..Settings::default() };
    super::tests::connect(settings).await
}

async fn burst(client: &Apiserver, size: usize) -> Vec<Answer> {
    let mut tasks = JoinSet::new();
    for _ in 0..size {
        let client = client.clone();
        tasks.spawn(async move { client.write(&create()).await });
    }
    tasks.join_all().await
}

fn all_stored(answers: &[Answer]) -> bool {
    answers.iter().all(|answer| *answer == Answer::Stored(Box::new(stored())))
}

#[tokio::test]
async fn a_burst_goes_over_one_connection_where_http2_is_offered() {
    let together = Arc::new(Barrier::new(64));
    let server = FakeApiserver::start(&["h2", "http/1.1"], move |_| Act::Together(Arc::clone(&together))).await;
    let client = server.client(SOON).await;
    assert!(all_stored(&burst(&client, 64).await), "all 64 are in flight at once");
    assert!(all_stored(&burst(&client, 64).await));
    let seen = server.seen.lock();
    assert_eq!(seen.connections, ["h2", "h2"], "the one that determined the protocol, and the one in use");
    assert_eq!(seen.requests, [(1, Version::HTTP_2); 128]);
    assert_eq!(seen.credentials, BTreeSet::from(["Bearer t".to_owned()]));
    assert_eq!(seen.agents, BTreeSet::from([concat!("eventweir/", env!("CARGO_PKG_VERSION")).to_owned()]));
}

/// Fault: 100 watches of clients took every stream of the one connection, and all other requests waited for their end.
#[tokio::test]
async fn more_watches_than_one_connection_allows_delay_no_other_request() {
    const WATCHES: usize = 150;
    let begun = Arc::new(AtomicUsize::new(0));
    let act = move |_| if begun.fetch_add(1, Ordering::Relaxed) < WATCHES { Act::Watch } else { Act::Answer };
    let server = FakeApiserver::start(&["h2"], act).await;
    let client = server.client(SOON).await;
    let mut watches = Vec::new();
    for _ in 0..WATCHES {
        watches.push(client.watch(None, &WatchOptions::default()).await.unwrap());
    }
    assert!(all_stored(&burst(&client, 1).await));
    let connections = |seen: &Seen| seen.requests.iter().map(|(number, _)| *number).collect::<BTreeSet<_>>().len();
    assert_eq!(connections(&server.seen.lock()), 3);
    // The end of a watch makes room on its connection.
    drop(watches);
    assert!(all_stored(&burst(&client, 64).await));
    let first = server.seen.lock().requests[0].0;
    assert!(server.seen.lock().requests[WATCHES + 1..].iter().all(|(number, _)| *number == first));
}

#[tokio::test]
async fn http1_is_spoken_where_http2_is_not_offered() {
    for (offers, protocol) in [(&["http/1.1"] as &[_], "http/1.1"), (&[], "")] {
        let together = Arc::new(Barrier::new(8));
        let server = FakeApiserver::start(offers, move |_| Act::Together(Arc::clone(&together))).await;
        let client = server.client(SOON).await;
        assert!(all_stored(&burst(&client, 8).await));
        let seen = server.seen.lock();
        assert_eq!(
            seen.connections, [protocol; 9],
            "the one that determined the protocol, and one per request in flight"
        );
        assert!(seen.requests.iter().all(|&(_, version)| version == Version::HTTP_11));
    }
}

#[tokio::test]
async fn a_connection_lost_in_flight_may_have_written_and_is_replaced() {
    for (offers, version) in [("h2", Version::HTTP_2), ("http/1.1", Version::HTTP_11)] {
        let act = |connection| if connection == 1 { Act::HangUp } else { Act::Answer };
        let server = FakeApiserver::start(&[offers], act).await;
        let client = server.client(SOON).await;
        assert_eq!(without_cause(client.write(&create()).await), retry(Fault::Transport, Applied::Perhaps), "{offers}");
        assert!(all_stored(&burst(&client, 1).await), "{offers}");
        assert_eq!(server.seen.lock().requests, [(1, version), (2, version)]);
    }
}

/// Fault: a restart of the API server left creates in doubt that it had not processed, as it says over HTTP/2.
#[tokio::test]
async fn a_request_that_the_apiserver_leaves_unprocessed_has_not_written() {
    let begun = Arc::new(AtomicUsize::new(0));
    let act = move |_| if begun.fetch_add(1, Ordering::Relaxed) == 0 { Act::RefuseStream } else { Act::Answer };
    let server = FakeApiserver::start(&["h2"], act).await;
    let client = server.client(SOON).await;
    assert_eq!(without_cause(client.write(&create()).await), retry(Fault::Transport, Applied::No));
    assert!(all_stored(&burst(&client, 1).await));
}

#[tokio::test]
async fn a_dead_connection_is_found_by_pings() {
    let act = |connection| if connection == 1 { Act::Freeze } else { Act::Answer };
    let server = FakeApiserver::start(&["h2"], act).await;
    let client = server.client(Duration::from_secs(1)).await;
    let first = without_cause(client.write(&create()).await);
    let lost = [Fault::Timeout, Fault::Transport].map(|fault| retry(fault, Applied::Perhaps));
    assert!(lost.contains(&first), "{first:?}");
    let recovered = async { while !all_stored(&burst(&client, 1).await) {} };
    tokio::time::timeout(SOON, recovered).await.unwrap();
    assert_eq!(server.seen.lock().requests, [(1, Version::HTTP_2), (2, Version::HTTP_2)]);
}

/// Fault: after connections had died silently, each of up to 32 idle ones failed a request, one after another, for 90 s.
#[tokio::test]
async fn idle_connections_that_have_died_fail_one_request() {
    let (together, served) = (Arc::new(Barrier::new(3)), Arc::new(AtomicUsize::new(0)));
    let act = move |connection| match (connection, served.fetch_add(1, Ordering::Relaxed)) {
        (_, 0..3) => Act::Together(Arc::clone(&together)),
        (0..=3, _) => Act::Freeze,
        _ => Act::Answer,
    };
    let server = FakeApiserver::start(&["http/1.1"], act).await;
    // Three handshakes take less, and the dead connections are noticed after it.
    let client = server.client(Duration::from_secs(3)).await;
    assert!(all_stored(&burst(&client, 3).await));
    assert_eq!(without_cause(client.write(&create()).await), retry(Fault::Timeout, Applied::Perhaps));
    assert!(all_stored(&burst(&client, 1).await));
}

/// Fault: the first address of a name took all of the time to connect. With a host without power among several, no
/// request was ever sent.
#[tokio::test]
async fn a_dead_address_of_a_name_leaves_time_for_the_next() {
    let (socket, live) = (TcpSocket::new_v4().unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap());
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let full = socket.listen(1).unwrap();
    let addresses = [full.local_addr().unwrap(), live.local_addr().unwrap()];
    let mut waiting = Vec::new();
    // Once its queue is full, it does not answer.
    while let Ok(connected) = tokio::time::timeout(Duration::from_millis(100), TcpStream::connect(addresses[0])).await {
        waiting.push(connected.unwrap());
    }
    let resolver = tower::service_fn(move |_: Name| std::future::ready(Ok::<_, Infallible>(addresses.into_iter())));
    let connecting =
        transport::tcp(resolver, Duration::from_secs(1)).oneshot(Uri::from_static("http://apiserver.test"));
    let connection = tokio::time::timeout(SOON, connecting).await.unwrap().unwrap();
    assert_eq!(connection.inner().peer_addr().unwrap(), addresses[1]);
    // Fault: after an API server vanished, upgraded connections to it stayed for ever.
    assert!(socket2::SockRef::from(connection.inner()).keepalive().unwrap());
}

/// Accepts TCP connections, counts them, and serves the first ones only. They close at a request.
async fn accept(listener: TcpListener, attempts: Arc<AtomicUsize>, served: usize) {
    let (mut connections, mut silent) = (JoinSet::new(), Vec::new());
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        if attempts.fetch_add(1, Ordering::Relaxed) < served {
            connections.spawn(serve(stream, tls(&["h2"], &[]), Arc::default(), |_| Act::HangUp));
        } else {
            silent.push(stream);
        }
    }
}

/// Fault: requests that had waited for an attempt to connect tried again one after another, each for the whole timeout.
#[tokio::test]
async fn an_attempt_to_connect_fails_all_that_wait_for_it() {
    // The protocol is not known yet, or it is and the connection was closed.
    for served in [0, 2] {
        let (listener, attempts) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), Arc::<AtomicUsize>::default());
        let (address, directory) = (listener.local_addr().unwrap(), tempfile::tempdir().unwrap());
        let path = directory.path().join("kubeconfig");
        write_kubeconfig(&path, address, NAME);
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, Arc::clone(&attempts), served));
        let config = config(&Settings { kubeconfig: Some(path), ..Settings::default() }).await.unwrap();
        let timeout = Duration::from_secs(1);
        let https = transport::https_connector(&config, transport::Protocols::All, timeout).unwrap();
        let connections = Arc::new(shared_connections::SharedConnections::<Body>::over(https, timeout));
        let send = move |connections: Arc<shared_connections::SharedConnections<Body>>| async move {
            let request = http::Request::get(format!("https://{address}/"));
            let request = request.header("authorization", "Bearer t").header("user-agent", "test");
            let fault = connections.permit().1.send(request.body(Body::empty()).unwrap()).await.unwrap_err();
            matches!(connect::classify(&*fault), Failure::NotSent(_))
        };
        if served > 0 {
            assert!(!send(Arc::clone(&connections)).await, "the connection breaks");
        }
        let mut waiting = JoinSet::new();
        for _ in 0..5 {
            waiting.spawn(send(Arc::clone(&connections)));
        }
        assert_eq!(waiting.join_all().await, [true; 5], "{served}");
        assert_eq!(attempts.load(Ordering::Relaxed), served + 1);
    }
}

#[tokio::test]
async fn the_protocol_is_determined_again_when_http2_is_gone() {
    let act = |connection| if connection == 1 { Act::HangUp } else { Act::Answer };
    let server = FakeApiserver::start(&["h2", "http/1.1"], act).await;
    let client = server.client(SOON).await;
    assert_eq!(without_cause(client.write(&create()).await), retry(Fault::Transport, Applied::Perhaps));
    *server.offers.lock() = vec!["http/1.1"];
    assert_eq!(
        without_cause(client.write(&create()).await),
        retry(Fault::Transport, Applied::No),
        "HTTP/1.1 in place of HTTP/2"
    );
    assert!(all_stored(&burst(&client, 1).await));
    assert_eq!(server.seen.lock().requests, [(1, Version::HTTP_2), (4, Version::HTTP_11)]);
}

#[tokio::test]
async fn a_certificate_for_another_name_is_not_trusted() {
    let server = FakeApiserver::start(&["h2"], |_| Act::Answer).await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kubeconfig");
    write_kubeconfig(&path, server.address, ["tls-server-name", "other.test"]);
    let client = connect(&path, SOON).await.unwrap();
    assert_eq!(without_cause(client.write(&create()).await), retry(Fault::Transport, Applied::No));
    assert!(server.seen.lock().requests.is_empty());
}

#[tokio::test]
async fn proxies_and_impossible_names_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kubeconfig");
    let check = async |more: [&str; 2], expected: &str| {
        write_kubeconfig(&path, SocketAddr::from(([127, 0, 0, 1], 1)), more);
        assert_eq!(connect(&path, SOON).await.unwrap_err().to_string(), expected);
    };
    check(["tls-server-name", "a b"], r#"the TLS server name "a b" is not valid"#).await;
    let proxy = "the API server would be reached through the proxy http://proxy:3128/; proxies are not supported (see NO_PROXY)";
    check(["proxy-url", "http://proxy:3128"], proxy).await;
    check(["proxy-url", "http://user:password@proxy:3128"], proxy).await;
}

/// Fault: a client certificate was read at the start only, and after its expiry nothing was written until a restart.
#[tokio::test]
async fn a_renewed_client_certificate_is_used_without_a_restart() {
    let expired = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let is_expired = Arc::clone(&expired);
    let act = move |connection| match connection {
        0..2 if is_expired.load(Ordering::Relaxed) => Act::Refuse,
        _ => Act::Answer,
    };
    let server = FakeApiserver::start(&["h2"], act).await;
    let directory = tempfile::tempdir().unwrap();
    let [path, certificate, key] = ["kubeconfig", "crt", "key"].map(|name| directory.path().join(name));
    std::fs::copy(fixture("client.crt"), &certificate).unwrap();
    std::fs::copy(fixture("client.key"), &key).unwrap();
    let files = [&certificate, &key].map(|path| path.display().to_string());
    write_kubeconfig_of(&path, server.address, NAME, files);
    let client = connect(&path, SOON).await.unwrap();
    assert!(all_stored(&burst(&client, 1).await));
    let own = rcgen::KeyPair::generate().unwrap();
    let renewed = rcgen::CertificateParams::default().self_signed(&own).unwrap();
    server.trusts.lock().push(renewed.der().clone());
    std::fs::write(&certificate, pem("CERTIFICATE", renewed.der())).unwrap();
    std::fs::write(&key, pem("PRIVATE KEY", &own.serialize_der())).unwrap();
    expired.store(true, Ordering::Relaxed);
    assert_eq!(without_cause(client.write(&create()).await), retry(Fault::Unauthorized, Applied::No));
    assert!(all_stored(&burst(&client, 1).await));
    let seen = server.seen.lock();
    assert_eq!(seen.requests, [1, 1, 3].map(|connection| (connection, Version::HTTP_2)));
    let old = CertificateDer::from_pem_file(fixture("client.crt")).unwrap();
    assert_eq!(seen.clients, [&old, &old, renewed.der(), renewed.der()].map(Clone::clone));
}

fn pem(label: &str, der: &[u8]) -> String {
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
}
