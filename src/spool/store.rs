//! The spool's file in redb: a table of entries, and a table of facts about the file.

use std::collections::HashMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::{
    Builder, Database, ReadTransaction, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition,
    TableError,
};

use super::entry::{self, Stored, Unreadable};
use super::medium::Bytes;
use crate::correlator::{KeySecret, RecordId};
use crate::outbox::{Changes, Entry};

const ENTRIES: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("entries");
const FACTS: TableDefinition<'static, &str, u64> = TableDefinition::new("facts");

/// The process that wrote the file last.
const PROCESS: &str = "process";
const SECRET: [&str; 2] = ["secret.0", "secret.1"];
/// The number of that process's first commit in the file.
const ROUND: &str = "round";

/// Why the spool cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process has opened the file.
    #[error("another process uses the spool")]
    Busy,
    /// The content of the file is invalid.
    #[error("the spool is damaged: {0}")]
    Damaged(String),
    /// The disk, the directory or the permissions prevent it.
    #[error("the spool cannot be used: {0}")]
    Unavailable(String),
    /// The system has no thread for it.
    #[error("the system has no thread for the spool")]
    NoThread,
}

impl<T: Into<redb::Error>> From<T> for Error {
    fn from(error: T) -> Self {
        let error = error.into();
        match &error {
            redb::Error::DatabaseAlreadyOpen => Self::Busy,
            redb::Error::Io(cause) if !is_damage(cause) => Self::Unavailable(error.to_string()),
            // After a failed write, redb must be opened again.
            redb::Error::PreviousIo | redb::Error::DatabaseClosed => Self::Unavailable(error.to_string()),
            _ => Self::Damaged(error.to_string()),
        }
    }
}

fn is_damage(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}

#[derive(Debug)]
pub(super) struct Store {
    database: Database,
    /// Whether redb has gone back to the commit before the last.
    is_undone: bool,
}

/// The content of the file.
#[derive(Debug, Default)]
pub(super) struct Content {
    /// The entries, the newest record first.
    pub(super) entries: Vec<Entry>,
    /// Number of damaged entries.
    pub(super) torn: u64,
    /// Whether the last commit is not in it.
    pub(super) is_undone: bool,
    /// The process that wrote it; `None` for a new file.
    pub(super) process: Option<u64>,
    /// The secret that its keys were hashed with.
    pub(super) secret: Option<KeySecret>,
    /// The number of its first commit.
    pub(super) round: u64,
}

impl Store {
    /// Opens the file by `open`.
    pub(super) fn new(open: impl FnOnce(&mut Builder) -> Result<Database, redb::DatabaseError>) -> Result<Self, Error> {
        let is_undone = Arc::new(AtomicBool::new(false));
        let (undone, mut builder) = (Arc::clone(&is_undone), Builder::new());
        // redb reports 0.0 before it checks the last commit, 0.3 only if it then goes back to the one before, and 0.6
        // next.
        builder.set_repair_callback(move |session| {
            undone.fetch_or((0.1..0.5).contains(&session.progress()), Ordering::Relaxed);
        });
        let database = contained(|| Ok(open(&mut builder)?))?;
        Ok(Self { database, is_undone: is_undone.load(Ordering::Relaxed) })
    }

    /// Reads the file without its entries.
    pub(super) fn facts(&self) -> Result<Content, Error> {
        contained(|| facts(&self.database.begin_read()?))
    }

    pub(super) fn load(&self) -> Result<Content, Error> {
        // redb may panic over a damaged page.
        contained(|| {
            let reading = self.database.begin_read()?;
            let mut content = Content { is_undone: self.is_undone, ..facts(&reading)? };
            if content.process.is_none() {
                return Ok(content);
            }
            let entries = reading.open_table(ENTRIES)?;
            for entry in entries.iter()? {
                let (_, bytes) = entry?;
                match entry::decode(bytes.value()) {
                    Some(found) => content.entries.push(found.entry),
                    None => content.torn += 1,
                }
            }
            let counted = content.entries.len() as u64 + content.torn;
            if counted != entries.len()? {
                return Err(Error::Damaged("its entries cannot all be reached".to_owned()));
            }
            // The newest record first: if two have the same key of the correlator, the newer one is remembered.
            content.entries.reverse();
            Ok(content)
        })
    }

    /// Writes changes durably in one transaction. With `begin`, the same transaction removes all earlier entries.
    /// Returns the number of entries.
    pub(super) fn commit(
        &self,
        changes: &[Changes],
        round: u64,
        begin: Option<(u64, KeySecret)>,
    ) -> Result<u64, Error> {
        contained(|| {
            let writing = self.database.begin_write()?;
            if let Some((process, KeySecret(first, second))) = begin {
                writing.delete_table(ENTRIES)?;
                let mut facts = writing.open_table(FACTS)?;
                facts.insert(PROCESS, process)?;
                facts.insert(SECRET[0], first)?;
                facts.insert(SECRET[1], second)?;
                facts.insert(ROUND, round)?;
            }
            let mut entries = writing.open_table(ENTRIES)?;
            for (shard, changes) in changes.iter().enumerate() {
                for (record, entry) in &changes.records {
                    let id = id(shard, *record);
                    match entry {
                        Some(entry) => entries.insert(id.as_str(), entry::encode(&id, round, entry).as_slice())?,
                        None => entries.remove(id.as_str())?,
                    };
                }
            }
            let number = entries.len()?;
            drop(entries);
            writing.commit()?;
            Ok(number)
        })
    }
}

fn facts(reading: &ReadTransaction) -> Result<Content, Error> {
    let facts = match reading.open_table(FACTS) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(Content::default()),
        facts => facts?,
    };
    let fact = |name| Ok::<_, Error>(facts.get(name)?.map(|fact| fact.value()));
    let secret = fact(SECRET[0])?.zip(fact(SECRET[1])?).map(|(first, second)| KeySecret(first, second));
    Ok(Content { process: fact(PROCESS)?, secret, round: fact(ROUND)?.unwrap_or(0), ..Content::default() })
}

/// Adds the newest valid entry of each record in a damaged file to `content`. Counts the records whose newest entry is
/// damaged, and the parts that it has skipped.
///
/// # Errors
/// When the file cannot be read.
pub(super) fn salvage(file: &mut dyn Bytes, unreadable: Unreadable, content: &mut Content) -> io::Result<()> {
    let mut newest: HashMap<String, (u64, Entry)> = HashMap::new();
    let mut damaged: HashMap<String, u64> = HashMap::new();
    let skipped = entry::salvage(file, unreadable, |Stored { id, round, entry }| match entry {
        Some(entry) if newest.get(&id).is_none_or(|(known, _)| *known <= round) => {
            newest.insert(id, (round, entry));
        }
        Some(_) => {}
        None => {
            let known = damaged.entry(id).or_default();
            *known = round.max(*known);
        }
    })?;
    damaged.retain(|id, round| newest.get(id).is_none_or(|(valid, _)| valid < round));
    content.torn += skipped + damaged.len() as u64;
    let mut ids: Vec<String> = newest.keys().cloned().collect();
    ids.sort_unstable();
    content.entries.extend(ids.into_iter().rev().filter_map(|id| newest.remove(&id)).map(|(_, entry)| entry));
    Ok(())
}

fn id(shard: usize, record: RecordId) -> String {
    format!("{shard:04x}-{:016x}", record.0)
}

/// Runs `act`, and converts a panic to an error.
fn contained<T>(act: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|_panic| Err(Error::Damaged("redb panicked over it".to_owned())))
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::super::entry::tests::entry;
    use super::super::{Directory, Keeper};
    use super::*;

    /// Fault: a stale entry of an earlier process replaced a live one of the same number, which was lost uncounted. Ids
    /// and commits were counted from 0 in each process.
    #[test]
    fn the_entries_of_the_last_process_are_the_newest() {
        let folder = tempfile::tempdir().unwrap();
        let bytes = |process: u64, messages: &[&str]| {
            let mut keeper = Keeper::new(Arc::new(Directory(folder.path().to_owned())), process, KeySecret(1, 2));
            keeper.open().unwrap();
            for message in messages {
                let records = vec![(RecordId(1), Some(Box::new(entry(message))))];
                keeper.commit(&[Changes { records, held: Vec::new() }]).unwrap();
            }
            drop(keeper);
            std::fs::read(folder.path().join("spool.redb")).unwrap()
        };
        let parts = [bytes(1, &["a", "b", "c"]), bytes(2, &["d", "e"]), bytes(3, &["f"])];
        let mut content = Content::default();
        salvage(&mut Cursor::new(parts.concat()), Unreadable::Fails, &mut content).unwrap();
        assert_eq!(content.entries, [entry("f")]);
    }
}
