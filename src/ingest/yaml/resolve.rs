//! What an unquoted text means in YAML 1.1 (`resolve.go`).

use serde_json::Number;

/// The meaning of an unquoted text.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Plain {
    Null,
    Bool(bool),
    Number(Number),
    /// Text to a reader, but quoted by writers: a time, a number with colons, a number that JSON does not have.
    QuotedText,
    Text,
}

pub(super) fn resolve(text: &str) -> Plain {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Plain::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => return Plain::Bool(true),
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Plain::Bool(false);
        }
        ".nan" | ".NaN" | ".NAN" | ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" | "-.inf" | "-.Inf"
        | "-.INF" | "<<" => return Plain::QuotedText,
        _ => {}
    }
    if !text.starts_with(|first: char| first.is_ascii_digit() || matches!(first, '+' | '-' | '.')) {
        return Plain::Text;
    }
    if is_time(text) || is_base60(text) {
        return Plain::QuotedText;
    }
    number(&text.replace('_', ""))
}

fn number(text: &str) -> Plain {
    let (negative, digits) = match text.split_at_checked(1) {
        Some(("-", digits)) => (true, digits),
        Some(("+", digits)) => (false, digits),
        _ => (false, text),
    };
    let based = |prefixes: [&str; 2], radix| {
        prefixes.iter().find_map(|prefix| digits.strip_prefix(prefix)).map(|digits| (digits, radix))
    };
    let octal = || digits.strip_prefix('0').filter(|rest| !rest.is_empty()).map(|digits| (digits, 8));
    let (digits, radix) = based(["0x", "0X"], 16)
        .or_else(|| based(["0b", "0B"], 2))
        .or_else(|| based(["0o", "0O"], 8))
        .or_else(octal)
        .unwrap_or((digits, 10));
    let whole = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if whole && let Ok(value) = u64::from_str_radix(digits, radix) {
        let signed = if negative { 0_i64.checked_sub_unsigned(value).map(Number::from) } else { Some(value.into()) };
        return signed.map_or(Plain::QuotedText, Plain::Number);
    }
    if !is_float(text) {
        return Plain::Text;
    }
    text.parse().ok().and_then(Number::from_f64).map_or(Plain::QuotedText, Plain::Number)
}

/// `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`
fn is_float(text: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
    let text = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (mantissa, exponent) = text.split_once(['e', 'E']).map_or((text, None), |(left, right)| (left, Some(right)));
    let (whole, fraction) = mantissa.split_once('.').map_or((mantissa, None), |(left, right)| (left, Some(right)));
    let mantissa = match fraction {
        None => digits(whole),
        Some("") => digits(whole),
        Some(fraction) => (whole.is_empty() || digits(whole)) && digits(fraction),
    };
    mantissa && exponent.is_none_or(|exponent| digits(exponent.strip_prefix(['-', '+']).unwrap_or(exponent)))
}

/// `[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?`
fn is_base60(text: &str) -> bool {
    let text = text.strip_prefix(['-', '+']).unwrap_or(text);
    let text = text.split_once('.').map_or(text, |(left, _)| left);
    let mut parts = text.split(':');
    let head = parts.next().is_some_and(|head| head.bytes().all(|digit| digit.is_ascii_digit() || digit == b'_'));
    let mut rest = parts.peekable();
    head && rest.peek().is_some() && rest.all(|part| number_up_to(part, 59))
}

/// A date, or a date and a time of day, as `time.Parse` takes it.
fn is_time(text: &str) -> bool {
    let (date, clock) = text.split_once(['T', 't', ' ']).map_or((text, None), |(date, clock)| (date, Some(clock)));
    let mut parts = date.split('-');
    let year = parts.next().is_some_and(|year| year.len() == 4 && year.bytes().all(|digit| digit.is_ascii_digit()));
    let month = parts.next().is_some_and(|month| number_up_to(month, 12));
    let day = parts.next().is_some_and(|day| number_up_to(day, 31));
    year && month && day && parts.next().is_none() && clock.is_none_or(|clock| is_clock(clock, text.contains(' ')))
}

fn is_clock(clock: &str, bare: bool) -> bool {
    let zoned = clock.strip_suffix('Z').or_else(|| clock.split_once(['+', '-']).map(|(clock, _)| clock));
    let Some(clock) = (if bare { Some(clock) } else { zoned }) else { return false };
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let parts: Vec<&str> = clock.split(':').collect();
    let [hour, minute, second] = parts.as_slice() else { return false };
    let digits = !fraction.is_empty() && fraction.bytes().all(|digit| digit.is_ascii_digit());
    digits && number_up_to(hour, 23) && number_up_to(minute, 59) && number_up_to(second, 59)
}

fn number_up_to(text: &str, max: u8) -> bool {
    matches!(text.len(), 1 | 2)
        && text.bytes().all(|digit| digit.is_ascii_digit())
        && text.parse::<u8>().is_ok_and(|number| number <= max)
}
