//! Normalises messages: removes what changes between occurrences, that is numbers, digests and the suffixes that
//! Kubernetes gives names.

/// Characters of the suffixes that the API server and its controllers generate (`rand.SafeEncodeString` of
/// apimachinery).
const SUFFIX: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// Replaces each number, digest and generated suffix by `#`, so that messages that differ in nothing else are equal.
pub(super) fn normalized(message: &str) -> String {
    let mut text = String::with_capacity(message.len());
    let mut rest = message;
    while !rest.is_empty() {
        let (word, after) = split(rest, |character| character.is_ascii_alphanumeric());
        if is_digest(word) || text.ends_with('-') && is_suffix(word) {
            text.push('#');
        } else {
            without_numbers(word, &mut text);
        }
        let (between, next) = split(after, |character| !character.is_ascii_alphanumeric());
        // A fraction or an address is one number.
        if !(between == "." && text.ends_with('#') && next.starts_with(|first: char| first.is_ascii_digit())) {
            text.push_str(between);
        }
        rest = next;
    }
    text
}

/// Splits a text after its longest beginning of characters that `is_asked_for` accepts.
fn split(text: &str, is_asked_for: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|character| !is_asked_for(character)).unwrap_or(text.len()))
}

/// Whether a word consists of hexadecimal digits, is at least as long as a short commit hash, and contains a digit,
/// unlike English words.
fn is_digest(word: &str) -> bool {
    word.len() >= 7
        && word.bytes().all(|byte| byte.is_ascii_hexdigit())
        && word.bytes().any(|byte| byte.is_ascii_digit())
}

/// Whether a word can be the suffix of a Pod's name (5 characters) or of its ReplicaSet's name (8 to 10).
fn is_suffix(word: &str) -> bool {
    matches!(word.len(), 5 | 8..=10) && word.bytes().all(|byte| SUFFIX.contains(&byte))
}

/// Adds a word, with `#` for each number in it. A number that continues a preceding `#` adds nothing.
fn without_numbers(word: &str, text: &mut String) {
    for character in word.chars() {
        if !character.is_ascii_digit() {
            text.push(character);
        } else if !text.ends_with('#') {
            text.push('#');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_digests_and_suffixes_are_one_sign() {
        for (message, expected) in [
            ("", ""),
            ("Back-off restarting failed container", "Back-off restarting failed container"),
            ("took 1m30s, 97% of 12.5Gi", "took #m#s, #% of #Gi"),
            ("Pulled image app@sha256:0123456789abcdef in 3s", "Pulled image app@sha#:# in #s"),
            ("Created pod: web-5d4f8c7b9-x7k2p", "Created pod: web-#-#"),
            ("Created pod: web-bcdfg", "Created pod: web-#"),
            ("Created job hello-29071234", "Created job hello-#"),
            ("dead-beef defaced facade", "dead-beef defaced facade"),
            ("größer als 5 µs – 77", "größer als # µs – #"),
            ("web-0", "web-#"),
            ("pod 10.0.1.25:80 of v1. 2 left.", "pod #:# of v#. # left."),
        ] {
            assert_eq!(normalized(message), expected, "{message}");
            assert_eq!(normalized(expected), expected, "normalized twice");
        }
    }
}
