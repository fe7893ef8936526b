//! Where the spool's file is.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use redb::{Builder, Database, DatabaseError};

/// Bytes of pages that redb keeps in memory.
const CACHE: usize = 8 << 20;

/// A place for the file; tests have one that fails as a disk fails.
pub trait Medium: std::fmt::Debug + Send + Sync + 'static {
    /// Opens the file, or begins one.
    ///
    /// # Errors
    /// redb's.
    fn open(&self) -> Result<Database, DatabaseError>;

    /// Puts the file out of the way under another name, which is returned.
    ///
    /// # Errors
    /// When it cannot be renamed.
    fn set_aside(&self) -> io::Result<String>;

    /// The file that was set aside, from its beginning.
    ///
    /// # Errors
    /// When it cannot be read.
    fn aside(&self) -> io::Result<Box<dyn Read + '_>>;

    /// Bytes of the file.
    fn bytes(&self) -> u64;
}

/// A directory with `spool.redb`, and `spool.redb.damaged` when that could not be read.
#[derive(Debug)]
pub struct Directory(pub PathBuf);

impl Directory {
    fn file(&self) -> PathBuf {
        self.0.join("spool.redb")
    }

    // LIMIT: one damaged file is kept; a second one takes its place.
    fn damaged(&self) -> PathBuf {
        self.0.join("spool.redb.damaged")
    }
}

/// An error that names the path it is about.
fn named(path: &Path) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

impl Medium for Directory {
    fn open(&self) -> Result<Database, DatabaseError> {
        fs::create_dir_all(&self.0).map_err(named(&self.0))?;
        // Events may tell what is nobody else's business.
        let (mut options, path) = (OpenOptions::new(), self.file());
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path).map_err(named(&path))?;
        let database = Builder::new().set_cache_size(CACHE).create_file(file)?;
        // The file's name has to outlive a crash too.
        File::open(&self.0).and_then(|directory| directory.sync_all()).map_err(named(&self.0))?;
        Ok(database)
    }

    fn set_aside(&self) -> io::Result<String> {
        fs::rename(self.file(), self.damaged()).map_err(named(&self.damaged()))?;
        Ok(self.damaged().display().to_string())
    }

    fn aside(&self) -> io::Result<Box<dyn Read + '_>> {
        Ok(Box::new(File::open(self.damaged())?))
    }

    fn bytes(&self) -> u64 {
        fs::metadata(self.file()).map_or(0, |metadata| metadata.len())
    }
}
