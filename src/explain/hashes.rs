//! Hashes that are compared instead of an event's texts.
//!
//! Hot: most occurrences equal the previous one, and comparing equal texts reads them to the end.

use std::hash::{BuildHasher as _, Hasher as _};

use foldhash::SharedSeed;
use foldhash::fast::SeedableRandomState;
use smol_str::SmolStr;

use crate::correlator::{Key, KeySecret};
use crate::event::Event;

/// Hashes of an event's parts, seeded so that collisions cannot be computed in advance. A collision does no more harm
/// than a wrong line in an explanation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hashes {
    /// The involved object.
    pub object: Key,
    /// Reason, type and source.
    pub(super) fact: u64,
    /// The object's uid.
    pub(super) uid: u64,
    pub(super) message: u64,
}

impl Hashes {
    /// Whether all parts but the message are equal.
    pub(super) fn are_of_one_fact(self, other: Self) -> bool {
        self == Self { message: self.message, ..other }
    }

    /// Hashes the parts of an event.
    pub fn new(secret: KeySecret, event: &Event) -> Self {
        Self::with(secret, event, &event.message)
    }

    /// Hashes the parts of an event that has, or had before it was combined, this message.
    pub(super) fn with(secret: KeySecret, event: &Event, message: &str) -> Self {
        let state = state(secret);
        let mut fact = state.build_hasher();
        for text in [event.reason.as_str(), event.event_type.as_str(), event.component(), event.host()] {
            fact.write_usize(text.len());
            fact.write(text.as_bytes());
        }
        let uid = &event.involved_object.uid;
        Self {
            object: secret.subject(event),
            fact: fact.finish(),
            uid: state.hash_one(uid.as_str()),
            message: state.hash_one(message),
        }
    }
}

/// A text and its hash.
#[derive(Debug, Clone, Copy)]
pub(super) struct HashedText<'t> {
    pub(super) text: &'t SmolStr,
    pub(super) hash: u64,
}

impl<'t> HashedText<'t> {
    pub(super) fn new(secret: KeySecret, text: &'t SmolStr) -> Self {
        Self { text, hash: state(secret).hash_one(text.as_str()) }
    }
}

fn state(secret: KeySecret) -> SeedableRandomState {
    SeedableRandomState::with_seed(secret.0 ^ secret.1, SharedSeed::global_fixed())
}
