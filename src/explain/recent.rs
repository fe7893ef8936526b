//! Recent numbers: of the last minute, ten minutes and hour.

use smol_str::SmolStr;

use super::history::heap;
use crate::clock::Mono;
use crate::event::{Event, cut};

const MINUTE: i64 = 60_000_000_000;

/// Returns the number of the minute.
pub(super) const fn minute(at: Mono) -> i64 {
    at.0.div_euclid(MINUTE)
}

labelled! {
    /// How far back a table goes, from the shortest to the longest.
    #[derive(Default)]
    #[expect(missing_docs, reason = "the words of the query")]
    pub enum Window {
        Minute = "1m",
        TenMinutes = "10m",
        #[default]
        Hour = "1h",
    }
}

impl Window {
    /// Parses a label.
    ///
    /// # Errors
    /// Names the allowed labels.
    pub fn parse(text: &str) -> Result<Self, String> {
        parse("window", text, &Self::ALL.map(|window| (window, window.label())))
    }
}

labelled! {
    /// The number by which a table is sorted, the largest first.
    #[derive(Default)]
    #[expect(missing_docs, reason = "the words of the query")]
    pub enum Order {
        #[default]
        Received = "received",
        PerSecond = "perSecond",
        Writes = "writes",
        Lost = "lost",
    }
}

impl Order {
    /// Parses a label.
    ///
    /// # Errors
    /// Names the allowed labels.
    pub fn parse(text: &str) -> Result<Self, String> {
        parse("sort", text, &Self::ALL.map(|order| (order, order.label())))
    }
}

/// Returns the value of the parameter `name` with this label.
fn parse<T: Copy>(name: &str, text: &str, values: &[(T, &str)]) -> Result<T, String> {
    let found = values.iter().find(|(_, label)| *label == text);
    found.map(|(value, _)| *value).ok_or_else(|| {
        let labels: Vec<_> = values.iter().map(|(_, label)| *label).collect();
        let (last, others) = labels.split_last().unwrap_or((&"", &[]));
        format!("unknown {name} {text:?}: allowed are {} and {last}", others.join(", "))
    })
}

/// LIMIT: minutes that are drawn.
pub const MINUTES: usize = 60;

/// Numbers of the newest `N` spans of so many minutes, the newest first.
#[derive(Debug, Clone, Copy)]
pub(super) struct Buckets<const N: usize, const LENGTH: i64> {
    newest: i64,
    numbers: [u32; N],
}

/// Numbers of the last hour, per minute.
pub(super) type Minutes = Buckets<MINUTES, 1>;

impl<const N: usize, const LENGTH: i64> Default for Buckets<N, LENGTH> {
    fn default() -> Self {
        Self { newest: 0, numbers: [0; N] }
    }
}

impl<const N: usize, const LENGTH: i64> Buckets<N, LENGTH> {
    fn advance(&mut self, now: Mono) {
        let newest = minute(now).div_euclid(LENGTH);
        let passed = usize::try_from(newest - self.newest).unwrap_or(0).min(N);
        if passed > 0 {
            self.numbers.copy_within(..N - passed, passed);
            self.numbers[..passed].fill(0);
            self.newest = newest;
        }
    }

    /// Adds `number` at `at`, which may be earlier than the newest addition.
    pub(super) fn add(&mut self, at: Mono, number: u32) {
        self.advance(at);
        let back = usize::try_from(self.newest - minute(at).div_euclid(LENGTH));
        if let Some(bucket) = back.ok().and_then(|back| self.numbers.get_mut(back)) {
            *bucket = bucket.saturating_add(number);
        }
    }

    /// Returns the number of each span, the newest first.
    pub(super) fn list(mut self, now: Mono) -> [u32; N] {
        self.advance(now);
        self.numbers
    }

    /// Returns the number in the last span. The bucket that is only partly within it counts in proportion.
    #[expect(clippy::cast_precision_loss, reason = "a number for people")]
    fn last(self, now: Mono) -> f64 {
        let into = now.0.rem_euclid(LENGTH * MINUTE) as f64 / (LENGTH * MINUTE) as f64;
        let numbers = self.list(now);
        f64::from(numbers[0]) + f64::from(numbers[1]) * (1.0 - into)
    }
}

/// Numbers of the last minute, ten minutes and hour.
#[derive(Debug, Default, Clone, Copy)]
pub struct Recent {
    minutes: Buckets<2, 1>,
    tens: Buckets<7, 10>,
}

impl Recent {
    /// Adds `number` at `at`, which may be earlier than the newest addition.
    pub fn add(&mut self, at: Mono, number: u32) {
        self.minutes.add(at, number);
        self.tens.add(at, number);
    }

    /// Returns the rate per second over the last minute.
    pub fn per_second(self, now: Mono) -> f64 {
        self.minutes.last(now) / 60.0
    }

    /// Returns the number within a window.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a sum of counts")]
    pub fn within(self, window: Window, now: Mono) -> u64 {
        match window {
            Window::Minute => self.minutes.last(now).round() as u64,
            Window::TenMinutes => self.tens.last(now).round() as u64,
            Window::Hour => self.hour(now),
        }
    }

    /// Returns the number in the last hour, and in up to ten minutes before it.
    pub fn hour(self, now: Mono) -> u64 {
        self.tens.list(now).into_iter().map(u64::from).sum()
    }
}

/// Totals of what became of occurrences since the start.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Totals {
    /// Occurrences that arrived.
    pub received: u64,
    /// Occurrences that were refused.
    pub rejected: u64,
    /// Creates and patches.
    pub writes: u64,
    /// Occurrences that the upstream shows in records of their own.
    pub shown: u64,
    /// Occurrences that are in a digest or a storm record, written or not.
    pub folded: u64,
    /// Occurrences that found no token under `suppression: drop`; a later write of their record shows them.
    pub dropped: u64,
    /// Occurrences that are lost for another reason.
    pub lost: u64,
}

impl Totals {
    fn each(self, other: Self, of: fn(u64, u64) -> u64) -> Self {
        Self {
            received: of(self.received, other.received),
            rejected: of(self.rejected, other.rejected),
            writes: of(self.writes, other.writes),
            shown: of(self.shown, other.shown),
            folded: of(self.folded, other.folded),
            dropped: of(self.dropped, other.dropped),
            lost: of(self.lost, other.lost),
        }
    }

    /// Returns the sum of both.
    pub fn plus(self, other: Self) -> Self {
        self.each(other, u64::saturating_add)
    }

    /// Returns the growth since an earlier total.
    pub fn since(self, other: Self) -> Self {
        self.each(other, u64::saturating_sub)
    }

    /// Returns the occurrences that no record counts, or none counts yet.
    pub fn not_shown(&self) -> u64 {
        let others = self.rejected + self.shown + self.folded;
        (self.lost + self.dropped).min(self.received.saturating_sub(others))
    }
}

/// Totals of a group of similar events, over all objects.
#[derive(Debug, Default, Clone)]
#[expect(missing_docs, reason = "the members of an event")]
pub struct Group {
    pub event_type: SmolStr,
    pub reason: SmolStr,
    pub kind: SmolStr,
    pub namespace: SmolStr,
    pub component: SmolStr,
    /// Totals since the start.
    pub totals: Totals,
    /// Recent occurrences.
    pub recent: Recent,
    /// Recent writes.
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

    /// Returns its bytes, with its entries in two tables.
    pub(super) fn bytes(&self) -> usize {
        let texts = [&self.event_type, &self.reason, &self.kind, &self.namespace, &self.component];
        2 * size_of::<Self>() + 64 + texts.into_iter().map(heap).sum::<usize>()
    }

    pub(super) fn receive(&mut self, now: Mono, number: u32) {
        self.totals.received += u64::from(number);
        self.recent.add(now, number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_is_drawn_minute_by_minute() {
        let at = |minutes: i64| Mono(minutes * MINUTE);
        let mut minutes = Minutes::default();
        for minute in 100..170 {
            minutes.add(at(minute), u32::try_from(minute).unwrap());
        }
        let list = minutes.list(at(171));
        assert_eq!((list[0], list[1], list[2], list[59]), (0, 0, 169, 112));
        assert_eq!(minutes.list(at(400)), [0; MINUTES]);
    }

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
        let now = Mono(179 * MINUTE + MINUTE / 2);
        assert_eq!(Window::ALL.map(|window| recent.within(window, now)), [9, 63, 420]);
        assert_eq!(Window::ALL.map(|window| recent.within(window, at(185))), [0, 30, 360]);
        assert!((recent.per_second(at(181)) - 0.0).abs() < 0.01);
        assert_eq!(recent.hour(at(260)), 0);
    }
}
