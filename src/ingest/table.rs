//! Encodes events as a `meta.k8s.io` Table, which `kubectl get events` shows.
//!
//! Mirrors `k8s.io/kubernetes/pkg/printers/internalversion/printers.go` (`printEvent`) and
//! `k8s.io/apimachinery/pkg/util/duration`.

use super::negotiate::{Include, MetaVersion};
use super::partial_metadata;
use crate::event::json::{self, EventList};
use crate::event::{ApiGroup, Event, MicroTime, Time};

#[derive(Debug, Clone, Copy)]
pub(super) struct Table {
    /// API group of whole events beside the rows.
    pub(super) group: ApiGroup,
    pub(super) version: MetaVersion,
    pub(super) include: Include,
    pub(super) columns: Columns,
    /// End of the ages, in unix nanoseconds.
    pub(super) now: i64,
}

/// Whether a table describes its columns. In a watch only the first one does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Columns {
    Described,
    Known,
}

/// Name, format, priority and description of the columns, equal in both API groups.
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

pub(super) fn write(table: &Table, list: &EventList, out: &mut Vec<u8>) {
    partial_metadata::head("Table", table.version, out);
    json::write_list_meta(list, out);
    match table.columns {
        Columns::Described => write_columns(out),
        Columns::Known => out.extend_from_slice(br#","columnDefinitions":null"#),
    }
    out.extend_from_slice(br#","rows":"#);
    json::write_array(&list.items, out, |event, out| row(table, event, out));
    out.push(b'}');
}

fn write_columns(out: &mut Vec<u8>) {
    out.extend_from_slice(br#","columnDefinitions":"#);
    json::write_array(COLUMNS, out, |(name, format, priority, description), out| {
        out.extend_from_slice(br#"{"name":"#);
        json::write_text(name, out);
        out.extend_from_slice(br#","type":"string","format":"#);
        json::write_text(format, out);
        out.extend_from_slice(br#","description":"#);
        json::write_text(description, out);
        out.extend_from_slice(format!(r#","priority":{priority}}}"#).as_bytes());
    });
}

fn row(table: &Table, event: &Event, out: &mut Vec<u8>) {
    let first = age(table.now, event.first_timestamp, event.event_time);
    // COMPAT(apiserver): only 0 means one; a negative count is shown.
    let total = if event.count == 0 { 1 } else { event.count };
    let (last, count) = match &event.series {
        Some(series) => (age(table.now, None, series.last_observed_time), series.count),
        None if event.last_timestamp.is_none() => (first.clone(), total),
        None => (age(table.now, event.last_timestamp, None), total),
    };
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
    // COMPAT(apiserver): a number, although the column is a string.
    out.extend_from_slice(count.to_string().as_bytes());
    out.push(b',');
    json::write_text(&event.metadata.name, out);
    out.extend_from_slice(br#"],"object":"#);
    match table.include {
        Include::Metadata => partial_metadata::write(table.version, event, out),
        Include::Object => json::write_json(table.group, event, out),
        Include::None => out.extend_from_slice(b"null"),
    }
    out.push(b'}');
}

fn age(now: i64, seconds: Option<Time>, micros: Option<MicroTime>) -> String {
    let seconds = seconds.filter(|time| *time != Time::ZERO).map(|time| time.0.saturating_mul(1_000_000_000));
    let micros = micros.filter(|time| *time != MicroTime::ZERO).map(|time| time.0.saturating_mul(1000));
    seconds.or(micros).map_or_else(|| "<unknown>".to_owned(), |time| human(now.saturating_sub(time)))
}

/// `duration.HumanDuration`: formats a duration with two or three digits.
fn human(nanos: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    let pair = |large: i64, unit: char, small: i64, small_unit: char| match small {
        0 => format!("{large}{unit}"),
        _ => format!("{large}{unit}{small}{small_unit}"),
    };
    let seconds = nanos / 1_000_000_000;
    match seconds {
        // Clocks may differ by less than two seconds.
        ..-1 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        _ if seconds < 10 * MINUTE => pair(seconds / MINUTE, 'm', seconds % MINUTE, 's'),
        _ if seconds < 3 * HOUR => format!("{}m", seconds / MINUTE),
        _ if seconds < 8 * HOUR => pair(seconds / HOUR, 'h', seconds / MINUTE % 60, 'm'),
        _ if seconds < 2 * DAY => format!("{}h", seconds / HOUR),
        _ if seconds < 8 * DAY => pair(seconds / DAY, 'd', seconds / HOUR % 24, 'h'),
        _ if seconds < 2 * YEAR => format!("{}d", seconds / DAY),
        _ if seconds < 8 * YEAR => pair(seconds / YEAR, 'y', seconds / DAY % 365, 'd'),
        _ => format!("{}y", seconds / YEAR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_two_or_three_digits() {
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
