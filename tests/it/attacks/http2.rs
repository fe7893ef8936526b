//! Attacks over HTTP/2, in frames. With pass-through, the API server speaks HTTP/1.1, where headers are lines.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::super::support::app::DEADLINE;
use super::super::support::events::plain;
use super::super::support::http::{Client, EVENTS, json};
use super::super::support::ways::{Entry, Way};
use super::PODS;

/// The preface of a client, and its settings.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
/// The largest payload of a frame.
const FRAME: usize = 16_384;
const PROTOCOL_ERROR: u32 = 1;
pub(crate) const CANCEL: u32 = 8;
const ENHANCE_YOUR_CALM: u32 = 11;

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Encodes a length of HPACK.
fn length(bytes: &[u8]) -> Vec<u8> {
    match u8::try_from(bytes.len()) {
        Ok(short @ ..=126) => vec![short],
        _ => {
            let mut rest = bytes.len() - 127;
            let mut encoded = vec![127];
            while rest >= 128 {
                encoded.push(u8::try_from(rest % 128 + 128).unwrap());
                rest /= 128;
            }
            encoded.push(u8::try_from(rest).unwrap());
            encoded
        }
    }
}

/// Encodes headers as literals.
pub(crate) fn block(headers: &[(&str, &str)]) -> Vec<u8> {
    let encode = |text: &str| [length(text.as_bytes()), text.as_bytes().to_vec()].concat();
    headers.iter().flat_map(|(name, value)| [vec![0], encode(name), encode(value)].concat()).collect()
}

/// Returns the headers of this method, authority and path.
pub(crate) fn pseudo<'a>(values: &[&'a str; 3]) -> Vec<(&'static str, &'a str)> {
    let [method, authority, path] = *values;
    vec![(":method", method), (":scheme", "https"), (":authority", authority), (":path", path)]
}

/// Returns the code in the first header block of a connection: of the static table, or as a literal.
fn code(block: &[u8]) -> u16 {
    let codes = [
        (&[0x88][..], 200),
        (&[0x48, 0x82, 0x10, 0x03], 201),
        (&[0x48, 0x83, 0x68, 0x0c, 0xff], 403),
        (&[0x8d], 404),
        (&[0x48, 0x83, 0x69, 0x90, 0xff], 431),
    ];
    codes.into_iter().find(|(begin, _)| block.starts_with(begin)).unwrap().1
}

/// How a stream or its connection ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Answered with this code.
    Answered(u16),
    Reset(u32),
    GoAway(u32),
    Closed,
}

/// Reads frames until a stream has answer headers or is reset, or the connection ends.
pub(crate) async fn end_of(stream_id: u32, reader: &mut (impl tokio::io::AsyncRead + Unpin)) -> End {
    let reading = async {
        loop {
            let mut head = [0; 9];
            if reader.read_exact(&mut head).await.is_err() {
                return End::Closed;
            }
            let [high, middle, low, kind, _, stream @ ..] = head;
            let mut payload = vec![0; usize::try_from(u32::from_be_bytes([0, high, middle, low])).unwrap()];
            if reader.read_exact(&mut payload).await.is_err() {
                return End::Closed;
            }
            let reason = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
            match (kind, u32::from_be_bytes(stream)) {
                (GOAWAY, _) if reason(4) != 0 => return End::GoAway(reason(4)),
                (RST_STREAM, id) if id == stream_id => return End::Reset(reason(0)),
                (HEADERS, id) if id == stream_id => return End::Answered(code(&payload)),
                _ => {}
            }
        }
    };
    timeout(DEADLINE, reading).await.unwrap()
}

/// Sends frames behind the preface, and returns the end.
async fn send(entry: &Entry, frames: &[u8]) -> End {
    let (mut reader, mut writer) = tokio::io::split(entry.connect_for("h2").await);
    let sending = async {
        // The server may close before it has read everything.
        let _closed = writer.write_all(&[PREFACE, frames].concat()).await;
        let _closed = writer.flush().await;
    };
    tokio::join!(sending, end_of(1, &mut reader)).1
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Taken with its body, which is an event.
    Taken,
    /// It breaks HTTP/2.
    Broken,
    /// Answered by eventweir.
    Code(u16),
}

use Fate::{Broken, Code, Taken};

/// A name, headers, and the fate of their request.
type Row<T> = (&'static str, T, Fate);

const SMUGGLED: &str = "\r\n\r\nGET /api/v1/second HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Headers that would be several lines, or another end of the body, over HTTP/1.1.
fn headers(right: &str) -> Vec<Row<Vec<(&'static str, String)>>> {
    let lines = |begin: &str| format!("{begin}{SMUGGLED}");
    let one = |name: &'static str, value: &str| vec![(name, value.to_owned())];
    let two =
        |one: &str, other: &str| ["content-length"].repeat(2).into_iter().zip([one.into(), other.into()]).collect();
    vec![
        ("none", vec![], Taken),
        ("the length", one("content-length", right), Taken),
        ("the length twice", two(right, right), Taken),
        ("two lengths", two(right, "5"), Broken),
        ("no length", one("content-length", "0"), Broken),
        ("a shorter length", one("content-length", "5"), Broken),
        ("a longer length", one("content-length", "9999"), Broken),
        ("a length with a sign", one("content-length", "+5"), Broken),
        ("an encoding", one("transfer-encoding", "chunked"), Broken),
        ("an encoding in capitals", one("Transfer-Encoding", "chunked"), Broken),
        ("an encoding and a blank", one("transfer-encoding ", "chunked"), Broken),
        ("trailers", one("te", "trailers"), Taken),
        ("another encoding", one("te", "gzip"), Broken),
        ("a header of the connection", one("connection", "close"), Broken),
        ("an upgrade", one("upgrade", "websocket"), Broken),
        ("lines in a value", one("a", &lines("b")), Broken),
        ("a line feed in a value", one("a", "b\nc: d"), Broken),
        ("a NUL in a value", one("a", "b\0"), Broken),
        ("lines in a name", one("a: b\r\nc", "d"), Broken),
        ("a colon in a name", one("a:b", "d"), Broken),
        ("an empty name", one("", "d"), Broken),
        ("a second path", one(":path", "/other"), Broken),
        ("an unknown pseudo header", one(":a", "b"), Broken),
        ("another host", one("host", "evil.example"), Code(403)),
        ("another origin", one("origin", "http://evil.example"), Code(403)),
        ("another site", one("sec-fetch-site", "cross-site"), Code(403)),
        // Fault: the fields of 107 KiB took 10 MiB of memory.
        ("101 fields", vec![("a", "b".to_owned()); 101], Code(431)),
        ("20 kB", one("a", &"x".repeat(20_000)), Code(431)),
    ]
}

/// Pseudo headers with the same aim: method, authority and path, where `/` stands for the path of the attack.
fn pseudo_headers() -> Vec<Row<[String; 3]>> {
    let [post, localhost, path] = ["POST", "localhost", "/"];
    let lines = |begin: &str| format!("{begin} HTTP/1.1{SMUGGLED}");
    let rows = [
        ("lines in the method", [&*lines("GET /"), localhost, path], Broken),
        ("a blank in the method", ["GET /a", localhost, path], Broken),
        ("lines in the path", [post, localhost, &lines("/a")], Broken),
        ("a blank in the path", [post, localhost, "/a b"], Broken),
        ("no path", [post, localhost, ""], Broken),
        ("a path without a slash", [post, localhost, "api"], Broken),
        ("an absolute path", [post, localhost, "http://evil.example/"], Broken),
        ("lines in the authority", [post, &lines("localhost"), path], Broken),
        ("another authority", [post, "evil.example", path], Code(403)),
        ("a user in the authority", [post, "localhost@evil.example", path], Code(403)),
    ];
    rows.map(|(name, pseudo, fate)| (name, pseudo.map(ToOwned::to_owned), fate)).to_vec()
}

/// The event in every request.
fn body() -> Vec<u8> {
    let mut event = plain();
    event.metadata.name = "web-0.1".into();
    json(&event)
}

/// Sends a request with an event as its body, and checks its fate.
async fn attack(entry: &Entry, path: &str, headers: &[(&str, &str)], fate: Fate, name: &str) {
    let (body, block) = (body(), block(headers));
    let (first, rest) = block.split_at(block.len().min(FRAME));
    let mut frames = frame(HEADERS, if rest.is_empty() { END_HEADERS } else { 0 }, 1, first);
    if !rest.is_empty() {
        frames.extend(frame(CONTINUATION, END_HEADERS, 1, rest));
    }
    frames.extend(frame(DATA, END_STREAM, 1, &body));
    let (end, arrived) = (send(entry, &frames).await, entry.take_arrived());
    let attack = format!("{:?} {path}, {name}: {end:?} {arrived:?}", entry.way);
    match fate {
        Taken => assert_eq!(end, End::Answered(entry.first(path)), "{attack}"),
        Broken => assert!(matches!(end, End::Reset(PROTOCOL_ERROR) | End::GoAway(PROTOCOL_ERROR)), "{attack}"),
        Code(code) => assert_eq!(end, End::Answered(code), "{attack}"),
    }
    let is_forwarded = entry.way == Way::Passthrough && path == PODS && fate == Taken;
    let lengths: Vec<usize> = arrived.iter().map(|arrived| arrived.body.len()).collect();
    assert_eq!(lengths, Vec::from_iter(is_forwarded.then_some(body.len())), "{attack}");
}

#[tokio::test]
async fn no_request_is_smuggled_over_http_2() {
    let right = body().len().to_string();
    for way in Way::ALL {
        let entry = Entry::open(way, "").await;
        for path in [EVENTS, PODS] {
            for (name, more, fate) in headers(&right) {
                let more: Vec<_> = more.iter().map(|(name, value)| (*name, &**value)).collect();
                attack(&entry, path, &[&pseudo(&["POST", "localhost", path])[..], &more].concat(), fate, name).await;
            }
            for (name, [method, authority, target], fate) in pseudo_headers() {
                let target = if target == "/" { path } else { &target };
                attack(&entry, path, &pseudo(&[&method, &authority, target]), fate, name).await;
            }
        }
        let ledger = entry.program.balance().ledger;
        assert_eq!(ledger.received() - ledger.total_rejected(), 4, "{way:?}");
        entry.close().await;
    }
}

/// Returns the frames of a GET that is cancelled at once.
fn cancelled(get: &[u8], number: u32) -> Vec<u8> {
    let stream = 2 * number + 1;
    let request = frame(HEADERS, END_HEADERS | END_STREAM, stream, get);
    [request, frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes())].concat()
}

/// Fault: twenty ended the connection, and with it the client's watches.
#[tokio::test]
async fn a_client_may_cancel_many_requests_at_once() {
    let get = block(&pseudo(&["GET", "localhost", EVENTS]));
    for way in Way::ALL {
        let entry = Entry::open(way, "").await;
        let kept = frame(HEADERS, END_HEADERS | END_STREAM, 1, &get);
        let frames: Vec<u8> = kept.into_iter().chain((1..200).flat_map(|number| cancelled(&get, number))).collect();
        assert_eq!(send(&entry, &frames).await, End::Answered(200), "{way:?}");
        entry.close().await;
    }
}

/// Requests that are reset at once, and headers without an end. Other clients are served.
#[tokio::test]
async fn floods_over_http_2_end_their_connection() {
    let get = block(&pseudo(&["GET", "localhost", PODS]));
    let endless = |piece: &[u8]| {
        let begin = frame(HEADERS, END_STREAM, 1, &get);
        [begin, frame(CONTINUATION, 0, 1, piece).repeat(100_000)].concat()
    };
    let floods = [
        ("rapid reset", (0..20_000).flat_map(|number| cancelled(&get, number)).collect()),
        ("headers", endless(&block(&[("a", "b")]))),
        ("empty pieces of a header", endless(b"")),
    ];
    for way in Way::ALL {
        let entry = Entry::open(way, "").await;
        for (name, flood) in &floods {
            assert_eq!(send(&entry, flood).await, End::GoAway(ENHANCE_YOUR_CALM), "{way:?}, {name}");
            let mut other = Client::over(entry.connect().await);
            assert_eq!(other.send("POST", EVENTS, &[], &json(&plain())).await.status, 201, "{way:?}, {name}");
        }
        if way == Way::Passthrough {
            entry.program.until_metric("eventweir_passthrough_in_flight", |open| open == 0.0).await;
        }
        entry.program.until_metric("eventweir_ingest_connections", |open| open == 0.0).await;
        entry.close().await;
    }
}
