//! The little of protobuf's wire form that an Event needs, written from the `.proto` files and not with eventweir's own code.

/// Protobuf's fields, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Message(Vec<u8>);

impl Message {
    /// A text or bytes; an empty one is written too, as Go's generated code does for what is not a pointer.
    pub(crate) fn bytes(mut self, field: u8, value: &[u8]) -> Self {
        self.0.push(field << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    pub(crate) fn text(self, field: u8, value: &str) -> Self {
        self.bytes(field, value.as_bytes())
    }

    pub(crate) fn message(self, field: u8, value: Message) -> Self {
        self.bytes(field, &value.0)
    }

    pub(crate) fn number(mut self, field: u8, value: u64) -> Self {
        self.0.push(field << 3);
        self.varint(value);
        self
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.0.push(value.to_le_bytes()[0]);
    }

    /// The body of a request: the magic number, then a `runtime.Unknown` around the object.
    pub(crate) fn into_body(self, api_version: &str, kind: &str) -> Vec<u8> {
        let type_meta = Message::default().text(1, api_version).text(2, kind);
        let unknown = Message::default().message(1, type_meta).message(2, self).text(3, "").text(4, "");
        [b"k8s\0".as_slice(), &unknown.0].concat()
    }
}
