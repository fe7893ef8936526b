//! Bodies that are no events, or odd ones: by every way they have the same answer, and none is forwarded.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::Write as _;

use eventweir::ledger::RejectReason::{Invalid, Malformed, TooLarge};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::super::support::app::DEADLINE;
use super::super::support::events::plain;
use super::super::support::http::{EVENTS, json as json_of};
use super::super::support::ways::{Answers, Entry, Way};

const BATCH: &str = "/eventweir/v1/events";
const MEBIBYTE: usize = 1 << 20;
const CHUNKED: &str = "Transfer-Encoding: chunked\r\n";
const PIECE: usize = 64 << 10;
const LARGE: u64 = 200 << 20;
/// Bytes that the sockets of both hops may buffer.
const ON_THE_WAY: u64 = 80 << 20;

/// A request to post, and its answer: name, path, additional header, body, code, and a part of the answer's body.
type Attack = (&'static str, &'static str, Option<(&'static str, &'static str)>, Vec<u8>, u16, &'static str);

/// Returns an event with a member of this raw value, which replaces another one of its name.
fn with(member: &str, raw: &str) -> Vec<u8> {
    let mut event: Value = serde_json::from_slice(&json_of(&plain())).unwrap();
    event[member] = json!("PLACE");
    event.to_string().replace("\"PLACE\"", raw).into_bytes()
}

/// Returns an event with so many labels or annotations, in about a mebibyte.
fn described(kind: &str) -> Vec<u8> {
    let mut event: Value = serde_json::from_slice(&json_of(&plain())).unwrap();
    let pairs = (0..MEBIBYTE / 64).map(|number| (format!("a-{number:024}"), json!("x".repeat(32))));
    event["metadata"][kind] = Value::Object(pairs.collect());
    event.to_string().into_bytes()
}

/// Compresses so many mebibytes.
fn bomb(mebibytes: usize) -> Vec<u8> {
    let mut bomb = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    bomb.write_all(br#"{"message":""#).unwrap();
    for _ in 0..mebibytes {
        bomb.write_all(&vec![b'x'; MEBIBYTE]).unwrap();
    }
    bomb.finish().unwrap()
}

/// Replaces a text within an event by these bytes.
fn message(bytes: &[u8]) -> Vec<u8> {
    let event = String::from_utf8(with("message", "\"a PLACE b\"")).unwrap();
    let (before, behind) = event.split_once("PLACE").unwrap();
    [before.as_bytes(), bytes, behind.as_bytes()].concat()
}

fn deep() -> Vec<Attack> {
    let nested = |open: &str, close: &str, levels: usize| {
        with("unknown", &format!("{}1{}", open.repeat(levels), close.repeat(levels)))
    };
    let gzip = Some(("Content-Encoding", "gzip"));
    vec![
        ("a million arrays in an unknown member", EVENTS, None, nested("[", "]", 1_000_000), 201, ""),
        ("a hundred thousand objects", EVENTS, None, nested("{\"a\":", "}", 100_000), 201, ""),
        ("arrays without an end", EVENTS, None, b"[".repeat(1_000_000), 400, ""),
        ("a batch of deep arrays", BATCH, None, b"[".repeat(1_000_000), 200, "400"),
        ("a gzip bomb", EVENTS, gzip, bomb(100), 400, ""),
        ("a gzip bomb as a batch", BATCH, gzip, bomb(100), 200, "the body is not JSON"),
        ("a mebibyte of labels", EVENTS, None, described("labels"), 201, ""),
        ("a mebibyte of annotations", EVENTS, None, described("annotations"), 422, ""),
        ("a line of 8 MiB", BATCH, None, b"x".repeat(8 * MEBIBYTE), 200, "413"),
    ]
}

fn texts() -> Vec<Attack> {
    let rows = [
        ("an escaped NUL", message(br"\u0000"), 201, r"a \u0000 b"),
        ("a raw NUL", message(b"\0"), 400, ""),
        ("a raw line end", message(b"\n"), 400, ""),
        ("invalid UTF-8", message(b"\xff\xfe"), 201, "a \u{fffd}\u{fffd} b"),
        ("an overlong slash", message(b"\xc0\xaf"), 201, "a \u{fffd}\u{fffd} b"),
        ("a surrogate in UTF-8", message(b"\xed\xa0\x80"), 201, "a \u{fffd}\u{fffd}\u{fffd} b"),
        ("a lone surrogate", message(br"\ud83d"), 201, "a \u{fffd} b"),
        ("surrogates in the wrong order", message(br"\ude00\ud83d"), 201, "a \u{fffd}\u{fffd} b"),
        ("an unknown escape", message(br"\x41"), 400, ""),
    ];
    rows.map(|(name, body, code, part)| (name, EVENTS, None, body, code, part)).to_vec()
}

fn numbers() -> Vec<Attack> {
    let rows = [
        ("a negative count", with("count", "-5"), 201, r#""count":-5"#),
        ("no count", with("count", "0"), 201, ""),
        ("the largest count", with("count", "2147483647"), 201, r#""count":2147483647"#),
        ("a larger count", with("count", "2147483648"), 400, ""),
        ("half a count", with("count", "1.5"), 400, ""),
        ("a count without an end", with("count", &"9".repeat(MEBIBYTE)), 400, ""),
        ("an exponent", with("count", "1e999999999"), 400, ""),
        ("a count as text", with("count", "\"1\""), 400, ""),
        ("the year 0", with("firstTimestamp", "\"0000-01-01T00:00:00Z\""), 201, "0000-01-01T00:00:00Z"),
        ("the year 9999", with("firstTimestamp", "\"9999-12-31T23:59:59Z\""), 201, "9999-12-31T23:59:59Z"),
        ("the year 10000", with("firstTimestamp", "\"10000-01-01T00:00:00Z\""), 201, "9999-12-31T23:59:59Z"),
        ("30 February", with("firstTimestamp", "\"2026-02-30T00:00:00Z\""), 400, ""),
        ("no time", with("firstTimestamp", "\"\""), 400, ""),
        ("a key twice", with("count", "3,\"count\":4"), 201, r#""count":4"#),
    ];
    let strict = "/api/v1/namespaces/shop/events?fieldValidation=Strict";
    let twice = ("a key twice, strictly", strict, None, with("count", "3,\"count\":4"), 400, "duplicate field");
    rows.map(|(name, body, code, part)| (name, EVENTS, None, body, code, part)).into_iter().chain([twice]).collect()
}

/// Posts each body. With pass-through as well, ingest answers: the API server would refuse it too, or it is taken.
#[tokio::test]
async fn an_odd_body_has_the_same_answer_by_every_way() {
    for way in Way::ALL {
        let entry = Entry::open(way, "").await;
        for attacks in [deep(), texts(), numbers()] {
            for (name, path, header, body, code, part) in attacks {
                let header = header.map_or_else(String::new, |(name, value)| format!("{name}: {value}\r\n"));
                let head = head(path, &format!("{header}Content-Length: {}\r\n", body.len()));
                let answers = entry.send(&[head.as_bytes(), &body].concat()).await;
                let text = answers.text();
                assert!(answers.codes() == [code] && text.contains(part), "{way:?}, {name}: {text}");
            }
        }
        assert_eq!(entry.take_arrived(), []);
        let ledger = entry.program.balance().ledger;
        let refused = [Malformed, Invalid, TooLarge].map(|reason| ledger.rejected(reason));
        assert_eq!(refused, [15, 1, 1], "{way:?}");
        entry.close().await;
    }
}

/// Returns the head of a POST after which the connection is closed.
fn head(path: &str, headers: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n")
}

/// Sends a head and pieces until all are sent or the server has closed. Returns the answer's code, the bytes that were
/// sent, and how many of them had not arrived at the API server, at most.
async fn pour(entry: &Entry, head: &str, piece: &[u8]) -> (u16, u64, u64) {
    let (mut reader, mut writer) = tokio::io::split(entry.connect().await);
    let (mut sent, mut most, mut read) = (0, 0, Vec::new());
    let pouring = async {
        let mut is_open = writer.write_all(head.as_bytes()).await.is_ok();
        while is_open && sent < LARGE {
            is_open = writer.write_all(piece).await.is_ok();
            sent += PIECE as u64;
            most = most.max(sent.saturating_sub(entry.bytes()));
        }
        if is_open && head.contains("chunked") {
            let _closed = writer.write_all(b"0\r\n\r\n").await;
        }
        // TLS may have kept the last bytes.
        let _closed = writer.flush().await;
    };
    let both = async { tokio::join!(pouring, reader.read_to_end(&mut read)) };
    assert!(tokio::time::timeout(DEADLINE * 3, both).await.is_ok(), "not answered: {head}");
    (Answers::from(read).codes()[0], sent, most)
}

/// 200 MB as an event, and for the API server.
#[tokio::test]
async fn a_body_without_an_end_is_refused_early_or_streamed() {
    let chunk = [format!("{PIECE:x}\r\n").as_bytes(), &[b'x'; PIECE], b"\r\n"].concat();
    let framings = [
        (format!("Content-Length: {LARGE}\r\n"), &chunk[chunk.len() - PIECE - 2..chunk.len() - 2]),
        (CHUNKED.to_owned(), &chunk),
    ];
    for way in Way::ALL {
        let entry = Entry::open(way, "").await;
        for (headers, piece) in &framings {
            for path in [EVENTS, "/api/v1/namespaces/shop/pods/web-0/proxy/"] {
                let before = entry.bytes();
                let (code, sent, most) = pour(&entry, &head(path, headers), piece).await;
                let attack = format!("{way:?} {path} {headers:?}: {code}, {sent} bytes");
                if way == Way::Passthrough {
                    assert_eq!((code, sent, entry.bytes() - before), (200, LARGE, LARGE), "{attack}");
                    assert!(most < ON_THE_WAY, "{attack}, {most} at once");
                } else {
                    let refused = if path == EVENTS { 413 } else { 404 };
                    assert!(code == refused && sent < ON_THE_WAY, "{attack}");
                }
            }
        }
        entry.close().await;
    }
}
