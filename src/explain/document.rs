//! The answer as a JSON document. Its first sentence says where the occurrences are; the rest is the evidence.
//!
//! Times are in UTC. Members may be added.

use std::collections::BTreeMap;

use serde::Serialize;
use smol_str::SmolStr;

use crate::correlator::Key;

/// The answer.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// `eventweir/v1`
    pub api_version: &'static str,
    /// `Explanation`
    pub kind: &'static str,
    /// When the question was asked.
    pub now: String,
    /// When the first occurrence was received; `null` if none was since the start.
    pub started_at: Option<String>,
    /// All decisions since then are known; earlier ones may have been forgotten.
    pub known_since: Option<String>,
    /// The first sentence.
    pub answer: Answer,
    /// The selected objects.
    pub objects: Vec<Object>,
    /// Number of further objects that the query selects.
    pub more_objects: usize,
    /// The object's events upstream, if nothing is known here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub upstream: Vec<Stored>,
}

/// An event upstream.
#[derive(Debug, Serialize)]
#[expect(missing_docs, reason = "the members of an event")]
pub struct Stored {
    pub name: SmolStr,
    pub reason: SmolStr,
    pub count: i32,
    pub source: String,
}

/// The first sentence of an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Answer {
    /// One word of a closed list; docs/operations.md has the list.
    pub code: &'static str,
    /// States where the occurrences are.
    pub text: String,
    /// What to do about it.
    pub action: String,
}

/// An object in an answer.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Object {
    /// Its kind; like the name, empty if its events have none.
    pub kind: SmolStr,
    /// The namespace of its events.
    pub namespace: SmolStr,
    /// Its name.
    pub name: SmolStr,
    /// The uid in its newest event.
    pub uid: SmolStr,
    /// Its API version.
    pub api_version: SmolStr,
    /// Where its occurrences are.
    pub reasons: Vec<Part>,
    /// The budgets that pay for its records.
    pub budgets: Vec<Budget>,
    /// The records that count its occurrences, the newest last.
    pub records: Vec<Record>,
    /// The newest decisions, the newest last.
    pub decisions: Vec<Decided>,
    /// Number of older decisions that were forgotten.
    pub forgotten_decisions: u64,
}

/// The occurrences of one reason, type and source, and where they are.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Part {
    /// Its number among the facts of its shard, each a reason of one type and source.
    #[serde(skip)]
    pub fact: usize,
    /// The reason.
    pub reason: SmolStr,
    /// The type.
    #[serde(rename = "type")]
    pub event_type: SmolStr,
    /// `COMPONENT` or `COMPONENT/HOST`.
    pub source: String,
    /// The caller of the newest occurrences; empty if it is not known.
    #[serde(skip_serializing_if = "SmolStr::is_empty")]
    pub caller: SmolStr,
    /// The index of the rule that matches now; `null` if none does.
    pub rule: Option<usize>,
    /// All occurrences. They are the sum of `shown`, `inSummary`, `waiting`, `lost` and `rejected`.
    pub received: u64,
    /// Those that the upstream shows in records of their own, or did until these expired or were deleted.
    pub shown: u64,
    /// Those that it shows in a digest or storm record.
    pub in_summary: u64,
    /// The name of that record.
    pub summary: SmolStr,
    // LIMIT: `waiting` has at most one entry per reason to wait, `lost` one per reason of a loss.
    /// Those that wait, by the ledger's reasons.
    pub waiting: BTreeMap<&'static str, u64>,
    /// When the first of them fold into a storm record, unless their group gets a token before.
    #[serde(skip)]
    pub folds_at: Option<String>,
    /// Those that are lost, by the ledger's reasons.
    pub lost: BTreeMap<&'static str, u64>,
    /// Those that were refused on arrival.
    pub rejected: u64,
    /// When the newest was received.
    pub last_received: String,
    /// When a write of one of its own records was acknowledged last.
    pub last_shown: Option<String>,
    /// The sentence about this reason.
    pub answer: Answer,
}

/// The budget that pays for some reasons, and its state.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Budget {
    /// The facts that it pays for.
    #[serde(skip)]
    pub facts: Vec<usize>,
    /// Its source and its key there.
    #[serde(skip)]
    pub id: (Key, Key),
    /// The values of the fields of `spamKey`, without empty ones.
    pub key: Vec<String>,
    /// The index of the rule that sets its rate; `null` if none does.
    pub rule: Option<usize>,
    /// `defer` or `drop`. After a reload from `defer` to `drop`, there is one of each while records wait.
    pub suppression: &'static str,
    /// Whole tokens that are left.
    pub tokens: usize,
    /// The most tokens.
    pub burst: u32,
    /// `null` if none ever comes (`qps: 0`).
    pub seconds_per_token: f32,
    /// When there is a token; `null` if none ever comes.
    pub next_token: Option<String>,
    /// Tokens that each reason has spent.
    pub spent_on: BTreeMap<SmolStr, u64>,
    /// The reasons of the first records that wait for a token, in their order.
    pub queue: Vec<SmolStr>,
}

/// A record in an answer.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// The fact that has begun it.
    #[serde(skip)]
    pub fact: usize,
    /// Its name upstream.
    pub name: SmolStr,
    /// `single`, `combined`, `digest` or `storm`.
    pub form: &'static str,
    /// The reason of the first occurrence.
    pub reason: SmolStr,
    /// The count that the upstream has acknowledged; `null` for a storm record, whose occurrences are of other objects
    /// too.
    pub count: Option<i64>,
    /// Occurrences that it does not show yet.
    pub pending: u64,
    /// `unwritten`, `waiting`, `in-flight`, `settled`, `gone` (the upstream has it no longer) or `ended` (it was lost or
    /// folded).
    pub state: &'static str,
    /// What its occurrences wait for, if they wait.
    pub why: Option<&'static str>,
    /// Its version upstream, if it is being written or was just before.
    pub resource_version: Option<SmolStr>,
    /// Its newest distinct messages, the newest last.
    pub messages: Vec<SmolStr>,
}

/// A decision in an answer, or a run of equal ones.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Decided {
    /// The fact that it is about.
    #[serde(skip)]
    pub fact: usize,
    /// When the first of the run was made.
    pub time: String,
    /// When the last was made.
    pub last: String,
    /// The reason of the occurrences.
    pub reason: SmolStr,
    /// The decision, or what happened to the occurrences later.
    pub verdict: &'static str,
    /// More about it, if the verdict does not say all.
    pub why: &'static str,
    /// Occurrences of the whole run.
    pub occurrences: u64,
    /// The record's name.
    pub record: SmolStr,
    /// When the budget gets a token, if the occurrences wait for one or were dropped.
    pub next_token: Option<String>,
    /// The newest message, or the upstream's answer.
    pub text: SmolStr,
}
