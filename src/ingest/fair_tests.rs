//! Callers that do not read their answers, never end their requests, or ask for much: others are served.

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use futures_util::{FutureExt as _, stream};
use tower::ServiceExt as _;

use super::tests::guarded;
use super::{Ingest, guard};
use crate::access;
use crate::correlator::Pattern;
use crate::ledger::RejectReason;
use crate::server::{Origins, Peer, PeerCertificate};

const EVENTS: &str = "/api/v1/namespaces/shop/events";

/// An interface whose callers have client certificates, and may do everything.
pub(super) fn shared(fairness: access::Fairness) -> Ingest {
    let policy = vec![access::Rule { users: vec![Pattern::Prefix("".into())], ..Default::default() }];
    guarded(access::Settings { certificates: true, policy, fairness, ..access::Settings::default() }).0
}

pub(super) async fn ask(ingest: &Ingest, caller: &str, method: Method, path: &str, body: impl Into<Body>) -> Response {
    let certificate = PeerCertificate { common_name: caller.into(), organizations: Vec::new(), expires: i64::MAX };
    let peer = Peer { address: None, certificate: Some(certificate) };
    let request = Request::builder().method(method).uri(path).extension(peer);
    let Ok(answer) = ingest.service(Origins::any_host()).oneshot(request.body(body.into()).unwrap()).await;
    answer
}

fn event(name: &str, length: usize) -> String {
    let object = r#""involvedObject":{"namespace":"shop"},"reason":"R","type":"Normal""#;
    format!(r#"{{"metadata":{{"name":"{name}"}},{object},"message":"{}"}}"#, "x".repeat(length))
}

/// Fault: each of them kept 1 MiB of results, and 200 came over one connection.
#[tokio::test]
async fn batches_whose_results_are_not_read_are_limited_for_each_caller() {
    let ingest = shared(access::Fairness::default());
    let mut unread = Vec::new();
    for _ in 0..512 {
        let answer = ask(&ingest, "a", Method::POST, guard::BATCH, "x\n").await;
        assert_eq!(answer.status(), StatusCode::OK);
        unread.push(answer);
    }
    assert_eq!(ask(&ingest, "a", Method::POST, guard::BATCH, "x\n").await.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(ask(&ingest, "a", Method::POST, EVENTS, event("a", 1)).await.status(), StatusCode::CREATED);
    assert_eq!(ask(&ingest, "b", Method::POST, guard::BATCH, "x\n").await.status(), StatusCode::OK);
    drop(unread);
    while ingest.0.metrics.batches.get() > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(ask(&ingest, "a", Method::POST, guard::BATCH, "x\n").await.status(), StatusCode::OK);
}

/// Fault: a batch without an end kept the place of a running request.
#[tokio::test]
async fn a_batch_that_does_not_end_keeps_no_place_of_other_requests() {
    let fairness = access::Fairness { max_in_flight: 2.try_into().unwrap(), ..access::Fairness::default() };
    let ingest = shared(fairness);
    let mut open = Vec::new();
    for _ in 0..10 {
        let endless = stream::pending::<Result<Bytes, std::io::Error>>();
        let begun = ask(&ingest, "a", Method::POST, guard::BATCH, Body::from_stream(endless)).now_or_never();
        open.push(begun.expect("a batch begins at once"));
        tokio::task::yield_now().await;
    }
    let posted = ask(&ingest, "a", Method::POST, EVENTS, event("a", 1)).now_or_never();
    assert_eq!(posted.expect("there is a place").status(), StatusCode::CREATED);
}

/// Fault: after one long line, a batch without an end kept room for it, and one caller's batches all room.
#[tokio::test]
async fn a_batch_frees_the_room_of_a_line_that_has_ended() {
    let ingest = shared(access::Fairness::default());
    let (line, lines) = tokio::sync::mpsc::channel::<&[u8]>(1);
    let pieces = stream::unfold(lines, async |mut lines| Some((Ok::<_, std::io::Error>(lines.recv().await?), lines)));
    let _answer = ask(&ingest, "a", Method::POST, guard::BATCH, Body::from_stream(pieces)).await;
    let until = async |is_reached: fn(i64) -> bool| {
        while !is_reached(ingest.0.metrics.read_bytes.get()) {
            tokio::task::yield_now().await;
        }
    };
    line.send(&[b'x'; 20_000]).await.unwrap();
    until(|bytes| bytes >= 20_000).await;
    line.send(b"\n").await.unwrap();
    until(|bytes| bytes <= 1 << 10).await;
}

/// Fault: one caller's unfinished bodies kept those of all others out.
#[tokio::test]
async fn unfinished_bodies_of_one_caller_leave_room_for_others() {
    let ingest = shared(access::Fairness::default());
    let unfinished = || {
        let begun = stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(&[b'x'; 64 << 10]))]);
        Body::from_stream(futures_util::StreamExt::chain(begun, stream::pending()))
    };
    let mut waiting = Vec::new();
    let refused = loop {
        let mut asking = Box::pin(ask(&ingest, "a", Method::POST, EVENTS, unfinished()));
        match asking.as_mut().now_or_never() {
            Some(answer) => break answer,
            None => waiting.push(asking),
        }
    };
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(ask(&ingest, "b", Method::POST, EVENTS, event("b", 1 << 20)).await.status(), StatusCode::CREATED);
}

/// Fault: the answer ended as if it were complete, and nothing counted the events that were not taken.
#[tokio::test(start_paused = true)]
async fn a_batch_whose_results_are_not_read_has_no_complete_answer() {
    let ingest = shared(access::Fairness::default());
    let answer = ask(&ingest, "a", Method::POST, guard::BATCH, "x\n".repeat(10_000)).await;
    // Time is paused, and passes while the batch waits.
    tokio::time::sleep(ingest.0.settings.request_timeout * 2).await;
    let unread = ingest.0.shards.balance().ledger.rejected(RejectReason::Unread);
    assert!(axum::body::to_bytes(answer.into_body(), usize::MAX).await.is_err());
    assert_eq!(unread, 1);
}

/// Fault: only answers to a GET were counted, so that a caller could keep any number of changed events in memory.
#[tokio::test]
async fn a_caller_that_does_not_read_its_answers_gets_no_further_ones() {
    const LENGTH: usize = 1 << 20;
    let ingest = shared(access::Fairness::default());
    let mut unread = Vec::new();
    let post = async |caller: &str, number: usize| {
        ask(&ingest, caller, Method::POST, EVENTS, event(&format!("{caller}-{number}"), LENGTH)).await
    };
    let refused = loop {
        let answer = post("a", unread.len()).await;
        if answer.status() != StatusCode::CREATED {
            break answer;
        }
        unread.push(answer);
        assert!(unread.len() < 100);
    };
    assert_eq!((refused.status(), unread.len()), (StatusCode::TOO_MANY_REQUESTS, 8));
    assert_eq!(ask(&ingest, "a", Method::GET, EVENTS, "").await.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(post("b", 0).await.status(), StatusCode::CREATED);
    drop(unread.pop());
    assert_eq!(post("a", 100).await.status(), StatusCode::CREATED);
}

/// Fault: without authentication, answers that were not read had no limit.
#[tokio::test]
async fn unknown_callers_have_a_limit_of_unread_answers_together() {
    let (ingest, _) = guarded(access::Settings::default());
    let mut unread = Vec::new();
    for number in 0..16 {
        let answer = ask(&ingest, "", Method::POST, EVENTS, event(&format!("a-{number}"), 1 << 20)).await;
        assert_eq!(answer.status(), StatusCode::CREATED);
        unread.push(answer);
    }
    assert_eq!(ask(&ingest, "", Method::POST, EVENTS, event("b", 1)).await.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(ingest.0.shards.balance().ledger.rejected(RejectReason::Limited), 1);
    assert_eq!(ask(&ingest, "", Method::GET, "/livez", "").await.status(), StatusCode::OK);
    drop(unread.pop());
    assert_eq!(ask(&ingest, "", Method::POST, EVENTS, event("b", 1)).await.status(), StatusCode::CREATED);
}

/// Fault: any number of requests that waited for a place passed the limit at once.
#[tokio::test]
async fn unread_answers_count_when_a_request_gets_its_place() {
    let fairness = access::Fairness { max_in_flight: 2.try_into().unwrap(), ..access::Fairness::default() };
    let ingest = shared(fairness);
    let endless = Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>());
    let mut first = Box::pin(ask(&ingest, "a", Method::POST, EVENTS, endless));
    let mut second = Box::pin(ask(&ingest, "a", Method::POST, EVENTS, event("a", 1)));
    assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
    let _unread = ingest.0.answer_bytes.force("a", 8 << 20);
    drop(first);
    assert_eq!(second.await.status(), StatusCode::TOO_MANY_REQUESTS);
}

/// Fault: it was encoded by the thread that also answers probes, for seconds.
#[test]
fn a_list_is_not_encoded_by_a_thread_that_answers_others() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let ingest = shared(access::Fairness::default());
        assert_eq!(ask(&ingest, "a", Method::POST, EVENTS, event("a", 1)).await.status(), StatusCode::CREATED);
        let (free, is_freed) = std::sync::mpsc::sync_channel::<()>(1);
        let occupied = tokio::task::spawn_blocking(move || is_freed.recv());
        let mut listing = Box::pin(ask(&ingest, "a", Method::GET, EVENTS, ""));
        for _ in 0..100 {
            assert!(listing.as_mut().now_or_never().is_none());
            tokio::task::yield_now().await;
        }
        free.send(()).unwrap();
        assert_eq!(listing.await.status(), StatusCode::OK);
        occupied.await.unwrap().unwrap();
    });
}

/// Fault: the lists of one caller stood before those of all others.
#[tokio::test]
async fn a_caller_has_half_of_the_turns_of_lists() {
    let ingest = shared(access::Fairness::default());
    let turns = [ingest.list_turn("a").await.unwrap(), ingest.list_turn("a").await.unwrap()];
    let mut third = Box::pin(ingest.list_turn("a"));
    assert!(third.as_mut().now_or_never().is_none());
    let other = ingest.list_turn("b").now_or_never();
    assert!(other.is_some_and(|turn| turn.is_ok()));
    drop(turns);
    assert!(third.now_or_never().is_some());
}

/// Fault: the next list was made while those before it waited for their compression, in any number.
#[tokio::test]
async fn the_turn_of_a_list_ends_when_its_answer_counts() {
    let ingest = shared(access::Fairness::default());
    let _first = ingest.list_turn("").await.unwrap();
    let request = Request::get(EVENTS).body(Body::empty()).unwrap();
    let made = ingest.router().oneshot(request).await.unwrap();
    assert!(ingest.list_turn("").now_or_never().is_none());
    let _answer = ingest.counted_until_read(&Method::GET, made).await;
    assert!(ingest.list_turn("").now_or_never().is_some());
}

/// Fault: they were read and encoded beside the four lists that may be.
#[tokio::test]
async fn everything_that_lists_events_waits_for_a_turn_of_lists() {
    let ingest = shared(access::Fairness::default());
    let mut turns = Vec::new();
    for caller in ["a", "a", "b", "b"] {
        turns.push(ingest.list_turn(caller).await.unwrap());
    }
    let explain = "/eventweir/v1/explain?namespace=shop&object=pod/web-0";
    let top = "/eventweir/v1/top";
    let asked = [(Method::GET, explain), (Method::GET, top), (Method::GET, EVENTS), (Method::DELETE, EVENTS)];
    for (method, path) in asked {
        let mut asking = Box::pin(ask(&ingest, "c", method.clone(), path, ""));
        let is_answered = async {
            for _ in 0..100 {
                if asking.as_mut().now_or_never().is_some() {
                    return true;
                }
                tokio::task::yield_now().await;
            }
            false
        };
        assert!(!is_answered.await, "{method} {path}");
        // Fault: that of the admin port's page did not.
        assert!(ingest.explain("", Some("namespace=shop&object=pod/web-0")).now_or_never().is_none());
        turns.pop();
        assert_eq!(asking.await.status(), StatusCode::OK, "{method} {path}");
        turns.push(ingest.list_turn("b").await.unwrap());
    }
}
