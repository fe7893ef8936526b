//! Clients that are slow, silent, closed on one side or of another protocol.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::super::support::app::DEADLINE;
use super::super::support::events::plain;
use super::super::support::http::{EVENTS, json};
use super::super::support::ways::{Answers, Entry, Way, exchange};
use super::PODS;
use super::http2::{END_HEADERS, END_STREAM, End, HEADERS, block, end_of, frame, pseudo};

/// Pause of a slow client.
const PAUSE: Duration = Duration::from_secs(7);
/// Pieces that it sends up to the limit, `ingest.requestTimeout`: 60 s.
const PIECES: u32 = 8;

/// Sends a beginning, and then a piece after each pause, until the server closes. Returns the number of pieces and the
/// answer; `None` if the connection is still open long after the limit.
async fn drip(entry: &Entry, begin: &str, piece: &str) -> Option<(u32, Answers)> {
    let (mut connection, mut answer, mut pieces) = (entry.connect().await, Vec::new(), 0);
    connection.write_all(begin.as_bytes()).await.unwrap();
    while pieces < PIECES * 3 {
        match timeout(PAUSE, connection.read_buf(&mut answer)).await {
            Ok(Ok(0) | Err(_)) => return Some((pieces, answer.into())),
            Ok(Ok(_)) => {}
            Err(_) => {
                pieces += 1;
                // It may have closed meanwhile.
                let _closed = connection.write_all(piece.as_bytes()).await;
            }
        }
    }
    None
}

/// Name, beginning, what follows it slowly, and the code of the answer.
type Slow = (&'static str, String, &'static str, Option<u16>);

#[tokio::test(start_paused = true)]
async fn slow_and_silent_clients_are_closed_at_the_limit() {
    let get = format!("GET {EVENTS} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let rows: [Slow; 8] = [
        ("silent", String::new(), "", None),
        ("half of a preface of HTTP/2", "PRI * HTTP/2.0\r\n".to_owned(), "", None),
        ("a preface of HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), "", None),
        ("settings of HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_owned(), "", None),
        ("a slow line", "GET /".to_owned(), "a", None),
        ("a slow header", "GET / HTTP/1.1\r\n".to_owned(), "A: b\r\n", None),
        ("idle", get.clone(), "", Some(200)),
        ("a slow header behind a request", get, "A", Some(200)),
    ];
    for way in Way::ALL {
        let entry = Entry::open(way, "").await;
        for (name, begin, piece, code) in &rows {
            let (pieces, answers) = drip(&entry, begin, piece).await.expect(name);
            assert_eq!((pieces, answers.codes()), (PIECES, Vec::from_iter(*code)), "{way:?}, {name}");
        }
        entry.program.until_metric("eventweir_ingest_connections", |open| open == 0.0).await;
        entry.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn slow_bodies_are_refused_or_forwarded() {
    let head = |path: &str, framing: &str| format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n{framing}\r\n\r\n");
    for way in Way::ALL {
        let entry = Entry::open(way, "").await;
        for (framing, piece) in [("Content-Length: 1000", "{"), ("Transfer-Encoding: chunked", "1\r\n{\r\n")] {
            for path in [EVENTS, PODS] {
                let slow = drip(&entry, &head(path, framing), piece).await;
                let attack = format!("{way:?} {path} {framing}");
                let Some(behind) = &entry.behind else {
                    let (pieces, answers) = slow.expect(&attack);
                    // The body of an unknown path is not waited for.
                    let expected = if path == EVENTS { (PIECES, 408) } else { (0, 404) };
                    assert_eq!((pieces, answers.codes()), (expected.0, vec![expected.1]), "{attack}");
                    continue;
                };
                // The API server has its own limits. The request ends with its client.
                assert!(slow.is_none(), "{attack}: {slow:?}");
                assert_eq!(behind.passed_on().last().unwrap().line, format!("POST {path}"));
                entry.program.until_metric("eventweir_passthrough_in_flight", |open| open == 0.0).await;
            }
        }
        entry.close().await;
    }
}

/// Fault: some of these requests had no answer.
#[tokio::test]
async fn a_client_that_closes_its_side_is_answered() {
    const TIMES: usize = 100;
    let body = json(&plain());
    for way in Way::ALL {
        let entry = Entry::open(way, "").await;
        for (path, forwarded) in [(EVENTS, 0), (PODS, TIMES)] {
            for number in 0..TIMES {
                let mut connection = entry.connect().await;
                let head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len());
                connection.write_all(&[head.as_bytes(), &body].concat()).await.unwrap();
                connection.shutdown().await.unwrap();
                let codes = exchange(connection, b"").await.codes();
                assert_eq!(codes, [entry.first(path)], "{way:?} {path} {number}");
            }
            let arrived = if way == Way::Passthrough { forwarded } else { 0 };
            assert_eq!(entry.take_arrived().len(), arrived, "{way:?} {path}");
        }
        assert_eq!(entry.program.balance().ledger.received(), TIMES as u64);
        entry.close().await;
    }
}

/// Sends bytes to the port as they are, closes this side, and reads to the end.
async fn raw(entry: &Entry, bytes: &[u8]) -> Vec<u8> {
    let (mut stream, mut read) = (TcpStream::connect(entry.address()).await.unwrap(), Vec::new());
    stream.write_all(bytes).await.unwrap();
    stream.shutdown().await.unwrap();
    timeout(DEADLINE, stream.read_to_end(&mut read)).await.unwrap().unwrap();
    read
}

#[tokio::test]
async fn another_protocol_is_refused() {
    const HELLO: &[u8] = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    let (request, garbage) = (b"GET / HTTP/1.1\r\n\r\n", b"\0\xff\x80\r\n\r\n");
    for way in Way::ALL {
        let entry = Entry::open(way, "").await;
        let [hello, old_hello, random, plain] =
            [HELLO, b"\x80\x2e\x01\x03\x01", garbage, request].map(|bytes| raw(&entry, bytes));
        let [hello, old_hello, random, plain] = [hello.await, old_hello.await, random.await, plain.await];
        if way == Way::Plain {
            for answer in [hello, old_hello, random] {
                assert_eq!(Answers::from(answer).codes(), [400]);
            }
            assert_eq!(Answers::from(plain).codes(), [403], "it names no host");
        } else {
            assert!(hello.is_empty(), "the rest of a hello is missing");
            // Alerts of TLS.
            assert_eq!((old_hello[0], random[0]), (21, 21));
            assert!(Answers::from(plain).text().ends_with("Client sent an HTTP request to an HTTPS server.\n"));
        }
        assert_eq!(entry.take_arrived(), []);
        entry.close().await;
    }
}

/// Opens a connection to the admin port, which takes nothing of an answer's body, and sends so many requests.
async fn ask_admin(entry: &Entry, path: &str, requests: u32) -> TcpStream {
    const SETTINGS: u8 = 4;
    let block = block(&pseudo(&["GET", "localhost", path]));
    // The first of them is 0: the window of each stream.
    let mut frames = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    frames.extend((0..requests).flat_map(|number| frame(HEADERS, END_HEADERS | END_STREAM, 2 * number + 1, &block)));
    let mut connection = TcpStream::connect(entry.program.app.admin_address()).await.unwrap();
    connection.write_all(&[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &*frames].concat()).await.unwrap();
    connection
}

/// Fault: 64 idle connections to the admin port kept the kubelet's probes out, so that the container was restarted.
#[tokio::test]
async fn connections_to_the_admin_port_keep_no_probe_out() {
    let entry = Entry::open(Way::Plain, "").await;
    let mut idle = Vec::new();
    for _ in 0..100 {
        let mut connection = ask_admin(&entry, "/livez", 1).await;
        assert_eq!(end_of(1, &mut connection).await, End::Answered(200), "{} are open", idle.len());
        idle.push(connection);
    }
    assert_eq!(end_of(3, &mut idle[0]).await, End::Closed, "the oldest has ended");
    entry.close().await;
}

/// Fault: each connection kept up to 200 copies of all metrics in memory.
#[tokio::test]
async fn answers_of_the_admin_port_that_are_not_read_are_few() {
    const REFUSED_STREAM: u32 = 7;
    let entry = Entry::open(Way::Plain, "").await;
    assert_eq!(end_of(7, &mut ask_admin(&entry, "/metrics", 5).await).await, End::Answered(200));
    assert_eq!(end_of(9, &mut ask_admin(&entry, "/metrics", 5).await).await, End::Reset(REFUSED_STREAM));
    entry.close().await;
}
