//! The two time types of Kubernetes' API: seconds (`metav1.Time`) and microseconds (`metav1.MicroTime`).
//!
//! Parsing follows Go's `time.Parse(time.RFC3339, …)` as the apiserver uses it; writing is always in UTC. See
//! `k8s.io/apimachinery/pkg/apis/meta/v1/{time,micro_time}.go`.

mod parse;

use std::fmt;

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

    /// Appends the time as the apiserver writes it, without quotes.
    pub fn write(self, out: &mut Vec<u8>) {
        append_date_time(out, self.0);
        out.push(b'Z');
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

    /// Appends the time as the apiserver writes it, without quotes.
    pub fn write(self, out: &mut Vec<u8>) {
        append_date_time(out, self.0.div_euclid(1_000_000));
        out.push(b'.');
        append_digits(out, self.0.rem_euclid(1_000_000), 6);
        out.push(b'Z');
    }

    /// Returns the whole microsecond at or before `nanos` (unix nanoseconds).
    pub const fn from_unix_nanos(nanos: i64) -> Self {
        Self(nanos.div_euclid(1_000))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = Vec::with_capacity(20);
        self.write(&mut text);
        f.write_str(&String::from_utf8_lossy(&text))
    }
}

impl fmt::Display for MicroTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = Vec::with_capacity(27);
        self.write(&mut text);
        f.write_str(&String::from_utf8_lossy(&text))
    }
}

fn append_date_time(out: &mut Vec<u8>, seconds: i64) {
    let (year, month, day) = civil_from_days(seconds.div_euclid(86_400));
    let second_of_day = seconds.rem_euclid(86_400);
    append_digits(out, year, 4);
    let [[m1, m2], [d1, d2]] = [month, day].map(two_digits);
    let time = [second_of_day / 3_600, second_of_day / 60 % 60, second_of_day % 60];
    let [[h1, h2], [n1, n2], [s1, s2]] = time.map(two_digits);
    out.extend_from_slice(&[b'-', m1, m2, b'-', d1, d2, b'T', h1, h2, b':', n1, n2, b':', s1, s2]);
}

/// Returns the digits of a number below 100.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "two digits")]
const fn two_digits(number: i64) -> [u8; 2] {
    let number = number as u8;
    [b'0' + number / 10, b'0' + number % 10]
}

/// Appends a number with leading zeros up to `width`. A longer number is written in full.
fn append_digits(out: &mut Vec<u8>, number: i64, width: usize) {
    let mut digits = [b'0'; 20];
    let mut rest = number.unsigned_abs();
    let mut used = 0;
    for digit in digits.iter_mut().rev() {
        if rest == 0 && used >= width {
            break;
        }
        *digit = b'0' + u8::try_from(rest % 10).unwrap_or_default();
        rest /= 10;
        used += 1;
    }
    if number < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(digits.get(digits.len() - used..).unwrap_or_default());
}

/// Converts days since 1970-01-01 to a proleptic Gregorian date (Howard Hinnant's `civil_from_days`).
const fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + if month <= 2 { 1 } else { 0 };
    (year, month, day)
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
        assert_eq!(Time(253_402_300_800).to_string(), "10000-01-01T00:00:00Z");
        assert_eq!(Time(-62_167_219_201).to_string(), "-0001-12-31T23:59:59Z");
        assert_eq!(Time(951_782_400).to_string(), "2000-02-29T00:00:00Z");
    }
}
