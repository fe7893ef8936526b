//! Indents compact JSON by two spaces per level, like Go's `json.MarshalIndent`.

/// Indents a document. It must be JSON without white space.
pub(super) fn indented(json: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(json.len().saturating_mul(2));
    let (mut depth, mut in_text, mut escaped, mut previous) = (0_usize, false, false, b' ');
    for &byte in json {
        if in_text {
            in_text = escaped || byte != b'"';
            escaped = !escaped && byte == b'\\';
        } else {
            let (opened, closes) = (matches!(previous, b'{' | b'['), matches!(byte, b'}' | b']'));
            depth = depth.saturating_add(opened.into()).saturating_sub(closes.into());
            if opened != closes || previous == b',' {
                out.push(b'\n');
                out.resize(out.len().saturating_add(depth.saturating_mul(2)), b' ');
            }
            in_text = byte == b'"';
        }
        out.push(byte);
        if byte == b':' && !in_text {
            out.push(b' ');
        }
        previous = byte;
    }
    out
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
