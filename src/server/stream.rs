//! A client's connection, as hyper reads and writes it: in as few and as simple writes as can be.
//!
//! Hot: a write is the dearest thing that a request needs. Over HTTP/1.1 hyper hands over an answer's head and body side by side; the system
//! takes longer for two pieces (`writev`) than for one (`send`) and the copy that makes one of them. Over HTTP/2 answers that are ready at the
//! same time leave in one write, if they are short (`is_write_vectored`).

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use smallvec::SmallVec;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::patience::Activity;

/// Longest answer that is written in one piece, in bytes: one event's with its head is shorter, most of the time. Longer ones are not
/// worth the copy.
const PIECE: usize = 2048;

/// A TCP stream that writes what is small in one piece, and notes that its client still reads.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) tcp: TcpStream,
    pub(super) activity: Arc<Activity>,
}

impl Stream {
    /// What a write came to.
    fn wrote(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if matches!(written, Poll::Ready(Ok(_))) {
            self.activity.write();
        }
        written
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_read(context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.tcp).poll_write(context, bytes);
        self.wrote(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let stream = Pin::new(&mut self.tcp);
        let written = match pieces {
            [piece] => stream.poll_write(context, piece),
            _ if pieces.iter().map(|piece| piece.len()).sum::<usize>() <= PIECE => {
                let mut whole = SmallVec::<[u8; PIECE]>::new();
                pieces.iter().for_each(|piece| whole.extend_from_slice(piece));
                stream.poll_write(context, &whole)
            }
            _ => stream.poll_write_vectored(context, pieces),
        };
        self.wrote(written)
    }

    /// No, although it can: where one can, the `h2` crate keeps no answer of 256 bytes and more for the next write, otherwise none of
    /// 1,024 and more. HTTP/1.1 is told to hand over pieces all the same (`http1().writev`).
    fn is_write_vectored(&self) -> bool {
        false
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;

    /// What a client reads of pieces of these lengths, and how much each write took.
    async fn written(lengths: &[usize]) -> (Vec<u8>, Vec<usize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (client, server) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        let (mut client, tcp) = (client.unwrap(), server.unwrap().0);
        let mut server = Stream { tcp, activity: Arc::default() };
        let bytes: Vec<Vec<u8>> = (1_u8..).zip(lengths).map(|(byte, length)| vec![byte; *length]).collect();
        let mut taken = Vec::new();
        let mut pieces: Vec<IoSlice<'_>> = bytes.iter().map(|piece| IoSlice::new(piece)).collect();
        let mut left = &mut pieces[..];
        while !left.is_empty() {
            let write = |context: &mut Context<'_>| Pin::new(&mut server).poll_write_vectored(context, left);
            let count = std::future::poll_fn(write).await.unwrap();
            taken.push(count);
            IoSlice::advance_slices(&mut left, count);
        }
        drop(server);
        let mut read = Vec::new();
        client.read_to_end(&mut read).await.unwrap();
        assert!(read == bytes.concat(), "{lengths:?}");
        (read, taken)
    }

    #[tokio::test]
    async fn pieces_arrive_whole_and_in_order() {
        for lengths in [&[1, 2][..], &[3], &[100, PIECE - 100], &[100, PIECE - 99], &[0, 5, 0, 7], &[200, 60_000, 1]] {
            let (read, taken) = written(lengths).await;
            assert_eq!(taken, [read.len()], "{lengths:?}");
        }
    }
}
