//! Field and label selectors of events.

mod fields;
mod labels;

pub use fields::FieldSelector;
pub use labels::LabelSelector;
