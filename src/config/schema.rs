//! The JSON schema of the configuration file, made from what the reader asks for: its keys, and the words in which it
//! says what is allowed.
//!
//! Editors and the Helm chart check a file with it before the program sees it. It refuses unknown keys, wrong types,
//! and numbers out of range. Ranges of durations, sizes and rates, and what does not go together, only the program
//! knows.

use serde_json::{Map, Value, json};

/// What the reader asks for at one path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Asked {
    /// A value; the words that say what is allowed.
    Value(Option<String>),
    /// A map with free keys, and what is allowed as its values.
    Entries(Option<String>),
    /// A list of sections, of this many at most.
    List(usize),
}

/// The schema of a file whose reader asks for this, in order of the reading.
pub(super) fn schema(asked: &[(String, Asked)]) -> Value {
    let mut root = section();
    for (path, asked) in asked {
        let mut at = &mut root;
        let mut keys = path.split('.').peekable();
        while let Some(key) = keys.next() {
            let (name, in_list) = key.strip_suffix("[]").map_or((key, false), |name| (name, true));
            let Some(Value::Object(properties)) = at.get_mut("properties") else { break };
            let member = properties.entry(name).or_insert_with(section);
            if keys.peek().is_none() {
                *member = match asked {
                    Asked::Value(allowed) => value(allowed.as_deref()),
                    Asked::Entries(allowed) => {
                        json!({ "type": "object", "additionalProperties": value(allowed.as_deref()) })
                    }
                    Asked::List(most) => json!({ "type": "array", "maxItems": most, "items": section() }),
                };
                break;
            }
            let next = if in_list { member.get_mut("items") } else { Some(member) };
            let Some(next) = next else { break };
            at = next;
        }
    }
    root
}

fn section() -> Value {
    json!({ "type": "object", "additionalProperties": false, "properties": {} })
}

/// The schema of a value of which `allowed` is allowed; any value where the words are of no known form.
fn value(allowed: Option<&str>) -> Value {
    let Some(allowed) = allowed else { return json!({}) };
    let mut schema = typed(allowed);
    schema.insert("description".to_owned(), json!(allowed));
    Value::Object(schema)
}

fn typed(allowed: &str) -> Map<String, Value> {
    let is_word = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    let schema = if let Some((first, number)) = allowed.split_once(", or a whole number from ") {
        let word = first.split(' ').next().unwrap_or_default();
        json!({ "anyOf": [{ "const": word }, whole(number)] })
    } else if let Some(number) = allowed.strip_prefix("a whole number from ") {
        whole(number)
    } else if allowed == "true, false" {
        json!({ "type": "boolean" })
    } else if allowed.split(", ").all(is_word) {
        let mut choices: Vec<Value> = allowed.split(", ").map(|choice| json!(choice)).collect();
        // YAML 1.1 makes truth values of these two.
        for (word, truth) in [("on", true), ("off", false)] {
            if choices.iter().any(|choice| choice == word) {
                choices.push(json!(truth));
            }
        }
        json!({ "enum": choices })
    } else if allowed.starts_with("a duration ") {
        json!({ "type": "string", "pattern": r"^([0-9]+(\.[0-9]+)?(h|m|s|ms|us|ns))+$" })
    } else if allowed.starts_with("bytes ") {
        json!({ "type": ["integer", "string"], "minimum": 0, "pattern": "^[0-9]+([KMGT]i|[kMGT])?$" })
    } else if allowed.starts_with("a rate ") {
        json!({ "type": ["number", "string"], "minimum": 0, "pattern": r"^[0-9.eE+-]+( */ *[0-9.eE+-]+)?$" })
    } else if allowed.starts_with("a text of ") || allowed.starts_with("a path") || allowed.starts_with("an IP address")
    {
        json!({ "type": "string", "minLength": 1 })
    } else if allowed.starts_with("a text or a list ") || allowed.starts_with("a list ") {
        json!({ "type": ["array", "string"], "items": { "type": "string" } })
    } else {
        json!({ "type": ["array", "boolean", "number", "string"] })
    };
    match schema {
        Value::Object(schema) => schema,
        _ => Map::new(),
    }
}

/// `A to B`
fn whole(range: &str) -> Value {
    let mut schema = Map::from_iter([("type".to_owned(), json!("integer"))]);
    let ends = range.split_once(" to ").map(|(least, most)| (least.parse::<u64>(), most.parse::<u64>()));
    if let Some((Ok(least), Ok(most))) = ends {
        schema.insert("minimum".to_owned(), json!(least));
        schema.insert("maximum".to_owned(), json!(most));
    }
    Value::Object(schema)
}
