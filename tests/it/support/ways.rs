//! The three ways in: plain HTTP, TLS, and TLS with pass-through in front of an API server.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::app::{DEADLINE, Program, start};
use super::behind::{Behind, OURS, answer, created};
use super::certificates::{Authority, Trust};
use super::http::EVENTS;

/// How a client reaches eventweir.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Plain,
    Tls,
    /// Over TLS, with pass-through.
    Passthrough,
}

impl Way {
    pub(crate) const ALL: [Self; 3] = [Self::Plain, Self::Tls, Self::Passthrough];
}

/// A client's request as the API server has received it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Arrived {
    /// Method and target.
    pub(crate) line: String,
    /// At most its first mebibyte.
    pub(crate) body: Vec<u8>,
}

/// The clients' requests at an API server.
#[derive(Debug, Default)]
struct Log {
    arrived: Mutex<Vec<Arrived>>,
    /// Bytes of their bodies.
    bytes: AtomicU64,
}

/// A program, reached in one way.
pub(crate) struct Entry {
    pub(crate) way: Way,
    pub(crate) program: Program,
    pub(crate) behind: Option<Behind>,
    authority: Authority,
    log: Arc<Log>,
    _folder: tempfile::TempDir,
}

/// A connection of any way.
pub(crate) trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

/// Everything that a connection has answered until its end.
#[derive(Debug)]
pub(crate) struct Answers(Vec<u8>);

impl From<Vec<u8>> for Answers {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl Answers {
    /// Returns the codes of all answers.
    pub(crate) fn codes(&self) -> Vec<u16> {
        let text = self.text();
        // An answer may begin right behind the body of another one.
        text.split("HTTP/1.").skip(1).filter_map(|answer| answer.get(2..5)?.parse().ok()).collect()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }
}

impl Entry {
    /// Starts a program with this configuration.
    pub(crate) async fn open(way: Way, yaml: &str) -> Self {
        let (folder, authority, log) = (tempfile::tempdir().unwrap(), Authority::new(), Arc::<Log>::default());
        let tls = match way {
            Way::Plain => String::new(),
            Way::Tls | Way::Passthrough => {
                authority.server().write(folder.path());
                let dir = folder.path().display();
                format!("tls: {{certFile: {dir}/tls.crt, keyFile: {dir}/tls.key}}\n")
            }
        };
        let yaml = format!("{yaml}{tls}");
        let (program, behind) = match way {
            Way::Plain | Way::Tls => (start(&yaml).await, None),
            Way::Passthrough => {
                let behind = apiserver(Arc::clone(&log)).await;
                // Its API server knows no event, so that repeats of one are not written.
                let yaml = format!("{yaml}shutdown: {{drainTimeout: 0s}}\n");
                (behind.program("", &yaml).await, Some(behind))
            }
        };
        Self { way, program, behind, authority, log, _folder: folder }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.program.app.address()
    }

    pub(crate) fn authority(&self) -> &CertificateDer<'static> {
        self.authority.der()
    }

    /// Connects for HTTP/1.1.
    pub(crate) async fn connect(&self) -> Box<dyn Connection> {
        self.connect_for("http/1.1").await
    }

    /// Connects for a protocol of ALPN.
    pub(crate) async fn connect_for(&self, protocol: &'static str) -> Box<dyn Connection> {
        match self.way {
            Way::Plain => Box::new(TcpStream::connect(self.address()).await.unwrap()),
            Way::Tls | Way::Passthrough => {
                let trust = Trust { protocol, ..Trust::of(self.authority()) };
                Box::new(trust.connect(self.address()).await.unwrap())
            }
        }
    }

    /// Returns the code of the answer to a POST of an event to this path.
    pub(crate) fn first(&self, path: &str) -> u16 {
        match (path, self.way) {
            (EVENTS, _) => 201,
            (_, Way::Passthrough) => 200,
            (_, Way::Plain | Way::Tls) => 404,
        }
    }

    /// Sends bytes over a connection of their own, and reads to its end.
    pub(crate) async fn send(&self, bytes: &[u8]) -> Answers {
        exchange(self.connect().await, bytes).await
    }

    /// Returns and forgets what has arrived at the API server from clients.
    pub(crate) fn take_arrived(&self) -> Vec<Arrived> {
        std::mem::take(&mut self.log.arrived.lock())
    }

    /// Returns the number of bytes that have arrived at the API server in bodies of clients.
    pub(crate) fn bytes(&self) -> u64 {
        self.log.bytes.load(Ordering::Relaxed)
    }

    /// Stops the program; its ledger is exact.
    pub(crate) async fn close(self) {
        let balance = self.program.app.stop().await;
        assert!(balance.is_exact(), "{balance:?}");
    }
}

/// Sends bytes and reads to the end of the connection. The server may close before it has read everything.
pub(crate) async fn exchange(connection: Box<dyn Connection>, bytes: &[u8]) -> Answers {
    let (mut reader, mut writer) = tokio::io::split(connection);
    let mut read = Vec::new();
    let sending = async {
        writer.write_all(bytes).await?;
        // TLS may have kept the last bytes.
        writer.flush().await
    };
    let exchanging = async { tokio::join!(sending, reader.read_to_end(&mut read)) };
    let ended = tokio::time::timeout(DEADLINE, exchanging).await;
    assert!(ended.is_ok(), "not closed, after {:?}", String::from_utf8_lossy(&read));
    Answers(read)
}

/// An API server that stores every event of eventweir, and answers clients with the body that it has received.
async fn apiserver(log: Arc<Log>) -> Behind {
    Behind::plain(move |request| {
        let log = Arc::clone(&log);
        async move {
            if request.headers().get("Authorization").is_some_and(|value| value == OURS) {
                return if request.method() == "POST" { created(request).await } else { answer(404, "{}") };
            }
            let line = format!("{} {}", request.method(), request.uri());
            let (mut body, mut reading) = (Vec::new(), request.into_body());
            while let Some(frame) = reading.frame().await {
                let Ok(frame) = frame else { return answer(400, "") };
                let Ok(data) = frame.into_data() else { continue };
                log.bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
                if body.len() + data.len() <= 1 << 20 {
                    body.extend_from_slice(&data);
                }
            }
            log.arrived.lock().push(Arrived { line, body: body.clone() });
            answer(200, body)
        }
    })
    .await
}
