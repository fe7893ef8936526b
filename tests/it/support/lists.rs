//! LIST and WATCH of the fake API server. A watch has what has changed so far, and ends.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::HashMap;
use std::sync::Arc;

use eventweir::clock::Now;
use eventweir::event::json::{self, EventList};
use eventweir::event::{ApiGroup, Event, WatchEvent};
use eventweir::status::Status;
use eventweir::upstream::store::Store;
use eventweir::upstream::{FieldSelector, LabelSelector, ListOptions, WatchOptions};

use super::fake::managed;

/// A LIST, or a WATCH from a version.
#[derive(Default)]
pub(crate) struct Reading {
    pub(crate) list: ListOptions,
    watch: Option<WatchOptions>,
}

impl Reading {
    pub(crate) fn read(group: ApiGroup, query: &str) -> Self {
        let pairs: HashMap<_, _> = form_urlencoded::parse(query.as_bytes()).collect();
        let text = |name: &str| pairs.get(name).map(AsRef::as_ref).unwrap_or_default();
        let number = |name: &str| text(name).parse().unwrap_or(0);
        let field_selector = FieldSelector::parse(text("fieldSelector"), group).unwrap();
        let label_selector = LabelSelector::parse(text("labelSelector")).unwrap();
        let watch = (text("watch") == "true").then(|| WatchOptions {
            field_selector: field_selector.clone(),
            label_selector: label_selector.clone(),
            resource_version: number("resourceVersion"),
            ..WatchOptions::default()
        });
        let (limit, continue_token) = (usize::try_from(number("limit")).unwrap(), text("continue").to_owned());
        Self {
            list: ListOptions { limit, continue_token, field_selector, label_selector, ..Default::default() },
            watch,
        }
    }

    pub(crate) fn answer(
        &self,
        store: &mut Store,
        group: ApiGroup,
        namespace: &str,
        now: Now,
    ) -> Result<Vec<u8>, Status> {
        let mut body = Vec::new();
        let Some(watch) = &self.watch else {
            let page = store.list(Some(namespace), &self.list, now)?;
            let items = page.items.into_iter().map(|event| managed(Arc::unwrap_or_clone(event))).collect();
            let list = EventList {
                resource_version: page.resource_version,
                continue_token: page.continue_token,
                items,
                ..EventList::default()
            };
            json::write_list(group, &list, &mut body);
            return Ok(body);
        };
        for event in store.watch(Some(namespace), watch, watch.resource_version, now)?.events {
            body.extend_from_slice(format!("{{\"type\":\"{}\",\"object\":", event.label()).as_bytes());
            let (WatchEvent::Added(object) | WatchEvent::Modified(object) | WatchEvent::Deleted(object)) = &event
            else {
                continue;
            };
            json::write_json(group, &managed(Event::clone(object)), &mut body);
            body.extend_from_slice(b"}\n");
        }
        Ok(body)
    }
}
