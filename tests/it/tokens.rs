//! A token file that is replaced while the program runs, like that of a pod.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use eventweir::clock::Clock;
use eventweir::status::Status;
use http_body_util::BodyExt;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::support::app::start_with_kubeconfig;
use super::support::events::event;
use super::support::fake::FakeApiserver;

/// Tokens as an apiserver sees them.
#[derive(Default)]
struct Door {
    /// The valid token.
    token: String,
    /// Requests with another token.
    refused: usize,
}

/// Starts an apiserver over TCP that accepts one token; `fake` answers its requests.
async fn serve(fake: FakeApiserver, door: Arc<Mutex<Door>>, tasks: &mut JoinSet<()>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let handle = move |request: Request| {
        let (fake, door) = (fake.clone(), Arc::clone(&door));
        async move {
            let expected = format!("Bearer {}", door.lock().token);
            if request.headers().get("Authorization").is_none_or(|given| given != expected.as_str()) {
                door.lock().refused += 1;
                let status = Status::new(401, "Unauthorized", "Unauthorized");
                return (StatusCode::UNAUTHORIZED, status.to_json()).into_response();
            }
            let (head, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            fake.handle(http::Request::from_parts(head, body.to_vec().into())).await.unwrap().into_response()
        }
    };
    let router = axum::Router::new().fallback(handle);
    tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
    address
}

/// Advances the clock only as far as the backoff needs, so that no token is reloaded because of its age.
fn nudge(clock: Clock) -> impl FnMut() {
    let mut calls = 0;
    move || {
        calls += 1;
        if calls % 20 == 0 && calls < 20 * 50 {
            clock.advance(Duration::from_millis(500));
        }
    }
}

#[tokio::test]
async fn a_rotated_token_is_read_after_a_401_without_losses() {
    let folder = tempfile::tempdir().unwrap();
    let (kubeconfig, token) = (folder.path().join("kubeconfig"), folder.path().join("token"));
    let door = Arc::new(Mutex::new(Door { token: "one".to_owned(), refused: 0 }));
    let (fake, mut tasks) = (FakeApiserver::manual(), JoinSet::new());
    let server = serve(fake.clone(), Arc::clone(&door), &mut tasks).await;
    std::fs::write(&token, "one\n").unwrap();
    let text = serde_json::json!({
        "clusters": [{ "name": "c", "cluster": { "server": server } }],
        "users": [{ "name": "u", "user": { "tokenFile": "token" } }],
        "contexts": [{ "name": "x", "context": { "cluster": "c", "user": "u" } }],
        "current-context": "x",
    });
    std::fs::write(&kubeconfig, text.to_string()).unwrap();
    let program = start_with_kubeconfig(&kubeconfig, "upstream: {history: off}\n").await;
    let client = &mut program.client().await;
    client.post(&event("node-1", "web-0", "R", "m")).await;
    program.settle().await;
    assert_eq!((fake.shown(), door.lock().refused), (1, 0));
    // The old token expires before the new one is written.
    door.lock().token = "two".to_owned();
    for object in ["web-0", "web-1", "web-2"] {
        assert_eq!(client.post(&event("node-1", object, "R", "m")).await.status, 201);
    }
    let clock = program.clock.clone();
    let is_refused = || {
        clock.advance(Duration::from_millis(500));
        door.lock().refused >= 5
    };
    program.until("it is refused", is_refused).await;
    assert!(program.admin().await.get("/readyz").await.text().ends_with("upstream down: events wait in the outbox\n"));
    assert_eq!((fake.shown(), program.balance().total_waiting()), (1, 3));
    std::fs::write(&token, "two\n").unwrap();
    let mut step = nudge(program.clock.clone());
    let is_written = || {
        step();
        fake.shown() == 4
    };
    program.until("it is written", is_written).await;
    // A rotation in time costs one 401 only.
    let before = door.lock().refused;
    std::fs::write(&token, "three\n").unwrap();
    door.lock().token = "three".to_owned();
    client.post(&event("node-1", "web-3", "R", "m")).await;
    let mut step = nudge(program.clock.clone());
    let is_written = || {
        step();
        fake.shown() == 5
    };
    program.until("it is written", is_written).await;
    assert_eq!(door.lock().refused - before, 1);
    program.settle().await;
    let ledger = program.stop().await.ledger;
    assert_eq!((ledger.total_written(), ledger.total_lost()), (5, 0));
}
