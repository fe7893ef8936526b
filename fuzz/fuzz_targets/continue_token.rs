//! Continue tokens: each page is sorted and within its namespace, and its token leads to the next page.
#![no_main]

use std::cell::RefCell;

use eventweir::clock::Now;
use eventweir::event::Event;
use eventweir::upstream::ListOptions;
use eventweir::upstream::store::{Settings, Store};
use libfuzzer_sys::fuzz_target;

thread_local! {
    static STORE: RefCell<Store> = RefCell::new(filled());
}

fn filled() -> Store {
    let mut store = Store::new(Settings::default(), 1);
    for namespace in ["a", "shop", "shop-2"] {
        for name in ["a", "b", "b-1", "c"] {
            let mut event = Event::default();
            event.metadata.namespace = namespace.into();
            event.metadata.name = name.into();
            store.create(event, Now::at(0)).expect("the namespace exists");
        }
    }
    store
}

fuzz_target!(|token: &str| {
    STORE.with_borrow_mut(|store| {
        for namespace in [None, Some("shop"), Some("missing")] {
            let mut options = ListOptions { limit: 2, continue_token: token.to_owned(), ..ListOptions::default() };
            let mut last = None;
            // Each page has an event, except the first page of a token behind all events.
            for _ in 0..=12 {
                let Ok(page) = store.list(namespace, &options, Now::at(0)) else { break };
                assert!(page.items.len() <= 2);
                for event in &page.items {
                    assert!(namespace.is_none_or(|namespace| event.metadata.namespace == namespace));
                    let key = format!("{}/{}", event.metadata.namespace, event.metadata.name);
                    assert!(last.as_ref().is_none_or(|last| *last < key), "{key} after {last:?}");
                    last = Some(key);
                }
                if page.continue_token.is_empty() {
                    break;
                }
                assert!(!page.items.is_empty(), "a page without events has a continue token");
                options.continue_token = page.continue_token.to_string();
            }
        }
    });
});
