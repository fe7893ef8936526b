//! Parser of RFC 3339, like Go's `time.Parse` with the apiserver's two layouts. Mirrors `time/format.go`.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

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

/// Returns seconds since 1970 and microseconds of the second.
pub(super) fn parse(text: &str, layout: Layout) -> Option<(i64, i64)> {
    let mut parser = Parser { rest: text.as_bytes() };
    let year = parser.year()?;
    parser.byte(b'-')?;
    let month = parser.number(2).filter(|month| (1..=12).contains(month))?;
    parser.byte(b'-')?;
    let day = parser.number(2).filter(|day| (1..=days_in(month, year)).contains(day))?;
    parser.byte(b'T')?;
    // Go's layout element for hours also accepts one digit.
    let hour = parser.number(2).or_else(|| parser.number(1)).filter(|hour| *hour <= 23)?;
    parser.byte(b':')?;
    let minute = parser.number(2).filter(|minute| *minute <= 59)?;
    parser.byte(b':')?;
    let second = parser.number(2).filter(|second| *second <= 59)?;
    let micros = match layout {
        Layout::Seconds => {
            parser.skip_fraction();
            0
        }
        Layout::Micros => parser.micros()?,
    };
    let offset = parser.zone()?;
    let of_day = hour.saturating_mul(3_600).saturating_add(minute.saturating_mul(60)).saturating_add(second);
    let seconds = days_from_civil(year, month, day).saturating_mul(86_400).saturating_add(of_day);
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
    fn number(&mut self, digits: usize) -> Option<i64> {
        let (number, rest) = self.rest.split_at_checked(digits)?;
        if !number.iter().all(u8::is_ascii_digit) {
            return None;
        }
        self.rest = rest;
        Some(number.iter().fold(0, |number, digit| number.saturating_mul(10).saturating_add(i64::from(digit & 15))))
    }

    /// Parses the year; also one before 0 or after 9999, as Go writes it.
    // DIFFERENCE(apiserver): Go does not read what it has written there. One such event of another client would make a
    // whole list unreadable.
    fn year(&mut self) -> Option<i64> {
        let is_negative = self.byte(b'-').is_some();
        let digits = self.rest.iter().position(|byte| !byte.is_ascii_digit())?;
        let year = self.number(digits).filter(|_| (4..=YEAR_DIGITS_MAX).contains(&digits))?;
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
        let hours = self.number(2).filter(|hours| *hours <= 24)?;
        self.byte(b':')?;
        let minutes = self.number(2).filter(|minutes| *minutes <= 60)?;
        Some(hours.saturating_mul(3_600).saturating_add(minutes.saturating_mul(60)).saturating_mul(sign))
    }
}

const fn days_in(month: i64, year: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Converts a proleptic Gregorian date to days since 1970-01-01 (Howard Hinnant's `days_from_civil`).
#[expect(clippy::arithmetic_side_effects, reason = "a year has at most 12 digits, month and day are in range")]
const fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let shifted_year = if month <= 2 { year - 1 } else { year };
    let era = shifted_year.div_euclid(400);
    let year_of_era = shifted_year.rem_euclid(400);
    let shifted_month = (month + 9) % 12;
    let day_of_year = (153 * shifted_month + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
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
