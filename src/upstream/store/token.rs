//! Continue tokens in the apiserver's format. After `k8s.io/apiserver/pkg/storage/continue.go`.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use crate::status::Status;

const VERSION: &str = "meta.k8s.io/v1";
/// The encoded revision of the newest state.
const NEWEST: i64 = -1;

/// The position from which a list continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Token {
    /// The version of the first page; `None` for the newest state.
    pub(super) revision: Option<u64>,
    /// Number of events after the page of this token; `None` with a selector.
    pub(super) remaining: Option<usize>,
    /// The smallest key of the next page, without the prefix of the list.
    pub(super) start: String,
}

/// The JSON of a token. Apiservers have no `left`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Encoded {
    v: String,
    rv: i64,
    start: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    left: Option<usize>,
}

impl Token {
    /// Encodes the token.
    pub(super) fn to_text(&self) -> String {
        let rv = self.revision.map_or(NEWEST, |revision| i64::try_from(revision).unwrap_or(i64::MAX));
        let encoded = Encoded { v: VERSION.to_owned(), rv, start: self.start.clone(), left: self.remaining };
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(&encoded).unwrap_or_default())
    }

    /// Decodes a token.
    ///
    /// # Errors
    /// 400 for an invalid token.
    pub(super) fn parse(text: &str) -> Result<Self, Status> {
        let json = URL_SAFE_NO_PAD.decode(text).map_err(|fault| bad(&fault.to_string()))?;
        let encoded: Encoded = serde_json::from_slice(&json).map_err(|fault| bad(&fault.to_string()))?;
        if encoded.v != VERSION {
            return Err(bad(&format!("unknown version {:?}", encoded.v)));
        }
        if encoded.rv == 0 {
            return Err(bad("no resourceVersion"));
        }
        if encoded.start.is_empty() {
            return Err(bad("no start"));
        }
        // No token continues outside the range of the list.
        if encoded.start.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err(bad(&encoded.start));
        }
        Ok(Self { revision: u64::try_from(encoded.rv).ok(), remaining: encoded.left, start: encoded.start })
    }
}

fn bad(fault: &str) -> Status {
    Status::bad_request(format!("continue: not a token of a list: {fault}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_decoded_as_they_were_encoded_and_others_are_refused() {
        for revision in [Some(7), None] {
            let token = Token { revision, remaining: Some(3), start: "shop/a\0".to_owned() };
            assert_eq!(Token::parse(&token.to_text()), Ok(token));
        }
        let check = |text: &str, fault: &str| {
            let status = Token::parse(text).unwrap_err();
            assert_eq!(status.message, format!("continue: not a token of a list: {fault}"));
        };
        check("abc", "expected value at line 1 column 1");
        check("a+b", "Invalid symbol 43, offset 1.");
        let of = |json: &str| URL_SAFE_NO_PAD.encode(json);
        check(&of(r#"{"v":"v0"}"#), "unknown version \"v0\"");
        check(&of(r#"{"v":"meta.k8s.io/v1","start":"a"}"#), "no resourceVersion");
        check(&of(r#"{"v":"meta.k8s.io/v1","rv":5}"#), "no start");
        check(&of(r#"{"v":"meta.k8s.io/v1","rv":5,"start":"../x"}"#), "../x");
    }
}
