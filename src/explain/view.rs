//! What is asked of the store. [`Store::tell`] comes first.

use smol_str::SmolStr;

use super::{Group, History, MINUTES, Store};
use crate::clock::Mono;
use crate::correlator::Key;
use crate::outbox::RecordId;

/// Facts of which the upstream shows nothing.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Unseen {
    /// How many.
    pub number: u64,
    /// Of the oldest: when it was received first, its namespace, object and reason.
    pub oldest: Option<(i64, SmolStr, String, SmolStr)>,
}

impl Unseen {
    /// Adds those of another store.
    #[must_use]
    pub fn plus(mut self, other: Self) -> Self {
        self.number += other.number;
        self.oldest = [self.oldest, other.oldest].into_iter().flatten().min();
        self
    }
}

impl Store {
    /// The newest messages of a record, as a JSON list of so many bytes at most, the newest last.
    #[must_use]
    pub fn messages(&self, object: Key, record: RecordId) -> Option<SmolStr> {
        let most = self.settings.annotation_bytes;
        if most == 0 {
            return None;
        }
        let mut left = most.saturating_sub(2);
        let fits = |(_, message): &(u64, SmolStr)| {
            let text = serde_json::to_string(message.as_str()).ok()?;
            left = left.checked_sub(text.len() + 1)?;
            Some(text)
        };
        let kept = self.objects.peek(&object)?.kept(record)?;
        let mut texts: Vec<String> = kept.messages.iter().rev().map_while(fits).collect();
        texts.reverse();
        (!texts.is_empty()).then(|| format!("[{}]", texts.join(",")).into())
    }

    /// What is known of objects.
    pub fn histories(&self) -> impl Iterator<Item = &History> {
        self.objects.iter().map(|(_, history)| history)
    }

    /// Groups of like events; the first stands for those beyond the limit.
    #[must_use]
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Occurrences and writes by the minute, the newest first.
    #[must_use]
    pub fn flow(&self, now: Mono) -> [[u32; MINUTES]; 2] {
        self.flow.map(|minutes| minutes.list(now))
    }

    /// The facts of the last hour of which the upstream shows nothing, of the namespaces that may be seen: how many, and since when the
    /// oldest waits.
    #[must_use]
    pub fn unseen(&self, is_seen: &dyn Fn(&str) -> bool, now: Mono) -> Unseen {
        let mut unseen = Unseen::default();
        for history in self.histories().filter(|history| is_seen(&history.namespace)) {
            for fact in history.facts.iter().filter(|fact| history.is_unseen(fact, now)) {
                unseen.number += 1;
                if unseen.oldest.as_ref().is_none_or(|(since, ..)| fact.first_received < *since) {
                    let object = format!("{}/{}", history.kind, history.name);
                    unseen.oldest = Some((fact.first_received, history.namespace.clone(), object, fact.reason.clone()));
                }
            }
        }
        unseen
    }

    /// How often each rule was chosen; the first is the number of events that no rule matches.
    #[must_use]
    pub fn rule_hits(&self) -> &[u64] {
        &self.rule_hits
    }

    /// When the store began, and when the newest decision was made that it has forgotten.
    #[must_use]
    pub const fn span(&self) -> (Option<i64>, Option<i64>) {
        (self.began, self.forgotten_until)
    }

    /// Occurrences that were refused and are noted with their object.
    #[must_use]
    pub const fn rejected(&self) -> u64 {
        self.rejected
    }

    /// Bytes of what is kept.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes.own() + self.group_bytes.own()
    }
}
