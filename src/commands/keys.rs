//! Reads single keys from a terminal.

use std::io::{IsTerminal as _, Read as _};

use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

/// No key has this function: POSIX' `_POSIX_VDISABLE`.
const DISABLED: u8 = 0;
/// LIMIT: keys in the queue; at the limit, no more are read.
const QUEUE: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Letter(char),
    Up,
    Down,
    Enter,
    Escape,
    Erase,
    /// Not a key: the terminal has a new size.
    Resized,
}

/// A terminal in which each key is delivered at once and not echoed. Dropping this restores the terminal.
pub(super) struct Keys {
    before: Termios,
    pressed: mpsc::Receiver<Key>,
    resized: Signal,
}

impl Keys {
    /// Opens standard input, if it is a terminal.
    pub(super) fn open() -> Option<Self> {
        let stdin = std::io::stdin();
        if !stdin.is_terminal() {
            return None;
        }
        let (before, resized) = (tcgetattr(&stdin).ok()?, signal(SignalKind::window_change()).ok()?);
        let mut single = before.clone();
        // Ctrl-C still sends a signal. Ctrl-Z does not: the shell would get the terminal in this mode.
        single.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        single.special_codes[SpecialCodeIndex::VSUSP] = DISABLED;
        single.special_codes[SpecialCodeIndex::VMIN] = 1;
        single.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(&stdin, OptionalActions::Now, &single).ok()?;
        let (sender, pressed) = mpsc::channel(QUEUE);
        // The program does not wait for this thread at its end.
        std::thread::spawn(move || {
            let (mut stdin, mut bytes) = (std::io::stdin(), [0; 64]);
            while let Ok(length @ 1..) = stdin.read(&mut bytes) {
                if !keys(&bytes[..length]).into_iter().all(|key| sender.blocking_send(key).is_ok()) {
                    return;
                }
            }
        });
        Some(Self { before, pressed, resized })
    }

    /// Returns the next key; waits for ever once the input has ended.
    pub(super) async fn next(&mut self) -> Key {
        tokio::select! {
            Some(key) = self.pressed.recv() => key,
            Some(()) = self.resized.recv() => Key::Resized,
            else => std::future::pending().await,
        }
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        // Fails only if the terminal is gone, and then there is nothing to restore.
        let _restored = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.before);
    }
}

/// Decodes what a terminal has sent at once: a key that is no letter is one escape sequence. A key that is held down
/// arrives several times.
fn keys(bytes: &[u8]) -> Vec<Key> {
    match bytes {
        [b'\x1b', b'[' | b'O', arrow @ (b'A' | b'B'), rest @ ..] => {
            let key = if *arrow == b'A' { Key::Up } else { Key::Down };
            std::iter::once(key).chain(keys(rest)).collect()
        }
        b"\x1b" => vec![Key::Escape],
        [b'\x1b', ..] => Vec::new(),
        _ => {
            let text = String::from_utf8_lossy(bytes);
            let key = |letter| match letter {
                '\r' | '\n' => Some(Key::Enter),
                '\u{7f}' | '\u{8}' => Some(Key::Erase),
                '\t' => Some(Key::Letter('\t')),
                letter if letter.is_control() => None,
                letter => Some(Key::Letter(letter)),
            };
            text.chars().filter_map(key).collect()
        }
    }
}

/// Columns and lines of the terminal of standard output.
pub(super) fn size() -> (usize, usize) {
    match tcgetwinsize(std::io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        Ok(_) | Err(_) => (super::table::WIDTH, 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_is_one_escape_sequence_or_letters() {
        assert_eq!(keys(b"\x1b[A"), [Key::Up]);
        assert_eq!(keys(b"\x1bOB"), [Key::Down]);
        assert_eq!(keys(b"\x1b[B\x1b[B\x1b[Aj"), [Key::Down, Key::Down, Key::Up, Key::Letter('j')]);
        assert_eq!(keys(b"\x1b"), [Key::Escape]);
        assert_eq!(keys(b"\x1b[15~"), []);
        assert_eq!(keys("aö\r\x7f\x01".as_bytes()), [Key::Letter('a'), Key::Letter('ö'), Key::Enter, Key::Erase]);
    }
}
