//! Unsettled writes.
mod settings;
mod write;

pub use crate::correlator::{Patch, RecordId};
pub use settings::Settings;
pub use write::{Answer, Applied, Fault, Refusal, RefusalReason, Request, Retry, Write};
