//! TLS on the listener for clients, and Unix domain sockets.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use eventweir::app::ConfigSource;
use eventweir::clock::Now;
use eventweir::config::{Files, Overrides, load};
use eventweir::server::tls::{CipherSuite, Identity, Limits, Metrics, MinVersion, POLL, Settings, Tls};
use eventweir::server::{Address, End, Listener, Peer, PeerCertificate, Server};
use http::{Request, Response};
use http_body_util::Full;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prometheus::{IntGauge, Registry};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::support::app::{DEADLINE, config, start, start_as};
use super::support::certificates::{Authority, Trust, shown};
use super::support::events::{event, plain};
use super::support::http::{Client, EVENTS, json};
use super::support::log::Log;

/// Returns the section of a configuration that names the files of a folder.
fn files(folder: &Path) -> String {
    let folder = folder.display();
    format!("tls:\n  certFile: {folder}/tls.crt\n  keyFile: {folder}/tls.key\n")
}

#[tokio::test]
async fn http_1_1_and_http_2_are_served() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    authority.server().write(folder.path());
    let program = start(&files(folder.path())).await;
    let trust = Trust::of(authority.der());
    let stream = trust.connect(program.app.address()).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    let mut client = Client::over(stream);
    for _ in 0..2 {
        assert_eq!(client.post(&plain()).await.status, 201);
    }
    let stream = Trust { protocol: "h2", ..trust }.connect(program.app.address()).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { connection.await.is_ok() });
    let request = Request::post(format!("https://localhost{EVENTS}")).header("Content-Type", "application/json");
    let answer =
        sender.send_request(request.body(Full::<bytes::Bytes>::new(json(&plain()).into())).unwrap()).await.unwrap();
    assert_eq!(answer.status(), 201);
    program.settle().await;
    assert_eq!(program.stop().await.ledger.total_written(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_is_replaced_under_load_and_no_request_fails() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let old = authority.server();
    old.write(folder.path());
    let program = start(&files(folder.path())).await;
    let address = program.app.address();
    let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut clients = JoinSet::new();
    for number in 0..4 {
        let (stop, sent, trust) = (Arc::clone(&stop), Arc::clone(&sent), Trust::of(authority.der()));
        clients.spawn(async move {
            // One client stays connected; the others connect for each request.
            let mut lasting = Client::over(trust.connect(address).await.unwrap());
            while !stop.load(Ordering::Relaxed) {
                let event = event(&format!("node-{number}"), "web-0", "Pulled", "pulled");
                let status = if number == 0 {
                    lasting.post(&event).await.status
                } else {
                    Client::over(trust.connect(address).await.unwrap()).post(&event).await.status
                };
                assert_eq!(status, 201);
                sent.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let some_more = async || {
        let before = sent.load(Ordering::Relaxed);
        program.until("requests are answered", || sent.load(Ordering::Relaxed) >= before + 40).await;
    };
    let trust = Trust::of(authority.der());
    some_more().await;
    let new = authority.server();
    new.write(folder.path());
    program.app.reread_files();
    assert_eq!(shown(&trust.connect(address).await.unwrap()), new.der);
    some_more().await;
    // A key of another certificate, an invalid certificate and a missing file change nothing.
    let success = "eventweir_tls_last_reload_successful{listener=\"main\"}";
    assert_eq!(program.metrics().await[success], 1.0);
    std::fs::write(folder.path().join("tls.crt"), super::support::certificates::pem("CERTIFICATE", &old.der)).unwrap();
    program.app.reread_files();
    program.app.reread_files();
    assert_eq!(program.metrics().await[success], 0.0);
    std::fs::write(folder.path().join("tls.crt"), "nothing").unwrap();
    program.app.reread_files();
    std::fs::remove_file(folder.path().join("tls.key")).unwrap();
    program.app.reread_files();
    assert_eq!(program.metrics().await[success], 0.0);
    assert_eq!(shown(&trust.connect(address).await.unwrap()), new.der);
    some_more().await;
    old.write(folder.path());
    program.app.reread_files();
    assert_eq!(shown(&trust.connect(address).await.unwrap()), old.der);
    let metrics = program.metrics().await;
    assert_eq!(metrics["eventweir_tls_certificate_expiry_timestamp_seconds{listener=\"main\"}"], 4_102_444_800.0);
    assert_eq!(metrics[success], 1.0);
    some_more().await;
    stop.store(true, Ordering::Relaxed);
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
    program.settle().await;
    assert_eq!(program.stop().await.ledger.total_written(), sent.load(Ordering::Relaxed));
}

#[tokio::test(start_paused = true)]
async fn changed_files_are_found_without_a_reload() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    authority.server().write(folder.path());
    let program = start(&files(folder.path())).await;
    let (trust, new) = (Trust::of(authority.der()), authority.server());
    new.write(folder.path());
    assert_ne!(shown(&trust.connect(program.app.address()).await.unwrap()), new.der);
    tokio::time::sleep(POLL * 2).await;
    assert_eq!(shown(&trust.connect(program.app.address()).await.unwrap()), new.der);
    program.stop().await;
}

#[tokio::test]
async fn the_minimum_version_and_the_suites_can_be_chosen() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    authority.server().write(folder.path());
    let newest = start(&format!("{}  minVersion: VersionTLS13\n", files(folder.path()))).await;
    let old = Trust { versions: vec![&rustls::version::TLS12], ..Trust::of(authority.der()) };
    let error = old.connect(newest.app.address()).await.unwrap_err();
    assert!(error.to_string().contains("ProtocolVersion"), "{error}");
    Trust::of(authority.der()).connect(newest.app.address()).await.unwrap();
    newest.stop().await;
    let name = "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256";
    let chosen = start(&format!("{}  cipherSuites: [{name}]\n", files(folder.path()))).await;
    let stream = old.connect(chosen.app.address()).await.unwrap();
    let suite = stream.get_ref().1.negotiated_cipher_suite().unwrap();
    assert_eq!(format!("{:?}", suite.suite()), name);
    chosen.stop().await;
}

/// Starts a server that answers with the peer of each client; returns the token that stops it.
async fn mirror(tls: Option<Tls>, address: &Address) -> (SocketAddr, CancellationToken, TaskTracker) {
    let listener = Listener::bind(address).await.unwrap();
    let bound = listener.local().unwrap().tcp().unwrap_or_else(|| ([0, 0, 0, 0], 0).into());
    let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
    let limit = Duration::from_secs(60);
    let server = Server {
        listener,
        tls,
        settings: eventweir::server::Settings {
            max_connections: 100,
            beyond: eventweir::server::OverLimit::Waits,
            streams: 200,
            client_timeout: limit,
            close_timeout: limit,
        },
        connections: IntGauge::new("unregistered", "connections").unwrap(),
        tasks: tasks.clone(),
        end: End::from(stop.clone()),
    };
    tasks.spawn(server.serve(tower::service_fn(async |request: Request<Body>| {
        let peer = request.extensions().get::<Peer>().unwrap();
        Ok::<_, Infallible>(Response::new(Body::from(format!("{peer:?}"))))
    })));
    (bound, stop, tasks)
}

fn settings(folder: &Path) -> Settings {
    Settings {
        identity: Identity::Files { certificate: folder.join("tls.crt"), key: folder.join("tls.key") },
        min_version: MinVersion::Tls12,
        cipher_suites: CipherSuite::all().collect(),
        client_ca: None,
        requires_certificate: false,
    }
}

fn tls(settings: Settings, limits: Limits) -> Tls {
    let metrics = Metrics::new(&Registry::new(), ["main"]).remove(0);
    Tls::new(settings, limits, Now::default(), metrics).unwrap()
}

const LOCAL: ([u8; 4], u16) = ([127, 0, 0, 1], 0);

#[tokio::test]
async fn requests_carry_the_subject_of_the_client_certificate() {
    let (folder, authority, clients) = (tempfile::tempdir().unwrap(), Authority::new(), Authority::new());
    authority.server().write(folder.path());
    let ca = folder.path().join("client-ca.crt");
    std::fs::write(&ca, clients.pem()).unwrap();
    for requires_certificate in [false, true] {
        let settings = Settings { client_ca: Some(ca.clone()), requires_certificate, ..settings(folder.path()) };
        let (address, stop, _tasks) =
            mirror(Some(tls(settings, Limits::default())), &SocketAddr::from(LOCAL).into()).await;
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let seen = async |certificate| {
                let trust = Trust { certificate, versions: vec![version], ..Trust::of(authority.der()) };
                let stream = trust.connect(address).await.ok()?;
                let local = stream.get_ref().0.local_addr().unwrap();
                // With TLS 1.3 a client sees its refusal only after its request.
                let answer = Client::over(stream).exchange("GET", "/", &[], b"").await.ok()?;
                Some((answer.text(), local))
            };
            let told = |certificate, address| format!("{:?}", Peer { address: Some(address), certificate });
            let (text, local) = seen(Some(clients.client("system:node:a", &["system:nodes", "b"]))).await.unwrap();
            let named = PeerCertificate {
                common_name: "system:node:a".to_owned(),
                organizations: vec!["system:nodes".to_owned(), "b".to_owned()],
                expires: 4_102_444_800,
            };
            assert_eq!(text, told(Some(named), local));
            match seen(None).await {
                Some((text, local)) => assert!(!requires_certificate && text == told(None, local), "{text}"),
                None => assert!(requires_certificate),
            }
            assert!(seen(Some(authority.client("system:node:a", &["system:masters"]))).await.is_none());
        }
        stop.cancel();
    }
}

#[tokio::test]
async fn a_generated_certificate_is_trusted_by_its_authority_after_a_restart() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().display();
    let yaml = format!("tls: {{selfSigned: {{dir: {dir}, hosts: [localhost, 127.0.0.1, sidecar.example]}}}}\n");
    let mut kept = Vec::new();
    for _ in 0..2 {
        let program = start(&yaml).await;
        let pem = std::fs::read(folder.path().join("ca.crt")).unwrap();
        let trust = Trust::of(&CertificateDer::from_pem_slice(&pem).unwrap());
        for name in ["localhost", "127.0.0.1", "sidecar.example"] {
            let mut client = Client::over(trust.connect_as(name, program.app.address()).await.unwrap());
            assert_eq!(client.post(&plain()).await.status, 201);
        }
        assert!(trust.connect_as("another.example", program.app.address()).await.is_err());
        kept.push(pem);
        program.settle().await;
        program.stop().await;
    }
    assert_eq!(kept[0], kept[1]);
    let mode = std::fs::metadata(folder.path().join("ca.key")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// Reads until the other side closes.
async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut read = Vec::new();
    let _reset = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut read)).await.unwrap();
    read
}

#[tokio::test]
async fn half_open_handshakes_are_ended_for_new_ones() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    authority.server().write(folder.path());
    let limits = Limits { at_once: 3, timeout: Duration::from_secs(3600) };
    let tls = tls(settings(folder.path()), limits);
    let (address, stop, tasks) = mirror(Some(tls), &SocketAddr::from(LOCAL).into()).await;
    let mut silent = Vec::new();
    for number in 0..20 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // Some send nothing, some begin a handshake.
        stream.write_all(&[22, 3, 1, 0, 200, 1][..if number % 2 == 0 { 0 } else { 6 }]).await.unwrap();
        silent.push(stream);
        let answer = Client::over(Trust::of(authority.der()).connect(address).await.unwrap()).get("/").await;
        assert_eq!(answer.status, 200);
    }
    for stream in &mut silent[..17] {
        rest(stream).await;
    }
    stop.cancel();
    tasks.close();
    tokio::time::timeout(DEADLINE, tasks.wait()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_handshake_has_a_timeout() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    authority.server().write(folder.path());
    let limits = Limits::default();
    let (address, _stop, _tasks) =
        mirror(Some(tls(settings(folder.path()), limits)), &SocketAddr::from(LOCAL).into()).await;
    for sent in [0, 1, 6] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(&[22, 3, 1, 0, 200, 1][..sent]).await.unwrap();
        let second = Duration::from_secs(1);
        assert!(tokio::time::timeout(limits.timeout - second, stream.read_u8()).await.is_err(), "too early");
        assert!(tokio::time::timeout(second * 2, stream.read_u8()).await.unwrap().is_err());
    }
}

#[tokio::test]
async fn plain_http_is_answered_with_a_hint_at_tls() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    authority.server().write(folder.path());
    let program = start(&files(folder.path())).await;
    let mut stream = TcpStream::connect(program.app.address()).await.unwrap();
    let body = "x".repeat(3000);
    let request = format!("POST {EVENTS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3000\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let text = String::from_utf8(rest(&mut stream).await).unwrap();
    assert!(text.starts_with("HTTP/1.0 400 Bad Request\r\n"), "{text}");
    assert!(text.ends_with("\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"), "{text}");
    program.stop().await;
}

/// Fault: only the debug log had them, and without an address. A kubelet with an expired certificate lost its events.
#[tokio::test]
async fn handshakes_that_fail_are_logged_and_counted() {
    let log = Log::capture();
    let (folder, authority, clients) = (tempfile::tempdir().unwrap(), Authority::new(), Authority::new());
    authority.server().write(folder.path());
    let ca = folder.path().join("clients.crt");
    std::fs::write(&ca, clients.pem()).unwrap();
    let auth = format!("auth: {{clientCAFile: {}, policy: [{{users: '*'}}]}}\n", ca.display());
    let program = start(&format!("{}{auth}", files(folder.path()))).await;
    let address = program.app.address();
    let reason = |reason| format!("eventweir_tls_handshake_failures_total{{listener=\"main\",reason=\"{reason}\"}}");
    let versions = vec![&rustls::version::TLS12];
    let unknown = authority.client("system:node:a", &["system:nodes"]);
    let refused = Trust { certificate: Some(unknown), versions, ..Trust::of(authority.der()) };
    let mut stream = TcpStream::connect(address).await.unwrap();
    let from = stream.local_addr().unwrap().to_string();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    stream.shutdown().await.unwrap();
    rest(&mut stream).await;
    for _ in 0..2 {
        refused.connect(address).await.unwrap_err();
    }
    Trust::of(clients.der()).connect(address).await.unwrap_err();
    // As the probe of a load balancer, which is no handshake.
    let mut probe = TcpStream::connect(address).await.unwrap();
    probe.shutdown().await.unwrap();
    rest(&mut probe).await;
    let count = |line: &str| program.app.metrics_text().contains(line);
    program.until("all are counted", || count(&format!("{} 1\n", reason("client")))).await;
    for (name, expected) in [("plain", 1), ("certificate", 2), ("client", 1), ("timeout", 0), ("other", 0)] {
        assert!(count(&format!("{} {expected}\n", reason(name))), "{name}: {}", program.app.metrics_text());
    }
    let logged = log.text();
    let lines: Vec<_> = logged.lines().filter(|line| line.contains("WARN") && line.contains("handshake")).collect();
    assert!(lines.len() == 1 && lines[0].contains(&from) && lines[0].contains("without TLS"), "{lines:?}");
    program.stop().await;
}

#[tokio::test]
async fn a_unix_domain_socket_accepts_events() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("eventweir.sock");
    let address = Address::Unix(path.clone());
    let mut config = config("");
    config.listen = address.clone();
    for _ in 0..2 {
        let program = start_as(config.clone(), ConfigSource::default()).await;
        let mut client = Client::over(UnixStream::connect(&path).await.unwrap());
        // Web pages cannot reach a socket, so any host is accepted.
        let headers = [("Host", "eventweir.example"), ("Content-Type", "application/json")];
        assert_eq!(client.send("POST", EVENTS, &headers, &json(&plain())).await.status, 201);
        program.settle().await;
        assert_eq!(program.stop().await.ledger.total_written(), 1);
        assert!(!path.exists());
        // The state after a crash.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    }
    std::fs::remove_file(&path).unwrap();
    let (_, stop, _tasks) = mirror(None, &address).await;
    let peer = Client::over(UnixStream::connect(&path).await.unwrap()).get("/").await.text();
    assert_eq!(peer, format!("{:?}", Peer::default()));
    stop.cancel();
}

#[tokio::test]
async fn all_faults_of_the_files_are_reported_before_the_start() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let (one, other) = (authority.server(), tempfile::tempdir().unwrap());
    one.write(folder.path());
    authority.server().write(other.path());
    let (dir, path) = (folder.path().display(), folder.path().join("eventweir.yaml"));
    let errors = |yaml: &str| {
        std::fs::write(&path, yaml).unwrap();
        let told = load(Some(&path), &Overrides::default(), Files::Checked)
            .map_or_else(|errors| errors.to_string(), |_| String::new());
        told.replace(&format!("{dir}/"), "")
    };
    assert_eq!(errors(&files(folder.path())), "");
    std::fs::write(
        folder.path().join("web.yaml"),
        "tls_server_config:\n  cert_file: tls.crt\nbasic_auth_users:\n  ann: secret\n",
    )
    .unwrap();
    let told = errors(&format!(
        "log: {{level: loud}}\nadminWebConfigFile: {dir}/web.yaml\n{}auth: {{clientCAFile: {dir}/missing.crt}}\n",
        files(folder.path()).replace("tls.key", "missing.key")
    ));
    for line in [
        "eventweir.yaml:1: log.level: `loud` is not allowed; ",
        "eventweir.yaml:5: tls.keyFile: `missing.key` cannot be used: missing.key: No such file or directory (os error 2); \
            allowed: a file with the private key of tls.certFile in PEM",
        "eventweir.yaml:6: auth.clientCAFile: `missing.crt` cannot be used: missing.crt: No such file",
        "web.yaml:2: tls_server_config: key_file is missing",
        "web.yaml:4: basic_auth_users.ann: the value is not allowed; allowed: a bcrypt hash",
    ] {
        assert!(told.lines().any(|error| error.starts_with(line)), "{line}\n\n{told}");
    }
    assert_eq!(told.lines().count(), 5, "{told}");
    std::fs::copy(other.path().join("tls.key"), folder.path().join("tls.key")).unwrap();
    let keys = |pem: &str| {
        std::fs::write(folder.path().join("tls.key"), pem).unwrap();
        errors(&files(folder.path()))
    };
    assert!(errors(&files(folder.path())).contains("tls.key: does not go with the certificate; allowed: "));
    // Fault: the errors of PEM had numbers of bytes and names of types.
    for (pem, reason) in [
        ("", "holds no private key in PEM"),
        ("-----BEGIN PRIVATE KEY-----\nAAAA\n", "is cut off or damaged"),
        (
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
            "has a password, which ",
        ),
    ] {
        assert!(keys(pem).contains(&format!("tls.key: {reason}")), "{}", keys(pem));
    }
    let missing = format!("tls: {{selfSigned: {{dir: {dir}/missing}}}}\n");
    assert!(errors(&missing).contains("tls.selfSigned.dir: `missing` cannot be used: missing: is not a folder"));
}
