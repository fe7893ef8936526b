//! The syntax of names, label keys and label values, with the apiserver's words for faults. Mirrors
//! `apimachinery/pkg/util/validation` and `pkg/api/validate/content`, without their regular expressions.

use crate::event::ApiGroup;

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and \
    must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and \
    end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const LABEL_KEY: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric \
    character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
    '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and \
    must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for \
    validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

/// LIMIT: bytes of a DNS subdomain.
const SUBDOMAIN_MAX: usize = 253;
/// LIMIT: bytes of a DNS label, of the name part of a label key and of a label value.
const LABEL_MAX: usize = 63;

/// Returns the faults of a name: core/v1 accepts any path segment, events.k8s.io/v1 a DNS subdomain.
pub(super) fn name(group: ApiGroup, name: &str) -> Vec<String> {
    match group {
        ApiGroup::Core if matches!(name, "." | "..") => vec![format!("may not be '{name}'")],
        ApiGroup::Core => path_segment(name),
        ApiGroup::Events => dns_subdomain(name),
    }
}

pub(super) fn name_prefix(group: ApiGroup, prefix: &str) -> Vec<String> {
    match group {
        ApiGroup::Core => path_segment(prefix),
        ApiGroup::Events => dns_subdomain(&mask_trailing_dash(prefix)),
    }
}

fn path_segment(name: &str) -> Vec<String> {
    ['/', '%'].into_iter().filter(|bad| name.contains(*bad)).map(|bad| format!("may not contain '{bad}'")).collect()
}

// COMPAT(apiserver): an `a` replaces the dash and the byte before it (`maskTrailingDash`), so that `x_-` is accepted. A
// multi-byte letter before the dash is refused, whole or truncated.
fn mask_trailing_dash(prefix: &str) -> std::borrow::Cow<'_, str> {
    let Some(before) = prefix.strip_suffix('-') else { return prefix.into() };
    let mut letters = before.chars();
    match letters.next_back() {
        None => prefix.into(),
        Some(last) if last.is_ascii() => format!("{}a", letters.as_str()).into(),
        Some(_) => before.into(),
    }
}

fn dns_subdomain(text: &str) -> Vec<String> {
    faults(text, SUBDOMAIN_MAX, "characters", (!is_subdomain(text)).then_some(SUBDOMAIN))
}

/// Returns the faults of a text of at most so many bytes, with that of its syntax.
fn faults(text: &str, most: usize, unit: &str, syntax: Option<&str>) -> Vec<String> {
    let length = (text.len() > most).then(|| format!("must be no more than {most} {unit}"));
    length.into_iter().chain(syntax.map(str::to_owned)).collect()
}

/// Returns the faults of a namespace's name.
pub fn dns_label(text: &str) -> Vec<String> {
    let syntax = || if is_subdomain(text) { "must not contain dots" } else { LABEL };
    faults(text, LABEL_MAX, "characters", (!is_label(text)).then(syntax))
}

/// Returns the faults of a qualified name: a label key, an annotation key, a reporting controller or a finalizer.
pub fn qualified_name(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let name = match text.split_once('/') {
        None => text,
        Some((_, rest)) if rest.contains('/') => {
            return vec![format!(
                "a valid label key {LABEL_KEY} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
        Some((prefix, name)) => {
            if prefix.is_empty() {
                faults.push("prefix part must be non-empty".to_owned());
            } else {
                // This rule says bytes where that of a DNS subdomain says characters.
                if prefix.len() > SUBDOMAIN_MAX {
                    faults.push(format!("prefix part must be no more than {SUBDOMAIN_MAX} bytes"));
                }
                if !is_subdomain(prefix) {
                    faults.push(format!("prefix part {SUBDOMAIN}"));
                }
            }
            name
        }
    };
    if name.is_empty() {
        faults.push("name part must be non-empty".to_owned());
    } else if name.len() > LABEL_MAX {
        faults.push(format!("name part must be no more than {LABEL_MAX} bytes"));
    }
    if !is_label_key(name) {
        faults.push(format!("name part {LABEL_KEY}"));
    }
    faults
}

/// Returns the faults of a label's value.
pub fn label_value(text: &str) -> Vec<String> {
    let is_valid = text.is_empty() || is_label_key(text);
    faults(text, LABEL_MAX, "bytes", (!is_valid).then_some(LABEL_VALUE))
}

fn is_label(text: &str) -> bool {
    let edge = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9');
    framed(text, edge, |byte| edge(byte) || *byte == b'-')
}

/// Whether the text is DNS labels separated by dots.
fn is_subdomain(text: &str) -> bool {
    text.split('.').all(is_label)
}

fn is_label_key(text: &str) -> bool {
    framed(text, u8::is_ascii_alphanumeric, |byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

/// Whether the text begins and ends with an `edge` byte and has only `inner` bytes.
fn framed(text: &str, edge: impl Fn(&u8) -> bool, inner: impl Fn(&u8) -> bool) -> bool {
    let text = text.as_bytes();
    text.first().is_some_and(&edge) && text.last().is_some_and(&edge) && text.iter().all(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `tests/api` replays other names.
    #[test]
    fn faults_have_the_apiservers_words() {
        let [fault] = &qualified_name("a/b/c")[..] else { unreachable!("one fault") };
        assert!(fault.starts_with("a valid label key must consist"), "{fault}");
        assert_eq!(dns_label("a.b"), ["must not contain dots"]);
        assert!(name_prefix(ApiGroup::Core, ".").is_empty());
    }

    #[test]
    fn a_dash_at_the_end_of_a_prefix_hides_one_ascii_letter() {
        assert!(name_prefix(ApiGroup::Events, "x_-").is_empty());
        assert_eq!(name_prefix(ApiGroup::Events, "-").len(), 1);
        assert_eq!(name_prefix(ApiGroup::Events, "é-").len(), 1);
    }
}
