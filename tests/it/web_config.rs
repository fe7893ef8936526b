//! Prometheus' web configuration of the admin port.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::net::SocketAddr;
use std::path::Path;

use base64::Engine as _;
use eventweir::app::ConfigSource;

use super::support::app::{Program, config, start, start_as};
use super::support::certificates::{Authority, Trust};
use super::support::http::Client;

const HEALTH: [&str; 5] = ["/livez", "/healthz", "/-/healthy", "/readyz", "/-/ready"];

/// Returns a line of `basic_auth_users`.
fn user(name: &str, password: &str) -> String {
    let hash = bcrypt::hash_with_salt(password, 4, *b"0123456789abcdef").unwrap();
    format!("basic_auth_users:\n  {name}: {hash}\n")
}

fn basic(text: &str) -> String {
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(text))
}

fn with_file(folder: &Path, web: &str) -> String {
    let path = folder.join("web.yaml");
    std::fs::write(&path, web).unwrap();
    format!("adminWebConfigFile: {}\n", path.display())
}

async fn status(program: &Program, path: &str, authorization: Option<&str>) -> u16 {
    let authorization = authorization.map(basic);
    let headers: Vec<_> = authorization.iter().map(|text| ("Authorization", text.as_str())).collect();
    program.admin().await.send("GET", path, &headers, b"").await.status
}

#[tokio::test]
async fn users_need_passwords_except_for_health() {
    let folder = tempfile::tempdir().unwrap();
    let headers = "http_server_config:\n  headers:\n    X-Frame-Options: deny\n";
    let yaml = with_file(folder.path(), &(user("ann", "secret") + headers));
    let program = start(&yaml).await;
    for path in ["/", "/metrics", "/config", "/nothing"] {
        let found = if path == "/nothing" { 404 } else { 200 };
        for _ in 0..2 {
            assert_eq!(status(&program, path, Some("ann:secret")).await, found, "{path}");
        }
        for wrong in [None, Some("ann:other"), Some("bob:secret"), Some("ann:"), Some("ann")] {
            assert_eq!(status(&program, path, wrong).await, 401, "{path} {wrong:?}");
        }
    }
    for path in HEALTH {
        assert_eq!(status(&program, path, None).await, 200, "{path}");
    }
    let refused = program.admin().await.get("/metrics").await;
    assert_eq!((refused.header("WWW-Authenticate"), refused.header("X-Frame-Options")), (Some("Basic"), Some("deny")));
    // An invalid file changes nothing; a valid one takes effect.
    with_file(folder.path(), "basic_auth_users: {ann: nonsense}\n");
    program.app.reread_files();
    assert_eq!(status(&program, "/metrics", Some("ann:secret")).await, 200);
    // Fault: a file that was just being written took effect, and no password was needed.
    for unfinished in ["", headers] {
        with_file(folder.path(), unfinished);
        program.app.reread_files();
        assert_eq!(status(&program, "/metrics", None).await, 401);
    }
    with_file(folder.path(), &user("ann", "new"));
    program.app.reread_files();
    assert_eq!(status(&program, "/metrics", Some("ann:secret")).await, 401);
    assert_eq!(status(&program, "/metrics", Some("ann:new")).await, 200);
    program.app.stop().await;
}

#[tokio::test]
async fn the_admin_port_serves_tls() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    authority.server().write(folder.path());
    std::fs::write(folder.path().join("ca.crt"), authority.pem()).unwrap();
    // Paths are relative to the file.
    let web = "tls_server_config:\n  cert_file: tls.crt\n  key_file: tls.key\n  min_version: TLS13\n  \
        client_ca_file: ca.crt\n  client_auth_type: RequireAndVerifyClientCert\n";
    let program = start(&with_file(folder.path(), web)).await;
    let address = program.app.admin_address();
    let trust = |certificate| Trust { certificate, ..Trust::of(authority.der()) };
    let stream = trust(Some(authority.client("prometheus", &[]))).connect(address).await.unwrap();
    let reply = Client::over(stream).get("/metrics").await;
    assert!(reply.status == 200 && reply.text().contains("eventweir_tls_last_reload_successful{listener=\"admin\"} 1"));
    let stream = trust(None).connect(address).await.unwrap();
    assert!(Client::over(stream).exchange("GET", "/metrics", &[], b"").await.is_err());
    let old = Trust { versions: vec![&rustls::version::TLS12], ..trust(None) };
    assert!(old.connect(address).await.is_err());
    program.app.stop().await;
}

#[tokio::test]
async fn reload_and_events_are_off_if_other_machines_reach_them_without_authentication() {
    let folder = tempfile::tempdir().unwrap();
    let everywhere = SocketAddr::from(([0, 0, 0, 0], 0));
    for (web, authorization, expected) in [
        ("".to_owned(), None, 403),
        ("http_server_config: {headers: {X-Frame-Options: deny}}\n".to_owned(), None, 403),
        (user("ann", "secret"), Some("ann:secret"), 202),
        (user("ann", "secret"), None, 401),
    ] {
        let yaml = if web.is_empty() { web } else { with_file(folder.path(), &web) };
        let mut config = config(&yaml);
        config.admin_listen = everywhere;
        let program = start_as(config, ConfigSource::default()).await;
        let address = SocketAddr::from(([127, 0, 0, 1], program.app.admin_address().port()));
        let authorization = authorization.map(basic);
        let headers: Vec<_> = authorization.iter().map(|text| ("Authorization", text.as_str())).collect();
        let reply = Client::connect(address).await.send("POST", "/-/reload", &headers, b"").await;
        assert_eq!(reply.status, expected, "{}", reply.text());
        // Without an object, a known caller gets 400.
        let page = Client::connect(address).await.send("GET", "/explain", &headers, b"").await;
        assert_eq!(page.status, if expected == 202 { 400 } else { expected }, "{}", page.text());
        program.stop().await;
    }
}
