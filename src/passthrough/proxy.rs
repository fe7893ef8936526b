//! A request goes on, and its answer comes back, both as they come.

use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use http::header::AUTHORIZATION;
use http::request::Parts;
use http::{Extensions, HeaderMap, Request, Uri};
use hyper::body::Incoming;

use super::body::{Answered, Place, streamed};
use super::metrics::Kind;
use super::{Passthrough, headers, refusal};
use crate::server::Peer;
use crate::status::Status;
use crate::upstream::apiserver::{Outgoing, Seat};

impl Passthrough {
    /// Sends a request on.
    pub(super) async fn forward(&self, request: Request<Body>) -> Response {
        let (parts, body) = request.into_parts();
        match self.send(parts, streamed(body), Kind::Forwarded).await {
            Ok(response) => response,
            Err(status) => refusal::response(&status),
        }
    }

    /// Sends a request on and counts it as `kind` if it is answered. Otherwise says why it is not.
    pub(super) async fn send(&self, parts: Parts, body: Outgoing, kind: Kind) -> Result<Response, Box<Status>> {
        let metrics = &self.0.metrics;
        if has_certificate_alone(&parts.headers, &parts.extensions) {
            metrics.count(Kind::Refused);
            return Err(refusal::certificate_alone().into());
        }
        let Ok(permit) = Arc::clone(&self.0.in_flight).try_acquire_owned() else {
            metrics.count(Kind::Refused);
            return Err(refusal::full("passthrough.maxInFlight").into());
        };
        let place = Place::new(metrics.in_flight.clone(), permit);
        let is_watch = is_watch(&parts.uri);
        let mut request = Request::new(body);
        *request.method_mut() = parts.method;
        *request.uri_mut() = parts.uri;
        *request.headers_mut() = headers::of_request(parts.headers);
        match self.0.forwarder.send(request).await {
            Ok((answer, seat)) => {
                metrics.count(kind);
                Ok(self.answered(answer, place, Some(seat), is_watch))
            }
            Err(fault) => {
                metrics.count(Kind::Failed);
                tracing::debug!(%fault, "a request could not be passed on");
                Err(refusal::unanswered(&fault).into())
            }
        }
    }

    /// The apiserver's answer for the client.
    pub(super) fn answered(
        &self,
        answer: http::Response<Incoming>,
        place: Place,
        seat: Option<Seat>,
        is_watch: bool,
    ) -> Response {
        let (mut parts, body) = answer.into_parts();
        parts.version = http::Version::HTTP_11;
        parts.headers = headers::of_answer(parts.headers);
        let stopped = is_watch.then(|| Box::pin(self.0.stop.clone().cancelled_owned()));
        let bytes = self.0.metrics.bytes.clone();
        Response::from_parts(parts, Body::new(Answered { body, bytes, stopped, _place: place, _seat: seat }))
    }
}

/// Whether a client proves who it is by a certificate that it showed us, and by nothing that could be sent on.
pub(super) fn has_certificate_alone(headers: &HeaderMap, extensions: &Extensions) -> bool {
    !headers.contains_key(AUTHORIZATION) && extensions.get::<Peer>().is_some_and(|peer| peer.certificate.is_some())
}

/// Whether the answer has no end of its own, so that clients are prepared for one that breaks off.
fn is_watch(uri: &Uri) -> bool {
    let asks = |name: &str| {
        let pairs = uri.query().unwrap_or_default().split('&');
        pairs.filter_map(|pair| pair.strip_prefix(name)).any(|value| matches!(value, "" | "=1" | "=true"))
    };
    uri.path().contains("/watch/") || asks("watch") || asks("follow")
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::server::PeerCertificate;

    #[test]
    fn a_watch_is_known_by_its_path_or_query() {
        let check = |uri: &str, expected| assert_eq!(is_watch(&uri.parse().unwrap()), expected, "{uri}");
        check("/api/v1/pods?watch=1", true);
        check("/api/v1/pods?limit=5&watch=true", true);
        check("/api/v1/pods?watch", true);
        check("/api/v1/watch/pods", true);
        check("/api/v1/namespaces/a/pods/b/log?follow=true", true);
        check("/api/v1/pods?watch=false", false);
        check("/api/v1/pods?allowWatchBookmarks=true", false);
        check("/api/v1/pods", false);
    }

    #[test]
    fn a_certificate_without_a_token_cannot_be_passed_on() {
        let (mut headers, mut extensions) = (HeaderMap::new(), Extensions::new());
        extensions.insert(Peer::default());
        assert!(!has_certificate_alone(&headers, &extensions), "without either, the apiserver decides");
        let certificate =
            PeerCertificate { common_name: "jane".to_owned(), organizations: Vec::new(), expires: i64::MAX };
        extensions.insert(Peer { certificate: Some(certificate), ..Peer::default() });
        assert!(has_certificate_alone(&headers, &extensions));
        headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer x"));
        assert!(!has_certificate_alone(&headers, &extensions));
    }
}
