//! A connection that changes its protocol, as `kubectl exec` and WebSockets do: a tunnel in both directions.

use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use http::header::{CONNECTION, UPGRADE};
use http::{HeaderValue, Request, StatusCode};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;

use super::body::{Place, streamed};
use super::metrics::Kind;
use super::proxy::has_certificate_alone;
use super::{Passthrough, headers, refusal};
use crate::server::Tunnel;

impl Passthrough {
    /// Sends on a request that asks for another protocol, and tunnels if the apiserver agrees.
    pub(super) async fn tunnel(&self, mut request: Request<Body>) -> Response {
        let metrics = &self.0.metrics;
        let refused = |status| {
            metrics.count(Kind::Refused);
            refusal::response(&status)
        };
        if has_certificate_alone(request.headers(), request.extensions()) {
            return refused(refusal::certificate_alone());
        }
        let Ok(permit) = Arc::clone(&self.0.upgrades).try_acquire_owned() else {
            return refused(refusal::full("passthrough.maxUpgrades"));
        };
        let place = Place::new(metrics.tunnels.clone(), permit);
        let client = hyper::upgrade::on(&mut request);
        let (parts, body) = request.into_parts();
        let mut outgoing = Request::new(streamed(body));
        *outgoing.method_mut() = parts.method;
        *outgoing.uri_mut() = parts.uri;
        let protocols: Vec<HeaderValue> = parts.headers.get_all(UPGRADE).iter().cloned().collect();
        *outgoing.headers_mut() = headers::of_request(parts.headers);
        outgoing.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        for protocol in protocols {
            outgoing.headers_mut().append(UPGRADE, protocol);
        }
        match self.0.forwarder.upgrade(outgoing).await {
            Ok(mut answer) if answer.status() == StatusCode::SWITCHING_PROTOCOLS => {
                metrics.count(Kind::Upgrade);
                let apiserver = hyper::upgrade::on(&mut answer);
                let (parts, _empty) = answer.into_parts();
                self.0.tasks.spawn(carry(client, apiserver, self.0.stop.clone(), place));
                let mut response = Response::new(Body::empty());
                *response.status_mut() = parts.status;
                *response.headers_mut() = parts.headers;
                response.extensions_mut().insert(Tunnel);
                response
            }
            Ok(answer) => {
                metrics.count(Kind::Forwarded);
                self.answered(answer, place, None, false)
            }
            Err(fault) => {
                metrics.count(Kind::Failed);
                tracing::debug!(%fault, "an upgrade could not be passed on");
                refusal::response(&refusal::unanswered(&fault))
            }
        }
    }
}

/// Carries bytes both ways until both sides have closed, one of them breaks, or the program stops.
async fn carry(client: OnUpgrade, apiserver: OnUpgrade, stop: tokio_util::sync::CancellationToken, place: Place) {
    let carrying = async {
        let (client, apiserver) = tokio::try_join!(client, apiserver).map_err(std::io::Error::other)?;
        copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(apiserver)).await
    };
    if let Some(Err(error)) = stop.run_until_cancelled(carrying).await {
        tracing::debug!(%error, "a tunnel ended abnormally");
    }
    drop(place);
}
