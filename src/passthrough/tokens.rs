//! Hashes of the tokens that the apiserver has accepted. Since Kubernetes 1.29 it ends the HTTP/2 connection of each
//! request without valid credentials, so requests with other tokens share no connection with these. And of those that
//! a review has accepted, which may be valid for eventweir alone.

use std::hash::{BuildHasher as _, RandomState};
use std::num::NonZeroUsize;

use base64::Engine as _;
use http::{HeaderMap, Method, StatusCode, Uri};
use lru::LruCache;
use parking_lot::Mutex;
use smol_str::{SmolStr, format_smolstr};

use crate::access::{JWT, bearer, lru};
use crate::upstream::apiserver::may_be_proxied;

/// LIMIT: tokens that the apiserver has accepted; beyond it the least recently used one is evicted, and its next request
/// is one with a new token.
const TOKENS_MAX: NonZeroUsize = NonZeroUsize::new(16_384).unwrap();

/// Tokens that the apiserver has accepted. No client can insert another one.
#[derive(Debug)]
pub(super) struct Tokens {
    /// SipHash under a secret of this process, so that no client can construct a token with the hash of another.
    hasher: RandomState,
    // LIMIT: `TOKENS_MAX`.
    accepted: Mutex<LruCache<u64, ()>>,
    /// Tokens of callers of events, which a review has accepted.
    // LIMIT: `TOKENS_MAX`.
    reviewed: Mutex<LruCache<u64, ()>>,
}

/// The token of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shown<'h> {
    pub(super) text: &'h str,
    pub(super) hash: u64,
}

impl Tokens {
    pub(super) fn new() -> Self {
        let [accepted, reviewed] = [(); 2].map(|()| Mutex::new(lru(TOKENS_MAX)));
        Self { hasher: RandomState::new(), accepted, reviewed }
    }

    /// Returns a request's token. To an apiserver, a request without one is anonymous.
    pub(super) fn shown<'h>(&self, headers: &'h HeaderMap) -> Option<Shown<'h>> {
        bearer(headers).map(|text| Shown { text, hash: self.hasher.hash_one(text) })
    }

    /// Returns the name under which the caller of an accepted token has its share: the content of a JWT, which has many
    /// spellings that the apiserver accepts. The name is none of a token: one with another signature has the same.
    pub(super) fn share(&self, token: &str) -> SmolStr {
        let hash = content(token).map_or_else(|| self.hasher.hash_one(token), |content| self.hasher.hash_one(content));
        format_smolstr!("{hash:x}")
    }

    /// Whether the apiserver has accepted the token of this hash.
    pub(super) fn accepts(&self, token: u64) -> bool {
        self.accepted.lock().contains(&token)
    }

    /// Whether the token of this hash has been accepted, by the apiserver or in a review.
    pub(super) fn knows(&self, token: u64) -> bool {
        self.accepts(token) || self.reviewed.lock().contains(&token)
    }

    pub(super) fn note_reviewed(&self, token: u64) {
        self.reviewed.lock().put(token, ());
    }

    /// Notes the answer to a request with the token of this hash. The apiserver authenticates before it answers with a
    /// success, except to OPTIONS (CORS). It answers some errors before. A 401 of a proxied program is about its own
    /// users.
    pub(super) fn note(&self, token: u64, method: &Method, uri: &Uri, answer: StatusCode) {
        if answer == StatusCode::UNAUTHORIZED {
            if !may_be_proxied(uri) {
                self.accepted.lock().pop(&token);
            }
        } else if answer.is_success() && *method != Method::OPTIONS {
            self.accepted.lock().put(token, ());
        }
    }
}

/// Returns header and payload of a JWT.
fn content(token: &str) -> Option<[Vec<u8>; 2]> {
    let [header, payload, _signature] = token.splitn(4, '.').collect::<Vec<_>>()[..] else { return None };
    Some([JWT.decode(header).ok()?, JWT.decode(payload).ok()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault: each spelling of a token had a share of its own.
    #[test]
    fn a_jwt_has_one_share_however_it_is_spelled() {
        let tokens = Tokens::new();
        let [a, b, c] = ["e30.eyJzdWIiOiJhIn0.QQ", "e31.eyJzdWIiOiJhIn1.QR", "e30.eyJzdWIiOiJiIn0.QQ"].map(|token| {
            assert!(content(token).is_some(), "{token}");
            tokens.share(token)
        });
        assert_eq!(a, b);
        let others = ["opaque", "e30.eyJzdWIiOiJhIn0", "e30.eyJzdWIiOiJhIn0.QQ.QQ", "a b.c.d"].map(|token| {
            assert_eq!(content(token), None, "{token}");
            tokens.share(token)
        });
        let all: std::collections::BTreeSet<_> = others.into_iter().chain([a, c]).collect();
        assert_eq!(all.len(), 6);
        // Only the share is common: a token with another signature is another token.
        let mut headers = HeaderMap::new();
        let mut hash = |token: &'static str| {
            headers.insert(http::header::AUTHORIZATION, http::HeaderValue::from_static(token));
            tokens.shown(&headers).map(|shown| shown.hash)
        };
        assert_ne!(hash("Bearer e30.eyJzdWIiOiJhIn0.QQ"), hash("Bearer e30.eyJzdWIiOiJhIn0.Qg"));
    }

    #[test]
    fn at_the_limit_the_least_recently_used_token_is_evicted() {
        let tokens = Tokens::new();
        let note = |token| tokens.note(token, &Method::GET, &Uri::default(), StatusCode::OK);
        (0..TOKENS_MAX.get() as u64).for_each(note);
        note(0);
        note(u64::MAX);
        assert_eq!([0, 1, u64::MAX].map(|token| tokens.accepts(token)), [true, false, true]);
    }

    /// Fault: after a 401 of a pod behind `proxy`, its caller's writes shared connections with unknown tokens.
    #[test]
    fn a_proxied_programs_401_is_not_about_the_token() {
        let tokens = Tokens::new();
        let note = |path: &str, code| tokens.note(1, &Method::GET, &path.parse().unwrap(), code);
        note("/api", StatusCode::OK);
        note("/api/v1/namespaces/a/services/b/proxy/login", StatusCode::UNAUTHORIZED);
        assert!(tokens.accepts(1));
        note("/api", StatusCode::UNAUTHORIZED);
        assert!(!tokens.accepts(1));
    }
}
