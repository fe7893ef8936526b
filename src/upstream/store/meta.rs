//! Metadata that the server sets: uids, generated names, resource versions. After
//! `k8s.io/apiserver/pkg/registry/rest/{meta, create,update}.go` and `k8s.io/apiserver/pkg/storage/names/generate.go`.

use smol_str::{SmolStr, format_smolstr};

use crate::event::{ObjectMeta, RareMeta};

/// LIMIT: bytes of the base of a generated name; a longer base is cut.
const BASE_BYTES_MAX: usize = 58;
/// Number of random characters of a generated name, and their alphabet.
const SUFFIX_LENGTH: usize = 5;
const SUFFIX_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// Returns a random UUID (version 4).
pub(super) fn random_uid(rng: &mut fastrand::Rng) -> SmolStr {
    let bits = rng.u128(..);
    let [a, b, c, d, e] =
        [bits >> 96, bits >> 80 & 0xffff, bits >> 64 & 0x0fff, bits >> 48 & 0x3fff, bits & 0xffff_ffff_ffff];
    format_smolstr!("{a:08x}-{b:04x}-4{c:03x}-{:04x}-{e:012x}", d | 0x8000)
}

/// Returns `base`, cut to 58 bytes, and five random characters.
pub fn generated_name(base: &str, rng: &mut fastrand::Rng) -> SmolStr {
    // Go cuts at any byte; for valid names, which are ASCII in events.k8s.io/v1, a character boundary is the same.
    let (base, _) = base.split_at(base.floor_char_boundary(BASE_BYTES_MAX));
    let suffix: String =
        (0..SUFFIX_LENGTH).filter_map(|_| rng.choice(SUFFIX_ALPHABET)).map(|&c| char::from(c)).collect();
    format_smolstr!("{base}{suffix}")
}

/// Drops the fields of a new object that a client must not set.
pub fn drop_server_owned(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
    if metadata.rare.is_some() {
        metadata.change_rare(|rare| {
            rare.self_link = SmolStr::default();
            rare.deletion_timestamp = None;
            rare.deletion_grace_period_seconds = None;
        });
    }
}

/// Copies the fields that a PUT or a PATCH cannot change from the old object, so that a difference in them alone is no
/// change. Another uid and new times of deletion are kept for validation to refuse.
pub(super) fn keep_server_owned(new: &mut ObjectMeta, old: &ObjectMeta) {
    if new.uid.is_empty() {
        new.uid.clone_from(&old.uid);
    }
    new.creation_timestamp = old.creation_timestamp;
    let none = RareMeta::default();
    let kept = old.rare.as_deref().unwrap_or(&none);
    new.change_rare(|rare| {
        rare.self_link = SmolStr::default();
        rare.generation = kept.generation;
        rare.deletion_timestamp = kept.deletion_timestamp.or(rare.deletion_timestamp);
        rare.deletion_grace_period_seconds = rare.deletion_grace_period_seconds.or(kept.deletion_grace_period_seconds);
    });
}
