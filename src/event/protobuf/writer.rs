//! Writer of protobuf fields. It reserves one byte for the length of a message, which is enough for most, and moves a
//! longer message when its length is known. That is cheaper than computing all lengths first.

/// Appends an unsigned number, seven bits per byte.
pub(super) fn varint(mut value: u64, out: &mut Vec<u8>) {
    loop {
        let [low, ..] = value.to_le_bytes();
        value >>= 7;
        if value == 0 {
            return out.push(low & 0x7f);
        }
        out.push(low | 0x80);
    }
}

/// Appends a string, which may be empty.
pub(super) fn text(number: u32, value: &str, out: &mut Vec<u8>) {
    bytes(number, value.as_bytes(), out);
}

/// Appends bytes, which may be empty.
pub(super) fn bytes(number: u32, value: &[u8], out: &mut Vec<u8>) {
    tag(number, 2, out);
    varint(value.len() as u64, out);
    out.extend_from_slice(value);
}

/// Appends an integer, which may be 0. A negative one takes ten bytes in any type.
pub(super) fn integer(number: u32, value: i64, out: &mut Vec<u8>) {
    tag(number, 0, out);
    varint(value.cast_unsigned(), out);
}

/// Appends a message with the fields that `write` appends.
pub(super) fn message(number: u32, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    tag(number, 2, out);
    let start = out.len();
    out.push(0);
    write(out);
    let end = out.len();
    let length = end.saturating_sub(start).saturating_sub(1);
    let [low, ..] = length.to_le_bytes();
    let is_short = length < 0x80;
    if !is_short {
        varint((length >> 7) as u64, out);
    }
    let more = out.len().saturating_sub(end);
    if let Some([first, message @ ..]) = out.get_mut(start..) {
        *first = if is_short { low } else { low | 0x80 };
        message.rotate_right(more);
    }
}

fn tag(number: u32, wire_type: u8, out: &mut Vec<u8>) {
    varint(u64::from(number) << 3 | u64::from(wire_type), out);
}
