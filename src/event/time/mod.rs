//! The two time types of Kubernetes' API: seconds (`metav1.Time`) and microseconds (`metav1.MicroTime`).
//!
//! Parsing follows Go's `time.Parse(time.RFC3339, …)` as the apiserver uses it; writing is always in UTC. See
//! `k8s.io/apimachinery/pkg/apis/meta/v1/{time,micro_time}.go`.

mod parse;

use std::fmt;

use jiff::SignedDuration;
use jiff::civil::DateTime;
use smol_str::SmolStr;

/// `metav1.Time`: whole seconds since 1970, in UTC. Parsing truncates fractions. An optional time is `None` for the
/// zero time (year 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub i64);

/// `metav1.MicroTime`: microseconds since 1970, in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MicroTime(pub i64);

/// The error of a text that is not a time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a time such as {example}")]
pub struct TimeError {
    text: SmolStr,
    example: &'static str,
}

impl TimeError {
    /// LIMIT: bytes of the text in the error; the rest is cut.
    const SHOWN_BYTES: usize = 40;

    fn new(text: &str, example: &'static str) -> Self {
        Self { text: super::cut(text, Self::SHOWN_BYTES), example }
    }
}

/// Seconds from 0001-01-01T00:00:00Z (Go's zero time) to 1970-01-01T00:00:00Z, negative.
pub(crate) const ZERO_TIME_SECONDS: i64 = -62_135_596_800;

/// Where unix time begins.
const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

/// LIMIT: the years 0 to 9999 in seconds since 1970. Times outside them are moved to the ends, because Go writes them so
/// that it does not read them again: `10000-01-01T00:00:00Z`. An offset from UTC can lead there, and protobuf.
const SECONDS_MIN: i64 = -62_167_219_200;
const SECONDS_MAX: i64 = 253_402_300_799;

impl Time {
    /// Go's zero time, `0001-01-01T00:00:00Z`, which the API treats as not set.
    pub const ZERO: Self = Self(ZERO_TIME_SECONDS);

    /// Returns the nearest time in the years 0 to 9999.
    pub(super) fn within_years(self) -> Self {
        Self(self.0.clamp(SECONDS_MIN, SECONDS_MAX))
    }

    /// Parses RFC 3339 as Go does, and truncates any fraction.
    ///
    /// # Errors
    /// For a text that is not a time.
    pub fn parse(text: &str) -> Result<Self, TimeError> {
        let time = parse::parse(text, parse::Layout::Seconds).map(|(seconds, _micros)| Self(seconds).within_years());
        time.ok_or_else(|| TimeError::new(text, "2026-01-02T15:04:05Z"))
    }

    /// Returns the whole second at or before `nanos` (unix nanoseconds).
    pub const fn from_unix_nanos(nanos: i64) -> Self {
        Self(nanos.div_euclid(1_000_000_000))
    }
}

impl MicroTime {
    /// Go's zero time.
    pub const ZERO: Self = Self(ZERO_TIME_SECONDS * 1_000_000);

    /// Returns the nearest time in the years 0 to 9999.
    pub(super) fn within_years(self) -> Self {
        Self(self.0.clamp(SECONDS_MIN * 1_000_000, SECONDS_MAX * 1_000_000 + 999_999))
    }

    /// Parses RFC 3339 with exactly six digits of fraction, as Go does.
    ///
    /// # Errors
    /// For a text that is not such a time.
    pub fn parse(text: &str) -> Result<Self, TimeError> {
        let time = parse::parse(text, parse::Layout::Micros);
        let micros = time.map(|(seconds, micros)| seconds.saturating_mul(1_000_000).saturating_add(micros));
        let time = micros.map(|micros| Self(micros).within_years());
        time.ok_or_else(|| TimeError::new(text, "2026-01-02T15:04:05.000000Z"))
    }

    /// Returns the whole microsecond at or before `nanos` (unix nanoseconds).
    pub const fn from_unix_nanos(nanos: i64) -> Self {
        Self(nanos.div_euclid(1_000))
    }
}

/// Writes the time as the apiserver writes it.
impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0}Z", EPOCH.saturating_add(SignedDuration::from_secs(self.0)))
    }
}

/// Writes the time as the apiserver writes it.
impl fmt::Display for MicroTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6}Z", EPOCH.saturating_add(SignedDuration::from_micros(self.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_print_as_the_apiserver_prints_them() {
        assert_eq!(Time(0).to_string(), "1970-01-01T00:00:00Z");
        assert_eq!(Time::ZERO.to_string(), "0001-01-01T00:00:00Z");
        assert_eq!(Time(1_772_352_000).to_string(), "2026-03-01T08:00:00Z");
        assert_eq!(MicroTime(1_772_352_000_000_001).to_string(), "2026-03-01T08:00:00.000001Z");
        assert_eq!(Time(-1).to_string(), "1969-12-31T23:59:59Z");
        assert_eq!(Time(253_402_300_799).to_string(), "9999-12-31T23:59:59Z");
        assert_eq!(Time(951_782_400).to_string(), "2000-02-29T00:00:00Z");
    }
}
