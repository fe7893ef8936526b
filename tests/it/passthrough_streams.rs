//! Pass-through of what does not end: large bodies, watches, tunnels.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http::header::{CONNECTION, UPGRADE};
use http::{HeaderValue, Request};
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Frame, Incoming};
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::support::app::{DEADLINE, Program};
use super::support::behind::{Behind, answer};

const PIECE: usize = 64 << 10;
const TOTAL: u64 = 200 << 20;
/// What sockets, of which a kernel lets each grow to 32 MiB, and HTTP/2 windows may hold on the whole way of two hops.
const ON_THE_WAY: u64 = 80 << 20;

/// 200 MB that are never in memory together; knows how much of it was taken.
struct Generated {
    made: Arc<AtomicU64>,
}

impl HttpBody for Generated {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        static DATA: [u8; PIECE] = [7; PIECE];
        if self.made.load(Ordering::Relaxed) == TOTAL {
            return Poll::Ready(None);
        }
        self.made.fetch_add(PIECE as u64, Ordering::Relaxed);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&DATA)))))
    }
}

/// Reads a body piece by piece. Returns its length, and the most that was made and not read.
async fn drain<B: HttpBody<Data = Bytes, Error: std::fmt::Debug> + Unpin>(mut body: B, made: &AtomicU64) -> (u64, u64) {
    let (mut read, mut most) = (0, 0);
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.unwrap().into_data() {
            read += data.len() as u64;
            most = most.max(made.load(Ordering::Relaxed).saturating_sub(read));
        }
    }
    (read, most)
}

async fn large(
    behind: &Behind,
    program: &Program,
    uploaded: &Arc<AtomicU64>,
    downloaded: &Arc<AtomicU64>,
    http2: bool,
) {
    let client = HyperClient::builder(TokioExecutor::new()).http2_only(http2).build_http::<Body>();
    let request = Request::post(format!("http://{}/api/v1/namespaces/a/pods/b/proxy/", program.app.address()));
    let request = request.body(Body::new(Generated { made: Arc::clone(uploaded) })).unwrap();
    let reply = client.request(request).await.unwrap();
    let most_up: u64 = reply.headers()["most"].to_str().unwrap().parse().unwrap();
    let (read, most_down) = drain(reply.into_body(), downloaded).await;
    assert_eq!(read, TOTAL);
    assert!(most_up < ON_THE_WAY && most_down < ON_THE_WAY, "{most_up} up, {most_down} down");
    assert_eq!(behind.seen().len(), 1);
}

#[tokio::test]
async fn two_hundred_megabytes_pass_both_ways_and_are_not_kept() {
    for http2 in [false, true] {
        let [up, down] = [(); 2].map(|()| Arc::<AtomicU64>::default());
        let (taken, given) = (Arc::clone(&up), Arc::clone(&down));
        let behind = Behind::plain(move |request| {
            let (taken, given) = (Arc::clone(&taken), Arc::clone(&given));
            async move {
                let (read, most) = drain(request.into_body(), &taken).await;
                assert_eq!(read, TOTAL);
                let mut answer = answer(200, Body::new(Generated { made: given }));
                answer.headers_mut().insert("most", HeaderValue::from(most));
                answer
            }
        })
        .await;
        let program = behind.program("", "ingest: {maxBodyBytes: 1Ki}\n").await;
        large(&behind, &program, &up, &down, http2).await;
        let bytes = program.metrics().await["eventweir_passthrough_answer_bytes_total"];
        assert_eq!(bytes, 209_715_200.0, "{http2}");
        program.stop().await;
    }
}

#[tokio::test]
async fn a_watchs_line_arrives_before_the_next_is_made_and_it_ends_with_its_client() {
    for http2 in [false, true] {
        let next = Arc::new(Notify::new());
        let asked = Arc::clone(&next);
        let behind = Behind::plain(move |_| {
            let next = Arc::clone(&asked);
            async move {
                let lines = futures_util::stream::unfold(0, move |line| {
                    let next = Arc::clone(&next);
                    async move {
                        next.notified().await;
                        Some((Ok::<_, std::io::Error>(format!("{{\"line\":{line}}}\n")), line + 1))
                    }
                });
                answer(200, Body::from_stream(lines))
            }
        })
        .await;
        let program = behind.program("", "").await;
        let client = HyperClient::builder(TokioExecutor::new()).http2_only(http2).build_http::<Body>();
        let request = Request::get(format!("http://{}/api/v1/pods?watch=1", program.app.address()));
        let mut reply = client.request(request.body(Body::empty()).unwrap()).await.unwrap();
        for line in 0..3 {
            next.notify_one();
            let frame = tokio::time::timeout(DEADLINE, reply.frame()).await.unwrap().unwrap().unwrap();
            assert_eq!(frame.into_data().unwrap(), format!("{{\"line\":{line}}}\n"));
        }
        drop(reply);
        // The stream holds the second reference.
        program.until("the apiserver has heard of it", || Arc::strong_count(&next) == 2).await;
        program.stop().await;
    }
}

/// Answers in upper case until its client closes its side, then says goodbye.
pub(super) async fn shout(mut request: Request<Incoming>) -> axum::response::Response {
    if request.headers().get(UPGRADE).is_none_or(|protocol| protocol != "SPDY/3.1") {
        return answer(400, "you must upgrade");
    }
    let upgrade = hyper::upgrade::on(&mut request);
    #[expect(clippy::disallowed_methods, reason = "it ends with its connection")]
    tokio::spawn(async move {
        let mut stream = BufReader::new(TokioIo::new(upgrade.await.unwrap()));
        stream.write_all(b"hello\n").await.unwrap();
        let mut line = String::new();
        while stream.read_line(&mut line).await.unwrap() > 0 {
            stream.write_all(line.to_uppercase().as_bytes()).await.unwrap();
            line.clear();
        }
        stream.write_all(b"goodbye").await.unwrap();
        stream.shutdown().await.unwrap();
    });
    let mut answer = answer(101, Body::empty());
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    answer.headers_mut().insert(UPGRADE, HeaderValue::from_static("SPDY/3.1"));
    answer.headers_mut().insert("X-Stream-Protocol-Version", HeaderValue::from_static("v4.channel.k8s.io"));
    answer
}

const EXEC: &str = "POST /api/v1/namespaces/a/pods/b/exec?command=sh&stdin=true HTTP/1.1\r\nHost: localhost\r\n\
    Authorization: Bearer caller's\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 0\r\n\
    X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n";

/// Opens a tunnel and returns its head.
async fn exec(program: &Program) -> (BufReader<TcpStream>, String) {
    exec_over(TcpStream::connect(program.app.address()).await.unwrap()).await
}

/// Does the same on a connection of any kind.
pub(super) async fn exec_over<S: AsyncRead + AsyncWrite + Unpin>(stream: S) -> (BufReader<S>, String) {
    let mut stream = BufReader::new(stream);
    stream.write_all(EXEC.as_bytes()).await.unwrap();
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(stream.read_line(&mut head).await.unwrap() > 0, "{head}");
    }
    (stream, head.to_lowercase())
}

pub(super) async fn line(stream: &mut (impl AsyncBufRead + Unpin)) -> String {
    let mut line = String::new();
    tokio::time::timeout(DEADLINE, stream.read_line(&mut line)).await.unwrap().unwrap();
    line
}

#[tokio::test]
async fn an_upgrade_is_a_tunnel_in_both_directions() {
    // An apiserver that offers HTTP/2 is asked in HTTP/1.1, the only one that has upgrades.
    for behind in [Behind::plain(shout).await, Behind::tls(&["h2", "http/1.1"], shout).await] {
        let program = behind.program("", "").await;
        let (mut stream, head) = exec(&program).await;
        assert!(head.starts_with("http/1.1 101 "), "{head}");
        for expected in [
            "\r\nconnection: upgrade\r\n",
            "\r\nupgrade: spdy/3.1\r\n",
            "\r\nx-stream-protocol-version: v4.channel.k8s.io\r\n",
        ] {
            assert!(head.contains(expected), "{head}");
        }
        assert_eq!(line(&mut stream).await, "hello\n");
        for _ in 0..3 {
            stream.write_all(b"ls\n").await.unwrap();
            assert_eq!(line(&mut stream).await, "LS\n");
        }
        assert_eq!(program.metrics().await["eventweir_passthrough_upgrades"], 1.0);
        // One side is closed, and the other one still speaks.
        stream.shutdown().await.unwrap();
        let mut rest = String::new();
        tokio::time::timeout(DEADLINE, stream.read_to_string(&mut rest)).await.unwrap().unwrap();
        assert_eq!(rest, "goodbye");
        let seen = behind.seen();
        assert_eq!(seen[0].header("authorization"), Some("Bearer caller's"));
        assert_eq!(seen[0].header("connection").map(str::to_lowercase).as_deref(), Some("upgrade"));
        let metrics = program.metrics().await;
        assert_eq!(metrics["eventweir_passthrough_requests_total{kind=\"upgrade\"}"], 1.0);
        program.stop().await;
    }
}

#[tokio::test]
async fn tunnels_have_a_limit_and_end_with_the_program() {
    let behind = Behind::plain(shout).await;
    let program = behind.program("maxUpgrades: 1", "").await;
    let (mut first, _) = exec(&program).await;
    assert_eq!(line(&mut first).await, "hello\n");
    let (_, head) = exec(&program).await;
    assert!(head.starts_with("http/1.1 429 ") && head.contains("\r\nretry-after: 1\r\n"), "{head}");
    program.stop().await;
    assert_eq!(line(&mut first).await, "", "it has ended");
}

#[tokio::test]
async fn an_upgrade_that_is_refused_is_an_answer_like_others() {
    let behind = Behind::plain(|_| async { answer(403, "no") }).await;
    let program = behind.program("", "").await;
    let (mut stream, head) = exec(&program).await;
    assert!(head.starts_with("http/1.1 403 ") && head.contains("content-length: 2\r\n"), "{head}");
    let mut body = [0; 2];
    stream.read_exact(&mut body).await.unwrap();
    assert_eq!(&body, b"no");
    program.stop().await;
}
