//! Hashes of the tokens that the apiserver has accepted. Since Kubernetes 1.29 it ends the HTTP/2 connection of each
//! request without valid credentials, so requests with other tokens share no connection with these. And of those that
//! a review has accepted, which may be valid for eventweir alone.

use std::hash::{BuildHasher as _, RandomState};
use std::num::NonZeroUsize;

use http::{HeaderMap, Method, StatusCode, Uri};
use lru::LruCache;
use parking_lot::Mutex;

use crate::access::{bearer, lru};
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

impl Tokens {
    pub(super) fn new() -> Self {
        let [accepted, reviewed] = [(); 2].map(|()| Mutex::new(lru(TOKENS_MAX)));
        Self { hasher: RandomState::new(), accepted, reviewed }
    }

    /// Returns the hash of a request's token. To an apiserver, a request without one is anonymous.
    pub(super) fn hash(&self, headers: &HeaderMap) -> Option<u64> {
        bearer(headers).map(|token| self.hasher.hash_one(token))
    }

    /// Whether the apiserver has accepted the token of this hash.
    pub(super) fn accepts(&self, token: u64) -> bool {
        self.accepted.lock().contains(&token)
    }

    /// Whether the token of this hash has been accepted, by the apiserver or in a review.
    pub(super) fn knows(&self, token: u64) -> bool {
        self.accepts(token) || self.reviewed.lock().contains(&token)
    }

    /// Notes a token that a review has accepted.
    pub(super) fn note_reviewed(&self, token: u64) {
        self.reviewed.lock().put(token, ());
    }

    /// Notes the answer to a request with the token of this hash. The apiserver authenticates before it answers with a
    /// success, except to OPTIONS (CORS). It answers some errors before. A 401 of a proxied program is about its own
    /// users.
    pub(super) fn note(&self, token: u64, (method, uri): (&Method, &Uri), answer: StatusCode) {
        if answer == StatusCode::UNAUTHORIZED {
            if !may_be_proxied(uri) {
                self.accepted.lock().pop(&token);
            }
        } else if answer.is_success() && *method != Method::OPTIONS {
            self.accepted.lock().put(token, ());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_the_limit_the_least_recently_used_token_is_evicted() {
        let tokens = Tokens::new();
        let note = |token| tokens.note(token, (&Method::GET, &Uri::default()), StatusCode::OK);
        (0..TOKENS_MAX.get() as u64).for_each(note);
        note(0);
        note(u64::MAX);
        assert_eq!([0, 1, u64::MAX].map(|token| tokens.accepts(token)), [true, false, true]);
    }

    /// Fault: after a 401 of a pod behind `proxy`, its caller's writes shared connections with unknown tokens.
    #[test]
    fn a_proxied_programs_401_is_not_about_the_token() {
        let tokens = Tokens::new();
        let note = |path: &str, code| tokens.note(1, (&Method::GET, &path.parse().unwrap()), code);
        note("/api", StatusCode::OK);
        note("/api/v1/namespaces/a/services/b/proxy/login", StatusCode::UNAUTHORIZED);
        assert!(tokens.accepts(1));
        note("/api", StatusCode::UNAUTHORIZED);
        assert!(!tokens.accepts(1));
    }
}
