//! One connection: a socket that is never waited for, TLS or not, and the requests on their way.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Instant;

use rustls::{ClientConfig, ClientConnection};

use super::http1;
use super::http2::{Answer, Session};

/// A request that has been answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answered {
    /// When it was due.
    pub(super) due: Instant,
    pub(super) good: bool,
}

/// A request on its way.
#[derive(Debug, Clone, Copy)]
struct Pending {
    stream: u32,
    due: Instant,
    good: bool,
}

#[derive(Debug)]
enum Protocol {
    Http1(http1::Reader),
    Http2(Session),
}

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: TcpStream,
    tls: Option<Box<ClientConnection>>,
    protocol: Protocol,
    pending: VecDeque<Pending>,
    /// What the socket has not taken yet, and how much of it it has.
    out: Vec<u8>,
    taken: usize,
    /// Whether the loop waits for room in the socket, too.
    pub(super) waits_for_room: bool,
}

impl Connection {
    pub(super) fn open(
        to: SocketAddr,
        protocol: super::Protocol,
        tls: Option<&Arc<ClientConfig>>,
    ) -> anyhow::Result<Self> {
        let mut socket = TcpStream::connect(to)?;
        socket.set_nodelay(true)?;
        let tls = match tls {
            None => None,
            Some(config) => {
                let mut tls = ClientConnection::new(Arc::clone(config), "localhost".try_into()?)?;
                while tls.is_handshaking() {
                    tls.complete_io(&mut socket)?;
                }
                Some(Box::new(tls))
            }
        };
        socket.set_nonblocking(true)?;
        let (protocol, out) = match protocol {
            super::Protocol::Http1 => (Protocol::Http1(http1::Reader::default()), Vec::new()),
            super::Protocol::Http2 => {
                let (session, opening) = Session::open();
                (Protocol::Http2(session), opening)
            }
        };
        Ok(Self { socket, tls, protocol, pending: VecDeque::new(), out, taken: 0, waits_for_room: false })
    }

    pub(super) fn on_their_way(&self) -> usize {
        self.pending.len()
    }

    /// Whether another request may be sent.
    pub(super) fn has_room(&self, depth: usize) -> bool {
        let server_has_room = match &self.protocol {
            Protocol::Http1(_) => true,
            Protocol::Http2(session) => session.has_room(),
        };
        self.pending.len() < depth && server_has_room
    }

    /// Adds a request, which `append` writes to the end of what goes out; where it begins is returned.
    pub(super) fn send(&mut self, due: Instant, append: impl FnOnce(&mut Vec<u8>) -> usize) {
        let begin = append(&mut self.out);
        let stream = match &mut self.protocol {
            Protocol::Http1(_) => 0,
            Protocol::Http2(session) => session.number(&mut self.out[begin..]),
        };
        self.pending.push_back(Pending { stream, due, good: false });
    }

    /// Gives the socket what it takes. Whether all of it went.
    pub(super) fn flush(&mut self) -> anyhow::Result<bool> {
        if let Some(tls) = &mut self.tls {
            tls.writer().write_all(&self.out[self.taken..])?;
            self.out.clear();
            self.taken = 0;
            while tls.wants_write() {
                match tls.write_tls(&mut self.socket) {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                    Err(error) => return Err(error.into()),
                }
            }
            return Ok(true);
        }
        while self.taken < self.out.len() {
            match self.socket.write(&self.out[self.taken..]) {
                Ok(taken) => self.taken += taken,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        self.out.clear();
        self.taken = 0;
        Ok(true)
    }

    /// Reads once what the socket has, and appends the requests that were answered.
    pub(super) fn receive(&mut self, buffer: &mut [u8], answered: &mut Vec<Answered>) -> anyhow::Result<()> {
        let length = match &mut self.tls {
            None => match self.socket.read(buffer) {
                Ok(0) => anyhow::bail!("the server has closed the connection"),
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
                Err(error) => return Err(error.into()),
            },
            Some(tls) => {
                match tls.read_tls(&mut self.socket) {
                    Ok(0) => anyhow::bail!("the server has closed the connection"),
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error.into()),
                }
                let available = tls.process_new_packets()?.plaintext_bytes_to_read();
                let length = available.min(buffer.len());
                tls.reader().read_exact(&mut buffer[..length])?;
                length
            }
        };
        let pending = &mut self.pending;
        match &mut self.protocol {
            Protocol::Http1(reader) => reader.read(&buffer[..length], |status| {
                let good = matches!(status, 200 | 201);
                answered.extend(pending.pop_front().map(|request| Answered { due: request.due, good }));
            }),
            Protocol::Http2(session) => session.read(&buffer[..length], &mut self.out, |stream, answer| {
                let Some(at) = pending.iter().position(|request| request.stream == stream) else { return };
                match answer {
                    Answer::Created => pending[at].good = true,
                    Answer::Refused => {}
                    Answer::End => {
                        answered.extend(pending.remove(at).map(|Pending { due, good, .. }| Answered { due, good }));
                    }
                }
            }),
        }
    }

    /// Whether something is left to flush.
    pub(super) fn owes(&self) -> bool {
        self.taken < self.out.len() || self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }
}
