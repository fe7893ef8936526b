//! The digest: one record for many records that their budget could not pay for in time.
//!
//! Its message has the folded reasons with their counts and, within the length limit, their newest messages.

use std::fmt::Write as _;

use smol_str::{SmolStr, format_smolstr};

use super::Occurrences;
use super::fold::FIRST_DIGEST;
use super::settings::Settings;
use super::storm::{self, Storm};
use super::upstream_state::UpstreamState;
use crate::clock::{Mono, Now};
use crate::correlator::{RecordId, record_name};
use crate::event::{Event, EventSource, MicroTime, ObjectMeta, ObjectReference, Time, cut};

/// Reason of a digest.
pub const DIGEST_REASON: &str = "EventsFolded";

/// LIMIT: bytes kept of a folded reason's newest message; the digest's own message has room for less anyway.
const KEPT_MESSAGE_BYTES: usize = 256;

/// LIMIT: bytes of a reason that the digest names; old-style events may carry any length.
const KEPT_REASON_BYTES: usize = 64;

/// The occurrences that have folded in one budget, and their record.
#[derive(Debug)]
pub(super) struct Digest {
    pub(super) record: RecordId,
    /// The event as last written, from which the record continues after it has left the outbox.
    pub(super) event: Event,
    /// State of the record upstream.
    pub(super) upstream: UpstreamState,
    /// Occurrences under its tag.
    pub(super) total: u64,
    /// Time until which nothing folds, so that the digest can be written; see `Budget::folds_from`.
    pub(super) folds_from: Mono,
    /// LIMIT: `digest_reasons` entries, in the order in which they were first folded.
    reasons: Vec<Folded>,
    /// Occurrences of reasons beyond the limit.
    unnamed: u64,
    /// Content of a storm record, instead of reasons.
    storm: Option<Box<Storm>>,
    bytes: usize,
}

#[derive(Debug)]
struct Folded {
    reason: SmolStr,
    occurrences: u64,
    message: SmolStr,
}

impl Digest {
    /// Creates a digest on the involved object of `first`, the first record that folds.
    pub(super) fn new(record: RecordId, first: &Event, now: Now) -> Self {
        let object = ObjectReference { field_path: SmolStr::default(), ..first.involved_object.clone() };
        let namespace = &first.metadata.namespace;
        let mut event = Event {
            metadata: ObjectMeta {
                // Several budgets of one object may fold at the same time.
                name: digest_name(&object.name, record, now),
                namespace: namespace.clone(),
                ..ObjectMeta::default()
            },
            involved_object: object,
            reason: SmolStr::new_static(DIGEST_REASON),
            source: EventSource { component: first.component().into(), host: first.host().into() },
            event_type: first.event_type.clone(),
            first_timestamp: Some(Time::from_unix_nanos(now.wall)),
            ..Event::default()
        };
        // The digest has the style of the folded events, so that their readers can read it. An old-style event must be
        // in its object's namespace, or the API server refuses it (`validation/events.go`, `legacyValidateEvent`).
        if first.event_time.is_some() || !event.can_be_old_style() {
            event.event_time = Some(MicroTime::from_unix_nanos(now.wall));
            event.action = SmolStr::new_static("Fold");
            event.reporting_controller = first.reporting_controller.clone();
            event.reporting_instance = first.reporting_instance.clone();
        }
        Self::of(record, event, None, now)
    }

    /// Creates the storm record of the group of `first`.
    pub(super) fn storm(record: RecordId, first: &Event, now: Now) -> Self {
        Self::of(record, storm::begin(record, first, now), Some(Box::default()), now)
    }

    fn of(record: RecordId, event: Event, storm: Option<Box<Storm>>, now: Now) -> Self {
        let folds_from = now.mono;
        let (upstream, reasons) = (UpstreamState::Absent, Vec::new());
        Self { record, event, upstream, total: 0, folds_from, reasons, unnamed: 0, storm, bytes: 0 }
    }

    /// Returns the first folded reason; `None` in a storm record.
    pub(super) fn first_reason(&self) -> Option<&SmolStr> {
        self.reasons.first().map(|folded| &folded.reason)
    }

    /// Adds the occurrences of a record that folds.
    pub(super) fn fold(&mut self, folded: &Event, occurrences: Occurrences, settings: &Settings) {
        let number = occurrences.total();
        self.event.count = self.event.count.saturating_add(i32::try_from(number).unwrap_or(i32::MAX));
        self.event.last_timestamp = self.event.last_timestamp.max(folded.last_timestamp);
        if let Some(first) = folded.first_timestamp {
            self.event.first_timestamp = Some(self.event.first_timestamp.map_or(first, |known| known.min(first)));
        }
        if let Some(storm) = &mut self.storm {
            storm.add(folded, number);
            self.bytes = storm.size();
            return;
        }
        if folded.is_warning() {
            self.event.event_type = folded.event_type.clone();
        }
        let reason = cut(&folded.reason, KEPT_REASON_BYTES);
        let message = cut(&folded.message, KEPT_MESSAGE_BYTES);
        let room = self.reasons.len() < settings.digest_reasons;
        match self.reasons.iter_mut().find(|known| known.reason == reason) {
            Some(known) => {
                known.occurrences += number;
                self.bytes = self.bytes - known.message.len() + message.len();
                known.message = message;
            }
            None if room => {
                self.bytes += size_of::<Folded>() + reason.len() + message.len();
                self.reasons.push(Folded { reason, occurrences: number, message });
            }
            None => self.unnamed += number,
        }
    }

    pub(super) fn update_message(&mut self, settings: &Settings) {
        let limit = settings.digest_message_bytes;
        self.event.message = self.storm.as_ref().map_or_else(|| self.message(limit), |storm| storm.message(limit));
    }

    /// Returns the memory of the digest in bytes, without its record.
    pub(super) const fn size(&self) -> usize {
        self.bytes + size_of::<Self>()
    }

    /// Returns the message, in at most `limit` bytes. An example:
    /// `35 events folded: FailedMount x3 (newest message), BackOff x2 (…), and 7 of other reasons`
    fn message(&self, limit: usize) -> SmolStr {
        let total = self.unnamed + self.reasons.iter().map(|folded| folded.occurrences).sum::<u64>();
        let head = format!("{total} {} folded: ", if total == 1 { "event" } else { "events" });
        let names: Vec<String> =
            self.reasons.iter().map(|folded| format!("{} x{}", folded.reason, folded.occurrences)).collect();
        let rest_bytes = ", and 18446744073709551615 of other reasons".len();
        // First as many reasons as fit. Their messages share the rest.
        let mut used = head.len() + rest_bytes;
        let mut named = 0;
        for name in &names {
            if used + name.len() + 2 > limit {
                break;
            }
            used += name.len() + 2;
            named += 1;
        }
        let share = (limit.saturating_sub(used)).checked_div(named).unwrap_or(0);
        let mut text = head;
        for (index, (name, folded)) in names.iter().zip(&self.reasons).take(named).enumerate() {
            text.push_str(if index == 0 { "" } else { ", " });
            text.push_str(name);
            // ` ()` and the ellipsis take six bytes, and less than ten bytes of a message are of no use.
            if share >= 16 && !folded.message.is_empty() {
                let shown = cut(&folded.message, share - 6);
                let sign = if shown.len() < folded.message.len() { "…" } else { "" };
                write!(text, " ({shown}{sign})").unwrap_or_default();
            }
        }
        let unnamed = self.unnamed + self.reasons.iter().skip(named).map(|folded| folded.occurrences).sum::<u64>();
        if unnamed > 0 {
            let joint = if named == 0 { "" } else { ", and " };
            write!(text, "{joint}{unnamed} of other reasons").unwrap_or_default();
        }
        cut(&text, limit)
    }
}

/// Returns the name of a new digest or storm record on an object.
pub(super) fn digest_name(object: &str, record: RecordId, now: Now) -> SmolStr {
    format_smolstr!("{}.{:x}", record_name(object, now), record.0 ^ FIRST_DIGEST)
}

/// Returns the record of a name, if [`digest_name`] has made it.
pub(super) fn number(name: &str) -> Option<RecordId> {
    let (_, number) = name.rsplit_once('.')?;
    Some(RecordId(u64::from_str_radix(number, 16).ok()? ^ FIRST_DIGEST))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::correlator::Rate;
    use crate::outbox::{Answer, Offer, Outbox, Request, WrittenAs};

    fn folded(reason: &str, message: &str) -> Event {
        let mut event = Event { reason: reason.into(), message: message.into(), ..Event::default() };
        event.metadata.namespace = "default".into();
        event.involved_object.name = "web-0".into();
        event.involved_object.namespace = "default".into();
        event
    }

    fn digest_of(events: &[(String, String)], settings: &Settings) -> Digest {
        let mut digest = Digest::new(RecordId(1), &folded("R", ""), Now::at(5));
        for (reason, message) in events {
            digest.fold(&folded(reason, message), Occurrences::of(WrittenAs::Created, 1), settings);
        }
        digest.update_message(settings);
        digest
    }

    #[test]
    fn a_digest_names_reasons_counts_and_newest_messages() {
        let events = [("Pulled", "one"), ("Failed", "two"), ("Pulled", "three")];
        let events: Vec<_> = events.iter().map(|(reason, message)| ((*reason).into(), (*message).into())).collect();
        let digest = digest_of(&events, &Settings::default());
        assert_eq!(digest.event.message, "3 events folded: Pulled x2 (three), Failed x1 (two)");
        assert_eq!(digest.event.count, 3);
        assert_eq!(digest.event.reason, DIGEST_REASON);
    }

    #[test]
    fn a_digest_keeps_its_limit_whatever_folds() {
        for (reasons, length) in [(3, 5_000), (40, 100), (60, 3), (500, 50), (1, 0)] {
            for limit in [0, 40, 200, 1024] {
                let settings = Settings { digest_message_bytes: limit, ..Settings::default() };
                let events: Vec<_> = (0..reasons).map(|n| (format!("Reason{n}"), "ä".repeat(length))).collect();
                let digest = digest_of(&events, &settings);
                assert!(digest.event.message.len() <= limit, "{reasons} {length} {limit}");
                assert!(digest.reasons.len() <= settings.digest_reasons);
                assert_eq!(digest.event.count, reasons);
                if limit == 1024 {
                    assert!(digest.event.message.starts_with(&format!("{reasons} event")));
                }
            }
        }
    }

    #[test]
    fn a_digest_of_events_outside_their_objects_namespace_is_new_style() {
        let mut event = folded("R", "m");
        assert!(Digest::new(RecordId(1), &event, Now::at(5)).event.event_time.is_none());
        event.metadata.namespace = "kube-system".into();
        assert!(Digest::new(RecordId(1), &event, Now::at(5)).event.event_time.is_some());
    }

    #[test]
    fn a_renamed_digest_is_found_by_its_tag() {
        let settings = Settings { digest_after: 0, coalesce_interval: Duration::ZERO, ..Settings::default() };
        let (mut outbox, now) = (Outbox::new(settings, 0), Now::at(1));
        outbox.identify("me");
        outbox.offer(Offer::of(1, Some(Rate { qps: 0.0, burst: 0 })), folded("R", "m"), now);
        outbox.drain(now);
        let id = outbox.next_write(now).unwrap().record;
        outbox.settle(id, Answer::Exists, now);
        assert!(matches!(outbox.next_write(now).unwrap().request, Request::Read { .. }));
        outbox.settle(id, Answer::Stored(Box::new(folded("Other", "m"))), now);
        let Request::Create { mut event, .. } = outbox.next_write(now).unwrap().request else {
            unreachable!("renamed")
        };
        let name = event.metadata.name.clone();
        assert_eq!((number(&name).filter(|number| *number == id), outbox.digest(&event, &name)), (None, Some(id)));
        // Without tags it is found too, and an event of another writer is not searched for.
        event.metadata.rare = None;
        assert_eq!(outbox.digest(&event, &name), Some(id));
        let rare = event.metadata.rare.get_or_insert_default();
        rare.annotations.insert("tally.eventweir/other.8000000000000001".into(), "1".into());
        assert_eq!(outbox.digest(&event, &name), None);
    }
}
