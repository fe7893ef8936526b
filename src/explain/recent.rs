//! How many of something there were of late: in the last minute, and in about the last hour.

use smol_str::SmolStr;

use crate::clock::Mono;
use crate::event::{Event, cut};

const MINUTE: i64 = 60_000_000_000;
/// Buckets of ten minutes.
const TENS: usize = 6;

/// Numbers of the last minute and hour.
#[derive(Debug, Default, Clone, Copy)]
pub struct Recent {
    minute: i64,
    /// In this minute, and in the one before.
    minutes: [u32; 2],
    /// In these ten minutes, and in those before.
    tens: [u32; TENS + 1],
}

impl Recent {
    fn go_on(&mut self, now: Mono) {
        let minute = now.0.div_euclid(MINUTE);
        if minute <= self.minute {
            return;
        }
        self.minutes = [0, if minute == self.minute + 1 { self.minutes[0] } else { 0 }];
        let passed = usize::try_from(minute / 10 - self.minute / 10).unwrap_or(TENS + 1).min(TENS + 1);
        self.tens.rotate_right(passed % (TENS + 1));
        self.tens[..passed].fill(0);
        self.minute = minute;
    }

    /// Adds some.
    pub fn add(&mut self, now: Mono, number: u32) {
        self.go_on(now);
        self.minutes[0] = self.minutes[0].saturating_add(number);
        self.tens[0] = self.tens[0].saturating_add(number);
    }

    /// How many there were a second, over the last minute.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a number for people")]
    pub fn per_second(mut self, now: Mono) -> f64 {
        self.go_on(now);
        let into = now.0.rem_euclid(MINUTE) as f64 / MINUTE as f64;
        let [this, before] = self.minutes.map(f64::from);
        (this + before * (1.0 - into)) / 60.0
    }

    /// How many there were in the last hour, and up to ten minutes before it.
    #[must_use]
    pub fn hour(mut self, now: Mono) -> u64 {
        self.go_on(now);
        self.tens.iter().map(|number| u64::from(*number)).sum()
    }
}

/// Counts of events that are alike, over all objects.
#[derive(Debug, Default, Clone)]
#[expect(missing_docs, reason = "the members of an event")]
pub struct Group {
    pub event_type: SmolStr,
    pub reason: SmolStr,
    pub kind: SmolStr,
    pub namespace: SmolStr,
    pub component: SmolStr,
    /// Occurrences since the start.
    pub received: u64,
    /// The same of late.
    pub recent: Recent,
    /// Writes of late.
    pub writes: Recent,
}

impl Group {
    pub(super) fn of(event: &Event) -> Self {
        // LIMIT: bytes of a label.
        let label = |text: &str| cut(text, 128);
        Self {
            event_type: label(&event.event_type),
            reason: label(&event.reason),
            kind: label(&event.involved_object.kind),
            namespace: label(&event.metadata.namespace),
            component: label(event.component()),
            ..Self::default()
        }
    }

    pub(super) fn receive(&mut self, now: Mono, number: u32) {
        self.received += u64::from(number);
        self.recent.add(now, number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_older_than_an_hour_is_not_counted() {
        let at = |minutes: i64| Mono(minutes * MINUTE);
        let mut recent = Recent::default();
        for minute in 0..180 {
            recent.add(at(minute), 6);
            if minute >= 80 {
                let hour = recent.hour(at(minute));
                assert!((366..=420).contains(&hour), "{minute}: {hour}");
                assert!((recent.per_second(at(minute)) - 0.2).abs() < 0.01);
            }
        }
        assert!((recent.per_second(at(181)) - 0.0).abs() < 0.01);
        assert_eq!(recent.hour(at(260)), 0);
    }
}
