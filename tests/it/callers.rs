//! Callers over TLS: certificates and tokens on one listener, reviews by an apiserver, and the addresses that may be
//! bound.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::net::SocketAddr;

use clap::Parser as _;
use eventweir::app::ConfigSource;
use eventweir::cli::{Cli, Command};
use eventweir::commands;
use eventweir::config::{self, Config, Errors, Overrides};
use serde_json::Value;

use super::support::app::{start, start_as, start_before};
use super::support::certificates::{Authority, Files, Trust};
use super::support::events::{event, plain};
use super::support::fake::FakeApiserver;
use super::support::http::{Client, EVENTS, Reply, json};
use super::support::log::Log;

async fn post(client: &mut Client, authorization: &str) -> Reply {
    let headers: &[(&str, &str)] = if authorization.is_empty() { &[] } else { &[("Authorization", authorization)] };
    client.send("POST", EVENTS, headers, &json(&plain())).await
}

async fn list(client: &mut Client, authorization: &str) -> u16 {
    client.send("GET", EVENTS, &[("Authorization", authorization)], b"").await.status
}

#[tokio::test]
async fn certificates_and_tokens_identify_callers_over_tls() {
    let (files, fake) = (Files::new(), FakeApiserver::manual());
    fake.know("t-alice", "alice");
    let (dir, log) = (files.path().display(), files.path().join("events.jsonl"));
    let yaml = format!(
        "{}upstream: {{kind: apiserver, history: off}}\neventLog: {}\nauth:\n  clientCAFile: {dir}/clients.crt\n  \
         tokenReview: {{enabled: true}}\n  subjectAccessReview: {{enabled: true}}\n  \
         policy: [{{groups: ['system:nodes'], verbs: [create]}}]\n  sourceBinding: {{enabled: true}}\n",
        files.tls(),
        log.display(),
    );
    let program = start_before(&fake, &yaml).await;
    let address = program.app.address();

    // Health needs no authentication; all other paths do.
    let mut nobody = files.connect(None, address).await;
    assert_eq!(nobody.get("/readyz").await.status, 200);
    for authorization in ["", "Bearer t-eve", "Basic YWxpY2U6"] {
        assert_eq!(post(&mut nobody, authorization).await.status, 401, "{authorization}");
    }

    // A token: the apiserver reviews it, and allows its user to create only.
    let mut alice = files.connect(None, address).await;
    assert_eq!(post(&mut alice, "Bearer t-alice").await.status, 201);
    assert_eq!(list(&mut alice, "Bearer t-alice").await, 403);

    // A certificate: the policy decides for its group, and otherwise the apiserver. It precedes a token.
    let mut node = files.connect(Some(files.node()), address).await;
    assert_eq!(post(&mut node, "").await.status, 201);
    assert_eq!(post(&mut node, "Bearer t-eve").await.status, 201);
    assert_eq!(list(&mut node, "Bearer t-alice").await, 403);
    // A node may report its own host only.
    let foreign = node.post(&event("node-2", "web-0", "BackOff", "restarting")).await;
    assert_eq!((foreign.status, foreign.json()["details"]["causes"][0]["field"].as_str()), (403, Some("source.host")));

    // A certificate of another authority ends the connection, whatever its subject.
    let forged = Authority::new().client("system:node:node-1", &["system:masters"]);
    let trust = Trust { certificate: Some(forged), ..Trust::of(files.server.der()) };
    if let Ok(stream) = trust.connect(address).await {
        Client::over(stream).exchange("POST", EVENTS, &[], b"{}").await.unwrap_err();
    }

    // Without the apiserver no other token is accepted, but certificates are.
    fake.set_up(false);
    let answer = post(&mut nobody, "Bearer t-bob").await;
    assert_eq!((answer.status, answer.header("Retry-After")), (503, Some("1")));
    assert_eq!(post(&mut node, "").await.status, 201);
    fake.set_up(true);

    program.settle().await;
    let ledger = program.balance().ledger;
    assert_eq!((ledger.received(), ledger.total_written(), ledger.total_rejected()), (9, 4, 5));
    program.stop().await;
    let lines = std::fs::read_to_string(&log).unwrap();
    let callers: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["caller"].clone()).collect();
    let node = "system:node:node-1";
    assert_eq!(callers, ["alice", node, node, node]);
}

/// Returns the configuration of a listener that other machines reach.
fn reachable(files: &Files, yaml: &str) -> Result<Config, Errors> {
    let path = files.path().join("eventweir.yaml");
    std::fs::write(&path, format!("listen: 0.0.0.0:0\nadminListen: 127.0.0.1:0\nshutdown: {{grace: 0s}}\n{yaml}"))
        .unwrap();
    config::load(Some(&path), &Overrides::default(), config::Files::Checked)
}

#[tokio::test]
async fn an_address_that_other_machines_reach_needs_authentication() {
    let files = Files::new();
    let (tls, certificates) = (files.tls(), format!("clientCAFile: {}/clients.crt", files.path().display()));
    for (yaml, reason) in [
        (String::new(), "callers are not authenticated there"),
        (tls.clone(), "callers are not authenticated there"),
        (format!("{tls}auth: {{{certificates}, anonymous: true}}\n"), "callers are not authenticated there"),
        (
            "upstream: {kind: apiserver}\nauth: {tokenReview: {enabled: true}}\n".to_owned(),
            "without TLS the network reads the callers' tokens",
        ),
    ] {
        let refused = reachable(&files, &yaml).unwrap_err().to_string();
        assert!(refused.contains("listen: `0.0.0.0:0` can be reached from other machines"), "{refused}");
        assert!(refused.contains(reason) && refused.lines().count() == 1, "{yaml}: {refused}");
    }
    reachable(&files, &format!("{tls}upstream: {{kind: apiserver}}\nauth: {{tokenReview: {{enabled: true}}}}\n"))
        .unwrap();

    let config = reachable(&files, &format!("{tls}auth: {{{certificates}}}\n")).unwrap();
    let program = start_as(config, ConfigSource::default()).await;
    let address = SocketAddr::from(([127, 0, 0, 1], program.app.address().port()));
    assert_eq!(post(&mut files.connect(None, address).await, "").await.status, 401);
    assert_eq!(post(&mut files.connect(Some(files.node()), address).await, "").await.status, 201);
    program.settle().await;
    program.stop().await;
}

#[tokio::test]
async fn callers_who_may_do_everything_are_warned_of() {
    let files = Files::new();
    let certificates = format!("clientCAFile: {}/clients.crt", files.path().display());
    let policy = "policy: [{groups: ['system:nodes'], verbs: [create]}]";
    for (auth, expected) in [
        (format!("auth: {{{certificates}}}"), "each known caller may do everything"),
        (format!("insecureListen: true\nauth: {{{certificates}, anonymous: true}}"), "callers are not authenticated"),
        ("insecureListen: true".to_owned(), "callers are not authenticated"),
        (format!("auth: {{{certificates}, {policy}}}"), ""),
        (format!("auth: {{{certificates}, anonymous: true, {policy}}}"), ""),
    ] {
        let log = Log::capture();
        let config = reachable(&files, &format!("{}{auth}\n", files.tls())).unwrap();
        start_as(config, ConfigSource::default()).await.stop().await;
        let text = log.text();
        let warnings: Vec<&str> = text.lines().filter(|line| line.contains("WARN")).collect();
        assert_eq!(warnings.len(), usize::from(!expected.is_empty()), "{auth}: {text}");
        assert!(warnings.iter().all(|line| line.contains(expected)), "{auth}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_presents_a_client_certificate() {
    let (files, folder) = (Files::new(), tempfile::tempdir().unwrap());
    files.node().write(folder.path());
    let dir = files.path().display();
    let policy = "policy: [{groups: ['system:nodes'], verbs: [list]}]";
    let program = start(&format!("{}auth: {{clientCAFile: {dir}/clients.crt, {policy}}}\n", files.tls())).await;
    std::fs::write(folder.path().join("ca.crt"), files.server.pem()).unwrap();
    let (server, file) = (format!("https://{}", program.app.address()), |name| folder.path().join(name));
    let explain = async |flags: &[&str]| {
        let flags =
            ["eventweir", "explain", "pod/unknown", "--server", &server].into_iter().chain(flags.iter().copied());
        let Command::Explain(explain) = Cli::parse_from(flags).command else { panic!("it is explain") };
        let asked = tokio::task::spawn_blocking(move || commands::explain(&explain));
        asked.await.unwrap().unwrap_err().to_string()
    };
    let (ca, certificate, key) = (file("ca.crt"), file("tls.crt"), file("tls.key"));
    let authority = ["--certificate-authority", ca.to_str().unwrap()];
    assert!(explain(&authority).await.contains("401"), "{}", explain(&authority).await);
    let own = ["--client-certificate", certificate.to_str().unwrap(), "--client-key", key.to_str().unwrap()];
    assert_eq!(explain(&[&authority[..], &own].concat()).await, "nothing is known");
    program.stop().await;
}

/// Fault: `kubectl create token NAME > FILE` ends the file with a newline, and no request was sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_sends_a_token_without_the_newline_of_its_file() {
    let (fake, file) = (FakeApiserver::manual(), tempfile::NamedTempFile::new().unwrap());
    fake.know("t-alice", "alice");
    std::fs::write(file.path(), "t-alice\n").unwrap();
    let auth = "auth: {tokenReview: {enabled: true}, policy: [{users: [alice], verbs: [list]}]}\n";
    let program = start_before(&fake, &format!("upstream: {{kind: apiserver, history: off}}\n{auth}")).await;
    let (server, token) = (format!("http://{}", program.app.address()), file.path().display().to_string());
    let flags = ["eventweir", "explain", "pod/unknown", "--server", &server, "--token-file", &token];
    let Command::Explain(explain) = Cli::parse_from(flags).command else { panic!("it is explain") };
    let asked = tokio::task::spawn_blocking(move || commands::explain(&explain)).await.unwrap();
    assert_eq!(asked.unwrap_err().to_string(), "nothing is known");
    program.stop().await;
}
