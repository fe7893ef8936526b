//! The form of an answer: through which door it is shown, and in which media type, as Accept asks.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use axum::http::HeaderMap;
use axum::http::header::ACCEPT;

use super::decode::Refusal;
use crate::event::ApiGroup;
use crate::ledger::RejectReason;
use crate::status::{Status, StatusDetails};

/// How an answer looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Form {
    /// The door.
    pub(super) group: ApiGroup,
    /// The media type.
    pub(super) media: Media,
}

/// The media types that answers come in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Media {
    Json,
}

/// Parts of an Accept header that are looked at. LIMIT: further ones are ignored.
const RANGES_MAX: usize = 32;

impl Form {
    /// JSON, when nothing can be or was negotiated.
    pub(super) const fn json(group: ApiGroup) -> Self {
        Self { group, media: Media::Json }
    }

    /// What the client accepts best: by weight, then in the order of the header.
    pub(super) fn negotiate(group: ApiGroup, headers: &HeaderMap) -> Result<Self, Refusal> {
        let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let mut ranges: Vec<(u16, Option<Media>)> =
            values.flat_map(|value| value.split(',')).take(RANGES_MAX).map(range).collect();
        if ranges.is_empty() {
            return Ok(Self::json(group));
        }
        // Stable: of equal weights the first wins.
        ranges.sort_by_key(|(weight, _)| std::cmp::Reverse(*weight));
        let media = ranges.into_iter().filter(|(weight, _)| *weight > 0).find_map(|(_, media)| media);
        media.map(|media| Self { group, media }).ok_or_else(|| {
            let message = "406: Not Acceptable\n\nAvailable representations: application/json";
            let status = Status::new(406, "NotAcceptable", message).with_details(StatusDetails::default());
            (RejectReason::MediaType, Box::new(status))
        })
    }
}

/// Weight in thousandths and media type of one part of an Accept header; `None` for what we do not make.
fn range(text: &str) -> (u16, Option<Media>) {
    let mut parts = text.split(';').map(str::trim);
    let media = parts.next().unwrap_or_default();
    let (mut weight, mut as_is) = (1000, true);
    for parameter in parts {
        match parameter.split_once('=') {
            Some(("q", value)) => weight = thousandths(value),
            // A Table or a part of the object is another form.
            Some(("as", _)) => as_is = false,
            _ => {}
        }
    }
    // COMPAT(apiserver): `application/*` is not understood.
    let json = media.is_empty() || media == "*/*" || media.eq_ignore_ascii_case("application/json");
    (weight, (as_is && json).then_some(Media::Json))
}

fn thousandths(text: &str) -> u16 {
    let weight: f32 = text.trim().parse().unwrap_or(0.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to 0..=1000")]
    let thousandths = (weight.clamp(0.0, 1.0) * 1000.0) as u16;
    thousandths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_is_read_as_the_apiserver_reads_it() {
        for (accept, acceptable) in [
            (None, true),
            (Some("*/*"), true),
            (Some("application/json"), true),
            (Some("application/json, */*"), true),
            (Some("application/vnd.kubernetes.protobuf,application/json"), true),
            (Some("application/json;q=0.5"), true),
            (Some("application/json;q=0"), false),
            (Some("application/*"), false),
            (Some("text/html"), false),
            (Some("application/json;as=Table;v=v1;g=meta.k8s.io"), false),
            (Some("application/json;as=Table;v=v1;g=meta.k8s.io,application/json"), true),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(accept) = accept {
                headers.insert(ACCEPT, accept.parse().unwrap());
            }
            assert_eq!(Form::negotiate(ApiGroup::Core, &headers).is_ok(), acceptable, "{accept:?}");
        }
    }
}
