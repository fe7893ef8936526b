//! Situations against the whole scrape: what each changes is listed, and no other counter or load changes.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};

use axum::response::Response;
use eventweir::event::Event;
use http::Request;
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::support::app::{Program, start, start_before};
use super::support::behind::{Behind, OURS, answer, created};
use super::support::certificates::{Authority, Trust};
use super::support::events::{event, plain};
use super::support::fake::{FakeApiserver, Fault};
use super::support::http::{Client, EVENTS, json as json_of};

/// Metrics of sizes in memory, of the configuration, and of the machine.
const SIZES: [&str; 9] = [
    "build_",
    "client_lines",
    "config_",
    "correlator_",
    "deliver",
    "explain_",
    "ingest_aliases",
    "outbox_",
    "process_",
];
/// Metrics that follow the time of a commit.
const DISK: [&str; 3] = ["spool_commit_duration_seconds_count", "spool_entries", "spool_file_bytes"];

/// Words of the tables below, and the differences that they stand for.
const WORDS: [(&str, &str); 21] = [
    ("seen", "kube_events{Pod,shop,BackOff,Normal}"),
    ("REJECTED", "ledger_received+1 ledger_rejected"),
    ("CREATED", "BEGUN CREATE"),
    ("COUNTED", "ADDED PATCH"),
    ("BEGUN", "BEGAN ledger_written{created}+1"),
    ("ADDED", "REPEATED ledger_written{counted}+1"),
    ("BEGAN", "ledger_received+1 ingest_occurrences{created}+1"),
    ("REPEATED", "ledger_received+1 ingest_occurrences{counted}+1"),
    ("CREATE", "OF{stored,create}"),
    ("PATCH", "OF{stored,patch}"),
    ("READ", "OF{stored,get}"),
    ("OF", "upstream_requests"),
    ("DOWN", "upstream_outages+1"),
    ("POSTED", "ingest_requests{2xx,post}+1"),
    ("REFUSED", "ingest_requests{4xx,post}+1"),
    ("KNOWN", "HIT access_authentications{token,accepted}+1"),
    ("UNKNOWN", "access_authentications{token,refused}+1"),
    ("ALLOWED", "KNOWN access_cache_lookups{access,hit}+1 access_decisions{review,allowed}+1"),
    ("HIT", "access_cache_lookups{token,hit}+1"),
    ("ASKED", "access_cache_lookups{access,miss}+1 access_review_duration_seconds_count{access}+1"),
    ("REVIEWED", "access_cache_lookups{token,miss}+1 access_review_duration_seconds_count{token}+1"),
];

/// Adds up the differences of a row: words, and `sample+1`; `+1` may be left out.
fn add(row: &str, sums: &mut Samples) {
    for change in row.split_whitespace() {
        let word = change.split(['{', '+', '-']).next().unwrap_or_default();
        let rest = &change[word.len()..];
        if let Some((_, meaning)) = WORDS.iter().find(|(known, _)| *known == word) {
            add(&format!("{meaning}{rest}"), sums);
            continue;
        }
        let (sample, by) = change.split_at(change.rfind(['+', '-']).unwrap_or(change.len()));
        *sums.entry(sample.to_owned()).or_default() += if by.is_empty() { 1.0 } else { by.parse().unwrap() };
    }
}

/// The samples of a scrape, without the program's name and the unit of a counter, as `what{value,…}`.
type Samples = BTreeMap<String, f64>;

/// Reads a scrape: its samples, and the names of those that never fall.
fn read(text: &str) -> (Samples, BTreeSet<String>) {
    let (mut samples, mut rising, mut kind) = (Samples::new(), BTreeSet::new(), "");
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            kind = rest.rsplit(' ').next().unwrap();
        }
        if line.starts_with('#') {
            continue;
        }
        let (sample, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = sample.split_once('{').unwrap_or((sample, ""));
        let name = name.trim_start_matches("eventweir_").trim_end_matches("_total");
        let values: Vec<&str> = labels.split('"').skip(1).step_by(2).collect();
        let short = if values.is_empty() { name.to_owned() } else { format!("{name}{{{}}}", values.join(",")) };
        if kind != "gauge" {
            rising.insert(short.clone());
        }
        assert!(samples.insert(short, value.parse().unwrap()).is_none(), "twice: {line}");
    }
    (samples, rising)
}

/// The sum of all samples of a metric.
fn sum(samples: &Samples, name: &str) -> f64 {
    samples.iter().filter(|(sample, _)| sample.split('{').next() == Some(name)).map(|(_, value)| value).sum()
}

/// Checks what holds in every scrape: metrics that count the same things agree.
fn agree(samples: &Samples) {
    let sum = |name| sum(samples, name);
    let [received, rejected] = ["ledger_received", "ledger_rejected"].map(sum);
    let known = ["ledger_written", "ledger_waiting", "ledger_lost"].map(sum).iter().sum::<f64>();
    assert_eq!(received, rejected + known, "the account");
    let accepted = sum("ingest_occurrences") + sum("spool_restored_occurrences");
    assert_eq!(received - rejected, accepted, "accepted occurrences");
    assert!(sum("kube_events") <= received, "occurrences by their members");
    for (requests, durations) in [
        ("upstream_requests", "upstream_request_duration_seconds_count"),
        ("admission_requests", "admission_duration_seconds_count"),
    ] {
        assert_eq!(sum(requests), sum(durations), "{requests}");
    }
    for (bucket, value) in samples.iter().filter(|(sample, _)| sample.contains("+Inf")) {
        let count = bucket.replace("_bucket", "_count").replace("+Inf", "").replace("{,", "{").replace(",}", "}");
        assert_eq!(Some(value), samples.get(&count.replace("{}", "")), "{bucket}");
    }
}

/// A program, and its newest scrape.
struct Audit {
    program: Program,
    client: Client,
    last: Samples,
}

impl Audit {
    async fn of(program: Program) -> Self {
        let client = program.client().await;
        Self::over(program, client).await
    }

    async fn over(program: Program, mut client: Client) -> Self {
        client.get("/healthz").await;
        let (last, _) = read(&program.app.metrics_text());
        Self { program, client, last }
    }

    /// Checks the differences to the last scrape: `sample+1 sample-1`.
    fn expect(&mut self, situation: &str, expected: &str) {
        let (now, rising) = read(&self.program.app.metrics_text());
        agree(&now);
        let is_audited = |sample: &str| {
            let is_histogram = ["_bucket{", "_sum"].iter().any(|part| sample.contains(part));
            let agrees = sample.starts_with("upstream_request_d") || sample.starts_with("admission_d");
            !is_histogram && !agrees && !SIZES.iter().chain(&DISK).any(|prefix| sample.starts_with(prefix))
        };
        let change = |(sample, value): (&String, &f64)| {
            let by = value - self.last.get(sample).unwrap_or(&0.0);
            assert!(by >= 0.0 || !rising.contains(sample), "{situation}: {sample} falls by {by}");
            (by != 0.0 && is_audited(sample)).then(|| format!("{sample}{by:+}"))
        };
        let changed: BTreeSet<String> = now.iter().filter_map(change).collect();
        let mut sums = Samples::new();
        add(expected, &mut sums);
        let sums = sums.iter().filter(|(_, by)| **by != 0.0);
        let expected: BTreeSet<String> = sums.map(|(sample, by)| format!("{sample}{by:+}")).collect();
        assert_eq!(changed, expected, "{situation}: changed, expected");
        self.last = now;
    }

    /// Follows a table: request, header, body and differences. `E` is the path of the events of `shop`, and `first` the
    /// name of an event.
    async fn follow(&mut self, table: &str, first: &Event, bodies: &[(&str, Vec<u8>)]) {
        for row in table.trim().replace("\n    ", " ").lines() {
            let [request, header, body, expected]: [&str; 4] =
                row.split('|').map(str::trim).collect::<Vec<_>>().try_into().unwrap();
            let (method, path) = request.split_once(' ').unwrap();
            let path = path.replace("/first", &format!("/{}", first.metadata.name)).replacen('E', EVENTS, 1);
            let header: Vec<(&str, &str)> = header.split_once(": ").into_iter().collect();
            let known = bodies.iter().find(|(name, _)| *name == body);
            let body = known.map_or(body.as_bytes(), |(_, body)| body);
            let reply = self.client.send(method, &path, &header, body).await;
            self.program.settle().await;
            self.expect(&format!("{row}: {} {}", reply.status, String::from_utf8_lossy(reply.bytes())), expected);
        }
    }

    /// Opens another connection, and sends a piece of a request.
    async fn begin(&self, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.program.app.address()).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream
    }

    /// Sends the beginning of a body and leaves; returns once `sample` has grown.
    async fn break_off(&self, path: &str, sample: &str) {
        let before = self.program.metrics().await[sample];
        let head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{{");
        drop(self.begin(head.as_bytes()).await);
        self.program.until_metric(sample, |now| now > before).await;
        self.only_one_connection().await;
    }

    async fn only_one_connection(&self) {
        self.program.until_metric("eventweir_ingest_connections", |open| open <= 1.0).await;
    }
}

fn text(event: &Event) -> Vec<u8> {
    json_of(event)
}

const REQUESTS: &str = "
POST E | | first | CREATED POSTED seen+1
POST E | | repeat | COUNTED POSTED seen+1
POST E | | total | COUNTED POSTED seen+4 ledger_received+3 ledger_written{counted}+3 ingest_occurrences{counted}+3
PATCH E/first | Content-Type: application/merge-patch+json | {\"count\":2} | COUNTED ingest_requests{2xx,patch}+1 seen+1
PATCH E/first | Content-Type: application/merge-patch+json | {\"action\":\"a\"} | ingest_requests{2xx,patch}+1
    upstream_requests{stored,get}+1 upstream_requests{stored,patch}+1
PATCH E/other | Content-Type: application/merge-patch+json | {\"count\":2} | ingest_requests{4xx,patch}+1
GET E/first | | | ingest_requests{2xx,get}+1 upstream_requests{stored,get}+1
GET E | | | ingest_requests{2xx,get}+1 upstream_requests{stored,list}+1
DELETE E/first | | | ingest_requests{2xx,delete}+1 upstream_requests{stored,get}+1 upstream_requests{stored,delete}+1
DELETE E/first | | | ingest_requests{4xx,delete}+1 upstream_requests{missing,get}+1
HEAD E | | | ingest_requests{4xx,other}+1
POST /nowhere | | | REFUSED
POST E | | { | REFUSED REJECTED{malformed}
POST E | | wrong | REFUSED REJECTED{invalid} seen+1
POST E | Content-Type: text/csv | {} | REFUSED REJECTED{media_type}
POST E | Accept: text/csv | {} | REFUSED REJECTED{media_type}
POST E | Eventweir-Ack: durable | repeat | REFUSED REJECTED{invalid} seen+1
POST E | | large | REFUSED REJECTED{too_large}
POST E | Host: evil.example | repeat | REFUSED
POST E?timeout=x | | repeat | REFUSED REJECTED{invalid}
POST E?dryRun=All | | repairable | POSTED upstream_requests{stored,create}+1
POST E | | repairable | CREATED POSTED ingest_repairs{message}+1 kube_events{Pod,shop,Long,Normal}+1
POST /eventweir/v1/events | | batch | CREATED POSTED REJECTED{malformed} REJECTED{invalid} seen+2
";

#[tokio::test]
async fn requests() {
    let mut audit = Audit::of(start("ingest: {maxBodyBytes: 4Ki, messageBytes: 200}\n").await).await;
    let (first, mut wrong) = (plain(), plain());
    wrong.involved_object.namespace = "other".into();
    let batch = [&text(&plain())[..], b"{", b"", &text(&wrong)].join(&b"\n"[..]);
    let bodies = [
        ("first", text(&first)),
        ("repeat", text(&plain())),
        ("total", text(&Event { count: 4, ..plain() })),
        ("wrong", text(&wrong)),
        ("large", vec![b' '; 5000]),
        ("repairable", text(&event("node-1", "web-0", "Long", &"m".repeat(300)))),
        ("batch", batch),
    ];
    audit.follow(REQUESTS, &first, &bodies).await;
    audit.program.stop().await;
}

/// Faults of the API server, and what they change for a create and for a patch that follows it.
const ANSWERS: [(Fault, &str, &str); 10] = [
    (Fault::None, "CREATE", "PATCH"),
    (Fault::TooMany(Some(2)), "CREATE DOWN OF{retry_overloaded,create}", "PATCH DOWN OF{retry_overloaded,patch}"),
    (Fault::Page(502), "CREATE DOWN OF{retry_not_apiserver,create}", "PATCH DOWN READ OF{retry_not_apiserver,patch}"),
    (Fault::Before(401), "CREATE DOWN OF{retry_unauthorized,create}", "PATCH DOWN OF{retry_unauthorized,patch}"),
    (Fault::Before(403), "CREATE OF{refused,create}", "PATCH OF{refused,patch}"),
    (Fault::After(409), "READ OF{exists,create} OF{retry_conflict,create}", "READ OF{retry_conflict,patch}"),
    (Fault::After(504), "DOWN READ OF{exists,create} OF{retry_timeout,create}", "DOWN READ OF{retry_timeout,patch}"),
    (
        Fault::ResetAfter,
        "DOWN READ OF{exists,create} OF{retry_transport,create}",
        "DOWN READ OF{retry_transport,patch}",
    ),
    (
        Fault::GarbledAfter,
        "DOWN READ OF{exists,create} OF{retry_bad_answer,create}",
        "DOWN READ OF{retry_bad_answer,patch}",
    ),
    (Fault::Deleted, "CREATE", "CREATE OF{missing,patch}"),
];

/// Each request is counted by its own answer, and each occurrence once.
#[tokio::test]
async fn answers_of_the_apiserver() {
    let fake = FakeApiserver::manual();
    let yaml = "upstream: {kind: apiserver, history: off}\noutbox: {coalesceInterval: 0s}\nexplain: {enabled: false}\n";
    let mut audit = Audit::of(start_before(&fake, &format!("{yaml}correlation: {{burstSize: 1000}}\n")).await).await;
    for (fault, create, patch) in ANSWERS {
        let event = event("node-1", &format!("{fault:?}").to_lowercase().replace(['(', ')'], ""), "R", "m");
        for expected in [format!("BEGUN {create}"), format!("ADDED {patch}")] {
            fake.fail_next(&[fault]);
            audit.client.post(&event).await;
            audit.program.settle().await;
            audit.expect(&format!("{fault:?}"), &format!("POSTED {expected}"));
        }
    }
    audit.program.stop().await;
}

const CALLERS: &str = "
POST E | Authorization: Bearer alice | event | CREATED POSTED ASKED REVIEWED access_authentications{token,accepted}+1
    access_decisions{review,allowed}+1
POST E | Authorization: Bearer alice | event | COUNTED POSTED ALLOWED
POST E | Authorization: Bearer mallory | event | REFUSED REJECTED{denied} REVIEWED UNKNOWN access_cache_entries{token}+1
POST E | | event | REFUSED REJECTED{denied} access_authentications{none,refused}+1
POST /eventweir/v1/events | Authorization: Bearer mallory | event | REFUSED REJECTED{denied} HIT UNKNOWN
POST /eventweir/v1/admit | Authorization: Bearer mallory | event | REFUSED HIT UNKNOWN
POST /nowhere | Authorization: Bearer mallory | event | REFUSED HIT UNKNOWN
POST E/name | Authorization: Bearer mallory | event | REFUSED HIT UNKNOWN
GET E | Authorization: Bearer alice | | KNOWN ASKED access_decisions{review,denied}+1 access_cache_entries{access}+1
    ingest_requests{4xx,get}+1
GET /version | Authorization: Bearer alice | | KNOWN access_decisions{paths,allowed}+1 ingest_requests{2xx,get}+1
GET /healthz | Authorization: Bearer mallory | | ingest_requests{2xx,get}+1
";

#[tokio::test]
async fn callers() {
    let fake = FakeApiserver::manual();
    fake.know("alice", "alice");
    let yaml = "upstream: {kind: apiserver, history: off}\nexplain: {enabled: false}\noutbox: {coalesceInterval: 0s}\n\
        auth: {tokenReview: {enabled: true}, subjectAccessReview: {enabled: true}}\n\
        limits: [{type: User, qps: 1, burst: 3}, {type: Namespace, qps: 1, burst: 2}]\n";
    let mut audit = Audit::of(start_before(&fake, yaml).await).await;
    let event = plain();
    audit.follow(CALLERS, &event, &[("event", text(&event))]).await;
    // The third lacks a token of its namespace, and the fourth of both limits. The clock stands still.
    let bearer = [("Authorization", "Bearer alice")];
    for _ in 0..4 {
        audit.client.send("POST", EVENTS, &bearer, &text(&event)).await;
        audit.program.until("nothing waits", || audit.program.balance().total_waiting() == 0).await;
    }
    let limited = "access_limited{Namespace}+2 access_limited{User}+1 ingest_requests{429,post}+2";
    let decided = "ALLOWED ALLOWED ALLOWED ALLOWED REJECTED{limited} REJECTED{limited}";
    audit.expect("limits", &format!("COUNTED COUNTED POSTED POSTED {decided} {limited}"));
    fake.set_up(false);
    let unanswered =
        "POST E | Authorization: Bearer bob | event | REJECTED{denied} ingest_requests{5xx,post}+1 REVIEWED
        access_authentications{token,unanswered}+1 access_cache_entries{token}+1";
    audit.follow(unanswered, &event, &[("event", text(&event))]).await;
    fake.set_up(true);
    audit.program.stop().await;
}

/// The API server has no events of clients, so it has none under their names.
const PASS_THROUGH: &str = "
POST E | | event | CREATED POSTED passthrough_requests{events}+1
PATCH E/other | Content-Type: application/merge-patch+json | {\"count\":2} | ingest_requests{4xx,patch}+1
    passthrough_requests{events}+1
GET /eventweir/v1/top | | | ingest_requests{2xx,get}+1 passthrough_requests{events}+1
GET /api/v1/pods | | | passthrough_requests{forwarded}+1 passthrough_answer_bytes+4
GET /api/v1/pods | Host: evil.example | | passthrough_requests{refused}+1
GET E/first | | | ingest_requests{2xx,get}+1 upstream_requests{stored,get}+1 passthrough_requests{forwarded}+1
POST E | Content-Type: text/csv | foreign | REFUSED REJECTED{media_type} passthrough_requests{fallback}+1
    passthrough_answer_bytes+4
PATCH E/foreign | Content-Type: application/merge-patch+json | {\"count\":2} | ingest_requests{429,patch}+1
    passthrough_requests{fallback}+1 passthrough_answer_bytes+4 upstream_requests{stored,get}+1
";

async fn without_events(request: Request<Incoming>) -> Response {
    let is_ours = request.headers().get("Authorization").is_some_and(|value| value == OURS);
    match (is_ours, request.method().as_str(), request.uri().path()) {
        (true, "POST", _) => created(request).await,
        (true, _, path) => {
            let mut stored: Value = serde_json::from_slice(&text(&plain())).unwrap();
            stored["metadata"]["name"] = path.rsplit('/').next().into();
            stored["metadata"]["resourceVersion"] = "7".into();
            answer(200, stored.to_string())
        }
        (false, _, "/slow") => std::future::pending().await,
        (false, "POST", EVENTS) => answer(201, "made"),
        (false, _, path) if path.starts_with(EVENTS) => answer(404, "none"),
        (false, ..) => answer(200, "list"),
    }
}

#[tokio::test]
async fn pass_through() {
    let behind = Behind::plain(without_events).await;
    let yaml = "explain: {enabled: false}\noutbox: {coalesceInterval: 1h}\n";
    let mut audit = Audit::of(behind.program("", yaml).await).await;
    let (first, mut foreign) = (plain(), plain());
    foreign.metadata.name = "foreign".into();
    audit.follow(PASS_THROUGH, &first, &[("event", text(&first)), ("foreign", text(&foreign))]).await;
    audit.break_off(EVENTS, "eventweir_passthrough_requests_total{kind=\"refused\"}").await;
    audit.expect("a body that ends early", "passthrough_requests{refused}+1");
    audit.break_off("/api/v1/pods", "eventweir_passthrough_requests_total{kind=\"failed\"}").await;
    audit.expect("another one", "passthrough_requests{failed}+1");
    let stream = TokioIo::new(audit.begin(b"").await);
    let (mut impatient, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    let request = Request::get("http://localhost/slow").body(Empty::<bytes::Bytes>::new()).unwrap();
    tokio::select! {
        reply = impatient.send_request(request) => panic!("answered: {reply:?}"),
        end = connection => panic!("disconnected: {end:?}"),
        () = audit.program.until_metric("eventweir_passthrough_in_flight", |open| open == 1.0) => {}
    }
    // The connection has ended already.
    audit.only_one_connection().await;
    audit.expect("a client that leaves", "passthrough_requests{failed}+1");
    audit.program.app.stop().await;
}

/// Answers to reviews, and what they change: operation, old and new event, and the differences.
const REVIEWS: [(&str, &str, [&str; 2], &str); 9] = [
    ("begun", "CREATE", ["", "first"], "BEGAN ledger_waiting{in_flight}+1"),
    ("repeated", "CREATE", ["", "first"], ""),
    ("counted", "CREATE", ["", "repeat"], "REPEATED ledger_waiting{in_flight}+1"),
    ("counted", "UPDATE", ["first", "grown"], "REPEATED REPEATED ledger_waiting{in_flight}+2"),
    ("exempt", "CREATE", ["", "root"], ""),
    ("dry_run", "CREATE", ["", "dry"], ""),
    ("other", "DELETE", ["first", ""], ""),
    // The API server stores it.
    ("full", "CREATE", ["", "another"], "REJECTED{full}"),
    ("limited", "CREATE", ["", "another"], "REJECTED{limited} access_limited{Namespace}+1"),
];

#[tokio::test]
async fn admission() {
    let fake = FakeApiserver::manual();
    let yaml = "upstream: {kind: apiserver, history: off}\nadmission: {enabled: on, exemptUsers: [root]}\nshards: 1\n\
        explain: {enabled: false}\noutbox: {maxRecords: 1}\nlimits: [{type: Namespace, qps: 1, burst: 5}]\n\
        shutdown: {drainTimeout: 0s}\n";
    let mut audit = Audit::of(start_before(&fake, yaml).await).await;
    let (first, another) = (plain(), event("node-1", "web-1", "R", "m"));
    for (answer, operation, objects, expected) in REVIEWS {
        let [old, new] = objects.map(|name| match name {
            "" => Value::Null,
            "first" => serde_json::from_slice(&text(&first)).unwrap(),
            "grown" => serde_json::from_slice(&text(&Event { count: 3, ..first.clone() })).unwrap(),
            "another" => serde_json::from_slice(&text(&another)).unwrap(),
            _ => serde_json::from_slice(&text(&plain())).unwrap(),
        });
        let user = if objects[1] == "root" { "root" } else { "kubelet" };
        let review = json!({ "apiVersion": "admission.k8s.io/v1", "request": {
            "uid": "u", "operation": operation, "dryRun": objects[1] == "dry", "userInfo": { "username": user },
            "kind": { "group": "", "version": "v1", "kind": "Event" }, "object": new, "oldObject": old,
        } });
        audit.client.send("POST", "/eventweir/v1/admit", &[], review.to_string().as_bytes()).await;
        audit.expect(answer, &format!("POSTED admission_requests{{{answer}}}+1 {expected}"));
    }
    audit.client.send("POST", "/eventweir/v1/admit", &[], b"{").await;
    audit.expect("unread", "REFUSED admission_requests{unread}+1");
    audit.program.app.stop().await;
}

/// Loads return to what they were, and connections without a request count nothing.
#[tokio::test]
async fn connections() {
    let mut audit = Audit::of(start("").await).await;
    audit.break_off(EVENTS, "eventweir_ledger_rejected_total{reason=\"unread\"}").await;
    audit.expect("a body that ends early", "REFUSED REJECTED{unread}");
    let socket = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
        Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n";
    for (headers, status, connection) in [("", b"HTTP/1.1 200", 1), (socket, b"HTTP/1.1 101", 0)] {
        let head = format!("GET {EVENTS}?watch=true HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n");
        let mut watch = audit.begin(head.as_bytes()).await;
        let mut read = [0; 12];
        watch.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, status);
        if connection == 0 {
            audit.only_one_connection().await;
        }
        let watched = "ingest_requests{2xx,get}+1 ingest_watches+1 upstream_requests{stored,watch}+1";
        audit.expect("a watch", &format!("{watched} ingest_connections{connection:+}"));
        drop(watch);
        audit.program.until_metric("eventweir_ingest_watches", |open| open == 0.0).await;
        audit.only_one_connection().await;
        audit.expect("its end", &format!("ingest_watches-1 ingest_connections{:+}", -connection));
    }
    audit.program.stop().await;
}

#[tokio::test]
async fn handshakes_that_fail() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    authority.server().write(folder.path());
    let files = folder.path().display();
    let yaml = format!("tls: {{certFile: {files}/tls.crt, keyFile: {files}/tls.key}}\n");
    let program = start(&yaml).await;
    let stream = Trust::of(authority.der()).connect(program.app.address()).await.unwrap();
    let mut audit = Audit::over(program, Client::over(stream)).await;
    for (bytes, reason) in
        [(&b"GET / HTTP/1.1\r\n\r\n"[..], "plain"), (b"\x16\x03\x01\x00\x05hello", "other"), (b"\x00\x01\x02", "other")]
    {
        let mut stream = audit.begin(bytes).await;
        stream.shutdown().await.unwrap();
        let _closed = stream.read_to_end(&mut Vec::new()).await;
        drop(stream);
        audit.only_one_connection().await;
        audit.expect("no TLS", &format!("tls_handshake_failures{{main,{reason}}}+1"));
    }
    audit.program.stop().await;
}

#[tokio::test]
async fn a_restart_with_a_spool() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("spool");
    let fake = FakeApiserver::manual();
    fake.set_up(false);
    let yaml = format!("upstream: {{history: off}}\nspool: {{dir: {dir:?}}}\nshutdown: {{drainTimeout: 0s}}\n");
    let earlier = start_before(&fake, &yaml).await;
    let durable = [("Eventweir-Ack", "durable")];
    earlier.client().await.send("POST", EVENTS, &durable, &text(&plain())).await;
    assert_eq!(earlier.app.stop().await.total_waiting(), 1);
    fake.set_up(true);
    let mut audit = Audit::of(start_before(&fake, &yaml).await).await;
    audit.program.settle().await;
    // All counters since the start of the process.
    audit.last.clear();
    let written =
        "seen+1 ledger_received+1 ledger_written{created}+1 CREATE spool_restored_occurrences+1 upstream_up+1";
    audit.expect("restored", &format!("{written} ingest_requests{{2xx,get}}+1 ingest_connections+1"));
    audit.follow("POST E | | event | COUNTED POSTED seen+1", &plain(), &[("event", text(&plain()))]).await;
    audit.program.stop().await;
}
