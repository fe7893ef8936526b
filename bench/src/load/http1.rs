//! HTTP/1.1 as far as a client needs it that knows its server: requests as bytes, and a reader of answers.

use std::net::SocketAddr;

/// A POST of one body.
pub(super) fn request(to: SocketAddr, path: &str, media_type: &str, body: &[u8]) -> Vec<u8> {
    let mut request = head(to, path, media_type, body.len());
    request.extend_from_slice(body);
    request
}

/// The head of a POST.
pub(super) fn head(to: SocketAddr, path: &str, media_type: &str, length: usize) -> Vec<u8> {
    format!(
        "POST {path} HTTP/1.1\r\nHost: {to}\r\nUser-Agent: kubelet/v1.35.0 (linux/amd64) kubernetes/bench\r\n\
         Content-Length: {length}\r\nAccept: {media_type}, */*\r\nContent-Type: {media_type}\r\nAccept-Encoding: gzip\r\n\r\n"
    )
    .into_bytes()
}

/// What the reader waits for.
#[derive(Debug, Clone, Copy, Default)]
enum State {
    #[default]
    Head,
    Body(usize),
    ChunkSize,
    /// With the line's end behind it.
    Chunk(usize),
    /// The line behind the last chunk.
    End,
}

/// Reads answers from bytes as they come.
#[derive(Debug, Default)]
pub(super) struct Reader {
    state: State,
    status: u16,
    /// Bytes that were not enough to go on.
    rest: Vec<u8>,
}

impl Reader {
    /// Takes bytes in, and gives every complete answer's status to `done`.
    pub(super) fn read(&mut self, bytes: &[u8], mut done: impl FnMut(u16)) -> anyhow::Result<()> {
        let joined;
        let mut input = bytes;
        if !self.rest.is_empty() {
            self.rest.extend_from_slice(bytes);
            joined = std::mem::take(&mut self.rest);
            input = &joined;
        }
        while let Some(used) = self.step(input, &mut done)? {
            input = &input[used..];
        }
        self.rest.extend_from_slice(input);
        Ok(())
    }

    /// One step; how many bytes it took, or none if there are too few.
    fn step(&mut self, input: &[u8], done: &mut impl FnMut(u16)) -> anyhow::Result<Option<usize>> {
        let line_end = || input.windows(2).position(|pair| pair == b"\r\n");
        let (used, next) = match self.state {
            State::Head => {
                let Some(length) = input.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
                let (status, next) = read_head(&input[..length])?;
                self.status = status;
                (length + 4, next)
            }
            State::Body(left) | State::Chunk(left) => {
                let used = left.min(input.len());
                match self.state {
                    _ if used < left && used == 0 => return Ok(None),
                    State::Body(_) => (used, State::Body(left - used)),
                    _ if used == left => (used, State::ChunkSize),
                    _ => (used, State::Chunk(left - used)),
                }
            }
            State::ChunkSize => {
                let Some(length) = line_end() else { return Ok(None) };
                let size = usize::from_str_radix(std::str::from_utf8(&input[..length])?.trim(), 16)?;
                (length + 2, if size == 0 { State::End } else { State::Chunk(size + 2) })
            }
            State::End => {
                if input.len() < 2 {
                    return Ok(None);
                }
                (2, State::Body(0))
            }
        };
        self.state = next;
        if let State::Body(0) = next {
            self.state = State::Head;
            done(self.status);
        }
        Ok(Some(used))
    }
}

/// The status, and how the body ends.
fn read_head(head: &[u8]) -> anyhow::Result<(u16, State)> {
    let status = std::str::from_utf8(head.get(9..12).unwrap_or_default())?.parse()?;
    let mut body = State::Body(0);
    for line in head.split(|byte| *byte == b'\n').skip(1) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let value = line[colon + 1..].trim_ascii();
        if line[..colon].eq_ignore_ascii_case(b"content-length") {
            body = State::Body(std::str::from_utf8(value)?.parse()?);
        } else if line[..colon].eq_ignore_ascii_case(b"transfer-encoding") {
            body = State::ChunkSize;
        }
    }
    Ok((status, body))
}

#[cfg(test)]
mod tests {
    use super::Reader;

    #[test]
    fn answers_are_read_whatever_the_pieces() {
        let text = b"HTTP/1.1 201 Created\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\
            3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\nHTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n";
        for size in 1..text.len() {
            let (mut reader, mut statuses) = (Reader::default(), Vec::new());
            for piece in text.chunks(size) {
                reader.read(piece, |status| statuses.push(status)).unwrap();
            }
            assert_eq!(statuses, [201, 200, 429], "in pieces of {size}");
        }
    }
}
