//! Replacing a file as a whole: the bytes go to a temporary file beside the target, which takes the target's name only
//! when everything is there. Until then, and after any failure, the old content is intact.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid, fchmod, fchown, openat, renameat, unlinkat};
use rustix::io::Errno;
use tokio::task::JoinHandle;

use super::FileError;
use super::refuse::{is_kernel_file_system, kind, require_regular, require_single_name};
use super::root::Located;

/// Bytes gathered before one trip to the file system.
const BATCH: usize = 1024 * 1024;

/// Bytes of a replaced file that are freed while nobody waits.
const LARGE: i64 = 4 << 20;

static SEQUENCE: AtomicU64 = AtomicU64::new(0);

/// Keeps the temporary names of two daemons apart that share a volume, or of one before and after its restart.
static INSTANCE: LazyLock<u64> = LazyLock::new(crate::random::number);

/// A file being written. Dropping it without [`Replacement::commit`] removes the temporary file.
#[derive(Debug)]
pub struct Replacement {
    parent: Arc<OwnedFd>,
    name: CString,
    file: Arc<OwnedFd>,
    /// `None` when the target itself is written, because its directory takes no new files.
    temporary: Option<CString>,
}

/// What becomes of the file's permission bits.
#[derive(Clone, Copy, Debug)]
pub enum Permissions {
    /// Those of the file that is replaced, or 0644 for a new one.
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
            return Err(FileError::Refused("a directory of the kernel"));
        }
        match Self::beside(parent, name, stat.as_deref(), permissions) {
            // The directory is closed to us but the file may not be; a file mounted alone cannot be renamed over either.
            Err(FileError::Os(Errno::ACCESS | Errno::PERM | Errno::ROFS)) if stat.is_some() => {
                Self::in_place(parent, name)
            }
            other => other,
        }
    }

    fn beside(
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

    fn in_place(parent: &Arc<OwnedFd>, name: &CString) -> Result<Self, FileError> {
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
            // Only a privileged daemon can, and only then does it matter.
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
        let _replaced = Replaced::hold(&self.parent, &self.name);
        match renameat(&self.parent, &temporary, &self.parent, &self.name) {
            Ok(()) => {
                self.temporary = None;
                Ok(())
            }
            // The target is a mount point of its own: copy into it instead.
            Err(Errno::BUSY) => self.copy_into_mounted_target(),
            Err(errno) => Err(errno.into()),
        }
    }

    fn copy_into_mounted_target(&self) -> Result<(), FileError> {
        let Some(temporary) = &self.temporary else { return Ok(()) };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut source = std::fs::File::from(openat(&self.parent, temporary, flags, Mode::empty())?);
        let target = Self::in_place(&self.parent, &self.name)?;
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

/// The file that a replacement took the name of. Freeing the pages of a large one takes as long as writing a tenth of
/// them: whoever waits for the new content need not wait for that, so the last hold on it is let go of elsewhere.
struct Replaced(Option<OwnedFd>);

impl Replaced {
    fn hold(parent: &OwnedFd, name: &CString) -> Self {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(parent, name, flags, Mode::empty()).ok();
        Self(file.filter(|file| rustix::fs::fstat(file).is_ok_and(|stat| stat.st_size >= LARGE)))
    }
}

impl Drop for Replaced {
    fn drop(&mut self) {
        if let (Some(file), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) {
            drop(runtime.spawn_blocking(move || drop(file)));
        }
    }
}

/// Gathers the frames of a body and writes them in batches off the event loop, one while the next is gathered.
#[derive(Debug)]
pub struct BatchWriter {
    file: Arc<OwnedFd>,
    waiting: Vec<Bytes>,
    size: usize,
    total: u64,
    /// The batch being written. A thread is held for that only, however slowly a client sends.
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

    /// Writes what is waiting; returns how many bytes passed in all.
    pub async fn finish(mut self) -> Result<u64, FileError> {
        self.flush().await?;
        self.written().await?;
        Ok(self.total)
    }

    /// Hands the gathered batch over as soon as the one before it is written.
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
