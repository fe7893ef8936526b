//! The newest clients of a kind: beyond a limit the oldest is ended, so that clients that never finish cannot lock
//! others out.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// A limited number of clients. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Newest {
    at_once: usize,
    open: Arc<Mutex<Open>>,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    /// Tokens that end the clients, the oldest first.
    // LIMIT: `at_once`; beyond it the oldest is ended.
    tokens: BTreeMap<u64, CancellationToken>,
}

/// One of the newest clients; removed from the list when dropped.
#[derive(Debug)]
pub(super) struct Entered {
    number: u64,
    /// Cancelled when this client is ended for newer ones.
    pub(super) ended: CancellationToken,
    newest: Newest,
}

impl Newest {
    pub(super) fn new(at_once: usize) -> Self {
        Self { at_once, open: Arc::default() }
    }

    /// Adds a client, and ends the oldest one if there are too many.
    pub(super) fn enter(&self) -> Entered {
        let mut open = self.open.lock();
        let (number, ended) = (open.next, CancellationToken::new());
        open.next += 1;
        open.tokens.insert(number, ended.clone());
        if open.tokens.len() > self.at_once
            && let Some((_, oldest)) = open.tokens.pop_first()
        {
            oldest.cancel();
        }
        Entered { number, ended, newest: self.clone() }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.newest.open.lock().tokens.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_client_is_ended_at_the_limit() {
        let newest = Newest::new(2);
        let mut entered: Vec<Entered> = (0..2).map(|_| newest.enter()).collect();
        drop(entered.remove(0));
        entered.extend((0..2).map(|_| newest.enter()));
        let ended: Vec<bool> = entered.iter().map(|client| client.ended.is_cancelled()).collect();
        assert_eq!(ended, [true, false, false]);
        drop(entered);
        assert!(newest.open.lock().tokens.is_empty());
    }
}
