//! Forwards clients' requests to the API server unchanged and without deadlines. Only a read that the API server has not
//! processed is sent again, once, if its body is in memory.
//!
//! They have connections of their own without our credentials. An API server checks a client certificate before the
//! token, so ours would make us the author of each request. Impersonated requests have a forwarder of their own, with
//! our credentials.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::uri::{InvalidUriParts, PathAndQuery};
use http::{HeaderName, Request, Response, StatusCode, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tower::BoxError;

use super::connect::{Credentials, Error, Settings, classify};
use super::renewed::{Identity, Renewed};
use super::shared_connections::{SharedConnections, StreamPermit};
use super::transport::{Connector, Protocols, connector, https_connector, is_unprocessed};
use crate::clock::Clock;
use crate::status::Status;
use crate::upstream::answer::Failure;

/// The body of a forwarded request: in memory, or a stream.
pub type Outgoing = Either<Full<Bytes>, UnsyncBoxBody<Bytes, BoxError>>;

/// What is known of a request's credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// The API server has accepted them before, or they are ours.
    Accepted,
    /// None, or the API server has not accepted them yet.
    Unknown,
}

/// Forwards requests; clones share its connections.
#[derive(Debug, Clone)]
pub struct Forwarder(Arc<Renewed<Link>>);

/// Connections to the API server.
#[derive(Debug)]
struct Link {
    /// The API server's URL.
    cluster: Uri,
    /// For requests that the API server answers, with credentials that it has accepted.
    accepted: SharedConnections<Outgoing>,
    /// For requests that a pod, service or node may answer, because long headers break a connection.
    proxied: SharedConnections<Outgoing>,
    /// For requests with unknown credentials: since Kubernetes 1.29, the API server ends the connection of each one that
    /// it does not accept (`UnauthenticatedHTTP2DOSMitigation`).
    unknown: SharedConnections<Outgoing>,
    upgrades: Client<Connector, Outgoing>,
    /// Ours, for impersonated requests; otherwise the caller's are in the request.
    credentials: Option<Credentials>,
}

impl Forwarder {
    /// Reads the configuration of `settings`. With [`Identity::Ours`] it is the forwarder of impersonated requests.
    ///
    /// # Errors
    /// When the configuration cannot be read or is not sufficient for a client.
    pub(super) async fn new(settings: &Settings, identity: Identity, clock: &Clock) -> Result<Self, Error> {
        let make = match identity {
            Identity::Ours => |config: &_, timeout| Link::over(config, timeout, Some(Credentials::of(config)?)),
            Identity::Callers => |config: &_, timeout| Link::over(config, timeout, None),
        };
        Ok(Self(Renewed::new(settings, identity, clock, make).await?))
    }

    /// Forwards a request and waits for the head of the answer.
    ///
    /// # Errors
    /// 400 for a path that is not valid for the API server; 503 if nothing was sent or processed, or our credentials were
    /// refused, so that any client may try again; 502 if the connection broke.
    pub async fn send(
        &self,
        mut request: Request<Outgoing>,
        standing: Standing,
    ) -> Result<(Response<Incoming>, StreamPermit), Box<Status>> {
        let link = self.0.current().await;
        let connections = match standing {
            Standing::Unknown => &link.unknown,
            Standing::Accepted if may_be_proxied(request.uri()) => &link.proxied,
            Standing::Accepted => &link.accepted,
        };
        let added = link.prepare(&mut request, &self.0).await?;
        let (permit, transport) = connections.permit();
        let copy = copy(&request);
        let answer = match (transport.send(request).await, copy) {
            (Err(fault), Some(copy)) if is_unprocessed(&*fault) => transport.send(copy).await,
            (answer, _) => answer,
        };
        let answer = answer.map_err(|fault| unanswered(&*fault))?;
        Ok((self.checked(answer, added)?, permit))
    }

    /// Forwards a request for a protocol upgrade on a connection of its own, and waits for the head of the answer.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub async fn upgrade(&self, mut request: Request<Outgoing>) -> Result<Response<Incoming>, Box<Status>> {
        let link = self.0.current().await;
        let added = link.prepare(&mut request, &self.0).await?;
        let answer = link.upgrades.request(request).await.map_err(|fault| unanswered(&fault))?;
        self.checked(answer, added)
    }

    /// Returns the answer, unless it refuses the credentials that a link has added: the caller would take that for a
    /// refusal of its own.
    fn checked(
        &self,
        answer: Response<Incoming>,
        added: Option<&Arc<Link>>,
    ) -> Result<Response<Incoming>, Box<Status>> {
        let Some(link) = added.filter(|_| answer.status() == StatusCode::UNAUTHORIZED) else { return Ok(answer) };
        self.0.refused(link);
        let message = "eventweir: the API server refuses eventweir's own credentials";
        Err(Status::new(503, "ServiceUnavailable", message).with_retry_after(1).into())
    }
}

impl Link {
    fn over(config: &kube::Config, timeout: Duration, credentials: Option<Credentials>) -> Result<Self, Error> {
        let https = https_connector(config, Protocols::All, timeout)?;
        let upgrades = https_connector(config, Protocols::Http1, timeout)?;
        let upgrades = connector(upgrades, timeout, |_| Ok::<_, std::convert::Infallible>(()));
        Ok(Self {
            cluster: config.cluster_url.clone(),
            accepted: SharedConnections::over(https.clone(), timeout),
            proxied: SharedConnections::over(https.clone(), timeout),
            unknown: SharedConnections::over(https, timeout),
            // An upgraded connection is not reused.
            upgrades: Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(upgrades),
            credentials,
        })
    }

    /// Addresses a request to the API server, and adds our credentials. Returns the link if a 401 is about them.
    async fn prepare(
        self: &Arc<Self>,
        request: &mut Request<Outgoing>,
        renewed: &Renewed<Self>,
    ) -> Result<Option<&Arc<Self>>, Box<Status>> {
        let may_be_proxied = may_be_proxied(request.uri());
        let wrong = |fault| Status::bad_request(format!("eventweir: the path cannot be forwarded: {fault}"));
        *request.uri_mut() = at(&self.cluster, request.uri()).map_err(wrong)?;
        let Some(credentials) = &self.credentials else { return Ok(None) };
        let headers = credentials.headers(renewed.now()).await;
        let headers =
            headers.inspect_err(|fault| renewed.failed(self, &**fault)).map_err(|fault| unanswered(&*fault))?;
        // The request names the caller. No part of a user that our kubeconfig names with `as` may be added.
        let kept = headers.iter().filter(|(name, _)| !is_impersonation(name));
        request.headers_mut().extend(kept.map(|(name, value)| (name.clone(), value.clone())));
        Ok(Some(self).filter(|_| !may_be_proxied))
    }
}

/// Returns a copy of a read whose body is in memory.
fn copy(request: &Request<Outgoing>) -> Option<Request<Outgoing>> {
    let Either::Left(body) = request.body() else { return None };
    if !request.method().is_safe() {
        return None;
    }
    let mut copy = Request::new(Either::Left(body.clone()));
    request.method().clone_into(copy.method_mut());
    request.uri().clone_into(copy.uri_mut());
    request.headers().clone_into(copy.headers_mut());
    Some(copy)
}

/// Whether a header is one of the API server's for impersonation. It has several, and their names share a beginning.
pub fn is_impersonation(name: &HeaderName) -> bool {
    name.as_str().starts_with("impersonate-")
}

/// Whether a pod, service or node may answer in place of the API server. Its 401 is about its own users. An escaped path
/// may be one of theirs.
pub(crate) fn may_be_proxied(uri: &Uri) -> bool {
    let mut parts = uri.path().split('/');
    let parts: [&str; 8] = std::array::from_fn(|_| parts.next().unwrap_or_default());
    matches!(
        parts,
        ["", "api", "v1", "namespaces", _, "pods" | "services", _, "proxy"]
            | ["", "api", "v1", "nodes", _, "proxy", ..]
    ) || uri.path().contains('%')
}

/// Returns a URI at the API server, with the path and query byte for byte. They are not read as a part of a longer text,
/// in which they could become a part of the host.
fn at(cluster: &Uri, asked: &Uri) -> Result<Uri, InvalidUriParts> {
    let path = asked.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    let prefix = cluster.path().trim_end_matches('/');
    let mut parts = cluster.clone().into_parts();
    parts.path_and_query = Some(if prefix.is_empty() {
        path
    } else {
        // Two valid paths in a row are a valid path.
        PathAndQuery::try_from(format!("{prefix}{path}")).unwrap_or(path)
    });
    Uri::from_parts(parts)
}

/// Returns the refusal of a request that has no answer.
fn unanswered(fault: &(dyn std::error::Error + 'static)) -> Box<Status> {
    Box::new(match classify(fault) {
        _ if is_unprocessed(fault) => {
            let message = "eventweir: the API server closes the connection, and has not processed the request";
            Status::new(503, "ServiceUnavailable", message).with_retry_after(1)
        }
        Failure::NotSent(text) | Failure::NoCredentials(text) => {
            let message = format!("eventweir: the API server cannot be reached: {text}");
            Status::new(503, "ServiceUnavailable", message).with_retry_after(1)
        }
        failure => {
            let message = format!("eventweir: the connection to the API server broke: {}", failure.words());
            Status::new(502, "ServiceUnavailable", message)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_is_addressed_to_the_api_server() {
        let asked = |path: &'static str| {
            let mut parts = http::uri::Parts::default();
            parts.path_and_query = Some(PathAndQuery::try_from(path).unwrap());
            Uri::from_parts(parts).unwrap()
        };
        for (cluster, path, expected) in [
            ("https://kube:6443", "/api/v1?watch=1", "/api/v1?watch=1"),
            ("https://kube:6443/k8s/", "//x/%2e./y", "/k8s//x/%2e./y"),
            ("https://kube:6443", "*", "*"),
        ] {
            let uri = at(&cluster.parse().unwrap(), &asked(path)).unwrap();
            let authority = uri.authority().map(http::uri::Authority::as_str);
            assert_eq!((authority, uri.path_and_query().unwrap().as_str()), (Some("kube:6443"), expected));
        }
    }
}
