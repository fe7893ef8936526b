//! Parser of RFC 3339, like Go's `time.Parse` with the apiserver's two layouts. Mirrors `time/format.go`.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::str::FromStr;

use jiff::civil::DateTime;

use super::EPOCH;

/// The layouts of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// `time.RFC3339`: an optional fraction of any length, after a dot or a comma.
    Seconds,
    /// `metav1.RFC3339Micro`: a fraction of exactly six digits.
    Micros,
}

/// LIMIT: digits of a year; Go's last one is 292277026596.
const YEAR_DIGITS_MAX: usize = 12;
/// After so many years the calendar repeats.
const ERA_YEARS: i64 = 400;
const ERA_SECONDS: i64 = 146_097 * 86_400;

/// Returns seconds since 1970 and microseconds of the second.
pub(super) fn parse(text: &str, layout: Layout) -> Option<(i64, i64)> {
    let mut parser = Parser { rest: text.as_bytes() };
    let year = parser.year()?;
    parser.byte(b'-')?;
    let month = parser.number(2)?;
    parser.byte(b'-')?;
    let day = parser.number(2)?;
    parser.byte(b'T')?;
    // Go's layout element for hours also accepts one digit.
    let hour = parser.number(2).or_else(|| parser.number(1))?;
    parser.byte(b':')?;
    let minute = parser.number(2)?;
    parser.byte(b':')?;
    let second = parser.number(2)?;
    let micros = match layout {
        Layout::Seconds => {
            parser.skip_fraction();
            0
        }
        Layout::Micros => parser.micros()?,
    };
    let offset = parser.zone()?;
    // jiff has fewer years, and the calendar repeats.
    let year_of_era = i16::try_from(year.rem_euclid(ERA_YEARS)).ok()?;
    let of_era = DateTime::new(year_of_era, month, day, hour, minute, second, 0).ok()?.duration_since(EPOCH).as_secs();
    let seconds = year.div_euclid(ERA_YEARS).saturating_mul(ERA_SECONDS).saturating_add(of_era);
    parser.rest.is_empty().then_some((seconds.saturating_sub(offset), micros))
}

struct Parser<'t> {
    rest: &'t [u8],
}

impl Parser<'_> {
    fn byte(&mut self, wanted: u8) -> Option<()> {
        self.rest = self.rest.strip_prefix(&[wanted])?;
        Some(())
    }

    /// Parses a number of this many digits.
    fn number<N: FromStr>(&mut self, digits: usize) -> Option<N> {
        let (number, rest) = self.rest.split_at_checked(digits)?;
        if !number.iter().all(u8::is_ascii_digit) {
            return None;
        }
        self.rest = rest;
        std::str::from_utf8(number).ok()?.parse().ok()
    }

    /// Parses the year; also one before 0 or after 9999, as Go writes it.
    // DIFFERENCE(apiserver): Go does not read what it has written there. One such event of another client would make a
    // whole list unreadable.
    fn year(&mut self) -> Option<i64> {
        let is_negative = self.byte(b'-').is_some();
        let digits = self.rest.iter().position(|byte| !byte.is_ascii_digit())?;
        let year: i64 = self.number(digits).filter(|_| (4..=YEAR_DIGITS_MAX).contains(&digits))?;
        Some(if is_negative { year.saturating_neg() } else { year })
    }

    fn skip_fraction(&mut self) {
        if let [b'.' | b',', digits @ ..] = self.rest
            && digits.first().is_some_and(u8::is_ascii_digit)
        {
            let end = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
            self.rest = digits.get(end..).unwrap_or_default();
        }
    }

    fn micros(&mut self) -> Option<i64> {
        let [b'.' | b',', digits @ ..] = self.rest else { return None };
        let (digits, rest) = digits.split_at_checked(6)?;
        self.rest = rest;
        // Go accepts a sign here too: ".+12345" is a fraction, and a negative one is out of range.
        std::str::from_utf8(digits).ok()?.parse().ok().filter(|micros| *micros >= 0)
    }

    /// Parses the offset from UTC, in seconds. Go allows hours up to 24 and minutes up to 60.
    fn zone(&mut self) -> Option<i64> {
        if self.byte(b'Z').is_some() {
            return Some(0);
        }
        let sign = match self.rest.first()? {
            b'+' => 1,
            b'-' => -1_i64,
            _ => return None,
        };
        self.rest = self.rest.get(1..)?;
        let hours: i64 = self.number(2).filter(|hours| *hours <= 24)?;
        self.byte(b':')?;
        let minutes: i64 = self.number(2).filter(|minutes| *minutes <= 60)?;
        Some(hours.saturating_mul(3_600).saturating_add(minutes.saturating_mul(60)).saturating_mul(sign))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{MicroTime, Time};

    proptest! {
        #[test]
        fn every_time_that_is_written_is_read(micros in MicroTime::ZERO.0..253_402_300_800_000_000_i64) {
            let micro_time = MicroTime(micros);
            prop_assert_eq!(MicroTime::parse(&micro_time.to_string()), Ok(micro_time));
            let time = Time(micros.div_euclid(1_000_000));
            prop_assert_eq!(Time::parse(&time.to_string()), Ok(time));
        }
    }

    /// `tests/api` replays other times.
    #[test]
    fn oddities_of_go_are_read() {
        let check = |text: &str, shown: &str| assert_eq!(Time::parse(text).unwrap().to_string(), shown, "{text}");
        check("2024-05-01T1:00:00Z", "2024-05-01T01:00:00Z");
        check("2024-02-29T23:00:00-24:60", "2024-03-02T00:00:00Z");
        let micros = MicroTime::parse("2024-05-01T10:00:00,+00007Z").unwrap();
        assert_eq!(micros.to_string(), "2024-05-01T10:00:00.000007Z");
    }

    /// Fault: such a time was written so that nothing could read it, not even the spool.
    #[test]
    fn times_outside_the_years_0_to_9999_are_moved_to_the_ends() {
        let check = |text: &str, shown: &str| assert_eq!(Time::parse(text).unwrap().to_string(), shown, "{text}");
        check("9999-12-31T23:59:59-00:01", "9999-12-31T23:59:59Z");
        check("0000-01-01T00:00:00+24:60", "0000-01-01T00:00:00Z");
        // As Go writes events of other clients.
        check("10000-02-29T00:00:00Z", "9999-12-31T23:59:59Z");
        check("292277026596-12-04T15:30:07Z", "9999-12-31T23:59:59Z");
        check("-0001-12-31T23:59:59Z", "0000-01-01T00:00:00Z");
        check("-0004-02-29T00:00:00Z", "0000-01-01T00:00:00Z");
        check("-292277022399-01-01T00:00:00Z", "0000-01-01T00:00:00Z");
        let micros = |text: &str| MicroTime::parse(text).unwrap().to_string();
        assert_eq!(micros("9999-12-31T23:59:59.000001-01:00"), "9999-12-31T23:59:59.999999Z");
        assert_eq!(micros("0000-01-01T00:00:00.000001+01:00"), "0000-01-01T00:00:00.000000Z");
        assert_eq!(micros("999999999999-01-01T00:00:00.000001Z"), "9999-12-31T23:59:59.999999Z");
    }

    #[test]
    fn what_go_does_not_take_is_no_time() {
        for text in [
            "2024-05-01 10:00:00Z",
            "2023-02-29T00:00:00Z",
            "2024-13-01T00:00:00Z",
            "2024-00-01T00:00:00Z",
            "2024-05-00T00:00:00Z",
            "2024-05-01T24:00:00Z",
            "2024-05-01T10:60:00Z",
            "2024-05-01T10:00:00Zx",
            "2024-05-01T10:00:00.Z",
            "2024-05-01T10:00:00+25:00",
            "2024-05-01T10:00:00+01:61",
            "2024-05-01T10:00:00+0100",
            "2024-5-01T10:00:00Z",
            "24-05-01T10:00:00Z",
            "--2024-05-01T10:00:00Z",
            "é",
        ] {
            assert_eq!(
                Time::parse(text).unwrap_err().to_string(),
                format!("{text:?} is not a time such as 2026-01-02T15:04:05Z")
            );
        }
        let error = MicroTime::parse("2024-05-01T10:00:00.-00001Z").unwrap_err().to_string();
        assert_eq!(error, "\"2024-05-01T10:00:00.-00001Z\" is not a time such as 2026-01-02T15:04:05.000000Z");
    }
}
