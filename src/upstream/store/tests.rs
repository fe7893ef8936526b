//! The embedded store in simulated time, in seconds since the start. `tests/api` replays the recorded answers of an
//! apiserver.

use std::num::NonZeroUsize;
use std::time::Duration;

use super::*;
use crate::event::ApiGroup;
use crate::upstream::{DeleteOptions, FieldSelector, ListOptions, Version};

pub(super) fn at(seconds: i64) -> Now {
    Now::at(seconds * 1_000_000_000)
}

pub(super) fn store() -> Store {
    Store::new(Settings::default(), 1)
}

pub(super) fn named(namespace: &str, name: &str) -> Event {
    let mut event = Event { count: 1, last_timestamp: Some(Time(5)), message: "m".into(), ..Event::default() };
    event.event_type = "Normal".into();
    event.metadata.namespace = namespace.into();
    event.metadata.name = name.into();
    event.involved_object.namespace = namespace.into();
    event
}

pub(super) fn set_count(store: &mut Store, name: &str, count: i32, now: Now) {
    let change = |event: &mut Event| {
        event.count = count;
        Ok(())
    };
    store.update("shop", name, now, change).unwrap();
}

fn next_expiry(store: &Store) -> Option<Mono> {
    store.by_expiry.keys().next().map(|&(expires, _)| expires)
}

fn names(page: &Page) -> Vec<String> {
    page.items.iter().map(|event| format!("{}/{}", event.metadata.namespace, event.metadata.name)).collect()
}

fn listed(store: &mut Store, namespace: Option<&str>, options: &ListOptions) -> Vec<String> {
    names(&store.list(namespace, options, at(0)).unwrap())
}

#[test]
fn create_sets_what_the_server_sets() {
    let mut store = store();
    let created = store.create(named("shop", "a"), at(100)).unwrap();
    assert_eq!(created.metadata.resource_version, "2");
    assert_eq!(created.metadata.creation_timestamp, Some(Time(100)));
    assert_eq!(created.type_meta, Some(ApiGroup::Core));
    let uid = created.metadata.uid.as_str();
    assert_eq!((uid.len(), &uid[14..15]), (36, "4"), "{uid}");
    assert!(uid[19..20].contains(['8', '9', 'a', 'b']), "{uid}");
    assert_eq!(store.get("shop", "a", at(101)).unwrap(), created);
    let second = store.create(named("shop", "b"), at(101)).unwrap();
    assert_eq!(second.metadata.resource_version, "3");
    assert_ne!(second.metadata.uid, created.metadata.uid);
}

#[test]
fn the_same_seed_gives_the_same_uids() {
    let uid = |seed| Store::new(Settings::default(), seed).create(named("shop", "a"), at(0)).unwrap().metadata.uid;
    assert_eq!(uid(7), uid(7));
    assert_ne!(uid(7), uid(8));
}

#[test]
fn invalid_creates_are_refused() {
    let mut store = store();
    store.create(named("shop", "a"), at(0)).unwrap();
    let mut check = |event: Event, expected: Status| {
        assert_eq!(store.create(event, at(0)).unwrap_err(), expected);
    };
    check(named("shop", "a"), Status::already_exists("", "events", "a"));
    assert_eq!((store.revision(), store.len()), (2, 1));
}

#[test]
fn the_bytes_of_a_store_are_those_of_its_events() {
    let mut store = store();
    for size in [10, 5_000, 20] {
        let change = |event: &mut Event| {
            event.message = "x".repeat(size).into();
            Ok(())
        };
        if store.update("shop", "a", at(0), change).is_err() {
            store.create(named("shop", "a"), at(0)).unwrap();
        }
        assert_eq!(store.bytes, store.events.values().map(|stored| stored.event.approximate_size()).sum::<usize>());
    }
    store.delete("shop", "a", &DeleteOptions::default(), at(0)).unwrap();
    assert_eq!(store.bytes, 0);
}

#[test]
fn a_write_without_an_effect_changes_neither_version_nor_expiry() {
    let mut store = store();
    let created = store.create(named("shop", "a"), at(0)).unwrap();
    assert_eq!(store.update("shop", "a", at(9), |_| Ok(())).unwrap(), created);
    assert_eq!((store.revision(), next_expiry(&store)), (2, Some(at(3600).mono)));
    set_count(&mut store, "a", 2, at(9));
    assert_eq!((store.revision(), next_expiry(&store)), (3, Some(at(3609).mono)));
}

#[test]
fn listed_namespaces_and_those_of_the_server_exist() {
    let namespaces = Namespaces::List(["shop".into()].into());
    let mut store = Store::new(Settings { namespaces, ..Settings::default() }, 1);
    for namespace in ["shop", "default", "kube-system"] {
        store.create(named(namespace, "a"), at(0)).unwrap();
    }
    let status = store.create(named("x", "a"), at(0)).unwrap_err();
    assert_eq!((status.code, status.message.as_str()), (404, r#"namespaces "x" not found"#));
    assert_eq!(status.details.unwrap().kind, "namespaces");
    assert!(store.has_namespace("shop") && !store.has_namespace("x"));
    assert_eq!(store.get("x", "a", at(0)).unwrap_err(), Status::not_found("", "events", "a"));
    assert!(store.list(Some("x"), &ListOptions::default(), at(0)).unwrap().items.is_empty());
}

#[test]
fn expired_events_are_removed_with_a_change() {
    let mut store = store();
    store.create(named("shop", "a"), at(0)).unwrap();
    assert_eq!(next_expiry(&store), Some(at(3600).mono));
    assert_eq!(store.expire(at(3599)), 0);
    assert_eq!(store.expire(at(3600)), 1);
    let page = store.list(None, &ListOptions::default(), at(3600)).unwrap();
    assert_eq!((page.items.len(), page.resource_version.as_str()), (0, "3"));
    let last = store.changes_since(2).unwrap().next().unwrap();
    assert_eq!((last.revision, last.before.is_some(), last.after.is_none()), (3, true, true));
    assert_eq!(next_expiry(&store), None);
    assert_eq!(store.bytes, 0);
}

#[test]
fn a_ttl_of_zero_keeps_events() {
    let mut store = Store::new(Settings { ttl: Duration::ZERO, ..Settings::default() }, 1);
    store.create(named("shop", "a"), at(0)).unwrap();
    assert_eq!(next_expiry(&store), Some(NEVER));
    assert!(store.get("shop", "a", at(1_000_000)).is_ok());
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
    let mut store = Store::new(Settings { max_bytes, ..Settings::default() }, 1);
    for name in ["a", "b"] {
        store.create(named("shop", name), at(0)).unwrap();
    }
    let large = Event { message: "x".repeat(20_000).into(), ..named("shop", "c") };
    store.create(large, at(1)).unwrap();
    assert_eq!(listed(&mut store, None, &ListOptions::default()), ["shop/c"]);
    assert_eq!(store.evicted(), 2);
}

#[test]
fn update_keeps_what_the_server_owns_and_undoes_a_failed_change() {
    let mut store = store();
    let created = store.create(named("shop", "a"), at(0)).unwrap();
    let updated = store.update("shop", "a", at(1), |event| {
        *event = named("other", "name");
        event.reason = "r".into();
        Ok(())
    });
    let updated = updated.unwrap();
    assert_eq!((updated.metadata.name.as_str(), updated.metadata.namespace.as_str()), ("a", "shop"));
    assert_eq!((&updated.metadata.uid, updated.reason.as_str()), (&created.metadata.uid, "r"));
    let failed = store.update("shop", "a", at(2), |event| {
        event.reason = "s".into();
        Err(Status::bad_request("no"))
    });
    assert_eq!(failed.unwrap_err().message, "no");
    assert_eq!(store.get("shop", "a", at(2)).unwrap(), updated);
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
    let mut store = store();
    for name in ["a1", "a2", "a3", "b1", "b2"] {
        store.create(named("shop", name), at(0)).unwrap();
    }
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
    let mut store = Store::new(Settings { max_changes, ..Settings::default() }, 1);
    for name in ["a", "b", "c"] {
        store.create(named("shop", name), at(0)).unwrap();
    }
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
fn a_selector_leaves_the_remaining_count_out() {
    let mut store = store();
    for (name, event_type) in [("a1", "Warning"), ("a2", "Normal"), ("a3", "Normal")] {
        store.create(Event { event_type: event_type.into(), ..named("shop", name) }, at(0)).unwrap();
    }
    let field_selector = FieldSelector::parse("type=Normal", ApiGroup::Core).unwrap();
    let options = ListOptions { limit: 1, field_selector, ..ListOptions::default() };
    let page = store.list(None, &options, at(0)).unwrap();
    assert_eq!((names(&page), page.remaining_item_count), (vec!["shop/a2".into()], None));
    let options = ListOptions { continue_token: page.continue_token.into(), ..options };
    let page = store.list(None, &options, at(0)).unwrap();
    assert_eq!((names(&page), page.continue_token.as_str()), (vec!["shop/a3".into()], ""));
}

#[test]
fn a_list_is_the_newest_and_changes_are_remembered_within_the_window() {
    let max_changes = NonZeroUsize::new(2).unwrap();
    let mut store = Store::new(Settings { max_changes, ..Settings::default() }, 1);
    for name in ["a", "b", "c", "d"] {
        store.create(named("shop", name), at(0)).unwrap();
    }
    let mut check = |version, limit, expected: Result<usize, u16>| {
        let options = ListOptions { version, limit, ..ListOptions::default() };
        let found = store.list(None, &options, at(0)).map(|page| page.items.len()).map_err(|status| status.code);
        assert_eq!(found, expected, "{version:?} {limit}");
    };
    check(Version::Exact(5), 0, Ok(4));
    check(Version::Exact(4), 0, Err(410));
    check(Version::Exact(6), 0, Err(504));
    for limit in [0, 9] {
        check(Version::AtLeast(2), limit, Ok(4));
        check(Version::AtLeast(6), limit, Err(504));
        check(Version::NotOlderThan(2), limit, Ok(4));
        check(Version::NotOlderThan(6), limit, Err(504));
    }
    assert_eq!(store.changes_since(3).unwrap().map(|change| change.revision).collect::<Vec<_>>(), [4, 5]);
    assert_eq!(store.changes_since(2).map(|_| ()).unwrap_err().reason, "Expired");
    assert_eq!(store.changes_since(6).map(|_| ()).unwrap_err().reason, "Expired");
}

#[test]
fn versions_begin_above_those_of_an_earlier_start() {
    let started = |seconds| Store::started(Settings::default(), 1, at(seconds));
    let mut first = started(1_772_352_000);
    let token = {
        for number in 0..1000 {
            first.create(named("shop", &format!("e{number}")), at(1)).unwrap();
        }
        first.list(None, &ListOptions { limit: 1, ..ListOptions::default() }, at(1)).unwrap().continue_token
    };
    let mut second = started(1_772_352_001);
    assert!(second.revision() > first.revision());
    assert_eq!(second.changes_since(first.revision()).map(|_| ()).unwrap_err().code, 410);
    assert_eq!(second.changes_since(second.revision()).unwrap().count(), 0);
    let options = ListOptions { continue_token: token.into(), ..ListOptions::default() };
    assert_eq!(second.list(None, &options, at(2)).unwrap_err().code, 410);
    // A clock before 1970 counts as 0.
    assert_eq!(started(-5).revision(), 1);
}

#[test]
fn bad_continue_tokens_are_refused() {
    let mut store = store();
    for name in ["a", "b", "c"] {
        store.create(named("shop", name), at(0)).unwrap();
    }
    let page = store.list(None, &ListOptions { limit: 1, ..ListOptions::default() }, at(0)).unwrap();
    let good = page.continue_token.as_str();
    let mut check = |namespace, token: &str, version, expected: u16| {
        let options = ListOptions { limit: 1, continue_token: token.to_owned(), version, ..ListOptions::default() };
        assert_eq!(store.list(namespace, &options, at(0)).unwrap_err().code, expected, "{token}");
    };
    check(None, good, Version::Exact(2), 400);
    let forged = |revision, start: &str| {
        token::Token { revision: Some(revision), remaining: None, start: start.to_owned() }.to_text()
    };
    check(None, &forged(99, "shop/a"), Version::Newest, 504);
    // No start leads outside the range of the namespace.
    for start in ["zoo/a", "0", "~"] {
        let options = ListOptions { continue_token: forged(4, start), ..ListOptions::default() };
        let found = store.list(Some("shop"), &options, at(0)).unwrap().items.len();
        assert_eq!(found, if start == "0" { 3 } else { 0 }, "{start}");
    }
}
