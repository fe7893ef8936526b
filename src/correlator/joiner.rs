//! Fields of an event joined into one keyed hash.

use super::key::{Domain, Key, KeySecret};
use super::settings::{Field, KeyEncoding};
use super::sip::Sip;

/// Joins fields into a hash.
pub(super) struct Joiner {
    sip: Sip,
    /// The fields without anything between them, where they are joined so.
    concatenated: Option<Vec<u8>>,
}

impl Joiner {
    pub(super) fn new(secret: KeySecret, encoding: KeyEncoding, domain: Domain) -> Self {
        let sip = Sip::new(secret.0, secret.1);
        match encoding {
            KeyEncoding::Framed => {
                let mut joiner = Self::on(sip);
                joiner.add_number(domain as u64);
                joiner
            }
            KeyEncoding::Concatenated => Self { sip, concatenated: Some(Vec::new()) },
        }
    }

    /// Goes on from what has been hashed, with framed fields.
    pub(super) const fn on(sip: Sip) -> Self {
        Self { sip, concatenated: None }
    }

    /// What has been hashed so far, to go on from. Of framed fields only.
    pub(super) const fn hashed(&self) -> Sip {
        self.sip
    }

    /// Adds what is no text; concatenated fields have nothing of the kind.
    #[inline]
    pub(super) fn add_number(&mut self, number: u64) {
        self.sip.word(number);
    }

    /// Adds which fields follow: how many, and a byte for each.
    #[inline]
    pub(super) fn add_list(&mut self, fields: &[Field]) {
        let word = |fields: &[Field]| fields.iter().rev().fold(0, |word, field| word << 8 | *field as u64);
        let (beginning, others) = fields.split_at(fields.len().min(7));
        self.add_number(word(beginning) << 8 | fields.len() as u64);
        others.chunks(8).for_each(|some| self.add_number(word(some)));
    }

    #[inline]
    pub(super) fn add(&mut self, text: &str) {
        match &mut self.concatenated {
            None => self.sip.text(text.as_bytes()),
            Some(concatenated) => concatenated.extend_from_slice(text.as_bytes()),
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "both halves are taken")]
    pub(super) fn add_key(&mut self, key: Key) {
        self.add_number(key.0 as u64);
        self.add_number((key.0 >> 64) as u64);
    }

    /// Half of the key of framed fields, for half of the time.
    pub(super) fn half(self) -> u64 {
        self.sip.half()
    }

    pub(super) fn finish(mut self) -> Key {
        if let Some(concatenated) = &self.concatenated {
            self.sip.text(concatenated);
        }
        Key(self.sip.finish())
    }
}
