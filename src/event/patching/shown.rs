//! Values as Go's `%v` shows them, which is how refusals quote a patch: `map[count:2 metadata:map[labels:map[a:1]]]`.

use serde_json::{Number, Value};

/// The value, members in alphabetical order.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::Bool(truth) => truth.to_string(),
        Value::Number(number) => shown_number(number),
        Value::String(text) => text.clone(),
        Value::Array(elements) => {
            let elements: Vec<String> = elements.iter().map(shown).collect();
            format!("[{}]", elements.join(" "))
        }
        Value::Object(members) => {
            let mut members: Vec<(&String, &Value)> = members.iter().collect();
            members.sort_by_key(|(name, _)| *name);
            let members: Vec<String> =
                members.into_iter().map(|(name, value)| format!("{name}:{}", shown(value))).collect();
            format!("map[{}]", members.join(" "))
        }
    }
}

/// Go's `%v` of a float64 is `%g` with as many digits as it takes, and an exponent only below 1e-4 and from 1e6 on.
fn shown_number(number: &Number) -> String {
    let float = match number.as_f64() {
        Some(float) if !number.is_i64() => float,
        _ => return number.to_string(),
    };
    if float == 0.0 || (1e-4..1e6).contains(&float.abs()) {
        return float.to_string();
    }
    let text = format!("{float:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    format!("{digits}e{sign}{exponent:0>2}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_look_as_in_go() {
        let check = |value: Value, expected: &str| assert_eq!(shown(&value), expected);
        check(json!({"b": {"z": [1, "x y", null, true]}, "a": 2}), "map[a:2 b:map[z:[1 x y <nil> true]]]");
        check(
            json!([2.0, 2.5, -0.5, 0.0, 1e5, 1e6, 123_456_789.0, 1.5e-5, 0.0001, 1e100]),
            "[2 2.5 -0.5 0 100000 1e+06 1.23456789e+08 1.5e-05 0.0001 1e+100]",
        );
        check(json!([]), "[]");
    }
}
