//! Plain patches: applied to the record that the client's name leads to. Like a PUT they bypass the correlators and the
//! ledger. The record counts on from the patched count (`shard/pause.rs`).

use serde_json::Value;

use crate::event::patching::{self, PatchType, Patched};
use crate::event::{ApiGroup, Event, validate};
use crate::ingest::rejection::{as_asked, under};
use crate::ingest::{Ingest, ack, aliases};
use crate::outbox::Line;
use crate::shard::Lookup;
use crate::status::Status;
use crate::upstream::{ClientPatch, WriteOptions};

/// Applies a patch and returns the event under the client's name.
pub(super) async fn apply(
    ingest: &Ingest,
    namespace: &str,
    name: &str,
    patch: ClientPatch,
    options: WriteOptions,
) -> Result<Patched, Status> {
    let (group, stated) = (options.group, stated(&patch));
    let patched = on_record(ingest, (namespace, name), &patch, &options, stated).await;
    let (mut patched, line) = patched.map_err(|status| as_asked(group, name, status))?;
    patched.event.metadata.name = name.into();
    if !options.dry_run {
        ingest.0.aliases.relabel(namespace, name, &patched.event, line);
    }
    Ok(patched)
}

/// Returns the patched record, and what the patch states about the total of the name's client.
async fn on_record(
    ingest: &Ingest,
    (namespace, name): (&str, &str),
    patch: &ClientPatch,
    options: &WriteOptions,
    (stated, total): (Line, Option<i64>),
) -> Result<(Patched, Line), Status> {
    let (upstream, shards) = (&ingest.0.upstream, &ingest.0.shards);
    let posted = ingest.0.aliases.get(namespace, name);
    let found = posted.as_ref().filter(|_| options.dry_run).and_then(|posted| shards.find_named(posted, Lookup::Alias));
    let paused = if options.dry_run { None } else { ingest.pause(options.group, namespace, name).await? };
    // Not yet created upstream. A client can patch an event whose create was answered with 201.
    let unstored = |status: Status| {
        let unstored = posted.as_ref().and_then(|posted| shards.find_named(posted, Lookup::Unstored));
        unstored.and_then(|found| found.unsettled).ok_or(status)
    };
    let Some(paused) = paused else {
        let stored_name = found.map_or_else(|| name.into(), |found| found.name);
        let patch = renamed(patch, name, &stored_name);
        let patched = match upstream.patch(namespace, &stored_name, &patch, options).await {
            Err(status) if status.code == 404 && options.dry_run => {
                write_patched(ingest, &unstored(status)?, &patch, options).await
            }
            answer => answer,
        };
        return patched.map(|patched| (patched, stated)).map_err(|status| under(name, &stored_name, status));
    };
    let stored_name = paused.name();
    let patch = renamed(patch, name, &stored_name);
    let mut owed_total = None;
    let (patched, line) = match upstream.patch(namespace, &stored_name, &patch, options).await {
        Err(status) if status.code == 404 => {
            let owed = unstored(status)?;
            owed_total = Some(aliases::total(&owed));
            (write_patched(ingest, &owed, &patch, options).await, Line::Created)
        }
        answer => (answer, stated),
    };
    let patched = match patched {
        Err(status) => {
            ingest.doubt(paused, (namespace, name), total.or(owed_total), &status).await;
            return Err(under(name, &stored_name, status));
        }
        Ok(patched) => patched,
    };
    let stated = paused.stated(&patched.event, stated);
    paused.follow(&patched.event, line);
    ack::followed(ingest).await;
    Ok((patched, stated))
}

/// Patches an event that is not yet created upstream, and writes it.
async fn write_patched(
    ingest: &Ingest,
    owed: &Event,
    patch: &ClientPatch,
    options: &WriteOptions,
) -> Result<Patched, Status> {
    let patched = patching::apply(patch.patch_type, &patch.body, options.group, options.validation, owed);
    let Patched { event, warnings } = patched?;
    validate::update(options.group, owed, &event)?;
    // By core/v1, like all records: the other API group accepts no counts.
    let asked = WriteOptions { group: ApiGroup::Core, ..options.clone() };
    let event = ingest.0.upstream.update(event, &asked).await?.event;
    Ok(Patched { event, warnings })
}

/// Replaces the client's name in a patch by the record's name.
fn renamed(patch: &ClientPatch, name: &str, stored_name: &str) -> ClientPatch {
    let ClientPatch { patch_type, body } = patch;
    // Cheap: the body is shared. Most patches name no event.
    let mut renamed = patch.clone();
    if name == stored_name {
        return renamed;
    }
    let Ok(mut document) = serde_json::from_slice::<Value>(body) else { return renamed };
    let places: Vec<&mut Value> = match (patch_type, &mut document) {
        (PatchType::Json, Value::Array(operations)) => operations
            .iter_mut()
            .filter(|operation| operation["path"] == "/metadata/name")
            .filter_map(|operation| operation.get_mut("value"))
            .collect(),
        (PatchType::Merge | PatchType::StrategicMerge, document) => {
            document.pointer_mut("/metadata/name").into_iter().collect()
        }
        (PatchType::Json, _) => Vec::new(),
    };
    let mut changed = false;
    for place in places {
        if *place == name {
            *place = stored_name.into();
            changed = true;
        }
    }
    if changed {
        renamed.body = document.to_string().into();
    }
    renamed
}

/// Returns whether the patch sets the count or the series, and the total that it sets.
pub(super) fn stated(patch: &ClientPatch) -> (Line, Option<i64>) {
    let document: Value = serde_json::from_slice(&patch.body).unwrap_or_default();
    let operations = match (patch.patch_type, &document) {
        (PatchType::Json, Value::Array(operations)) => operations,
        (PatchType::Json, _) => return (Line::Unstated, None),
        (PatchType::Merge | PatchType::StrategicMerge, _) => {
            return (aliases::stated(&document), aliases::stated_total(&document));
        }
    };
    let total = operations.iter().rev().find_map(|operation| {
        let value = operation.get("value").filter(|_| operation["op"] != "test")?;
        match operation["path"].as_str()? {
            "/count" | "/deprecatedCount" | "/series/count" => value.as_i64(),
            "/series" => value["count"].as_i64(),
            _ => None,
        }
    });
    let mut members = operations.iter().filter_map(|operation| operation["path"].as_str()?.split('/').nth(1));
    (if members.any(aliases::is_line) { Line::Stated } else { Line::Unstated }, total)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patch(patch_type: PatchType, body: &str) -> ClientPatch {
        ClientPatch { patch_type, body: body.to_owned().into() }
    }

    #[test]
    fn only_the_clients_own_name_is_replaced() {
        let check = |patch_type, body: &str, expected: &str| {
            assert_eq!(renamed(&patch(patch_type, body), "mine", "real").body, expected);
        };
        for patch_type in [PatchType::Merge, PatchType::StrategicMerge] {
            check(patch_type, r#"{"metadata":{"name":"mine"}}"#, r#"{"metadata":{"name":"real"}}"#);
            check(patch_type, r#"{ "metadata":{"name":"other"}}"#, r#"{ "metadata":{"name":"other"}}"#);
            check(patch_type, r#"{ "count":2.0}"#, r#"{ "count":2.0}"#);
            check(patch_type, "{", "{");
        }
        let test = r#"[{"op":"test","path":"/metadata/name","value":"mine"},{"op":"remove","path":"/metadata/name"}]"#;
        check(PatchType::Json, test, &test.replace("mine", "real"));
        check(PatchType::Json, "[1]", "[1]");
    }

    #[test]
    fn only_count_and_series_state_a_line() {
        let check =
            |patch_type, body: &str, expected| assert_eq!(stated(&patch(patch_type, body)).0, expected, "{body}");
        check(PatchType::Merge, r#"{"count":2}"#, Line::Stated);
        check(PatchType::Merge, r#"{"reason":"R"}"#, Line::Unstated);
        check(PatchType::Json, r#"[{"op":"remove","path":"/series/count"}]"#, Line::Stated);
        check(PatchType::Json, r#"[{"op":"remove","path":"/source/host"}]"#, Line::Unstated);
        check(PatchType::Json, "{", Line::Unstated);
    }
}
