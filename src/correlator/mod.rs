//! The decision.
mod policy;
mod settings;

pub use policy::{Matches, Pattern, Policy, Rule};
pub use settings::{
    AGGREGATE_KEY, Correlation, CountOverflow, Field, KeyEncoding, LEGACY_SPAM_KEY, MESSAGE_PREFIX, SPAM_KEY, Settings,
    Suppression,
};
