//! A small HTTP/1.1 client on one connection.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::net::SocketAddr;

use eventweir::event::{ApiGroup, Event, json};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::app::DEADLINE;

/// Path of the events of `shop`.
pub(crate) const EVENTS: &str = "/api/v1/namespaces/shop/events";
const STRATEGIC_MERGE: &str = "application/strategic-merge-patch+json";

type Reader = BufReader<Box<dyn AsyncRead + Send + Unpin>>;

/// A connection. It reads answers while it still sends, because a batch is answered line by line.
pub(crate) struct Client(Reader, Box<dyn AsyncWrite + Send + Unpin>);

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Reply {
    /// Returns the first header of this name.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers(name).next()
    }

    pub(crate) fn headers(&self, name: &str) -> impl Iterator<Item = &str> {
        self.headers.iter().filter(move |(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub(crate) fn outcome(&self) -> Option<&str> {
        self.header("Eventweir-Outcome")
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.body
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self::try_connect(address).await.unwrap()
    }

    /// Connects; `None` if the connection is refused.
    pub(crate) async fn try_connect(address: SocketAddr) -> Option<Self> {
        let (reader, writer) = TcpStream::connect(address).await.ok()?.into_split();
        Some(Self(BufReader::new(Box::new(reader)), Box::new(writer)))
    }

    /// Uses an open connection of any kind.
    pub(crate) fn over(stream: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        Self(BufReader::new(Box::new(reader)), Box::new(writer))
    }

    /// Sends a request and reads its answer. Adds `Content-Length`, and `Host` if it is missing.
    pub(crate) async fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        let exchange = self.exchange(method, path, headers, body);
        tokio::time::timeout(DEADLINE, exchange).await.unwrap().unwrap()
    }

    /// Does the same, but returns the error of a broken connection.
    pub(crate) async fn exchange(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> std::io::Result<Reply> {
        let host = if headers.iter().any(|(name, _)| *name == "Host") { "" } else { "Host: localhost\r\n" };
        let mut head = format!("{method} {path} HTTP/1.1\r\n{host}Content-Length: {}\r\n", body.len());
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        let request = [head.as_bytes(), b"\r\n", body].concat();
        let Self(reader, writer) = self;
        let (sent, reply) = tokio::join!(writer.write_all(&request), read(reader, method));
        sent.and(reply)
    }

    /// POSTs a body in pieces, one chunk each.
    pub(crate) async fn post_pieces(&mut self, path: &str, pieces: impl Iterator<Item = &[u8]>) -> Reply {
        let mut request =
            format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n").into_bytes();
        for piece in pieces {
            request.extend_from_slice(&[format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat());
        }
        request.extend_from_slice(b"0\r\n\r\n");
        let Self(reader, writer) = self;
        let exchange = async { tokio::join!(writer.write_all(&request), read(reader, "POST")) };
        let (sent, reply) = tokio::time::timeout(DEADLINE, exchange).await.unwrap();
        sent.and(reply).unwrap()
    }

    pub(crate) async fn get(&mut self, path: &str) -> Reply {
        self.send("GET", path, &[], b"").await
    }

    /// POSTs an event like client-go.
    pub(crate) async fn post(&mut self, event: &Event) -> Reply {
        self.post_with(event, "").await
    }

    /// POSTs an event with a query.
    pub(crate) async fn post_with(&mut self, event: &Event, query: &str) -> Reply {
        let path = format!("/api/v1/namespaces/{}/events{query}", event.metadata.namespace);
        self.send("POST", &path, &[("Content-Type", "application/json")], &json(event)).await
    }

    /// PATCHes an event like client-go.
    pub(crate) async fn patch(&mut self, name: &str, patch: &Value) -> Reply {
        let path = format!("{EVENTS}/{name}");
        self.send("PATCH", &path, &[("Content-Type", STRATEGIC_MERGE)], patch.to_string().as_bytes()).await
    }
}

pub(crate) fn json(event: &Event) -> Vec<u8> {
    let mut body = Vec::new();
    json::write_json(ApiGroup::Core, event, &mut body);
    body
}

async fn read(reader: &mut Reader, method: &str) -> std::io::Result<Reply> {
    let first = line(reader).await?;
    let status = first.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status = status.ok_or_else(|| std::io::Error::other(format!("no status: {first:?}")))?;
    let mut headers = Vec::new();
    loop {
        let line = line(reader).await?;
        let Some((name, value)) = line.split_once(": ") else { break };
        headers.push((name.to_owned(), value.to_owned()));
    }
    let mut reply = Reply { status, headers, body: Vec::new() };
    if reply.header("Transfer-Encoding") == Some("chunked") {
        loop {
            let size = usize::from_str_radix(&line(reader).await?, 16).map_err(std::io::Error::other)?;
            let start = reply.body.len();
            reply.body.resize(start + size, 0);
            reader.read_exact(&mut reply.body[start..]).await?;
            line(reader).await?;
            if size == 0 {
                return Ok(reply);
            }
        }
    }
    let length = reply.header("Content-Length").map_or(0, |text| text.parse().unwrap());
    if method != "HEAD" {
        reply.body.resize(length, 0);
        reader.read_exact(&mut reply.body).await?;
    }
    Ok(reply)
}

async fn line(reader: &mut Reader) -> std::io::Result<String> {
    let mut line = String::new();
    if reader.read_line(&mut line).await? == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end().to_owned())
}
