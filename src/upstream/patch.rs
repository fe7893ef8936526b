//! The strategic merge patch of a repeated event. Without a claim, its bytes are client-go's.

use serde::{Serialize, Serializer};

use crate::event::json;
use crate::event::{ApiGroup, EventSeries, Time, conversion};
use crate::outbox::{Claim, Patch};

/// The lastTimestamp that client-go compares with, and therefore leaves out.
const LEFT_OUT: Time = Time(0);

/// The patch document. An absent member is left out; `Some(None)` is written as `null`, which deletes the member.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'p> {
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Metadata<'p>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    series: Option<Option<Series>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_timestamp: Option<Option<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'p str>,
}

/// The metadata that a claim writes; client-go writes none.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'p> {
    #[serde(skip_serializing_if = "str::is_empty")]
    resource_version: &'p str,
    #[serde(serialize_with = "annotations")]
    annotations: &'p Claim,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Series {
    count: i32,
    last_observed_time: Option<String>,
}

fn annotations<S: Serializer>(claim: &Claim, serializer: S) -> Result<S::Ok, S::Error> {
    let removed = claim.removed.iter().filter(|name| **name != claim.tag).map(|name| (name, None));
    let own = [(&claim.tag, Some(&claim.value))];
    let others = claim.annotations.iter().map(|(name, value)| (name, Some(value)));
    serializer.collect_map(removed.chain(own).chain(others))
}

/// Returns the patch document for `group`: the claim, which client-go does not have, then the members that change.
pub fn patch_document(patch: &Patch, claim: Option<&Claim>, group: ApiGroup) -> String {
    let metadata = claim.map(|claim| Metadata { resource_version: &claim.resource_version, annotations: claim });
    let document = match group {
        ApiGroup::Core => Document {
            metadata,
            series: claim.is_some_and(|claim| claim.ends_series).then_some(None),
            count: (patch.count != 0).then_some(patch.count),
            last_timestamp: (patch.last_timestamp != Some(LEFT_OUT))
                .then(|| patch.last_timestamp.map(|time| time.to_string())),
            message: Some(patch.message.as_str()).filter(|message| !message.is_empty()),
        },
        ApiGroup::Events => {
            let series = patch.last_timestamp.and_then(|last| conversion::series(patch.count, Some(last), 0));
            let series = series.map(|EventSeries { count, last_observed_time }| {
                Some(Series { count, last_observed_time: last_observed_time.map(|time| time.to_string()) })
            });
            Document { metadata, series, count: None, last_timestamp: None, message: None }
        }
    };
    let plain = serde_json::to_string(&document).unwrap_or_default();
    let mut escaped = Vec::with_capacity(plain.len());
    json::escape(&plain, &mut escaped);
    String::from_utf8(escaped).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `tests/golden.rs` compares the other members with client-go's.
    #[test]
    fn a_message_is_escaped_as_by_go() {
        let patch = Patch { count: 0, last_timestamp: Some(LEFT_OUT), message: "a<b>&\"\u{2028}é".into() };
        let document = patch_document(&patch, None, ApiGroup::Core);
        assert_eq!(document, r#"{"message":"a\u003cb\u003e\u0026\"\u2028é"}"#);
    }

    #[test]
    fn a_claim_can_end_the_series_of_a_core_event() {
        let tag = "tally.eventweir/b".into();
        let (resource_version, value, annotations, removed) = ("".into(), "3@4".into(), Vec::new(), Vec::new());
        let claim = Claim { resource_version, tag, value, annotations, removed, ends_series: true };
        let patch = Patch { count: 5, last_timestamp: Some(LEFT_OUT), message: "".into() };
        let expected = r#"{"metadata":{"annotations":{"tally.eventweir/b":"3@4"}},"series":null,"count":5}"#;
        assert_eq!(patch_document(&patch, Some(&claim), ApiGroup::Core), expected);
    }

    #[test]
    fn through_events_v1_only_the_series_moves() {
        let patch = |count| Patch { count, last_timestamp: Some(Time(1_772_352_000)), message: "m".into() };
        let document = patch_document(&patch(2), None, ApiGroup::Events);
        assert_eq!(document, r#"{"series":{"count":2,"lastObservedTime":"2026-03-01T08:00:00.000000Z"}}"#);
        assert_eq!(patch_document(&patch(1), None, ApiGroup::Events), "{}");
    }
}
