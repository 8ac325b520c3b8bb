//! Unpacks one layer: an untrusted tar stream becomes a folder that overlayfs can use.
//!
//! Nothing in the stream can write outside the folder: parents are resolved beneath it, names with `..` are rejected,
//! and size and number of entries are limited. Whiteouts become overlayfs whiteouts.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Uid, XattrFlags};
use tar::{Archive, EntryType};

mod extended_headers;

use extended_headers::ExtendedHeaders;

/// Limits of one layer.
#[derive(Debug, Clone, Copy)]
pub(super) struct LayerBounds {
    pub(super) bytes: u64,
    pub(super) entries: u64,
}

impl LayerBounds {
    /// Far above real layers, far below a full disk.
    pub(super) const DEFAULT: Self = Self { bytes: 32 << 30, entries: 2_000_000 };
}

#[derive(Debug, thiserror::Error)]
pub(super) enum UnpackError {
    #[error("entry {0:?} leads out of the image")]
    Escapes(PathBuf),
    #[error("it unpacks to more than {0} bytes")]
    TooLarge(u64),
    #[error("it has more than {0} entries")]
    TooMany(u64),
    #[error("a record of its headers is longer than {0} bytes")]
    LongRecord(u64),
    #[error("entry {path:?} is of a kind that layers do not have ({kind})")]
    Kind { path: PathBuf, kind: &'static str },
    #[error("entry {0:?} is nested too deep")]
    TooDeep(PathBuf),
    #[error("entry {path:?} cannot be unpacked")]
    Entry {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("it is not a readable tar stream")]
    Stream(#[source] io::Error),
}

/// Unpacks a tar stream into an existing, empty folder. `privileged`: owners can be set, and overlay attributes are in
/// the `trusted` namespace.
pub(super) fn unpack(
    stream: impl Read,
    folder: &Path,
    bounds: LayerBounds,
    privileged: bool,
) -> Result<(), UnpackError> {
    let root = rustix::fs::openat(CWD, folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| UnpackError::Stream(error.into()))?;
    let mut layer = Layer { root, privileged, left: bounds.bytes };
    let mut archive = Archive::new(stream);
    let mut count = 0;
    let mut headers = ExtendedHeaders::default();
    // Raw: extended headers, which belong to the next entry, are read here, with a size limit.
    for entry in archive.entries().map_err(UnpackError::Stream)?.raw(true) {
        let mut entry = entry.map_err(UnpackError::Stream)?;
        count += 1;
        if count > bounds.entries {
            return Err(UnpackError::TooMany(bounds.entries));
        }
        // The bytes of every kind of entry have to be read, and may be a thousand times what was transferred.
        layer.left = layer.left.checked_sub(entry.size()).ok_or(UnpackError::TooLarge(bounds.bytes))?;
        if !headers.take_record(&mut entry)? {
            layer.add(entry, std::mem::take(&mut headers))?;
        }
    }
    Ok(())
}

/// Maximum depth of one entry's path. The kernel accepts no path longer than 4,096 bytes anyway.
const MAX_DEPTH: usize = 2_048;

struct Layer {
    root: OwnedFd,
    privileged: bool,
    left: u64,
}

impl Layer {
    fn add<R: Read>(&mut self, mut entry: tar::Entry<'_, R>, headers: ExtendedHeaders) -> Result<(), UnpackError> {
        let Some(path) = inside(&headers.path_of(&entry))? else { return Ok(()) };
        if path.components().count() > MAX_DEPTH {
            return Err(UnpackError::TooDeep(path));
        }
        let failed = |source: io::Error| UnpackError::Entry { path: path.clone(), source };
        let (Some(parent), Some(name)) =
            (path.parent(), path.file_name().map(|name| name.to_string_lossy().into_owned()))
        else {
            return Ok(());
        };
        let folder = self.open_folder(parent).map_err(failed)?;
        if name == ".wh..wh..opq" {
            return self.mark_opaque(&folder).map_err(failed);
        }
        if let Some(hidden) = name.strip_prefix(".wh.") {
            return whiteout(&folder, hidden).map_err(failed);
        }
        match entry.header().entry_type() {
            EntryType::Link => {
                let target = headers.link_of(&entry);
                let target = inside(&target)?.ok_or_else(|| UnpackError::Escapes(target.clone()))?;
                self.link(&target, &folder, &name).map_err(failed)
            }
            EntryType::GNUSparse => Err(UnpackError::Kind { path, kind: "sparse file" }),
            _ => self.place(&mut entry, &headers, &folder, &name).map_err(failed),
        }
    }

    fn place<R: Read>(
        &self,
        entry: &mut tar::Entry<'_, R>,
        headers: &ExtendedHeaders,
        folder: &OwnedFd,
        name: &str,
    ) -> io::Result<()> {
        let header = entry.header();
        let kind = header.entry_type();
        let mode = Mode::from_raw_mode(header.mode()? & 0o7777);
        let (uid, gid) = headers.owner_of(header);
        let owner = (clamp_id(uid), clamp_id(gid));
        match kind {
            EntryType::Directory => match rustix::fs::mkdirat(folder, name, Mode::from_raw_mode(0o700)) {
                Err(rustix::io::Errno::EXIST) if is_folder(folder, name) => {}
                Err(rustix::io::Errno::EXIST) => {
                    clear(folder, name)?;
                    rustix::fs::mkdirat(folder, name, Mode::from_raw_mode(0o700))?;
                }
                other => other?,
            },
            EntryType::Symlink => {
                let target = headers.link_of(entry);
                clear(folder, name)?;
                rustix::fs::symlinkat(&target, folder, name)?;
            }
            EntryType::Fifo => {
                clear(folder, name)?;
                rustix::fs::mknodat(folder, name, FileType::Fifo, mode, 0)?;
            }
            kind if kind.is_file() => {
                clear(folder, name)?;
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
                let mut file = File::from(rustix::fs::openat(folder, name, flags, Mode::from_raw_mode(0o600))?);
                io::copy(entry, &mut file)?;
                file.flush()?;
            }
            // Device nodes could not be used inside anyway; other entry types mean nothing to a file system.
            _ => return Ok(()),
        }
        if self.privileged {
            let (uid, gid) = (Uid::from_raw(owner.0), Gid::from_raw(owner.1));
            rustix::fs::chownat(folder, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        if kind != EntryType::Symlink {
            // After the change of owner, which clears the setuid bits.
            let mode = if self.privileged { mode } else { shared_mode(mode, kind) };
            rustix::fs::chmodat(folder, name, mode, AtFlags::empty())?;
        }
        Ok(())
    }

    fn link(&self, target: &Path, folder: &OwnedFd, name: &str) -> io::Result<()> {
        let (Some(parent), Some(file)) = (target.parent(), target.file_name()) else {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        };
        let from = self.open_folder(parent)?;
        clear(folder, name)?;
        Ok(rustix::fs::linkat(&from, file, folder, name, AtFlags::empty())?)
    }

    /// Opens a folder beneath the root, creating what is missing. Links on the way are resolved beneath the root too.
    fn open_folder(&self, path: &Path) -> io::Result<OwnedFd> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let relative = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        match rustix::fs::openat2(&self.root, relative, flags, Mode::empty(), resolve) {
            Ok(fd) => return Ok(fd),
            Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let mut prefix = PathBuf::new();
        let mut above = rustix::fs::openat2(&self.root, ".", flags, Mode::empty(), resolve)?;
        for component in path.components() {
            prefix.push(component);
            let open = || rustix::fs::openat2(&self.root, &prefix, flags, Mode::empty(), resolve);
            above = match open() {
                Err(rustix::io::Errno::NOENT) => {
                    rustix::fs::mkdirat(&above, component.as_os_str(), Mode::from_raw_mode(0o755))?;
                    open()?
                }
                other => other?,
            };
        }
        Ok(above)
    }

    fn mark_opaque(&self, folder: &OwnedFd) -> io::Result<()> {
        let name = if self.privileged { "trusted.overlay.opaque" } else { "user.overlay.opaque" };
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(folder));
        Ok(rustix::fs::setxattr(path, name, b"y", XattrFlags::empty())?)
    }
}

/// Without privilege everything belongs to the caller, who must be able to read and remove it. A sandbox with ids of
/// its own is neither that user nor in its group, so all users get the owner's permissions.
fn shared_mode(mode: Mode, kind: EntryType) -> Mode {
    let owner = mode.as_raw_mode() & 0o700 | if kind == EntryType::Directory { 0o700 } else { 0o600 };
    Mode::from_raw_mode(mode.as_raw_mode() & 0o1070 | owner | owner >> 6)
}

/// The path beneath the root; `None` for the root itself.
fn inside(path: &Path) -> Result<Option<PathBuf>, UnpackError> {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => clean.push(name),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => return Err(UnpackError::Escapes(path.to_owned())),
        }
    }
    Ok((!clean.as_os_str().is_empty()).then_some(clean))
}

/// Images use sixteen-bit ids; any other id would be `nobody` in every Pod.
fn clamp_id(id: u64) -> u32 {
    u32::try_from(id).ok().filter(|id| *id < 65_536).unwrap_or(65_534)
}

/// Removes an earlier entry of the same name, which a later one replaces.
fn clear(folder: &OwnedFd, name: &str) -> io::Result<()> {
    match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(rustix::io::Errno::ISDIR) => Ok(rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR)?),
        Err(error) => Err(error.into()),
    }
}

fn is_folder(folder: &OwnedFd, name: &str) -> bool {
    rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_dir())
}

/// Creates an overlayfs whiteout: a character device 0/0, which unprivileged users may create.
fn whiteout(folder: &OwnedFd, name: &str) -> io::Result<()> {
    if name.is_empty() || name.contains('/') || name == "." || name == ".." {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    clear(folder, name)?;
    Ok(rustix::fs::mknodat(folder, name, FileType::CharacterDevice, Mode::empty(), 0)?)
}

#[cfg(test)]
mod tests;
