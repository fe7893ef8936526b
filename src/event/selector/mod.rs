//! Field and label selectors of events.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

mod fields;
mod labels;

pub use fields::FieldSelector;
pub use labels::LabelSelector;
