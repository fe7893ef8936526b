//! The embedded store in simulated time, in seconds since the start. `tests/api` replays the recorded answers of an
//! apiserver.

use std::num::NonZeroUsize;

use super::*;
use crate::event::patching::PatchType;
use crate::upstream::{
    ClientPatch, DeleteOptions, Deleted, ListOptions, Version, WatchEvent, WatchOptions, WriteOptions,
};

fn at(seconds: i64) -> Now {
    Now::at(seconds * 1_000_000_000)
}

fn store() -> Store {
    Store::new(Settings::default(), 1)
}

/// Returns a store with events of these names in the namespace `shop`.
fn holding(settings: Settings, names: &[&str]) -> Store {
    let mut store = Store::new(settings, 1);
    for name in names {
        store.create(named("shop", name), at(0)).unwrap();
    }
    store
}

fn named(namespace: &str, name: &str) -> Event {
    let mut event = Event { count: 1, last_timestamp: Some(Time(5)), message: "m".into(), ..Event::default() };
    event.event_type = "Normal".into();
    event.metadata.namespace = namespace.into();
    event.metadata.name = name.into();
    event.involved_object.namespace = namespace.into();
    event
}

fn set_count(store: &mut Store, name: &str, count: i32, now: Now) {
    store.update("shop", name, now, |event| event.count = count).unwrap();
}

fn names(page: &Page) -> Vec<String> {
    page.items.iter().map(|event| format!("{}/{}", event.metadata.namespace, event.metadata.name)).collect()
}

fn listed(store: &mut Store, namespace: Option<&str>, options: &ListOptions) -> Vec<String> {
    names(&store.list(namespace, options, at(0)).unwrap())
}

#[test]
fn uids_are_random_uuids() {
    let mut store = store();
    let [uid, other] = ["a", "b"].map(|name| store.create(named("shop", name), at(0)).unwrap().metadata.uid);
    assert_eq!((uid.len(), &uid[14..15]), (36, "4"), "{uid}");
    assert!(uid[19..20].contains(['8', '9', 'a', 'b']) && uid != other, "{uid}");
}

#[test]
fn the_bytes_of_a_store_are_those_of_its_events() {
    let mut store = store();
    for size in [10, 5_000, 20] {
        let change = |event: &mut Event| event.message = "x".repeat(size).into();
        if store.update("shop", "a", at(0), change).is_err() {
            store.create(named("shop", "a"), at(0)).unwrap();
        }
        assert_eq!(store.bytes, store.events.values().map(|stored| stored.event.approximate_size()).sum::<usize>());
    }
    store.delete("shop", "a", &DeleteOptions::default(), at(0)).unwrap();
    assert_eq!(store.bytes, 0);
}

#[test]
fn at_the_limit_of_events_the_first_to_expire_is_evicted() {
    let max_events = NonZeroUsize::new(2).unwrap();
    let mut store = Store::new(Settings { max_events, ..Settings::default() }, 1);
    store.create(named("shop", "a"), at(0)).unwrap();
    store.create(named("shop", "b"), at(1)).unwrap();
    set_count(&mut store, "a", 2, at(2));
    assert_eq!(store.evicted(), 0);
    store.create(named("shop", "c"), at(3)).unwrap();
    assert_eq!(listed(&mut store, None, &ListOptions::default()), ["shop/a", "shop/c"]);
    assert_eq!(store.evicted(), 1);
}

#[test]
fn at_the_limit_of_bytes_the_newest_event_stays() {
    let max_bytes = NonZeroUsize::new(10_000).unwrap();
    let mut store = holding(Settings { max_bytes, ..Settings::default() }, &["a", "b"]);
    let large = Event { message: "x".repeat(20_000).into(), ..named("shop", "c") };
    store.create(large, at(1)).unwrap();
    assert_eq!(listed(&mut store, None, &ListOptions::default()), ["shop/c"]);
    assert_eq!(store.evicted(), 2);
}

#[test]
fn lists_are_in_the_order_of_etcds_keys() {
    let mut store = store();
    for (namespace, name) in [("a", "x"), ("a-b", "x"), ("a", "b"), ("a0", "x"), ("a", "B")] {
        store.create(named(namespace, name), at(0)).unwrap();
    }
    let all = ["a-b/x", "a/B", "a/b", "a/x", "a0/x"];
    assert_eq!(listed(&mut store, None, &ListOptions::default()), all);
    assert_eq!(listed(&mut store, Some("a"), &ListOptions::default()), ["a/B", "a/b", "a/x"]);
    let page = store.list(None, &ListOptions::default(), at(0)).unwrap();
    assert!(page.items.iter().all(|event| event.type_meta.is_none()));
}

#[test]
fn pages_have_the_version_of_the_first_and_show_the_current_state() {
    let mut store = holding(Settings::default(), &["a1", "a2", "a3", "b1", "b2"]);
    store.create(named("zoo", "z"), at(0)).unwrap();
    let mut options = ListOptions { limit: 2, ..ListOptions::default() };
    let first = store.list(Some("shop"), &options, at(0)).unwrap();
    assert_eq!((names(&first), first.remaining_item_count), (vec!["shop/a1".into(), "shop/a2".into()], Some(3)));
    store.delete("shop", "a3", &DeleteOptions::default(), at(1)).unwrap();
    store.create(named("shop", "a4"), at(1)).unwrap();
    set_count(&mut store, "b1", 8, at(1));
    options.continue_token = first.continue_token.into();
    let second = store.list(Some("shop"), &options, at(1)).unwrap();
    assert_eq!((names(&second), second.remaining_item_count), (vec!["shop/a4".into(), "shop/b1".into()], Some(1)));
    assert_eq!((second.items[1].count, &second.resource_version), (8, &first.resource_version));
    options.continue_token = second.continue_token.into();
    let third = store.list(Some("shop"), &options, at(1)).unwrap();
    assert_eq!((names(&third), third.remaining_item_count), (vec!["shop/b2".into()], None));
    assert_eq!((third.continue_token.as_str(), &third.resource_version), ("", &first.resource_version));
}

#[test]
fn pages_end_with_the_window_of_changes_but_can_be_continued() {
    let max_changes = NonZeroUsize::new(2).unwrap();
    let mut store = holding(Settings { max_changes, ..Settings::default() }, &["a", "b", "c"]);
    let mut options = ListOptions { limit: 1, ..ListOptions::default() };
    options.continue_token = store.list(None, &options, at(0)).unwrap().continue_token.into();
    store.create(named("shop", "d"), at(0)).unwrap();
    assert!(store.list(None, &options, at(0)).is_ok());
    store.create(named("shop", "e"), at(0)).unwrap();
    let status = store.list(None, &options, at(0)).unwrap_err();
    assert_eq!((status.code, status.reason.as_str()), (410, "Expired"));
    options.continue_token = status.continue_token;
    let page = store.list(None, &options, at(0)).unwrap();
    assert_eq!((names(&page), page.resource_version.as_str()), (vec!["shop/b".into()], "6"));
}

#[test]
fn a_list_is_the_newest_and_changes_are_remembered_within_the_window() {
    let max_changes = NonZeroUsize::new(2).unwrap();
    let mut store = holding(Settings { max_changes, ..Settings::default() }, &["a", "b", "c", "d"]);
    for (version, expected) in
        [(Version::Exact(5), Ok(4)), (Version::AtLeast(6), Err(504)), (Version::NotOlderThan(6), Err(504))]
    {
        let options = ListOptions { version, ..ListOptions::default() };
        let found = store.list(None, &options, at(0)).map(|page| page.items.len()).map_err(|status| status.code);
        assert_eq!(found, expected, "{version:?}");
    }
    assert_eq!(store.changes_since(3).unwrap().map(|change| change.revision).collect::<Vec<_>>(), [4, 5]);
    assert_eq!(store.changes_since(2).map(|_| ()).unwrap_err().reason, "Expired");
    assert_eq!(store.changes_since(6).map(|_| ()).unwrap_err().reason, "Expired");
}

#[test]
fn forged_continue_tokens_lead_nowhere_else() {
    let mut store = holding(Settings::default(), &["a", "b", "c"]);
    let forged = |revision, start: &str| {
        token::Token { revision: Some(revision), remaining: None, start: start.to_owned() }.to_text()
    };
    let options = ListOptions { continue_token: forged(99, "shop/a"), ..ListOptions::default() };
    assert_eq!(store.list(None, &options, at(0)).unwrap_err().code, 504);
    // No start leads outside the range of the namespace.
    for start in ["zoo/a", "0", "~"] {
        let options = ListOptions { continue_token: forged(4, start), ..ListOptions::default() };
        let found = store.list(Some("shop"), &options, at(0)).unwrap().items.len();
        assert_eq!(found, if start == "0" { 3 } else { 0 }, "{start}");
    }
}

#[test]
fn an_event_with_a_finalizer_is_marked_once_and_a_dry_run_stores_nothing() {
    let mut store = store();
    let mut event = named("shop", "a");
    event.metadata.rare.get_or_insert_default().finalizers.push("example.com/wait".into());
    let event = store.create(event, at(0)).unwrap();
    let mut delete = |second, dry_run| {
        let options = DeleteOptions { dry_run, ..DeleteOptions::default() };
        let Deleted::Marked(marked) = store.delete("shop", "a", &options, at(second)).unwrap() else { panic!("gone") };
        (marked.metadata.rare.unwrap().deletion_timestamp, store.get("shop", "a", at(second)).unwrap())
    };
    assert_eq!(delete(1, true), (Some(Time(1)), event));
    let (marked, stored) = delete(2, false);
    assert_eq!(marked, Some(Time(2)));
    assert_eq!(delete(3, false), (marked, stored));
}

#[test]
fn a_put_creates_valid_events_only_and_sets_neither_deletion_nor_generation() {
    let mut store = store();
    let options = WriteOptions::new("m", ApiGroup::Core);
    let mut foreign = named("shop", "b");
    foreign.involved_object.namespace = "zoo".into();
    assert_eq!(store.replace(foreign, &options, at(0)).unwrap_err().code, 422);
    let mut dead = named("shop", "c");
    dead.metadata.rare.get_or_insert_default().deletion_timestamp = Some(Time(1));
    let created = store.replace(dead, &options, at(0)).unwrap().event;
    assert_eq!(created.metadata.rare.and_then(|rare| rare.deletion_timestamp), None);
    let with = |count, generation| {
        let mut event = Event { count, ..named("shop", "a") };
        event.metadata.rare.get_or_insert_default().generation = generation;
        event
    };
    store.create(with(1, 7), at(0)).unwrap();
    let replaced = store.replace(with(2, 8), &options, at(0)).unwrap().event;
    assert_eq!(replaced.metadata.rare.unwrap().generation, 7);
}

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
            store.patch("shop", "a", &patch, &WriteOptions::new("m", ApiGroup::Core), now).is_err()
        }),
        ("create", |store, now| store.create(named("shop", "a"), now).is_ok()),
        ("update", |store, now| store.update("shop", "a", now, |_| ()).is_err()),
        ("delete", |store, now| store.delete("shop", "a", &DeleteOptions::default(), now).is_err()),
        ("replace", |store, now| {
            let event = Event { count: 7, ..named("shop", "a") };
            let options = WriteOptions::new("m", ApiGroup::Core);
            store.replace(event, &options, now).is_ok_and(|updated| updated.created)
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
