//! client-go's four keys (spam, aggregate, local, event) and the key of a source, as keyed 128-bit hashes.
//!
//! client-go keeps the joined strings. eventweir keeps their SipHash-1-3 under a secret of this process: a key takes 16
//! bytes, and outsiders cannot construct two tuples that collide. Mirrors `getEventKey`, `getSpamKey` and
//! `EventAggregatorByReasonFunc` in `tools/record/events_cache.go`.

use std::borrow::Cow;
use std::hash::Hasher as _;

use serde::{Deserialize, Serialize};
use siphasher::sip128::{Hasher128 as _, SipHasher13};

use super::Fold;
use super::normal::normalized;
use super::settings::{Field, KeyEncoding, Messages, Settings};
use crate::event::Event;

/// A keyed hash of some fields of an event, or of a source.
///
/// Aligned like a `u64`, because the 16-byte alignment of a `u128` would pad the entries that contain a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
#[repr(Rust, packed(8))]
pub struct Key(pub u128);

impl From<Key> for String {
    fn from(key: Key) -> Self {
        let bits = key.0;
        format!("{bits:032x}")
    }
}

impl TryFrom<String> for Key {
    type Error = std::num::ParseIntError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        u128::from_str_radix(&text, 16).map(Self)
    }
}

impl Key {
    /// Returns the lower half of the bits, which is a uniform hash as well.
    #[expect(clippy::cast_possible_truncation, reason = "half of it is meant")]
    pub const fn half(self) -> u64 {
        self.0 as u64
    }
}

/// The four keys of one event. Computed before a shard is locked, because hashing takes about as long as the work under
/// the lock.
#[derive(Debug, Clone, Copy)]
pub struct Keys {
    pub(super) aggregate: Key,
    pub(super) local: Key,
    /// The event key: events with an equal one are repeats of one event.
    pub event: Key,
    /// The spam key: events with an equal one share a budget.
    pub spam: Key,
}

/// The secret of the hashes; one per process, random outside tests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeySecret(pub u64, pub u64);

impl std::fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeySecret")
    }
}

/// Builds the hasher of maps whose keys are [`Key`]s. It needs no seed: keys are secret.
pub type BuildKeyHasher = foldhash::fast::FixedState;

/// Joins fields into one keyed hash.
struct Joiner {
    hasher: SipHasher13,
    encoding: KeyEncoding,
}

impl Joiner {
    fn new(secret: KeySecret, encoding: KeyEncoding, domain: Domain) -> Self {
        let mut joiner = Self { hasher: SipHasher13::new_with_keys(secret.0, secret.1), encoding };
        if encoding == KeyEncoding::Framed {
            joiner.add_number(domain as u64);
        }
        joiner
    }

    /// Continues a hash, with framed fields.
    const fn on(hasher: SipHasher13) -> Self {
        Self { hasher, encoding: KeyEncoding::Framed }
    }

    fn add_number(&mut self, number: u64) {
        self.hasher.write_u64(number);
    }

    /// Adds the list of fields that follow: their number, and a byte for each.
    fn add_list(&mut self, fields: &[Field]) {
        self.add_number(fields.len() as u64);
        fields.iter().for_each(|field| self.hasher.write_u8(*field as u8));
    }

    /// Adds a text. A framed text begins with its length, so that different lists of texts never make equal bytes.
    fn add(&mut self, text: &str) {
        if self.encoding == KeyEncoding::Framed {
            self.add_number(text.len() as u64);
        }
        self.hasher.write(text.as_bytes());
    }

    fn add_key(&mut self, key: Key) {
        self.hasher.write_u128(key.0);
    }

    fn finish(self) -> Key {
        Key(self.hasher.finish128().as_u128())
    }
}

/// The kind of a key. Part of the hash, so that keys of different kinds never meet in one map.
#[derive(Debug, Clone, Copy)]
enum Domain {
    Source,
    Spam,
    Aggregate,
    Local,
    Event,
    /// The shared beginning of the spam, aggregate and event keys.
    Common,
    Message,
    Name,
    Group,
    Object,
    Subject,
    Line,
}

/// The fields that client-go's spam, aggregate and event keys share: its spam key.
const COMMON: [Field; 8] = super::settings::SPAM_KEY;

/// The fields of client-go's event key, which is not configurable there (`getEventKey`).
const EVENT_KEY: [Field; 11] = [
    Field::SourceComponent,
    Field::SourceHost,
    Field::InvolvedObjectKind,
    Field::InvolvedObjectNamespace,
    Field::InvolvedObjectName,
    Field::InvolvedObjectFieldPath,
    Field::InvolvedObjectUid,
    Field::InvolvedObjectApiVersion,
    Field::Type,
    Field::Reason,
    Field::Message,
];

impl KeySecret {
    fn of_texts<const N: usize>(self, domain: Domain, texts: [&str; N]) -> Key {
        let mut joiner = Joiner::new(self, KeyEncoding::Framed, domain);
        texts.into_iter().for_each(|text| joiner.add(text));
        joiner.finish()
    }

    /// Returns the dedup key and the spam key of the record `event`, whose occurrences were counted as `fold`.
    pub fn of_record(self, event: &Event, fold: Fold, settings: &Settings) -> (Key, Key) {
        let shared = self.shared(event, settings);
        let key = match fold {
            Fold::Combined => shared.aggregate(),
            Fold::Created | Fold::Counted => shared.event(),
        };
        (key, shared.spam())
    }

    /// Returns the key of the source that reports `event`.
    pub fn source(self, event: &Event) -> Key {
        self.of_texts(Domain::Source, [event.component(), event.host()])
    }

    /// Returns the key of an event's name in a namespace.
    pub fn name(self, namespace: &str, name: &str) -> Key {
        self.of_texts(Domain::Name, [namespace, name])
    }

    /// Returns the key of a client's line of occurrences: the name that it gave its event, and the line's checksum. And the
    /// source, because an upstream object of one source could state the lines of another, and make its checksum equal.
    pub fn line(self, source: Key, namespace: &str, name: &str, checksum: u32) -> Key {
        let mut joiner = Joiner::new(self, KeyEncoding::Framed, Domain::Line);
        joiner.add_key(source);
        joiner.add(namespace);
        joiner.add(name);
        joiner.add_number(checksum.into());
        joiner.finish()
    }

    /// Returns the key of the object that `event` is about, in the namespace of its events. A later object of the same
    /// name has the same key.
    pub fn subject(self, event: &Event) -> Key {
        let object = &event.involved_object;
        self.of_texts(Domain::Subject, [&event.metadata.namespace, &object.kind, &object.name])
    }

    /// Returns the key of the group of similar events that `event` belongs to, over all objects and sources. The group
    /// is the component, reason, type, kind and namespace.
    pub fn group(self, event: &Event) -> Key {
        let (kind, namespace) = (&event.involved_object.kind, &event.metadata.namespace);
        self.of_texts(Domain::Group, [event.component(), &event.reason, &event.event_type, kind, namespace])
    }

    /// Returns the key of the object that `event` is about, within a group.
    pub fn object(self, group: Key, event: &Event) -> Key {
        let mut joiner = Joiner::new(self, KeyEncoding::Framed, Domain::Object);
        joiner.add_key(group);
        let object = &event.involved_object;
        [&object.namespace, &object.name, &object.uid].into_iter().for_each(|text| joiner.add(text));
        joiner.finish()
    }

    /// Returns all keys of `event`.
    pub fn keys(self, event: &Event, settings: &Settings) -> Keys {
        let shared = self.shared(event, settings);
        Keys { aggregate: shared.aggregate(), local: shared.local(), event: shared.event(), spam: shared.spam() }
    }

    /// Hashes the part that the keys of `event` share, once for all of them.
    pub(super) fn shared<'e>(self, event: &'e Event, settings: &'e Settings) -> Shared<'e> {
        let common = match settings.key_encoding {
            KeyEncoding::Framed => {
                let mut joiner = Joiner::new(self, KeyEncoding::Framed, Domain::Common);
                // The record's namespace is part of its identity; a new-style event may have an involved object in
                // another namespace.
                joiner.add(&event.metadata.namespace);
                COMMON.into_iter().for_each(|field| joiner.add(field_value(event, field)));
                Some(joiner.hasher)
            }
            KeyEncoding::Concatenated => None,
        };
        let message = self.of_texts(Domain::Message, [&value(event, Field::Message, settings)]);
        Shared { secret: self, event, settings, common, message }
    }
}

/// The keys of one event.
///
/// Hot: every occurrence needs all keys, and hashing is most of a correlator's work. The shared fields and the message
/// are therefore hashed once.
pub(super) struct Shared<'e> {
    secret: KeySecret,
    event: &'e Event,
    settings: &'e Settings,
    /// Namespace and [`COMMON`] fields; `None` for concatenated keys.
    common: Option<SipHasher13>,
    message: Key,
}

impl Shared<'_> {
    /// Returns the spam key: events with an equal one share a budget.
    pub(super) fn spam(&self) -> Key {
        self.fields(Domain::Spam, &self.settings.spam_key)
    }

    /// Returns the aggregate key: events with an equal one can be combined. It is also the combined event's dedup key,
    /// so both kinds share a map.
    pub(super) fn aggregate(&self) -> Key {
        self.fields(Domain::Aggregate, &self.settings.aggregate_key)
    }

    /// Returns the local key, which makes an event distinct within its group.
    pub(super) fn local(&self) -> Key {
        if self.settings.local_key == [Field::Message] {
            return self.message;
        }
        self.fields(Domain::Local, &self.settings.local_key)
    }

    /// Returns the event key: events with an equal one are repeats of one event.
    pub(super) fn event(&self) -> Key {
        let Some(common) = self.common else {
            return self.fields(Domain::Event, &EVENT_KEY);
        };
        let (event, mut joiner) = (self.event, Joiner::on(common));
        // The fields of EVENT_KEY in another order, with the message's hash instead of the message.
        joiner.add_number(Domain::Event as u64);
        joiner.add(&event.reason);
        joiner.add(&event.involved_object.field_path);
        joiner.add_key(self.message);
        if event.event_time.is_some() {
            // Further fields by which `tools/events` distinguishes new-style events (`getKey`).
            joiner.add(&event.action);
            if let Some(related) = &event.related {
                let parts = [&related.kind, &related.namespace, &related.name, &related.uid, &related.field_path];
                parts.into_iter().for_each(|part| joiner.add(part));
            }
        }
        joiner.finish()
    }

    fn fields(&self, domain: Domain, fields: &[Field]) -> Key {
        let Self { event, settings, .. } = *self;
        let encoding = settings.key_encoding;
        let (mut joiner, fields) = match (self.common, fields.strip_prefix(&COMMON)) {
            (Some(common), Some(rest)) => {
                let mut joiner = Joiner::on(common);
                joiner.add_number(domain as u64);
                (joiner, rest)
            }
            (Some(_), None) => {
                let mut joiner = Joiner::new(self.secret, encoding, domain);
                joiner.add(&event.metadata.namespace);
                (joiner, fields)
            }
            // COMPAT(client-go): plain concatenation, one namespace of keys for event and aggregate keys
            // (`getEventKey`, `EventAggregatorByReasonFunc`); vector 092 would differ otherwise.
            (None, _) => (Joiner::new(self.secret, encoding, domain), fields),
        };
        if encoding == KeyEncoding::Framed {
            // The list of fields is hashed too, so that rules with different keys never share an entry.
            joiner.add_list(fields);
        }
        fields.iter().for_each(|field| joiner.add(&value(event, *field, settings)));
        joiner.finish()
    }
}

/// Returns the text of a field as a key uses it.
fn value<'e>(event: &'e Event, field: Field, settings: &Settings) -> Cow<'e, str> {
    match (field, settings.messages) {
        (Field::Message, Messages::Normalized) => Cow::Owned(normalized(&event.message)),
        (field, _) => Cow::Borrowed(field_value(event, field)),
    }
}

/// Returns the text of a field in an event.
pub fn field_value(event: &Event, field: Field) -> &str {
    let object = &event.involved_object;
    match field {
        Field::SourceComponent => &event.source.component,
        Field::SourceHost => &event.source.host,
        Field::InvolvedObjectKind => &object.kind,
        Field::InvolvedObjectNamespace => &object.namespace,
        Field::InvolvedObjectName => &object.name,
        Field::InvolvedObjectFieldPath => &object.field_path,
        Field::InvolvedObjectUid => &object.uid,
        Field::InvolvedObjectApiVersion => &object.api_version,
        Field::InvolvedObjectResourceVersion => &object.resource_version,
        Field::MetadataNamespace => &event.metadata.namespace,
        Field::Type => &event.event_type,
        Field::Reason => &event.reason,
        Field::Message => &event.message,
        Field::Action => &event.action,
        Field::ReportingComponent => &event.reporting_controller,
        Field::ReportingInstance => &event.reporting_instance,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;

    const SECRET: KeySecret = KeySecret(1, 2);

    fn event(component: &str, host: &str) -> Event {
        let mut event = Event::default();
        event.source.component = component.into();
        event.source.host = host.into();
        event
    }

    fn spam(secret: KeySecret, event: &Event, settings: &Settings) -> Key {
        secret.shared(event, settings).spam()
    }

    #[test]
    fn framed_keys_do_not_collide_where_concatenated_ones_do() {
        let framed = Settings::default();
        let concatenated = Settings { key_encoding: KeyEncoding::Concatenated, ..Settings::default() };
        let (left, right) = (event("ab", "c"), event("a", "bc"));
        assert_eq!(spam(SECRET, &left, &concatenated), spam(SECRET, &right, &concatenated));
        assert_ne!(spam(SECRET, &left, &framed), spam(SECRET, &right, &framed));
        assert_ne!(SECRET.source(&left), SECRET.source(&right));
    }

    #[test]
    fn keys_depend_on_the_secret_and_on_the_fields_asked_for() {
        let settings = Settings::default();
        let narrow = Settings { spam_key: vec![Field::SourceComponent], ..Settings::default() };
        let event = event("kubelet", "");
        assert_ne!(spam(SECRET, &event, &settings), spam(KeySecret(3, 4), &event, &settings));
        assert_ne!(spam(SECRET, &event, &settings), spam(SECRET, &event, &narrow));
        let shared = SECRET.shared(&event, &settings);
        assert_ne!(shared.aggregate(), shared.event());
    }

    /// Changes one member of an event that a key may contain.
    fn change(event: &mut Event, field: Field) {
        let object = &mut event.involved_object;
        let member = match field {
            Field::SourceComponent => &mut event.source.component,
            Field::SourceHost => &mut event.source.host,
            Field::InvolvedObjectKind => &mut object.kind,
            Field::InvolvedObjectNamespace => &mut object.namespace,
            Field::InvolvedObjectName => &mut object.name,
            Field::InvolvedObjectFieldPath => &mut object.field_path,
            Field::InvolvedObjectUid => &mut object.uid,
            Field::InvolvedObjectApiVersion => &mut object.api_version,
            Field::InvolvedObjectResourceVersion => &mut object.resource_version,
            Field::MetadataNamespace => &mut event.metadata.namespace,
            Field::Type => &mut event.event_type,
            Field::Reason => &mut event.reason,
            Field::Message => &mut event.message,
            Field::Action => &mut event.action,
            Field::ReportingComponent => &mut event.reporting_controller,
            Field::ReportingInstance => &mut event.reporting_instance,
        };
        *member = "changed".into();
    }

    #[test]
    fn a_key_depends_on_each_of_its_fields_and_on_no_other() {
        let before = event("kubelet", "node-1");
        let changed = |field| {
            let mut event = before.clone();
            change(&mut event, field);
            event
        };
        let other = vec![Field::Reason, Field::Message, Field::SourceHost];
        for encoding in [KeyEncoding::Framed, KeyEncoding::Concatenated] {
            let plain = Settings { key_encoding: encoding, ..Settings::default() };
            let configured = Settings {
                spam_key: other.clone(),
                aggregate_key: other.clone(),
                local_key: other.clone(),
                ..plain.clone()
            };
            for (settings, field) in [&plain, &configured].into_iter().flat_map(|s| Field::ALL.map(|field| (s, field)))
            {
                let keys = |event: &Event| {
                    let shared = SECRET.shared(event, settings);
                    [shared.spam(), shared.aggregate(), shared.local(), shared.event()]
                };
                let differs: Vec<bool> =
                    std::iter::zip(keys(&before), keys(&changed(field))).map(|(a, b)| a != b).collect();
                let everywhere = field == Field::MetadataNamespace && encoding == KeyEncoding::Framed;
                let has = |fields: &[Field]| everywhere || fields.contains(&field);
                let local = settings.local_key.contains(&field) || everywhere && settings.local_key == other;
                assert_eq!(
                    differs,
                    [has(&settings.spam_key), has(&settings.aggregate_key), local, has(&EVENT_KEY)],
                    "{field:?}, {encoding:?}"
                );
            }
        }
    }

    #[test]
    fn a_source_is_the_reporting_controller_where_source_is_empty() {
        let new_style =
            Event { reporting_controller: "kubelet".into(), reporting_instance: "node-1".into(), ..Event::default() };
        assert_eq!(SECRET.source(&new_style), SECRET.source(&event("kubelet", "node-1")));
    }
}
