//! Checks before a handler: authentication, a place among the running requests, and authorisation. And checks of a
//! write within its handler, once its event is known: source binding and rate limits.

use std::borrow::Cow;
use std::sync::Arc;

use axum::extract::Request;
use axum::http::header::{AUTHORIZATION, HeaderName, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, Uri};
use axum::response::Response;
use percent_encoding::percent_decode_str;
use smallvec::SmallVec;
use smol_str::SmolStr;
use tokio::time::timeout;

use super::aliases::is_of_one_line;
use super::forwarded_change::Change;
use super::lists::CallerName;
use super::rejection::{Rejection, as_asked};
use super::{Ingest, Unable, admit, explain, lists, options};
use crate::access::{Attributes, Caller, Extent, Purpose, Target, Turn, Write};
use crate::event::selector::FieldSelector;
use crate::event::validate::is_valid_name;
use crate::event::{ApiGroup, Event, ObjectMeta, RareMeta};
use crate::ledger::RejectReason;
use crate::server::{Answer, Peer};
use crate::shard::{Found, Lookup};
use crate::status::Status;
use crate::upstream::apiserver::is_impersonation;

/// Path of batches, whose events are authorised one by one.
pub(super) const BATCH: &str = "/eventweir/v1/events";

/// Paths without authentication: health probes have no credentials.
const HEALTH: [&str; 3] = ["/healthz", "/livez", "/readyz"];

/// Header of a caller that impersonates another user.
const IMPERSONATE: HeaderName = HeaderName::from_static("impersonate-user");

/// Layer that authenticates and authorises a request.
pub(super) async fn guard(ingest: Ingest, mut request: Request, next: impl Answer) -> Response {
    if let Some(value) = request.headers_mut().get_mut(AUTHORIZATION) {
        // Hides the value in logs of the headers.
        value.set_sensitive(true);
    }
    if HEALTH.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    let (mut head, body) = request.into_parts();
    let is_review = head.uri.path() == admit::PATH;
    if is_review {
        // The checks belong to its timeout.
        head.extensions.insert(admit::Began(ingest.0.shards.clock().now().mono));
    }
    let change = Change::of(&head);
    let entered = if ingest.0.shared.access.authenticates() {
        enter(&ingest, &mut head).await
    } else {
        may_be_answered(&ingest, "").map(|()| None)
    };
    let mut response = match entered {
        Ok(place) => {
            // A change keeps it until its end.
            let place = place.map(Arc::new);
            if let Some(place) = &place {
                head.extensions.insert(Arc::clone(place));
            }
            let caller = head.extensions.get().map(|caller: &Caller| caller.name.clone());
            let mut response = next.run(Request::from_parts(head, body)).await;
            drop(place);
            if let Some(caller) = caller.filter(|_| lists::counted(&response).is_some()) {
                response.extensions_mut().insert(CallerName(caller));
            }
            response
        }
        Err(rejection) => {
            ingest.reject_unread(&head.method, &head.uri, rejection.reason);
            let mut response = rejection.refusal();
            if rejection.status.code == 403 {
                response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
            }
            response
        }
    };
    if let Some(change) = change {
        change.mark(&ingest, &mut response);
    }
    if is_review {
        // An API server would ask again, and the client's write would wait for it. Without it the write is allowed.
        response.headers_mut().remove(RETRY_AFTER);
    }
    response
}

async fn enter(ingest: &Ingest, head: &mut Parts) -> Result<Option<Turn>, Rejection> {
    let access = &ingest.0.shared.access;
    if let Some(caller) = admission_caller(ingest, head).await? {
        head.extensions.insert(caller);
        return Ok(None);
    }
    let attributes = attributes(&head.method, &head.uri);
    // Pass-through identifies callers before it reads bodies.
    let caller = identified(ingest, head, purpose_of(&attributes)).await?;
    // Impersonation is not supported, and the request must not run in the caller's own name.
    if let Some(user) = head.headers.get(IMPERSONATE) {
        let name = String::from_utf8_lossy(user.as_bytes()).into();
        let target = Target::Resource { group: "", resource: "users", namespace: SmolStr::default(), name };
        let impersonate = Attributes { verb: SmolStr::new_static("impersonate"), target };
        return Err(rejection(impersonate.forbidden(&caller.name, "")));
    }
    if head.headers.keys().any(is_impersonation) {
        let message = "Internal error occurred: a group, a uid or an extra is impersonated without Impersonate-User";
        return Err(rejection(Status::new(500, "InternalError", message)));
    }
    may_be_answered(ingest, &caller.name)?;
    // Watches have their own limit.
    let place = if attributes.verb == "watch" {
        None
    } else {
        let turn = ingest.turn(&caller).await.map_err(rejection)?;
        // Those before it may have been answered meanwhile.
        may_be_answered(ingest, &caller.name)?;
        Some(turn)
    };
    if !is_batch(&attributes) {
        access.authorize(&caller, &attributes).await.map_err(unasked)?;
    }
    head.extensions.insert(caller);
    Ok(place)
}

/// Returns the caller. Pass-through has identified it before it reads a body.
async fn identified(ingest: &Ingest, head: &mut Parts, purpose: Purpose) -> Result<Caller, Rejection> {
    let identified = match head.extensions.remove::<Result<Caller, Status>>() {
        Some(identified) => identified,
        None => ingest.0.shared.access.identify(head.extensions.get::<Peer>(), &head.headers, purpose).await,
    };
    identified.map_err(unasked)
}

/// Refuses a request if too many answers wait already.
fn may_be_answered(ingest: &Ingest, caller: &str) -> Result<(), Rejection> {
    if ingest.0.answer_bytes.has_room(caller) {
        return Ok(());
    }
    let message = "Too many answers wait for their clients to read them, please try again later";
    Err(rejection(Status::too_many_requests(message, 1)))
}

/// Returns the caller of an admission review, if it needs no authorisation. It waits for no place, because a client
/// waits for its answer.
async fn admission_caller(ingest: &Ingest, head: &mut Parts) -> Result<Option<Caller>, Rejection> {
    let Some(admitting) = ingest.0.admission.get().filter(|_| head.uri.path() == admit::PATH) else { return Ok(None) };
    let peer = head.extensions.get::<Peer>();
    let shows_nothing = !head.headers.contains_key(AUTHORIZATION) && peer.is_none_or(|peer| peer.certificate.is_none());
    let caller = if shows_nothing { Caller::anonymous() } else { identified(ingest, head, Purpose::Other).await? };
    if admitting.may_call(&caller.name) {
        return Ok(Some(caller));
    }
    if !shows_nothing {
        head.extensions.insert::<Result<Caller, Status>>(Ok(caller));
    }
    Ok(None)
}

/// Rejects for want of a review. Marks a 429: too many are in flight, but the apiserver itself can authorise the request.
pub(super) fn unasked(status: Status) -> Rejection {
    let unable = (status.code == 429).then_some(Unable);
    Rejection { unable, ..rejection(status) }
}

/// Returns the purpose of a request, by which its caller is identified.
pub(crate) fn purpose(method: &Method, uri: &Uri) -> Purpose {
    purpose_of(&attributes(method, uri))
}

fn purpose_of(attributes: &Attributes) -> Purpose {
    if is_batch(attributes) { Purpose::Report } else { attributes.purpose() }
}

fn is_batch(attributes: &Attributes) -> bool {
    matches!(&attributes.target, Target::Path(path) if path == BATCH)
}

/// Returns the attributes of a request from its method, path and query (`request.RequestInfoFactory`). A trailing slash
/// is ignored.
pub(super) fn attributes(method: &Method, uri: &Uri) -> Attributes {
    if let Some(attributes) = explain::attributes(uri).filter(|_| [Method::GET, Method::HEAD].contains(method)) {
        return attributes;
    }
    let path = uri.path();
    let trimmed = path.strip_suffix('/').filter(|shorter| !shorter.ends_with('/')).unwrap_or(path);
    let segments: SmallVec<[&str; 8]> = trimmed.split('/').skip(1).collect();
    let (group, rest) = match segments.as_slice() {
        ["api", "v1", rest @ ..] => ("", rest),
        ["apis", "events.k8s.io", "v1", rest @ ..] => ("events.k8s.io", rest),
        _ => return of_path(method, path),
    };
    let (is_under_watch, rest) = match rest {
        ["watch", rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let (resource, namespace, name) = match rest {
        ["namespaces", namespace, "events"] => ("events", *namespace, ""),
        ["namespaces", namespace, "events", name] => ("events", *namespace, *name),
        ["events"] => ("events", "", ""),
        ["namespaces", name] if group.is_empty() => ("namespaces", *name, *name),
        _ => return of_path(method, path),
    };
    let is_watch = is_under_watch || (name.is_empty() && options::sets(uri.query(), "watch"));
    let verb = match *method {
        Method::GET | Method::HEAD if is_watch => "watch",
        Method::GET | Method::HEAD if name.is_empty() => "list",
        Method::GET | Method::HEAD => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE if name.is_empty() => "deletecollection",
        Method::DELETE => "delete",
        _ => return of_path(method, path),
    };
    let name = if is_under_watch || !matches!(verb, "list" | "watch") {
        decoded(name).into()
    } else {
        selected_name(group, uri.query()).unwrap_or_default()
    };
    let target = Target::Resource { group, resource, namespace: decoded(namespace).into(), name };
    Attributes { verb: SmolStr::new_static(verb), target }
}

/// Returns the name that the field selector of a list or a watch requires. As in the apiserver, the right to the events
/// of this name is sufficient then.
fn selected_name(group: &str, query: Option<&str>) -> Option<SmolStr> {
    let group = if group.is_empty() { ApiGroup::Core } else { ApiGroup::Events };
    let selector = FieldSelector::parse(&options::first(query, "fieldSelector")?, group).ok()?;
    selector.name().filter(|name| is_valid_name(ApiGroup::Core, name)).map(SmolStr::new)
}

fn of_path(method: &Method, path: &str) -> Attributes {
    Attributes { verb: method.as_str().to_ascii_lowercase().into(), target: Target::Path(path.into()) }
}

/// Whether a request posts an event or a batch.
fn posts_events(method: &Method, uri: &Uri) -> bool {
    if method != Method::POST {
        return false;
    }
    uri.path() == BATCH
        || matches!(attributes(method, uri).target, Target::Resource { resource: "events", namespace, name, .. }
            if !namespace.is_empty() && name.is_empty())
}

fn decoded(segment: &str) -> Cow<'_, str> {
    percent_decode_str(segment).decode_utf8_lossy()
}

/// Rejects an event, with the reason under which the ledger counts it.
pub(super) fn rejection(status: Status) -> Rejection {
    let reason = if status.code == 429 { RejectReason::Limited } else { RejectReason::Denied };
    Rejection::new(reason, status)
}

/// Whether a refusal says that the right of a caller is not known.
const fn is_unanswered(refused: &Status) -> bool {
    refused.code == 429 || refused.code >= 500
}

/// Returns the refusal of a change if it cannot be known whether its event exists: the client may try again.
fn unknown(refused: Status, status: Status) -> Status {
    if is_unanswered(&refused) { refused } else { status }
}

impl Ingest {
    /// Waits for a place among the running requests.
    pub(super) async fn turn(&self, caller: &Caller) -> Result<Turn, Status> {
        // LIMIT: the request timeout; a request that waits longer is refused with 429.
        let waiting = timeout(self.0.settings.request_timeout, self.0.shared.access.turn(caller)).await;
        let late = |_elapsed| Err(self.0.shared.access.without_turn("Too many requests: no place was free in time"));
        waiting.unwrap_or_else(late)
    }

    /// Counts a request that is refused before it is read as a rejected occurrence, if it could be one.
    pub(super) fn reject_unread(&self, method: &Method, uri: &Uri, reason: RejectReason) {
        if posts_events(method, uri) {
            self.0.shards.reject(reason, 1);
        }
    }

    /// Checks that the caller may create events in a namespace: for a batch, and for other verbs that may create.
    pub(super) async fn may_create(
        &self,
        caller: Option<&Caller>,
        group: ApiGroup,
        namespace: &str,
    ) -> Result<(), Status> {
        let Some(caller) = caller else { return Ok(()) };
        self.0.shared.access.authorize(caller, &Attributes::to_create(group.name(), namespace)).await
    }

    /// Checks the same for an event that does not exist yet, like the apiserver before a PUT or an apply creates.
    ///
    /// # Errors
    /// The refusal of the create; the upstream's answer if it cannot be known whether the event exists.
    pub(super) async fn may_put(&self, caller: Option<&Caller>, event: (ApiGroup, &str, &str)) -> Result<(), Status> {
        let (group, namespace, name) = event;
        let Err(refused) = self.may_create(caller, group, namespace).await else { return Ok(()) };
        let posted = self.0.aliases.get(namespace, name);
        let find = |by| self.0.shards.find_named(posted.as_ref()?, by).filter(|found| !found.is_gone);
        let found = find(Lookup::Alias);
        let may_be_combined = found.is_none();
        let mut exists = self.exists(namespace, name, found).await;
        if let Err(Status { code: 404, .. }) = exists
            && may_be_combined
            && let Some(found) = find(Lookup::Unstored)
        {
            exists = self.exists(namespace, name, Some(found)).await;
        }
        exists.map_err(|status| if matches!(status.code, 403 | 404) { refused } else { unknown(refused, status) })
    }

    /// Checks that a record exists or is about to; without one, that the upstream has an event of that name.
    async fn exists(&self, namespace: &str, name: &str, found: Option<Found>) -> Result<(), Status> {
        if found.as_ref().is_some_and(|found| found.unsettled.is_some()) {
            return Ok(());
        }
        let record = found.as_ref().map_or(name, |found| &found.name);
        self.0.upstream.get(namespace, record).await.map(drop)
    }

    /// Checks that the caller may report the growth of an event: its source, and the right to create, unless its record is
    /// stored, or a create of it waits.
    ///
    /// # Errors
    /// 404 if there is no event of this name, like the apiserver's to a patch; otherwise the refusal of the create, or
    /// the upstream's answer if it cannot be known whether the event exists.
    pub(super) async fn may_grow(
        &self,
        caller: Option<&Caller>,
        group: ApiGroup,
        grown: &Event,
    ) -> Result<(), Rejection> {
        self.check_source(caller, group, grown, Extent::Whole)?;
        let ObjectMeta { namespace, name, .. } = &grown.metadata;
        let Err(refused) = self.may_create(caller, group, namespace).await else { return Ok(()) };
        let found = self.0.shards.find(grown);
        let is_owed = found.as_ref().is_some_and(|found| found.unsettled.is_some());
        // While the right is not known, the upstream is most often away, and is not waited for either.
        let is_stored = is_unanswered(&refused) && found.as_ref().is_some_and(|found| found.stored);
        if is_owed || is_stored || self.0.shards.would_fold(grown) {
            return Ok(());
        }
        let record = found.as_ref().map_or(name, |found| &found.name);
        match self.0.upstream.get(namespace, record).await {
            // Without a tracked record, an event of the name is continued only if it is the same.
            Ok(stored) if found.is_some() || stored.message == grown.message => Ok(()),
            Err(status) if status.code == 404 => Err(rejection(as_asked(group, name, status))),
            Err(status) if status.code != 403 => Err(rejection(unknown(refused, status))),
            Ok(_) | Err(_) => Err(rejection(refused)),
        }
    }

    /// Whether the sources of this caller are checked.
    pub(super) fn binds(&self, caller: Option<&Caller>) -> bool {
        caller.is_some_and(|caller| self.0.shared.access.binds(caller))
    }

    /// Checks that the caller may report the event's source.
    pub(super) fn check_source(
        &self,
        caller: Option<&Caller>,
        group: ApiGroup,
        event: &Event,
        extent: Extent,
    ) -> Result<(), Rejection> {
        let Some(caller) = caller else { return Ok(()) };
        self.0.shared.access.check_source(caller, group, event, extent).map_err(rejection)
    }

    /// Checks that a posted event does not take the name of another one whose source its caller may not report: the
    /// changes of that event's client would be judged by the new event. To the apiserver, the name exists.
    pub(super) fn check_name(&self, caller: Option<&Caller>, group: ApiGroup, event: &Event) -> Result<(), Rejection> {
        if !self.binds(caller) {
            return Ok(());
        }
        let ObjectMeta { namespace, name, .. } = &event.metadata;
        let known = self.0.aliases.get(namespace, name).filter(|known| !is_of_one_line(known, event));
        let is_theirs = |known: &Event| self.check_source(caller, group, known, Extent::Whole).is_err();
        match known.filter(is_theirs) {
            Some(_) => {
                let status = Status::already_exists(group.name(), "events", name);
                Err(Rejection::new(RejectReason::Denied, status))
            }
            None => Ok(()),
        }
    }

    /// Checks that the caller may report the source of the event that its change of this name is about; nothing of an
    /// event that does not exist.
    pub(super) async fn check_changed(
        &self,
        caller: Option<&Caller>,
        (group, namespace, name): (ApiGroup, &str, &str),
    ) -> Result<(), Rejection> {
        if !self.binds(caller) {
            return Ok(());
        }
        let changed = match self.event_of(namespace, name, 0).await {
            Ok(event) => Some(event),
            // Its client may know one that is gone.
            Err(status) if status.code == 404 => self.0.aliases.get(namespace, name),
            Err(status) => return Err(rejection(status)),
        };
        let check = |changed: Event| self.check_source(caller, group, &changed, Extent::Whole);
        changed.map_or(Ok(()), check)
    }

    /// Takes a token for a write from the budget of each limit.
    pub(super) fn limit(
        &self,
        caller: Option<&Caller>,
        namespace: &str,
        event: Option<&Event>,
    ) -> Result<(), Rejection> {
        let user = caller.map_or("", |caller| &caller.name);
        self.0.shared.access.limit(Write { user, namespace, event }).map_err(rejection)
    }

    /// Sets the configured annotation to the caller's name.
    pub(super) fn annotate(&self, caller: Option<&Caller>, event: &mut Event) {
        if let (Some(caller), Some(key)) = (caller, self.0.shared.access.annotation()) {
            let rare: &mut RareMeta = event.metadata.rare.get_or_insert_default();
            rare.annotations.insert(key, caller.name.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_follow_method_path_and_query() {
        for (method, uri, expected) in [
            ("POST", "/api/v1/namespaces/shop/events", "create  events shop "),
            ("POST", "/api/v1/namespaces/shop/events/", "create  events shop "),
            ("POST", "/api/v1/namespaces/sho%70/events", "create  events shop "),
            ("GET", "/api/v1/namespaces/shop/events", "list  events shop "),
            ("GET", "/api/v1/namespaces/shop/events?watch=1", "watch  events shop "),
            ("GET", "/api/v1/namespaces/shop/events?watch=false", "list  events shop "),
            ("HEAD", "/api/v1/namespaces/shop/events", "list  events shop "),
            ("GET", "/apis/events.k8s.io/v1/namespaces/shop/events/p", "get events.k8s.io events shop p"),
            ("GET", "/api/v1/namespaces/shop/events/p?watch=1", "get  events shop p"),
            ("PUT", "/api/v1/namespaces/shop/events/p", "update  events shop p"),
            ("PATCH", "/api/v1/namespaces/shop/events/a%2Fb", "patch  events shop a/b"),
            ("DELETE", "/api/v1/namespaces/shop/events/p", "delete  events shop p"),
            ("DELETE", "/api/v1/namespaces/shop/events", "deletecollection  events shop "),
            ("GET", "/api/v1/events", "list  events  "),
            ("GET", "/apis/events.k8s.io/v1/events/?watch", "watch events.k8s.io events  "),
            (
                "GET",
                "/api/v1/namespaces/shop/events?fieldSelector=type%3DNormal,metadata.name==p",
                "list  events shop p",
            ),
            (
                "GET",
                "/apis/events.k8s.io/v1/events?watch&fieldSelector=metadata.name=p",
                "watch events.k8s.io events  p",
            ),
            ("GET", "/api/v1/namespaces/shop/events?fieldSelector=metadata.name!%3Dp", "list  events shop "),
            ("GET", "/api/v1/namespaces/shop/events?fieldSelector=metadata.name%3Da%252Fb", "list  events shop "),
            ("GET", "/api/v1/namespaces/shop/events/p?fieldSelector=metadata.name=q", "get  events shop p"),
            (
                "DELETE",
                "/api/v1/namespaces/shop/events?fieldSelector=metadata.name=p",
                "deletecollection  events shop ",
            ),
            ("GET", "/api/v1/watch/namespaces/shop/events?fieldSelector=metadata.name=p", "watch  events shop "),
            ("GET", "/api/v1/watch/events", "watch  events  "),
            ("GET", "/api/v1/watch/namespaces/shop/events", "watch  events shop "),
            ("GET", "/apis/events.k8s.io/v1/watch/namespaces/shop/events/p", "watch events.k8s.io events shop p"),
            ("GET", "/api/v1/watch/namespaces/shop/events/p", "watch  events shop p"),
            ("GET", "/api/v1/namespaces/shop", "get  namespaces shop shop"),
            ("GET", "/api/v1", "get /api/v1"),
            ("GET", "/", "get /"),
            ("POST", "/eventweir/v1/events", "post /eventweir/v1/events"),
            ("GET", "/api/v1/namespaces/shop/pods", "get /api/v1/namespaces/shop/pods"),
            ("GET", "/api/v1/namespaces/shop/events//", "get /api/v1/namespaces/shop/events//"),
            ("OPTIONS", "/api/v1/events", "options /api/v1/events"),
        ] {
            let Attributes { verb, target } = attributes(&method.parse().unwrap(), &uri.parse().unwrap());
            let shown = match target {
                Target::Path(path) => format!("{verb} {path}"),
                Target::Resource { group, resource, namespace, name } => {
                    format!("{verb} {group} {resource} {namespace} {name}")
                }
            };
            assert_eq!(shown, expected, "{method} {uri}");
        }
    }
}
