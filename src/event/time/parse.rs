//! RFC 3339, read as Go's `time.Parse` reads it with the apiserver's two layouts, errors word for word. Mirrors
//! `time/format.go`.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use super::TimeError;

/// Which of the two layouts the API asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// `time.RFC3339`: a fraction may stand there, of any length, after a dot or a comma.
    Seconds,
    /// `metav1.RFC3339Micro`: exactly six digits of fraction must stand there.
    Micros,
}

impl Layout {
    const fn text(self) -> &'static str {
        match self {
            Self::Seconds => "2006-01-02T15:04:05Z07:00",
            Self::Micros => "2006-01-02T15:04:05.000000Z07:00",
        }
    }
}

/// Why an element did not parse.
enum Fault {
    /// `cannot parse "rest" as "element"`.
    Bad { element: &'static str, rest: Vec<u8> },
    /// `month out of range` and the like.
    Message(String),
}

/// Seconds since 1970 and microseconds of the second.
pub(super) fn parse(text: &str, layout: Layout) -> Result<(i64, i64), TimeError> {
    if let Some(parsed) = plain(text.as_bytes(), layout) {
        return Ok(parsed);
    }
    let mut parser = Parser { rest: text.as_bytes() };
    parser.time(layout).map_err(|fault| {
        let value = quote(text.as_bytes());
        TimeError(match fault {
            Fault::Bad { element, rest } => format!(
                "parsing time {value} as {}: cannot parse {} as \"{element}\"",
                quote(layout.text().as_bytes()),
                quote(&rest)
            ),
            Fault::Message(message) => format!("parsing time {value}: {message}"),
        })
    })
}

/// Whether a text that parses is how its time is written: in UTC, each part with all its digits, and not zero, which is written as
/// `null`.
pub(super) fn is_as_written(text: &str, layout: Layout) -> bool {
    let [_, _, _, _, b'-', _, _, b'-', _, _, b'T', _, _, b':', _, _, b':', _, _, fraction @ ..] = text.as_bytes()
    else {
        return false;
    };
    let is_whole = match layout {
        Layout::Seconds => fraction == b"Z",
        Layout::Micros => matches!(fraction, [b'.', _, _, _, _, _, _, b'Z']),
    };
    is_whole && !text.starts_with("0001-01-01T00:00:00")
}

/// A time in UTC that is written just as the layout is, with nothing out of range: what Go's clients send.
fn plain(text: &[u8], layout: Layout) -> Option<(i64, i64)> {
    let (date_time, fraction) = text.split_at_checked(19)?;
    let date_time = <&[u8; 19]>::try_from(date_time).ok()?;
    let &[y1, y2, y3, y4, b'-', mo1, mo2, b'-', d1, d2, b'T', h1, h2, b':', m1, m2, b':', s1, s2] = date_time else {
        return None;
    };
    if ![y1, y2, y3, y4, mo1, mo2, d1, d2, h1, h2, m1, m2, s1, s2].iter().all(u8::is_ascii_digit) {
        return None;
    }
    let two = |tens: u8, units: u8| i64::from(tens & 15).saturating_mul(10).saturating_add(i64::from(units & 15));
    let year = two(y1, y2).saturating_mul(100).saturating_add(two(y3, y4));
    let (month, day, hour, minute, second) = (two(mo1, mo2), two(d1, d2), two(h1, h2), two(m1, m2), two(s1, s2));
    let is_time = (1..=12).contains(&month)
        && (1..=days_in(month, year)).contains(&day)
        && hour <= 23
        && minute <= 59
        && second <= 59;
    let micros = match (layout, fraction) {
        (Layout::Seconds, b"Z") => 0,
        (Layout::Micros, &[b'.', a, b, c, d, e, f, b'Z']) if [a, b, c, d, e, f].iter().all(u8::is_ascii_digit) => {
            let upper = two(a, b).saturating_mul(100).saturating_add(two(c, d));
            upper.saturating_mul(100).saturating_add(two(e, f))
        }
        _ => return None,
    };
    is_time.then(|| (seconds(year, month, day, hour, minute, second), micros))
}

/// A date and time, all in range, to seconds since 1970.
const fn seconds(year: i64, month: i64, day: i64, hour: i64, minute: i64, second: i64) -> i64 {
    let of_day = hour.saturating_mul(3_600).saturating_add(minute.saturating_mul(60)).saturating_add(second);
    days_from_civil(year, month, day).saturating_mul(86_400).saturating_add(of_day)
}

struct Parser<'t> {
    rest: &'t [u8],
}

impl<'t> Parser<'t> {
    fn bad<T>(&self, element: &'static str) -> Result<T, Fault> {
        Err(Fault::Bad { element, rest: self.rest.to_vec() })
    }

    fn digit(&self, index: usize) -> Option<i64> {
        let byte = self.rest.get(index).copied().filter(u8::is_ascii_digit)?;
        Some(i64::from(byte & 15))
    }

    fn take(&mut self, bytes: usize) -> &'t [u8] {
        let (taken, rest) = self.rest.split_at_checked(bytes).unwrap_or((self.rest, &[]));
        self.rest = rest;
        taken
    }

    fn separator(&mut self, separator: &'static str) -> Result<(), Fault> {
        let Some(rest) = self.rest.strip_prefix(separator.as_bytes()) else { return self.bad(separator) };
        self.rest = rest;
        Ok(())
    }

    fn time(&mut self, layout: Layout) -> Result<(i64, i64), Fault> {
        let year = self.year()?;
        self.separator("-")?;
        let month = self.two_digits("01")?;
        within(month, 1..=12, "month")?;
        self.separator("-")?;
        let day = self.two_digits("02")?;
        self.separator("T")?;
        let hour = self.hour()?;
        within(hour, 0..=23, "hour")?;
        self.separator(":")?;
        let minute = self.two_digits("04")?;
        within(minute, 0..=59, "minute")?;
        self.separator(":")?;
        let second = self.two_digits("05")?;
        within(second, 0..=59, "second")?;
        let micros = match layout {
            Layout::Seconds => {
                self.any_fraction();
                0
            }
            Layout::Micros => self.micros()?,
        };
        let offset = self.zone()?;
        if !self.rest.is_empty() {
            return Err(Fault::Message(format!("extra text: {}", quote(self.rest))));
        }
        within(day, 1..=days_in(month, year), "day")?;
        Ok((seconds(year, month, day, hour, minute, second).saturating_sub(offset), micros))
    }

    fn year(&mut self) -> Result<i64, Fault> {
        match (self.digit(0), self.digit(1), self.digit(2), self.digit(3)) {
            (Some(a), Some(b), Some(c), Some(d)) => {
                self.take(4);
                Ok([b, c, d].into_iter().fold(a, |number, digit| number.saturating_mul(10).saturating_add(digit)))
            }
            _ => self.bad("2006"),
        }
    }

    fn two_digits(&mut self, element: &'static str) -> Result<i64, Fault> {
        let (Some(tens), Some(units)) = (self.digit(0), self.digit(1)) else { return self.bad(element) };
        self.take(2);
        Ok(tens.saturating_mul(10).saturating_add(units))
    }

    /// Go's layout element for hours also takes one digit.
    fn hour(&mut self) -> Result<i64, Fault> {
        if let (Some(hour), None) = (self.digit(0), self.digit(1)) {
            self.take(1);
            return Ok(hour);
        }
        self.two_digits("15")
    }

    fn any_fraction(&mut self) {
        if matches!(self.rest.first(), Some(b'.' | b',')) && self.digit(1).is_some() {
            self.take(1);
            let digits = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            self.take(digits);
        }
    }

    fn micros(&mut self) -> Result<i64, Fault> {
        const ELEMENT: &str = ".000000";
        let Some((b'.' | b',', digits)) = self.rest.get(..7).and_then(<[u8]>::split_first) else {
            return self.bad(ELEMENT);
        };
        // Go's `atoi` takes a sign here, so that ".+12345" is a fraction; a negative one is out of range.
        let (negative, digits) = match digits.split_first() {
            Some((b'+', digits)) => (false, digits),
            Some((b'-', digits)) => (true, digits),
            _ => (false, digits),
        };
        let mut number = 0_i64;
        for digit in digits {
            if !digit.is_ascii_digit() {
                return self.bad(ELEMENT);
            }
            number = number.saturating_mul(10).saturating_add(i64::from(digit & 15));
        }
        if negative && number > 0 {
            return Err(Fault::Message("fractional second out of range".to_owned()));
        }
        self.take(7);
        Ok(number)
    }

    /// The offset from UTC in seconds.
    fn zone(&mut self) -> Result<i64, Fault> {
        const ELEMENT: &str = "Z07:00";
        if self.rest.first() == Some(&b'Z') {
            self.take(1);
            return Ok(0);
        }
        let Some(&[sign, _, _, b':', _, _]) = self.rest.get(..6).and_then(|zone| <&[u8; 6]>::try_from(zone).ok())
        else {
            return self.bad(ELEMENT);
        };
        let number = |tens: Option<i64>, units: Option<i64>| Some(tens?.saturating_mul(10).saturating_add(units?));
        let hours = number(self.digit(1), self.digit(2));
        let minutes = number(self.digit(4), self.digit(5));
        // Go asks for at most 24 and 60, both included, and looks at the ranges before the sign.
        if hours.is_some_and(|hours| hours > 24) {
            return Err(Fault::Message("time zone offset hour out of range".to_owned()));
        }
        let (Some(hours), Some(minutes)) = (hours, minutes) else { return self.bad(ELEMENT) };
        within(minutes, 0..=60, "time zone offset minute")?;
        let offset = hours.saturating_mul(3_600).saturating_add(minutes.saturating_mul(60));
        let signed = match sign {
            b'+' => offset,
            b'-' => offset.saturating_neg(),
            _ => return self.bad(ELEMENT),
        };
        self.take(6);
        Ok(signed)
    }
}

fn within(number: i64, range: std::ops::RangeInclusive<i64>, what: &str) -> Result<(), Fault> {
    if range.contains(&number) { Ok(()) } else { Err(Fault::Message(format!("{what} out of range"))) }
}

const fn days_in(month: i64, year: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// A proleptic Gregorian date to days since 1970-01-01 (Howard Hinnant's `days_from_civil`).
#[expect(clippy::arithmetic_side_effects, reason = "year is at most 9999, month and day are in range")]
const fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let shifted_year = if month <= 2 { year - 1 } else { year };
    let era = shifted_year.div_euclid(400);
    let year_of_era = shifted_year.rem_euclid(400);
    let shifted_month = (month + 9) % 12;
    let day_of_year = (153 * shifted_month + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// The `time` package's own quoting: what is not plain ASCII is shown byte by byte.
fn quote(text: &[u8]) -> String {
    let mut quoted = String::from("\"");
    for &byte in text {
        match byte {
            b'"' | b'\\' => {
                quoted.push('\\');
                quoted.push(char::from(byte));
            }
            b' '..=0x7f => quoted.push(char::from(byte)),
            _ => {
                quoted.push_str(r"\x");
                quoted.push_str(&format!("{byte:02x}"));
            }
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{MicroTime, Time};
    use super::*;

    proptest! {
        #[test]
        fn the_plain_way_is_gos_way(
            text in "[0-9]{3}[0-9/:]-[01][0-9]-[0-3][0-9/]T[0-2][0-9]:[0-6][0-9]:[0-6][0-9]([.,][0-9+-][0-9]{5})?(Z|[+-]0[0-9]:00|)",
        ) {
            for layout in [Layout::Seconds, Layout::Micros] {
                if let Some(parsed) = plain(text.as_bytes(), layout) {
                    let slow = Parser { rest: text.as_bytes() }.time(layout).ok();
                    prop_assert_eq!(Some(parsed), slow, "{}", text);
                }
            }
        }

        #[test]
        fn every_time_that_is_written_is_plain(micros in MicroTime::ZERO.0..253_402_300_800_000_000_i64) {
            let micro_time = MicroTime(micros);
            prop_assert_eq!(
                plain(micro_time.to_string().as_bytes(), Layout::Micros),
                Some((micros.div_euclid(1_000_000), micros.rem_euclid(1_000_000)))
            );
            let time = Time(micros.div_euclid(1_000_000));
            prop_assert_eq!(plain(time.to_string().as_bytes(), Layout::Seconds), Some((time.0, 0)));
        }
    }

    #[test]
    fn seconds_are_read_with_any_fraction_and_offset() {
        let check = |text: &str, shown: &str| assert_eq!(Time::parse(text).unwrap().to_string(), shown, "{text}");
        check("2024-05-01T10:00:00Z", "2024-05-01T10:00:00Z");
        check("2024-05-01T10:00:00.999999999Z", "2024-05-01T10:00:00Z");
        check("2024-05-01T10:00:00,5Z", "2024-05-01T10:00:00Z");
        check("2024-05-01T1:00:00Z", "2024-05-01T01:00:00Z");
        check("2024-05-01T10:00:00+02:30", "2024-05-01T07:30:00Z");
        check("2024-02-29T23:00:00-24:60", "2024-03-02T00:00:00Z");
        check("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z");
        check("9999-12-31T23:59:59Z", "9999-12-31T23:59:59Z");
    }

    #[test]
    fn micros_need_six_digits() {
        let check = |text: &str, shown: &str| assert_eq!(MicroTime::parse(text).unwrap().to_string(), shown, "{text}");
        check("2024-05-01T10:00:00.123456Z", "2024-05-01T10:00:00.123456Z");
        check("1969-12-31T23:59:59.999999Z", "1969-12-31T23:59:59.999999Z");
        check("2024-05-01T10:00:00.000001-07:00", "2024-05-01T17:00:00.000001Z");
        check("0001-01-01T00:00:00.000000Z", "0001-01-01T00:00:00.000000Z");
    }

    #[test]
    fn faults_are_told_as_go_tells_them() {
        let seconds = |text: &str, fault: &str| {
            assert_eq!(Time::parse(text).unwrap_err().to_string(), format!("parsing time {fault}"), "{text}");
        };
        seconds("", r#""" as "2006-01-02T15:04:05Z07:00": cannot parse "" as "2006""#);
        seconds("2024-05-01", r#""2024-05-01" as "2006-01-02T15:04:05Z07:00": cannot parse "" as "T""#);
        seconds(
            "2024-05-01T10:00:00",
            r#""2024-05-01T10:00:00" as "2006-01-02T15:04:05Z07:00": cannot parse "" as "Z07:00""#,
        );
        seconds("2016-12-31T23:59:60Z", r#""2016-12-31T23:59:60Z": second out of range"#);
        seconds("2023-02-29T00:00:00Z", r#""2023-02-29T00:00:00Z": day out of range"#);
        seconds("2024-13-01T00:00:00Z", r#""2024-13-01T00:00:00Z": month out of range"#);
        seconds("2024-05-01T10:00:00Zx", r#""2024-05-01T10:00:00Zx": extra text: "x""#);
        seconds("2024-05-01T10:00:00+25:00", r#""2024-05-01T10:00:00+25:00": time zone offset hour out of range"#);
        seconds("é", r#""\xc3\xa9" as "2006-01-02T15:04:05Z07:00": cannot parse "\xc3\xa9" as "2006""#);
        let micros = |text: &str, rest: &str| {
            let told = MicroTime::parse(text).unwrap_err().to_string();
            assert!(told.ends_with(&format!("as \"2006-01-02T15:04:05.000000Z07:00\": cannot parse {rest}")), "{told}");
        };
        micros("2024-05-01T10:00:00Z", r#""Z" as ".000000""#);
        micros("2024-05-01T10:00:00.123Z", r#"".123Z" as ".000000""#);
        micros("2024-05-01T10:00:00.123456789Z", r#""789Z" as "Z07:00""#);
    }
}
