//! Events of the tests.

use std::sync::atomic::{AtomicU64, Ordering};

use eventweir::event::{Event, Time};

/// 2026-03-01T08:00:00Z in unix nanoseconds: the start of every simulated clock.
pub(crate) const START: i64 = 1_772_352_000 * 1_000_000_000;

static NAMES: AtomicU64 = AtomicU64::new(0);

/// Returns a kubelet's event about a pod, with a unique name as from client-go.
pub(crate) fn event(host: &str, object: &str, reason: &str, message: &str) -> Event {
    let mut event = Event {
        reason: reason.into(),
        message: message.into(),
        event_type: "Normal".into(),
        count: 1,
        first_timestamp: Some(Time::from_unix_nanos(START)),
        last_timestamp: Some(Time::from_unix_nanos(START)),
        ..Event::default()
    };
    event.metadata.namespace = "shop".into();
    event.metadata.name = format!("{object}.{:x}", NAMES.fetch_add(1, Ordering::Relaxed)).into();
    event.involved_object.kind = "Pod".into();
    event.involved_object.name = object.into();
    event.involved_object.namespace = "shop".into();
    event.source.component = "kubelet".into();
    event.source.host = host.into();
    event
}

/// Returns the same event as a Warning.
pub(crate) fn warning(host: &str, object: &str, reason: &str, message: &str) -> Event {
    Event { event_type: "Warning".into(), ..event(host, object, reason, message) }
}

/// Returns an event for tests in which its members do not matter.
pub(crate) fn plain() -> Event {
    event("node-1", "web-0", "BackOff", "restarting")
}
