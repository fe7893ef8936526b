//! A non-blocking HTTP/1.1 connection with at most one request in flight.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use rustls::{ClientConfig, ClientConnection};

use super::Options;

/// Room for one read.
const READ_BYTES: usize = 64 << 10;
/// A limit above the headers of all servers here.
const HEADERS_MAX: usize = 32;
const CLOSED: &str = "the server closed the connection";

/// A connection with its request and answer.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: TcpStream,
    /// `None` is plain HTTP.
    tls: Option<Box<ClientConnection>>,
    /// When the request in flight was due.
    due: Option<Instant>,
    request: Vec<u8>,
    /// Bytes of the request that the socket has taken; over TLS, all of them at once.
    taken: usize,
    /// The part of the answer that has arrived.
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
    /// Connects, and shakes hands over TLS.
    ///
    /// # Errors
    /// When the server does not accept.
    pub(super) fn open(to: SocketAddr, tls: Option<&Arc<ClientConfig>>) -> anyhow::Result<Self> {
        let mut socket = TcpStream::connect(to)?;
        socket.set_nodelay(true)?;
        let tls = match tls {
            None => None,
            Some(config) => {
                let mut tls = ClientConnection::new(Arc::clone(config), to.ip().into())?;
                // A batch is longer than the default.
                tls.set_buffer_limit(None);
                while tls.is_handshaking() {
                    tls.complete_io(&mut socket)?;
                }
                Some(Box::new(tls))
            }
        };
        socket.set_nonblocking(true)?;
        Ok(Self { socket, tls, due: None, request: Vec::new(), taken: 0, answer: Vec::new() })
    }

    /// Sends the request that `write` appends. [`Self::flush`] sends the rest once the socket has room.
    ///
    /// # Errors
    /// When the connection breaks.
    pub(super) fn send(&mut self, due: Instant, write: impl FnOnce(&mut Vec<u8>)) -> anyhow::Result<()> {
        self.due = Some(due);
        self.request.clear();
        self.taken = 0;
        write(&mut self.request);
        if let Some(tls) = &mut self.tls {
            tls.writer().write_all(&self.request)?;
            self.taken = self.request.len();
        }
        self.flush()
    }

    /// Writes as much of the request as the socket takes.
    ///
    /// # Errors
    /// When the connection breaks.
    pub(super) fn flush(&mut self) -> anyhow::Result<()> {
        while self.taken < self.request.len() {
            match ready(self.socket.write(&self.request[self.taken..]))? {
                Some(taken) => self.taken += taken,
                None => break,
            }
        }
        if let Some(tls) = &mut self.tls {
            while tls.wants_write() && ready(tls.write_tls(&mut self.socket))?.is_some() {}
        }
        Ok(())
    }

    /// Reads all that the socket has, and returns the request if its answer is complete.
    ///
    /// # Errors
    /// When the connection breaks, or the answer is not HTTP.
    pub(super) fn receive(&mut self) -> anyhow::Result<Option<Answered>> {
        match &mut self.tls {
            None => self.read()?,
            Some(tls) => {
                while let Some(length) = ready(tls.read_tls(&mut self.socket))? {
                    anyhow::ensure!(length > 0, CLOSED);
                    let begin = self.answer.len();
                    self.answer.resize(begin + tls.process_new_packets()?.plaintext_bytes_to_read(), 0);
                    tls.reader().read_exact(&mut self.answer[begin..])?;
                }
            }
        }
        let Some(status) = status(&self.answer)? else { return Ok(None) };
        self.answer.clear();
        Ok(self.due.take().map(|due| Answered { due, good: matches!(status, 200 | 201) }))
    }

    fn read(&mut self) -> anyhow::Result<()> {
        loop {
            self.answer.reserve(READ_BYTES);
            let room = self.answer.capacity() - self.answer.len();
            match rustix::io::read(&self.socket, rustix::buffer::spare_capacity(&mut self.answer)) {
                Ok(0) => anyhow::bail!(CLOSED),
                // The buffer is full: the socket may have more, and epoll reports that only once.
                Ok(length) if length == room => {}
                Ok(_) | Err(Errno::WOULDBLOCK) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Returns `None` if the socket would block.
fn ready(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(length) => Ok(Some(length)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the head of a POST with this media type and length, or a whole GET.
pub(super) fn head(options: &Options, path: &str, body: Option<(&str, usize)>) -> Vec<u8> {
    let Options { to, token, .. } = options;
    let token = token.as_ref().map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    let common = format!("{path} HTTP/1.1\r\nHost: {to}\r\n{token}");
    match body {
        None => format!(
            "GET {common}User-Agent: kubectl/v1.35.0 (linux/amd64) kubernetes/bench\r\nAccept: application/json\r\n\r\n"
        ),
        Some((media_type, length)) => format!(
            "POST {common}User-Agent: kubelet/v1.35.0 (linux/amd64) kubernetes/bench\r\nContent-Length: {length}\r\n\
             Accept: {media_type}, */*\r\nContent-Type: {media_type}\r\nAccept-Encoding: gzip\r\n\r\n"
        ),
    }
    .into_bytes()
}

/// Returns the status of an answer once the answer is complete.
fn status(answer: &[u8]) -> anyhow::Result<Option<u16>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(begin) = head.parse(answer)? else { return Ok(None) };
    let body = &answer[begin..];
    let length = head.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let is_complete = match length {
        Some(length) => body.len() >= std::str::from_utf8(length.value)?.parse()?,
        // Chunks. A line of JSON has no carriage return, so only the last chunk ends like this.
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
