//! DELETE, PUT and PATCH of the embedded store: preconditions, dry runs, finalizers, and what a client cannot set.

use super::tests::{at, named, store};
use super::*;
use crate::event::json::FieldValidation;
use crate::event::patching::PatchType;
use crate::upstream::{ClientPatch, DeleteOptions, Deleted, PatchOptions, UpdateOptions, Updated, Writer};

/// Returns a store with an event `a`, and the event.
fn stored() -> (Store, Event) {
    let mut store = store();
    let event = store.create(named("shop", "a"), at(0)).unwrap();
    (store, event)
}

/// Returns a store with an event `a` with a finalizer, and the event.
fn finalized() -> (Store, Event) {
    let mut store = store();
    let mut event = named("shop", "a");
    event.metadata.rare.get_or_insert_default().finalizers.push("example.com/wait".into());
    let event = store.create(event, at(0)).unwrap();
    (store, event)
}

fn writer() -> Writer {
    Writer { manager: "m".into(), group: ApiGroup::Core }
}

const DRY: DeleteOptions = DeleteOptions { uid: None, resource_version: None, dry_run: true };

fn put() -> UpdateOptions {
    UpdateOptions { writer: writer(), dry_run: false }
}

fn patch(store: &mut Store, body: &str, dry_run: bool) -> Result<Event, Status> {
    let patch = ClientPatch { patch_type: PatchType::Merge, body: body.to_owned().into() };
    let options = PatchOptions { writer: writer(), dry_run, validation: FieldValidation::Ignore };
    store.patch("shop", "a", &patch, &options, at(1)).map(|patched| patched.event)
}

fn code<T>(result: Result<T, Status>) -> Option<u16> {
    result.err().map(|status| status.code)
}

#[test]
fn a_delete_happens_only_under_its_preconditions() {
    let (mut store, event) = stored();
    let (uid, version) = (event.metadata.uid, event.metadata.resource_version);
    let mut delete = |uid: Option<&str>, version: Option<&str>| {
        let options =
            DeleteOptions { uid: uid.map(Into::into), resource_version: version.map(Into::into), dry_run: false };
        code(store.delete("shop", "a", &options, at(1)))
    };
    assert_eq!(delete(Some("other"), None), Some(409));
    assert_eq!(delete(None, Some("1")), Some(409));
    assert_eq!(delete(Some(&uid), Some("1")), Some(409));
    assert_eq!(delete(Some(&uid), Some(&version)), None);
    assert_eq!(delete(None, None), Some(404));
}

#[test]
fn a_dry_run_changes_nothing() {
    let (mut store, event) = stored();
    let (mut marked, with_finalizer) = finalized();
    store.delete("shop", "a", &DRY, at(1)).unwrap();
    marked.delete("shop", "a", &DRY, at(1)).unwrap();
    let changed = Event { count: 7, ..event.clone() };
    let dry_put = UpdateOptions { dry_run: true, ..put() };
    let shown = store.replace(changed, &dry_put, at(1)).unwrap();
    assert_eq!((shown.event.count, shown.created), (7, false));
    assert_eq!(patch(&mut store, r#"{"count":7}"#, true).unwrap().count, 7);
    let Updated { event: shown, created } = store.replace(named("shop", "b"), &dry_put, at(1)).unwrap();
    assert!(created && !shown.metadata.uid.is_empty() && shown.metadata.creation_timestamp.is_some());
    store.try_create(named("shop", "c"), at(1)).unwrap();
    assert_eq!((store.get("shop", "a", at(1)).unwrap(), store.len(), store.revision()), (event, 1, 2));
    assert_eq!((marked.get("shop", "a", at(1)).unwrap(), marked.revision()), (with_finalizer, 2));
}

#[test]
fn an_event_with_a_finalizer_is_marked_once_and_deleted_with_its_last_one() {
    let (mut store, event) = finalized();
    let delete = |store: &mut Store, second| store.delete("shop", "a", &DeleteOptions::default(), at(second)).unwrap();
    let Deleted::Marked(marked) = delete(&mut store, 1) else { panic!("it is gone") };
    let rare = marked.metadata.rare.clone().unwrap();
    assert_eq!((rare.deletion_timestamp, rare.deletion_grace_period_seconds), (Some(Time(1)), Some(0)));
    assert_eq!(delete(&mut store, 2), Deleted::Marked(marked.clone()));
    assert_eq!(store.revision(), 3);
    // A PUT cannot unmark it.
    assert_eq!(code(store.replace(Event { count: 2, ..event }, &put(), at(3))), Some(409));
    let mut free = *marked;
    free.metadata.rare.get_or_insert_default().finalizers.clear();
    store.replace(free, &put(), at(3)).unwrap();
    assert!(store.is_empty());
    assert!(store.changes_since(3).unwrap().next().unwrap().after.is_none());
}

#[test]
fn a_put_replaces_the_stated_event_and_version_only() {
    let (mut store, event) = stored();
    let with = |uid: &str, version: &str| {
        let mut event = named("shop", "a");
        (event.metadata.uid, event.metadata.resource_version) = (uid.into(), version.into());
        event
    };
    let mut replace = |event| code(store.replace(event, &put(), at(1)));
    assert_eq!(replace(with("other", "")), Some(409));
    assert_eq!(replace(with("", "1")), Some(409));
    assert_eq!(replace(with("", "x")), Some(500));
    assert_eq!(
        replace(Event {
            metadata: crate::event::ObjectMeta { name: "b".into(), ..event.metadata.clone() },
            ..named("shop", "b")
        }),
        Some(409)
    );
    let mut foreign = named("shop", "a");
    foreign.involved_object.namespace = "zoo".into();
    assert_eq!(replace(foreign.clone()), Some(422));
    foreign.metadata.name = "c".into();
    assert_eq!(replace(foreign), Some(422));
    assert_eq!(replace(with(&event.metadata.uid, &event.metadata.resource_version)), None);
    let mut versioned = named("shop", "d");
    versioned.metadata.resource_version = "7".into();
    assert!(store.replace(versioned, &put(), at(1)).unwrap().created);
    assert_eq!(store.len(), 2);
}

#[test]
fn a_patch_changes_the_version_that_it_states_only() {
    let (mut store, _) = stored();
    let mut patch = |body: &str| patch(&mut store, body, false);
    let newer = patch(r#"{"count":2}"#).unwrap();
    assert_eq!((newer.count, newer.metadata.resource_version.as_str()), (2, "3"));
    for (body, expected) in [
        (r#"{"count":3,"metadata":{"resourceVersion":"2"}}"#, 409),
        (r#"{"count":3,"metadata":{"resourceVersion":"x"}}"#, 500),
        (r#"{"count":3,"metadata":{"uid":"other"}}"#, 422),
        (r#"{"count":3,"involvedObject":{"namespace":"zoo"}}"#, 422),
    ] {
        assert_eq!(code(patch(body)), Some(expected), "{body}");
    }
    assert_eq!(patch("{}").unwrap(), newer);
    assert_eq!(patch(r#"{"count":3,"metadata":{"resourceVersion":"3"}}"#).unwrap().count, 3);
}

#[test]
fn no_write_sets_what_the_server_owns() {
    let claimed = |name| {
        let mut event = named("shop", name);
        event.metadata.managed_fields = Some("[]".into());
        let rare = event.metadata.rare.get_or_insert_default();
        (rare.self_link, rare.generation) = ("/link".into(), 7);
        (rare.deletion_timestamp, rare.deletion_grace_period_seconds) = (Some(Time(1)), Some(1));
        event
    };
    let mut store = store();
    let created = store.create(claimed("a"), at(0)).unwrap();
    let is_clean = |event: &Event| {
        let rare = event.metadata.rare.as_deref().cloned().unwrap_or_default();
        event.metadata.managed_fields.is_none()
            && (rare.self_link.as_str(), rare.deletion_timestamp, rare.deletion_grace_period_seconds)
                == ("", None, None)
    };
    assert!(is_clean(&created), "{created:?}");
    let generation = |event: &Event| event.metadata.rare.as_deref().map_or(0, |rare| rare.generation);
    let mut wanted = Event { count: 2, ..claimed("a") };
    wanted.metadata.creation_timestamp = Some(Time(9));
    wanted.metadata.rare.get_or_insert_default().generation = 8;
    assert_eq!(code(store.replace(wanted.clone(), &put(), at(1))), Some(422), "times of deletion");
    let rare = wanted.metadata.rare.get_or_insert_default();
    (rare.deletion_timestamp, rare.deletion_grace_period_seconds) = (None, None);
    let replaced = store.replace(wanted, &put(), at(1)).unwrap().event;
    assert!(is_clean(&replaced), "{replaced:?}");
    assert_eq!(replaced.metadata.creation_timestamp, created.metadata.creation_timestamp);
    assert_eq!(generation(&replaced), generation(&created));
}
