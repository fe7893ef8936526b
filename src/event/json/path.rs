//! Where in a document the decoder stands, in the words in which faults tell it.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

/// Where in the document the decoder stands: a list linked through the stack, read only when there is a fault to tell.
#[derive(Debug, Clone, Copy)]
pub(super) struct Path<'p> {
    parent: Option<&'p Path<'p>>,
    part: Part<'p>,
}

#[derive(Debug, Clone, Copy)]
enum Part<'p> {
    Root,
    /// A member of a Go struct.
    Field {
        of: &'static str,
        name: &'p str,
    },
    /// A key of a Go map.
    Key(&'p str),
    /// An element of a Go slice.
    Index(usize),
}

impl<'p> Path<'p> {
    pub(super) const ROOT: Path<'static> = Path { parent: None, part: Part::Root };

    pub(super) const fn field(parent: &'p Path<'p>, of: &'static str, name: &'p str) -> Self {
        Self { parent: Some(parent), part: Part::Field { of, name } }
    }

    pub(super) const fn key(parent: &'p Path<'p>, key: &'p str) -> Self {
        Self { parent: Some(parent), part: Part::Key(key) }
    }

    pub(super) const fn index(parent: &'p Path<'p>, index: usize) -> Self {
        Self { parent: Some(parent), part: Part::Index(index) }
    }

    /// The key of the member that stands here; empty elsewhere.
    pub(super) const fn key_here(&self) -> &'p str {
        match self.part {
            Part::Field { name, .. } | Part::Key(name) => name,
            Part::Root | Part::Index(_) => "",
        }
    }

    /// As strict faults show it: `metadata.ownerReferences[0].name`.
    pub(super) fn strict(&self, text: &mut String) {
        if let Some(parent) = self.parent {
            parent.strict(text);
        }
        match self.part {
            Part::Root => {}
            Part::Field { name, .. } | Part::Key(name) => {
                if !text.is_empty() {
                    text.push('.');
                }
                text.push_str(name);
            }
            Part::Index(index) => {
                text.push('[');
                text.push_str(&index.to_string());
                text.push(']');
            }
        }
    }

    /// As type faults show it: the innermost struct and the struct members that lead there, `OwnerReference` and
    /// `metadata.ownerReferences.name`.
    pub(super) fn context(&self) -> (&'static str, String) {
        let (mut innermost, mut text) = self.parent.map_or(("", String::new()), Path::context);
        if let Part::Field { of, name } = self.part {
            innermost = of;
            if !text.is_empty() {
                text.push('.');
            }
            text.push_str(name);
        }
        (innermost, text)
    }
}
