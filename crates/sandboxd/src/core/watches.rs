//! Watches files for changes with inotify: one file or directory, or a whole tree.

#![expect(unsafe_code, reason = "registering a descriptor with the event loop")]

use std::collections::HashMap;
use std::ffi::CString;
use std::mem::MaybeUninit;
use std::ops::ControlFlow;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{FileType, Mode, OFlags, openat};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

use super::files::tree::visit;
use super::files::{FileError, Follow, Located, Root, blocking, is_kernel_file_system};
use super::paths::RelPath;

/// Maximum number of directories in one watch.
const MAX_DIRECTORIES: usize = 4096;

/// What happened to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    Created,
    Modified,
    Removed,
    MovedFrom,
    MovedTo,
    Attributes,
    /// The kernel's queue overflowed, and events were lost.
    Overflow,
}

/// A change below the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    pub path: RelPath,
    pub kind: ChangeKind,
}

/// An open watch.
#[derive(Debug)]
pub struct Watch {
    inotify: AsyncFd<OwnedFd>,
    watched_paths: HashMap<i32, RelPath>,
    root: Arc<Root>,
    recursive: bool,
}

impl Watch {
    /// Watches a file or directory; with `recursive`, everything below it.
    pub async fn open(root: Arc<Root>, path: RelPath, recursive: bool) -> Result<Self, FileError> {
        let (inotify, watched_paths, root) = blocking(move || {
            let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
            let mut watched_paths = HashMap::new();
            let located = root.locate(&path, Follow::Link)?;
            add(&inotify, &located, path.clone(), &mut watched_paths)?;
            if recursive && located.is_directory() {
                add_below(&inotify, &root, &path, &mut watched_paths)?;
            }
            Ok((inotify, watched_paths, root))
        })
        .await?;
        // SAFETY: an owned descriptor stays the same and open for as long as the registration holds it.
        let inotify = unsafe { AsyncFd::register(inotify) }.map_err(std::io::Error::from)?;
        Ok(Self { inotify, watched_paths, root, recursive })
    }

    /// Waits for the next changes.
    pub async fn next(&mut self) -> Result<Vec<Changed>, FileError> {
        loop {
            let mut ready = self.inotify.readable().await?;
            let read = ready.try_io(|inotify| read_events(inotify.get_ref()));
            match read {
                Ok(Ok(events)) => return Ok(self.apply_events(events)),
                Ok(Err(error)) => return Err(error.into()),
                Err(_would_block) => {}
            }
        }
    }

    fn apply_events(&mut self, events: Vec<InotifyEvent>) -> Vec<Changed> {
        let mut changes = Vec::new();
        for event in events {
            if event.flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                changes.push(Changed { path: RelPath::default(), kind: ChangeKind::Overflow });
                continue;
            }
            if event.flags.contains(ReadFlags::IGNORED) {
                self.watched_paths.remove(&event.watch);
                continue;
            }
            let Some(directory) = self.watched_paths.get(&event.watch) else { continue };
            let path = event.name.map_or_else(|| directory.clone(), |name| directory.child(name));
            let Some(kind) = change_kind(event.flags) else { continue };
            let new_directory =
                event.flags.contains(ReadFlags::ISDIR) && matches!(kind, ChangeKind::Created | ChangeKind::MovedTo);
            if new_directory && self.recursive {
                self.watch_new_directory(&path, &mut changes);
            } else {
                changes.push(Changed { path, kind });
            }
        }
        changes
    }

    /// Watches a new directory and reports the entries that it already had when the watch was added.
    fn watch_new_directory(&mut self, path: &RelPath, changes: &mut Vec<Changed>) {
        changes.push(Changed { path: path.clone(), kind: ChangeKind::Created });
        let Ok(located) = self.root.locate(path, Follow::Never) else { return };
        if add(self.inotify.get_ref(), &located, path.clone(), &mut self.watched_paths).is_err() {
            return;
        }
        let _ = add_below(self.inotify.get_ref(), &self.root, path, &mut self.watched_paths);
        let Ok(directory) = located.open_directory() else { return };
        let _ = visit(&directory, |found| {
            changes.push(Changed { path: path.join(found.path), kind: ChangeKind::Created });
            Ok(if changes.len() > MAX_DIRECTORIES { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        });
    }
}

struct InotifyEvent {
    watch: i32,
    flags: ReadFlags,
    name: Option<CString>,
}

fn read_events(inotify: &OwnedFd) -> std::io::Result<Vec<InotifyEvent>> {
    let mut buffer = [MaybeUninit::uninit(); 16 * 1024];
    let mut reader = inotify::Reader::new(inotify, &mut buffer);
    let mut events = Vec::new();
    loop {
        match reader.next() {
            Ok(event) => events.push(InotifyEvent {
                watch: event.wd(),
                flags: event.events(),
                name: event.file_name().map(|name| name.to_owned()),
            }),
            Err(Errno::AGAIN) if events.is_empty() => return Err(std::io::ErrorKind::WouldBlock.into()),
            Err(Errno::AGAIN) => return Ok(events),
            Err(errno) => return Err(errno.into()),
        }
        if reader.is_buffer_empty() && events.len() > 256 {
            return Ok(events);
        }
    }
}

fn change_kind(flags: ReadFlags) -> Option<ChangeKind> {
    [
        (ReadFlags::CREATE, ChangeKind::Created),
        (ReadFlags::CLOSE_WRITE, ChangeKind::Modified),
        (ReadFlags::MODIFY, ChangeKind::Modified),
        (ReadFlags::DELETE, ChangeKind::Removed),
        (ReadFlags::DELETE_SELF, ChangeKind::Removed),
        (ReadFlags::MOVED_FROM, ChangeKind::MovedFrom),
        (ReadFlags::MOVED_TO, ChangeKind::MovedTo),
        (ReadFlags::ATTRIB, ChangeKind::Attributes),
    ]
    .into_iter()
    .find(|(flag, _)| flags.contains(*flag))
    .map(|(_, kind)| kind)
}

fn add(
    inotify: &OwnedFd,
    located: &Located,
    path: RelPath,
    watched_paths: &mut HashMap<i32, RelPath>,
) -> Result<(), FileError> {
    if watched_paths.len() >= MAX_DIRECTORIES {
        return Err(FileError::Os(Errno::NOSPC));
    }
    let target = match located {
        Located::Directory(directory) => Arc::clone(directory),
        Located::Entry { stat: None, .. } => return Err(FileError::Os(Errno::NOENT)),
        Located::Entry { parent, name, .. } => {
            Arc::new(openat(parent, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?)
        }
    };
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&target)?.st_mode);
    if !matches!(kind, FileType::Directory | FileType::RegularFile) || is_kernel_file_system(&target)? {
        return Err(FileError::Refused("not a regular file or directory"));
    }
    // Added by descriptor, so that the located file is the watched one.
    let flags = WatchFlags::CREATE
        | WatchFlags::CLOSE_WRITE
        | WatchFlags::MODIFY
        | WatchFlags::DELETE
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::ATTRIB;
    let watch = inotify::add_watch(inotify, format!("/proc/self/fd/{}", target.as_raw_fd()), flags)?;
    watched_paths.insert(watch, path);
    Ok(())
}

fn add_below(
    inotify: &OwnedFd,
    root: &Root,
    path: &RelPath,
    watched_paths: &mut HashMap<i32, RelPath>,
) -> Result<(), FileError> {
    let directory = root.locate(path, Follow::Link)?.open_directory()?;
    visit(&directory, |found| {
        if found.kind() == FileType::Directory {
            let below = path.join(found.path);
            let located = root.locate(&below, Follow::Never)?;
            match add(inotify, &located, below, watched_paths) {
                Ok(()) | Err(FileError::Os(Errno::NOENT) | FileError::Refused(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(ControlFlow::Continue(()))
    })
}
