//! Pass-through of clients that have only a certificate: eventweir sends their requests in its own name, and impersonates
//! the certificate's user.

use std::time::Duration;

use axum::response::Response;
use http::{Method, Request};
use hyper::body::Incoming;

use super::support::app::Program;
use super::support::behind::{Behind, OURS, Seen, answer, created};
use super::support::certificates::{Certificate, Files};
use super::support::events::event;
use super::support::http::{Client, EVENTS, Reply, json};

const PODS: &str = "/api/v1/pods";

/// An apiserver that creates events, and answers all else with 200.
async fn behind() -> Behind {
    async fn handle(request: Request<Incoming>) -> Response {
        if request.method() == Method::POST { created(request).await } else { answer(200, "{}") }
    }
    Behind::tls(&["h2", "http/1.1"], handle).await
}

async fn start(behind: &Behind, files: &Files, passthrough: &str, auth: &str) -> Program {
    let dir = files.path().display();
    let yaml = format!("{}auth: {{clientCAFile: {dir}/clients.crt, {auth}}}\n", files.tls());
    behind.program(passthrough, &yaml).await
}

async fn client(program: &Program, files: &Files, certificate: Certificate) -> Client {
    files.connect(Some(certificate), program.app.address()).await
}

async fn get(client: &mut Client, headers: &[(&str, &str)]) -> Reply {
    client.send("GET", PODS, headers, b"").await
}

/// Returns the impersonation headers of a request.
fn named(seen: &Seen) -> Vec<(&str, &str)> {
    let lines = seen.headers.iter().filter(|(name, _)| name.starts_with("impersonate-"));
    lines.map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

#[tokio::test]
async fn the_user_of_a_certificate_is_impersonated_and_a_token_is_forwarded() {
    let (behind, files) = (behind().await, Files::new());
    let program = start(&behind, &files, "impersonate: true", "").await;
    let node = &mut client(&program, &files, files.node()).await;
    // A hop-by-hop header is not forwarded, whatever its name. Ours are not the client's.
    let hops = ("Connection", "Impersonate-User, Impersonate-Group, Authorization");
    // Fault: with a client certificate of ours that a proxy may use, these would name the user.
    let remote = [("X-Remote-User", "admin"), ("X-Remote-Extra-Scopes", "a"), ("X-Remote", "a")];
    assert_eq!(get(node, &[&[hops][..], &remote].concat()).await.status, 200);
    assert_eq!(get(node, &[&[("Authorization", "Bearer theirs")][..], &remote].concat()).await.status, 200);
    assert_eq!(node.send("POST", EVENTS, &[], &json(&event("node-1", "web-0", "R", "m"))).await.status, 201);
    program.settle().await;

    let seen = behind.seen();
    let pods: Vec<_> = seen.iter().filter(|seen| seen.line.ends_with(PODS)).collect();
    let ours = (Some(OURS), true);
    let caller = vec![("impersonate-user", "system:node:node-1"), ("impersonate-group", "system:nodes")];
    assert_eq!((pods[0].header("authorization"), pods[0].has_certificate), ours);
    assert_eq!(named(pods[0]), caller);
    assert_eq!((pods[1].header("authorization"), pods[1].has_certificate), (Some("Bearer theirs"), false));
    assert!(named(pods[1]).is_empty(), "{:?}", pods[1]);
    let remote = |seen: &Seen| seen.headers.iter().filter(|(name, _)| name.starts_with("x-remote-")).count();
    assert_eq!((remote(pods[0]), remote(pods[1])), (0, 2));
    let written: Vec<_> = seen.iter().filter(|seen| seen.line.starts_with("POST")).collect();
    assert_eq!(written.len(), 1);
    assert!(written[0].is_ours() && named(written[0]).is_empty(), "an event is written in eventweir's own name");
    program.stop().await;
}

/// Guards against: the client would take the refusal for one of its own certificate.
#[tokio::test]
async fn a_refusal_of_our_credentials_is_not_the_callers() {
    let behind = Behind::plain(|_| async { answer(401, r#"{"kind":"Status","code":401}"#) }).await;
    let files = Files::new();
    let program = start(&behind, &files, "impersonate: true", "").await;
    let node = &mut client(&program, &files, files.node()).await;
    for headers in [&[][..], &[("Connection", "Upgrade"), ("Upgrade", "websocket")]] {
        let reply = get(node, headers).await;
        assert_eq!((reply.status, reply.header("Retry-After")), (503, Some("1")));
        assert!(reply.text().contains("eventweir's own credentials"), "{}", reply.text());
    }
    assert_eq!(get(node, &[("Authorization", "Bearer theirs")]).await.status, 401);
    // Fault: so was that of a pod, which the API server only passes on.
    for path in [
        "/api/v1/namespaces/a/pods/b:80/proxy/c",
        "/api/v1/namespaces/a/services/b/proxy",
        "/api/v1/nodes/a/proxy/",
        "/api/v1/namespaces/a/pods/b/%70roxy/",
    ] {
        for headers in [&[][..], &[("Connection", "Upgrade"), ("Upgrade", "websocket")]] {
            assert_eq!(node.send("GET", path, headers, b"").await.status, 401, "{path}");
        }
    }
    for path in
        ["/api/v1/namespaces/a/pods/proxy", "/api/v1/namespaces/proxy", "/apis/apps/v1/namespaces/a/pods/b/proxy"]
    {
        assert_eq!(node.send("GET", path, &[], b"").await.status, 503, "{path}");
    }
    program.stop().await;
}

/// Guards against: the groups of a kubeconfig with `as` would become groups of the caller.
#[tokio::test]
async fn a_kubeconfig_that_impersonates_adds_nothing_to_the_caller() {
    let (behind, files) = (behind().await, Files::new());
    let dir = files.path().display();
    let yaml = format!("{}auth: {{clientCAFile: {dir}/clients.crt}}\n", files.tls());
    let user = "as: admin, as-uid: u-1, as-groups: ['system:masters', a]";
    let program = behind.program_as(user, "impersonate: true", &yaml).await;
    let jane = &mut client(&program, &files, files.clients.client("jane", &[])).await;
    assert_eq!(get(jane, &[]).await.status, 200);
    assert_eq!(jane.send("POST", EVENTS, &[], &json(&event("node-1", "web-0", "R", "m"))).await.status, 201);
    program.settle().await;
    let seen = behind.seen();
    assert_eq!(named(&seen[0]), [("impersonate-user", "jane")]);
    let admin = [("impersonate-user", "admin"), ("impersonate-uid", "u-1")];
    let groups = [("impersonate-group", "system:masters"), ("impersonate-group", "a")];
    assert_eq!(named(&seen[1]), [admin, groups].concat(), "an event is written as the kubeconfig's user");
    program.stop().await;
}

#[tokio::test]
async fn an_upgrade_and_an_event_that_ingest_cannot_take_are_sent_in_the_callers_name() {
    let (behind, files) = (behind().await, Files::new());
    let program = start(&behind, &files, "impersonate: true", "").await;
    let node = &mut client(&program, &files, files.node()).await;
    let upgrade = [("Connection", "Upgrade, Impersonate-User"), ("Upgrade", "websocket")];
    assert_eq!(node.send("GET", "/api/v1/namespaces/a/pods/b/exec", &upgrade, b"").await.status, 200);
    // No media type of ingest.
    let csv = [("Content-Type", "text/csv")];
    assert_eq!(node.send("DELETE", &format!("{EVENTS}/a"), &csv, b"a").await.status, 200);
    let seen = behind.seen();
    assert_eq!(seen.len(), 2, "{seen:?}");
    for request in &seen {
        assert_eq!(named(request)[0], ("impersonate-user", "system:node:node-1"), "{request:?}");
        assert!(request.is_ours());
    }
    program.stop().await;
}

#[tokio::test]
async fn a_certificate_is_sent_as_its_own_user_or_not_at_all() {
    let (behind, files) = (behind().await, Files::new());
    let program = start(&behind, &files, "impersonate: true", "anonymous: false").await;
    let node = &mut client(&program, &files, files.node()).await;
    // The apiserver would ask whether eventweir may, and not whether the node may.
    for header in ["Impersonate-User", "Impersonate-Group", "Impersonate-Uid", "Impersonate-Extra-Scopes"] {
        for (method, path) in [("GET", PODS), ("POST", EVENTS), ("DELETE", EVENTS)] {
            let reply = node.send(method, path, &[(header, "system:masters")], b"{}").await;
            assert_eq!((reply.status, reply.json()["reason"].as_str()), (403, Some("Forbidden")), "{header} {method}");
        }
        let upgrade = [(header, "root"), ("Connection", "Upgrade"), ("Upgrade", "websocket")];
        assert_eq!(get(node, &upgrade).await.status, 403, "{header}");
    }
    // A server trims a header, and a name without its spaces is another user's.
    for (name, group) in [(" admin", "a"), ("admin", "system:masters ")] {
        let odd = &mut client(&program, &files, files.clients.client(name, &[group])).await;
        assert_eq!(get(odd, &[]).await.status, 403, "{name:?} {group:?}");
    }
    // Without a name it is no user's, as at the apiserver, which gets the request without credentials.
    let nameless = &mut client(&program, &files, files.clients.client("", &["system:masters"])).await;
    assert_eq!(get(nameless, &[]).await.status, 200);
    let seen = behind.seen();
    assert_eq!((seen.len(), seen[0].header("authorization"), seen[0].has_certificate), (1, None, false));
    assert!(named(&seen[0]).is_empty());
    // The connection outlives the certificate.
    assert_eq!(get(node, &[]).await.status, 200);
    program.clock.advance(Duration::from_secs(100 * 366 * 86_400));
    assert_eq!(get(node, &[]).await.status, 401);
    assert_eq!(behind.seen().len(), 2);
    program.stop().await;
}
