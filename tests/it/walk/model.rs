//! What a client may expect: the occurrences of each kind of event that were posted and not deleted, and how far it has
//! counted under each name.

use std::collections::{BTreeMap, BTreeSet};

use eventweir::event::{Event, conversion};
use serde_json::{Value, json};

use super::super::support::http::EVENTS;

/// API group in which an event is posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Style {
    /// core/v1, with a count.
    Old,
    /// events.k8s.io/v1, with a series.
    New,
}

/// API group of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Group {
    Core,
    Events,
}

impl Group {
    /// Returns the path of the events.
    pub(super) const fn path(self) -> &'static str {
        match self {
            Self::Core => EVENTS,
            Self::Events => "/apis/events.k8s.io/v1/namespaces/shop/events",
        }
    }
}

/// Events that are equal except for their names, and so count on one record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) style: Style,
    pub(super) object: &'static str,
    pub(super) message: &'static str,
}

/// Two of the first three differ only in their messages, as do the last two: a client may patch one to the other.
pub(super) const KINDS: [Kind; 5] = [
    Kind { style: Style::Old, object: "web-0", message: "first" },
    Kind { style: Style::Old, object: "web-0", message: "second" },
    Kind { style: Style::Old, object: "web-1", message: "first" },
    Kind { style: Style::New, object: "web-0", message: "first" },
    Kind { style: Style::New, object: "web-0", message: "second" },
];

/// A number of [`KINDS`].
pub(super) type KindId = usize;

/// Index of a name, among all names known so far.
pub(super) type NameId = usize;

/// What the events of one client's line have in common.
pub(super) type Line = (Style, &'static str);

/// Returns the line of a kind.
pub(super) fn line(kind: KindId) -> Line {
    (KINDS[kind].style, KINDS[kind].object)
}

impl Kind {
    /// Returns the path of a POST.
    pub(super) const fn path(self) -> &'static str {
        self.group(Group::Events).path()
    }

    /// Returns the API group of a POST. Only new-style events can be posted in both.
    pub(super) const fn group(self, asked: Group) -> Group {
        match self.style {
            Style::Old => Group::Core,
            Style::New => asked,
        }
    }

    /// Returns the body of a POST.
    pub(super) fn body(self, name: &Value, total: i32) -> Value {
        self.body_in(self.group(Group::Events), name, total)
    }

    /// Returns the whole event in an API group.
    pub(super) fn body_in(self, group: Group, name: &Value, total: i32) -> Value {
        let Self { object, message, .. } = self;
        let time = "2026-03-01T08:00:00";
        let mut body = match self.style {
            Style::Old => json!({
                "source": { "component": "kubelet", "host": "node-1" }, "count": total,
                "firstTimestamp": format!("{time}Z"), "lastTimestamp": format!("{time}Z"),
            }),
            Style::New => json!({
                "action": "Restart", "reportingComponent": "example.com/agent", "reportingInstance": "node-1",
                "eventTime": format!("{time}.000000Z"),
            }),
        };
        if self.style == Style::New && total > 1 {
            body["series"] = series(total);
        }
        let key = if name["generateName"].is_null() { "name" } else { "generateName" };
        body["metadata"] = json!({ "namespace": "shop", key: name[key] });
        (body["reason"], body["type"], body["message"]) = (json!("BackOff"), json!("Normal"), json!(message));
        body["involvedObject"] = json!({ "kind": "Pod", "name": object, "namespace": "shop" });
        if group == Group::Events { in_events(&body) } else { body }
    }
}

/// Returns a core/v1 event in the words of events.k8s.io/v1.
fn in_events(core: &Value) -> Value {
    let renamed = |(member, value): (&String, &Value)| {
        let member = match &**member {
            "involvedObject" => "regarding",
            "message" => "note",
            "reportingComponent" => "reportingController",
            "source" => "deprecatedSource",
            "count" => "deprecatedCount",
            "firstTimestamp" => "deprecatedFirstTimestamp",
            "lastTimestamp" => "deprecatedLastTimestamp",
            other => other,
        };
        (member.to_owned(), value.clone())
    };
    let mut event: Value = core.as_object().unwrap().iter().map(renamed).collect();
    (event["apiVersion"], event["kind"]) = (json!("events.k8s.io/v1"), json!("Event"));
    event
}

pub(super) fn series(count: i32) -> Value {
    json!({ "count": count, "lastObservedTime": "2026-03-01T08:00:30.000000Z" })
}

/// Returns the occurrences that stored events show of each kind.
pub(super) fn shown(events: &[Event]) -> [i64; KINDS.len()] {
    let mut shown = [0; KINDS.len()];
    for event in events {
        shown[kind_of(event)] += i64::from(conversion::occurrences(event));
    }
    shown
}

/// Returns the kind of a stored event.
pub(super) fn kind_of(event: &Event) -> KindId {
    let style = if event.event_time.is_some() { Style::New } else { Style::Old };
    let is_of =
        |kind: &Kind| (kind.style, kind.object, kind.message) == (style, &*event.involved_object.name, &*event.message);
    KINDS.iter().position(is_of).unwrap_or_else(|| panic!("no kind has {event:?}"))
}

/// A client's event as the client knows it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    pub(super) kind: KindId,
    pub(super) total: i32,
    has_series: bool,
}

/// Whether the first answer to a DELETE said that the event is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Certainty {
    Sure,
    InDoubt,
}

#[derive(Debug, Default)]
pub(super) struct Model {
    /// Occurrences that were posted and not deleted.
    pub(super) live: [i64; KINDS.len()],
    /// Names of events that can be patched.
    pub(super) known: BTreeMap<String, Known>,
    /// Lines that were ever counted under a name that was not deleted since.
    told: BTreeSet<(String, Line)>,
    /// Occurrences that were accepted.
    pub(super) received: u64,
}

impl Model {
    /// Returns the total of a POST that reports `more` occurrences in addition to its first one. Totals above 1 are
    /// posted only where they are unambiguous.
    pub(super) fn total(&self, name: &str, kind: KindId, more: i32) -> i32 {
        match self.known.get(name).filter(|known| line(known.kind) == line(kind)) {
            Some(_) if more == 0 => 1,
            Some(known) => known.total + more,
            None if self.told.contains(&(name.to_owned(), line(kind))) => 1,
            None => 1 + more,
        }
    }

    /// Notes a POST.
    pub(super) fn post(&mut self, name: &str, kind: KindId, total: i32) {
        let has_series = KINDS[kind].style == Style::New && total > 1;
        let earlier = self.known.get(name).filter(|known| line(known.kind) == line(kind));
        if earlier.is_some_and(|earlier| earlier.has_series && total <= earlier.total) {
            return;
        }
        let earlier = if total == 1 { 0 } else { earlier.map_or(0, |earlier| earlier.total) };
        self.happen(kind, total - earlier);
        self.known.insert(name.to_owned(), Known { kind, total, has_series });
        self.told.insert((name.to_owned(), line(kind)));
    }

    /// Notes an event of a batch, whose names are not remembered. A known name has this total then.
    pub(super) fn post_in_batch(&mut self, name: &str, kind: KindId, total: i32) {
        if total > 1 && self.known.get(name).is_some_and(|known| line(known.kind) == line(kind)) {
            return self.post(name, kind, total);
        }
        self.happen(kind, total);
        self.told.insert((name.to_owned(), line(kind)));
    }

    /// Notes a PATCH of a known name to this total, and perhaps to another kind of the same line.
    pub(super) fn patch(&mut self, name: &str, kind: KindId, total: i32) {
        let has_series = KINDS[kind].style == Style::New;
        let earlier = self.known.insert(name.to_owned(), Known { kind, total, has_series });
        let grown = earlier.map_or(0, |earlier| total - earlier.total);
        self.happen(kind, grown.max(0));
        self.told.insert((name.to_owned(), line(kind)));
    }

    /// Notes a PUT of the event that GET has shown for the name, while the upstream showed `stored` occurrences. A count
    /// from there to what GET has shown leaves the others waiting. The same count says nothing about the client's total.
    pub(super) fn put(&mut self, name: &str, kind: KindId, count: i32, stored: i64) {
        if !(stored..=self.live[kind]).contains(&count.into()) {
            self.live[kind] = count.into();
        }
        if i64::from(count) != stored {
            self.known.insert(name.to_owned(), Known { kind, total: count, has_series: false });
        }
        self.told.insert((name.to_owned(), line(kind)));
    }

    fn happen(&mut self, kind: KindId, occurrences: i32) {
        self.live[kind] += i64::from(occurrences);
        self.received += u64::try_from(occurrences).unwrap_or(0);
    }

    /// Returns the kind that the name leads to: that of the client's event if it has a record, else that of the record
    /// with this name.
    pub(super) fn shown(&self, name: &str, stored: &[Event]) -> Option<KindId> {
        let alias = self.known.get(name).map(|known| known.kind).filter(|kind| self.live[*kind] > 0);
        alias.or_else(|| stored.iter().find(|event| event.metadata.name == name).map(kind_of))
    }

    /// Notes a DELETE of a name. Returns whether there was anything to delete.
    pub(super) fn delete(&mut self, name: &str, stored: &[Event], certainty: Certainty) -> bool {
        let shown = self.shown(name, stored);
        let former = stored.iter().filter(|event| event.metadata.name == name).map(kind_of);
        for kind in former.chain(shown) {
            self.live[kind] = 0;
            // Another record may still have a line of the name.
            let is_left = (0..KINDS.len()).any(|other| line(other) == line(kind) && self.live[other] > 0);
            if certainty == Certainty::Sure && !is_left {
                self.told.remove(&(name.to_owned(), line(kind)));
            }
        }
        self.known.remove(name);
        shown.is_some()
    }

    /// Notes a DELETE of all stored events.
    pub(super) fn delete_all(&mut self, stored: &[Event]) {
        for event in stored {
            self.live[kind_of(event)] = 0;
            self.known.remove(&*event.metadata.name);
        }
    }
}
