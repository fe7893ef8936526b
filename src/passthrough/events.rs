//! Events: the event half answers, and what it cannot take goes on to the apiserver with the caller's token.

use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request, StatusCode};

use super::body::{Kept, begun, keep, whole};
use super::metrics::Kind;
use super::path::Events;
use super::proxy::has_certificate_alone;
use super::{Passthrough, ask, refusal};
use crate::ingest::Unable;
use crate::server::Answer;
use crate::status::Status;

impl Passthrough {
    /// Answers a write of events.
    pub(super) async fn write<S: Answer>(&self, face: &Arc<S>, request: Request<Body>) -> Response {
        let (parts, body) = request.into_parts();
        let settings = &self.0.settings;
        let body = match keep(body, settings.max_body_bytes, settings.body_timeout).await {
            Kept::Whole(body) => body,
            Kept::Begun(first, rest) => {
                let sent = self.send(parts, begun(first, rest), Kind::Fallback).await;
                return sent.unwrap_or_else(|status| refusal::response(&status));
            }
            Kept::Broken(fault) => {
                self.0.metrics.count(Kind::Refused);
                let message = format!("the body of the request could not be read: {fault}");
                return refusal::response(&Status::bad_request(message));
            }
        };
        let asked = Request::from_parts(parts.clone(), Body::from(body.clone()));
        if let Some(known) = self.about_passed_on(&parts, &body).await {
            return match known {
                // It has expired, or was deleted: from here on the name is ours again.
                Ok(answer) if answer.status() == StatusCode::NOT_FOUND => ask(face, asked).await,
                Ok(answer) => answer,
                Err(status) => refusal::response(&status),
            };
        }
        let answer = ask(face, asked).await;
        if !goes_on(&parts.method, &answer) || has_certificate_alone(&parts.headers, &parts.extensions) {
            self.0.metrics.count(Kind::Events);
            return answer;
        }
        // Where the apiserver has no answer either, the first one says more.
        let path = parts.uri.path().to_owned();
        let passed_on = self.send(parts, whole(body.clone()), Kind::Fallback).await;
        if let (Some(Events { group, namespace, name: None }), Ok(StatusCode::CREATED)) =
            (Events::of(&path), passed_on.as_ref().map(Response::status))
        {
            self.0.passed_on.insert(group, namespace, &body);
        }
        passed_on.unwrap_or(answer)
    }

    /// The apiserver's answer to what is about an event that went on to it; `None` for all others.
    async fn about_passed_on(&self, parts: &Parts, body: &Bytes) -> Option<Result<Response, Box<Status>>> {
        let Events { namespace, name: Some(name), .. } = Events::of(parts.uri.path())? else { return None };
        if !self.0.passed_on.contains(namespace, name) {
            return None;
        }
        let answer = self.send(parts.clone(), whole(body.clone()), Kind::Fallback).await;
        if answer.as_ref().is_ok_and(|answer| answer.status() == StatusCode::NOT_FOUND) {
            self.0.passed_on.remove(namespace, name);
        }
        Some(answer)
    }

    /// Answers a GET of one event: the apiserver, or the event half where only that knows the name. The caller may read
    /// events of the namespace, because otherwise the apiserver would not have said that there is none.
    pub(super) async fn read_event<S: Answer>(&self, face: &Arc<S>, request: Request<Body>) -> Response {
        let (parts, _body) = request.into_parts();
        let asked = Request::from_parts(parts.clone(), Body::empty());
        let answer = match self.send(parts, whole(Bytes::new()), Kind::Forwarded).await {
            Ok(answer) => answer,
            Err(status) => return refusal::response(&status),
        };
        if answer.status() != StatusCode::NOT_FOUND {
            return answer;
        }
        let known = ask(face, asked).await;
        if known.status().is_success() { known } else { answer }
    }
}

/// Whether the event half has not taken what the apiserver might take.
///
/// Not so 504: what was asked may still be done. What a client orders done to an event is done with our rights, which may
/// be fewer than the caller's; an occurrence is not.
fn goes_on(method: &Method, answer: &Response) -> bool {
    match answer.status() {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => method != Method::POST,
        StatusCode::UNSUPPORTED_MEDIA_TYPE
        | StatusCode::NOT_ACCEPTABLE
        | StatusCode::INTERNAL_SERVER_ERROR
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE => true,
        _ => answer.extensions().get::<Unable>().is_some(),
    }
}
