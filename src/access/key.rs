//! Keys of cached answers: SipHash-1-3 under a secret of this process, so that a cache holds neither tokens nor names,
//! and two inputs cannot be made to share an entry from outside.

use std::hash::Hasher as _;

use siphasher::sip128::{Hasher128 as _, SipHasher13};

use crate::correlator::KeySecret;

/// A key that is being made. Each part is added with its length.
#[derive(Clone, Copy)]
pub(super) struct Key(SipHasher13);

impl Key {
    pub(super) fn new(secret: KeySecret) -> Self {
        Self(SipHasher13::new_with_keys(secret.0, secret.1))
    }

    pub(super) fn add(&mut self, part: &str) {
        self.count(part.len());
        self.0.write(part.as_bytes());
    }

    /// Adds how many parts follow.
    pub(super) fn count(&mut self, parts: usize) {
        self.0.write_usize(parts);
    }

    pub(super) fn finish(&self) -> u128 {
        self.0.finish128().as_u128()
    }
}
