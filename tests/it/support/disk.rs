//! A disk for the spool with faults: unsynced data is kept, lost or torn when the machine stops; the disk fills up;
//! changes return errors.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io;
use std::sync::Arc;

use eventweir::spool::{Bytes, Medium};
use parking_lot::{Condvar, Mutex};
use redb::{Builder, Database, DatabaseError, StorageBackend};

/// A disk. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Disk(Arc<Mutex<State>>, Arc<Condvar>);

#[derive(Debug, Default)]
struct State {
    /// Contents after the machine stops.
    durable: Vec<u8>,
    /// Contents for readers now.
    seen: Vec<u8>,
    unsynced: Vec<Change>,
    /// The file that was set aside, until it is left aside.
    aside: Option<Vec<u8>>,
    /// Process that has the disk open; older ones are dead.
    life: u64,
    full: bool,
    /// Whether changes and syncs hang.
    hangs: bool,
    /// Changes and syncs before one fails.
    fails_in: Option<u32>,
}

#[derive(Debug, Clone)]
enum Change {
    Write(usize, Vec<u8>),
    Length(usize),
}

impl Change {
    fn apply(&self, file: &mut Vec<u8>) {
        match self {
            Self::Write(at, data) => {
                let end = at + data.len();
                file.resize(file.len().max(end), 0);
                file[*at..end].copy_from_slice(data);
            }
            Self::Length(length) => file.resize(*length, 0),
        }
    }
}

impl Disk {
    /// Stops the machine: unsynced data is kept, lost or torn.
    pub(crate) fn crash(&self, rng: &mut fastrand::Rng) {
        let mut state = self.0.lock();
        state.life += 1;
        (state.full, state.fails_in) = (false, None);
        for change in std::mem::take(&mut state.unsynced) {
            match (change, rng.u32(..4)) {
                (_, 0) => {}
                (Change::Write(at, data), 1) => {
                    // Sectors are written atomically.
                    let torn = (rng.usize(..=data.len()) / 512 * 512).min(data.len());
                    Change::Write(at, data[..torn].to_vec()).apply(&mut state.durable);
                }
                (change, _) => change.apply(&mut state.durable),
            }
        }
        state.seen = state.durable.clone();
    }

    /// Sets whether the disk is full.
    pub(crate) fn set_full(&self, full: bool) {
        self.0.lock().full = full;
    }

    /// Sets whether changes and syncs hang.
    pub(crate) fn set_hanging(&self, hangs: bool) {
        self.0.lock().hangs = hangs;
        self.1.notify_all();
    }

    /// Fails the change or sync after so many more.
    pub(crate) fn fail_in(&self, changes: u32) {
        self.0.lock().fails_in = Some(changes);
    }

    /// Damages the file in place.
    pub(crate) fn damage(&self, damage: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.0.lock();
        damage(&mut state.durable);
        state.seen = state.durable.clone();
        state.unsynced.clear();
    }
}

impl Medium for Disk {
    fn open(&self, builder: &mut Builder) -> Result<Database, DatabaseError> {
        let life = self.0.lock().life;
        builder.set_cache_size(1 << 20).create_with_backend(Handle { disk: self.clone(), life })
    }

    fn is_empty(&self) -> bool {
        false
    }

    fn read(&self) -> io::Result<Box<dyn Bytes + '_>> {
        Ok(Box::new(io::Cursor::new(self.0.lock().seen.clone())))
    }

    fn set_aside(&self) -> io::Result<String> {
        let mut state = self.0.lock();
        let file = std::mem::take(&mut state.seen);
        state.aside.get_or_insert(file);
        state.durable.clear();
        state.unsynced.clear();
        Ok("aside".to_owned())
    }

    fn read_aside(&self) -> io::Result<Option<Box<dyn Bytes + '_>>> {
        let aside = self.0.lock().aside.clone();
        Ok(aside.map(|file| Box::new(io::Cursor::new(file)) as Box<dyn Bytes>))
    }

    fn leave_aside(&self) {
        self.0.lock().aside = None;
    }

    fn identity(&self) -> io::Result<(u64, u64)> {
        Ok((0, 0))
    }

    fn bytes(&self) -> u64 {
        self.0.lock().seen.len() as u64
    }
}

#[derive(Debug)]
struct Handle {
    disk: Disk,
    life: u64,
}

impl Handle {
    fn change(&self, change: Option<Change>) -> io::Result<()> {
        let mut state = self.disk.0.lock();
        self.disk.1.wait_while(&mut state, |state| state.hangs);
        if state.life != self.life {
            return Err(io::Error::other("this process has ended"));
        }
        if let Some(left) = &mut state.fails_in {
            if *left == 0 {
                return Err(io::Error::other("as the test asked"));
            }
            *left -= 1;
        }
        match change {
            Some(Change::Write(..)) if state.full => return Err(io::ErrorKind::StorageFull.into()),
            Some(change) => {
                change.apply(&mut state.seen);
                state.unsynced.push(change);
            }
            None => {
                for change in std::mem::take(&mut state.unsynced) {
                    change.apply(&mut state.durable);
                }
            }
        }
        Ok(())
    }
}

impl StorageBackend for Handle {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.0.lock().seen.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.disk.0.lock();
        let at = usize::try_from(offset).unwrap();
        out.copy_from_slice(state.seen.get(at..at + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.change(Some(Change::Length(usize::try_from(length).unwrap())))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.change(None)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.change(Some(Change::Write(usize::try_from(offset).unwrap(), data.to_vec())))
    }
}
