//! The last step of every answer: refusals as the client accepts them, compression, common headers.
//!
//! Handlers refuse in JSON, whatever the client accepts. This layer encodes a refusal again as the client accepts it
//! (`responsewriters.ErrorNegotiated`), so that handlers need not know the format. Compression mirrors
//! `responsewriters/writers.go`.

use std::io::Write as _;

use axum::body::{Body, HttpBody as _};
use axum::extract::Request;
use axum::http::header::{ACCEPT_ENCODING, ALLOW, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, VARY};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use flate2::Compression;
use flate2::write::GzEncoder;
use http_body_util::BodyExt as _;

use super::negotiate::{AnswerFormat, Media};
use super::respond::{self, Refused};
use super::{Ingest, indent};
use crate::event::protobuf;
use crate::server::Answer;
use crate::status::Status;

/// Bytes above which an answer is compressed if the client accepts gzip (`defaultGzipThresholdBytes`).
const GZIP_THRESHOLD: u64 = 128 * 1024;

/// Finishes the answer to a request. A layer.
pub(super) async fn finish(ingest: Ingest, request: Request, next: impl Answer) -> Response {
    let (query, headers) = (request.uri().query(), request.headers());
    let method = request.method().clone();
    let compresses = accepts_gzip(headers);
    let format = AnswerFormat::plain(query, headers);
    let mut response = next.run(request).await;
    encode_refusal(format, &mut response);
    if compresses {
        response = compressed(response).await;
    }
    response = ingest.counted_until_read(&method, response).await;
    encode_refusal(format, &mut response);
    // COMPAT(apiserver): proxies must not cache answers, and a 405 has no `Allow` header.
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    if response.status() == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().remove(ALLOW);
    }
    response
}

/// Encodes a refusal as the client accepts it; leaves other answers as they are.
fn encode_refusal(format: Option<(Media, bool)>, response: &mut Response) {
    let Some(Refused(status)) = response.extensions_mut().remove::<Refused>() else { return };
    let body = match format {
        // The refusal is compact JSON already.
        Some((Media::Json, false)) => return,
        Some((Media::Protobuf, _)) => {
            let mut body = Vec::new();
            protobuf::write_status(&status, &mut body);
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(Media::Protobuf.label()));
            Body::from(body)
        }
        Some((media @ (Media::Json | Media::Yaml), pretty)) => {
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media.label()));
            respond::document(response.status(), media, pretty, respond::go_escaped(&status.to_json())).into_body()
        }
        // The client accepts no known format: the refusal must not be replaced by a 406 (`WriteRawJSON`).
        None => Body::from(indent::indented(&respond::go_escaped(&status.to_json()))),
    };
    response.headers_mut().remove(CONTENT_LENGTH);
    *response.body_mut() = body;
}

/// Whether the client accepts gzip. COMPAT(apiserver): with a weight it does not, so that `gzip;q=0` is obeyed.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let value = headers.get(ACCEPT_ENCODING).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(',').any(|part| part.trim() == "gzip")
}

/// Compresses a long answer. Only an answer in memory has an exact size; streams are not compressed.
async fn compressed(response: Response) -> Response {
    if response.body().size_hint().exact().is_none_or(|size| size <= GZIP_THRESHOLD) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let Ok(body) = body.collect().await.map(http_body_util::Collected::to_bytes) else {
        return respond::refusal(&Status::new(500, "InternalError", "the answer broke off"));
    };
    // Level 1, like the API server. A large list takes long, so it is compressed on a thread for blocking work.
    let plain = body.clone();
    let packed = tokio::task::spawn_blocking(move || {
        let mut encoder = GzEncoder::new(Vec::with_capacity(plain.len() / 8), Compression::fast());
        encoder.write_all(&plain).and_then(|()| encoder.finish())
    });
    let Ok(Ok(packed)) = packed.await else { return Response::from_parts(parts, Body::from(body)) };
    parts.headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    parts.headers.append(VARY, HeaderValue::from_static("Accept-Encoding"));
    parts.headers.remove(CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(packed))
}
