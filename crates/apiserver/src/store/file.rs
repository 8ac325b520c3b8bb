//! The database file: one SQLite file in WAL mode, to which each batch is written before it is published.
//!
//! SQLite orders and journals the pages; this module decides when they are synced. With `synchronous=NORMAL` SQLite
//! itself syncs only around checkpoints, so committing a batch costs one `fdatasync` of the log, issued here once for
//! the whole batch, and none for a batch that consists only of events.

use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
};

use rusqlite::{Connection, ErrorCode, params};

use super::{
    codec::RowEncoder,
    collection::EventKind,
    sequencer::Pending,
    writer::{Backend, PersistError},
};

/// SQLite `application_id`: "asnd". Files of other programs are refused.
const APPLICATION_ID: i32 = 0x6173_6e64;
/// Version of the file format. A file with a higher number was written by a newer program.
/// 1: rows are JSON. 2: rows may be compressed.
const FORMAT: i32 = 2;
/// Number of versions reserved at a time. A version may be published without having been synced; reserving ahead
/// ensures that it is not assigned again after a crash.
const RESERVED_VERSIONS: u64 = 10_000;
const PAGE_SIZE: usize = 4096;
/// Log size in pages above which a checkpoint runs although writes are queued (64 MiB), and while none are (8 MiB).
const CHECKPOINT_PAGES: u32 = 16384;
const CHECKPOINT_PAGES_IDLE: u32 = 2048;

/// Timeout for the folder lock, after which its holder is considered to be running.
const LOCK_TIMEOUT: std::time::Duration = std::time::Duration::from_millis(250);

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
    #[error("there is no room to write {file}: free some space and start again; nothing was changed", file = file.display())]
    Full { file: PathBuf },
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

/// Contents of the file at start-up.
pub(super) struct Loaded {
    pub(super) rows: Vec<Row>,
    /// Every version up to this one may have been published already.
    pub(super) last_version: u64,
}

/// An open database file, owned by the writer thread.
pub(super) struct DataFile {
    path: PathBuf,
    connection: Connection,
    log: File,
    fsync: bool,
    reserved: u64,
    last_version: u64,
    log_pages: u32,
    encoder: RowEncoder,
    /// The folder, until its directory entries have been synced.
    unsynced_folder: Option<File>,
    /// The folder lock, held while the file is open.
    _lock: File,
}

impl DataFile {
    pub(super) fn open(folder: &Path, fsync: bool) -> Result<(Self, Loaded), FileError> {
        let lock = lock_folder(folder)?;
        let path = folder.join("objects.db");
        if std::fs::metadata(&path).map_or(true, |m| m.len() == 0) {
            create(&path, fsync)?;
        }
        let connection = connect(&path, fsync)?;
        check_format(&connection, &path)?;
        let loaded = load(&connection, &path)?;
        let reserved = loaded.last_version + RESERVED_VERSIONS;
        reserve(&connection, reserved).map_err(|e| file_error(&path, e))?;
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| FileError::Io { path, source }
        };
        let log_path = folder.join("objects.db-wal");
        let file = Self {
            log: File::open(&log_path).map_err(io(&log_path))?,
            unsynced_folder: Some(File::open(folder).map_err(io(folder))?),
            last_version: loaded.last_version,
            path,
            connection,
            fsync,
            reserved,
            log_pages: 0,
            encoder: RowEncoder::default(),
            _lock: lock,
        };
        Ok((file, loaded))
    }

    fn write(&mut self, batch: &[Pending]) -> rusqlite::Result<bool> {
        let last = batch.last().map_or(self.last_version, |p| p.event.version());
        let reserve = last + RESERVED_VERSIONS / 10 > self.reserved;
        let encoder = &mut self.encoder;
        let mut pages = 0;
        let transaction = self.connection.transaction()?;
        {
            let mut put = transaction.prepare_cached(
                "INSERT OR REPLACE INTO objects (id, version, storage, data) VALUES (?1, ?2, ?3, ?4)",
            )?;
            let mut remove = transaction.prepare_cached("DELETE FROM objects WHERE id = ?1")?;
            for pending in batch {
                let object = &pending.event.object;
                pages += 1;
                if pending.event.kind == EventKind::Deleted {
                    remove.execute([object.row])?;
                } else {
                    let row = encoder.encode(|out| object.write_json(out));
                    pages += (row.len() / PAGE_SIZE) as u32;
                    put.execute(params![object.row, object.version as i64, &*pending.storage, row])?;
                }
            }
            if reserve {
                transaction
                    .prepare_cached("UPDATE meta SET value = ?1 WHERE key = 'reserved'")?
                    .execute([(last + RESERVED_VERSIONS) as i64])?;
            }
        }
        transaction.commit()?;
        self.log_pages += pages + 1;
        self.last_version = last;
        if reserve {
            self.reserved = last + RESERVED_VERSIONS;
        }
        Ok(reserve)
    }

    fn sync(&mut self) -> std::io::Result<()> {
        self.log.sync_data()?;
        if let Some(folder) = &self.unsynced_folder {
            folder.sync_all()?;
            self.unsynced_folder = None;
        }
        Ok(())
    }

    fn persist_error(&self, error: &rusqlite::Error) -> PersistError {
        let why: Arc<str> = format!("cannot write {}: {error}", self.path.display()).into();
        match error.sqlite_error() {
            // After a failed sync it is unknown what is on the disk.
            Some(e) if e.code == ErrorCode::SystemIoFailure && sync_failed(e.extended_code) => PersistError::Fatal(why),
            _ => PersistError::Refused(why),
        }
    }

    fn checkpoint(&mut self) -> Result<(), PersistError> {
        let done = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get::<_, i64>(1));
        match done {
            Ok(_) => {
                self.log_pages = 0;
                Ok(())
            }
            Err(error) => match self.persist_error(&error) {
                fatal @ PersistError::Fatal(_) => Err(fatal),
                // Not fatal: the log grows until a later checkpoint succeeds.
                PersistError::Refused(why) => {
                    tracing::warn!(%why, "Cannot checkpoint the log into the data file");
                    Ok(())
                }
            },
        }
    }
}

impl Backend for DataFile {
    fn persist(&mut self, batch: &[Pending]) -> Result<(), PersistError> {
        let reserved = self.write(batch).map_err(|e| self.persist_error(&e))?;
        // The first batch also syncs what start-up wrote: the reserved versions and the directory entries of new files.
        let durable = reserved || self.unsynced_folder.is_some() || batch.iter().any(|p| p.durable);
        if self.fsync && durable {
            self.sync()
                .map_err(|e| PersistError::Fatal(format!("cannot sync {}-wal: {e}", self.path.display()).into()))?;
        }
        Ok(())
    }

    fn maintain(&mut self, queue_empty: bool) -> Result<(), PersistError> {
        let limit = if queue_empty { CHECKPOINT_PAGES_IDLE } else { CHECKPOINT_PAGES };
        if self.log_pages > limit { self.checkpoint() } else { Ok(()) }
    }
}

impl Drop for DataFile {
    fn drop(&mut self) {
        // A clean shutdown returns the unused reserved versions; after a crash they are skipped.
        let _ = reserve(&self.connection, self.last_version);
    }
}

fn sync_failed(extended: i32) -> bool {
    matches!(extended, rusqlite::ffi::SQLITE_IOERR_FSYNC | rusqlite::ffi::SQLITE_IOERR_DIR_FSYNC)
}

/// Creates the folder if necessary and locks it for this process.
fn lock_folder(folder: &Path) -> Result<File, FileError> {
    use std::{
        io::{Read as _, Seek as _, Write as _},
        os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    };
    let io = |path: &Path, source: std::io::Error| match source.kind() {
        std::io::ErrorKind::StorageFull => FileError::Full { file: path.to_owned() },
        _ => FileError::Io { path: path.to_owned(), source },
    };
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
    // A child process forked by the previous holder keeps the lock until it calls execve, hence the retries.
    let deadline = std::time::Instant::now() + LOCK_TIMEOUT;
    while let Err(error) = rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        if error != rustix::io::Errno::WOULDBLOCK {
            return Err(io(&path, error.into()));
        }
        if std::time::Instant::now() < deadline {
            std::thread::sleep(LOCK_TIMEOUT / 25);
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

/// Creates an empty data file. It is renamed into place when complete, so that a crash leaves a whole file or none.
fn create(path: &Path, fsync: bool) -> Result<(), FileError> {
    let unfinished = path.with_extension("db.new");
    let io = |source| FileError::Io { path: unfinished.clone(), source };
    // Leftovers of an earlier start that did not finish.
    for leftover in ["db.new", "db.new-wal", "db.new-shm"] {
        match std::fs::remove_file(path.with_extension(leftover)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(io(error)),
            _ => {}
        }
    }
    // A log whose data file was moved away must not be applied to the new file.
    let log = path.with_extension("db-wal");
    if log.exists() {
        let aside = path.with_extension("db-wal.old");
        tracing::warn!(from = %log.display(), to = %aside.display(), "Moving a log without a data file aside");
        std::fs::rename(&log, aside).map_err(io)?;
    }
    let connection = Connection::open(&unfinished).map_err(|e| file_error(&unfinished, e))?;
    connection
        .execute_batch(&format!(
            "PRAGMA page_size={PAGE_SIZE}; PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; \
             CREATE TABLE objects (id INTEGER PRIMARY KEY, version INTEGER NOT NULL, \
                 storage TEXT NOT NULL, data BLOB NOT NULL); \
             CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL); \
             INSERT INTO meta VALUES ('reserved', 1); \
             PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={FORMAT}; PRAGMA journal_mode=WAL;"
        ))
        .map_err(|e| file_error(&unfinished, e))?;
    connection.close().map_err(|(_, e)| file_error(&unfinished, e))?;
    if fsync {
        File::open(&unfinished).and_then(|f| f.sync_all()).map_err(io)?;
    }
    std::fs::rename(&unfinished, path).map_err(io)
}

fn connect(path: &Path, fsync: bool) -> Result<Connection, FileError> {
    let file_error = |e| file_error(path, e);
    let connection = Connection::open(path).map_err(file_error)?;
    let synchronous = if fsync { "NORMAL" } else { "OFF" };
    connection
        .execute_batch(&format!(
            "PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL; PRAGMA synchronous={synchronous}; \
             PRAGMA wal_autocheckpoint=0; PRAGMA cache_size=-4096; PRAGMA journal_size_limit=67108864;"
        ))
        .map_err(file_error)?;
    Ok(connection)
}

fn check_format(connection: &Connection, path: &Path) -> Result<(), FileError> {
    let file_error = |e| file_error(path, e);
    let pragma = |name: &str| connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i32>(0));
    let application = pragma("application_id").map_err(file_error)?;
    let format = pragma("user_version").map_err(file_error)?;
    if application != APPLICATION_ID {
        return Err(FileError::Foreign { file: path.to_owned() });
    }
    if format > FORMAT {
        return Err(FileError::Newer { file: path.to_owned(), found: format });
    }
    if format < FORMAT {
        // Rows of the older format stay readable as they are; new rows could not be read by an older program.
        connection.execute_batch(&format!("PRAGMA user_version={FORMAT}")).map_err(file_error)?;
    }
    Ok(())
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
    read().map_err(|e| file_error(path, e))
}

fn reserve(connection: &Connection, version: u64) -> rusqlite::Result<usize> {
    connection.execute("UPDATE meta SET value = ?1 WHERE key = 'reserved'", [version as i64])
}

fn file_error(path: &Path, error: rusqlite::Error) -> FileError {
    let code = error.sqlite_error_code();
    let damaged = matches!(code, Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
        || matches!(error, rusqlite::Error::InvalidColumnType(..) | rusqlite::Error::QueryReturnedNoRows);
    if damaged {
        return FileError::Corrupt { file: path.to_owned(), why: error.to_string() };
    }
    if code == Some(ErrorCode::DiskFull) {
        return FileError::Full { file: path.to_owned() };
    }
    FileError::Database { file: path.to_owned(), source: error }
}
