//! Requests whose end can be read in more than one way, each followed by a second request. If eventweir and a server
//! before or behind it read the end differently, the second request is smuggled.
//!
//! To the paths of events and to others; with pass-through, the others are the API server's.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use super::super::support::events::plain;
use super::super::support::http::{EVENTS, json};
use super::super::support::ways::{Arrived, Entry, Way};
use super::PODS;

const SECOND: &str = "GET /api/v1/second HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
const CHUNKED: &str = "Transfer-Encoding: chunked\r\n";

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Its body is the event, and the second request follows it.
    Taken,
    /// It is refused with this code, and the connection is closed.
    Refused(u16),
    /// Its body cannot be read to an end, and the connection is closed.
    Broken,
    /// It is answered, and the connection is closed.
    Last,
}

use Fate::{Broken, Last, Refused, Taken};

/// A request: name, headers, everything behind them, and its fate.
type Attack = (&'static str, String, String, Fate);

/// The event in every request.
fn event() -> String {
    let mut event = plain();
    event.metadata.name = "web-0.1".into();
    String::from_utf8(json(&event)).unwrap()
}

fn length(value: impl std::fmt::Display) -> String {
    format!("Content-Length: {value}\r\n")
}

/// Content-Length in ways that parsers read differently.
fn lengths() -> Vec<Attack> {
    let event = event();
    let right = event.len();
    let longer = right + SECOND.len();
    let twice = |one: usize, other: usize| length(one) + &length(other);
    let rows = [
        ("right", length(right), Taken),
        ("zeros before it", length(format!("000{right}")), Taken),
        ("twice", twice(right, right), Taken),
        ("twice, the second longer", twice(right, longer), Refused(400)),
        ("twice, the second shorter", twice(longer, right), Refused(400)),
        ("a list", length(format!("{right}, {right}")), Refused(400)),
        ("a sign", length(format!("+{right}")), Refused(400)),
        ("negative", length(-1), Refused(400)),
        ("hexadecimal", length(format!("0x{right:x}")), Refused(400)),
        ("empty", length(""), Refused(400)),
        ("a blank within", length(format!("{right} 0")), Refused(400)),
        ("2^64", length("18446744073709551616"), Refused(400)),
        ("2^64 - 1", length(u64::MAX), Refused(431)),
        ("an underscore", format!("Content_Length: 5\r\n{}", length(right)), Taken),
        ("a blank before the colon", format!("Content-Length : {right}\r\n"), Refused(400)),
        ("listed in Connection", format!("Connection: Content-Length\r\n{}", length(right)), Taken),
    ];
    rows.map(|(name, headers, fate)| (name, headers, event.clone() + SECOND, fate)).to_vec()
}

/// The event in one chunk.
fn one_chunk() -> String {
    let event = event();
    format!("{:x}\r\n{event}\r\n0\r\n\r\n", event.len())
}

/// Transfer-Encoding in ways that parsers read differently.
fn encodings() -> Vec<Attack> {
    let body = one_chunk();
    let encoding = |value: &str| format!("Transfer-Encoding: {value}\r\n");
    let two = |one: &str, other: &str| encoding(one) + &encoding(other);
    let rows = [
        ("right", CHUNKED.to_owned(), Taken),
        ("in capitals", encoding("CHUNKED"), Taken),
        ("a tab", encoding("\tchunked"), Taken),
        ("a vertical tab", encoding("\u{b}chunked"), Refused(400)),
        ("in quotes", encoding("\"chunked\""), Refused(400)),
        ("another word", encoding("xchunked"), Refused(400)),
        ("a parameter", encoding("chunked;a=b"), Refused(400)),
        ("identity alone", encoding("identity"), Refused(400)),
        ("chunked is not the last", encoding("chunked, identity"), Refused(400)),
        ("chunked is not the last of two", two("chunked", "identity"), Refused(400)),
        ("chunked is the last", encoding("identity, chunked"), Taken),
        ("twice", two("chunked", "chunked"), Taken),
        ("empty, with a length", encoding("") + &length(body.len()), Refused(400)),
        ("a blank before the colon", format!("Transfer-Encoding : chunked\r\n{}", length(body.len())), Refused(400)),
        ("a folded line", "Transfer-Encoding:\r\n chunked\r\n".to_owned(), Refused(400)),
        ("hidden in a folded line", format!("X: a\r\n {CHUNKED}{}", length(body.len())), Refused(400)),
        ("listed in Connection", format!("Connection: Transfer-Encoding\r\n{CHUNKED}"), Taken),
    ];
    rows.map(|(name, headers, fate)| (name, headers, body.clone() + SECOND, fate)).to_vec()
}

/// Both, so that the second request is within the body for one reader and behind it for the other.
fn both() -> Vec<Attack> {
    let all = format!("0\r\n\r\n{SECOND}");
    let within = format!("{:x}\r\n{SECOND}\r\n0\r\n\r\n{SECOND}", SECOND.len());
    vec![
        ("CL.TE", length(all.len()) + CHUNKED, all.clone(), Last),
        ("TE.CL", CHUNKED.to_owned() + &length(4), within.clone(), Last),
        ("TE.CL, the length first", length(4) + CHUNKED, within, Last),
        ("TE.TE", length(all.len()) + CHUNKED + "Transfer-Encoding: identity\r\n", all, Refused(400)),
    ]
}

/// Chunks in ways that parsers read differently, and without an end.
fn chunks() -> Vec<Attack> {
    let event = event();
    let n = event.len();
    let sized = |size: String| format!("{size}\r\n{event}\r\n0\r\n\r\n");
    let single = |piece: &dyn Fn(char) -> String| event.chars().map(piece).collect::<String>() + "0\r\n\r\n";
    let many = |extension: usize| single(&|letter| format!("1;{}\r\n{letter}\r\n", "x".repeat(extension)));
    let trailers = |lines: &str| format!("{n:x}\r\n{event}\r\n0\r\n{lines}\r\n");
    let rows = [
        ("many", single(&|letter| format!("1\r\n{letter}\r\n")), Taken),
        ("a prefix", sized(format!("0x{n:x}")), Broken),
        ("a sign", sized(format!("+{n:x}")), Broken),
        ("negative", sized("-1".to_owned()), Broken),
        ("empty", sized(String::new()), Broken),
        ("a blank before it", sized(format!(" {n:x}")), Broken),
        ("a blank behind it", sized(format!("{n:x} ")), Taken),
        ("more than 64 bits", sized(format!("10000000000000000{n:x}")), Broken),
        ("no line end behind the data", format!("{n:x}\r\n{event}0\r\n\r\n"), Broken),
        ("line feeds only", format!("{n:x}\n{event}\n0\n\n"), Broken),
        ("a line feed behind the size", format!("{n:x}\n{event}\r\n0\r\n\r\n"), Broken),
        ("an extension", sized(format!("{n:x};a=b")), Taken),
        ("a carriage return in an extension", sized(format!("{n:x};a\r")), Broken),
        ("a line feed in an extension", sized(format!("{n:x};a\nb")), Broken),
        ("an extension of 1 MiB", sized(format!("{n:x};{}", "x".repeat(1 << 20))), Broken),
        ("many extensions", many(100), Broken),
        ("trailers", trailers("A: b\r\nContent-Length: 5\r\nAuthorization: Bearer admin\r\n"), Taken),
        ("endless trailers", trailers(&"A: b\r\n".repeat(1 << 16)), Broken),
    ];
    rows.map(|(name, body, fate)| (name, CHUNKED.to_owned(), body + SECOND, fate)).to_vec()
}

/// Other lines of the head.
fn heads() -> Vec<Attack> {
    let event = event();
    let rows = [
        ("a folded line", "X: a\r\n b\r\n", Refused(400)),
        ("line feeds only", "X: a\nY: b\n", Taken),
        ("a carriage return", "X: a\rY: b\r\n", Refused(400)),
        ("a NUL", "X: a\0b\r\n", Refused(400)),
        ("no colon", "X\r\n", Refused(400)),
        ("no name", ": x\r\n", Refused(400)),
        (
            "an upgrade to h2c",
            "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
            Taken,
        ),
    ];
    rows.map(|(name, line, fate)| (name, line.to_owned() + &length(event.len()), event.clone() + SECOND, fate)).to_vec()
}

/// Sends an attack to a path of events, and to one of the API server.
async fn attack(entry: &Entry, (name, headers, behind, fate): &Attack) {
    for path in [EVENTS, PODS] {
        let sent = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n{behind}");
        let (codes, arrived) = (entry.send(sent.as_bytes()).await.codes(), entry.take_arrived());
        let is_passed = entry.way == Way::Passthrough;
        let first = entry.first(path);
        let broken = match first {
            201 => 400,
            200 => 502,
            code => code,
        };
        let second = if is_passed { 200 } else { 404 };
        let attack = format!("{:?} {path}: {name}", entry.way);
        match fate {
            // This body is not decoded. The rest of it is read only if it has arrived.
            Taken if first == 404 => assert!(codes == [404] || codes == [404, 404], "{attack}: {codes:?}"),
            Taken => assert_eq!(codes, [first, second], "{attack}"),
            Refused(code) => assert_eq!(codes, [*code], "{attack}"),
            Broken => assert_eq!(codes, [broken], "{attack}"),
            // What is left of the event's body is none.
            Last => assert_eq!(codes, [if path == EVENTS { 400 } else { first }], "{attack}"),
        }
        let of = |line: &str, body: &str| Arrived { line: line.to_owned(), body: body.as_bytes().to_vec() };
        let post = |body: &str| (is_passed && path == PODS).then(|| of(&format!("POST {PODS}"), body));
        let expected: Vec<Arrived> = match fate {
            Taken => post(&event()).into_iter().chain(is_passed.then(|| of("GET /api/v1/second", ""))).collect(),
            Refused(_) | Broken => Vec::new(),
            Last => post(if *name == "CL.TE" { "" } else { SECOND }).into_iter().collect(),
        };
        assert_eq!(arrived, expected, "{attack}");
    }
}

async fn attacks(way: Way) {
    let entry = Entry::open(way, "").await;
    for attacks in [lengths(), encodings(), both(), chunks(), heads()] {
        for one in &attacks {
            attack(&entry, one).await;
        }
    }
    entry.close().await;
}

#[tokio::test]
async fn no_request_is_smuggled_over_plain_http() {
    attacks(Way::Plain).await;
}

#[tokio::test]
async fn no_request_is_smuggled_over_tls() {
    attacks(Way::Tls).await;
}

#[tokio::test]
async fn no_request_is_smuggled_to_the_api_server() {
    attacks(Way::Passthrough).await;
}
