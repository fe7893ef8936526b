//! Users and headers of the admin port, as in Prometheus' `--web.config.file`.
//!
//! A bcrypt hash takes a good part of a second of a core by design. So passwords are compared on a thread of their own, one
//! after the other, and one that was right is remembered for a while.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::str::FromStr as _;
use std::sync::Arc;
use std::time::Duration;

use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderValue};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lru::LruCache;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::clock::{Clock, Mono};

/// LIMIT: right passwords that are remembered; the one that was used longest ago is forgotten.
const REMEMBERED: NonZeroUsize = const { NonZeroUsize::new(100).unwrap() };
/// How long a right password is remembered.
const REMEMBERED_FOR: Duration = Duration::from_secs(300);

/// Who may ask, and what answers carry.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Web {
    /// Users and the bcrypt hashes of their passwords; without any nobody is asked.
    pub users: BTreeMap<String, String>,
    /// Headers of every answer.
    pub headers: HeaderMap,
}

impl Web {
    /// Greatest cost of a hash; each step doubles the time of a comparison, which here is about a second.
    pub const COST_MAX: u32 = 14;

    /// Whether this is a bcrypt hash that can be compared in an acceptable time.
    #[must_use]
    pub fn is_usable(hash: &str) -> bool {
        bcrypt::HashParts::from_str(hash).is_ok_and(|parts| parts.get_cost() <= Self::COST_MAX)
    }
}

/// What is remembered of a password that was right.
type Digest = [u8; 32];

/// Compares passwords.
pub(super) struct Passwords {
    clock: Clock,
    secret: ring::hmac::Key,
    /// Digests of user, hash and password, and until when they count.
    // LIMIT: `REMEMBERED`.
    right: Mutex<LruCache<Digest, Mono>>,
    /// Comparisons go one after the other.
    turn: Arc<Semaphore>,
}

impl std::fmt::Debug for Passwords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Passwords").finish_non_exhaustive()
    }
}

impl Passwords {
    pub(super) fn new(clock: Clock) -> Self {
        let secret: [u8; 32] = std::array::from_fn(|_| fastrand::u8(..));
        let right = Mutex::new(LruCache::new(REMEMBERED));
        Self {
            clock,
            secret: ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &secret),
            right,
            turn: Arc::new(Semaphore::new(1)),
        }
    }

    /// Whether the request has a user of `web` and the right password.
    pub(super) async fn are_right(&self, web: &Web, headers: &HeaderMap) -> bool {
        let Some((user, password)) = headers.get(AUTHORIZATION).and_then(basic) else { return false };
        let known = web.users.get(&user);
        // An unknown user takes as long as a known one.
        let Some(hash) = known.or_else(|| web.users.values().next()).cloned() else { return false };
        let digest = self.digest([&user, &hash, &password]);
        let is_remembered = || {
            let until = self.right.lock().get(&digest).copied();
            until.is_some_and(|until| self.clock.now().mono < until)
        };
        if known.is_some() && is_remembered() {
            return true;
        }
        let Ok(turn) = Arc::clone(&self.turn).acquire_owned().await else { return false };
        // Meanwhile another request may have had the same password.
        if known.is_some() && is_remembered() {
            return true;
        }
        let compared = tokio::task::spawn_blocking(move || {
            let _until_it_is_done = turn;
            bcrypt::verify(password, &hash).unwrap_or(false)
        });
        let is_right = compared.await.unwrap_or(false) && known.is_some();
        if is_right {
            self.right.lock().put(digest, self.clock.now().mono.after(REMEMBERED_FOR));
        }
        is_right
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

/// User and password of a header.
fn basic(header: &HeaderValue) -> Option<(String, String)> {
    let (scheme, text) = header.to_str().ok()?.split_once(' ')?;
    let text = String::from_utf8(STANDARD.decode(text.trim()).ok()?).ok()?;
    let (user, password) = text.split_once(':').filter(|_| scheme.eq_ignore_ascii_case("Basic"))?;
    Some((user.to_owned(), password.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(password: &str) -> String {
        bcrypt::hash_with_salt(password, 4, *b"0123456789abcdef").unwrap().to_string()
    }

    fn asking(text: &str) -> HeaderMap {
        let header = format!("Basic {}", STANDARD.encode(text));
        HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_str(&header).unwrap())])
    }

    #[tokio::test]
    async fn a_right_password_is_remembered_for_a_while_and_a_wrong_one_is_not() {
        let clock = Clock::manual(0);
        let passwords = Passwords::new(clock.clone());
        let web =
            |password: &str| Web { users: [("ann".to_owned(), hash(password))].into(), headers: HeaderMap::new() };
        let (old, new) = (web("secret"), web("other"));
        for (text, is_right) in [("ann:secret", true), ("ann:other", false), ("bob:secret", false), ("ann", false)] {
            assert_eq!(passwords.are_right(&old, &asking(text)).await, is_right, "{text}");
            assert_eq!(passwords.are_right(&old, &asking(text)).await, is_right, "{text}");
        }
        assert_eq!(passwords.right.lock().len(), 1);
        assert!(!passwords.are_right(&new, &asking("ann:secret")).await, "the hash has changed");
        // What is remembered needs no thread.
        passwords.turn.close();
        assert!(passwords.are_right(&old, &asking("ann:secret")).await);
        clock.advance(REMEMBERED_FOR);
        assert!(!passwords.are_right(&old, &asking("ann:secret")).await);
        assert!(!passwords.are_right(&old, &HeaderMap::new()).await);
        assert!(!passwords.are_right(&Web::default(), &asking("ann:secret")).await);
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
