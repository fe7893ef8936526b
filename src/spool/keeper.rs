//! The side that touches the disk: opens what there is, begins again where it is damaged, commits. It blocks; nothing here
//! knows of tasks.

use std::sync::Arc;

use super::medium::Medium;
use super::store::{self, Content, Error, Store};
use crate::correlator::KeySecret;
use crate::outbox::{Changes, Entry};

/// Keeps entries on a [`Medium`].
#[derive(Debug)]
pub struct Keeper {
    medium: Arc<dyn Medium>,
    store: Option<Store>,
    /// Tells this process's commits from those of others.
    process: u64,
    secret: KeySecret,
    /// The secret is in use and cannot change any more.
    secret_taken: bool,
    /// The file holds what this process has committed and nothing else.
    begun: bool,
    /// What earlier processes have left has been handed out.
    restored: bool,
    round: u64,
    entries: u64,
    /// A commit found the file damaged, although it could be read.
    distrusted: Option<String>,
    is_closed: bool,
}

/// What opening the file has brought.
#[derive(Debug, Default)]
pub struct Opened {
    /// What earlier processes have left.
    pub entries: Vec<Entry>,
    /// Entries that are damaged, where the file as a whole is not.
    pub torn: u64,
    /// What was wrong with the file, and under which name it is now.
    pub damaged: Option<(String, String)>,
    /// What this process has committed before is not in it: everything has to be committed again.
    pub is_anew: bool,
}

impl Keeper {
    /// A keeper that has not opened its file yet. `secret` is taken where the file brings none.
    #[must_use]
    pub fn new(medium: Arc<dyn Medium>, process: u64, secret: KeySecret) -> Self {
        Self {
            medium,
            store: None,
            process,
            secret,
            secret_taken: false,
            begun: false,
            restored: false,
            round: 0,
            entries: 0,
            distrusted: None,
            is_closed: false,
        }
    }

    /// What keys are to be hashed with, so that records of the earlier process are found again. Fixed from now on.
    pub fn take_secret(&mut self) -> KeySecret {
        self.secret_taken = true;
        self.secret
    }

    /// Whether the file is open.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.store.is_some()
    }

    /// Opens the file. One that is damaged is set aside, and what is whole in it is taken over.
    ///
    /// # Errors
    /// When it cannot be used now.
    pub fn open(&mut self) -> Result<Opened, Error> {
        let mut opened = Opened::default();
        let read = match self.distrusted.take() {
            Some(what) => Err(Error::Damaged(what)),
            None => self.read(),
        };
        let (store, content) = match read {
            Ok(read) => read,
            Err(Error::Damaged(what)) => {
                let (name, salvaged) = self.set_aside()?;
                opened.damaged = Some((what, name));
                let (store, _) = self.read()?;
                (store, Content { entries: salvaged, ..Content::default() })
            }
            Err(error @ (Error::Busy | Error::Unavailable(_))) => return Err(error),
        };
        self.store = Some(store);
        if self.begun && content.process != Some(self.process) {
            self.begun = false;
            opened.is_anew = true;
        }
        if !self.restored {
            self.restored = true;
            opened.torn = content.torn;
            opened.entries = content.entries;
            if let Some(secret) = content.secret.filter(|_| !self.secret_taken) {
                self.secret = secret;
            }
        }
        Ok(opened)
    }

    fn read(&self) -> Result<(Store, Content), Error> {
        let store = store::opened(|| self.medium.open())?;
        let content = store.load()?;
        Ok((store, content))
    }

    fn set_aside(&self) -> Result<(String, Vec<Entry>), Error> {
        let unavailable = |error: std::io::Error| Error::Unavailable(error.to_string());
        let name = self.medium.set_aside().map_err(unavailable)?;
        let salvaged = if self.restored {
            // This process knows everything that it had committed.
            Vec::new()
        } else {
            store::salvage(&mut *self.medium.aside().map_err(unavailable)?)
        };
        Ok((name, salvaged))
    }

    /// Commits changes; after an error the file has to be opened again.
    ///
    /// # Errors
    /// When they are not durable.
    pub fn commit(&mut self, changes: &[Changes]) -> Result<(), Error> {
        let Some(store) = &self.store else { return Err(Error::Unavailable("it is not open".to_owned())) };
        if self.begun && changes.iter().all(|changes| changes.records.is_empty()) {
            return Ok(());
        }
        self.round += 1;
        let begin = (!self.begun).then_some((self.process, self.secret));
        match store.commit(changes, self.round, begin) {
            Ok(entries) => {
                (self.begun, self.entries) = (true, entries);
                Ok(())
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

    /// Closes the file for good, so that the next process can have it.
    pub fn close(&mut self) {
        self.store = None;
        self.is_closed = true;
    }

    /// Whether the file was closed for good.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Entries in the file.
    #[must_use]
    pub const fn entries(&self) -> u64 {
        self.entries
    }

    /// Bytes of the file.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.medium.bytes()
    }
}
