//! Single keys from a terminal, as long as somebody listens.

use std::io::{IsTerminal as _, Read as _};

use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};
use tokio::sync::mpsc;

/// LIMIT: keys that wait to be looked at; then no more are read.
const QUEUE: usize = 16;

/// A terminal that hands on each key at once and shows none. It is as before when this is dropped.
pub(super) struct Keys {
    before: Termios,
    pressed: mpsc::Receiver<u8>,
}

impl Keys {
    /// The keys of standard input, if it is a terminal.
    pub(super) fn open() -> Option<Self> {
        let stdin = std::io::stdin();
        if !stdin.is_terminal() {
            return None;
        }
        let before = tcgetattr(&stdin).ok()?;
        let mut single = before.clone();
        // Ctrl-C stays what it is.
        single.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        single.special_codes[SpecialCodeIndex::VMIN] = 1;
        single.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(&stdin, OptionalActions::Now, &single).ok()?;
        let (sender, pressed) = mpsc::channel(QUEUE);
        // Ends with the program, which does not wait for it.
        std::thread::spawn(move || {
            let mut key = [0];
            while std::io::stdin().lock().read_exact(&mut key).is_ok() && sender.blocking_send(key[0]).is_ok() {}
        });
        Some(Self { before, pressed })
    }

    /// The next key; never, once there are no more.
    pub(super) async fn next(&mut self) -> u8 {
        match self.pressed.recv().await {
            Some(key) => key,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        // Nothing else can be done about a terminal that is gone.
        let _restored = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.before);
    }
}
