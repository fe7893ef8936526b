//! Continue tokens of lists.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use crate::status::Status;

/// The position from which a list continues.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Token {
    /// The version of the first page; `None` for the newest state.
    pub(super) revision: Option<u64>,
    /// Number of events after the page of this token; `None` with a selector.
    pub(super) remaining: Option<usize>,
    /// The smallest key of the next page, without the prefix of the list.
    pub(super) start: String,
}

impl Token {
    pub(super) fn to_text(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }

    /// Decodes a token.
    ///
    /// # Errors
    /// 400 for an invalid token.
    pub(super) fn parse(text: &str) -> Result<Self, Status> {
        let json = URL_SAFE_NO_PAD.decode(text).map_err(|fault| bad(&fault))?;
        serde_json::from_slice(&json).map_err(|fault| bad(&fault))
    }
}

fn bad(fault: &dyn std::fmt::Display) -> Status {
    Status::bad_request(format!("continue: not a token of a list: {fault}"))
}
