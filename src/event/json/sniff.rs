//! The apiserver's first look at a body: which kind and apiVersion does it claim? Done by Go's standard decoder, which does
//! not mind capitals in keys, before the typed decode, which does. Here both happen in one pass.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use super::decoder::Decoder;
use super::path::Path;
use super::reader::Malformed;
use smol_str::SmolStr;

/// What a body says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct TypeMeta {
    pub(super) kind: SmolStr,
    pub(super) api_version: SmolStr,
    /// The first kind or apiVersion that is not a string, in Go's words.
    pub(super) fault: Option<String>,
}

impl<'a> TypeMeta {
    /// Looks at one member of the top-level object, given its raw value (white space around it allowed).
    pub(super) fn sniff(&mut self, key: &str, value: &'a [u8]) -> Result<(), Malformed> {
        let (name, slot) = if folds_to(key, "kind") {
            ("kind", &mut self.kind)
        } else if folds_to(key, "apiVersion") {
            ("apiVersion", &mut self.api_version)
        } else {
            return Ok(());
        };
        let mut decoder = Decoder::new(value);
        decoder.string(&Path::field(&Path::ROOT, "", name), slot)?;
        let (fault, _strict) = decoder.finish();
        self.fault = self.fault.take().or(fault);
        Ok(())
    }
}

/// Go's `foldName`: equal but for case, where K and S have a second small form each (the Kelvin sign and the long s).
fn folds_to(key: &str, name: &str) -> bool {
    let fold = |letter: char| match letter {
        '\u{212a}' => 'k',
        '\u{17f}' => 's',
        _ => letter.to_ascii_lowercase(),
    };
    key.chars().map(fold).eq(name.chars().map(fold))
}
