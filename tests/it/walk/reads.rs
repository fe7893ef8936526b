//! A client that lists events and then watches them. What it knows by its watch is what it lists later, and that is
//! what the upstream stores.

use std::collections::BTreeMap;

use eventweir::event::json::{decode_event, write_json};
use eventweir::event::{ApiGroup, Event};
use serde_json::Value;

use super::model::Group;
use super::process::Process;

/// Events by name.
type Known = BTreeMap<String, Value>;

pub(super) struct Reader {
    group: Group,
    /// Selectors in the words of the group.
    query: &'static str,
    is_selected: fn(&Event) -> bool,
    /// Version of the last list; empty before it.
    version: String,
    known: Known,
}

impl Reader {
    /// Returns readers with different selectors.
    pub(super) fn several() -> Vec<Self> {
        let reader =
            |group, query, is_selected| Self { group, query, is_selected, version: String::new(), known: Known::new() };
        vec![
            reader(Group::Core, "", |_| true),
            reader(Group::Events, "&limit=2", |_| true),
            reader(Group::Events, "&fieldSelector=regarding.name%3Dweb-0%2CreportingController%21%3Dx", |event| {
                event.involved_object.name == "web-0"
            }),
            reader(Group::Core, "&labelSelector=team&limit=1", |event| {
                event.metadata.rare.as_ref().is_some_and(|rare| rare.labels.contains_key("team"))
            }),
        ]
    }

    /// Lists what the upstream stores, and compares it with what the watch since the last list shows.
    pub(super) async fn read(&mut self, process: &Process, stored: impl Fn() -> Vec<Event>) {
        loop {
            let before = stored();
            let (version, listed) = self.list(process).await;
            let known = if self.version.is_empty() { listed.clone() } else { self.watch(process).await };
            // A list is encoded on another thread. What is due may be written meanwhile.
            if stored() != before {
                continue;
            }
            let selected = before.iter().filter(|event| (self.is_selected)(event));
            let expected = selected.map(|event| (event.metadata.name.to_string(), self.document(event))).collect();
            assert_eq!(listed, expected, "{}", self.query);
            assert_eq!(known, listed, "{}", self.query);
            (self.version, self.known) = (version, listed);
            return;
        }
    }

    async fn get(&self, process: &Process, query: &str) -> String {
        let path = format!("{}?{query}{}", self.group.path(), self.query);
        let reply = process.send("GET", &path, "", String::new()).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text);
        reply.text
    }

    async fn list(&self, process: &Process) -> (String, Known) {
        let (mut token, mut known) = (String::new(), Known::new());
        loop {
            let page: Value = serde_json::from_str(&self.get(process, &format!("continue={token}")).await).unwrap();
            for item in page["items"].as_array().unwrap() {
                let twice = known.insert(name(item), item_without_kind(item.clone()));
                assert!(twice.is_none(), "{item}");
            }
            page["metadata"]["continue"].as_str().unwrap_or_default().clone_into(&mut token);
            if token.is_empty() {
                return (page["metadata"]["resourceVersion"].as_str().unwrap().to_owned(), known);
            }
        }
    }

    /// Returns what is known with the watch since the last list.
    async fn watch(&self, process: &Process) -> Known {
        let mut known = self.known.clone();
        let frames = self.get(process, &format!("watch=true&resourceVersion={}", self.version)).await;
        for frame in frames.lines() {
            let frame: Value = serde_json::from_str(frame).unwrap();
            let object = item_without_kind(frame["object"].clone());
            let is_right = match frame["type"].as_str().unwrap() {
                "DELETED" => known.remove(&name(&object)).is_some(),
                "ADDED" => known.insert(name(&object), object).is_none(),
                "MODIFIED" => known.insert(name(&object), object).is_some(),
                _ => false,
            };
            assert!(is_right, "{frame}");
        }
        known
    }

    fn document(&self, event: &Event) -> Value {
        let group = match self.group {
            Group::Core => ApiGroup::Core,
            Group::Events => ApiGroup::Events,
        };
        let mut body = Vec::new();
        write_json(group, event, &mut body);
        decode_event(group, &body).unwrap();
        item_without_kind(serde_json::from_slice(&body).unwrap())
    }
}

fn name(event: &Value) -> String {
    event["metadata"]["name"].as_str().unwrap().to_owned()
}

/// Returns an event without the members that the events of a list, or the store, do not have.
fn item_without_kind(mut event: Value) -> Value {
    let members = event.as_object_mut().unwrap();
    members.remove("kind");
    members.remove("apiVersion");
    members["metadata"].as_object_mut().unwrap().remove("managedFields");
    event
}
