//! HTTP/2 with prior knowledge, as far as a client needs it that knows its server: requests whose header block needs no
//! table and can be copied, and a reader of frames. What a whole client library costs would hide what the server does.

use std::net::SocketAddr;

/// Bytes of a frame's head.
const HEAD: usize = 9;
/// Where a frame's head has the stream's number.
const STREAM: std::ops::Range<usize> = 5..HEAD;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const WINDOW_MAX: u32 = 0x7fff_ffff;
/// "201" in Huffman's code, with its length: so the status stands there, near the beginning, as a literal, if the server
/// has no room in a table to refer to.
const CREATED: [u8; 3] = [0x82, 0x10, 0x03];

fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, 0], payload].concat()
}

/// A literal header field that enters no table; its name is an index of the static one.
fn field(block: &mut Vec<u8>, index: u8, value: &str) {
    if index < 15 {
        block.push(index);
    } else {
        block.extend_from_slice(&[15, index - 15]);
    }
    block.push(value.len() as u8);
    block.extend_from_slice(value.as_bytes());
}

/// A POST of one body: a HEADERS frame and a DATA frame, without the stream's number.
pub(super) fn request(to: SocketAddr, path: &str, media_type: &str, body: &[u8]) -> Vec<u8> {
    // `:method: POST` and `:scheme: http` are in the static table.
    let mut block = vec![0x83, 0x86];
    field(&mut block, 4, path);
    field(&mut block, 1, &to.to_string());
    field(&mut block, 19, &format!("{media_type}, */*"));
    field(&mut block, 16, "gzip");
    field(&mut block, 28, &body.len().to_string());
    field(&mut block, 31, media_type);
    field(&mut block, 58, "kubelet/v1.35.0 (linux/amd64) kubernetes/bench");
    [frame(HEADERS, END_HEADERS, &block), frame(DATA, END_STREAM, body)].concat()
}

/// One connection's state.
#[derive(Debug)]
pub(super) struct Session {
    next_stream: u32,
    /// Bytes of bodies that the server takes at the moment.
    send_window: i64,
    /// Bytes of answers since the last word about our own window.
    received: u32,
    rest: Vec<u8>,
}

impl Session {
    /// A new session, and the bytes that open it.
    pub(super) fn open() -> (Self, Vec<u8>) {
        // No header table, windows as large as they get.
        let settings = [&[0, 1, 0, 0, 0, 0, 0, 4][..], &WINDOW_MAX.to_be_bytes()].concat();
        let window = (WINDOW_MAX - 65_535).to_be_bytes();
        let opening = [
            &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
            &frame(SETTINGS, 0, &settings),
            &frame(WINDOW_UPDATE, 0, &window),
        ];
        let session = Self { next_stream: 1, send_window: 65_535, received: 0, rest: Vec::new() };
        (session, opening.concat())
    }

    /// Whether the server has room for another request.
    pub(super) fn has_room(&self) -> bool {
        self.send_window > 4096
    }

    /// Gives a request made by [`request`] its stream's number, and returns that.
    pub(super) fn number(&mut self, request: &mut [u8]) -> u32 {
        let stream = self.next_stream;
        self.next_stream += 2;
        let length = |head: &[u8]| usize::from(head[1]) << 8 | usize::from(head[2]);
        let second = HEAD + length(request);
        request[STREAM].copy_from_slice(&stream.to_be_bytes());
        let data = &mut request[second..];
        data[STREAM].copy_from_slice(&stream.to_be_bytes());
        self.send_window -= length(data) as i64;
        stream
    }

    /// Takes bytes in; gives each answered stream, and whether the answer was 201, to `done`, and appends what the
    /// session itself has to say to `out`.
    pub(super) fn read(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        mut done: impl FnMut(u32, Answer),
    ) -> anyhow::Result<()> {
        self.rest.extend_from_slice(bytes);
        let rest = std::mem::take(&mut self.rest);
        let mut input = rest.as_slice();
        while input.len() >= HEAD {
            let length = usize::from(input[0]) << 16 | usize::from(input[1]) << 8 | usize::from(input[2]);
            if input.len() < HEAD + length {
                break;
            }
            let (head, payload) = (&input[..HEAD], &input[HEAD..HEAD + length]);
            input = &input[HEAD + length..];
            let (kind, flags) = (head[3], head[4]);
            let number = |bytes: &[u8]| bytes.iter().take(4).fold(0, |sum, byte| sum << 8 | u32::from(*byte));
            let stream = number(&head[STREAM]);
            match kind {
                HEADERS => {
                    let begin = payload.get(..8).unwrap_or(payload);
                    let created = begin.windows(CREATED.len()).any(|run| run == CREATED);
                    done(stream, if created { Answer::Created } else { Answer::Refused });
                }
                DATA => self.received += length as u32,
                RST_STREAM => done(stream, Answer::Refused),
                SETTINGS if flags & ACK == 0 => out.extend_from_slice(&frame(SETTINGS, ACK, &[])),
                PING if flags & ACK == 0 => out.extend_from_slice(&frame(PING, ACK, payload)),
                GOAWAY => anyhow::bail!("the server closes the connection"),
                WINDOW_UPDATE if stream == 0 => self.send_window += i64::from(number(payload)),
                _ => {}
            }
            if matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 {
                done(stream, Answer::End);
            }
        }
        self.rest.extend_from_slice(input);
        if self.received > WINDOW_MAX / 2 {
            out.extend_from_slice(&frame(WINDOW_UPDATE, 0, &self.received.to_be_bytes()));
            self.received = 0;
        }
        Ok(())
    }
}

/// What is known of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// Its status is 201.
    Created,
    /// Its status is another one, or the stream was reset.
    Refused,
    /// It is complete.
    End,
}
