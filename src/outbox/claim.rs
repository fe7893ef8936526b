//! What makes a write count exactly once although its answer may be lost, it may be applied late, and others write the same
//! record: each writer keeps its own tally on the record, beside the count that all share, and a patch names the version that
//! it was made for.
//!
//! The tally is an annotation, `tally.eventweir/WRITER`: how many occurrences this writer has counted on this record. After
//! an answer was lost, reading the record tells whether the write arrived: the own tally has grown, or it has not, whatever
//! others did meanwhile. The version keeps a write that was given up from being applied after a newer one.

use smol_str::SmolStr;

use super::Outbox;
use super::record::Record;
use crate::event::Event;

/// Where the tallies stand among a record's annotations.
pub const TALLY_PREFIX: &str = "tally.eventweir/";

/// LIMIT: tallies of other writers on one record that are left alone. A writer that has ended leaves its last tally behind
/// for as long as the record lives; beyond the limit a patch removes those that come first by name.
const FOREIGN_TALLIES: usize = 16;

/// What a patch carries beside the content: the version it was made for, and the writer's own tally after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The version that the patch was made for; empty when none is known, and then nothing is required.
    pub resource_version: SmolStr,
    /// The annotation of the writer's tally.
    pub annotation: SmolStr,
    /// The tally after the patch.
    pub tally: u32,
    /// Annotations of other writers that are removed.
    pub removed: Vec<SmolStr>,
}

/// What is known of the record as the upstream holds it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Base {
    /// Its version; empty when unknown.
    pub(super) version: SmolStr,
    /// This writer's tally. It only grows, also when the record is deleted and created again, so that no write of an earlier
    /// life that is applied late can be taken for a newer one.
    pub(super) tally: u32,
    /// Annotations of other writers on it that the next patch removes.
    pub(super) removed: Vec<SmolStr>,
}

impl Base {
    /// Takes over how `event`, just read from the upstream, stands there.
    pub(super) fn follow(&mut self, event: &Event, annotation: Option<&SmolStr>) {
        self.version = event.metadata.resource_version.clone();
        if let Some(annotation) = annotation {
            self.tally = self.tally.max(tally(event, annotation));
            self.removed = too_many(event, annotation);
        }
    }

    /// The record is no longer there.
    pub(super) fn gone(&mut self) {
        self.version = SmolStr::default();
        self.removed.clear();
    }
}

/// The annotation that `writer` keeps its tally under.
pub(super) fn annotation(writer: &str) -> SmolStr {
    SmolStr::from_iter([TALLY_PREFIX, writer])
}

/// A tally on `event`; 0 when there is none.
pub(super) fn tally(event: &Event, annotation: &str) -> u32 {
    let annotations = event.metadata.rare.as_deref().map(|rare| &rare.annotations);
    annotations.and_then(|annotations| annotations.get(annotation)?.parse().ok()).unwrap_or(0)
}

/// Makes `tally` the only tally on an event that is about to be created.
pub(super) fn mark(event: &mut Event, annotation: &SmolStr, tally: u32) {
    let rare = event.metadata.rare.get_or_insert_default();
    rare.annotations.retain(|name, _| !name.starts_with(TALLY_PREFIX));
    rare.annotations.insert(annotation.clone(), SmolStr::from(tally.to_string()));
}

/// The tallies on `event` that are too many, so that a record's annotations do not grow with every restart.
fn too_many(event: &Event, annotation: &str) -> Vec<SmolStr> {
    let Some(rare) = event.metadata.rare.as_deref() else { return Vec::new() };
    let foreign = || rare.annotations.keys().filter(|name| name.starts_with(TALLY_PREFIX) && *name != annotation);
    let excess = foreign().count().saturating_sub(FOREIGN_TALLIES);
    foreign().take(excess).cloned().collect()
}

impl Outbox {
    /// From now on writes carry tallies under this name, and versions. It must never have been used by another process,
    /// unless that one's outbox lives on in this one.
    pub fn identify(&mut self, writer: &str) {
        self.annotation = Some(annotation(writer));
    }

    /// How much of `event`, read from the upstream, is this writer's own.
    #[must_use]
    pub fn own_tally(&self, event: &Event) -> u32 {
        self.annotation.as_ref().map_or(0, |annotation| tally(event, annotation))
    }
}

impl Record {
    /// What a patch of this record carries that brings this writer's tally to `tally`.
    pub(super) fn claim(&self, annotation: &SmolStr, tally: u32) -> Claim {
        Claim {
            resource_version: self.base.version.clone(),
            annotation: annotation.clone(),
            tally,
            removed: self.base.removed.clone(),
        }
    }

    /// This writer's tally after `occurrences` more.
    pub(super) fn tally_with(&self, occurrences: u64) -> u32 {
        self.base.tally.saturating_add(u32::try_from(occurrences).unwrap_or(u32::MAX))
    }
}
