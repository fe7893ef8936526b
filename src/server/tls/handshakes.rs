//! Handshakes that are going on. A client that never finishes its own must keep nobody else out.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// The handshakes of a listener.
#[derive(Debug, Clone)]
pub(super) struct Handshakes(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    at_once: usize,
    going_on: Mutex<GoingOn>,
}

#[derive(Debug, Default)]
struct GoingOn {
    next: u64,
    /// The tokens that end them, the oldest first.
    // LIMIT: `at_once`; then the oldest is ended.
    tokens: BTreeMap<u64, CancellationToken>,
}

/// The place of one; given back when dropped.
#[derive(Debug)]
pub(super) struct Place {
    number: u64,
    token: CancellationToken,
    handshakes: Handshakes,
}

impl Handshakes {
    pub(super) fn new(at_once: usize) -> Self {
        Self(Arc::new(Inner { at_once, going_on: Mutex::default() }))
    }

    /// Begins one, and ends the oldest if there are too many.
    pub(super) fn begin(&self) -> Place {
        let mut going_on = self.0.going_on.lock();
        let (number, token) = (going_on.next, CancellationToken::new());
        going_on.next += 1;
        going_on.tokens.insert(number, token.clone());
        if going_on.tokens.len() > self.0.at_once
            && let Some((_, oldest)) = going_on.tokens.pop_first()
        {
            oldest.cancel();
        }
        Place { number, token, handshakes: self.clone() }
    }
}

impl Place {
    /// Waits until others need the place.
    pub(super) async fn ended(&self) {
        self.token.cancelled().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.handshakes.0.going_on.lock().tokens.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_makes_room() {
        let handshakes = Handshakes::new(2);
        let mut places: Vec<Place> = (0..2).map(|_| handshakes.begin()).collect();
        drop(places.remove(0));
        places.extend((0..2).map(|_| handshakes.begin()));
        let ended: Vec<bool> = places.iter().map(|place| place.token.is_cancelled()).collect();
        assert_eq!(ended, [true, false, false]);
        drop(places);
        assert!(handshakes.0.going_on.lock().tokens.is_empty());
    }
}
