//! Negotiates the format of an answer: API group, media type and view. Mirrors the apiserver: first go-restful checks
//! whether any accepted type is served, then `negotiation.NegotiateMediaTypeOptions` chooses
//! (`k8s.io/apiserver/pkg/endpoints/handlers/negotiation/negotiate.go`, `rest.go`).
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use axum::http::header::{ACCEPT, USER_AGENT};
use axum::http::{HeaderMap, HeaderValue};

use super::options;
use super::rejection::Rejection;
use crate::event::ApiGroup;
use crate::ledger::RejectReason;
use crate::status::{Status, StatusDetails};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AnswerFormat {
    pub(super) group: ApiGroup,
    pub(super) media: Media,
    pub(super) view: View,
    /// Whether JSON is indented.
    pub(super) pretty: bool,
    /// Time of the request in unix nanoseconds, for the ages in a table; otherwise 0.
    pub(super) now: i64,
}

labelled! {
    /// Media type of an answer, by its name.
    pub(super) enum Media {
        Json = "application/json",
        Yaml = "application/yaml",
        Protobuf = "application/vnd.kubernetes.protobuf",
    }
}

/// View of an event (`as=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum View {
    /// The whole event.
    Whole,
    /// Metadata; refused for a list.
    Partial(MetaVersion),
    /// Metadata of each event; refused for one event.
    PartialList(MetaVersion),
    /// A row of a table, with this object beside it.
    Table(MetaVersion, Include),
}

labelled! {
    /// Requested version of `meta.k8s.io`, by the apiVersion of the answer.
    pub(super) enum MetaVersion {
        V1 = "meta.k8s.io/v1",
        V1Beta1 = "meta.k8s.io/v1beta1",
    }
}

/// Object beside the cells of a row (`includeObject`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Include {
    Metadata,
    Object,
    None,
}

/// Kind of document, which limits the views.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Endpoint {
    Events,
    /// A refusal or a discovery document.
    Other,
}

const SERVED: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";

impl Media {
    /// Finds a media type by its name, ignoring case.
    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|media| media.label().eq_ignore_ascii_case(name))
    }

    fn fits(self, clause: &Clause<'_>) -> bool {
        let sub = self.label().strip_prefix("application/").unwrap_or_default();
        match (clause.main, clause.sub) {
            ("*", "*") | ("application", "*") => true,
            (main, wanted) => main == "application" && wanted == sub,
        }
    }
}

impl AnswerFormat {
    /// Chooses the format that the client prefers for an event or a list.
    pub(super) fn negotiate(
        group: ApiGroup,
        now: impl FnOnce() -> i64,
        query: Option<&str>,
        headers: &HeaderMap,
    ) -> Result<Self, Rejection> {
        if let Some((media, pretty)) = Self::usual(query, headers) {
            return Ok(Self { group, media, view: View::Whole, pretty, now: 0 });
        }
        let accept = accept(headers);
        is_served(accept)?;
        let chosen = choose(accept, Endpoint::Events);
        let (media, view, pretty) = chosen.ok_or_else(|| refused(not_acceptable()))?;
        let (view, now) = match view {
            View::Table(version, _) => (View::Table(version, include(query)?), now()),
            other => (other, 0),
        };
        Ok(Self { group, media, view, pretty: pretty || wants_pretty(query, headers), now })
    }

    /// Looks up a common Accept header without parsing it. The answer then has the whole view.
    fn usual(query: Option<&str>, headers: &HeaderMap) -> Option<(Media, bool)> {
        let accept = headers.get(ACCEPT).map_or(&[][..], HeaderValue::as_bytes);
        let (_, media) = USUAL.iter().find(|(usual, _)| usual.as_bytes() == accept)?;
        Some((*media, wants_pretty(query, headers)))
    }

    /// Chooses the media type of a document other than events, such as a refusal; `None` if none is acceptable.
    pub(super) fn plain(query: Option<&str>, headers: &HeaderMap) -> Option<(Media, bool)> {
        if let Some(usual) = Self::usual(query, headers) {
            return Some(usual);
        }
        let (media, _, pretty) = choose(accept(headers), Endpoint::Other)?;
        Some((media, pretty || wants_pretty(query, headers)))
    }
}

/// Accept headers of common clients (client-go, client libraries, curl), and the media type of the answer.
const USUAL: [(&str, Media); 7] = [
    ("application/json, */*", Media::Json),
    ("application/vnd.kubernetes.protobuf,application/json", Media::Protobuf),
    ("application/vnd.kubernetes.protobuf, */*", Media::Protobuf),
    ("application/json", Media::Json),
    ("*/*", Media::Json),
    ("", Media::Json),
    ("application/vnd.kubernetes.protobuf", Media::Protobuf),
];

/// Returns a 406: no accepted media type is served.
pub(super) fn not_acceptable() -> Status {
    Status::new(406, "NotAcceptable", format!("only the following media types are accepted: {SERVED}"))
}

fn refused(status: Status) -> Rejection {
    Rejection::new(RejectReason::MediaType, status)
}

/// Returns the Accept header. COMPAT(apiserver): only the first of several counts.
pub(super) fn accept(headers: &HeaderMap) -> &str {
    headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// Mirrors go-restful's check of Accept: `*/*` or one of our media types, verbatim. `application/*` does not match.
fn is_served(accept: &str) -> Result<(), Rejection> {
    let served = |part: &str| {
        let name = part.split(';').next().unwrap_or_default().trim();
        name == "*/*" || Media::ALL.into_iter().any(|media| media.label() == name)
    };
    if accept.is_empty() || accept.split(',').any(served) {
        return Ok(());
    }
    let message = format!("406: Not Acceptable\n\nAvailable representations: {SERVED}");
    Err(refused(Status::new(406, "NotAcceptable", message).with_details(StatusDetails::default())))
}

fn choose(accept: &str, endpoint: Endpoint) -> Option<(Media, View, bool)> {
    if accept.is_empty() {
        return Some((Media::Json, View::Whole, false));
    }
    clauses(accept).into_iter().find_map(|clause| {
        let fitting = Media::ALL.into_iter().filter(|media| media.fits(&clause));
        fitting.filter_map(|media| offer(media, &clause, endpoint)).next()
    })
}

/// `acceptMediaTypeOptions`: the format of this media type with these parameters, if it is served.
fn offer(media: Media, clause: &Clause<'_>, endpoint: Endpoint) -> Option<(Media, View, bool)> {
    let (mut kind, mut group, mut version, mut converts, mut pretty) = ("", "", "", false, false);
    for (name, value) in &clause.parameters {
        match *name {
            "as" => (kind, converts) = (value, true),
            "g" => (group, converts) = (value, true),
            "v" => (version, converts) = (value, true),
            "stream" if !value.is_empty() && (media == Media::Yaml || *value != "watch") => return None,
            "sv" if !value.is_empty() && (endpoint == Endpoint::Other || *value != "v1") => return None,
            "pretty" => pretty = *value == "1",
            _ => {}
        }
    }
    if !converts {
        return Some((media, View::Whole, pretty));
    }
    let version = MetaVersion::ALL.into_iter().find(|known| known.label().split_once('/') == Some((group, version)))?;
    let view = match (endpoint, kind) {
        (Endpoint::Events, "Table") if media != Media::Protobuf => View::Table(version, Include::Metadata),
        (Endpoint::Events, "PartialObjectMetadata") => View::Partial(version),
        (Endpoint::Events, "PartialObjectMetadataList") => View::PartialList(version),
        _ => return None,
    };
    Some((media, view, pretty))
}

/// DIFFERENCE(apiserver): refused before the event is read or created instead of afterwards.
fn include(query: Option<&str>) -> Result<Include, Rejection> {
    match &*options::first(query, "includeObject").unwrap_or_default() {
        "" | "Metadata" => Ok(Include::Metadata),
        "Object" => Ok(Include::Object),
        "None" => Ok(Include::None),
        other => {
            let message = format!("includeObject: {other:?} is not allowed; allowed is Metadata, Object, None");
            Err(Rejection::invalid(Status::bad_request(message)))
        }
    }
}

/// `isPrettyPrint`: a parameter, or a client that a person uses.
fn wants_pretty(query: Option<&str>, headers: &HeaderMap) -> bool {
    if query.is_some_and(|query| query.contains("pretty"))
        && let Some(value) = options::first(query, "pretty").filter(|value| !value.is_empty())
    {
        return matches!(&*value, "1" | "t" | "T" | "true" | "TRUE" | "True");
    }
    let agent = headers.get(USER_AGENT).map_or(&[][..], HeaderValue::as_bytes);
    [&b"curl"[..], b"Wget", b"Mozilla/5.0"].iter().any(|person| agent.starts_with(person))
}

/// One clause of an Accept header, parsed and sorted as by `github.com/munnerz/goautoneg`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Clause<'a> {
    pub(super) main: &'a str,
    pub(super) sub: &'a str,
    weight: f32,
    pub(super) parameters: Vec<(&'a str, &'a str)>,
}

/// LIMIT: clauses of an Accept header; further ones are ignored.
const CLAUSES_MAX: usize = 32;
/// LIMIT: parameters of one clause; further ones are ignored.
const PARAMETERS_MAX: usize = 16;

/// Returns the clauses in the order of preference.
pub(super) fn clauses(accept: &str) -> Vec<Clause<'_>> {
    let mut sorted: Vec<Clause<'_>> = Vec::new();
    for clause in accept.split(',').take(CLAUSES_MAX).filter_map(clause) {
        // Go's insertion sort, because `goes_first` is not a total order: it can hold both ways.
        let place =
            sorted.iter().rposition(|other| !goes_first(&clause, other)).map_or(0, |index| index.saturating_add(1));
        sorted.insert(place, clause);
    }
    sorted
}

fn clause(text: &str) -> Option<Clause<'_>> {
    let text = text.trim_matches(' ');
    let (name, rest) = text.split_once(';').unwrap_or((text, ""));
    let (main, sub) = match name.split_once('/') {
        Some((_, sub)) if sub.contains('/') || sub.is_empty() => return None,
        Some((main, sub)) => (main.trim_matches(' '), sub.trim_matches(' ')),
        None if name.trim_matches(' ') == "*" => ("*", "*"),
        None => return None,
    };
    let (mut weight, mut parameters) = (1.0, Vec::new());
    for parameter in rest.split(';').take(PARAMETERS_MAX) {
        let Some((name, value)) = parameter.split_once('=') else { continue };
        if value.is_empty() || value.contains('=') {
            continue;
        }
        match name.trim_matches(' ') {
            "q" => weight = value.parse().unwrap_or(0.0),
            name => parameters.push((name, value.trim_matches(' '))),
        }
    }
    Some(Clause { main, sub, weight, parameters })
}

/// `acceptSlice.Less`.
fn goes_first(left: &Clause<'_>, right: &Clause<'_>) -> bool {
    left.weight > right.weight || (left.main != "*" && right.main == "*") || (left.sub != "*" && right.sub == "*")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(accept: Option<&str>, query: &str) -> Result<AnswerFormat, Rejection> {
        let mut headers = HeaderMap::new();
        if let Some(accept) = accept {
            headers.insert(ACCEPT, accept.parse().unwrap());
        }
        AnswerFormat::negotiate(ApiGroup::Core, || 0, Some(query), &headers)
    }

    #[test]
    fn accept_is_negotiated_as_by_the_apiserver() {
        const TABLE: View = View::Table(MetaVersion::V1, Include::Metadata);
        let check = |accept, expected| {
            let read = format(accept, "").ok().map(|format| (format.media, format.view));
            assert_eq!(read, expected, "{accept:?}");
        };
        let whole = |media| Some((media, View::Whole));
        check(None, whole(Media::Json));
        check(Some("*/*"), whole(Media::Json));
        check(Some("application/json, */*"), whole(Media::Json));
        check(Some("application/yaml"), whole(Media::Yaml));
        check(Some("application/vnd.kubernetes.protobuf,application/json"), whole(Media::Protobuf));
        check(Some("application/vnd.kubernetes.protobuf;q=0.5,application/json"), whole(Media::Json));
        check(Some("application/json;q=0"), whole(Media::Json)); // not an exclusion
        check(Some("application/*"), None);
        check(Some("text/html"), None);
        check(Some("application/json;as=Table;v=v1;g=meta.k8s.io"), Some((Media::Json, TABLE)));
        check(Some("application/yaml;as=Table;v=v1;g=meta.k8s.io"), Some((Media::Yaml, TABLE)));
        check(Some("application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io"), None);
        check(Some("application/json;as=Table;v=v2;g=meta.k8s.io"), None);
        check(Some("application/json;as=Chart;v=v1;g=meta.k8s.io,application/json"), whole(Media::Json));
        check(Some("application/yaml;stream=watch"), None);
        let partial = View::Partial(MetaVersion::V1Beta1);
        let accept = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1beta1;g=meta.k8s.io";
        check(Some(accept), Some((Media::Protobuf, partial)));
    }

    #[test]
    fn common_accept_headers_are_answered_as_if_they_were_parsed() {
        for (accept, media) in USUAL {
            assert!(is_served(accept).is_ok(), "{accept}");
            for endpoint in [Endpoint::Events, Endpoint::Other] {
                assert_eq!(choose(accept, endpoint), Some((media, View::Whole, false)), "{accept}");
            }
        }
    }

    #[test]
    fn pretty_and_include_come_from_the_query() {
        assert!(format(None, "pretty=true").unwrap().pretty);
        assert!(!format(None, "pretty=0").unwrap().pretty);
        assert!(format(Some("application/json;pretty=1"), "").unwrap().pretty);
        let table = Some("application/json;as=Table;v=v1;g=meta.k8s.io");
        assert_eq!(format(table, "includeObject=None").unwrap().view, View::Table(MetaVersion::V1, Include::None));
        assert_eq!(format(table, "includeObject=All").unwrap_err().status.code, 400);
    }
}
