//! Fields of an event joined into one keyed hash.
//!
//! Hot: gathers the fields first, because hashing many small pieces takes longer than hashing one large one.

use std::hash::Hasher as _;

use siphasher::sip128::{Hasher128 as _, SipHasher13};

use super::key::{Domain, Key, KeySecret};
use super::settings::KeyEncoding;

/// Joins fields into a hash.
pub(super) struct Joiner {
    hasher: SipHasher13,
    encoding: KeyEncoding,
    gathered: [u8; GATHERED],
    filled: usize,
}

/// About what the fields have that keys share.
const GATHERED: usize = 256;

impl Joiner {
    pub(super) fn new(secret: KeySecret, encoding: KeyEncoding, domain: Domain) -> Self {
        let mut joiner = Self::on(SipHasher13::new_with_keys(secret.0, secret.1), encoding);
        if encoding == KeyEncoding::Framed {
            joiner.add_tag(domain as u8);
        }
        joiner
    }

    /// Goes on from what has been hashed.
    pub(super) const fn on(hasher: SipHasher13, encoding: KeyEncoding) -> Self {
        Self { hasher, encoding, gathered: [0; GATHERED], filled: 0 }
    }

    pub(super) fn add_bytes(&mut self, bytes: &[u8]) {
        if let Some(room) = self.gathered.get_mut(self.filled..self.filled + bytes.len()) {
            room.copy_from_slice(bytes);
            self.filled += bytes.len();
            return;
        }
        self.flush();
        match self.gathered.get_mut(..bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.filled = bytes.len();
            }
            None => self.hasher.write(bytes),
        }
    }

    /// What has been hashed so far, to go on from.
    pub(super) fn hashed(mut self) -> SipHasher13 {
        self.flush();
        self.hasher
    }

    fn flush(&mut self) {
        self.hasher.write(&self.gathered[..self.filled]);
        self.filled = 0;
    }

    pub(super) fn add_tag(&mut self, tag: u8) {
        self.add_bytes(&[tag]);
    }

    pub(super) fn add(&mut self, text: &str) {
        if self.encoding == KeyEncoding::Framed {
            self.add_bytes(&(text.len() as u64).to_le_bytes());
        }
        self.add_bytes(text.as_bytes());
    }

    pub(super) fn add_key(&mut self, key: Key) {
        self.add_bytes(&key.0.to_le_bytes());
    }

    pub(super) fn finish(mut self) -> Key {
        self.flush();
        Key(self.hasher.finish128().as_u128())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// However the pieces fall: what is gathered hashes as what is not.
        #[test]
        fn gathering_changes_no_hash(pieces in proptest::collection::vec(".{0,300}", 0..8), from in 0..8_usize) {
            let mut plain = SipHasher13::new_with_keys(1, 2);
            plain.write(&[Domain::Event as u8]);
            let mut joiner = Joiner::new(KeySecret(1, 2), KeyEncoding::Framed, Domain::Event);
            for (number, piece) in pieces.iter().enumerate() {
                plain.write(&(piece.len() as u64).to_le_bytes());
                plain.write(piece.as_bytes());
                joiner.add(piece);
                if number == from {
                    joiner = Joiner::on(joiner.hashed(), KeyEncoding::Framed);
                }
            }
            prop_assert_eq!(joiner.finish(), Key(plain.finish128().as_u128()));
        }
    }
}
