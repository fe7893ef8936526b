//! Forwards requests to the apiserver, streams its answers back, and tunnels connections that change their protocol, as
//! `kubectl exec` and WebSockets do.

use axum::body::Body;
use axum::response::Response;
use http::header::{CACHE_CONTROL, CONNECTION, UPGRADE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, StatusCode, Uri};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use smol_str::{SmolStr, ToSmolStr as _};
use tokio::io::copy_bidirectional;
use tokio_util::sync::CancellationToken;

use super::body::{Streamed, streamed};
use super::impersonate::has_certificate_alone;
use super::metrics::Kind;
use super::{Answered, Passthrough, Unanswered, headers, refuse, unanswered};
use crate::access::is_garbled;
use crate::ingest;
use crate::server::{FairPlace, Finite, Peer, Tunnel};
use crate::status::Status;
use crate::upstream::apiserver::{Forwarder, Outgoing, Standing, StreamPermit, may_be_proxied};

const RETRY_AFTER_SECONDS: u32 = 1;

/// How a request is sent on.
struct Onward<'a> {
    forwarder: &'a Forwarder,
    /// Headers to add.
    named: HeaderMap,
    /// Name under which the caller has its share of the places: the address, if the apiserver has not accepted its token.
    caller: SmolStr,
    /// Hash of the caller's token.
    token: Option<u64>,
    standing: Standing,
}

impl Passthrough {
    pub(super) async fn forward(&self, request: Request<Body>) -> Answered {
        let (parts, body) = request.into_parts();
        let sent = self.send(parts, streamed(body)).await;
        sent.map_or_else(unanswered, |answer| (Kind::Forwarded, answer))
    }

    /// Forwards a request. Returns the refusal if the apiserver does not answer.
    pub(super) async fn send(&self, mut parts: Parts, body: Outgoing) -> Result<Response, Unanswered> {
        parts.headers = headers::end_to_end(parts.headers);
        let Onward { forwarder, named, caller, token, standing } = self.onward(&parts).await?;
        let Some(place) = self.0.in_flight.take(&caller, 1) else {
            return Err((Kind::Refused, full("passthrough.maxInFlight").into()));
        };
        let (method, uri) = (parts.method.clone(), parts.uri.clone());
        let (answer, seat) = forwarder.send(self.outgoing(parts, body, named), standing).await.map_err(failed)?;
        if let Some(token) = token {
            self.0.tokens.note(token, &method, &uri, answer.status());
        }
        let is_watch = is_watch(&uri);
        let mut answer = self.answered(answer, place, Some(seat), is_watch);
        // A program behind `proxy` may stream without an end.
        if !is_watch && !may_be_proxied(&uri) {
            answer.extensions_mut().insert(Finite);
        }
        Ok(answer)
    }

    /// Returns how a request is sent on, by the credentials that the apiserver will see.
    async fn onward(&self, parts: &Parts) -> Result<Onward<'_>, Unanswered> {
        let peer = parts.extensions.get::<Peer>();
        if !has_certificate_alone(parts) {
            let address = peer.and_then(|peer| peer.address);
            let (tokens, shown) = (&self.0.tokens, self.0.tokens.shown(&parts.headers));
            if shown.is_some_and(|shown| is_garbled(shown.text)) {
                return Err((Kind::Refused, Status::new(401, "Unauthorized", "Unauthorized").into()));
            }
            let token = shown.map(|shown| shown.hash);
            let (caller, standing) = match shown.filter(|shown| tokens.accepts(shown.hash)) {
                Some(shown) => (tokens.share(shown.text), Standing::Accepted),
                None => (address.map(|address| address.ip().to_smolstr()).unwrap_or_default(), Standing::Unknown),
            };
            return Ok(Onward {
                forwarder: &self.0.callers.forwarder,
                named: HeaderMap::new(),
                caller,
                token,
                standing,
            });
        }
        let refused = |status: Status| (Kind::Refused, status.into());
        let forwarder = self.0.callers.impersonator.as_ref().ok_or_else(|| refused(certificate_alone()))?;
        let certificate = peer.and_then(|peer| peer.certificate.as_ref());
        let named = self.0.callers.name(parts).await.map_err(refused)?;
        let caller = certificate.map(|certificate| certificate.common_name.to_smolstr()).unwrap_or_default();
        Ok(Onward { forwarder, named, caller, token: None, standing: Standing::Accepted })
    }

    /// Whether a request has credentials that can be forwarded, or its user can be impersonated.
    pub(super) fn is_forwardable(&self, parts: &Parts) -> bool {
        self.0.callers.impersonator.is_some() || !has_certificate_alone(parts)
    }

    /// Builds the request for the apiserver from one with end-to-end headers.
    fn outgoing(&self, parts: Parts, body: Outgoing, named: HeaderMap) -> Request<Outgoing> {
        let mut request = Request::new(body);
        *request.method_mut() = parts.method;
        *request.uri_mut() = parts.uri;
        *request.headers_mut() = headers::of_request(parts.headers, named);
        self.0.via.add_to(request.headers_mut());
        request
    }

    /// Converts the apiserver's answer for the client.
    fn answered(
        &self,
        answer: http::Response<Incoming>,
        place: FairPlace,
        seat: Option<StreamPermit>,
        is_watch: bool,
    ) -> Response {
        let (mut parts, body) = answer.into_parts();
        parts.version = http::Version::HTTP_11;
        parts.headers = headers::of_answer(parts.headers);
        let stopped = is_watch.then(|| Box::pin(self.0.stop.clone().cancelled_owned()));
        let bytes = self.0.metrics.bytes.clone();
        Response::from_parts(parts, Body::new(Streamed { body, bytes, stopped, place: Some((place, seat)) }))
    }

    /// Forwards a request that asks for another protocol, and opens a tunnel if the apiserver agrees.
    pub(super) async fn tunnel(&self, mut request: Request<Body>) -> Answered {
        let client = hyper::upgrade::on(&mut request);
        let (mut parts, body) = request.into_parts();
        let protocols: Vec<HeaderValue> = parts.headers.get_all(UPGRADE).iter().cloned().collect();
        parts.headers = headers::end_to_end(parts.headers);
        let Onward { forwarder, named, caller, .. } = match self.onward(&parts).await {
            Ok(onward) => onward,
            Err(refusal) => return unanswered(refusal),
        };
        let Some(place) = self.0.upgrades.take(&caller, 1) else {
            return refuse(&full("passthrough.maxUpgrades"));
        };
        let mut outgoing = self.outgoing(parts, streamed(body), named);
        outgoing.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        for protocol in protocols {
            outgoing.headers_mut().append(UPGRADE, protocol);
        }
        match forwarder.upgrade(outgoing).await {
            Ok(mut answer) if answer.status() == StatusCode::SWITCHING_PROTOCOLS => {
                let apiserver = hyper::upgrade::on(&mut answer);
                let (parts, _empty) = answer.into_parts();
                self.0.tasks.spawn(copy(client, apiserver, self.0.stop.clone(), place));
                let mut response = Response::new(Body::empty());
                *response.status_mut() = parts.status;
                *response.headers_mut() = parts.headers;
                response.extensions_mut().insert(Tunnel);
                (Kind::Upgrade, response)
            }
            Ok(answer) => (Kind::Forwarded, self.answered(answer, place, None, false)),
            Err(status) => unanswered(failed(status)),
        }
    }
}

/// Logs that a request has no answer.
fn failed(status: Box<Status>) -> Unanswered {
    tracing::debug!(fault = status.message, "a request could not be forwarded");
    (Kind::Failed, status)
}

/// Copies bytes both ways until both sides have closed, one of them fails, or the program stops.
async fn copy(client: OnUpgrade, apiserver: OnUpgrade, stop: CancellationToken, place: FairPlace) {
    let copying = async {
        let (client, apiserver) = tokio::try_join!(client, apiserver).map_err(std::io::Error::other)?;
        copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(apiserver)).await
    };
    if let Some(Err(error)) = stop.run_until_cancelled(copying).await {
        tracing::debug!(%error, "a tunnel ended abnormally");
    }
    drop(place);
}

/// Whether the answer has no end of its own. Clients expect such an answer to break off.
fn is_watch(uri: &Uri) -> bool {
    let asks = |name| ingest::sets(uri.query(), name);
    ingest::is_watch_path(uri.path()) || asks("watch") || asks("follow")
}

/// Encodes a refusal of pass-through itself, as the apiserver would.
pub(super) fn refusal(status: &Status) -> Response {
    let mut response = ingest::refusal(status);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

/// 429: a limit is reached.
fn full(key: &str) -> Status {
    let message = format!("Too many requests: eventweir's {key} is reached, please try again later");
    Status::too_many_requests(message, RETRY_AFTER_SECONDS)
}

/// 401: the client's only credential is a certificate.
fn certificate_alone() -> Status {
    let message = "Unauthorized: eventweir forwards requests with the caller's token, and cannot do so with a client \
                   certificate; use a token, reach the API server directly, or see passthrough.impersonate";
    Status::new(401, "Unauthorized", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_and_query_show_a_watch() {
        let check = |uri: &str, expected| assert_eq!(is_watch(&uri.parse().unwrap()), expected, "{uri}");
        check("/api/v1/pods?watch=1", true);
        check("/api/v1/pods?limit=5&watch=true", true);
        check("/api/v1/pods?watch", true);
        // Fault: Python's client writes its booleans like this, and its watches stayed open after it had closed them.
        check("/api/v1/pods?watch=True", true);
        check("/api/v1/namespaces/a/pods/b/log?tailLines=5&follow=True", true);
        check("/api/v1/watch/pods", true);
        check("/apis/apps/v1/watch/namespaces/a/deployments", true);
        // Fault: a namespace's name made each of its answers a watch.
        check("/api/v1/namespaces/watch/pods", false);
        check("/apis/apps/v1/namespaces/watch/deployments", false);
        check("/api/v1/namespaces/a/pods/b/log?follow=true", true);
        check("/api/v1/pods?watch=false", false);
        check("/api/v1/pods?watch=False", false);
        check("/api/v1/pods?watch=0", false);
        check("/api/v1/pods?allowWatchBookmarks=true", false);
        check("/api/v1/pods", false);
    }
}
