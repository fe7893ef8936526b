//! Users and headers of the admin port, as in Prometheus' `--web.config.file`.
//!
//! A bcrypt hash takes up to a second of a core by design. Therefore a separate thread compares passwords, one after
//! the other, and right ones are cached.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::str::FromStr as _;
use std::sync::Arc;

use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderValue};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lru::LruCache;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

/// LIMIT: cached passwords; the least recently used one is evicted.
const REMEMBERED: NonZeroUsize = const { NonZeroUsize::new(100).unwrap() };

/// The users who may use the port, and the headers of its answers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Web {
    /// Users and the bcrypt hashes of their passwords; without any, no authentication.
    pub users: BTreeMap<String, String>,
    /// Headers of every answer.
    pub headers: HeaderMap,
}

impl Web {
    /// Greatest cost of a hash. Each step doubles the time of a comparison, which is about a second at this cost.
    pub const COST_MAX: u32 = 14;

    /// Whether this is a bcrypt hash of at most [`COST_MAX`](Self::COST_MAX).
    #[must_use]
    pub fn is_usable(hash: &str) -> bool {
        bcrypt::HashParts::from_str(hash).is_ok_and(|parts| parts.get_cost() <= Self::COST_MAX)
    }
}

/// The digest of user, hash and password under a secret; the cache does not store the password.
type Digest = [u8; 32];

/// Compares passwords.
#[derive(Debug)]
pub(super) struct Passwords {
    secret: ring::hmac::Key,
    /// Digests of right passwords. They do not expire, so that one in use never waits behind wrong ones.
    // LIMIT: `REMEMBERED`.
    right: Arc<Mutex<LruCache<Digest, ()>>>,
    /// Serializes comparisons.
    turn: Arc<Semaphore>,
}

impl Passwords {
    pub(super) fn new() -> Self {
        let secret = ring::hmac::Key::generate(ring::hmac::HMAC_SHA256, &ring::rand::SystemRandom::new());
        let secret = secret.expect("the system has random numbers");
        let right = Arc::new(Mutex::new(LruCache::new(REMEMBERED)));
        Self { secret, right, turn: Arc::new(Semaphore::new(1)) }
    }

    /// Whether the request has a user of `web` with the right password.
    pub(super) async fn are_right(&self, web: &Web, headers: &HeaderMap) -> bool {
        let Some((user, password)) = headers.get(AUTHORIZATION).and_then(basic) else { return false };
        let known = web.users.get(&user);
        // Comparing with any hash makes an unknown user take as long as a known one.
        let Some(hash) = known.or_else(|| web.users.values().next()).cloned() else { return false };
        let digest = self.digest([&user, &hash, &password]);
        let is_remembered = || self.right.lock().get(&digest).is_some();
        if known.is_some() && is_remembered() {
            return true;
        }
        let Ok(turn) = Arc::clone(&self.turn).acquire_owned().await else { return false };
        // Another request may have compared the same password meanwhile.
        if known.is_some() && is_remembered() {
            return true;
        }
        let (is_known, right) = (known.is_some(), Arc::clone(&self.right));
        // The client may leave before it is done. Its next request needs no comparison.
        let compared = tokio::task::spawn_blocking(move || {
            let _until_it_is_done = turn;
            let is_right = bcrypt::verify(password, &hash).unwrap_or(false) && is_known;
            if is_right {
                right.lock().put(digest, ());
            }
            is_right
        });
        compared.await.unwrap_or(false)
    }

    fn digest(&self, parts: [&str; 3]) -> Digest {
        let mut context = ring::hmac::Context::with_key(&self.secret);
        for part in parts {
            context.update(&part.len().to_le_bytes());
            context.update(part.as_bytes());
        }
        let mut digest = Digest::default();
        digest.copy_from_slice(context.sign().as_ref());
        digest
    }
}

/// Returns user and password of a header.
fn basic(header: &HeaderValue) -> Option<(String, String)> {
    let (scheme, text) = header.to_str().ok()?.split_once(' ')?;
    let text = String::from_utf8(STANDARD.decode(text.trim()).ok()?).ok()?;
    let (user, password) = text.split_once(':').filter(|_| scheme.eq_ignore_ascii_case("Basic"))?;
    Some((user.to_owned(), password.to_owned()))
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn hash(password: &str) -> String {
        bcrypt::hash_with_salt(password, 4, *b"0123456789abcdef").unwrap().to_string()
    }

    fn asking(text: &str) -> HeaderMap {
        let header = format!("Basic {}", STANDARD.encode(text));
        HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_str(&header).unwrap())])
    }

    #[tokio::test]
    async fn right_passwords_are_cached_and_wrong_ones_are_not() {
        let passwords = Passwords::new();
        let web =
            |password: &str| Web { users: [("ann".to_owned(), hash(password))].into(), headers: HeaderMap::new() };
        let (old, new) = (web("secret"), web("other"));
        for (text, is_right) in [("ann:secret", true), ("ann:other", false), ("bob:secret", false), ("ann", false)] {
            assert_eq!(passwords.are_right(&old, &asking(text)).await, is_right, "{text}");
            assert_eq!(passwords.are_right(&old, &asking(text)).await, is_right, "{text}");
        }
        assert_eq!(passwords.right.lock().len(), 1);
        assert!(!passwords.are_right(&new, &asking("ann:secret")).await, "the hash has changed");
        // A cached password needs no comparison. Fault: after five minutes it did, and waited behind wrong ones.
        passwords.turn.close();
        assert!(passwords.are_right(&old, &asking("ann:secret")).await);
        assert!(!passwords.are_right(&old, &HeaderMap::new()).await);
        assert!(!passwords.are_right(&Web::default(), &asking("ann:secret")).await);
    }

    /// Fault: the password of a client that had left meanwhile was not cached, and each of its requests was too late.
    #[tokio::test]
    async fn a_right_password_is_cached_also_if_its_client_has_left() {
        let passwords = Passwords::new();
        let web = Web { users: [("ann".to_owned(), hash("secret"))].into(), headers: HeaderMap::new() };
        let _client_leaves = passwords.are_right(&web, &asking("ann:secret")).now_or_never();
        let _it_is_done = passwords.turn.acquire().await.unwrap();
        assert_eq!(passwords.right.lock().len(), 1);
    }

    #[test]
    fn only_hashes_that_can_be_compared_are_usable() {
        assert!(Web::is_usable(&hash("secret")));
        // As htpasswd writes it.
        let by_htpasswd = hash("secret").replacen("$2b$", "$2y$", 1);
        assert!(Web::is_usable(&by_htpasswd) && bcrypt::verify("secret", &by_htpasswd).unwrap());
        for text in ["", "secret", "$2y$15$0123456789abcdef01234uW4JJ1HiXjAlXyTwL2Rb3VTDGbZ9yVZS"] {
            assert!(!Web::is_usable(text), "{text}");
        }
    }
}
