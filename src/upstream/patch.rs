//! The strategic merge patch of a repeated event: its JSON, byte for byte as client-go sends it unless it carries a claim, and
//! its effect.

use serde_json::{Map, Value};

use crate::event::json;
use crate::event::{ApiGroup, Event, EventSeries, MicroTime, Time};
use crate::outbox::{Claim, Patch};
use crate::status::Status;

/// The value of lastTimestamp that client-go compares with, and therefore leaves out.
const LEFT_OUT: Time = Time(0);

/// The patch document through `group`.
pub(super) fn document(patch: &Patch, claim: Option<&Claim>, group: ApiGroup) -> String {
    if group == ApiGroup::Core {
        return patch.to_json(claim);
    }
    let mut document = Map::new();
    if let Some(claim) = claim {
        document.insert("metadata".to_owned(), metadata(claim).into());
    }
    if let Some(series) = series(patch) {
        let last = series.last_observed_time.map(|time| time.to_string());
        document.insert("series".to_owned(), serde_json::json!({"count": series.count, "lastObservedTime": last}));
    }
    Value::Object(document).to_string()
}

/// Does to `event` what the apiserver does when it receives that document through `group`.
///
/// # Errors
/// 409 when the claim was made for another version.
pub(super) fn apply(patch: &Patch, claim: Option<&Claim>, group: ApiGroup, event: &mut Event) -> Result<(), Status> {
    if let Some(claim) = claim {
        stake(claim, event)?;
    }
    match group {
        ApiGroup::Core => {
            event.series.take_if(|_| claim.is_some_and(|claim| claim.ends_series));
            apply_core(patch, event);
        }
        ApiGroup::Events => event.series = series(patch).or_else(|| event.series.take()),
    }
    Ok(())
}

/// What a patch can tell through events.k8s.io/v1: a series, which begins with 2.
fn series(patch: &Patch) -> Option<EventSeries> {
    let time = patch.last_timestamp?;
    let last_observed_time = Some(MicroTime(time.0.saturating_mul(1_000_000)));
    (patch.count >= 2).then_some(EventSeries { count: patch.count, last_observed_time })
}

impl Patch {
    /// The patch document: `count`, `lastTimestamp` and `message`, in this order, as far as they are told; before them the
    /// claim, which client-go does not know.
    #[must_use]
    pub fn to_json(&self, claim: Option<&Claim>) -> String {
        let mut json = Vec::with_capacity(self.message.len() + if claim.is_some() { 256 } else { 96 });
        self.write_json(claim, &mut json);
        // What is written is text and punctuation.
        String::from_utf8(json).unwrap_or_default()
    }

    /// Appends the patch document. Hot: one for every write, so it is written without a tree.
    pub fn write_json(&self, claim: Option<&Claim>, out: &mut Vec<u8>) {
        let start = out.len() + 1;
        let mut member = |name: &str, value: &dyn Fn(&mut Vec<u8>)| {
            out.push(if out.len() < start { b'{' } else { b',' });
            out.extend_from_slice(name.as_bytes());
            value(out);
        };
        if let Some(claim) = claim {
            member(r#""metadata":"#, &|out| write_metadata(claim, out));
        }
        if claim.is_some_and(|claim| claim.ends_series) {
            member(r#""series":null"#, &|_| {});
        }
        if self.count != 0 {
            member(r#""count":"#, &|out| json::write_integer(self.count.into(), out));
        }
        match self.last_timestamp {
            Some(LEFT_OUT) => {}
            None => member(r#""lastTimestamp":null"#, &|_| {}),
            Some(time) => member(r#""lastTimestamp":""#, &|out| {
                time.write(out);
                out.push(b'"');
            }),
        }
        if !self.message.is_empty() {
            member(r#""message":"#, &|out| json::write_text(&self.message, out));
        }
        if out.len() < start {
            out.push(b'{');
        }
        out.push(b'}');
    }
}

/// As [`metadata`].
fn write_metadata(claim: &Claim, out: &mut Vec<u8>) {
    out.push(b'{');
    if !claim.resource_version.is_empty() {
        out.extend_from_slice(br#""resourceVersion":"#);
        json::write_text(&claim.resource_version, out);
        out.push(b',');
    }
    out.extend_from_slice(br#""annotations":{"#);
    for name in claim.removed.iter().filter(|name| **name != claim.tag) {
        json::write_text(name, out);
        out.extend_from_slice(b":null,");
    }
    json::write_text(&claim.tag, out);
    out.push(b':');
    json::write_text(&claim.value, out);
    for (name, value) in &claim.annotations {
        out.push(b',');
        json::write_text(name, out);
        out.push(b':');
        json::write_text(value, out);
    }
    out.extend_from_slice(b"}}");
}

fn metadata(claim: &Claim) -> Map<String, Value> {
    let mut metadata = Map::new();
    if !claim.resource_version.is_empty() {
        metadata.insert("resourceVersion".to_owned(), claim.resource_version.as_str().into());
    }
    let removed = claim.removed.iter().map(|name| (name.to_string(), Value::Null));
    let own = (claim.tag.to_string(), Value::from(claim.value.as_str()));
    let others = claim.annotations.iter().map(|(name, value)| (name.to_string(), Value::from(value.as_str())));
    let annotations = removed.chain([own]).chain(others).collect();
    metadata.insert("annotations".to_owned(), Value::Object(annotations));
    metadata
}

fn stake(claim: &Claim, event: &mut Event) -> Result<(), Status> {
    let metadata = &mut event.metadata;
    if !claim.resource_version.is_empty() && metadata.resource_version != claim.resource_version {
        let text = "the object has been modified; please apply your changes to the latest version and try again";
        return Err(Status::conflict("", "events", &metadata.name, text));
    }
    let annotations = &mut metadata.rare.get_or_insert_default().annotations;
    annotations.retain(|name, _| !claim.removed.contains(name));
    annotations.insert(claim.tag.clone(), claim.value.clone());
    annotations.extend(claim.annotations.iter().cloned());
    Ok(())
}

fn apply_core(patch: &Patch, event: &mut Event) {
    if patch.count != 0 {
        event.count = patch.count;
    }
    if patch.last_timestamp != Some(LEFT_OUT) {
        event.last_timestamp = patch.last_timestamp;
    }
    if !patch.message.is_empty() {
        event.message = patch.message.clone();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::outbox::MESSAGES;

    /// The document by way of a tree, as it was written before it was written directly.
    fn by_tree(patch: &Patch, claim: Option<&Claim>) -> String {
        let mut document = Map::new();
        if let Some(claim) = claim {
            document.insert("metadata".to_owned(), metadata(claim).into());
        }
        if patch.count != 0 {
            document.insert("count".to_owned(), patch.count.into());
        }
        if patch.last_timestamp != Some(LEFT_OUT) {
            document.insert("lastTimestamp".to_owned(), json!(patch.last_timestamp.map(|time| time.to_string())));
        }
        if !patch.message.is_empty() {
            document.insert("message".to_owned(), patch.message.as_str().into());
        }
        let mut text = Vec::new();
        json::escape(&Value::Object(document).to_string(), &mut text);
        String::from_utf8(text).unwrap()
    }

    proptest! {
        #[test]
        fn a_patch_is_written_as_its_tree(
            count in prop_oneof![Just(0), any::<i32>()],
            time in proptest::option::of(prop_oneof![Just(0), -62_135_596_800..253_402_300_800_i64]),
            message in "(\\PC|[\u{0}-\u{7f}<>&\u{2028}\u{2029}]){0,40}",
            claim in proptest::option::of(("[0-9]{0,3}", "[a-c<]", "[0-9]{1,3}@[0-9]{1,3}", proptest::collection::vec("[d-f\"]", 0..3))),
            line in proptest::option::of("\\PC{0,20}"),
        ) {
            let patch = Patch { count, last_timestamp: time.map(Time), message: message.into() };
            let claim = claim.map(|(version, tag, value, mut removed)| {
                removed.dedup();
                let removed = removed.into_iter().map(Into::into).collect();
                let (tag, value) = (tag.into(), value.into());
                // Names that come after the others', as the tree sorts them.
                let annotations = line.into_iter().map(|line| ("line".into(), line.into())).collect();
                let resource_version = version.into();
                Claim { resource_version, tag, value, annotations, removed, ends_series: false }
            });
            let unique = claim.as_ref().is_none_or(|claim| {
                let names: std::collections::HashSet<_> = claim.removed.iter().collect();
                names.len() == claim.removed.len()
            });
            prop_assume!(unique);
            prop_assert_eq!(patch.to_json(claim.as_ref()), by_tree(&patch, claim.as_ref()));
        }
    }

    #[test]
    fn patches_read_as_client_go_writes_them() {
        let check = |count, last_timestamp, message: &str, expected: &str| {
            let patch = Patch { count, last_timestamp, message: message.into() };
            assert_eq!(patch.to_json(None), expected);
        };
        let time = Some(Time(1_772_352_000));
        check(2, time, "m", r#"{"count":2,"lastTimestamp":"2026-03-01T08:00:00Z","message":"m"}"#);
        check(2, None, "m", r#"{"count":2,"lastTimestamp":null,"message":"m"}"#);
        check(-5, Some(Time(0)), "", r#"{"count":-5}"#);
        check(0, Some(Time(0)), "", "{}");
        check(0, Some(Time(0)), "a<b>&\"\u{2028}é", r#"{"message":"a\u003cb\u003e\u0026\"\u2028é"}"#);
    }

    #[test]
    fn a_claim_names_version_and_tag_and_holds_for_its_version_only() {
        let tag: smol_str::SmolStr = "tally.eventweir/b".into();
        let removed = vec!["tally.eventweir/a".into()];
        let (resource_version, value) = ("7".into(), "3@4".into());
        let annotations = vec![("line.eventweir/00".into(), "2 0 a".into()), (MESSAGES.into(), r#"["m"]"#.into())];
        let claim = Claim { resource_version, tag: tag.clone(), value, annotations, removed, ends_series: false };
        let patch = Patch { count: 5, last_timestamp: None, message: "m".into() };
        let expected = concat!(
            r#"{"metadata":{"resourceVersion":"7","annotations":{"tally.eventweir/a":null,"tally.eventweir/b":"3@4","#,
            r#""line.eventweir/00":"2 0 a","messages.eventweir/last":"[\"m\"]"}},"count":5,"lastTimestamp":null,"message":"m"}"#
        );
        assert_eq!(patch.to_json(Some(&claim)), expected);
        let mut event = Event::default();
        event.metadata.resource_version = "8".into();
        let before = event.clone();
        let core = ApiGroup::Core;
        assert_eq!(apply(&patch, Some(&claim), core, &mut event).unwrap_err().code, 409);
        assert_eq!(event, before);
        event.metadata.resource_version = "7".into();
        apply(&patch, Some(&claim), core, &mut event).unwrap();
        let annotations = event.metadata.rare.unwrap().annotations;
        assert_eq!((event.count, annotations[&tag].as_str(), annotations[MESSAGES].as_str()), (5, "3@4", r#"["m"]"#));
        assert_eq!(annotations["line.eventweir/00"], "2 0 a");
    }

    #[test]
    fn through_events_v1_only_the_series_moves() {
        let patch = |count| Patch { count, last_timestamp: Some(Time(1_772_352_000)), message: "m".into() };
        let document = document(&patch(2), None, ApiGroup::Events);
        assert_eq!(document, r#"{"series":{"count":2,"lastObservedTime":"2026-03-01T08:00:00.000000Z"}}"#);
        assert_eq!(super::document(&patch(1), None, ApiGroup::Events), "{}");
        let mut event = Event { message: "first".into(), ..Event::default() };
        apply(&patch(2), None, ApiGroup::Events, &mut event).unwrap();
        apply(&patch(1), None, ApiGroup::Events, &mut event).unwrap();
        assert_eq!(event.series.unwrap().count, 2);
        assert_eq!((event.count, event.message.as_str()), (0, "first"));
    }

    #[test]
    fn absent_members_change_nothing_and_null_deletes() {
        let before = Event { count: 3, last_timestamp: Some(Time(9)), message: "m".into(), ..Event::default() };
        let check = |count, last_timestamp, message: &str, expected: (i32, Option<Time>, &str)| {
            let mut event = before.clone();
            let patch = Patch { count, last_timestamp, message: message.into() };
            apply(&patch, None, ApiGroup::Core, &mut event).unwrap();
            assert_eq!((event.count, event.last_timestamp, event.message.as_str()), expected);
        };
        check(0, Some(Time(0)), "", (3, Some(Time(9)), "m"));
        check(4, Some(Time(10)), "n", (4, Some(Time(10)), "n"));
        check(4, None, "", (4, None, "m"));
    }
}
