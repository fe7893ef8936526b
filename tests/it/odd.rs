//! Upstreams that are legal but unusual: admission webhooks, long outages, and answers that lead nowhere.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use eventweir::access::{Access, Ask, Metrics, Purpose, Settings, TokenReview};
use eventweir::clock::Clock;
use eventweir::correlator::KeySecret;
use eventweir::event::{ApiGroup, Event, EventSeries};
use eventweir::outbox::{Answer, Fault as Cause, LostReason, Request};
use eventweir::status::Status;
use eventweir::upstream::{self, Apiserver, apiserver};
use http::{HeaderMap, Method};
use prometheus::Registry;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::support::bench::{Bench, Options};
use super::support::events::{START, event, plain};
use super::support::fake::{FakeApiserver, Fault};
use super::support::log::Log;
use super::support::odd::behind;

const WRITERS: [Option<&str>; 2] = [None, Some("a")];

fn options(writer: Option<&'static str>) -> Options {
    Options { writer, ..Options::default() }
}

fn before_webhook(
    options: Options,
    webhook: impl Fn(&Method, &mut Event) -> Result<(), Status> + Send + Sync + 'static,
) -> Bench {
    let fake = FakeApiserver::new(Clock::simulated(START));
    let upstream = behind(&fake, Arc::new(webhook));
    Bench::before(fake, upstream, options)
}

/// Reports five occurrences behind a webhook that changes events; each write may meet a fault.
async fn five_behind(
    change: impl Fn(&Method, &mut Event) + Send + Sync + 'static,
    writer: Option<&'static str>,
    faults: &[Fault],
) -> Bench {
    let mut bench = before_webhook(options(writer), move |method, event| {
        change(method, event);
        Ok(())
    });
    for number in [1, 3, 1] {
        bench.fake.fail_next(faults);
        for _ in 0..number {
            bench.offer(plain());
        }
        bench.settle().await;
        bench.pass(Duration::from_secs(120)).await;
    }
    let balance = bench.balance();
    assert_eq!((balance.ledger.total_written(), balance.total_waiting()), (5, 0), "{faults:?}");
    bench
}

#[tokio::test(start_paused = true)]
async fn a_webhook_may_change_everything_in_an_event() {
    type Change = fn(&mut Event);
    let changes: [(&str, Change, u64); 9] = [
        ("message", |event| event.message = "redacted".into(), 5),
        ("reason and type", |event| (event.reason, event.event_type) = ("Other".into(), "Warning".into()), 5),
        ("source", |event| event.source = Default::default(), 5),
        ("object", |event| event.involved_object.name = "elsewhere".into(), 5),
        ("labels", |event| _ = event.metadata.rare.get_or_insert_default().labels.insert("l".into(), "v".into()), 5),
        ("annotations", |event| event.metadata.rare = None, 5),
        ("series", |event| event.series = Some(EventSeries { count: 7, last_observed_time: None }), 7),
        ("negative count", |event| event.count = -5, 1),
        ("largest count", |event| event.count = i32::MAX, 2_147_483_647),
    ];
    for (what, change, shown) in changes {
        for faults in [&[][..], &[Fault::After(500)]] {
            let bench = five_behind(move |_, event| change(event), Some("a"), faults).await;
            assert_eq!((bench.fake.shown(), bench.fake.all().len()), (shown, 1), "{what} {faults:?}");
        }
    }
}

/// Fault: such an answer counted as none, and each try created one more event: thousands for five occurrences. Under a
/// prefix, the record waited for ever.
#[tokio::test(start_paused = true)]
async fn a_record_follows_the_name_that_a_webhook_gives_it() {
    for writer in WRITERS {
        let numbers = AtomicU32::new(0);
        let generate = move |method: &Method, event: &mut Event| {
            if method == Method::POST {
                event.metadata.name = format!("gen-{}", numbers.fetch_add(1, Ordering::Relaxed)).into();
            }
        };
        let mut bench = five_behind(generate, writer, &[]).await;
        assert_eq!(bench.fake.take_methods(), ["POST", "PATCH", "PATCH"]);
        // It expires.
        bench.fake.delete(&bench.fake.all()[0]);
        bench.offer(plain());
        bench.offer(plain());
        bench.settle().await;
        assert_eq!(bench.fake.all()[0].metadata.name, "gen-1");
        bench.finish().await;
    }
    let prefix = |method: &Method, event: &mut Event| {
        if method == Method::POST {
            event.metadata.name = format!("gen-{}", event.metadata.name).into();
            event.message = "redacted".into();
        }
    };
    let bench = five_behind(prefix, Some("a"), &[]).await;
    assert_eq!(bench.fake.take_methods(), ["POST", "PATCH", "PATCH"]);
    bench.finish().await;
}

/// Fault: after more than an hour without an upstream, its first 429 or 5xx was the end of each record that met it.
#[tokio::test(start_paused = true)]
async fn nothing_expires_at_the_first_answers_after_a_long_outage() {
    for writer in WRITERS {
        for fault in [Fault::Before(503), Fault::Before(500), Fault::TooMany(None), Fault::Before(409)] {
            let mut bench = Bench::with(options(writer));
            bench.offer(plain());
            bench.settle().await;
            bench.fake.set_up(false);
            for number in 0..9 {
                bench.offer(plain());
                bench.offer(event("node-1", &format!("web-{number}"), "BackOff", "restarting"));
            }
            bench.pass(Duration::from_secs(7_300)).await;
            bench.fake.fail_next(&[fault; 40]);
            bench.fake.set_up(true);
            bench.finish().await;
        }
    }
}

/// Fault: while reads were answered, such a patch was tried for ever.
#[tokio::test(start_paused = true)]
async fn a_patch_that_is_not_accepted_expires_although_reads_are_answered() {
    for writer in WRITERS {
        for fault in [Fault::Before(409), Fault::Before(500), Fault::TooMany(None)] {
            let mut bench = Bench::with(options(writer));
            bench.offer(plain());
            bench.settle().await;
            bench.fake.plan(move |seen| if seen.method == Method::PATCH { fault } else { Fault::None });
            (0..3).for_each(|_| _ = bench.offer(plain()));
            bench.pass(Duration::from_secs(3_500)).await;
            assert_eq!(bench.balance().total_waiting(), 3, "{fault:?}");
            bench.settle().await;
            assert_eq!((bench.lost(LostReason::Expired), bench.fake.shown()), (3, 1), "{writer:?} {fault:?}");
            assert!(bench.fake.seen().len() < 3_000, "{}", bench.fake.seen().len());
            bench.fake.plan(|_| Fault::None);
            bench.offer(plain());
            bench.settle().await;
            assert_eq!((bench.fake.shown(), bench.fake.all().len()), (2, 1), "{writer:?} {fault:?}");
        }
    }
}

/// Fault: it was tried for ever, and such records filled the outbox.
#[tokio::test(start_paused = true)]
async fn a_create_that_a_webhook_refuses_with_409_expires() {
    for writer in WRITERS {
        for reason in ["", "AlreadyExists", "Conflict", "Locked"] {
            let refused = move |_: &Method, event: &mut Event| match event.involved_object.name.as_str() {
                "locked" => Err(Status::new(409, reason, "admission webhook \"w\" denied the request: locked")),
                _ => Ok(()),
            };
            let mut bench = before_webhook(options(writer), refused);
            for _ in 0..3 {
                bench.offer(event("node-1", "locked", "BackOff", "restarting"));
                bench.offer(plain());
            }
            bench.pass(Duration::from_secs(3_500)).await;
            assert_eq!((bench.balance().total_waiting(), bench.fake.shown()), (3, 3), "{reason}");
            bench.settle().await;
            assert_eq!((bench.lost(LostReason::Expired), bench.fake.shown()), (3, 3), "{writer:?} {reason}");
            assert!(bench.fake.seen().len() < 3_000, "{}", bench.fake.seen().len());
        }
    }
}

/// Fault: an answer of another kind was logged at DEBUG only, after the line that the API server answers again.
#[tokio::test]
async fn a_review_whose_answer_cannot_be_read_is_logged() {
    let log = Log::capture();
    let answer = json!({ "kind": "Status", "apiVersion": "v1", "status": { "authenticated": true } });
    let ask: Ask = Arc::new(move |_, _| {
        let answer = answer.clone();
        Box::pin(async move { Ok(answer) })
    });
    let settings = Settings { tokens: TokenReview { is_on: true, ..TokenReview::default() }, ..Settings::default() };
    let metrics = Metrics::new(&Registry::new());
    let access = Access::new(settings, ask, Clock::manual(START), KeySecret(7, 9), metrics);
    let mut headers = HeaderMap::new();
    headers.insert("authorization", "Bearer t-secret".parse().unwrap());
    assert_eq!(access.identify(None, &headers, Purpose::Report).await.unwrap_err().code, 503);
    let text = log.text();
    assert!(text.contains("WARN") && text.contains("the API server does not answer reviews"), "{text}");
    assert!(!text.contains("t-secret"), "{text}");
}

/// Fault: a webhook's text, which may quote an event, was printed with its line ends, and in JSON it replaced the text of
/// the line.
#[tokio::test(start_paused = true)]
async fn the_upstreams_words_begin_no_line_of_the_log() {
    let log = Log::capture();
    let mut bench = before_webhook(options(None), |_, event| {
        let code = if event.involved_object.name == "forbidden" { 403 } else { 503 };
        Err(Status::new(code, "Denied", "denied\nERROR forged"))
    });
    for object in ["forbidden", "failing"] {
        bench.offer(event("node-1", object, "BackOff", "restarting"));
        bench.pass(Duration::from_secs(400)).await;
    }
    let text = log.text();
    for line in ["forbids eventweir to write", "the upstream is down"] {
        let line = text.lines().find(|text| text.contains(line)).unwrap_or_default();
        assert!(line.contains(r#""denied\nERROR forged""#), "{line}");
    }
    assert!(!text.lines().any(|line| line.starts_with("ERROR forged")), "{text}");
}

/// Answers each connection with `head`, and then with `piece` many times. Returns its address and the number of pieces.
async fn serve(head: &'static str, piece: Vec<u8>, tasks: &mut JoinSet<()>) -> (SocketAddr, Arc<AtomicU64>) {
    const PIECES: u64 = 1 << 16;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, sent) = (listener.local_addr().unwrap(), Arc::new(AtomicU64::new(0)));
    let number = Arc::clone(&sent);
    tasks.spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _asked = stream.read(&mut [0; 1 << 14]).await;
            let mut is_open = stream.write_all(head.as_bytes()).await.is_ok();
            while is_open && !piece.is_empty() && number.load(Ordering::Relaxed) < PIECES {
                number.fetch_add(1, Ordering::Relaxed);
                is_open = stream.write_all(&piece).await.is_ok();
            }
            let _closed = stream.shutdown().await;
        }
    });
    (address, sent)
}

/// Whatever answers, a write is tried again, and the answer takes a few MiB of memory at most.
#[tokio::test]
async fn answers_without_an_end_or_without_sense_are_no_answers_and_bounded() {
    let chunk = || [b"10000\r\n", &[b'x'; 1 << 16][..], b"\r\n"].concat();
    let rows = [
        (Cause::BadAnswer, "HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n", chunk()),
        (Cause::NotApiserver, "HTTP/1.1 422 X\r\nTransfer-Encoding: chunked\r\n\r\n", chunk()),
        (Cause::Transport, "HTTP/1.1 201 Created\r\n", b"A: bbbbbbbbbbbbbbbbbbbbbbbbbbbbb\r\n".to_vec()),
        (Cause::Transport, "HTTP/1.1 201 Created\r\nA: ", vec![b'b'; 1 << 12]),
        (Cause::Transport, "", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n".to_vec()),
        (Cause::NotApiserver, "HTTP/1.1 101 X\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", vec![]),
        (Cause::NotApiserver, "HTTP/1.1 307 X\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", vec![]),
        (Cause::Transport, "HTTP/1.1 201 Created\r\nContent-Length: 9\r\n\r\n", vec![]),
        (Cause::BadAnswer, "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n", vec![]),
        (Cause::Transport, "HTTP/1.1 201 Created\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}", vec![]),
        (Cause::Transport, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", vec![]),
        (Cause::Transport, "{}", vec![]),
        (Cause::Transport, "", vec![]),
    ];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    for (cause, head, piece) in rows {
        let (mut tasks, length) = (JoinSet::new(), piece.len() as u64);
        let (address, sent) = serve(head, piece, &mut tasks).await;
        let kubeconfig = json!({
            "clusters": [{ "name": "c", "cluster": { "server": format!("http://{address}") } }],
            "contexts": [{ "name": "x", "context": { "cluster": "c", "user": "" } }],
            "current-context": "x",
        });
        std::fs::write(&path, kubeconfig.to_string()).unwrap();
        // A slow machine needs its time for the many short answers.
        let (kubeconfig, timeout) = (Some(path.clone()), Duration::from_secs(300));
        let settings = apiserver::Settings { kubeconfig, timeout, ..apiserver::Settings::default() };
        let metrics = upstream::Metrics::new(&Registry::new());
        let apiserver = Apiserver::connect(&settings, Clock::manual(START), metrics).await.unwrap();
        let answer = apiserver.write(&Request::Create { group: ApiGroup::Core, event: Box::new(plain()) }).await;
        assert!(matches!(&answer, Answer::Retry(retry) if retry.fault == cause), "{head:?}: {answer:?}");
        assert!(sent.load(Ordering::Relaxed) * length < 64 << 20, "{head:?}");
    }
}

/// etcd is restored from a backup: records have an older state.
#[tokio::test(start_paused = true)]
async fn a_record_of_an_older_state_regains_its_count() {
    for writer in WRITERS {
        for faults in [&[][..], &[Fault::Before(500)], &[Fault::ResetAfter]] {
            let mut bench = Bench::with(options(writer));
            bench.offer(plain());
            bench.settle().await;
            let older = bench.fake.all().remove(0);
            for _ in 0..2 {
                (0..2).for_each(|_| _ = bench.offer(plain()));
                bench.settle().await;
                bench.fake.change(&older, |event| *event = older.clone());
                bench.fake.fail_next(faults);
            }
            bench.offer(plain());
            bench.finish().await;
        }
    }
}

/// Fault: each record of a namespace whose quota or policy refuses all events was tried some 70 times. With thousands of
/// them, these tries took the tokens of `upstream.qps` from all other namespaces.
#[tokio::test(start_paused = true)]
async fn a_forbidden_record_is_tried_a_few_times_in_five_minutes() {
    let mut bench = Bench::new();
    bench.fake.plan(|seen| if seen.object == "web-0" { Fault::Before(403) } else { Fault::None });
    bench.offer(plain());
    bench.pass(Duration::from_secs(30)).await;
    assert!(bench.fake.take_methods().len() > 5, "an API server that has just started knows its roles soon");
    bench.settle().await;
    let tries = bench.fake.take_methods().len();
    assert!(tries < 15, "{tries}");
    assert_eq!(bench.lost(LostReason::Forbidden), 1);
    // Of the tries after it, the pauses are short again.
    bench.fake.plan(|_| Fault::None);
    bench.fake.fail_next(&[Fault::Before(403), Fault::None, Fault::Before(503), Fault::Before(503), Fault::None]);
    bench.offer(plain());
    bench.pass(Duration::from_secs(1)).await;
    bench.offer(plain());
    bench.pass(Duration::from_secs(3)).await;
    assert_eq!(bench.fake.shown(), 2);
}

/// Fault: a kubeconfig without TLS, or without its verification, was accepted silently.
#[tokio::test]
async fn an_api_server_that_is_not_verified_is_warned_of() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    let skips = json!({ "server": "https://127.0.0.1:6443", "insecure-skip-tls-verify": true });
    for (cluster, expected) in [
        (json!({ "server": "http://192.0.2.1:8080" }), "not encrypted"),
        (skips, "insecure-skip-tls-verify"),
        (json!({ "server": "https://192.0.2.1:6443" }), ""),
        (json!({ "server": "http://127.0.0.1:8001" }), ""),
        (json!({ "server": "http://[::1]:8001" }), ""),
        (json!({ "server": "http://localhost:8001" }), ""),
    ] {
        let log = Log::capture();
        let text = json!({
            "clusters": [{ "name": "c", "cluster": cluster }], "users": [{ "name": "u", "user": { "token": "t" } }],
            "contexts": [{ "name": "x", "context": { "cluster": "c", "user": "u" } }], "current-context": "x",
        });
        std::fs::write(&path, text.to_string()).unwrap();
        let settings = apiserver::Settings { kubeconfig: Some(path.clone()), ..apiserver::Settings::default() };
        let metrics = upstream::Metrics::new(&Registry::new());
        let _apiserver = Apiserver::connect(&settings, Clock::system(), metrics).await.unwrap();
        let text = log.text();
        let warnings: Vec<&str> = text.lines().filter(|line| line.contains("WARN")).collect();
        assert_eq!(warnings.len(), usize::from(!expected.is_empty()), "{cluster}: {text}");
        assert!(warnings.iter().all(|line| line.contains(expected)), "{cluster}: {text}");
    }
}
