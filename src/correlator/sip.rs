//! SipHash-1-3 with 128 bits, taken word by word instead of byte by byte: a keyed hash that nobody without the key can make collide.
//!
//! Hot. Texts are framed so that no byte has to be moved before it is hashed: the length beside the first four bytes, then words, of
//! which the last one may overlap the one before. A hash of bytes in a row (the `siphasher` crate, whose values a test compares) took
//! a quarter more instructions for the keys of an event.

/// A hash in the making.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sip {
    v0: u64,
    v1: u64,
    v2: u64,
    v3: u64,
    words: u64,
}

impl Sip {
    /// Under this key.
    pub(super) const fn new(key0: u64, key1: u64) -> Self {
        Self {
            v0: key0 ^ 0x736f_6d65_7073_6575,
            v1: key1 ^ 0x646f_7261_6e64_6f6d ^ 0xee,
            v2: key0 ^ 0x6c79_6765_6e65_7261,
            v3: key1 ^ 0x7465_6462_7974_6573,
            words: 0,
        }
    }

    #[inline]
    const fn round(&mut self) {
        self.v0 = self.v0.wrapping_add(self.v1);
        self.v2 = self.v2.wrapping_add(self.v3);
        self.v1 = self.v1.rotate_left(13) ^ self.v0;
        self.v3 = self.v3.rotate_left(16) ^ self.v2;
        self.v0 = self.v0.rotate_left(32);
        self.v2 = self.v2.wrapping_add(self.v1);
        self.v0 = self.v0.wrapping_add(self.v3);
        self.v1 = self.v1.rotate_left(17) ^ self.v2;
        self.v3 = self.v3.rotate_left(21) ^ self.v0;
        self.v2 = self.v2.rotate_left(32);
    }

    #[inline]
    const fn compress(&mut self, word: u64) {
        self.v3 ^= word;
        self.round();
        self.v0 ^= word;
    }

    /// Adds a word.
    #[inline]
    pub(super) const fn word(&mut self, word: u64) {
        self.compress(word);
        self.words = self.words.wrapping_add(1);
    }

    /// Adds a text, so that no other row of texts adds the same words.
    // So that the state stays in registers from one text to the next.
    #[inline(always)]
    pub(super) fn text(&mut self, text: &[u8]) {
        let length = text.len() as u64;
        let Some((first, rest)) = text.split_first_chunk() else {
            let few = text.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
            return self.word(length | few << 32);
        };
        self.word(length | u64::from(u32::from_le_bytes(*first)) << 32);
        let (whole, left) = rest.as_chunks();
        for chunk in whole {
            self.word(u64::from_le_bytes(*chunk));
        }
        if left.is_empty() {
            return;
        }
        match (text.last_chunk(), text.last_chunk()) {
            (Some(last), _) => self.word(u64::from_le_bytes(*last)),
            (None, Some(last)) => self.word(u32::from_le_bytes(*last).into()),
            (None, None) => {}
        }
    }

    /// The lower half of the hash, for half of the time.
    pub(super) fn half(mut self) -> u64 {
        self.finish_half()
    }

    fn finish_half(&mut self) -> u64 {
        // What would be the last bytes that make no whole word: none, and how many there were before them.
        self.compress((self.words << 3) << 56);
        self.v2 ^= 0xee;
        (0..3).for_each(|_| self.round());
        self.v0 ^ self.v1 ^ self.v2 ^ self.v3
    }

    /// The hash.
    pub(super) fn finish(mut self) -> u128 {
        let low = self.finish_half();
        self.v1 ^= 0xdd;
        (0..3).for_each(|_| self.round());
        let high = self.v0 ^ self.v1 ^ self.v2 ^ self.v3;
        u128::from(low) | u128::from(high) << 64
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::hash::Hasher as _;

    use proptest::prelude::*;
    use siphasher::sip128::{Hasher128 as _, SipHasher13};

    use super::*;

    proptest! {
        #[test]
        fn words_hash_as_their_bytes_do(words in proptest::collection::vec(any::<u64>(), 0..70), key in any::<(u64, u64)>()) {
            let mut expected = SipHasher13::new_with_keys(key.0, key.1);
            let mut sip = Sip::new(key.0, key.1);
            for word in words {
                expected.write(&word.to_le_bytes());
                sip.word(word);
            }
            prop_assert_eq!(sip.finish(), expected.finish128().as_u128());
            prop_assert_eq!(u128::from(sip.half()), sip.finish() & u128::from(u64::MAX));
        }
    }

    /// Texts of two letters, up to some words long, alone and in pairs.
    #[test]
    fn no_two_rows_of_texts_are_the_same_words() {
        let mut texts = vec![String::new()];
        for length in 1..=26 {
            texts.push("a".repeat(length));
            for place in 0..length {
                let mut text = "a".repeat(length);
                text.replace_range(place..=place, "b");
                texts.push(text);
            }
        }
        let mut known: HashMap<u128, (&str, Option<&str>)> = HashMap::new();
        for text in &texts {
            for second in std::iter::once(None).chain(texts.iter().map(|text| Some(text.as_str()))) {
                let mut sip = Sip::new(1, 2);
                sip.text(text.as_bytes());
                if let Some(second) = second {
                    sip.text(second.as_bytes());
                }
                let other = known.insert(sip.finish(), (text, second));
                assert_eq!(other, None, "{text} {second:?}");
            }
        }
    }
}
