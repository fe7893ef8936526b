//! A non-blocking HTTP/1.1 connection with at most one request on its way.

use std::io::{ErrorKind, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use rustix::io::Errno;

/// Room for one read.
const READ_BYTES: usize = 64 << 10;
/// More headers than any server here sends.
const HEADERS_MAX: usize = 32;

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: TcpStream,
    /// When the request on its way was due.
    due: Option<Instant>,
    request: Vec<u8>,
    /// Bytes of the request that the socket has taken.
    taken: usize,
    /// What has come of the answer.
    answer: Vec<u8>,
}

/// A request that has been answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answered {
    /// When it was due.
    pub(super) due: Instant,
    /// Whether the status was 200 or 201.
    pub(super) good: bool,
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// When the server does not accept.
    pub(super) fn open(to: SocketAddr) -> anyhow::Result<Self> {
        let socket = TcpStream::connect(to)?;
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, due: None, request: Vec::new(), taken: 0, answer: Vec::new() })
    }

    /// Sends the request that `write` appends; [`Self::flush`] sends what the socket has no room for now.
    ///
    /// # Errors
    /// When the connection breaks.
    pub(super) fn send(&mut self, due: Instant, write: impl FnOnce(&mut Vec<u8>)) -> anyhow::Result<()> {
        self.due = Some(due);
        self.request.clear();
        self.taken = 0;
        write(&mut self.request);
        self.flush()
    }

    /// Gives the socket what it takes of the request.
    ///
    /// # Errors
    /// When the connection breaks.
    pub(super) fn flush(&mut self) -> anyhow::Result<()> {
        while self.taken < self.request.len() {
            match self.socket.write(&self.request[self.taken..]) {
                Ok(taken) => self.taken += taken,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Reads all that the socket has, and returns the request if its answer is complete now.
    ///
    /// # Errors
    /// When the connection breaks, or what comes is not HTTP.
    pub(super) fn receive(&mut self) -> anyhow::Result<Option<Answered>> {
        loop {
            self.answer.reserve(READ_BYTES);
            let room = self.answer.capacity() - self.answer.len();
            match rustix::io::read(&self.socket, rustix::buffer::spare_capacity(&mut self.answer)) {
                Ok(0) => anyhow::bail!("the server has closed the connection"),
                // A full buffer: the socket may have more, and epoll would not say so again.
                Ok(length) if length == room => {}
                Ok(_) | Err(Errno::WOULDBLOCK) => break,
                Err(error) => return Err(error.into()),
            }
        }
        let Some(status) = status(&self.answer)? else { return Ok(None) };
        self.answer.clear();
        Ok(self.due.take().map(|due| Answered { due, good: matches!(status, 200 | 201) }))
    }
}

/// The head of a POST.
pub(super) fn head(to: SocketAddr, path: &str, media_type: &str, length: usize) -> Vec<u8> {
    format!(
        "POST {path} HTTP/1.1\r\nHost: {to}\r\nUser-Agent: kubelet/v1.35.0 (linux/amd64) kubernetes/bench\r\n\
         Content-Length: {length}\r\nAccept: {media_type}, */*\r\nContent-Type: {media_type}\r\nAccept-Encoding: gzip\r\n\r\n"
    )
    .into_bytes()
}

/// A GET.
pub(super) fn get(to: SocketAddr, path: &str) -> Vec<u8> {
    format!(
        "GET {path} HTTP/1.1\r\nHost: {to}\r\nUser-Agent: kubectl/v1.35.0 (linux/amd64) kubernetes/bench\r\n\
         Accept: application/json\r\nAuthorization: Bearer bench\r\n\r\n"
    )
    .into_bytes()
}

/// The status of an answer, once the answer is complete.
fn status(answer: &[u8]) -> anyhow::Result<Option<u16>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(begin) = head.parse(answer)? else { return Ok(None) };
    let body = &answer[begin..];
    let length = head.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let is_complete = match length {
        Some(length) => body.len() >= std::str::from_utf8(length.value)?.parse()?,
        // In chunks. A line of JSON has no carriage return, so only the last chunk ends like this.
        None => body.ends_with(b"0\r\n\r\n"),
    };
    Ok(head.code.filter(|_| is_complete))
}

#[cfg(test)]
mod tests {
    use super::status;

    #[test]
    fn an_answer_is_complete_with_its_last_byte() {
        let answers = [
            (201, "HTTP/1.1 201 Created\r\nContent-Length: 5\r\n\r\nhello"),
            (200, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\nA\r\n012345678\n\r\n0\r\n\r\n"),
            (429, "HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n"),
        ];
        for (code, answer) in answers {
            for end in 0..answer.len() {
                assert_eq!(status(&answer.as_bytes()[..end]).unwrap(), None, "{end} bytes of {answer}");
            }
            assert_eq!(status(answer.as_bytes()).unwrap(), Some(code));
        }
    }
}
