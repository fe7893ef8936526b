//! Unsettled writes.
mod settings;
mod write;

pub use settings::Settings;
pub use write::{Answer, Applied, Fault, Patch, RecordId, Refusal, RefusalReason, Request, Retry, Write};
