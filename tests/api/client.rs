//! A client of HTTP/1.1 and HTTP/2 that reads answers in chunks. Each request has a connection of its own.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![expect(clippy::disallowed_methods, reason = "a connection ends with its test")]

use std::net::SocketAddr;
use std::time::Duration;

use http::{HeaderMap, Request, Response, Version};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

/// Timeout of each wait.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// A request.
pub(crate) struct Asked {
    pub(crate) method: String,
    /// Path and query.
    pub(crate) target: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) http1: bool,
}

/// An answer before its body is read.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) version: Version,
    pub(crate) headers: HeaderMap,
    body: Incoming,
    unread: Vec<u8>,
}

impl Answer {
    /// Sends the request and reads the head of the answer.
    pub(crate) async fn of(address: SocketAddr, asked: &Asked) -> Result<Self, String> {
        let exchange = async {
            let stream = TcpStream::connect(address).await.unwrap();
            // Otherwise each request waits for the kernel's timer.
            stream.set_nodelay(true).unwrap();
            let io = TokioIo::new(stream);
            let request = request(address, asked)?;
            if asked.http1 {
                let (mut sender, connection) = http1::handshake(io).await.unwrap();
                tokio::spawn(connection);
                sender.send_request(request).await.map_err(|error| format!("no answer: {error:?}"))
            } else {
                let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
                tokio::spawn(connection);
                sender.send_request(request).await.map_err(|error| format!("no answer: {error:?}"))
            }
        };
        let answer = tokio::time::timeout(DEADLINE, exchange).await.map_err(|_late| "no answer in time")??;
        Ok(Self::from(answer))
    }

    /// Returns the first value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// Reads one more chunk; false at the end.
    async fn piece(&mut self) -> Result<bool, String> {
        let frame = tokio::time::timeout(DEADLINE, self.body.frame()).await.map_err(|_late| "nothing more came")?;
        let Some(frame) = frame else { return Ok(false) };
        let frame = frame.map_err(|error| format!("the body broke off: {error}"))?;
        self.unread.extend_from_slice(&frame.into_data().unwrap_or_default());
        Ok(true)
    }

    /// Reads as many bytes as `end` returns; `None` at the end of the body.
    async fn until(&mut self, end: impl Fn(&[u8]) -> Option<usize>) -> Result<Option<Vec<u8>>, String> {
        loop {
            if let Some(length) = end(&self.unread) {
                return Ok(Some(self.unread.drain(..length).collect()));
            }
            if !self.piece().await? {
                return if self.unread.is_empty() { Ok(None) } else { Err("ends within a frame".to_owned()) };
            }
        }
    }

    /// Reads the next line of a stream.
    pub(crate) async fn line(&mut self) -> Result<Option<Vec<u8>>, String> {
        self.until(|bytes| bytes.iter().position(|byte| *byte == b'\n').map(|at| at + 1)).await
    }

    /// Reads the next frame of a protobuf stream, without its length.
    pub(crate) async fn frame(&mut self) -> Result<Option<Vec<u8>>, String> {
        let frame = self.until(|bytes| {
            let length = u32::from_be_bytes(*bytes.first_chunk::<4>()?);
            let length = usize::try_from(length).unwrap() + 4;
            (bytes.len() >= length).then_some(length)
        });
        Ok(frame.await?.map(|bytes| bytes[4..].to_vec()))
    }

    /// Reads the rest of the body.
    pub(crate) async fn rest(&mut self) -> Result<Vec<u8>, String> {
        while self.piece().await? {}
        Ok(std::mem::take(&mut self.unread))
    }
}

impl From<Response<Incoming>> for Answer {
    fn from(answer: Response<Incoming>) -> Self {
        let (parts, body) = answer.into_parts();
        let (status, version, headers) = (parts.status.as_u16(), parts.version, parts.headers);
        Self { status, version, headers, body, unread: Vec::new() }
    }
}

fn request(address: SocketAddr, asked: &Asked) -> Result<Request<Full<Bytes>>, String> {
    let uri = if asked.http1 { asked.target.clone() } else { format!("http://{address}{}", asked.target) };
    let mut request = Request::builder().method(asked.method.as_str()).uri(uri);
    if asked.http1 {
        request = request.header("Host", address.to_string());
    }
    for (name, value) in &asked.headers {
        request = request.header(name, value);
    }
    request.body(Full::from(asked.body.clone())).map_err(|error| error.to_string())
}
