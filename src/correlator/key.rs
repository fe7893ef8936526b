//! client-go's four keys (spam, aggregate, local, event) and the key of a source, as keyed 128-bit hashes.
//!
//! client-go keeps the joined strings; we keep SipHash-1-3 of them under a secret of this process, so a key costs 16 bytes and
//! nobody outside can construct two tuples that collide. Mirrors `getEventKey`, `getSpamKey` and
//! `EventAggregatorByReasonFunc` in `tools/record/events_cache.go`.

use std::hash::{BuildHasherDefault, Hasher};

use siphasher::sip128::{Hasher128, SipHasher13};

use super::settings::{Field, KeyEncoding, Settings};
use crate::event::Event;

/// A keyed hash of some fields of an event, or of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub u128);

/// The secret that keys are hashed with; one per process, random outside tests.
#[derive(Clone, Copy)]
pub struct KeySecret(pub u64, pub u64);

impl std::fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeySecret")
    }
}

/// Passes the bits of a [`Key`] through: they are uniformly distributed and secret already.
#[derive(Debug, Default)]
pub struct KeyHasher(u64);

/// Builds the hasher of maps whose keys are [`Key`]s.
pub type BuildKeyHasher = BuildHasherDefault<KeyHasher>;

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // Only the enum tags that derive(Hash) puts around a Key come here.
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "the low half of a uniform hash is a uniform hash")]
    fn write_u128(&mut self, bits: u128) {
        self.0 = self.0.rotate_left(32) ^ (bits as u64);
    }
}

/// What a key stands for; part of the hash, so that keys of different kinds never meet in one map.
#[derive(Debug, Clone, Copy)]
enum Domain {
    Source,
    Spam,
    Aggregate,
    Local,
    Event,
}

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
    /// The key of the source that reports `event`.
    #[must_use]
    pub fn source(self, event: &Event) -> Key {
        let mut joiner = Joiner::new(self, KeyEncoding::Framed, Domain::Source);
        joiner.add(event.component());
        joiner.add(event.host());
        joiner.finish()
    }

    /// Whose events share a budget.
    #[must_use]
    pub fn spam(self, event: &Event, settings: &Settings) -> Key {
        self.fields(event, settings.key_encoding, Domain::Spam, &settings.spam_key)
    }

    /// Which events can be combined. Also the dedup key of the combined event, so it lives in one map with event keys.
    #[must_use]
    pub fn aggregate(self, event: &Event, settings: &Settings) -> Key {
        self.fields(event, settings.key_encoding, Domain::Aggregate, &settings.aggregate_key)
    }

    /// What makes an event distinct within its group.
    #[must_use]
    pub fn local(self, event: &Event, settings: &Settings) -> Key {
        self.fields(event, settings.key_encoding, Domain::Local, &settings.local_key)
    }

    /// Which events are the same event again.
    #[must_use]
    pub fn event(self, event: &Event, settings: &Settings) -> Key {
        self.fields(event, settings.key_encoding, Domain::Event, &EVENT_KEY)
    }

    fn fields(self, event: &Event, encoding: KeyEncoding, domain: Domain, fields: &[Field]) -> Key {
        let mut joiner = Joiner::new(self, encoding, domain);
        match encoding {
            KeyEncoding::Framed => {
                // The namespace a record lives in is part of its identity; new-style events may name an involved object
                // in another one. The list of fields is hashed too: rules with different keys never share an entry.
                joiner.add(&event.metadata.namespace);
                for field in fields {
                    joiner.add_tag(*field as u8);
                }
            }
            // COMPAT(client-go): plain concatenation, one namespace of keys for event and aggregate keys
            // (`getEventKey`, `EventAggregatorByReasonFunc`); vector 092 would differ otherwise.
            KeyEncoding::Concatenated => {}
        }
        for field in fields {
            joiner.add(field_value(event, *field));
        }
        if let (Domain::Event, KeyEncoding::Framed, Some(_)) = (domain, encoding, event.event_time) {
            // What `tools/events` tells new-style events apart by, beside the fields above (`getKey`).
            joiner.add(&event.action);
            if let Some(related) = &event.related {
                let parts = [&related.kind, &related.namespace, &related.name, &related.uid, &related.field_path];
                parts.into_iter().for_each(|part| joiner.add(part));
            }
        }
        joiner.finish()
    }
}

fn field_value(event: &Event, field: Field) -> &str {
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

struct Joiner {
    hasher: SipHasher13,
    encoding: KeyEncoding,
}

impl Joiner {
    fn new(secret: KeySecret, encoding: KeyEncoding, domain: Domain) -> Self {
        let mut joiner = Self { hasher: SipHasher13::new_with_keys(secret.0, secret.1), encoding };
        if encoding == KeyEncoding::Framed {
            joiner.add_tag(domain as u8);
        }
        joiner
    }

    fn add_tag(&mut self, tag: u8) {
        self.hasher.write(&[tag]);
    }

    fn add(&mut self, text: &str) {
        if self.encoding == KeyEncoding::Framed {
            self.hasher.write(&(text.len() as u64).to_le_bytes());
        }
        self.hasher.write(text.as_bytes());
    }

    fn finish(&self) -> Key {
        Key(self.hasher.finish128().as_u128())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: KeySecret = KeySecret(1, 2);

    fn event(component: &str, host: &str) -> Event {
        let mut event = Event::default();
        event.source.component = component.into();
        event.source.host = host.into();
        event
    }

    #[test]
    fn framed_keys_do_not_collide_where_concatenated_ones_do() {
        let framed = Settings::default();
        let concatenated = Settings { key_encoding: KeyEncoding::Concatenated, ..Settings::default() };
        let (left, right) = (event("ab", "c"), event("a", "bc"));
        assert_eq!(SECRET.spam(&left, &concatenated), SECRET.spam(&right, &concatenated));
        assert_ne!(SECRET.spam(&left, &framed), SECRET.spam(&right, &framed));
        assert_ne!(SECRET.source(&left), SECRET.source(&right));
    }

    #[test]
    fn keys_depend_on_the_secret_and_on_the_fields_asked_for() {
        let settings = Settings::default();
        let narrow = Settings { spam_key: vec![Field::SourceComponent], ..Settings::default() };
        let event = event("kubelet", "");
        assert_ne!(SECRET.spam(&event, &settings), KeySecret(3, 4).spam(&event, &settings));
        assert_ne!(SECRET.spam(&event, &settings), SECRET.spam(&event, &narrow));
        assert_ne!(SECRET.aggregate(&event, &settings), SECRET.event(&event, &settings));
    }

    #[test]
    fn a_source_is_the_reporting_controller_where_source_is_empty() {
        let new_style =
            Event { reporting_controller: "kubelet".into(), reporting_instance: "node-1".into(), ..Event::default() };
        assert_eq!(SECRET.source(&new_style), SECRET.source(&event("kubelet", "node-1")));
    }
}
