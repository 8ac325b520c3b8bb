//! Replaces a file atomically: the bytes go to a temporary file in the same directory, which is renamed to the target
//! when it is complete. Until then, and after any failure, the old content is intact.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid, fchmod, fchown, openat, renameat, unlinkat};
use rustix::io::Errno;
use tokio::task::JoinHandle;

use super::FileError;
use super::checks::{is_kernel_file_system, kind, require_regular, require_single_name};
use super::root::Located;

/// Number of bytes gathered before one write to the file system.
const BATCH: usize = 1024 * 1024;

/// Size from which a replaced file is freed on another thread.
const DEFERRED_FREE_SIZE: i64 = 4 << 20;

static SEQUENCE: AtomicU64 = AtomicU64::new(0);

/// Makes temporary names unique between two daemons that share a volume, and across restarts of one daemon.
static INSTANCE: LazyLock<u64> = LazyLock::new(crate::core::random::number);

/// A file being written. Dropping it without [`Replacement::commit`] removes the temporary file.
#[derive(Debug)]
pub struct Replacement {
    parent: Arc<OwnedFd>,
    name: CString,
    file: Arc<OwnedFd>,
    /// `None` if the target itself is written, because no file can be created in its directory.
    temporary: Option<CString>,
}

/// Permission bits of the new file.
#[derive(Clone, Copy, Debug)]
pub enum Permissions {
    /// Those of the replaced file, or 0644 for a new one.
    Keep,
    Exactly(u32),
}

impl Replacement {
    /// Prepares to replace `located`. Fails for directories, devices and kernel file systems.
    pub fn begin(located: &Located, permissions: Permissions) -> Result<Self, FileError> {
        let Located::Entry { parent, name, stat } = located else { return Err(FileError::Os(Errno::ISDIR)) };
        match stat.as_ref().map(|stat| kind(stat)) {
            None | Some(FileType::RegularFile) => {}
            Some(FileType::Directory) => return Err(FileError::Os(Errno::ISDIR)),
            Some(_) => return Err(FileError::Refused("not a regular file")),
        }
        if is_kernel_file_system(parent)? {
            return Err(FileError::Refused("a directory of a kernel file system"));
        }
        match Self::begin_temporary(parent, name, stat.as_deref(), permissions) {
            // No file can be created in the directory, but the target itself may be writable. A file that is a mount
            // point cannot be renamed over either.
            Err(FileError::Os(Errno::ACCESS | Errno::PERM | Errno::ROFS)) if stat.is_some() => {
                Self::begin_in_place(parent, name)
            }
            other => other,
        }
    }

    fn begin_temporary(
        parent: &Arc<OwnedFd>,
        name: &CString,
        old: Option<&Stat>,
        permissions: Permissions,
    ) -> Result<Self, FileError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let number = SEQUENCE.fetch_add(1, Ordering::Relaxed);
        let temporary = CString::new(format!(".sandboxd-tmp-{:016x}-{number}", *INSTANCE))
            .map_err(|_| FileError::Os(Errno::INVAL))?;
        let file = openat(parent, &temporary, flags, Mode::from_raw_mode(0o600))?;
        let replacement =
            Self { parent: Arc::clone(parent), name: name.clone(), file: Arc::new(file), temporary: Some(temporary) };
        replacement.prepare(old, permissions)?;
        Ok(replacement)
    }

    fn begin_in_place(parent: &Arc<OwnedFd>, name: &CString) -> Result<Self, FileError> {
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = openat(parent, name, flags, Mode::empty())?;
        require_regular(&file)?;
        require_single_name(&file)?;
        rustix::fs::ftruncate(&file, 0)?;
        Ok(Self { parent: Arc::clone(parent), name: name.clone(), file: Arc::new(file), temporary: None })
    }

    fn prepare(&self, old: Option<&Stat>, permissions: Permissions) -> Result<(), FileError> {
        let mode = match (permissions, old) {
            (Permissions::Exactly(mode), _) => mode,
            (Permissions::Keep, Some(old)) => old.st_mode & 0o7777,
            (Permissions::Keep, None) => 0o644,
        };
        if let Some(old) = old {
            // Only a privileged daemon can change the owner, and only there does it matter.
            let _ = fchown(&self.file, Some(Uid::from_raw(old.st_uid)), Some(Gid::from_raw(old.st_gid)));
        }
        Ok(fchmod(&self.file, Mode::from_raw_mode(mode))?)
    }

    pub fn descriptor(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.file)
    }

    /// Gives the finished file its name; with `durable` the bytes reach the disk first.
    pub fn commit(mut self, durable: bool) -> Result<(), FileError> {
        if durable {
            rustix::fs::fsync(&self.file)?;
        }
        let Some(temporary) = self.temporary.clone() else { return Ok(()) };
        let _replaced = DeferredFree::of_large_file(&self.parent, &self.name);
        match renameat(&self.parent, &temporary, &self.parent, &self.name) {
            Ok(()) => {
                self.temporary = None;
                Ok(())
            }
            // The target is itself a mount point: copy into it instead.
            Err(Errno::BUSY) => self.copy_into_mounted_target(),
            Err(errno) => Err(errno.into()),
        }
    }

    fn copy_into_mounted_target(&self) -> Result<(), FileError> {
        let Some(temporary) = &self.temporary else { return Ok(()) };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut source = std::fs::File::from(openat(&self.parent, temporary, flags, Mode::empty())?);
        let target = Self::begin_in_place(&self.parent, &self.name)?;
        let mut target = std::fs::File::from(target.file.as_fd().try_clone_to_owned()?);
        std::io::copy(&mut source, &mut target)?;
        Ok(())
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let _ = unlinkat(&self.parent, temporary, AtFlags::empty());
        }
    }
}

/// Keeps a large replaced file open beyond the rename and closes it on another thread: freeing its pages takes about a
/// tenth of the time of writing them, which the request does not have to wait for.
struct DeferredFree(Option<OwnedFd>);

impl DeferredFree {
    fn of_large_file(parent: &OwnedFd, name: &CString) -> Self {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(parent, name, flags, Mode::empty()).ok();
        Self(file.filter(|file| rustix::fs::fstat(file).is_ok_and(|stat| stat.st_size >= DEFERRED_FREE_SIZE)))
    }
}

impl Drop for DeferredFree {
    fn drop(&mut self) {
        if let (Some(file), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) {
            drop(runtime.spawn_blocking(move || drop(file)));
        }
    }
}

/// Gathers the frames of a body and writes them in batches on a blocking thread; the next batch is gathered during the
/// write.
#[derive(Debug)]
pub struct BatchWriter {
    file: Arc<OwnedFd>,
    waiting: Vec<Bytes>,
    size: usize,
    total: u64,
    /// The batch being written. A thread is occupied only during the write, however slowly the client sends.
    writing: Option<JoinHandle<Result<(), FileError>>>,
}

impl BatchWriter {
    pub fn new(file: Arc<OwnedFd>) -> Self {
        Self { file, waiting: Vec::new(), size: 0, total: 0, writing: None }
    }

    pub async fn push(&mut self, bytes: Bytes) -> Result<(), FileError> {
        self.size += bytes.len();
        self.total += bytes.len() as u64;
        self.waiting.push(bytes);
        if self.size >= BATCH { self.flush().await } else { Ok(()) }
    }

    /// Writes the rest; returns the total number of bytes.
    pub async fn finish(mut self) -> Result<u64, FileError> {
        self.flush().await?;
        self.written().await?;
        Ok(self.total)
    }

    /// Starts writing the gathered batch when the previous one is written.
    async fn flush(&mut self) -> Result<(), FileError> {
        self.written().await?;
        if self.waiting.is_empty() {
            return Ok(());
        }
        let batch = std::mem::take(&mut self.waiting);
        self.size = 0;
        let file = Arc::clone(&self.file);
        self.writing =
            Some(tokio::task::spawn_blocking(move || batch.iter().try_for_each(|bytes| write_all(&file, bytes))));
        Ok(())
    }

    async fn written(&mut self) -> Result<(), FileError> {
        match self.writing.take() {
            Some(writing) => writing.await.unwrap_or(Err(FileError::Os(Errno::CANCELED))),
            None => Ok(()),
        }
    }
}

fn write_all(file: &OwnedFd, mut bytes: &[u8]) -> Result<(), FileError> {
    while !bytes.is_empty() {
        match rustix::io::write(file, bytes) {
            Ok(0) => return Err(FileError::Os(Errno::IO)),
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
