//! Durations as Go writes them (`1h30m`, `500ms`), sizes as Kubernetes quantities (`256Mi`), and rates (`1/300`).

use std::time::Duration;

use jiff::fmt::friendly::{Designator, Spacing, SpanParser, SpanPrinter};

/// Writes durations with Go's units and without spaces.
const PRINTER: SpanPrinter = SpanPrinter::new().designator(Designator::HumanTime).spacing(Spacing::None);

const SIZE_UNITS: [(&str, u64); 8] = [
    ("Ti", 1 << 40),
    ("Gi", 1 << 30),
    ("Mi", 1 << 20),
    ("Ki", 1 << 10),
    ("T", 1_000_000_000_000),
    ("G", 1_000_000_000),
    ("M", 1_000_000),
    ("k", 1_000),
];

/// What [`parse_duration`] accepts, as a pattern for the schema: units from the largest to the smallest, each once, and a
/// fraction in the last number only.
pub(super) const DURATION: &str = concat!(
    r"^([0-9]+(\.[0-9]{1,9})?h|([0-9]+h)?([0-9]+(\.[0-9]{1,9})?m|([0-9]+m)?([0-9]+(\.[0-9]{1,9})?s|([0-9]+s)?",
    r"([0-9]+(\.[0-9]{1,9})?ms|([0-9]+ms)?([0-9]+(\.[0-9]{1,9})?us|([0-9]+us)?[0-9]+ns)))))$",
);

/// Parses numbers with units, such as `1h30m` or `1.5s`; `None` for anything else, also for a number without a unit.
/// jiff alone would also read spaces and words (`1 hour`), `1,500ms` as 1.5 ms, and `1:30:00` without units.
#[must_use]
pub fn parse_duration(text: &str) -> Option<Duration> {
    let is_plain = text.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | 'h' | 'm' | 's' | 'u' | 'n'));
    SpanParser::new().parse_unsigned_duration(text).ok().filter(|_| is_plain)
}

/// Whether YAML 1.1 would read the number as an octal one.
pub(super) fn is_octal(text: &str) -> bool {
    text.trim_start_matches(['+', '-'])
        .strip_prefix('0')
        .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// Returns the shortest text with whole numbers that [`parse_duration`] reads as `duration`.
pub(super) fn duration_text(duration: Duration) -> String {
    PRINTER.unsigned_duration_to_string(&duration)
}

/// Parses plain bytes or a quantity: `1024`, `256Mi`, `3M`.
pub(super) fn parse_size(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, suffix) = text.split_at_checked(end).filter(|_| !is_octal(text))?;
    let unit = match suffix {
        "" => 1,
        suffix => SIZE_UNITS.iter().find(|(name, _)| *name == suffix)?.1,
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}

/// Returns the text with the largest binary unit that divides `bytes`.
pub(super) fn size_text(bytes: u64) -> String {
    let fits = |unit: u64| bytes > 0 && bytes.checked_rem(unit) == Some(0);
    match SIZE_UNITS.iter().find(|(name, unit)| name.ends_with('i') && fits(*unit)) {
        Some((name, unit)) => format!("{}{name}", bytes.checked_div(*unit).unwrap_or(0)),
        None => bytes.to_string(),
    }
}

/// Parses a 32-bit rate as client-go holds it: a decimal number, or a fraction such as `1/300`, which is divided in 64
/// bits and rounded as Go's `float32(1. / 300.)`. Negative numbers, infinities and NaN are refused.
pub(super) fn parse_rate(text: &str) -> Option<f32> {
    let number = |text: &str| {
        let text = text.trim();
        let parsed = text.parse::<f64>().ok();
        parsed.filter(|number| !is_octal(text) && number.is_finite() && !number.is_sign_negative())
    };
    let rate = match text.split_once('/') {
        Some((above, below)) => narrow(number(above)? / number(below).filter(|below| *below > 0.0)?),
        // Parsed directly as 32 bits, because by way of 64 bits some texts would be rounded twice.
        None => number(text).and_then(|_| text.trim().parse::<f32>().ok())?,
    };
    rate.is_finite().then_some(rate)
}

#[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest 32-bit float, as Go's conversion does")]
const fn narrow(number: f64) -> f32 {
    number as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let rows = [
            ("1", Some(1)),
            ("3Mi", Some(3 << 20)),
            ("2k", Some(2000)),
            ("1Ti", Some(1 << 40)),
            ("3MiB", None),
            ("Mi", None),
            ("-1", None),
            ("1.5Gi", None),
            ("99999999999Ti", None),
            ("0100", None),
        ];
        for (text, bytes) in rows {
            assert_eq!(parse_size(text), bytes, "{text}");
        }
        assert_eq!(size_text(256 << 20), "256Mi");
        assert_eq!(size_text(1000), "1000");
        assert_eq!(size_text(0), "0");
    }

    #[test]
    fn rates() {
        assert_eq!(parse_rate("1/300"), Some(1.0 / 300.0));
        assert_eq!(parse_rate("0.0033333334"), Some(1.0 / 300.0));
        assert_eq!(parse_rate("0"), Some(0.0));
        assert_eq!(parse_rate("5"), Some(5.0));
        for text in
            ["-1", "-0", "NaN", "inf", ".inf", "1/0", "1/-3", "1e39", "", "/", "1/2/3", "infinity", "010", "1/010"]
        {
            assert_eq!(parse_rate(text), None, "{text}");
        }
    }

    /// Faults: `1,500ms` was 1.5 ms. The schema refused some that were read, and accepted some that were not.
    #[test]
    fn durations_are_numbers_with_short_units() {
        assert_eq!(parse_duration("1h30m"), Some(Duration::from_secs(5400)));
        assert_eq!(parse_duration("1.5s"), Some(Duration::from_millis(1500)));
        let schema = regex::Regex::new(DURATION).unwrap();
        let check = |text: &str, is_read: bool| {
            assert_eq!((parse_duration(text).is_some(), schema.is_match(text)), (is_read, is_read), "{text}");
        };
        let read = "1h|0s|1h30m|1h2m3s4ms5us6ns|1h6ns|1m1.5s|1.5h|2.25m|1.5ms|7.125us|90m";
        read.split('|').for_each(|text| check(text, true));
        let refused = "1,500ms|1h, 2m|00:01:00|PT1M|1d|-1s|+1s|5|| 1s|1 h|1hour|1min|1sec|1h 30m|30m1h|1.5h30m|1h1h|1.s\
            |.5s|1.5ns|1.0123456789s|1H|1µs|1s ago";
        refused.split('|').for_each(|text| check(text, false));
    }

    proptest::proptest! {
        #[test]
        fn texts_come_back(nanos: u64, bytes: u64) {
            let duration = Duration::from_nanos(nanos);
            proptest::prop_assert_eq!(parse_duration(&duration_text(duration)), Some(duration));
            proptest::prop_assert!(regex::Regex::new(DURATION).unwrap().is_match(&duration_text(duration)));
            proptest::prop_assert_eq!(parse_size(&size_text(bytes)), Some(bytes));
        }

        #[test]
        fn the_schema_accepts_the_durations_that_are_read(text in "([0-9]{1,2}(\\.[0-9])?(h|m|s|ms|us|ns)){0,3}") {
            let is_accepted = regex::Regex::new(DURATION).unwrap().is_match(&text);
            proptest::prop_assert_eq!(parse_duration(&text).is_some(), is_accepted);
        }

        #[test]
        fn any_text_is_answered(text: String) {
            let _ = (parse_duration(&text), parse_size(&text), parse_rate(&text));
        }
    }
}
