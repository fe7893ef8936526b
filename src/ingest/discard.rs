//! Reads the rest of a refused body over HTTP/2. A stream whose body is not read is reset after the answer, and some
//! clients (curl 7.88) then report the reset instead of the answer.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream, HttpBody as _};
use axum::extract::Request;
use axum::http::Version;
use axum::response::Response;
use futures_util::StreamExt as _;
use futures_util::stream::{self, Stream as _};
use parking_lot::Mutex;
use tokio::time::timeout;

use crate::server::Answer;

/// LIMIT: bytes that are read, and the longest time for them; after either the stream is reset.
const BYTES_MAX: usize = 64 << 10;
const TIMEOUT: Duration = Duration::from_secs(1);

/// Layer that reads what a refusal has left of a body over HTTP/2.
pub(super) async fn unread((): (), request: Request, next: impl Answer) -> Response {
    if request.version() != Version::HTTP_2 || request.body().is_end_stream() {
        return next.run(request).await;
    }
    let (head, body) = request.into_parts();
    // The next service drops its body before it answers, so this layer keeps one too.
    let kept = Arc::new(Mutex::new(body.into_data_stream()));
    let response = next.run(Request::from_parts(head, reader(&kept))).await;
    if response.status().is_client_error() || response.status().is_server_error() {
        discard(Version::HTTP_2, reader(&kept)).await;
    }
    response
}

/// Reads what a refusal has left of the body of a request of this version.
pub async fn discard(version: Version, body: Body) {
    if version == Version::HTTP_2 && !body.is_end_stream() {
        let _in_time = timeout(TIMEOUT, read(body)).await;
    }
}

/// Returns a body that reads on where the last reader has stopped.
fn reader(kept: &Arc<Mutex<BodyDataStream>>) -> Body {
    let kept = Arc::clone(kept);
    Body::from_stream(stream::poll_fn(move |context| Pin::new(&mut *kept.lock()).poll_next(context)))
}

/// Reads a body to its end or beyond the limit. Keeps none of it: any caller can be refused.
async fn read(body: Body) {
    let (mut parts, mut bytes) = (body.into_data_stream(), 0);
    while let Some(Ok(part)) = parts.next().await {
        bytes += part.len();
        if bytes > BYTES_MAX {
            return;
        }
    }
}
