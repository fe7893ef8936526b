//! Events as a `meta.k8s.io` Table, which is what `kubectl get events` shows.
//!
//! After `k8s.io/kubernetes/pkg/printers/internalversion/printers.go` (`printEvent`) and
//! `k8s.io/apimachinery/pkg/util/duration`.

use std::fmt::Write as _;

use super::form::{Include, MetaVersion};
use super::partial;
use crate::event::json::{self, EventList};
use crate::event::{ApiGroup, Event, MicroTime, Time};

/// How a table is shown.
#[derive(Debug, Clone, Copy)]
pub(super) struct Table {
    /// The API group: of whole events beside the rows.
    pub(super) group: ApiGroup,
    pub(super) version: MetaVersion,
    pub(super) include: Include,
    /// Whether the columns are described.
    pub(super) columns: Columns,
    /// Unix nanoseconds; ages are counted up to here.
    pub(super) now: i64,
}

/// Whether a table describes its columns: in a watch only the first one does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Columns {
    Described,
    Known,
}

/// Name, format, priority and description of the columns, the same at both API groups.
const COLUMNS: [(&str, &str, u8, &str); 10] = [
    ("Last Seen", "", 0, "The time at which the most recent occurrence of this event was recorded."),
    ("Type", "", 0, "Type of this event (Normal, Warning), new types could be added in the future"),
    ("Reason", "", 0, REASON),
    ("Object", "", 0, "The object that this event is about."),
    ("Subobject", "", 1, SUBOBJECT),
    ("Source", "", 1, "The component reporting this event. Should be a short machine understandable string."),
    ("Message", "", 0, "A human-readable description of the status of this operation."),
    ("First Seen", "", 1, "The time at which the event was first recorded. (Time of server receipt is in TypeMeta.)"),
    ("Count", "", 1, "The number of times this event has occurred."),
    ("Name", "name", 1, NAME),
];

const REASON: &str = "This should be a short, machine understandable string that gives the reason for the transition into \
                      the object's current status.";
const SUBOBJECT: &str = "If referring to a piece of an object instead of an entire object, this string should contain a \
                         valid JSON/Go field access statement, such as desiredState.manifest.containers[2]. For example, \
                         if the object reference is to a container within a pod, this would take on a value like: \
                         \"spec.containers{name}\" (where \"name\" refers to the name of the container that triggered the \
                         event) or if no container name is specified \"spec.containers[2]\" (container with index 2 in \
                         this pod). This syntax is chosen only to have some well-defined way of referencing a part of an \
                         object.";
const NAME: &str = "Name must be unique within a namespace. Is required when creating resources, although some resources \
                    may allow a client to request the generation of an appropriate name automatically. Name is primarily \
                    intended for creation idempotence and configuration definition. Cannot be updated. More info: \
                    https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names";

/// Appends a list as a table.
pub(super) fn write(table: &Table, list: &EventList, out: &mut Vec<u8>) {
    partial::head("Table", table.version, out);
    json::write_list_meta(list, out);
    match table.columns {
        Columns::Described => write_columns(out),
        Columns::Known => out.extend_from_slice(br#","columnDefinitions":null"#),
    }
    out.extend_from_slice(br#","rows":["#);
    for (index, event) in list.items.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        row(table, event, out);
    }
    out.extend_from_slice(b"]}");
}

fn write_columns(out: &mut Vec<u8>) {
    out.extend_from_slice(br#","columnDefinitions":["#);
    for (index, (name, format, priority, description)) in COLUMNS.into_iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.extend_from_slice(br#"{"name":"#);
        json::write_text(name, out);
        out.extend_from_slice(br#","type":"string","format":"#);
        json::write_text(format, out);
        out.extend_from_slice(br#","description":"#);
        json::write_text(description, out);
        out.extend_from_slice(format!(r#","priority":{priority}}}"#).as_bytes());
    }
    out.push(b']');
}

fn row(table: &Table, event: &Event, out: &mut Vec<u8>) {
    let first = age(table.now, event.first_timestamp, event.event_time);
    let (last, count) = match &event.series {
        Some(series) => (age(table.now, None, series.last_observed_time), series.count),
        None if event.last_timestamp.is_none() => (first.clone(), event.count.max(i32::from(event.count == 0))),
        None => (age(table.now, event.last_timestamp, None), event.count.max(i32::from(event.count == 0))),
    };
    // COMPAT(apiserver): only 0 stands for one; a negative count is shown.
    let count = if event.series.is_none() && event.count < 0 { event.count } else { count };
    let object = &event.involved_object;
    let mut about = object.kind.to_lowercase();
    if !object.name.is_empty() {
        about = about + "/" + &object.name;
    }
    let or = |left: &str, right: &str| if left.is_empty() { right.to_owned() } else { left.to_owned() };
    let mut source = or(&event.source.component, &event.reporting_controller);
    let instance = or(&event.source.host, &event.reporting_instance);
    if !instance.is_empty() {
        source = source + ", " + &instance;
    }
    out.extend_from_slice(br#"{"cells":["#);
    let cells: [&str; 8] =
        [&last, &event.event_type, &event.reason, &about, &object.field_path, &source, event.message.trim(), &first];
    for cell in cells {
        json::write_text(cell, out);
        out.push(b',');
    }
    // A number, whatever its column says.
    out.extend_from_slice(count.to_string().as_bytes());
    out.push(b',');
    json::write_text(&event.metadata.name, out);
    out.extend_from_slice(br#"],"object":"#);
    match table.include {
        Include::Metadata => partial::write(table.version, event, out),
        Include::Object => json::write_json(table.group, event, out),
        Include::None => out.extend_from_slice(b"null"),
    }
    out.push(b'}');
}

/// How long ago that was.
fn age(now: i64, seconds: Option<Time>, micros: Option<MicroTime>) -> String {
    let seconds = seconds.filter(|time| *time != Time::ZERO).map(|time| time.0.saturating_mul(1_000_000_000));
    let micros = micros.filter(|time| *time != MicroTime::ZERO).map(|time| time.0.saturating_mul(1000));
    seconds.or(micros).map_or_else(|| "<unknown>".to_owned(), |time| human(now.saturating_sub(time)))
}

/// `duration.HumanDuration`: two or three figures.
fn human(nanos: i64) -> String {
    const YEAR: i64 = 24 * 365;
    let seconds = nanos / 1_000_000_000;
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    // A clock may differ by less than two seconds.
    match seconds {
        ..-1 => return "<invalid>".to_owned(),
        -1 => return "0s".to_owned(),
        0..120 => return format!("{seconds}s"),
        _ => {}
    }
    let mut text = String::new();
    let mut pair = |large: i64, unit: char, small: i64, small_unit: &str| {
        let written = match (small, small_unit) {
            (0, _) | (_, "") => write!(text, "{large}{unit}"),
            _ => write!(text, "{large}{unit}{small}{small_unit}"),
        };
        written.unwrap_or_default(); // a String takes every write
    };
    if minutes < 10 {
        pair(minutes, 'm', seconds % 60, "s");
    } else if minutes < 60 * 3 {
        pair(minutes, 'm', 0, "");
    } else if hours < 8 {
        pair(hours, 'h', minutes % 60, "m");
    } else if hours < 48 {
        pair(hours, 'h', 0, "");
    } else if hours < 24 * 8 {
        pair(hours / 24, 'd', hours % 24, "h");
    } else if hours < YEAR * 2 {
        pair(hours / 24, 'd', 0, "");
    } else if hours < YEAR * 8 {
        pair(hours / YEAR, 'y', hours / 24 % 365, "d");
    } else {
        pair(hours / YEAR, 'y', 0, "");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_two_or_three_figures() {
        let check = |seconds: i64, expected: &str| assert_eq!(human(seconds * 1_000_000_000), expected);
        check(-2, "<invalid>");
        check(-1, "0s");
        check(119, "119s");
        check(120, "2m");
        check(150, "2m30s");
        check(179 * 60, "179m");
        check(3 * 3600, "3h");
        check(3 * 3600 + 60, "3h1m");
        check(14 * 3600 + 60, "14h");
        check(50 * 3600, "2d2h");
        check(300 * 86400, "300d");
        check((2 * 365 + 203) * 86400, "2y203d");
        check(9 * 365 * 86400, "9y");
    }
}
