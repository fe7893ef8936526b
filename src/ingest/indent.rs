//! Indents compact JSON by two spaces per level, like Go's `json.MarshalIndent`.

/// Indents a document. It must be JSON without white space.
pub(super) fn indented(json: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(json.len().saturating_mul(2));
    let mut depth = 0_usize;
    let mut in_text = false;
    let mut escaped = false;
    let mut rest = json.iter().copied().peekable();
    while let Some(byte) = rest.next() {
        if in_text {
            in_text = escaped || byte != b'"';
            escaped = !escaped && byte == b'\\';
            out.push(byte);
            continue;
        }
        match byte {
            b'{' | b'[' if matches!(rest.peek(), Some(b'}' | b']')) => {
                out.push(byte);
                out.extend(rest.next());
            }
            b'{' | b'[' => {
                depth = depth.saturating_add(1);
                out.push(byte);
                line(depth, &mut out);
            }
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                line(depth, &mut out);
                out.push(byte);
            }
            b',' => {
                out.push(byte);
                line(depth, &mut out);
            }
            b':' => out.extend_from_slice(b": "),
            other => {
                in_text = other == b'"';
                out.push(other);
            }
        }
    }
    out
}

fn line(depth: usize, out: &mut Vec<u8>) {
    out.push(b'\n');
    out.resize(out.len().saturating_add(depth.saturating_mul(2)), b' ');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indentation_equals_gos() {
        let json = br#"{"a":{},"b":[],"c":[1,{"d":"x:,{\"\\"}],"e":null}"#;
        let expected = "{\n  \"a\": {},\n  \"b\": [],\n  \"c\": [\n    1,\n    {\n      \"d\": \"x:,{\\\"\\\\\"\n    }\n  ],\n  \"e\": null\n}";
        assert_eq!(String::from_utf8(indented(json)).unwrap(), expected);
    }
}
