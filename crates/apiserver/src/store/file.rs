//! The database file: one SQLite file in WAL mode that a batch is written to before anybody sees it.
//!
//! SQLite orders and journals the pages; this file decides when they are on the disk. With `synchronous=NORMAL` SQLite
//! itself syncs around checkpoints only, so the commit of a batch is one `fdatasync` of the log, issued here, once, for
//! the whole batch, and not at all for a batch of nothing but events.

use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
};

use rusqlite::{Connection, ErrorCode, params};

use super::{
    collection::EventKind,
    sequencer::Pending,
    writer::{Backing, Failure},
};

/// "asnd": files of other programs are refused.
const APPLICATION_ID: i32 = 0x6173_6e64;
/// The layout below. A file with a higher number was written by a newer program.
const FORMAT: i32 = 1;
/// Versions set aside at a time, so that a version shown but never synced is not given twice.
const RESERVED: u64 = 10_000;
/// Pages of the log after which it is folded into the file: at once, or when nothing is waiting.
const CHECKPOINT_PAGES: u32 = 8192;

/// How long a folder may stay locked before its holder counts as running.
const LOCK_PATIENCE: std::time::Duration = std::time::Duration::from_millis(250);

/// Why the data folder could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("the data folder {folder} is in use by process {pid}: stop it, or choose another folder", folder = folder.display())]
    Locked { folder: PathBuf, pid: String },
    #[error("{file} is damaged ({why}): nothing was changed; move it away to start empty, or put a copy of it back", file = file.display())]
    Corrupt { file: PathBuf, why: String },
    #[error("{file} has format {found}, and this program knows up to {FORMAT}: use the newer program that wrote it, or another data folder", file = file.display())]
    Newer { file: PathBuf, found: i32 },
    #[error("{file} is not a data file of this program: choose another data folder", file = file.display())]
    Foreign { file: PathBuf },
    #[error("cannot use {path}", path = path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot use {file}", file = file.display())]
    Database {
        file: PathBuf,
        #[source]
        source: rusqlite::Error,
    },
}

/// One stored row.
pub(super) struct Row {
    pub(super) id: i64,
    pub(super) version: u64,
    pub(super) storage: String,
    pub(super) data: Vec<u8>,
}

/// What was in the file.
pub(super) struct Loaded {
    pub(super) rows: Vec<Row>,
    /// Every version up to this one may have been shown to somebody.
    pub(super) last_version: u64,
}

/// An open database file; owned by the writer.
pub(super) struct DataFile {
    path: PathBuf,
    connection: Connection,
    log: File,
    fsync: bool,
    reserved: u64,
    last_version: u64,
    log_pages: u32,
    /// Held as long as the file is open.
    _lock: File,
}

impl DataFile {
    pub(super) fn open(folder: &Path, fsync: bool) -> Result<(Self, Loaded), FileError> {
        let lock = lock_folder(folder)?;
        let path = folder.join("objects.db");
        let fresh = !path.exists();
        let connection = connect(&path, fsync)?;
        check_format(&connection, &path, fresh)?;
        let loaded = load(&connection, &path)?;
        let reserved = loaded.last_version + RESERVED;
        reserve(&connection, reserved).map_err(|e| describe(&path, e))?;
        let log_path = folder.join("objects.db-wal");
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| FileError::Io { path, source }
        };
        let log = File::open(&log_path).map_err(io(&log_path))?;
        if fsync {
            log.sync_data().map_err(io(&log_path))?;
            // The names of new files must survive too.
            File::open(folder).and_then(|f| f.sync_all()).map_err(io(folder))?;
        }
        let last_version = loaded.last_version;
        Ok((Self { path, connection, log, fsync, reserved, last_version, log_pages: 0, _lock: lock }, loaded))
    }

    fn write(&mut self, batch: &[Pending]) -> rusqlite::Result<bool> {
        let last = batch.last().map_or(self.last_version, |p| p.event.version());
        let reserve = last + RESERVED / 10 > self.reserved;
        let transaction = self.connection.transaction()?;
        {
            let mut put = transaction.prepare_cached(
                "INSERT OR REPLACE INTO objects (id, version, storage, data) VALUES (?1, ?2, ?3, ?4)",
            )?;
            let mut remove = transaction.prepare_cached("DELETE FROM objects WHERE id = ?1")?;
            for pending in batch {
                let object = &pending.event.object;
                if pending.event.kind == EventKind::Deleted {
                    remove.execute([object.row])?;
                } else {
                    put.execute(params![object.row, object.version as i64, &*pending.storage, &object.json()[..]])?;
                }
            }
            if reserve {
                transaction
                    .prepare_cached("UPDATE meta SET value = ?1 WHERE key = 'reserved'")?
                    .execute([(last + RESERVED) as i64])?;
            }
        }
        transaction.commit()?;
        self.last_version = last;
        if reserve {
            self.reserved = last + RESERVED;
        }
        Ok(reserve)
    }

    fn failure(&self, error: &rusqlite::Error) -> Failure {
        let why: Arc<str> = format!("cannot write {}: {error}", self.path.display()).into();
        match error.sqlite_error() {
            // What a failed sync left on the disk is unknown.
            Some(e) if e.code == ErrorCode::SystemIoFailure && sync_failed(e.extended_code) => Failure::Fatal(why),
            _ => Failure::Refused(why),
        }
    }

    fn checkpoint(&mut self) -> Result<(), Failure> {
        let done = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get::<_, i64>(1));
        match done {
            Ok(_) => {
                self.log_pages = 0;
                Ok(())
            }
            Err(error) => match self.failure(&error) {
                fatal @ Failure::Fatal(_) => Err(fatal),
                // The log simply grows until there is room.
                Failure::Refused(why) => {
                    tracing::warn!(%why, "Cannot fold the log into the data file");
                    Ok(())
                }
            },
        }
    }
}

impl Backing for DataFile {
    fn persist(&mut self, batch: &[Pending]) -> Result<(), Failure> {
        let reserved = self.write(batch).map_err(|e| self.failure(&e))?;
        let durable = reserved || batch.iter().any(|p| p.durable);
        if self.fsync && durable {
            self.log
                .sync_data()
                .map_err(|e| Failure::Fatal(format!("cannot sync {}-wal: {e}", self.path.display()).into()))?;
        }
        self.log_pages += batch.iter().map(|p| 2 + p.event.object.json().len() as u32 / 4096).sum::<u32>();
        Ok(())
    }

    fn idle(&mut self, nothing_waits: bool) -> Result<(), Failure> {
        let limit = if nothing_waits { CHECKPOINT_PAGES / 4 } else { CHECKPOINT_PAGES };
        if self.log_pages > limit { self.checkpoint() } else { Ok(()) }
    }
}

impl Drop for DataFile {
    fn drop(&mut self) {
        // A clean end gives the reserved versions back; after a crash they are skipped.
        let _ = reserve(&self.connection, self.last_version);
    }
}

fn sync_failed(extended: i32) -> bool {
    matches!(extended, rusqlite::ffi::SQLITE_IOERR_FSYNC | rusqlite::ffi::SQLITE_IOERR_DIR_FSYNC)
}

/// Takes the folder for this process.
fn lock_folder(folder: &Path) -> Result<File, FileError> {
    use std::{
        io::{Read as _, Seek as _, Write as _},
        os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    };
    let io = |path: &Path, source| FileError::Io { path: path.to_owned(), source };
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|e| io(folder, e))?;
    let path = folder.join("lock");
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(|e| io(&path, e))?;
    // A child that the previous holder forked has the lock too, until it executes its own program.
    let give_up = std::time::Instant::now() + LOCK_PATIENCE;
    while let Err(error) = rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        if error != rustix::io::Errno::WOULDBLOCK {
            return Err(io(&path, error.into()));
        }
        if std::time::Instant::now() < give_up {
            std::thread::sleep(LOCK_PATIENCE / 25);
            continue;
        }
        let mut pid = String::new();
        let _ = file.read_to_string(&mut pid);
        return Err(FileError::Locked { folder: folder.to_owned(), pid: pid.trim().to_owned() });
    }
    file.set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| write!(file, "{}", std::process::id()))
        .map_err(|e| io(&path, e))?;
    Ok(file)
}

fn connect(path: &Path, fsync: bool) -> Result<Connection, FileError> {
    let describe = |e| describe(path, e);
    let connection = Connection::open(path).map_err(describe)?;
    let synchronous = if fsync { "NORMAL" } else { "OFF" };
    connection
        .execute_batch(&format!(
            "PRAGMA locking_mode=EXCLUSIVE; PRAGMA page_size=8192; PRAGMA journal_mode=WAL; \
             PRAGMA synchronous={synchronous}; PRAGMA wal_autocheckpoint=0; PRAGMA cache_size=-8192; \
             PRAGMA journal_size_limit=67108864;"
        ))
        .map_err(describe)?;
    Ok(connection)
}

fn check_format(connection: &Connection, path: &Path, fresh: bool) -> Result<(), FileError> {
    let describe = |e| describe(path, e);
    let pragma = |name: &str| connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i32>(0));
    let application = pragma("application_id").map_err(describe)?;
    let format = pragma("user_version").map_err(describe)?;
    if format > FORMAT && application == APPLICATION_ID {
        return Err(FileError::Newer { file: path.to_owned(), found: format });
    }
    let tables: i64 =
        connection.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0)).map_err(describe)?;
    if application != APPLICATION_ID && !(fresh || tables == 0) {
        return Err(FileError::Foreign { file: path.to_owned() });
    }
    connection
        .execute_batch(&format!(
            "BEGIN; \
             CREATE TABLE IF NOT EXISTS objects (id INTEGER PRIMARY KEY, version INTEGER NOT NULL, \
                 storage TEXT NOT NULL, data BLOB NOT NULL); \
             CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL); \
             INSERT OR IGNORE INTO meta VALUES ('reserved', 1); \
             PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={FORMAT}; \
             COMMIT;"
        ))
        .map_err(describe)
}

fn load(connection: &Connection, path: &Path) -> Result<Loaded, FileError> {
    let read = || -> rusqlite::Result<Loaded> {
        let reserved: i64 =
            connection.query_row("SELECT value FROM meta WHERE key = 'reserved'", [], |row| row.get(0))?;
        let mut statement = connection.prepare("SELECT id, version, storage, data FROM objects ORDER BY id")?;
        let rows = statement
            .query_map([], |row| {
                Ok(Row {
                    id: row.get(0)?,
                    version: row.get::<_, i64>(1)? as u64,
                    storage: row.get(2)?,
                    data: row.get(3)?,
                })
            })?
            .collect::<rusqlite::Result<Vec<Row>>>()?;
        let newest = rows.iter().map(|r| r.version).max().unwrap_or(1);
        Ok(Loaded { rows, last_version: newest.max(reserved as u64) })
    };
    read().map_err(|e| describe(path, e))
}

fn reserve(connection: &Connection, version: u64) -> rusqlite::Result<usize> {
    connection.execute("UPDATE meta SET value = ?1 WHERE key = 'reserved'", [version as i64])
}

fn describe(path: &Path, error: rusqlite::Error) -> FileError {
    let code = error.sqlite_error_code();
    let damaged = matches!(code, Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
        || matches!(error, rusqlite::Error::InvalidColumnType(..) | rusqlite::Error::QueryReturnedNoRows);
    if damaged {
        return FileError::Corrupt { file: path.to_owned(), why: error.to_string() };
    }
    FileError::Database { file: path.to_owned(), source: error }
}
