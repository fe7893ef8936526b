//! The patches by which clients report growing totals.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::STRATEGIC_MERGE;
use super::model::{Group, KINDS, KindId, Style, line, series};

const MERGE: &str = "application/merge-patch+json";

/// Message of a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Message {
    Kept,
    Changed,
}

/// Members of a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// Count or series, and perhaps the message, as client-go sends them.
    Strategic,
    /// The same as a merge patch.
    Merge,
    /// A merge patch of the whole event, as kube-rs sends it.
    Whole,
}

/// A patch of an event whose total has grown.
#[derive(Debug, Clone, Copy)]
pub(super) struct Growth {
    pub(super) by: i32,
    pub(super) message: Message,
    pub(super) shape: Shape,
    pub(super) group: Group,
}

impl Growth {
    /// Returns patches that grow by so much.
    pub(super) fn strategy(by: std::ops::Range<i32>) -> impl Strategy<Value = Self> {
        let message = prop_oneof![2 => Just(Message::Kept), 1 => Just(Message::Changed)];
        let shape = prop_oneof![4 => Just(Shape::Strategic), 1 => Just(Shape::Merge), 1 => Just(Shape::Whole)];
        let group = prop::sample::select(vec![Group::Core, Group::Events]);
        (by, message, shape, group).prop_map(|(by, message, shape, group)| Self { by, message, shape, group })
    }

    /// Whether events.k8s.io/v1 refuses the patch: it sets a count, and is no occurrence.
    pub(super) fn is_refused(self, kind: KindId) -> bool {
        KINDS[kind].style == Style::Old && self.group == Group::Events && self.shape != Shape::Whole
    }

    /// Returns kind and total of an event after the patch.
    pub(super) fn result(self, kind: KindId, total: i32) -> (KindId, i32) {
        let is_moved = self.message == Message::Changed && self.by > 0;
        let has_message = KINDS[kind].style == Style::Old || self.shape == Shape::Whole;
        let mut others = (0..KINDS.len()).filter(|other| line(*other) == line(kind) && *other != kind);
        let kind = others.next().filter(|_| is_moved && has_message && !self.is_refused(kind)).unwrap_or(kind);
        let least = if KINDS[kind].style == Style::New { 2 } else { 1 };
        (kind, (total + self.by).max(least))
    }

    /// Returns path, content type and body of the patch that brings an event to this kind and total.
    pub(super) fn request(self, name: &str, kind: KindId, total: i32) -> (String, &'static str, String) {
        let content_type = if self.shape == Shape::Strategic { STRATEGIC_MERGE } else { MERGE };
        let body: Value = match (KINDS[kind].style, self.shape) {
            (_, Shape::Whole) => KINDS[kind].body_in(self.group, &json!({ "name": name }), total),
            (Style::New, _) => json!({ "series": series(total) }),
            // No record has this count, so that the patch changes it.
            (Style::Old, _) if self.is_refused(kind) => json!({ "deprecatedCount": total + 1000 }),
            (Style::Old, _) if self.message == Message::Kept => json!({ "count": total }),
            (Style::Old, _) => json!({ "count": total, "message": KINDS[kind].message }),
        };
        (format!("{}/{name}", self.group.path()), content_type, body.to_string())
    }
}
