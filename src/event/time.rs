//! The two time types of Kubernetes' API: seconds (`metav1.Time`) and microseconds (`metav1.MicroTime`).
//!
//! Reading follows Go's `time.Parse(time.RFC3339, …)` as the apiserver uses it; writing is always UTC. See
//! `k8s.io/apimachinery/pkg/apis/meta/v1/{time,micro_time}.go`.

use std::fmt;

/// `metav1.Time`: whole seconds since 1970, in UTC. Fractions are cut when read. The zero time (year 1) is `None` wherever
/// a time is optional.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub i64);

/// `metav1.MicroTime`: microseconds since 1970, in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MicroTime(pub i64);

/// Why a text is not a time; the text of Go's error is made by the decoder, which knows the layout it asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an RFC 3339 time")]
pub struct TimeError;

/// Seconds from 0001-01-01T00:00:00Z (Go's zero time) to 1970-01-01T00:00:00Z, negative.
pub(crate) const ZERO_TIME_SECONDS: i64 = -62_135_596_800;

impl Time {
    /// Go's zero time, `0001-01-01T00:00:00Z`, which the API treats as "not set".
    pub const ZERO: Self = Self(ZERO_TIME_SECONDS);

    /// The whole second at or before `nanos` (unix nanoseconds).
    #[must_use]
    pub const fn from_unix_nanos(nanos: i64) -> Self {
        Self(nanos.div_euclid(1_000_000_000))
    }
}

impl MicroTime {
    /// Go's zero time.
    pub const ZERO: Self = Self(ZERO_TIME_SECONDS * 1_000_000);

    /// The whole microsecond at or before `nanos` (unix nanoseconds).
    #[must_use]
    pub const fn from_unix_nanos(nanos: i64) -> Self {
        Self(nanos.div_euclid(1_000))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_date_time(f, self.0)?;
        f.write_str("Z")
    }
}

impl fmt::Display for MicroTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_date_time(f, self.0.div_euclid(1_000_000))?;
        write!(f, ".{:06}Z", self.0.rem_euclid(1_000_000))
    }
}

fn write_date_time(f: &mut fmt::Formatter<'_>, seconds: i64) -> fmt::Result {
    let (year, month, day) = civil_from_days(seconds.div_euclid(86_400));
    let second_of_day = seconds.rem_euclid(86_400);
    let (hour, minute, second) = (second_of_day / 3_600, second_of_day / 60 % 60, second_of_day % 60);
    write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")
}

/// Days since 1970-01-01 to a proleptic Gregorian date (Howard Hinnant's `civil_from_days`).
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
        assert_eq!(Time(951_782_400).to_string(), "2000-02-29T00:00:00Z");
    }
}
