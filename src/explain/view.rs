//! Reads of the store. Call [`Store::flush_runs`] first.

use smol_str::SmolStr;

use super::{Fact, Group, History, MINUTES, Store, StormState, TrackedRecord};
use crate::clock::Mono;
use crate::correlator::Key;
use crate::outbox::RecordId;

/// Facts of which the upstream shows nothing.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Unseen {
    /// How many.
    pub number: u64,
    /// Of the oldest: when it was first received, its namespace, object and reason.
    pub oldest: Option<(i64, SmolStr, String, SmolStr)>,
}

impl Unseen {
    /// Adds the facts of another store.
    pub fn plus(mut self, other: Self) -> Self {
        self.number += other.number;
        self.oldest = [self.oldest, other.oldest].into_iter().flatten().min();
        self
    }
}

/// Formats the share of occurrences that took no write, for people; `-` without occurrences.
pub fn saved(received: f64, written: f64) -> String {
    if received > 0.0 {
        format!("{:.1} %", (100.0 * (1.0 - written / received)).clamp(0.0, 100.0))
    } else {
        "-".to_owned()
    }
}

impl Store {
    /// Returns the newest messages of a record as a JSON list of limited bytes, the newest last.
    pub fn messages(&mut self, object: Key, record: RecordId) -> Option<SmolStr> {
        self.end_run(record);
        let mut left = self.settings.annotation_bytes.saturating_sub(2);
        let fits = |(_, message): &(u64, SmolStr)| {
            let text = serde_json::to_string(message.as_str()).ok()?;
            left = left.checked_sub(text.len() + 1)?;
            Some(text)
        };
        let kept = self.objects.peek(&object)?.tracked(record)?;
        let mut texts: Vec<String> = kept.messages.iter().rev().map_while(fits).collect();
        texts.reverse();
        (!texts.is_empty()).then(|| format!("[{}]", texts.join(",")).into())
    }

    /// Returns the histories of all objects.
    pub fn histories(&self) -> impl Iterator<Item = &History> {
        self.objects.iter().map(|(_, history)| history)
    }

    /// Returns a record that the upstream has held, as the object knows it at which its writes are noted.
    pub fn stored(&self, record: RecordId) -> Option<&TrackedRecord> {
        self.histories().filter_map(|history| history.tracked(record)).find(|kept| kept.stored)
    }

    /// Returns the groups of similar events; the first counts those beyond the limit.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Returns occurrences, writes, losses, and losses by a fault, per minute, the newest first.
    pub fn flow(&self, now: Mono) -> [[u32; MINUTES]; 4] {
        self.flow.map(|minutes| minutes.list(now))
    }

    /// Returns how many facts of the last hour the upstream shows nothing of, and the oldest of them. Covers only
    /// namespaces that the caller may see. `state` returns the state of the record that a fact has folded into.
    pub fn unseen(
        &self,
        is_seen: &dyn Fn(&str) -> bool,
        state: &dyn Fn(&Fact) -> Option<StormState>,
        now: Mono,
    ) -> Unseen {
        let mut unseen = Unseen::default();
        let is_in_summary = |fact: &Fact| fact.folded > state(fact).map_or(0, |state| fact.unshown(state.settled));
        let is_unseen = |fact: &&Fact| {
            let is_recent = fact.received > fact.rejected && fact.rates.received.hour(now) > 0;
            is_recent && fact.shown == 0 && !is_in_summary(fact)
        };
        for history in self.histories().filter(|history| is_seen(&history.namespace)) {
            for fact in history.facts.iter().filter(is_unseen) {
                unseen.number += 1;
                if unseen.oldest.as_ref().is_none_or(|(since, ..)| fact.first_received < *since) {
                    let object = history.object();
                    unseen.oldest = Some((fact.first_received, history.namespace.clone(), object, fact.reason.clone()));
                }
            }
        }
        unseen
    }

    /// Returns how often each rule was chosen; the first counts events that no rule matches.
    pub fn rule_hits(&self) -> &[u64] {
        &self.rule_hits
    }

    /// Returns when the store began, and the time of the newest decision that it has forgotten.
    pub const fn span(&self) -> (Option<i64>, Option<i64>) {
        (self.began, self.forgotten_until)
    }

    /// Returns the number of refused occurrences that are noted with their object.
    pub const fn rejected(&self) -> u64 {
        self.rejected
    }

    /// Returns the bytes kept.
    pub const fn bytes(&self) -> usize {
        self.bytes.own() + self.group_bytes.own()
    }
}
