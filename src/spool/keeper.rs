//! The blocking part of the spool: opens the file, replaces a damaged one, and commits.

use std::io::{self, ErrorKind};
use std::sync::Arc;

use super::entry::Unreadable;
use super::medium::{Bytes, Medium};
use super::store::{self, Content, Error, Store};
use crate::correlator::KeySecret;
use crate::outbox::{Changes, Entry};

/// Distance between the first commits of two processes. So the entries of the last one are the newest in a damaged file.
const ROUNDS: u64 = 1 << 40;

/// Attempts to read a damaged file before its unreadable parts are skipped.
const READS: u32 = 3;

/// Keeps entries on a [`Medium`].
#[derive(Debug)]
pub struct Keeper {
    medium: Arc<dyn Medium>,
    store: Option<Store>,
    /// Device and inode of the open file.
    identity: (u64, u64),
    /// Identifies the commits of this process.
    process: u64,
    secret: KeySecret,
    /// Whether the secret is in use and can no longer change.
    secret_taken: bool,
    /// Whether the file holds all commits of this process, and nothing else.
    begun: bool,
    /// Whether the entries of earlier processes have been returned.
    restored: bool,
    round: u64,
    entries: u64,
    /// Failed attempts to read a damaged file.
    unread: u32,
    /// Whether the file was there without any data before the first attempt to open it.
    was_empty: Option<bool>,
    /// The damage that a commit found in a file that could be read.
    distrusted: Option<String>,
    /// Why no file is open although its entries were returned.
    failure: Option<Error>,
    is_closed: bool,
}

/// The result of opening the file.
#[derive(Debug, Default)]
pub struct Opened {
    /// The entries of earlier processes.
    pub entries: Vec<Entry>,
    /// Number of damaged entries; in a file that is damaged as a whole, of those that could be told apart, and of
    /// unreadable parts.
    pub torn: u64,
    /// Whether the file was there, but without any data.
    pub was_empty: bool,
    /// Whether the last commit was interrupted, or is damaged, so that only the one before is in the entries.
    pub is_undone: bool,
    /// The damage of the file, and the name under which it was set aside.
    pub damaged: Option<(String, String)>,
    /// Whether the keys of the entries are of another secret than that of this process.
    pub has_other_keys: bool,
}

impl Keeper {
    /// Returns a keeper without an open file. Uses `secret` if the file has none.
    pub fn new(medium: Arc<dyn Medium>, process: u64, secret: KeySecret) -> Self {
        Self {
            medium,
            store: None,
            identity: (0, 0),
            process,
            secret,
            secret_taken: false,
            begun: false,
            restored: false,
            round: 0,
            entries: 0,
            unread: 0,
            was_empty: None,
            distrusted: None,
            failure: None,
            is_closed: false,
        }
    }

    /// Returns the secret to hash keys with, and fixes it. With that of the file, records of an earlier process are
    /// found.
    pub fn take_secret(&mut self) -> KeySecret {
        self.secret_taken = true;
        self.secret
    }

    /// Whether the file is open.
    pub const fn is_open(&self) -> bool {
        self.store.is_some()
    }

    /// Opens the file. Sets a damaged one aside and recovers its valid entries. They are returned even if no new file
    /// can be opened, which the next commit reports.
    ///
    /// # Errors
    /// When the file cannot be used now.
    pub fn open(&mut self) -> Result<Opened, Error> {
        let mut opened = Opened::default();
        // An attempt that fails may leave such a file.
        let was_empty = *self.was_empty.get_or_insert_with(|| self.medium.is_empty());
        let read = match self.distrusted.take() {
            Some(what) => Err(Error::Damaged(what)),
            None => self.read(),
        };
        let (store, content) = match read {
            Ok((store, mut content)) => {
                if content.process.is_none() {
                    self.salvage_aside(&mut content)?;
                }
                (Ok(store), content)
            }
            Err(Error::Damaged(what)) => {
                let (name, content) = self.set_aside()?;
                opened.damaged = Some((what, name));
                (self.read().map(|(store, _)| store), content)
            }
            Err(error @ (Error::Busy | Error::Unavailable(_) | Error::NoThread)) => return Err(error),
        };
        self.failure = store.and_then(|store| self.put(store)).err();
        if !self.begun {
            self.round = self.round.max(content.round.saturating_add(ROUNDS));
        }
        if !self.restored {
            self.restored = true;
            opened.torn = content.torn;
            opened.was_empty = was_empty;
            opened.is_undone = content.is_undone;
            opened.entries = content.entries;
            if let Some(secret) = content.secret.filter(|_| !self.secret_taken) {
                self.secret = secret;
            }
            // Nothing of a damaged file says which secret it had.
            opened.has_other_keys = content.secret != Some(self.secret);
        }
        Ok(opened)
    }

    fn put(&mut self, store: Store) -> Result<(), Error> {
        self.identity = self.medium.identity().map_err(|error| unavailable(&error))?;
        self.store = Some(store);
        Ok(())
    }

    fn read(&self) -> Result<(Store, Content), Error> {
        let store = Store::new(|builder| self.medium.open(builder))?;
        let content = if self.restored { store.facts() } else { store.load() }?;
        Ok((store, content))
    }

    /// Renames the file. Returns the new name, and the valid entries. Reads them first, so that a failure loses none.
    fn set_aside(&mut self) -> Result<(String, Content), Error> {
        let mut content = Content::default();
        // Later, this process has all its commits in memory.
        if !self.restored {
            self.salvage_aside(&mut content)?;
            let medium = Arc::clone(&self.medium);
            self.salvage(&mut *medium.read().map_err(|error| unavailable(&error))?, &mut content)?;
        }
        let name = self.medium.set_aside().map_err(|error| unavailable(&error))?;
        Ok((name, content))
    }

    /// Adds the valid entries of a file that was set aside by a process that has committed nothing after that.
    fn salvage_aside(&mut self, content: &mut Content) -> Result<(), Error> {
        let medium = Arc::clone(&self.medium);
        match medium.read_aside().map_err(|error| unavailable(&error))? {
            Some(mut file) if !self.restored => self.salvage(&mut *file, content),
            _ => Ok(()),
        }
    }

    fn salvage(&mut self, file: &mut dyn Bytes, content: &mut Content) -> Result<(), Error> {
        let unreadable = if self.unread < READS { Unreadable::Fails } else { Unreadable::Skipped };
        store::salvage(file, unreadable, content).map_err(|error| {
            self.unread += 1;
            unavailable(&error)
        })
    }

    /// Commits changes, and returns whether there were any. After an error, open the file again and commit everything:
    /// the next commit removes all earlier entries, so that no list of what the failed ones had must be kept.
    ///
    /// # Errors
    /// When they are not durable.
    pub fn commit(&mut self, changes: &[Changes]) -> Result<bool, Error> {
        let Some(store) = &self.store else {
            return Err(self.failure.take().unwrap_or_else(|| Error::Unavailable("it is not open".to_owned())));
        };
        if self.begun && changes.iter().all(|changes| changes.records.is_empty()) {
            return Ok(false);
        }
        self.round += 1;
        let was_begun = std::mem::replace(&mut self.begun, false);
        let begin = (!was_begun).then_some((self.process, self.secret));
        match store.commit(changes, self.round, begin).and_then(|entries| self.is_in_place().map(|()| entries)) {
            Ok(entries) => {
                if !was_begun {
                    self.medium.leave_aside();
                }
                (self.begun, self.entries) = (true, entries);
                Ok(true)
            }
            Err(error) => {
                self.store = None;
                if let Error::Damaged(what) = &error {
                    self.distrusted = Some(what.clone());
                }
                Err(error)
            }
        }
    }

    /// Fails if the open file was removed or replaced. A commit into it is durable for no other process.
    fn is_in_place(&self) -> Result<(), Error> {
        match self.medium.identity() {
            Ok(identity) if identity != self.identity => Err(Error::Unavailable("its file was replaced".to_owned())),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(unavailable(&error)),
            // An open file can be written even if its directory cannot be reached any more.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Closes the file finally, so that the next process can open it.
    pub fn close(&mut self) {
        self.store = None;
        self.is_closed = true;
    }

    /// Whether the file was closed finally.
    pub const fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Returns the number of entries in the file.
    pub const fn entries(&self) -> u64 {
        self.entries
    }

    /// Returns the bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.medium.bytes()
    }
}

fn unavailable(error: &io::Error) -> Error {
    Error::Unavailable(error.to_string())
}
