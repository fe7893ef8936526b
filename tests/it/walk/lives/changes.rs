//! What a client, or another writer, does to records that exist: DELETE, PUT, apply, and patches that are no
//! occurrences. And reloads.

use std::sync::Arc;
use std::time::Duration;

use eventweir::correlator::{self, Matches, Naming, Pattern, Policy, Rate, Rule, Suppression};
use eventweir::event::{Event, conversion};
use eventweir::outbox;
use serde_json::json;

use super::super::super::support::fake::Fault;
use super::super::super::support::http::EVENTS;
use super::super::STRATEGIC_MERGE;
use super::super::model::{KINDS, KindId, Style, kind_of, shown};
use super::super::process::Configuration;
use super::{APPLY, JSON, JSON_PATCH, Walk};

/// A request that changes an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Strategic,
    Merge,
    Json,
    Apply,
    Put,
}

/// The count that a client sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Set {
    /// What GET has shown it.
    Shown,
    /// What the upstream shows.
    Stored,
    /// This many.
    To(i32),
}

/// The upstream's answer to a DELETE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Given,
    /// The event is deleted, but the answer is lost.
    Lost,
    /// The request is not executed.
    Refused,
}

/// What another writer does to the annotations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Annotations {
    Kept,
    Dropped,
}

/// What a reload changes beside the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    None,
    ExplainOff,
    Coalesce,
    /// A group budget, for which nothing folds.
    GroupBudget,
}

impl Walk {
    /// Reads a policy with a rule for old-style events. Nothing is dropped, because budgets have enough tokens.
    pub(super) fn reload(
        &self,
        replica: usize,
        base: Suppression,
        special: Option<(Suppression, Naming)>,
        change: Change,
    ) {
        let Configuration { mut settings, policy, gate } = self.world.setup.configuration.clone();
        if policy.base.burst_size < 1000 {
            return;
        }
        let mut group = None;
        match change {
            Change::None => {}
            Change::ExplainOff => settings.explain.enabled = false,
            Change::Coalesce => settings.outbox.coalesce_interval = Duration::from_secs(5),
            Change::GroupBudget => {
                group = Some(Rate { qps: 0.5, burst: 2 });
                settings.outbox.groups.fold_after = Duration::from_secs(30 * 86_400);
            }
        }
        let plain = correlator::Settings { group, ..correlator::Settings::clone(&policy.base) };
        let rule = |(suppression, naming)| {
            let settings = correlator::Settings { suppression, naming, ..plain.clone() };
            let matches = Matches { component: vec![Pattern::Exact("kubelet".into())], ..Matches::default() };
            Rule { matches, settings: Arc::new(settings) }
        };
        let base = correlator::Settings { suppression: base, ..plain.clone() };
        let policy = Policy { base: Arc::new(base), rules: special.map(rule).into_iter().collect() };
        self.process(replica).reload(&Configuration { settings, policy, gate });
    }

    /// Sets a label under a name at any replica, whatever waits or is in doubt.
    pub(super) async fn label(&mut self, replica: usize, name: &str, form: Form) {
        let path = format!("{EVENTS}/{name}");
        let labels = json!({ "team": format!("{}", self.world.rng.u8(..)) });
        let (content_type, body) = match form {
            Form::Strategic => (STRATEGIC_MERGE, json!({ "metadata": { "labels": labels } })),
            Form::Merge | Form::Put => ("application/merge-patch+json", json!({ "metadata": { "labels": labels } })),
            Form::Json => (JSON_PATCH, json!([{ "op": "add", "path": "/metadata/labels", "value": labels }])),
            Form::Apply => {
                // An apply creates an event that does not exist.
                if !self.world.fake.events().iter().any(|event| event.metadata.name == name) {
                    return;
                }
                (APPLY, json!({ "apiVersion": "v1", "kind": "Event", "metadata": { "name": name, "labels": labels } }))
            }
        };
        let path = if form == Form::Apply { format!("{path}?fieldManager=me") } else { path };
        let before = self.world.fake.events();
        let _any_answer = self.process(replica).send("PATCH", &path, content_type, body.to_string()).await;
        // An event that was not stored is written as it is, without the lines of its clients.
        for event in self.world.fake.events() {
            if !before.iter().any(|known| known.metadata.name == event.metadata.name) {
                self.account.forget_lines(kind_of(&event));
            }
        }
    }

    /// POSTs occurrences under a name, and sets the count of its event at once.
    pub(super) async fn set(&mut self, name: &str, posts: usize, set: Set, form: Form) {
        self.settle().await;
        let Some(kind) = self.account.known(name).map(|known| known.kind) else { return };
        if KINDS[kind].style == Style::New
            || self.only(kind).is_none()
            || self.world.fake.is_taken(name)
            || self.account.is_unknown(kind)
            || self.account.is_remembered(kind)
        {
            return;
        }
        for replica in 0..self.world.setup.replicas {
            self.watch(replica);
        }
        for _ in 0..posts {
            self.post(name, kind, 1).await;
        }
        // What can be written is written.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let (replica, path) = (self.home(name), format!("{EVENTS}/{name}"));
        let reply = self.process(replica).send("GET", &path, JSON, String::new()).await;
        assert_eq!(reply.status, 200, "{name}: {}", reply.text);
        let (mut event, stored) = (reply.json(), shown(&self.world.fake.events())[kind]);
        let count = match set {
            Set::Shown => i32::try_from(event["count"].as_i64().unwrap()).unwrap(),
            Set::Stored => i32::try_from(stored).unwrap(),
            Set::To(count) => count,
        };
        event["count"] = json!(count);
        let (method, content_type, path, body) = match form {
            Form::Put | Form::Strategic | Form::Merge => ("PUT", JSON, path, event),
            Form::Json => ("PATCH", JSON_PATCH, path, json!([{ "op": "add", "path": "/count", "value": count }])),
            Form::Apply => {
                let metadata = json!({ "name": name });
                let body = json!({ "apiVersion": "v1", "kind": "Event", "metadata": metadata, "count": count });
                ("PATCH", APPLY, format!("{path}?fieldManager=me"), body)
            }
        };
        let (process, body) = (self.world.process_mut(replica), body.to_string());
        let reply = match form {
            Form::Strategic => process.send_and_watch(method, &path, content_type, body).await,
            Form::Merge | Form::Json | Form::Apply | Form::Put => process.send(method, &path, content_type, body).await,
        };
        assert_eq!(reply.status, 200, "{name}: {}", reply.text);
        self.account.set(name, kind, count, stored);
    }

    /// Moves a client to a replica that has read what the others have written.
    pub(super) async fn move_to(&mut self, replica: usize, name: &str) {
        if replica == self.home(name) || self.account.is_unsure(name) {
            return;
        }
        self.settle().await;
        self.watch(replica);
        self.account.move_to(name, replica);
    }

    /// POSTs occurrences under a name and DELETEs it, where it is clear which records that means.
    pub(super) async fn delete(&mut self, replica: usize, name: &str, posts: usize, answer: Answer) {
        self.settle().await;
        for replica in 0..self.world.setup.replicas {
            self.watch(replica);
        }
        let stored = self.world.fake.events();
        let own = stored.iter().find(|event| event.metadata.name == name).map(kind_of);
        let is_home = self.home(name) == replica;
        let known = self.account.known_at(name, replica).map(|known| known.kind);
        let known = known.filter(|kind| self.account.live(*kind) > 0);
        // It may have found the record again, by the watch.
        let unknown = known.filter(|kind| self.account.is_unknown(*kind) && Some(*kind) != own);
        let known = known.filter(|kind| !self.account.is_unknown(*kind));
        let mut kinds: Vec<KindId> = own.into_iter().chain(known).collect();
        kinds.dedup();
        let number = |kind: KindId| stored.iter().filter(|event| kind_of(event) == kind).count();
        let is_gone = (0..KINDS.len()).any(|kind| self.account.is_gone(kind));
        let is_clear = self.world.setup.replicas == 1 || self.world.setup.spool;
        if !is_clear
            || is_gone
            || self.world.fake.is_taken(name)
            || kinds.iter().chain(&unknown).any(|kind| number(*kind) > 1)
        {
            return;
        }
        // With plain writes, a record that its process does not know any more is not told from another writer's.
        if answer != Answer::Given && (kinds.len() != 1 || unknown.is_some() || self.is_plain()) {
            return;
        }
        if let Some(kind) = known.filter(|_| is_home && answer != Answer::Given) {
            for _ in 0..posts {
                self.post(name, kind, 1).await;
            }
        }
        *self.world.deletes.lock() = match answer {
            Answer::Given => None,
            Answer::Lost => Some(Fault::After(500)),
            Answer::Refused => Some(Fault::Before(503)),
        };
        let reply = self.process(replica).send("DELETE", &format!("{EVENTS}/{name}"), JSON, String::new()).await;
        let was_met = self.world.deletes.lock().take().is_none();
        match answer {
            Answer::Given => {
                let left = shown(&self.world.fake.events());
                kinds.extend(unknown.filter(|kind| left[*kind] == 0));
                assert_eq!(reply.status, if kinds.is_empty() { 404 } else { 200 }, "{name}: {}", reply.text);
                self.account.delete(&kinds);
                self.account.forget(name, replica);
            }
            Answer::Lost => {
                assert!(was_met && reply.status >= 500, "{name}: {}", reply.text);
                self.account.delete(&kinds);
            }
            Answer::Refused => {
                assert!(was_met && reply.status >= 500, "{name}: {}", reply.text);
                kinds.iter().for_each(|kind| self.account.lose_sight(*kind));
            }
        }
        if self.world.setup.replicas > 1 && answer != Answer::Refused {
            // What was posted just before may have been written.
            for (kind, more) in kinds.iter().flat_map(|kind| (0..=posts).map(move |more| (*kind, more))) {
                self.account.remembered_elsewhere(kind, shown(&stored)[kind] + i64::try_from(more).unwrap());
            }
        }
    }

    /// Another writer replaces an event.
    pub(super) async fn put_upstream(&mut self, kind: KindId, more: i32, annotations: Annotations) {
        let is_counted = |event: &Event| event.series.is_some() || event.count > 0 || more == 0;
        let is_its = |event: &Event| kind_of(event) == kind && conversion::occurrences(event) + more > 0;
        let find = |stored: Vec<Event>| stored.into_iter().find(|event| is_its(event) && is_counted(event));
        let has_tags = find(self.world.fake.events()).is_some_and(|event| outbox::has_any_tag(&event));
        if annotations == Annotations::Dropped || !has_tags {
            // It is not known how much of a write in doubt such an event includes.
            self.settle().await;
            if !self.is_proven() {
                return;
            }
        }
        let Some(event) = find(self.world.fake.events()) else { return };
        self.world.fake.change(&event, |event| {
            *event.series.as_mut().map_or(&mut event.count, |series| &mut series.count) += more;
            if let (Annotations::Dropped, Some(rare)) = (annotations, &mut event.metadata.rare) {
                rare.annotations.clear();
            }
        });
        self.account.edit(&event.metadata.name, kind, more);
        if annotations == Annotations::Dropped {
            self.account.forget_lines(kind);
        }
    }
}
