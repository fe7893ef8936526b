//! Detects the format of a batch and the API group of its events from their text.

use memchr::memmem;

use crate::event::ApiGroup;

/// LIMIT: bytes of a batch that are searched for its format.
const LOOK_BYTES: usize = 4096;

/// Whether a body is one document: an array, or a list; `None` while it is too short to decide.
pub(super) fn is_document(beginning: &[u8]) -> Option<bool> {
    let text = beginning.trim_ascii_start();
    let text = text.get(..LOOK_BYTES).unwrap_or(text);
    match text.first()? {
        b'[' => Some(true),
        b'{' => {
            // The first line, complete or not.
            let first_line = text.split(|byte| *byte == b'\n').next().unwrap_or(text);
            if is_list(first_line) {
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

/// Whether the beginning of an object has `items`, or the kind of a list, among its own members.
fn is_list(object: &[u8]) -> bool {
    let (mut depth, mut rest, mut name) = (0_u32, object, b"".as_slice());
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        match byte {
            b'{' | b'[' => depth = depth.saturating_add(1),
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                let Some(text) = until_quote(rest) else { return false };
                rest = rest.get(text.len().saturating_add(1)..).unwrap_or_default();
                let is_name = rest.trim_ascii_start().first() == Some(&b':');
                match text {
                    _ if depth != 1 => {}
                    b"items" if is_name => return true,
                    _ if is_name => name = text,
                    b"List" | b"EventList" if name == b"kind" => return true,
                    _ => {}
                }
            }
            _ => {}
        }
    }
    false
}

/// Returns a string's text up to its end; `None` if it is cut off.
fn until_quote(text: &[u8]) -> Option<&[u8]> {
    let mut escaped = false;
    let end = text.iter().position(|byte| {
        let ends = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        ends
    })?;
    text.get(..end)
}

/// Returns the group that an event states or whose members it has, or `otherwise`, as for the items of a list.
pub(super) fn group_of(text: &[u8], otherwise: ApiGroup) -> ApiGroup {
    let is_name_at = |end: usize| text.get(end..).is_some_and(|rest| rest.trim_ascii_start().first() == Some(&b':'));
    let names = |word: &[u8]| memmem::find_iter(text, word).any(|at| is_name_at(at.saturating_add(word.len())));
    // In this order, because most events are old-style and have this member early.
    if names(b"\"involvedObject\"") {
        ApiGroup::Core
    } else if memmem::find(text, b"\"events.k8s.io/v1\"").is_some() || names(b"\"regarding\"") {
        ApiGroup::Events
    } else {
        otherwise
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_show_the_group_and_equal_texts_do_not() {
        for (text, group) in [
            (r#"{"involvedObject" : {}}"#, ApiGroup::Core),
            (r#"{"note":"involvedObject","involvedObject":{},"reason":"regarding"}"#, ApiGroup::Core),
            // Fault: a value that was exactly a member's name showed the group.
            (r#"{"note":"involvedObject","regarding":{}}"#, ApiGroup::Events),
            (r#"{"apiVersion":"events.k8s.io/v1","note":"involvedObject"}"#, ApiGroup::Events),
            (r#"{"reason":"regarding"}"#, ApiGroup::Core),
        ] {
            assert_eq!(group_of(text.as_bytes(), ApiGroup::Core), group, "{text}");
        }
    }

    #[test]
    fn documents_are_told_from_lines_by_their_beginning() {
        for (beginning, document) in [
            ("  [", Some(true)),
            // Fault: only a kind in a certain format, on the first line, was one of a list.
            (r#"{"kind": "List""#, Some(true)),
            (r#"{"apiVersion":"v1","metadata":{"a":"]}\""},"items" : [{"reason":"R"}"#, Some(true)),
            ("{\"note\":\"items\",\"data\":[{\"items\":1},\"items\"],\"kind\":\"Event\"}\n", Some(false)),
            ("{\"involvedObject\":{\"kind\":\"List\"},\"reason\":\"EventList\"}\n{\"items\":1}", Some(false)),
            ("{\"reason\":\"\\\"items\\\":\"}\n", Some(false)),
            ("{\"reason\":\"R\n", Some(false)),
            (r#"{"reason":"R"}"#, None),
            ("{\r\n", Some(true)),
            ("", None),
            ("x", Some(false)),
        ] {
            assert_eq!(is_document(beginning.as_bytes()), document, "{beginning}");
        }
    }
}
