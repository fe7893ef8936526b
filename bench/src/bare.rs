//! The bare server: axum on hyper, with eventweir's allocator and runtime, over plain HTTP or rustls.
//!
//! Reads the body of a POST and answers; also parses each line of NDJSON.

use std::borrow::Cow;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::DefaultBodyLimit;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::post;
use futures_util::StreamExt as _;
use hyper::server::conn::http1::Builder;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use crate::tls;

/// `bare`
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Speaks TLS with the certificate in this folder.
    #[arg(long)]
    tls: Option<PathBuf>,
}

/// Serves until it is killed.
pub(crate) fn main(options: &Options) -> anyhow::Result<()> {
    let router =
        Router::new().route("/eventweir/v1/events", post(parse)).fallback(answer).layer(DefaultBodyLimit::disable());
    serve(router, options.tls.as_deref().map(tls::server).transpose()?)
}

/// Serves a router on a free port of loopback, and prints the address.
pub(crate) fn serve(router: Router, tls: Option<Arc<ServerConfig>>) -> anyhow::Result<()> {
    let acceptor = tls.map(TlsAcceptor::from);
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        println!("LISTEN {}", listener.local_addr()?);
        // `axum::serve` also does upgrades and a graceful shutdown.
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let (router, acceptor) = (router.clone(), acceptor.clone());
            tokio::spawn(async move {
                match acceptor {
                    None => connection(stream, router).await,
                    Some(acceptor) => {
                        if let Ok(stream) = acceptor.accept(stream).await {
                            connection(stream, router).await;
                        }
                    }
                }
            });
        }
    })
}

async fn connection(stream: impl AsyncRead + AsyncWrite + Unpin, router: Router) {
    // The client sees a broken connection.
    drop(Builder::new().serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)).await);
}

async fn answer(body: Bytes) -> impl IntoResponse {
    // The body is read, and not used.
    drop(body);
    (StatusCode::CREATED, [(header::CONTENT_TYPE, "application/json")], r#"{"kind":"Status"}"#)
}

/// The fields of an event that a correlator reads, borrowed from the line if nothing is escaped.
#[expect(dead_code, reason = "parsed to be timed")]
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event<'a> {
    #[serde(borrow)]
    metadata: Metadata<'a>,
    #[serde(borrow, alias = "regarding")]
    involved_object: Object<'a>,
    #[serde(borrow)]
    reason: Cow<'a, str>,
    #[serde(borrow, alias = "note")]
    message: Cow<'a, str>,
    #[serde(borrow, default)]
    source: Source<'a>,
    #[serde(borrow, rename = "type")]
    severity: Cow<'a, str>,
    #[serde(borrow, default, alias = "reportingController")]
    reporting_component: Cow<'a, str>,
    #[serde(borrow, default)]
    reporting_instance: Cow<'a, str>,
}

#[expect(dead_code, reason = "parsed to be timed")]
#[derive(Debug, Deserialize)]
struct Metadata<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    namespace: Cow<'a, str>,
}

#[expect(dead_code, reason = "parsed to be timed")]
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Object<'a> {
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    namespace: Cow<'a, str>,
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    uid: Cow<'a, str>,
    #[serde(borrow)]
    api_version: Cow<'a, str>,
    #[serde(borrow, default)]
    field_path: Cow<'a, str>,
}

#[expect(dead_code, reason = "parsed to be timed")]
#[derive(Debug, Default, Deserialize)]
struct Source<'a> {
    #[serde(borrow, default)]
    component: Cow<'a, str>,
    #[serde(borrow, default)]
    host: Cow<'a, str>,
}

fn is_event(line: &[u8]) -> bool {
    serde_json::from_slice::<Event<'_>>(line).map(std::hint::black_box).is_ok()
}

/// Parses each line as it arrives, and answers the number of events and faults.
async fn parse(body: Body) -> (StatusCode, String) {
    let mut body = body.into_data_stream();
    let (mut buffer, mut events, mut faults) = (Vec::new(), 0_u64, 0_u64);
    while let Some(Ok(data)) = body.next().await {
        buffer.extend_from_slice(&data);
        let Some(end) = buffer.iter().rposition(|byte| *byte == b'\n') else { continue };
        for line in buffer[..end].split(|byte| *byte == b'\n') {
            if is_event(line) {
                events += 1;
            } else {
                faults += 1;
            }
        }
        buffer.drain(..=end);
    }
    let status = if faults == 0 { StatusCode::OK } else { StatusCode::BAD_REQUEST };
    (status, format!("{{\"events\":{events},\"faults\":{faults}}}"))
}
