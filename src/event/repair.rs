//! Repairs events that the API server would refuse and their clients would then drop. Each repair is reported to the
//! client. Pure; the caller passes the time. `repair: off` leaves everything to validation.

use std::hash::Hasher as _;

use siphasher::sip::SipHasher13;
use smol_str::{SmolStr, format_smolstr};

use super::{
    ApiGroup, Event, MicroTime, NEW_STYLE_MESSAGE_MAX, NEW_STYLE_TEXT_MAX, RareMeta, conversion, cut, validate,
};

labelled! {
    /// A repair.
    pub enum Repair {
        /// The message (note) was cut at a character boundary.
        Message = "message",
        /// The reportingInstance was cut at a character boundary.
        ReportingInstance = "reporting_instance",
        /// The name was replaced.
        Name = "name",
        /// The missing eventTime of a new-style event was set to the current time.
        EventTime = "event_time",
        /// An old-style event outside its object's namespace became a new-style one.
        Style = "style",
        /// Labels, annotations, owners and finalizers were removed.
        Metadata = "metadata",
    }
}

/// The reason why an upstream refused an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Objection<'a> {
    /// The fields in the causes of a 422.
    Fields(&'a [&'a str]),
    /// The whole event is too large.
    TooLarge,
}

impl Objection<'_> {
    /// Returns the fields; none if the whole event is meant.
    const fn fields(&self) -> &[&str] {
        match self {
            Self::Fields(fields) => fields,
            Self::TooLarge => &[],
        }
    }

    /// Whether one of the fields is among `fields`.
    fn is_about(&self, fields: &[&str]) -> bool {
        self.fields().iter().any(|field| fields.contains(field))
    }

    /// Whether one of the fields is `parent` or a member of it.
    fn is_within(&self, parent: &str) -> bool {
        let is_member = |rest: &str| rest.is_empty() || rest.starts_with(['.', '[']);
        self.fields().iter().any(|field| field.strip_prefix(parent).is_some_and(is_member))
    }
}

impl Repair {
    /// Returns the text of the client's `Warning` header.
    pub const fn warning(self) -> &'static str {
        match self {
            Self::Message => "eventweir: the message was too long and has been cut",
            Self::ReportingInstance => "eventweir: reportingInstance was longer than 128 bytes and has been cut",
            Self::Name => "eventweir: metadata.name was no valid name and has been replaced",
            Self::EventTime => "eventweir: eventTime was missing and has been set to the present",
            Self::Style => "eventweir: the event was not in its object's namespace and has become a new-style one",
            Self::Metadata => "eventweir: labels, annotations, owners and finalizers have been left out",
        }
    }
}

/// Repairs an event of `group`. `message_max` limits the bytes of an old-style message. `now` returns the time in unix
/// nanoseconds; few repairs call it.
pub fn repair(group: ApiGroup, event: &mut Event, message_max: usize, now: impl Fn() -> i64) -> Vec<Repair> {
    let mut repairs = Vec::new();
    // An explicit zero time passes for new-style, and no format but the client's shows that it is there.
    let lacks_time = event.event_time.map_or(group == ApiGroup::Events, |time| time == MicroTime::ZERO);
    if lacks_time {
        event.event_time = Some(MicroTime::from_unix_nanos(now()));
        repairs.push(Repair::EventTime);
    }
    let new_style = event.event_time.is_some();
    repairs.extend(message(&mut event.message, if new_style { NEW_STYLE_MESSAGE_MAX } else { message_max }));
    if new_style && event.reporting_instance.len() > NEW_STYLE_TEXT_MAX {
        event.reporting_instance = cut(&event.reporting_instance, NEW_STYLE_TEXT_MAX);
        repairs.push(Repair::ReportingInstance);
    }
    if !event.metadata.name.is_empty() && !validate::is_valid_name(group, &event.metadata.name) {
        event.metadata.name = valid_name(&event.metadata.namespace, &event.metadata.name);
        repairs.push(Repair::Name);
    }
    repairs
}

/// Cuts a message of more bytes.
pub fn message(message: &mut SmolStr, max: usize) -> Option<Repair> {
    if message.len() <= max {
        return None;
    }
    *message = cut(message, max);
    Some(Repair::Message)
}

/// Returns the name for an event with an invalid one: always the same, also in another replica, because clients repeat
/// their events under the name that they gave, and each repeat has the total of all.
fn valid_name(namespace: &str, given: &str) -> SmolStr {
    let mut hasher = SipHasher13::new();
    for text in [namespace, given] {
        hasher.write(text.as_bytes());
        hasher.write_u8(0xff);
    }
    format_smolstr!("event.{:x}", hasher.finish())
}

/// Repairs a new event that the upstream refused: only the fields it objects to, and only if that can help. `now` is in
/// unix nanoseconds. Valid events are refused only by admission webhooks and other versions of Kubernetes.
pub fn refused(event: &mut Event, objection: &Objection<'_>, now: i64) -> Vec<Repair> {
    let mut repairs: Vec<Repair> = refused_message(event, objection).into_iter().collect();
    if objection.is_about(&["reportingInstance"]) && event.reporting_instance.len() > NEW_STYLE_TEXT_MAX {
        event.reporting_instance = cut(&event.reporting_instance, NEW_STYLE_TEXT_MAX);
        repairs.push(Repair::ReportingInstance);
    }
    let is_odd_name = !validate::is_valid_name(ApiGroup::Events, &event.metadata.name);
    if objection.is_about(&["metadata.name"]) && is_odd_name {
        event.metadata.name = format_smolstr!("event.{:x}", now.unsigned_abs());
        repairs.push(Repair::Name);
    }
    let is_outside_namespace = event.event_time.is_none() && !event.can_be_old_style();
    if objection.is_about(&["involvedObject.namespace", "regarding.namespace"])
        && is_outside_namespace
        && !event.involved_object.namespace.is_empty()
    {
        let converted = conversion::to_events_v1(event, now);
        event.event_time = converted.event_time;
        event.reporting_controller = converted.reporting_controller;
        event.reporting_instance = converted.reporting_instance;
        event.action = converted.action;
        event.reason = converted.reason;
        event.message = converted.message;
        repairs.push(Repair::Style);
    }
    let parts = ["metadata.labels", "metadata.annotations", "metadata.ownerReferences", "metadata.finalizers"];
    if (*objection == Objection::TooLarge || parts.into_iter().any(|part| objection.is_within(part)))
        && let Some(rare) = event.metadata.rare.as_deref_mut()
        && has_extras(rare)
    {
        *rare = RareMeta { generate_name: rare.generate_name.clone(), ..RareMeta::default() };
        repairs.push(Repair::Metadata);
    }
    repairs
}

/// Repairs the message only, which a patch has too.
pub fn refused_message(event: &mut Event, objection: &Objection<'_>) -> Option<Repair> {
    let is_meant = *objection == Objection::TooLarge || objection.is_about(&["message", "note"]);
    if is_meant { message(&mut event.message, NEW_STYLE_MESSAGE_MAX) } else { None }
}

fn has_extras(rare: &RareMeta) -> bool {
    let pairs = rare.labels.len() + rare.annotations.len();
    pairs + rare.owner_references.len() + rare.finalizers.len() > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new_style() -> Event {
        let mut event = Event {
            event_time: Some(MicroTime(5)),
            reporting_controller: "example.com/c".into(),
            reporting_instance: "i".into(),
            action: "A".into(),
            reason: "R".into(),
            event_type: "Normal".into(),
            ..Event::default()
        };
        event.metadata.name = "web-0.1".into();
        event.metadata.namespace = "shop".into();
        event.involved_object.namespace = "shop".into();
        event
    }

    #[test]
    fn what_is_right_is_left_alone() {
        let mut event = new_style();
        let before = event.clone();
        assert!(repair(ApiGroup::Events, &mut event, 4096, || 7).is_empty());
        assert_eq!(event, before);
        // core/v1 accepts long messages and odd names of old-style events; only our own limit applies.
        let mut old_style = Event { message: "m".repeat(5000).into(), ..Event::default() };
        old_style.metadata.name = "Web-0.jVTkoE7ITJ64".into();
        assert_eq!(repair(ApiGroup::Core, &mut old_style, 4096, || 7), [Repair::Message]);
        assert_eq!(old_style.message.len(), 4096);
    }

    /// Fault: it was accepted as a new-style event, and written and kept as an old-style one.
    #[test]
    fn a_zero_event_time_becomes_the_present() {
        for group in [ApiGroup::Core, ApiGroup::Events] {
            let mut event = Event { event_time: Some(MicroTime::ZERO), ..new_style() };
            event.involved_object.namespace = "other".into();
            assert_eq!(repair(group, &mut event, 4096, || 7_000), [Repair::EventTime]);
            assert_eq!(event.event_time, Some(MicroTime(7)));
        }
        let mut old_style = Event { event_time: None, ..new_style() };
        assert!(repair(ApiGroup::Core, &mut old_style, 4096, || 7_000).is_empty());
    }

    /// Fault: it had the time in it, so each repeat of an event with its total was counted as a new one.
    #[test]
    fn an_invalid_name_is_always_replaced_by_the_same_one() {
        let named = |namespace: &str, name: &str, now: i64| {
            let mut event = new_style();
            (event.metadata.namespace, event.metadata.name) = (namespace.into(), name.into());
            event.involved_object.namespace = namespace.into();
            assert_eq!(repair(ApiGroup::Events, &mut event, 4096, || now), [Repair::Name]);
            validate::create(ApiGroup::Events, &event).unwrap();
            event.metadata.name
        };
        let name = named("shop", "system:x.1a", 7);
        assert_eq!(name, named("shop", "system:x.1a", 8));
        for (namespace, other) in [("shop", "system:x.1b"), ("shop2", "system:x.1a"), ("sho", "psystem:x.1a")] {
            assert_ne!(name, named(namespace, other, 7), "{namespace} {other}");
        }
    }

    #[test]
    fn a_refused_event_is_repaired_only_where_the_upstream_objects_and_is_valid_afterwards() {
        let mut event = new_style();
        event.event_time = None;
        event.message = "m".repeat(2000).into();
        event.reporting_instance = "i".repeat(200).into();
        event.involved_object.namespace = "other".into();
        event.metadata.name = "Web-0.1".into();
        let labels = [("no label".into(), "".into())].into();
        event.metadata.rare = Some(Box::new(RareMeta { labels, ..RareMeta::default() }));
        let before = event.clone();
        for fields in [&["series"][..], &["metadata.labelsX"], &[]] {
            assert!(refused(&mut event, &Objection::Fields(fields), 7).is_empty());
        }
        assert_eq!(event, before);
        let mut large = event.clone();
        assert_eq!(refused(&mut large, &Objection::TooLarge, 7), [Repair::Message, Repair::Metadata]);
        assert_eq!(large.metadata.name, "Web-0.1");
        let fields =
            ["note", "reportingInstance", "metadata.name", "involvedObject.namespace", "metadata.labels[no label]"];
        let repairs = refused(&mut event, &Objection::Fields(&fields), 7);
        let expected = [Repair::Message, Repair::ReportingInstance, Repair::Name, Repair::Style, Repair::Metadata];
        assert_eq!(repairs, expected);
        validate::create(ApiGroup::Core, &event).unwrap();
        assert!(refused(&mut event, &Objection::Fields(&fields), 7).is_empty(), "once");
    }
}
