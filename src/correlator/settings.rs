//! The correlator's settings: client-go's `CorrelatorOptions` (`tools/record/events_cache.go`), and further ones.

use std::num::NonZeroUsize;
use std::time::Duration;

use smol_str::SmolStr;

use super::budget::Rate;
use super::normal::normalized;

/// Settings of one correlator. The defaults are client-go's constants, except that `suppression` is `Defer`.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Whether events are correlated at all; `Off` makes every event a separate record.
    pub correlation: Correlation,
    /// Treatment of an occurrence that finds no token.
    pub suppression: Suppression,
    /// LIMIT: entries of each of a source's caches (`LRUCacheSize`). Default 4,096; the least recently used one is
    /// evicted.
    pub lru_cache_size: NonZeroUsize,
    /// Tokens of a full budget (`BurstSize`). Default 25.
    pub burst_size: u32,
    /// Tokens added per second (`QPS`, a 32-bit float as in client-go). Default 1/300.
    pub qps: f32,
    /// Rate of the budget of a group of similar events, over all objects and sources; `None` for no such budget.
    /// Default none.
    pub group: Option<Rate>,
    /// Distinct messages at which aggregation starts (`MaxEvents`). Default 10.
    pub max_events: NonZeroUsize,
    /// Longest gap between similar events of one aggregation window (`MaxIntervalInSeconds`). Default 600 s.
    pub max_interval: Duration,
    /// Fields of the spam key (`SpamKeyFunc`); events with an equal key share a budget.
    pub spam_key: Vec<Field>,
    /// Fields of the aggregate key (`KeyFunc`, first result); events with an equal key can be combined.
    pub aggregate_key: Vec<Field>,
    /// Fields of the local key (`KeyFunc`, second result), which makes an event distinct within its group.
    pub local_key: Vec<Field>,
    /// The part of a message that distinguishes events.
    pub messages: Messages,
    /// Prefix of combined messages (`MessageFunc`). Default `(combined from similar events): `.
    pub message_prefix: SmolStr,
    /// How the fields of a key are joined.
    pub key_encoding: KeyEncoding,
    /// Behaviour of a count at its maximum.
    pub count_overflow: CountOverflow,
    /// How a new record is named.
    pub naming: Naming,
}

/// The part of a message that distinguishes events, in every key that contains the message. The record shows the newest
/// message unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Messages {
    /// The whole message, as in client-go.
    #[default]
    Exact,
    /// The message without numbers, digests and generated suffixes of names.
    Normalized,
}

impl Messages {
    /// Whether events with these messages may be occurrences of one event.
    pub(crate) fn are_alike(self, one: &str, other: &str) -> bool {
        one == other || self == Self::Normalized && normalized(one) == normalized(other)
    }
}

/// How a new record is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// As the client named the event that began it.
    Client,
    /// After what it counts: the same name in every process, so that replicas write to one record.
    Deterministic,
}

/// Whether events are correlated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Correlation {
    /// Events are aggregated, observed and budgeted.
    On,
    /// Every event is a separate record and needs no token.
    Off,
}

/// Treatment of an occurrence that finds no token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suppression {
    /// It is kept; its record is written when the budget's next token comes.
    Defer,
    /// It is dropped, as client-go does.
    Drop,
}

/// How the fields of a key are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyEncoding {
    /// Each field with its length: different tuples never make equal keys.
    Framed,
    /// Plain concatenation as in client-go, where `ab`+`c` equals `a`+`bc`.
    Concatenated,
}

/// Behaviour of a count at its maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountOverflow {
    /// It stays at 2,147,483,647.
    Saturate,
    /// It wraps around to negative numbers, as Go's int32 does.
    Wrap,
}

labelled! {
    /// A field of an event that can be part of a key. Its label is its path in a core/v1 Event and its name in the
    /// configuration.
    #[derive(Hash)]
    #[expect(missing_docs, reason = "the paths")]
    pub enum Field {
        SourceComponent = "source.component",
        SourceHost = "source.host",
        InvolvedObjectKind = "involvedObject.kind",
        InvolvedObjectNamespace = "involvedObject.namespace",
        InvolvedObjectName = "involvedObject.name",
        InvolvedObjectFieldPath = "involvedObject.fieldPath",
        InvolvedObjectUid = "involvedObject.uid",
        InvolvedObjectApiVersion = "involvedObject.apiVersion",
        InvolvedObjectResourceVersion = "involvedObject.resourceVersion",
        MetadataNamespace = "metadata.namespace",
        Type = "type",
        Reason = "reason",
        Message = "message",
        Action = "action",
        ReportingComponent = "reportingComponent",
        ReportingInstance = "reportingInstance",
    }
}

/// client-go's aggregate key (`EventAggregatorByReasonFunc`).
pub const AGGREGATE_KEY: [Field; 11] = [
    Field::SourceComponent,
    Field::SourceHost,
    Field::InvolvedObjectKind,
    Field::InvolvedObjectNamespace,
    Field::InvolvedObjectName,
    Field::InvolvedObjectUid,
    Field::InvolvedObjectApiVersion,
    Field::Type,
    Field::Reason,
    Field::ReportingComponent,
    Field::ReportingInstance,
];

/// client-go's spam key since v0.32 (profile `client-go`): the beginning of the aggregate key, up to the event type.
pub const SPAM_KEY: [Field; 8] = *AGGREGATE_KEY.first_chunk().unwrap();

/// client-go's spam key without the event type, as in every client-go before v0.32 (profile `client-go-legacy`).
pub const LEGACY_SPAM_KEY: [Field; 7] = *SPAM_KEY.first_chunk().unwrap();

/// client-go's prefix of combined messages, with the trailing space.
pub const MESSAGE_PREFIX: &str = "(combined from similar events): ";

impl Default for Settings {
    fn default() -> Self {
        Self {
            correlation: Correlation::On,
            suppression: Suppression::Defer,
            lru_cache_size: const { NonZeroUsize::new(4096).unwrap() },
            burst_size: 25,
            qps: 1.0 / 300.0,
            group: None,
            max_events: const { NonZeroUsize::new(10).unwrap() },
            max_interval: Duration::from_secs(600),
            spam_key: SPAM_KEY.to_vec(),
            aggregate_key: AGGREGATE_KEY.to_vec(),
            local_key: vec![Field::Message],
            messages: Messages::Exact,
            message_prefix: SmolStr::new_static(MESSAGE_PREFIX),
            key_encoding: KeyEncoding::Framed,
            count_overflow: CountOverflow::Saturate,
            naming: Naming::Client,
        }
    }
}
