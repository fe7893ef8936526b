//! Stream of a client: a timeout for writes, fewer writes over HTTP/2, detection of closed watches, and a close that
//! loses no answer.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Bytes;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use tokio::io::{AsyncBufRead as _, AsyncRead, AsyncWrite, BufReader, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::Progress;

/// Timeout for the rest of a body after its answer; Go's server waits for half a second.
const LINGER: Duration = Duration::from_secs(2);
/// LIMIT: bytes of that rest that are read. A client that sends more has the time of `LINGER` to read its answer.
const REST_BYTES: usize = 16 << 20;

/// Fails when a write takes too long, or when the client of a watch closes its side.
pub(super) struct ClientStream<S> {
    /// Reads one byte ahead, to see whether the client has closed its side. Reads of hyper bypass the buffer.
    stream: BufReader<S>,
    timeout: Duration,
    /// Runs while the client accepts no bytes.
    stalled: Option<Pin<Box<Sleep>>>,
    /// Runs while the client still sends a body after its answer; and how many bytes of it are still read.
    lingering: Option<(Pin<Box<Sleep>>, usize)>,
    progress: Arc<Progress>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> ClientStream<S> {
    pub(super) fn new(stream: S, timeout: Duration, progress: Arc<Progress>) -> Self {
        Self { stream: BufReader::with_capacity(1, stream), timeout, stalled: None, lingering: None, progress }
    }

    /// Returns the result of a write, or an error once writes have been pending for too long.
    fn limited<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() || self.progress.is_tunnel.load(Ordering::Relaxed) {
            self.stalled = None;
            return written;
        }
        let timeout = self.timeout;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(timeout)));
        stalled.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ClientStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ClientStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.limited(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.limited(context, written)
    }

    /// Returns false, so that the `h2` crate joins answers of up to 1,023 bytes in one write; otherwise of up to 255.
    fn is_write_vectored(&self) -> bool {
        false
    }

    /// Also checks whether the client of a watch has closed its side. While hyper answers, it does not read, but it
    /// flushes whenever it has nothing to write.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.progress.is_watched.load(Ordering::Relaxed) {
            match Pin::new(&mut self.stream).poll_fill_buf(context) {
                Poll::Ready(Ok([])) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(_)) | Poll::Pending => {}
            }
        }
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.limited(context, flushed)
    }

    /// Also reads what the client still sends of a body that was refused. Otherwise the kernel would reset the
    /// connection, and the client would lose its answer.
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.stream).poll_shutdown(context);
        ready!(self.limited(context, closed))?;
        let Self { stream, lingering, progress, .. } = &mut *self;
        let mut bytes = [0; 8 << 10];
        while progress.is_unread.load(Ordering::Relaxed) && !progress.is_tunnel.load(Ordering::Relaxed) {
            let (late, left) = lingering.get_or_insert_with(|| (Box::pin(sleep(LINGER)), REST_BYTES));
            if late.as_mut().poll(context).is_ready() {
                break;
            }
            if *left == 0 {
                return Poll::Pending;
            }
            let mut buffer = ReadBuf::new(&mut bytes);
            let read = ready!(Pin::new(&mut *stream).poll_read(context, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                break;
            }
            *left = left.saturating_sub(buffer.filled().len());
        }
        Poll::Ready(Ok(()))
    }
}

/// The body of a request over HTTP/1.1. Notes whether it has been read to its end.
pub(super) struct Noted {
    pub(super) body: Incoming,
    pub(super) progress: Arc<Progress>,
}

impl HttpBody for Noted {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if frame.is_none() || self.body.is_end_stream() {
            self.progress.is_unread.store(false, Ordering::Relaxed);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
