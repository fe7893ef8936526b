//! Discovery: API groups, resources, version, health and a small OpenAPI document. Lists events only.
//!
//! Mirrors `k8s.io/apiserver/pkg/endpoints/discovery`. kubectl reads the aggregated format and caches it on disk.

use std::hash::Hasher;

use axum::extract::{Path, Request, State};
use axum::http::header::{CONTENT_TYPE, ETAG, HOST, IF_NONE_MATCH, VARY};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use serde_json::{Value, json};
use siphasher::sip128::{Hasher128, SipHasher13};

use super::Ingest;
use super::negotiate::{AnswerFormat, Media, accept, clauses, not_acceptable};
use super::respond;
use crate::event::ApiGroup;
use crate::status::{Status, StatusDetails};
use crate::upstream::Upstream;

const VERBS: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// Versions of the aggregated format, and their media types.
const AGGREGATED: [(&str, &str); 2] = [
    ("v2", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"),
    ("v2beta1", "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"),
];

/// Returns the routes of all paths that do not lead to events.
pub(super) fn routes() -> Vec<(String, MethodRouter<Ingest>)> {
    let ok = || get(async || respond::text(StatusCode::OK, "ok"));
    let resources_of = |of| get(async move |uri: Uri, headers: HeaderMap| resources(of, &uri, &headers));
    let routes = [
        ("/", get(root)),
        ("/api", get(api)),
        ("/apis", get(apis)),
        ("/apis/events.k8s.io", get(group)),
        ("/api/v1", resources_of(ApiGroup::Core)),
        ("/apis/events.k8s.io/v1", resources_of(ApiGroup::Events)),
        ("/api/v1/namespaces/{namespace}", get(namespace)),
        ("/version", get(version)),
        ("/healthz", ok()),
        ("/livez", ok()),
        ("/readyz", ok()),
        ("/openapi/v3", get(openapi_index)),
        ("/openapi/v3/{*path}", get(openapi)),
    ];
    routes.into_iter().map(|(path, methods)| (path.to_owned(), methods)).collect()
}

async fn root(request: Request) -> Response {
    let paths = ["/api", "/api/v1", "/apis", "/apis/events.k8s.io", "/apis/events.k8s.io/v1", "/healthz", "/livez"];
    let paths = [&paths[..], &["/openapi/v3", "/readyz", "/version"]].concat();
    negotiated(request.uri(), request.headers(), &json!({ "paths": paths }))
}

async fn api(request: Request) -> Response {
    let legacy = json!({ "versions": [described()] });
    aggregated(&request, legacy).unwrap_or_else(|| {
        let host = request.headers().get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let authority = request.uri().authority().map_or(host, |authority| authority.as_str());
        let document = json!({
            "kind": "APIVersions",
            "versions": ["v1"],
            "serverAddressByClientCIDRs": [{ "clientCIDR": "0.0.0.0/0", "serverAddress": authority }],
        });
        negotiated(request.uri(), request.headers(), &document)
    })
}

async fn apis(request: Request) -> Response {
    let named = json!({ "metadata": { "name": "events.k8s.io" }, "versions": [described()] });
    aggregated(&request, named).unwrap_or_else(|| {
        let group = events_group(None);
        let document = json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": [group] });
        negotiated(request.uri(), request.headers(), &document)
    })
}

async fn group(uri: Uri, headers: HeaderMap) -> Response {
    negotiated(&uri, &headers, &events_group(Some("APIGroup")))
}

fn events_group(kind: Option<&str>) -> Value {
    let version = json!({ "groupVersion": "events.k8s.io/v1", "version": "v1" });
    let mut group = kind.map_or_else(|| json!({}), |kind| json!({ "kind": kind, "apiVersion": "v1" }));
    group["name"] = "events.k8s.io".into();
    group["versions"] = json!([version]);
    group["preferredVersion"] = version;
    group
}

fn resources(group: ApiGroup, uri: &Uri, headers: &HeaderMap) -> Response {
    let mut document = json!({ "kind": "APIResourceList" });
    if group == ApiGroup::Events {
        document["apiVersion"] = "v1".into();
    }
    document["groupVersion"] = group.api_version().into();
    document["resources"] = json!([{
        "name": "events",
        "singularName": "event",
        "namespaced": true,
        "kind": "Event",
        "verbs": VERBS,
        "shortNames": ["ev"],
        // Equal in both API groups, because they share one store.
        "storageVersionHash": "r2yiGXH7wu8=",
    }]);
    negotiated(uri, headers, &document)
}

/// Answers kubectl's GET of the namespace after a 404 of an event (`resource.Info.Get`). kubectl then reports a missing
/// namespace instead.
async fn namespace(State(ingest): State<Ingest>, Path(name): Path<String>, uri: Uri, headers: HeaderMap) -> Response {
    match &ingest.0.upstream {
        Upstream::Embedded(embedded) if embedded.has_namespace(&name) => {
            let document = json!({
                "kind": "Namespace",
                "apiVersion": "v1",
                "metadata": { "name": name },
                "status": { "phase": "Active" },
            });
            negotiated(&uri, &headers, &document)
        }
        Upstream::Embedded(_) => respond::refusal(&Status::not_found("", "namespaces", &name)),
        // Only the apiserver knows, and eventweir may read events only.
        Upstream::Apiserver(_) => {
            let message = format!("namespaces {name:?} is forbidden: eventweir serves events only");
            let details = StatusDetails { name, kind: "namespaces".to_owned(), ..StatusDetails::default() };
            respond::refusal(&Status::new(403, "Forbidden", message).with_details(details))
        }
    }
}

/// Returns the description of events in aggregated discovery.
fn described() -> Value {
    json!({
        "version": "v1",
        "resources": [{
            "resource": "events",
            "responseKind": { "group": "", "version": "", "kind": "Event" },
            "scope": "Namespaced",
            "singularResource": "event",
            "verbs": VERBS,
            "shortNames": ["ev"],
        }],
        "freshness": "Current",
    })
}

/// Returns the aggregated format, if the client prefers it.
fn aggregated(request: &Request, mut item: Value) -> Option<Response> {
    let (version, label) = clauses(accept(request.headers())).iter().find_map(|clause| {
        let asked = |name: &str| clause.parameters.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        let is_list = (asked("g"), asked("as")) == (Some("apidiscovery.k8s.io"), Some("APIGroupDiscoveryList"));
        let plain = ["as", "g", "v"].iter().all(|name| asked(name).is_none());
        match (clause.main, clause.sub) {
            ("application", "json") if is_list => {
                AGGREGATED.iter().find(|(version, _)| asked("v") == Some(version)).copied().map(Some)
            }
            ("application", "json" | "yaml" | "vnd.kubernetes.protobuf" | "*") | ("*", "*") if plain => Some(None),
            _ => None,
        }
    })??;
    if item.get("metadata").is_none() {
        item["metadata"] = json!({});
    }
    let document = json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": format!("apidiscovery.k8s.io/{version}"),
        "metadata": {},
        "items": [item],
    });
    let body = document.to_string() + "\n";
    let tag = format!("\"{}\"", hash(body.as_bytes()));
    let headers = [(VARY, HeaderValue::from_static("Accept")), (ETAG, HeaderValue::from_str(&tag).ok()?)];
    if request.headers().get(IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
        return Some((StatusCode::NOT_MODIFIED, headers).into_response());
    }
    Some((headers, [(CONTENT_TYPE, HeaderValue::from_static(label))], body).into_response())
}

fn hash(bytes: &[u8]) -> String {
    let mut hasher = SipHasher13::new();
    hasher.write(bytes);
    format!("{:032X}", hasher.finish128().as_u128())
}

async fn version(uri: Uri, headers: HeaderMap) -> Response {
    // The mirrored version of Kubernetes; kubectl warns if it differs too much from its own.
    let document = json!({
        "major": "1",
        "minor": "36",
        "gitVersion": concat!("v1.36.3+eventweir.", env!("CARGO_PKG_VERSION")),
        "gitCommit": "none",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    });
    let pretty = AnswerFormat::plain(uri.query(), &headers).is_none_or(|(_, pretty)| pretty);
    respond::document(StatusCode::OK, Media::Json, pretty, document.to_string().into_bytes())
}

/// DIFFERENCE(apiserver): discovery is not served in protobuf; a client that accepts nothing else is answered 406.
fn negotiated(uri: &Uri, headers: &HeaderMap, document: &Value) -> Response {
    let (media, pretty) = match AnswerFormat::plain(uri.query(), headers) {
        Some((Media::Protobuf, _)) if accepts_json(headers) => (Media::Json, false),
        Some((Media::Protobuf, _)) | None => return respond::refusal(&not_acceptable()),
        Some(chosen) => chosen,
    };
    respond::document(StatusCode::OK, media, pretty, document.to_string().into_bytes())
}

fn accepts_json(headers: &HeaderMap) -> bool {
    clauses(accept(headers))
        .iter()
        .any(|clause| (clause.main, clause.sub) == ("application", "json") || clause.main == "*")
}

/// Returns the index with the documents' hashes, by which clients cache them.
async fn openapi_index() -> Response {
    let entry = |group: ApiGroup, path: &str| {
        let hash = hash(openapi_document(group).to_string().as_bytes());
        json!({ "serverRelativeURL": format!("/openapi/v3/{path}?hash={hash}") })
    };
    let paths = json!({
        "api/v1": entry(ApiGroup::Core, "api/v1"),
        "apis/events.k8s.io/v1": entry(ApiGroup::Events, "apis/events.k8s.io/v1"),
    });
    // COMPAT(apiserver): the Content-Type is text.
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    ([(CONTENT_TYPE, text)], json!({ "paths": paths }).to_string()).into_response()
}

async fn openapi(Path(path): Path<String>) -> Response {
    let group = match path.as_str() {
        "api/v1" => ApiGroup::Core,
        "apis/events.k8s.io/v1" => ApiGroup::Events,
        _ => return respond::text(StatusCode::NOT_FOUND, "404 page not found\n"),
    };
    let json = HeaderValue::from_static("application/json");
    ([(CONTENT_TYPE, json)], openapi_document(group).to_string()).into_response()
}

/// Returns the OpenAPI document. DIFFERENCE(apiserver): only as much as kubectl needs to see that the server validates
/// fields (`fieldValidation`); the schema of an Event is open.
fn openapi_document(group: ApiGroup) -> Value {
    let (prefix, schema, name) = match group {
        ApiGroup::Core => ("/api/v1", "io.k8s.api.core.v1.Event", ""),
        ApiGroup::Events => ("/apis/events.k8s.io/v1", "io.k8s.api.events.v1.Event", "events.k8s.io"),
    };
    let kind = json!({ "group": name, "version": "v1", "kind": "Event" });
    let parameter =
        |name: &str| json!({ "name": name, "in": "query", "schema": { "type": "string", "uniqueItems": true } });
    let parameters = ["dryRun", "fieldManager", "fieldValidation"].map(parameter);
    let reference = json!({ "$ref": format!("#/components/schemas/{schema}") });
    let operation = |action: &str| {
        json!({
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": kind,
            "parameters": parameters,
            "responses": { "200": {
                "description": "OK",
                "content": { "application/json": { "schema": reference } },
            } },
        })
    };
    json!({
        "openapi": "3.0.0",
        "info": { "title": "eventweir", "version": env!("CARGO_PKG_VERSION") },
        "paths": {
            format!("{prefix}/namespaces/{{namespace}}/events"): { "post": operation("post"), "get": operation("list") },
            format!("{prefix}/namespaces/{{namespace}}/events/{{name}}"): {
                "get": operation("get"),
                "patch": operation("patch"),
            },
        },
        "components": { "schemas": { schema: {
            "type": "object",
            "x-kubernetes-group-version-kind": [kind],
            "x-kubernetes-preserve-unknown-fields": true,
        } } },
    })
}
