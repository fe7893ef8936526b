//! The location of the spool's file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read, Seek};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use redb::{Builder, Database, DatabaseError};

/// Bytes of redb's page cache.
const CACHE: usize = 8 << 20;

/// The bytes of a file that may be damaged.
pub trait Bytes: Read + Seek {}

impl<T: Read + Seek> Bytes for T {}

/// The location of the file. Tests have one that fails like a disk.
pub trait Medium: std::fmt::Debug + Send + Sync + 'static {
    /// Opens or creates the file with this builder.
    ///
    /// # Errors
    /// The errors of redb.
    fn open(&self, builder: &mut Builder) -> Result<Database, DatabaseError>;

    /// Whether the file is there, but without any data.
    fn is_empty(&self) -> bool;

    /// Opens the bytes of the file, which may be damaged.
    ///
    /// # Errors
    /// When it cannot be read.
    fn read(&self) -> io::Result<Box<dyn Bytes + '_>>;

    /// Renames the file, and returns its later name; see [`leave_aside`](Self::leave_aside).
    ///
    /// # Errors
    /// When it cannot be renamed.
    fn set_aside(&self) -> io::Result<String>;

    /// Opens the bytes of the file that was set aside; `None` once it is left aside.
    ///
    /// # Errors
    /// When it cannot be read.
    fn read_aside(&self) -> io::Result<Option<Box<dyn Bytes + '_>>>;

    /// Gives the file that was set aside its later name, because its entries are in the new one.
    fn leave_aside(&self);

    /// Returns device and inode of the file at the location now. No other file has them while it is open.
    ///
    /// # Errors
    /// When there is no file, or it cannot be reached.
    fn identity(&self) -> io::Result<(u64, u64)>;

    /// Returns the bytes of the file.
    fn bytes(&self) -> u64;
}

/// A directory with `spool.redb`. A damaged one is `spool.redb.salvage` until its entries are in a new file, and then
/// `spool.redb.damaged`.
#[derive(Debug)]
pub struct Directory(pub PathBuf);

impl Directory {
    /// Returns the path of the file.
    pub fn file(&self) -> PathBuf {
        self.0.join("spool.redb")
    }

    fn salvage(&self) -> PathBuf {
        self.0.join("spool.redb.salvage")
    }

    // LIMIT: one damaged file is kept; the next one replaces it.
    fn damaged(&self) -> PathBuf {
        self.0.join("spool.redb.damaged")
    }
}

/// Whether the file has nothing but the header that redb writes first, as after a creation on a full disk. A finished one
/// begins with redb's magic number.
fn is_unfinished(file: &File) -> bool {
    let mut bytes = BufReader::new(file).bytes().enumerate();
    bytes.all(|(at, byte)| byte.is_ok_and(|byte| byte == 0 || (9..4096).contains(&at)))
}

/// Adds the path to an error.
fn named(path: &Path) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

impl Medium for Directory {
    fn open(&self, builder: &mut Builder) -> Result<Database, DatabaseError> {
        fs::create_dir_all(&self.0).map_err(named(&self.0))?;
        // Only for the owner, because events may be confidential.
        let (mut options, path) = (OpenOptions::new(), self.file());
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path).map_err(named(&path))?;
        // A file without any data is no damaged one. Not while another process may be creating it.
        if file.try_lock().is_ok() {
            if is_unfinished(&file) {
                file.set_len(0).map_err(named(&path))?;
            }
            file.unlock().map_err(named(&path))?;
        }
        let database = builder.set_cache_size(CACHE).create_file(file)?;
        // The directory entry must survive a crash too.
        File::open(&self.0).and_then(|directory| directory.sync_all()).map_err(named(&self.0))?;
        Ok(database)
    }

    fn is_empty(&self) -> bool {
        File::open(self.file()).is_ok_and(|file| is_unfinished(&file))
    }

    fn read(&self) -> io::Result<Box<dyn Bytes + '_>> {
        let path = self.file();
        Ok(Box::new(File::open(&path).map_err(named(&path))?))
    }

    fn set_aside(&self) -> io::Result<String> {
        // No process has committed the entries of a file that is still there.
        let is_taken = self.salvage().try_exists().map_err(named(&self.salvage()))?;
        let place = if is_taken { self.damaged() } else { self.salvage() };
        fs::rename(self.file(), &place).map_err(named(&place))?;
        Ok(self.damaged().display().to_string())
    }

    fn read_aside(&self) -> io::Result<Option<Box<dyn Bytes + '_>>> {
        match File::open(self.salvage()) {
            Ok(file) => Ok(Some(Box::new(file))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(named(&self.salvage())(error)),
        }
    }

    fn leave_aside(&self) {
        // There is mostly none. After an error it remains, and is ignored next to a file with commits.
        let _renamed = fs::rename(self.salvage(), self.damaged());
    }

    fn identity(&self) -> io::Result<(u64, u64)> {
        fs::metadata(self.file()).map(|metadata| (metadata.dev(), metadata.ino())).map_err(named(&self.file()))
    }

    fn bytes(&self) -> u64 {
        fs::metadata(self.file()).map_or(0, |metadata| metadata.len())
    }
}
