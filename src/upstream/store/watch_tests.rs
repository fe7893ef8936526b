//! Changes and watches of the embedded store: what each change shows, and where the window ends.

use std::num::NonZeroUsize;

use super::tests::{at, named, set_count, store};
use super::*;
use crate::event::json::FieldValidation;
use crate::event::patching::PatchType;
use crate::event::selector::FieldSelector;
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

fn set_type(store: &mut Store, name: &str, event_type: &str) {
    store.update("shop", name, at(0), |event| event.event_type = event_type.into()).unwrap();
}

#[test]
fn a_watch_shows_each_change_as_its_selector_sees_it() {
    let mut store = store();
    store.create(named("shop", "a"), at(0)).unwrap();
    set_type(&mut store, "a", "Warning");
    set_type(&mut store, "a", "Normal");
    set_count(&mut store, "a", 2, at(0));
    store.delete("shop", "a", &DeleteOptions::default(), at(0)).unwrap();
    store.create(named("shop-2", "b"), at(0)).unwrap();
    let all = [
        "ADDED a 2 Normal",
        "MODIFIED a 3 Warning",
        "MODIFIED a 4 Normal",
        "MODIFIED a 5 Normal",
        "DELETED a 6 Normal",
    ];
    assert_eq!(seen(&mut store, &WatchOptions::default(), 1, at(0)), (all.map(str::to_owned).to_vec(), 7));
    let field_selector = FieldSelector::parse("type=Normal", ApiGroup::Core).unwrap();
    let options = WatchOptions { field_selector, ..WatchOptions::default() };
    let normal =
        ["ADDED a 2 Normal", "DELETED a 3 Normal", "ADDED a 4 Normal", "MODIFIED a 5 Normal", "DELETED a 6 Normal"];
    assert_eq!(seen(&mut store, &options, 1, at(0)), (normal.map(str::to_owned).to_vec(), 7));
    assert_eq!(seen(&mut store, &options, 6, at(0)), (Vec::new(), 7));
}

#[test]
fn a_watch_that_is_far_behind_misses_nothing() {
    const CHANGES: usize = 2_500;
    let mut store = store();
    for number in 0..CHANGES {
        store.create(named("shop", &format!("e{number}")), at(0)).unwrap();
    }
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
