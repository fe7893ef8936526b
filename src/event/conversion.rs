//! Converts any event to the rules of events.k8s.io/v1: required fields are derived from other fields, forbidden ones
//! are dropped. The number of occurrences moves to `series`. Pure.

use smol_str::SmolStr;

use super::{
    ApiGroup, Event, EventSeries, EventSource, MicroTime, NEW_STYLE_MESSAGE_MAX, NEW_STYLE_TEXT_MAX, Time, cut,
    validate,
};

/// LIMIT: bytes of a reporting controller that is derived from a source; longer ones are cut.
const CONTROLLER_MAX: usize = 63;
/// LIMIT: bytes of a name; longer ones keep their end, which distinguishes the events of one object.
const NAME_MAX: usize = 253;
/// The value of a required field that cannot be derived.
const UNKNOWN: &str = "Unknown";

/// Returns the event as a create through events.k8s.io/v1, valid if it was valid in either API group. Its `count`
/// becomes a series. `wall`, in unix nanoseconds, is its time if it has none.
pub fn to_events_v1(event: &Event, wall: i64) -> Event {
    let mut converted = event.clone();
    let stated = event.first_timestamp.or(event.last_timestamp).map(micro);
    converted.event_time = event.event_time.or(stated).or(Some(MicroTime::from_unix_nanos(wall)));
    // Without correlation the event has its client's series, and no count.
    let posted = event.series.clone().filter(|series| series.count >= 2 && series.last_observed_time.is_some());
    converted.series = series(event.count, event.last_timestamp, wall).or(posted);
    converted.count = 0;
    converted.first_timestamp = None;
    converted.last_timestamp = None;
    converted.source = EventSource::default();
    if !is_controller(&converted.reporting_controller) {
        let given =
            if event.reporting_controller.is_empty() { &event.source.component } else { &event.reporting_controller };
        converted.reporting_controller = if is_controller(given) { given.clone() } else { controller(given) };
    }
    if converted.reporting_instance.is_empty() {
        let host = &event.source.host;
        converted.reporting_instance =
            if host.is_empty() { converted.reporting_controller.clone() } else { host.clone() };
    }
    if converted.reason.is_empty() {
        converted.reason = if event.action.is_empty() { SmolStr::new_static(UNKNOWN) } else { event.action.clone() };
    }
    if converted.action.is_empty() {
        converted.action = converted.reason.clone();
    }
    for text in [&mut converted.reporting_instance, &mut converted.action, &mut converted.reason] {
        *text = cut(text, NEW_STYLE_TEXT_MAX);
    }
    converted.message = cut(&event.message, NEW_STYLE_MESSAGE_MAX);
    if !matches!(event.event_type.as_str(), "Normal" | "Warning") {
        converted.event_type = SmolStr::new_static("Normal");
    }
    if !validate::is_valid_name(ApiGroup::Events, &event.metadata.name) {
        converted.metadata.name = name(&event.metadata.name);
    }
    if let Some(rare) = converted.metadata.rare.as_deref_mut() {
        if !validate::is_valid_prefix(&rare.generate_name) {
            // The name has been generated from it already.
            rare.generate_name = SmolStr::default();
        }
        rare.finalizers.retain(|finalizer| validate::is_finalizer(finalizer));
    }
    converted
}

/// Returns the series of `count` occurrences; `None` for fewer than 2.
pub fn series(count: i32, last: Option<Time>, wall: i64) -> Option<EventSeries> {
    let last_observed_time = Some(last.map_or_else(|| MicroTime::from_unix_nanos(wall), micro));
    (count >= 2).then_some(EventSeries { count, last_observed_time })
}

/// Returns the number of occurrences of a stored event, which either API group may have written: the count of its
/// series, else its count, at least 1.
pub fn occurrences(stored: &Event) -> i32 {
    stored.series.as_ref().map_or(stored.count, |series| series.count).max(1)
}

/// Writes a newer count, time and message into a stored event, like a patch through the API group that wrote it.
pub fn advance(stored: &mut Event, newer: &Event) {
    let by_series = stored.series.is_some() || (stored.event_time.is_some() && stored.count == 0);
    if by_series {
        let wall = stored.event_time.map_or(0, |time| time.0.saturating_mul(1000));
        stored.series = series(newer.count, newer.last_timestamp, wall).or_else(|| stored.series.take());
    } else {
        stored.count = newer.count;
        stored.message = newer.message.clone();
        stored.last_timestamp = newer.last_timestamp;
    }
}

fn micro(time: Time) -> MicroTime {
    MicroTime(time.0.saturating_mul(1_000_000))
}

fn is_controller(name: &str) -> bool {
    !name.is_empty() && validate::label_key_faults(name).is_empty()
}

/// Returns the nearest qualified name, without a prefix.
fn controller(text: &str) -> SmolStr {
    let name = masked(text, CONTROLLER_MAX, |c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    if name.is_empty() { SmolStr::new_static(UNKNOWN) } else { name }
}

/// Returns the nearest DNS subdomain.
fn name(text: &str) -> SmolStr {
    let masked = masked(&text.to_ascii_lowercase(), usize::MAX, |c| matches!(c, 'a'..='z' | '0'..='9' | '-' | '.'));
    let kept = masked.get(masked.len().saturating_sub(NAME_MAX)..).unwrap_or(&masked);
    // Each label between dots must begin and end with a letter or digit.
    let labels: Vec<&str> =
        kept.split('.').map(|label| label.trim_matches('-')).filter(|label| !label.is_empty()).collect();
    if labels.is_empty() { SmolStr::new_static("event") } else { labels.join(".").into() }
}

/// Replaces each character that is not `good` by a dash, cuts the text, and trims characters other than letters and
/// digits.
fn masked(text: &str, limit: usize, good: impl Fn(char) -> bool) -> SmolStr {
    let masked: String = text.chars().map(|c| if good(c) { c } else { '-' }).collect();
    let is_edge = |c: char| !c.is_ascii_alphanumeric();
    cut(masked.trim_start_matches(is_edge), limit).trim_end_matches(is_edge).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn old_style() -> Event {
        let mut event = Event {
            reason: "BackOff".into(),
            message: "ä".repeat(600).into(),
            count: 3,
            event_type: "Warning".into(),
            first_timestamp: Some(Time(10)),
            last_timestamp: Some(Time(30)),
            source: EventSource { component: "kubelet".into(), host: "node-1".into() },
            ..Event::default()
        };
        event.metadata.name = "web-0.17c".into();
        event.metadata.namespace = "shop".into();
        event.involved_object.namespace = "shop".into();
        event
    }

    /// Fault: the names of an object's events differed only in what was cut.
    #[test]
    fn long_names_that_differ_at_their_end_stay_different() {
        let name = |end: &str| {
            let mut event = old_style();
            event.metadata.name = format!("{}.{end}", "web-0".repeat(51)).into();
            let converted = to_events_v1(&event, 0);
            validate::create(ApiGroup::Events, &converted).unwrap();
            converted.metadata.name
        };
        assert_ne!(name("18a1b2c3d4e5f601"), name("18a1b2c3d4e5f602"));
    }

    /// Fault: with `upstream.group: events` and without correlation, events were stored without their series.
    #[test]
    fn a_series_without_a_count_is_kept_if_it_is_valid() {
        let posted = |count, last_observed_time| {
            let series = Some(EventSeries { count, last_observed_time });
            to_events_v1(&Event { count: 0, series, ..old_style() }, 0).series
        };
        let last_observed_time = Some(MicroTime(7));
        assert_eq!(posted(2, last_observed_time), Some(EventSeries { count: 2, last_observed_time }));
        assert_eq!((posted(1, last_observed_time), posted(2, None)), (None, None));
    }

    #[test]
    fn an_old_style_event_becomes_a_valid_new_style_one() {
        let converted = to_events_v1(&old_style(), 0);
        validate::create(ApiGroup::Events, &converted).unwrap();
        assert_eq!(converted.event_time, Some(MicroTime(10_000_000)));
        assert_eq!(converted.series, Some(EventSeries { count: 3, last_observed_time: Some(MicroTime(30_000_000)) }));
        assert_eq!(occurrences(&converted), 3);
        assert_eq!(
            (converted.reporting_controller.as_str(), converted.reporting_instance.as_str()),
            ("kubelet", "node-1")
        );
        assert_eq!((converted.action.as_str(), converted.message.len()), ("BackOff", 1024));
        assert_eq!(to_events_v1(&converted, 0).metadata.name, "web-0.17c");
    }

    #[test]
    fn whatever_core_v1_takes_events_v1_takes_when_it_is_spelled() {
        for text in ["", "A b", "-x-", "é", ".", "a/b/c", "Ü.-.Ü", "system:controller:x", "a..b", &"x".repeat(400)] {
            let mut event = old_style();
            event.source = EventSource { component: text.into(), host: text.into() };
            event.reason = text.into();
            event.event_type = text.into();
            event.metadata.name = format!("a{}", text.replace('/', "")).into();
            // Fault: it was sent as posted, and refused.
            event.metadata.rare.get_or_insert_default().generate_name = event.metadata.name.clone();
            // Fault: one without a prefix was kept, and with it all labels were repaired away.
            let finalizers = ["foo", "example.com/foo", "orphan"].map(SmolStr::new).to_vec();
            event.metadata.rare.get_or_insert_default().finalizers = finalizers;
            validate::create(ApiGroup::Core, &event).unwrap();
            let checked = validate::create(ApiGroup::Events, &to_events_v1(&event, 7));
            assert!(checked.is_ok(), "{text:?}: {checked:?}");
            event.metadata.name = if text.is_empty() { "---".into() } else { text.replace(['/', '.'], "").into() };
            let checked = validate::create(ApiGroup::Events, &to_events_v1(&event, 7));
            assert!(checked.is_ok() || event.metadata.name.is_empty(), "{text:?}: {checked:?}");
        }
    }

    #[test]
    fn what_is_right_is_left_alone() {
        let mut event = to_events_v1(&old_style(), 0);
        let converted = to_events_v1(&Event { count: 3, last_timestamp: Some(Time(30)), ..event.clone() }, 0);
        assert_eq!(converted, event);
        event.series = None;
        assert_eq!((to_events_v1(&event, 0), occurrences(&event)), (event.clone(), 1));
    }

    #[test]
    fn newer_counts_stand_where_the_older_ones_do() {
        let newer = Event { count: 5, last_timestamp: Some(Time(40)), message: "n".into(), ..Event::default() };
        let (mut old, mut new) = (old_style(), to_events_v1(&old_style(), 0));
        advance(&mut old, &newer);
        assert_eq!((old.count, old.message.as_str(), old.series.is_none()), (5, "n", true));
        advance(&mut new, &newer);
        assert_eq!((new.count, occurrences(&new), new.message.len()), (0, 5, 1024));
    }
}
