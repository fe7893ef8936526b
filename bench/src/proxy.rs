//! The bare reverse proxy: hyper's server, hyper's client, and the request between them.

use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::uri::{Authority, Scheme};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

/// `proxy`
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// The server behind the proxy.
    #[arg(long)]
    to: SocketAddr,
}

/// Serves until it is killed.
pub(crate) fn main(options: &Options) -> anyhow::Result<()> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
    let to: Authority = options.to.to_string().parse()?;
    let router = Router::new().fallback(move |request: Request| forward(client.clone(), to.clone(), request));
    crate::bare::serve(router, None)
}

async fn forward(client: Client<HttpConnector, Body>, to: Authority, mut request: Request) -> Response {
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    (parts.scheme, parts.authority) = (Some(Scheme::HTTP), Some(to));
    let Ok(uri) = Uri::from_parts(parts) else { return StatusCode::BAD_REQUEST.into_response() };
    *request.uri_mut() = uri;
    match client.request(request).await {
        Ok(answer) => answer.map(Body::new),
        Err(_) => StatusCode::BAD_GATEWAY.into_response(),
    }
}
