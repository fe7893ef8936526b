//! Detects the format of a batch and the API group of its events from their text.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use crate::event::ApiGroup;

/// LIMIT: bytes of a batch that are searched for its format.
const LOOK_BYTES: usize = 4096;

/// Whether a body is one document: an array, or an object whose kind is `EventList` or `List`; `None` while it is too
/// short to decide.
pub(super) fn is_document(beginning: &[u8]) -> Option<bool> {
    let text = beginning.trim_ascii_start();
    let text = text.get(..LOOK_BYTES).unwrap_or(text);
    match text.first()? {
        b'[' => Some(true),
        b'{' => {
            // The first line states the kind of a list, complete or not.
            let first_line = text.split(|byte| *byte == b'\n').next().unwrap_or(text);
            let says = |text: &[u8]| memchr::memmem::find(first_line, text).is_some();
            if says(b"\"EventList\"") || says(b"\"kind\":\"List\"") {
                return Some(true);
            }
            // The complete first line of an indented document is a single brace.
            if first_line.len() < text.len() && first_line.trim_ascii() == b"{" {
                return Some(true);
            }
            (text.contains(&b'\n') || text.len() == LOOK_BYTES).then_some(false)
        }
        _ => Some(false),
    }
}

/// Returns the group that an event states, or `otherwise` if it states none, like the items of a list.
pub(super) fn group_of(text: &[u8], otherwise: ApiGroup) -> ApiGroup {
    static EVENTS: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"events.k8s.io/v1\""));
    static OLD_STYLE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"involvedObject\""));
    // In this order, because most events are old-style and have this member early.
    if OLD_STYLE.find(text).is_some() {
        ApiGroup::Core
    } else if EVENTS.find(text).is_some() {
        ApiGroup::Events
    } else {
        otherwise
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_told_from_lines_by_their_beginning() {
        for (beginning, document) in [
            ("  [", Some(true)),
            (r#"{"kind":"EventList","items":["#, Some(true)),
            (r#"{"apiVersion":"v1","items":[],"kind":"List"}"#, Some(true)),
            ("{\n  \"kind\": \"EventList\"", Some(true)),
            ("{\"reason\":\"R\"}\n", Some(false)),
            (r#"{"reason":"R"}"#, None),
            // The first byte of any object.
            ("{", None),
            ("{\r\n", Some(true)),
            ("", None),
            ("x", Some(false)),
        ] {
            assert_eq!(is_document(beginning.as_bytes()), document, "{beginning}");
        }
    }
}
