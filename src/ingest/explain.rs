//! `GET /eventweir/v1/explain`, `/top`, `/tap` and `/shadow`: where is my event? Callers that may list or watch the
//! events of a namespace may use them for it.

use std::borrow::Cow;
use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::sync::broadcast::error::RecvError;

use super::Ingest;
use super::negotiate::accept;
use super::request_head::RequestHead;
use crate::access::{Attributes, Target};
use crate::clock::{Clock, Mono};
use crate::event::{ApiGroup, Event};
use crate::explain::{
    self, Explanation, Fact, Group, History, Order, Query, Recent, Selector, Stored, Totals, Unseen, Window, source,
};
use crate::server::FairPlace;
use crate::shard::Noisiest;
use crate::status::Status;
use crate::upstream::{FieldSelector, ListOptions};

/// Path: the occurrences of an object.
pub(super) const EXPLAIN: &str = "/eventweir/v1/explain";
/// Path: the noisiest objects and groups.
pub(super) const TOP: &str = "/eventweir/v1/top";
/// Path: a stream of occurrences.
pub(super) const TAP: &str = "/eventweir/v1/tap";
/// Path: the decisions of a second configuration.
pub(super) const SHADOW: &str = "/eventweir/v1/shadow";

/// LIMIT: readers of the tap; further ones are refused with 429.
pub(super) const READERS: NonZeroUsize = NonZeroUsize::new(16).unwrap();
/// Interval of pings while there are no lines.
const PING: Duration = Duration::from_secs(15);
/// Interval in which a rate counts lines.
const SECOND: Duration = Duration::from_secs(1);
/// LIMIT: duration of a tap; then it ends, and the reader may open another one.
const LONGEST: Duration = Duration::from_secs(3600);
/// LIMIT: rows of a table.
const ROWS: usize = 100;
/// LIMIT: upstream events in an explanation, if the object is not known here.
const STORED: usize = 500;

type Pairs<'a> = form_urlencoded::Parse<'a>;

fn pairs(query: Option<&str>) -> Pairs<'_> {
    form_urlencoded::parse(query.unwrap_or_default().as_bytes())
}

/// Returns the attributes of a request for one of these paths: those of the same read of events.
pub(super) fn attributes(uri: &Uri) -> Option<Attributes> {
    let verb = match uri.path() {
        EXPLAIN | TOP | SHADOW => "list",
        TAP => "watch",
        _ => return None,
    };
    let namespace = |(key, value): (Cow<'_, str>, Cow<'_, str>)| (key == "namespace").then(|| value.into());
    // Only the first of several counts, so a second one needs access to all namespaces.
    let mut namespaces = pairs(uri.query()).filter_map(namespace);
    let namespace: smol_str::SmolStr = namespaces.next().unwrap_or_default();
    let is_one = namespaces.next().is_none() && !namespace.contains([',', '*']);
    let namespace = if is_one { namespace } else { smol_str::SmolStr::default() };
    let target = Target::Resource { group: "", resource: "events", namespace, name: smol_str::SmolStr::default() };
    Some(Attributes { verb: smol_str::SmolStr::new_static(verb), target })
}

fn document(document: &impl serde::Serialize) -> Response {
    let body = serde_json::to_vec(document).unwrap_or_default();
    (StatusCode::OK, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// `GET /eventweir/v1/explain`
pub(super) async fn explain(State(ingest): State<Ingest>, head: RequestHead) -> Result<Response, Status> {
    Ok(document(&ingest.explain(head.user(), head.query()).await?))
}

/// `GET /eventweir/v1/top`
pub(super) async fn top(State(ingest): State<Ingest>, head: RequestHead) -> Result<Response, Status> {
    let query = TopQuery::parse(pairs(head.query())).map_err(Status::bad_request)?;
    let _turn = ingest.list_turn(head.user()).await?;
    Ok(document(&ingest.top(&query)))
}

/// `GET /eventweir/v1/shadow`
pub(super) async fn shadow(State(ingest): State<Ingest>, head: RequestHead) -> Result<Response, Status> {
    let namespace = pairs(head.query()).find(|(key, _)| key == "namespace").map(|(_, value)| value.into_owned());
    let _turn = ingest.list_turn(head.user()).await?;
    let difference = ingest.shadow(namespace.as_deref());
    let missing = || Status::new(404, "NotFound", "there is no second configuration (shadowFile)");
    Ok(document(&difference.ok_or_else(missing)?))
}

/// Query of `top`.
#[derive(Debug, Default, Clone)]
pub struct TopQuery {
    /// Namespace; empty for all.
    namespace: String,
    /// Window of the counts.
    window: Window,
    /// Order of the rows.
    order: Order,
    /// Lower-case text that namespace, kind, name, reason or component must contain.
    filter: String,
}

impl TopQuery {
    fn parse(pairs: Pairs<'_>) -> Result<Self, String> {
        let mut choice = Self::default();
        for (key, value) in pairs {
            match &*key {
                // Only the first of several, as in authorisation.
                "namespace" if choice.namespace.is_empty() => choice.namespace = value.into_owned(),
                "window" => choice.window = Window::parse(&value)?,
                "sort" => choice.order = Order::parse(&value)?,
                "filter" => choice.filter = value.to_ascii_lowercase(),
                // Only the first namespace counts.
                "namespace" => {}
                _ => return Err(format!("unknown parameter {key:?}")),
            }
        }
        Ok(choice)
    }

    fn is_seen(&self, namespace: &str) -> bool {
        self.namespace.is_empty() || self.namespace == namespace
    }

    fn wants<'a>(&self, namespace: &str, others: impl IntoIterator<Item = &'a str>) -> bool {
        let contains = |text: &str| text.to_ascii_lowercase().contains(&self.filter);
        self.is_seen(namespace) && (self.filter.is_empty() || contains(namespace) || others.into_iter().any(contains))
    }
}

/// Returns one configuration's counts of a reason.
fn side(totals: &Totals) -> Value {
    json!({ "writes": totals.writes, "shown": totals.shown, "folded": totals.folded, "lost": totals.not_shown() })
}

/// Returns the number of facts without any record, and the oldest one.
fn unseen(unseen: &Unseen) -> Value {
    let oldest = unseen.oldest.as_ref().map(|(since, namespace, object, reason)| {
        let since = explain::stamp(*since);
        json!({ "since": since, "namespace": namespace, "object": object, "reason": reason })
    });
    json!({ "facts": unseen.number, "oldest": oldest })
}

impl Ingest {
    /// Compares the decisions of the second configuration since its start, for all namespaces or one; `None` without a
    /// second configuration.
    pub fn shadow(&self, namespace: Option<&str>) -> Option<Value> {
        let is_seen = |seen: &str| namespace.is_none_or(|namespace| namespace.is_empty() || namespace == seen);
        let difference = self.0.shared.shadow.difference(&is_seen)?;
        // Counts all namespaces, so only callers that may see all of them get it.
        let ledger = namespace.is_none_or(str::is_empty).then_some(difference.ledger);
        let reasons = difference.reasons.iter().map(|(reason, sides)| {
            let reason = if reason.is_empty() { "(others)" } else { reason };
            // Occurrences that were refused for any reason are left out: most of them never reach the shadow.
            let accepted = |totals: &Totals| totals.received.saturating_sub(totals.rejected);
            let accepted = json!({ "live": accepted(&sides.live), "shadow": accepted(&sides.shadow) });
            json!({ "reason": reason, "accepted": accepted, "live": side(&sides.live), "shadow": side(&sides.shadow) })
        });
        let differs =
            |row: &Value| row["live"] != row["shadow"] || row["accepted"]["live"] != row["accepted"]["shadow"];
        Some(json!({
            "apiVersion": "eventweir/v1", "kind": "Shadow", "file": difference.file,
            "since": explain::stamp(difference.since), "missed": difference.missed,
            "ledger": ledger, "reasons": reasons.filter(differs).take(ROWS).collect::<Vec<_>>(),
            "unseen": { "live": unseen(&difference.unseen.live), "shadow": unseen(&difference.unseen.shadow) },
        }))
    }

    /// Explains the occurrences that a query string selects, to a caller of this name; it may be empty.
    ///
    /// # Errors
    /// 400 with the fault of the query; 429 if too many lists are being made.
    pub async fn explain(&self, caller: &str, query: Option<&str>) -> Result<Explanation, Status> {
        let _turn = self.list_turn(caller).await?;
        let mut query = Query::parse(pairs(query)).map_err(Status::bad_request)?;
        let posted = (!query.event.is_empty()).then(|| self.0.aliases.get(&query.namespace, &query.event)).flatten();
        if let Some(posted) = posted {
            query.follow_alias(&posted);
        }
        let shards = &self.0.shards;
        let upstream =
            if self.0.shared.upstream_up.get() == 0 { explain::Upstream::Down } else { explain::Upstream::Up };
        let mut explanation = Explanation::new(&query, shards.explain(&query), upstream, shards.clock().now().wall);
        if explanation.objects.is_empty() && !query.name.is_empty() {
            explanation.found_upstream(self.stored(&query).await);
        }
        Ok(explanation)
    }

    /// Lists the upstream's events of an object.
    async fn stored(&self, query: &Query) -> Vec<Stored> {
        let selector = format!("involvedObject.name={}", query.name);
        let Ok(field_selector) = FieldSelector::parse(&selector, ApiGroup::Core) else { return Vec::new() };
        let options = ListOptions { field_selector, limit: STORED, ..ListOptions::default() };
        let namespace = (!query.namespace.is_empty()).then_some(query.namespace.as_str());
        let Ok(list) = self.0.upstream.list(namespace, &options).await else { return Vec::new() };
        let is_selected = |event: &Event| query.selects(&event.reason, event.component(), event.host());
        let events = list.items.into_iter().filter(is_selected);
        let events = events.filter(|event| query.means_object(&event.involved_object));
        let stored = |event: Event| Stored {
            source: source(event.component(), event.host()),
            name: event.metadata.name,
            reason: event.reason,
            count: event.count,
        };
        events.map(stored).collect()
    }

    /// Returns the noisiest objects, reasons, components and namespaces.
    pub fn top(&self, query: &TopQuery) -> Value {
        let shards = &self.0.shards;
        let now = shards.clock().now();
        let window = query.window;
        // These count all namespaces, so only callers that may see all of them get them.
        let is_of_all = query.namespace.is_empty();
        let is_wanted = |history: &History, fact: &Fact| {
            query.wants(&history.namespace, [&*history.kind, &*history.name, &*fact.reason, &*fact.component])
        };
        let objects = shards.noisiest(Noisiest { most: ROWS, window, order: query.order }, &is_wanted);
        let groups: Vec<_> = shards.groups().into_iter().flatten().collect();
        let table = |name: fn(&Group) -> &smol_str::SmolStr| {
            // LIMIT: the number of groups.
            let mut sums = std::collections::HashMap::<&str, (f64, u64, u64)>::new();
            let wants =
                |group: &&Group| query.wants(&group.namespace, [&*group.kind, &*group.reason, &*group.component]);
            for group in groups.iter().filter(wants) {
                let sum = sums.entry(name(group)).or_default();
                sum.0 += group.recent.per_second(now.mono);
                sum.1 += group.recent.within(window, now.mono);
                sum.2 += group.writes.within(window, now.mono);
            }
            let mut rows: Vec<_> = sums.into_iter().filter(|(_, sum)| sum.1 + sum.2 > 0).collect();
            #[expect(clippy::cast_precision_loss, reason = "numbers to compare")]
            let number = |(_, sum): &(&str, (f64, u64, u64))| match query.order {
                Order::PerSecond => sum.0,
                // This table has no losses.
                Order::Received | Order::Lost => sum.1 as f64,
                Order::Writes => sum.2 as f64,
            };
            rows.sort_by(|one, other| number(other).total_cmp(&number(one)).then(one.0.cmp(other.0)));
            let row = |(name, (rate, received, writes)): (&str, (f64, u64, u64))| {
                let name = if name.is_empty() { "(others)" } else { name };
                json!({ "name": name, "perSecond": rate, "received": received, "writes": writes })
            };
            rows.into_iter().take(ROWS).map(row).collect::<Vec<_>>()
        };
        let sum = |number: fn(&Group) -> Recent, count: fn(Recent, Mono) -> f64| -> f64 {
            let seen = groups.iter().filter(|group| query.is_seen(&group.namespace));
            // An empty sum of floats is -0.0.
            seen.map(|group| count(number(group), now.mono)).fold(0.0, |sum, next| sum + next)
        };
        #[expect(clippy::cast_precision_loss, reason = "numbers for people")]
        let hour = |recent: Recent, now| recent.hour(now) as f64;
        json!({
            "apiVersion": "eventweir/v1", "kind": "Top", "now": explain::stamp(now.wall),
            "window": window.label(), "enabled": shards.explains(),
            "receivedPerSecond": sum(|group| group.recent, Recent::per_second),
            "writtenPerSecond": sum(|group| group.writes, Recent::per_second),
            "receivedLastHour": sum(|group| group.recent, hour),
            "writtenLastHour": sum(|group| group.writes, hour),
            "objects": objects,
            "reasons": table(|group| &group.reason),
            "components": table(|group| &group.component),
            "namespaces": table(|group| &group.namespace),
            "ledger": is_of_all.then(|| self.ledger()),
            "unseen": unseen(&shards.unseen(&|seen| query.is_seen(seen))),
            "perMinute": is_of_all.then(|| self.per_minute()),
        })
    }

    /// Returns occurrences, writes, losses, and losses by a fault, per minute of the last hour, the oldest first.
    fn per_minute(&self) -> Value {
        let flow = self.0.shards.flow().map(|minutes| minutes.into_iter().rev().collect::<Vec<u64>>());
        let [received, written, lost, by_fault] = flow;
        json!({ "received": received, "written": written, "lost": lost, "lostByFault": by_fault })
    }

    fn ledger(&self) -> Value {
        let balance = self.0.shards.balance();
        let ledger = &balance.ledger;
        let some = |(label, number): (&'static str, u64)| (number > 0).then(|| (label.to_owned(), json!(number)));
        let waiting = crate::outbox::Why::ALL.map(|why| (why.label(), balance.waiting[why as usize]));
        let lost = crate::outbox::LostReason::ALL.map(|reason| (reason.label(), ledger.lost(reason)));
        let rejected = crate::ledger::RejectReason::ALL.map(|reason| (reason.label(), ledger.rejected(reason)));
        let map = |numbers: &[(&'static str, u64)]| -> Value {
            Value::Object(numbers.iter().copied().filter_map(some).collect())
        };
        json!({
            "received": ledger.received(), "written": ledger.total_written(),
            "waiting": map(&waiting), "lost": map(&lost), "rejected": map(&rejected),
        })
    }
}

/// `GET /eventweir/v1/tap`: JSON lines, or server-sent events if the client accepts them.
pub(super) async fn tap(State(ingest): State<Ingest>, head: RequestHead) -> Result<Response, Status> {
    let mut rate = Rate::default();
    if let Some((_, value)) = pairs(head.query()).find(|(key, value)| key == "max-rate" && !rate.read(value)) {
        let message = format!("max-rate: {value:?} is not allowed; allowed: lines per second, 0 for all");
        return Err(Status::bad_request(message));
    }
    let others = pairs(head.query()).filter(|(key, _)| key != "max-rate");
    let selector = Selector::parse(others).map_err(Status::bad_request)?;
    let Some(place) = ingest.0.readers.take(head.user(), 1) else {
        return Err(Status::too_many_requests("Too many readers of the tap, please try again later", 5));
    };
    let is_sse = accept(&head.headers).contains("text/event-stream");
    let reader = Reader {
        lines: ingest.0.shards.tap().read(selector.clone()),
        selector,
        rate,
        is_sse,
        stop: ingest.0.shared.stop.clone(),
        until: ingest.0.shards.clock().now().mono.after(LONGEST),
        clock: ingest.0.shards.clock().clone(),
        _place: place,
    };
    let stream = futures_util::stream::unfold(reader, async |mut reader| {
        let line = reader.next().await?;
        Some((Ok::<_, std::convert::Infallible>(line), reader))
    });
    let kind = if is_sse { "text/event-stream" } else { "application/x-ndjson" };
    let headers = [(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-store")];
    Ok((StatusCode::OK, headers, Body::from_stream(stream)).into_response())
}

/// Rate limit of a reader. Skipped lines are counted.
#[derive(Debug, Default)]
struct Rate {
    /// Lines per second; 0 for all.
    most: u64,
    /// Lines in this second.
    lines: u64,
    /// Skipped lines that are not yet reported.
    skipped: u64,
    /// End of the second.
    until: Mono,
}

impl Rate {
    /// Parses a rate; returns whether `text` is one.
    fn read(&mut self, text: &str) -> bool {
        text.parse().map(|most| self.most = most).is_ok()
    }

    /// Whether another line fits into this second; counts it as sent or skipped.
    const fn fits(&mut self) -> bool {
        let fits = self.most == 0 || self.lines < self.most;
        *(if fits { &mut self.lines } else { &mut self.skipped }) += 1;
        fits
    }

    /// Starts a new second if this one is over. Returns the number of skipped lines.
    fn go_on(&mut self, now: Mono) -> Option<u64> {
        if now < self.until {
            return None;
        }
        (self.lines, self.until) = (0, now.after(SECOND));
        Some(std::mem::take(&mut self.skipped)).filter(|skipped| *skipped > 0)
    }
}

struct Reader {
    lines: tokio::sync::broadcast::Receiver<Arc<explain::Line>>,
    selector: Selector,
    rate: Rate,
    is_sse: bool,
    stop: tokio_util::sync::CancellationToken,
    until: Mono,
    clock: Clock,
    _place: FairPlace,
}

impl Reader {
    /// Waits for the next line; `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        // Lines that are not selected do not delay it.
        let mut ping = pin!(tokio::time::sleep(PING));
        loop {
            let now = self.clock.now().mono;
            if now >= self.until {
                return None;
            }
            if let Some(skipped) = self.rate.go_on(now) {
                return Some(self.line(&json!({ "skipped": skipped, "why": "max-rate" })));
            }
            let line = tokio::select! {
                () = self.stop.cancelled() => return None,
                line = self.lines.recv() => line,
                () = tokio::time::sleep(SECOND), if self.rate.skipped > 0 => continue,
                () = &mut ping => return Some(self.line(&json!({ "ping": true }))),
            };
            return Some(match line {
                Ok(line) if !self.selector.wants(&line) || !self.rate.fits() => continue,
                Ok(line) => self.line(&*line),
                Err(RecvError::Lagged(skipped)) => self.line(&json!({ "skipped": skipped, "why": "slow" })),
                Err(RecvError::Closed) => return None,
            });
        }
    }

    fn line(&self, line: &impl serde::Serialize) -> Bytes {
        let text = serde_json::to_string(line).unwrap_or_default();
        Bytes::from(if self.is_sse { format!("data: {text}\n\n") } else { text + "\n" })
    }
}

#[cfg(test)]
mod tests {
    use prometheus::IntGauge;

    use super::*;
    use crate::clock::Clock;
    use crate::explain::Tap;
    use crate::server::FairPlaces;

    #[test]
    fn each_path_needs_the_same_right_as_a_read_of_events() {
        let asked = |uri: &str| {
            let attributes = attributes(&uri.parse().unwrap()).unwrap();
            let Target::Resource { resource: "events", namespace, .. } = attributes.target else { unreachable!() };
            (attributes.verb.to_string(), namespace.to_string())
        };
        for (uri, verb, namespace) in [
            ("/eventweir/v1/explain?object=pod/a&namespace=shop", "list", "shop"),
            ("/eventweir/v1/explain?n%61mespace=sh%6fp&uid=1", "list", "shop"),
            ("/eventweir/v1/explain?uid=1", "list", ""),
            ("/eventweir/v1/explain?namespace=shop&namespace=kube-system", "list", ""),
            ("/eventweir/v1/top?namespace=shop", "list", "shop"),
            ("/eventweir/v1/tap?namespace=shop", "watch", "shop"),
            ("/eventweir/v1/tap?namespace=shop,other", "watch", ""),
            ("/eventweir/v1/tap?namespace=*", "watch", ""),
        ] {
            assert_eq!(asked(uri), (verb.to_owned(), namespace.to_owned()), "{uri}");
        }
        assert!(attributes(&"/eventweir/v1/events".parse().unwrap()).is_none());
    }

    fn places() -> (FairPlaces, IntGauge) {
        let taken = IntGauge::new("taps", "a test's").unwrap();
        (FairPlaces::new(READERS, taken.clone()), taken)
    }

    fn reader(tap: &Tap, query: &str, places: &FairPlaces, clock: &Clock) -> Reader {
        let selector = Selector::parse(pairs(Some(query))).unwrap();
        Reader {
            lines: tap.read(selector.clone()),
            selector,
            rate: Rate::default(),
            is_sse: false,
            stop: tokio_util::sync::CancellationToken::new(),
            until: Mono(i64::MAX),
            clock: clock.clone(),
            _place: places.take("", 1).unwrap(),
        }
    }

    #[tokio::test]
    async fn a_slow_reader_gets_the_number_of_lost_lines_and_blocks_no_writer() {
        let (tap, (places, taken)) = (Tap::default(), places());
        let query = "reason=Back*,Other&verdict=created";
        let mut reader = Reader { is_sse: true, ..reader(&tap, query, &places, &Clock::manual(0)) };
        let event = Event { reason: "BackOff".into(), message: "m".into(), ..Event::default() };
        // More than are buffered.
        for _ in 0..256 + 7 {
            tap.send(&event, "created", "", 1, "", || 0);
        }
        let mut next = async || String::from_utf8(reader.next().await.unwrap().to_vec()).unwrap();
        assert_eq!(next().await, "data: {\"skipped\":7,\"why\":\"slow\"}\n\n");
        assert!(next().await.starts_with("data: {\"time\":\"1970-01-01T00:00:00.000000Z\",\"verdict\":\"created\""));
        drop(reader);
        assert!(!tap.is_read());
        assert_eq!(taken.get(), 0);
    }

    /// Fault: a reader of one namespace lost lines, and got the number of those of others, because there were many.
    #[tokio::test]
    async fn lines_that_are_not_selected_take_no_room() {
        for query in ["namespace=quiet", "reason=Quiet", "object=pod/quiet", "type=Quiet", "source=quiet"] {
            let (tap, places) = (Tap::default(), places().0);
            let mut reader = reader(&tap, query, &places, &Clock::manual(0));
            for name in std::iter::repeat_n("shop", 5_000).chain(["quiet"]) {
                let mut event = Event { reason: name.into(), event_type: name.into(), ..Event::default() };
                if name == "quiet" {
                    (event.reason, event.event_type) = ("Quiet".into(), "Quiet".into());
                }
                (event.metadata.namespace, event.source.component) = (name.into(), name.into());
                (event.involved_object.kind, event.involved_object.name) = ("Pod".into(), name.into());
                tap.send(&event, "created", "", 1, "", || 0);
            }
            let line: Value = serde_json::from_slice(&reader.next().await.unwrap()).unwrap();
            assert_eq!(line["namespace"], "quiet", "{query}");
        }
    }

    /// Fault: a reader of few lines got no pings while others arrived.
    #[tokio::test(start_paused = true)]
    async fn lines_that_are_not_selected_delay_no_ping() {
        let (tap, places) = (Tap::default(), places().0);
        let mut reader = reader(&tap, "message=other", &places, &Clock::manual(0));
        let tell = async {
            loop {
                tap.send(&Event::default(), "created", "", 1, "", || 0);
                tokio::time::sleep(SECOND).await;
            }
        };
        tokio::select! {
            line = tokio::time::timeout(PING * 2, reader.next()) => {
                assert_eq!(&*line.unwrap().unwrap(), b"{\"ping\":true}\n");
            }
            () = tell => {}
        }
    }

    #[test]
    fn an_unknown_decision_is_refused() {
        assert!(Selector::parse(pairs(Some("verdict=created,los*"))).is_ok());
        let fault = Selector::parse(pairs(Some("verdict=created,foo"))).unwrap_err();
        assert!(fault.starts_with("verdict: \"foo\" is not allowed; allowed: created, counted, "), "{fault}");
    }

    #[tokio::test]
    async fn lines_beyond_the_rate_are_skipped_and_counted() {
        let (tap, places, clock) = (Tap::default(), places().0, Clock::manual(0));
        let mut rate = Rate::default();
        assert!(rate.read("2") && !Rate::default().read("two"));
        let mut reader = Reader { rate, ..reader(&tap, "", &places, &clock) };
        let tell = |number: usize| {
            for _ in 0..number {
                tap.send(&Event::default(), "created", "", 1, "", || 0);
            }
        };
        let mut next = async || {
            let line: Value = serde_json::from_slice(&reader.next().await.unwrap()).unwrap();
            line["skipped"].as_u64().unwrap_or_default()
        };
        tell(7);
        assert_eq!([next().await, next().await], [0, 0]);
        clock.advance(SECOND);
        assert_eq!([next().await, next().await], [0, 0], "a second has begun");
        tell(1);
        assert!(tokio::time::timeout(Duration::ZERO, next()).await.is_err(), "four do not fit");
        clock.advance(SECOND);
        assert_eq!(next().await, 4);
        tell(1);
        assert_eq!(next().await, 0);
    }
}
