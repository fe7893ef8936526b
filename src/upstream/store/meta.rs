//! Metadata that the server gives: uids, generated names, resource versions. After `k8s.io/apiserver/pkg/registry/rest/{meta,
//! create}.go` and `k8s.io/apiserver/pkg/storage/names/generate.go`.

use smol_str::{SmolStr, format_smolstr};

use crate::event::{ObjectMeta, RareMeta};

/// Longest base of a generated name, in bytes; the rest is cut off.
const BASE_BYTES_MAX: usize = 58;
/// Random characters of a generated name, and the alphabet they come from.
const SUFFIX_LENGTH: usize = 5;
const SUFFIX_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// A resource version as the API shows it.
pub(super) fn version_text(revision: u64) -> SmolStr {
    format_smolstr!("{revision}")
}

/// A random (version 4) UUID.
pub(super) fn random_uid(rng: &mut fastrand::Rng) -> SmolStr {
    let bits = rng.u128(..);
    let [a, b, c, d, e] =
        [bits >> 96, bits >> 80 & 0xffff, bits >> 64 & 0x0fff, bits >> 48 & 0x3fff, bits & 0xffff_ffff_ffff];
    format_smolstr!("{a:08x}-{b:04x}-4{c:03x}-{:04x}-{e:012x}", d | 0x8000)
}

/// `base`, cut to 58 bytes, and five random characters.
pub fn generated_name(base: &str, rng: &mut fastrand::Rng) -> SmolStr {
    // Go cuts bytes; at a character boundary the result is the same for every valid name.
    let (base, _) = base.split_at(base.floor_char_boundary(BASE_BYTES_MAX));
    let suffix: String =
        (0..SUFFIX_LENGTH).filter_map(|_| rng.choice(SUFFIX_ALPHABET)).map(|&c| char::from(c)).collect();
    format_smolstr!("{base}{suffix}")
}

/// Drops what a client may not say about a new object.
pub(super) fn drop_server_owned(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
    let Some(rare) = &mut metadata.rare else { return };
    rare.self_link = SmolStr::default();
    rare.deletion_timestamp = None;
    rare.deletion_grace_period_seconds = None;
    if **rare == RareMeta::default() {
        metadata.rare = None;
    }
}

/// Gives the new state of an object what no update can change, so that it equals the old one where only that differs.
pub(super) fn keep_server_owned(new: &mut ObjectMeta, old: &ObjectMeta) {
    new.uid.clone_from(&old.uid);
    new.creation_timestamp = old.creation_timestamp;
    let mut rare = new.rare.take().map(|rare| *rare).unwrap_or_default();
    let kept = old.rare.as_deref();
    rare.self_link = SmolStr::default();
    rare.generation = kept.map_or(0, |kept| kept.generation);
    rare.deletion_timestamp = kept.and_then(|kept| kept.deletion_timestamp);
    rare.deletion_grace_period_seconds = kept.and_then(|kept| kept.deletion_grace_period_seconds);
    new.rare = (rare != RareMeta::default()).then(|| Box::new(rare));
}
