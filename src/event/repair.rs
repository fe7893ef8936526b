//! Repair instead of loss: what the apiserver would refuse and a client would then drop is mended, and the client told so.
//! Pure; the present is handed in. `repair: off` leaves everything to validation.

use smol_str::format_smolstr;

use super::{ApiGroup, Event, MicroTime, NEW_STYLE_MESSAGE_MAX, cut, validate};

/// LIMIT: bytes of a new-style event's reportingInstance that the apiserver takes.
const REPORTING_INSTANCE_MAX: usize = 128;

/// What was mended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Repair {
    /// The message (note) was cut on a character boundary.
    Message,
    /// The reportingInstance was cut on a character boundary.
    ReportingInstance,
    /// The name was replaced.
    Name,
    /// A new-style event without eventTime got the present.
    EventTime,
}

impl Repair {
    /// Every repair, for zero-initialised metrics.
    pub const ALL: [Self; 4] = [Self::Message, Self::ReportingInstance, Self::Name, Self::EventTime];

    /// The metric label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Message => "message",
            Self::ReportingInstance => "reporting_instance",
            Self::Name => "name",
            Self::EventTime => "event_time",
        }
    }

    /// What the client is told in a `Warning` header.
    #[must_use]
    pub const fn warning(self) -> &'static str {
        match self {
            Self::Message => "eventweir: the message was too long and has been cut",
            Self::ReportingInstance => "eventweir: reportingInstance was longer than 128 bytes and has been cut",
            Self::Name => "eventweir: metadata.name was no valid name and has been replaced",
            Self::EventTime => "eventweir: eventTime was missing and has been set to the present",
        }
    }
}

/// Mends an event that came through the door of `group`. `message_max` is the most bytes that an old-style message keeps;
/// `now` is in unix nanoseconds.
pub fn repair(group: ApiGroup, event: &mut Event, message_max: usize, now: i64) -> Vec<Repair> {
    let mut repairs = Vec::new();
    if group == ApiGroup::Events && event.event_time.is_none() {
        event.event_time = Some(MicroTime::from_unix_nanos(now));
        repairs.push(Repair::EventTime);
    }
    let new_style = event.event_time.is_some();
    let message_max = if new_style { NEW_STYLE_MESSAGE_MAX } else { message_max };
    if event.message.len() > message_max {
        event.message = cut(&event.message, message_max);
        repairs.push(Repair::Message);
    }
    if new_style && event.reporting_instance.len() > REPORTING_INSTANCE_MAX {
        event.reporting_instance = cut(&event.reporting_instance, REPORTING_INSTANCE_MAX);
        repairs.push(Repair::ReportingInstance);
    }
    if !event.metadata.name.is_empty() && !validate::is_valid_name(group, &event.metadata.name) {
        event.metadata.name = format_smolstr!("event.{:x}", now.unsigned_abs());
        repairs.push(Repair::Name);
    }
    repairs
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
    fn what_is_repaired_is_valid_afterwards() {
        let mut event = new_style();
        event.message = "ä".repeat(600).into();
        event.reporting_instance = "i".repeat(200).into();
        event.metadata.name = "Not A Name".into();
        event.event_time = None;
        let repairs = repair(ApiGroup::Events, &mut event, 4096, 7);
        assert_eq!(repairs, [Repair::EventTime, Repair::Message, Repair::ReportingInstance, Repair::Name]);
        assert_eq!((event.message.len(), event.reporting_instance.len()), (1024, 128));
        validate::create(ApiGroup::Events, &event).unwrap();
    }

    #[test]
    fn what_is_right_is_left_alone() {
        let mut event = new_style();
        let before = event.clone();
        assert!(repair(ApiGroup::Events, &mut event, 4096, 7).is_empty());
        assert_eq!(event, before);
        // core/v1 takes long messages and odd names of old-style events; only our own cap applies.
        let mut old_style = Event { message: "m".repeat(5000).into(), ..Event::default() };
        old_style.metadata.name = "Web-0.jVTkoE7ITJ64".into();
        assert_eq!(repair(ApiGroup::Core, &mut old_style, 4096, 7), [Repair::Message]);
        assert_eq!(old_style.message.len(), 4096);
    }
}
