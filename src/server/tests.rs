//! Clients against a server. Time is paused, and advances only while all tasks wait.

use std::convert::Infallible;
use std::sync::Mutex;

use axum::body::{Body, Bytes};
use futures_util::FutureExt as _;
use futures_util::stream::{once, unfold};
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http2;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio_util::io::InspectWriter;

use super::*;

const STREAMS: u32 = 200;
const LIMIT: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);
const HEAD: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";

fn settings() -> Settings {
    let (max_connections, beyond) = (1000, OverLimit::Waits);
    Settings { max_connections, beyond, streams: STREAMS, client_timeout: LIMIT, close_timeout: LIMIT }
}

/// A server and its address.
async fn server() -> (Server, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server {
        listener: listener.into(),
        tls: None,
        settings: settings(),
        connections: IntGauge::new("unregistered", "connections").unwrap(),
        tasks: TaskTracker::new(),
        end: CancellationToken::new().into(),
    };
    (server, address)
}

/// A service made of a function.
fn answering<F>(answer: impl Fn(Request<Body>) -> F + Clone + Send + Sync + 'static) -> impl Answer
where
    F: Future<Output = Response> + Send + 'static,
{
    tower::service_fn(move |request| answer(request).map(Ok::<_, Infallible>))
}

/// A client of a server that answers by this function.
async fn connected<F>(answer: impl Fn(Request<Body>) -> F + Clone + Send + Sync + 'static) -> TcpStream
where
    F: Future<Output = Response> + Send + 'static,
{
    let (server, address) = server().await;
    server.tasks.clone().spawn(server.serve(answering(answer)));
    TcpStream::connect(address).await.unwrap()
}

/// A connection of a server.
fn connection() -> Client {
    let (closing, stop) = (CancellationToken::new(), CancellationToken::new());
    Client { builder: builder(&settings()), timeout: LIMIT, closing, stop }
}

/// A client's stream to a server that answers by this function, and the end of the connection. In memory, because time would
/// pass while a ping is in a socket.
fn connected_in_memory<F>(
    answer: impl Fn(Request<Body>) -> F + Clone + Send + Sync + 'static,
) -> (DuplexStream, JoinSet<Result<(), BoxError>>)
where
    F: Future<Output = Response> + Send + 'static,
{
    let (near, far) = tokio::io::duplex(1 << 20);
    let mut serving = JoinSet::new();
    serving.spawn(connection().serve(far, Peer::default(), answering(answer)));
    (near, serving)
}

/// Answers after `time`, with a body that takes `time` too.
async fn slow(time: Duration) -> Response {
    sleep(time).await;
    Response::new(Body::from_stream(once(async move {
        sleep(time).await;
        Ok::<_, Infallible>("here")
    })))
}

async fn is_answered(client: &mut TcpStream) {
    client.write_all(HEAD).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"here\r\n0\r\n\r\n") {
        assert_ne!(client.read_buf(&mut answer).await.unwrap(), 0, "closed too early");
    }
}

/// Checks that the connection, idle for `passed`, is closed at the limit.
async fn ends(client: &mut TcpStream, passed: Duration) {
    let mut read = [0; 1000];
    let early = timeout(LIMIT - passed - SECOND, async { while client.read(&mut read).await.is_ok_and(|n| n > 0) {} });
    assert!(early.await.is_err(), "too early");
    let read = timeout(SECOND * 2, client.read(&mut read)).await;
    assert_eq!(read.expect("in time").unwrap_or(0), 0);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_being_answered_is_not_closed() {
    let mut client = connected(|_| slow(LIMIT * 3)).await;
    for _ in 0..2 {
        is_answered(&mut client).await;
        sleep(LIMIT / 2).await;
    }
    is_answered(&mut client).await;
    ends(&mut client, Duration::ZERO).await;
}

/// The answer is larger than the system's buffers, and hyper has all of it long before the client has read it.
#[tokio::test(start_paused = true)]
async fn a_client_that_reads_slowly_is_not_closed_and_one_that_reads_nothing_is() {
    const LARGE: usize = 64 << 20;
    let mut client = connected(|_| async { Response::new(Body::from(vec![b'x'; LARGE])) }).await;
    client.write_all(HEAD).await.unwrap();
    let mut read = 0;
    while read < LARGE {
        let mut some = vec![0; 8 << 20];
        let count = client.read(&mut some).await.unwrap();
        assert_ne!(count, 0, "closed after {read} bytes");
        read += count;
        sleep(LIMIT / 8).await;
    }
    client.write_all(HEAD).await.unwrap();
    sleep(LIMIT * 2).await;
    let mut rest = Vec::new();
    let _broken = client.read_to_end(&mut rest).await;
    assert!(rest.len() < LARGE, "not closed");
}

/// Fault: a request was dropped if its client closed its side before the answer.
#[tokio::test(start_paused = true)]
async fn a_client_that_closes_its_side_after_its_request_is_answered() {
    let (server, address) = server().await;
    server.tasks.clone().spawn(server.serve(answering(async |request: Request<Body>| {
        let response = slow(SECOND).await;
        match *request.method() {
            Method::POST => response,
            _ => Response::new(Body::from(response.into_body().collect().await.unwrap().to_bytes())),
        }
    })));
    for number in 0..300 {
        let mut client = TcpStream::connect(address).await.unwrap();
        let method = if number % 2 == 0 { "POST" } else { "GET" };
        client.write_all(format!("{method} / HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
        client.shutdown().await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("\r\nhere"), "{number}: {answer:?}");
    }
}

/// The last client is in the accept queue with its request when serving stops.
#[tokio::test(start_paused = true)]
async fn at_shutdown_clients_are_asked_to_close_and_the_accept_queue_is_answered_before_idle_ones_are_closed() {
    let ((server, address), mut serving) = (server().await, JoinSet::new());
    let (closing, stop) = (CancellationToken::new(), CancellationToken::new());
    let end = End { closing: closing.clone(), stop: stop.clone() };
    serving.spawn(Server { end, ..server }.serve(answering(|_| slow(Duration::ZERO))));
    let mut idle = TcpStream::connect(address).await.unwrap();
    is_answered(&mut idle).await;
    closing.cancel();
    let mut late = TcpStream::connect(address).await.unwrap();
    late.write_all(HEAD).await.unwrap();
    is_asked_to_close(late).await;
    let mut queued = std::net::TcpStream::connect(address).unwrap();
    std::io::Write::write_all(&mut queued, HEAD).unwrap();
    stop.cancel();
    queued.set_nonblocking(true).unwrap();
    is_asked_to_close(TcpStream::from_std(queued).unwrap()).await;
    assert_eq!(timeout(SECOND, idle.read(&mut [0; 10])).await.unwrap().unwrap(), 0);
    timeout(SECOND, serving.join_next()).await.unwrap().unwrap().unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}

/// Fault: without a connection it closed at once, and refused clients that did not know yet that it ends.
#[tokio::test]
async fn at_shutdown_late_clients_are_answered_where_other_machines_connect() {
    for (host, is_answered) in [("127.0.0.1:0", false), ("0.0.0.0:0", true)] {
        let ((server, _), mut serving) = (server().await, JoinSet::new());
        let listener = TcpListener::bind(host).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (closing, stop) = (CancellationToken::new(), CancellationToken::new());
        let end = End { closing: closing.clone(), stop: stop.clone() };
        closing.cancel();
        serving.spawn(Server { end, listener: listener.into(), ..server }.serve(answering(|_| slow(Duration::ZERO))));
        if is_answered {
            let mut late = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            late.write_all(HEAD).await.unwrap();
            is_asked_to_close(late).await;
            stop.cancel();
        }
        serving.join_next().await.unwrap().unwrap();
        assert!(TcpStream::connect(("127.0.0.1", port)).await.is_err());
    }
}

async fn is_asked_to_close(mut client: TcpStream) {
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains("connection: close\r\n") && answer.contains("here"), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn a_running_request_has_the_close_timeout_to_be_answered() {
    for (time, is_in_time) in [(LIMIT / 3, true), (LIMIT, false)] {
        let ((server, address), stop) = (server().await, CancellationToken::new());
        let (mut serving, started) = (JoinSet::new(), Arc::new(Barrier::new(2)));
        let has_started = Arc::clone(&started);
        serving.spawn(Server { end: stop.clone().into(), ..server }.serve(answering(move |_| {
            let has_started = Arc::clone(&has_started);
            async move {
                has_started.wait().await;
                slow(time).await
            }
        })));
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(HEAD).await.unwrap();
        started.wait().await;
        stop.cancel();
        assert!(timeout(LIMIT - SECOND, serving.join_next()).await.is_ok() == is_in_time, "{time:?}");
        if is_in_time {
            is_asked_to_close(client).await;
        } else {
            timeout(SECOND * 2, serving.join_next()).await.unwrap();
        }
    }
}

/// The client of a watch that sends so many bytes at once and then nothing, and a token that is cancelled at its end.
async fn watching(bytes: usize) -> (TcpStream, CancellationToken) {
    let ended = CancellationToken::new();
    let answer = ended.clone();
    let mut client = connected(move |_| {
        let watch = unfold((answer.clone().drop_guard(), bytes), async |(ended, left)| {
            if left == 0 {
                std::future::pending::<()>().await;
            }
            Some((Ok::<_, Infallible>(vec![b'x'; left.min(1 << 20)]), (ended, left - left.min(1 << 20))))
        });
        std::future::ready(Response::new(Body::from_stream(watch)))
    })
    .await;
    client.write_all(HEAD).await.unwrap();
    (client, ended)
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_when_its_client_closes_its_side() {
    let (mut client, ended) = watching(1).await;
    assert!(timeout(LIMIT * 10, ended.cancelled()).await.is_err(), "an open client is not closed");
    client.shutdown().await.unwrap();
    timeout(SECOND, ended.cancelled()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_when_its_client_reads_nothing() {
    let (_client, ended) = watching(64 << 20).await;
    assert!(timeout(LIMIT - SECOND, ended.cancelled()).await.is_err(), "too early");
    timeout(SECOND * 2, ended.cancelled()).await.unwrap();
}

/// Fault: its pings were answered, so it kept the connection and all its answers.
#[tokio::test(start_paused = true)]
async fn an_http2_client_that_reads_nothing_is_closed_and_one_that_reads_slowly_is_not() {
    const LARGE: usize = 1 << 20;
    for reads in [false, true] {
        let (near, mut serving) = connected_in_memory(|_| async { Response::new(Body::from(vec![b'x'; LARGE])) });
        let mut client = http2::Builder::new(TokioExecutor::new());
        client.initial_stream_window_size(64 << 10).initial_connection_window_size(64 << 10);
        let (mut sender, connection) = client.handshake(TokioIo::new(near)).await.unwrap();
        let mut client = JoinSet::new();
        client.spawn(connection.map(drop));
        let request = Request::get("http://x/").body(Empty::<Bytes>::new()).unwrap();
        let mut body = sender.send_request(request).await.unwrap().into_body();
        let mut read = 0;
        while reads && read < LARGE {
            sleep(LIMIT / 2).await;
            read += body.frame().await.unwrap().unwrap().into_data().unwrap().len();
        }
        if !reads {
            assert!(timeout(LIMIT, serving.join_next()).await.is_err(), "too early");
            timeout(LIMIT * 10, serving.join_next()).await.unwrap();
        }
    }
}

/// Fault: a connection with only such requests was closed as if none had arrived.
#[tokio::test(start_paused = true)]
async fn a_request_with_too_many_fields_is_a_request() {
    let (near, mut serving) = connected_in_memory(|_| async { Response::default() });
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(near)).await.unwrap();
    let mut client = JoinSet::new();
    client.spawn(connection.map(drop));
    for _ in 0..4 {
        let request = (0..=HEADER_FIELDS).fold(Request::get("http://x/"), |request, _| request.header("a", "b"));
        let answer = sender.send_request(request.body(Empty::<Bytes>::new()).unwrap()).await.unwrap();
        assert_eq!(answer.status(), StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
        assert!(timeout(LIMIT / 2, serving.join_next()).await.is_err(), "closed");
    }
}

/// Fault: it stayed open for as long as its pings were answered, and 64 of them kept all others from the admin port.
#[tokio::test(start_paused = true)]
async fn an_http2_connection_without_a_request_is_closed_and_one_with_a_watch_is_not() {
    for is_watch in [false, true] {
        let (near, mut serving) = connected_in_memory(move |_| async move {
            let watch = futures_util::stream::pending::<Result<Bytes, Infallible>>();
            Response::new(if is_watch { Body::from_stream(watch) } else { Body::from("here") })
        });
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(near)).await.unwrap();
        let mut client = JoinSet::new();
        client.spawn(connection.map(drop));
        for _ in 0..3 {
            let request = Request::get("http://x/").body(Empty::<Bytes>::new()).unwrap();
            let answer = sender.send_request(request).await.unwrap();
            if !is_watch {
                answer.into_body().collect().await.unwrap();
                assert!(timeout(LIMIT - SECOND, serving.join_next()).await.is_err(), "too early");
                continue;
            }
            assert!(timeout(LIMIT * 10, serving.join_next()).await.is_err(), "it is watched");
            break;
        }
        let end = timeout(LIMIT, serving.join_next()).await;
        assert_eq!(end.is_ok(), !is_watch, "{end:?}");
    }
}

/// Runs on a worker thread, where the task that was woken last runs first.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_over_http2_that_are_ready_together_share_a_write() {
    const COUNT: usize = 4;
    const LENGTH: usize = 900;
    let writes = Arc::new(Mutex::new(Vec::new()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (seen, together) = (Arc::clone(&writes), Arc::new(Barrier::new(COUNT)));
    let answer = answering(move |_| {
        let together = Arc::clone(&together);
        async move {
            together.wait().await;
            Response::new(Body::from(vec![b'x'; LENGTH]))
        }
    });
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let stream = InspectWriter::new(stream, move |written: &[u8]| seen.lock().unwrap().push(written.len()));
        connection().serve(stream, Peer::default(), answer).await
    });
    let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    let mut clients = JoinSet::new();
    clients.spawn(async move { connection.await.map_or(0, |()| 0) });
    let mut sending = JoinSet::new();
    for _ in 0..COUNT {
        let mut sender = sender.clone();
        sending.spawn(async move {
            let request = Request::get(format!("http://{address}/")).body(Empty::<Bytes>::new()).unwrap();
            let answer = sender.send_request(request).await.unwrap();
            assert_eq!(answer.into_body().collect().await.unwrap().to_bytes().len(), LENGTH);
        });
    }
    sending.join_all().await;
    let writes = writes.lock().unwrap();
    assert!(writes.iter().any(|length| *length > COUNT * LENGTH), "{writes:?}");
}

#[tokio::test]
async fn http2_refuses_more_streams_than_it_has_announced() {
    const FRAME: usize = 9;
    let mut client = connected(|_| std::future::pending()).await;
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    // GET / of http with these static headers, as one frame that ends headers and stream.
    for stream in (0..=STREAMS).map(|number| 2 * number + 1) {
        client.write_all(b"\0\0\x03\x01\x05").await.unwrap();
        client.write_all(&stream.to_be_bytes()).await.unwrap();
        client.write_all(&[0x82, 0x84, 0x86]).await.unwrap();
    }
    let (mut announced, mut refused) = (None, None);
    while refused.is_none() {
        let mut head = [0; FRAME];
        client.read_exact(&mut head).await.unwrap();
        let [_, high, low, kind, _, stream @ ..] = head;
        let mut payload = vec![0; usize::from(u16::from_be_bytes([high, low]))];
        client.read_exact(&mut payload).await.unwrap();
        match kind {
            // SETTINGS: pairs of a number and its value.
            4 => announced = announced.or(payload.chunks(6).find(|pair| pair[1] == 3).map(|pair| pair[2..].to_vec())),
            // RST_STREAM: the reason.
            3 => refused = Some((u32::from_be_bytes(stream), payload)),
            _ => {}
        }
    }
    assert_eq!(announced, Some(STREAMS.to_be_bytes().to_vec()));
    assert_eq!(refused, Some((2 * STREAMS + 1, 7_u32.to_be_bytes().to_vec())), "REFUSED_STREAM");
}

/// Fault: the connection stayed in the gauge for ever.
#[tokio::test]
async fn a_connection_whose_request_panics_is_not_counted_any_more() {
    let (server, address) = server().await;
    let (connections, open) = (server.connections.clone(), server.tasks.clone());
    server.tasks.clone().spawn(server.serve(answering(|_| async { panic!("a panic that the test asked for") })));
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(HEAD).await.unwrap();
    assert_eq!(client.read(&mut [0]).await.unwrap_or(0), 0);
    // The task of the server goes on.
    while open.len() > 1 {
        tokio::task::yield_now().await;
    }
    assert_eq!(connections.get(), 0);
}

/// Fault: bodies that were not read took a mebibyte of each connection, outside of the limits of bodies.
#[tokio::test(start_paused = true)]
async fn bodies_that_are_not_read_take_little_room() {
    let (near, _serving) = connected_in_memory(async |_unread| std::future::pending().await);
    let mut tasks = JoinSet::new();
    let sent = Arc::new(Mutex::new(0));
    let written = Arc::clone(&sent);
    let counted = InspectWriter::new(near, move |bytes: &[u8]| *written.lock().unwrap() += bytes.len());
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(counted)).await.unwrap();
    tasks.spawn(connection.map(drop));
    let mut after = Vec::new();
    for requests in [1, 7] {
        for _ in 0..requests {
            let mut sender = sender.clone();
            let body = Body::from(vec![b'x'; 1 << 20]);
            let request = Request::post("http://a/").body(body).unwrap();
            tasks.spawn(async move { sender.send_request(request).map(drop).await });
        }
        sleep(SECOND).await;
        after.push(*sent.lock().unwrap());
    }
    for (sent, window) in after.into_iter().zip([STREAM_WINDOW_BYTES, CONNECTION_WINDOW_BYTES]) {
        // With the headers of requests and frames.
        assert!((window as usize..window as usize + 4096).contains(&sent), "{sent} {window}");
    }
}
