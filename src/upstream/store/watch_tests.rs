//! Changes and watches of the embedded store: what each change shows, and where the window ends.

use std::num::NonZeroUsize;

use super::tests::{at, named, store};
use super::*;
use crate::event::json::FieldValidation;
use crate::event::patching::PatchType;
use crate::upstream::{
    ClientPatch, DeleteOptions, ListOptions, PatchOptions, UpdateOptions, WatchEvent, WatchOptions, Writer,
};

/// Returns the events of a watch of `shop` after `revision`, as type, name, version and event type, and where the watch
/// continues.
fn seen(store: &mut Store, options: &WatchOptions, revision: u64, now: Now) -> (Vec<String>, u64) {
    let seen = store.watch(Some("shop"), options, revision, now).unwrap();
    let shown = seen.events.iter().map(|event| {
        let label = event.label();
        let (WatchEvent::Added(event) | WatchEvent::Modified(event) | WatchEvent::Deleted(event)) = event else {
            panic!("{event:?}")
        };
        let metadata = &event.metadata;
        format!("{label} {} {} {}", metadata.name, metadata.resource_version, event.event_type)
    });
    (shown.collect(), seen.revision)
}

#[test]
fn a_watch_that_is_far_behind_misses_nothing() {
    const CHANGES: usize = 2_500;
    let mut store = store();
    for number in 0..CHANGES {
        store.create(named("shop", &format!("e{number}")), at(0)).unwrap();
    }
    store.create(named("another", "e"), at(0)).unwrap();
    let (mut shown, mut revision) = (0, 1);
    while revision < store.revision() {
        let (events, reached) = seen(&mut store, &WatchOptions::default(), revision, at(0));
        assert!(reached > revision && !events.is_empty() && events.len() < CHANGES, "{}", events.len());
        (shown, revision) = (shown + events.len(), reached);
    }
    assert_eq!(shown, CHANGES);
}

#[test]
fn the_window_is_limited_to_a_quarter_of_the_stores_bytes() {
    let max_bytes = NonZeroUsize::new(200_000).unwrap();
    let mut store = Store::new(Settings { max_bytes, ..Settings::default() }, 1);
    let size = 10_000;
    for round in 0..100 {
        let event = Event { message: "x".repeat(size).into(), ..named("shop", &format!("e{round}")) };
        store.create(event, at(0)).unwrap();
        store.delete("shop", &format!("e{round}"), &DeleteOptions::default(), at(0)).unwrap();
        if round > 10 {
            let reached = |back| store.changes_since(store.revision() - back).is_ok();
            assert!(reached(4) && !reached(5), "{round}");
        }
    }
}

#[test]
fn every_operation_sees_expired_events_as_deleted() {
    type Operation = fn(&mut Store, Now) -> bool;
    let operations: [(&str, Operation); 8] = [
        ("get", |store, now| store.get("shop", "a", now).is_err()),
        ("patch", |store, now| {
            let patch = ClientPatch { patch_type: PatchType::Merge, body: "{}".into() };
            let writer = Writer { manager: "m".into(), group: ApiGroup::Core };
            let options = PatchOptions { writer, dry_run: false, validation: FieldValidation::Ignore };
            store.patch("shop", "a", &patch, &options, now).is_err()
        }),
        ("create", |store, now| store.create(named("shop", "a"), now).is_ok()),
        ("update", |store, now| store.update("shop", "a", now, |_| ()).is_err()),
        ("delete", |store, now| store.delete("shop", "a", &DeleteOptions::default(), now).is_err()),
        ("replace", |store, now| {
            let event = Event { count: 7, ..named("shop", "a") };
            let writer = Writer { manager: "m".into(), group: ApiGroup::Core };
            store.replace(event, &UpdateOptions { writer, dry_run: false }, now).is_ok_and(|updated| updated.created)
        }),
        ("list", |store, now| store.list(None, &ListOptions::default(), now).unwrap().items.is_empty()),
        ("watch", |store, now| seen(store, &WatchOptions::default(), 2, now).0 == ["DELETED a 3 Normal"]),
    ];
    for (name, operation) in operations {
        let mut store = store();
        store.create(named("shop", "a"), at(0)).unwrap();
        assert!(!operation(&mut store, at(3599)), "{name}");
        let mut store = self::store();
        store.create(named("shop", "a"), at(0)).unwrap();
        assert!(operation(&mut store, at(3600)), "{name}");
    }
}
