//! Hashes that are compared instead of an event's texts.
//!
//! Hot: most occurrences equal the previous one, and comparing equal texts reads them to the end.

use std::hash::{BuildHasher as _, Hasher as _};

use foldhash::SharedSeed;
use foldhash::fast::SeedableRandomState;

use crate::correlator::{Key, KeySecret};
use crate::event::Event;

/// Hashes of an event's parts, seeded so that collisions cannot be computed in advance. A collision does no more harm
/// than a wrong line in an explanation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marks {
    /// The involved object.
    pub object: Key,
    /// Reason, type and source.
    pub(super) fact: u64,
    /// The object's uid.
    pub(super) uid: u64,
    /// The message.
    pub(super) message: u64,
}

impl Marks {
    /// Returns a hash of all parts.
    #[expect(clippy::cast_possible_truncation, reason = "half of a uniform hash")]
    pub(super) const fn hash(self) -> u64 {
        let Self { object: Key(object), fact, uid, message } = self;
        (object as u64).rotate_left(13) ^ fact.rotate_left(26) ^ uid.rotate_left(39) ^ message.rotate_left(52)
    }

    /// Hashes the parts of an event.
    #[must_use]
    pub fn new(secret: KeySecret, event: &Event) -> Self {
        let state = state(secret);
        let mut fact = state.build_hasher();
        for text in [event.reason.as_str(), event.event_type.as_str(), event.component(), event.host()] {
            fact.write_usize(text.len());
            fact.write(text.as_bytes());
        }
        let (uid, message) = (&event.involved_object.uid, &event.message);
        Self {
            object: secret.subject(event),
            fact: fact.finish(),
            uid: state.hash_one(uid.as_str()),
            message: state.hash_one(message.as_str()),
        }
    }
}

/// Hashes another text.
pub(super) fn mark(secret: KeySecret, text: &str) -> u64 {
    state(secret).hash_one(text)
}

fn state(secret: KeySecret) -> SeedableRandomState {
    SeedableRandomState::with_seed(secret.0 ^ secret.1, SharedSeed::global_fixed())
}
