//! A container's file system: [`plan`] decides what is mounted where, and this module mounts it, in the container's own
//! first process and mount namespace, while the process still has the privileges of the set-up.
//!
//! Targets are always resolved beneath the new root, so no link in an image redirects a mount.

use std::cell::OnceCell;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree, unmount,
};

use crate::kernel::container::step::{StepExt, StepResult};
use crate::kernel::container::user::find_user;
use crate::kernel::sys::{self, ATTR_NODEV, ATTR_NOEXEC, ATTR_NOSUID, ATTR_RDONLY, MountChange};

mod bind;
mod copied_folder;
mod host_folder;
mod plan;
mod sealed_layers;
mod view;

pub(crate) use bind::{BindContext, expose};
pub(crate) use copied_folder::CopiedFolder;

pub(crate) use plan::{
    BindSource, FileKind, LOW_PORTS, MountStep, RootPlan, memory_volume_path, opens_low_ports, own_files,
    own_files_dir, plan_root,
};

/// The ids of the container's root as seen by the set-up process, and the user namespace for id-mapped mounts.
#[derive(Clone, Copy)]
pub(crate) struct Owner<'a> {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The Pod's user namespace, when mounts can be id-mapped (as root).
    pub(crate) idmap: Option<BorrowedFd<'a>>,
}

/// Builds the whole tree and makes it the root of this process's mount namespace. `scratch` is an empty folder. Returns
/// the file for the termination message, if the tree has one.
pub(crate) fn enter_root(plan: &RootPlan, owner: Owner<'_>, scratch: &Path) -> StepResult<Option<OwnedFd>> {
    sys::make_private_recursive(c"/").step("making mounts private")?;
    let (root, stage) = mount_root(plan, owner, scratch)?;
    let builder = Builder::new(plan, root.as_fd(), owner, stage.as_ref().map(AsFd::as_fd));
    for step in &plan.steps {
        builder.apply(step).map_err(|(name, error)| {
            (name, io::Error::new(error.kind(), WithPath { path: step.target().to_owned(), source: error }))
        })?;
    }
    if plan.read_only {
        let change = MountChange { set: ATTR_RDONLY, ..MountChange::default() };
        sys::mount_setattr(root.as_fd(), change).step("making the root read-only")?;
    }
    rustix::process::fchdir(&root).step("entering the new root")?;
    rustix::process::pivot_root(".", ".").step("changing the root")?;
    unmount(".", UnmountFlags::DETACH).step("leaving the old root")?;
    rustix::process::chdir("/").step("entering the new root")?;
    Ok(builder.message.into_inner())
}

/// An error at a path; keeps the errno for the report.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {source}")]
pub(crate) struct WithPath {
    path: String,
    source: io::Error,
}

impl WithPath {
    /// The errno of the error.
    pub(crate) fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }
}

/// Builds only the root file system at the folder `at`, for an OCI runtime that mounts the rest; the working folder is
/// created if missing. `scratch` is an empty folder, and is empty again afterwards.
pub(crate) fn mount_tree(
    plan: &RootPlan,
    owner: Owner<'_>,
    scratch: &Path,
    at: &Path,
    working_dir: &str,
) -> StepResult<()> {
    let (root, _) = mount_root(plan, owner, scratch)?;
    let built = Builder::new(plan, root.as_fd(), owner, None).ensure(working_dir, FileKind::Folder).and_then(|_| {
        // A copy, because only the host's root can enter the staging mount around the original.
        let copy = clone_tree(&root, Path::new(""), false).step("copying the root")?;
        attach_at_path(&copy, at).step("attaching the root")
    });
    unmount(scratch, UnmountFlags::DETACH).step("leaving the stage")?;
    built
}

/// Reads a regular file of a tree that a sandbox may have changed: links cannot lead out of the tree, and neither a pipe
/// nor a lease nor a file of any size makes the caller wait.
pub(crate) fn read_beneath(root: &Path, path: &str) -> io::Result<String> {
    read_at(reopen(root)?.as_fd(), path)
}

fn read_at(root: BorrowedFd<'_>, path: &str) -> io::Result<String> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = std::fs::File::from(rustix::fs::openat2(root, path, flags, Mode::empty(), resolve)?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // Limits the size: `/etc/passwd` is never larger.
    let mut text = String::new();
    io::Read::read_to_string(&mut io::Read::take(file, 1 << 20), &mut text)?;
    Ok(text)
}

/// Mounts the new root, and the staging file system around it, which processes inside never see.
fn mount_root(plan: &RootPlan, owner: Owner<'_>, scratch: &Path) -> StepResult<(OwnedFd, Option<OwnedFd>)> {
    if let Some(host) = &plan.whole_host {
        // Only for controls of the escape tests: the host's own tree, as if there were no private root.
        let tree = clone_tree(CWD, host, true).step("cloning the host's tree")?;
        attach_at_path(&tree, scratch).step("attaching the host's tree")?;
        return Ok((reopen(scratch).step("opening the new root")?, None));
    }
    let stage =
        mount_tmpfs(&[("mode", "0700"), ("size", STAGE_BYTES)], ATTR_NOSUID | ATTR_NODEV).step("making the stage")?;
    attach_at_path(&stage, scratch).step("attaching the stage")?;
    let stage = reopen(scratch).step("opening the stage")?;
    for name in ["images", "root", sealed_layers::FOLDER, view::FOLDER] {
        rustix::fs::mkdirat(&stage, name, Mode::from_raw_mode(0o700)).step("making the stage")?;
    }
    make_stage_folder(stage.as_fd(), EMPTY).step("making the stage")?;
    let images = clone_tree(CWD, &plan.images_dir, false).step("cloning the image folder")?;
    let change =
        MountChange { set: ATTR_NOSUID | ATTR_NODEV | ATTR_RDONLY, idmap: owner.idmap, ..MountChange::default() };
    sys::mount_setattr(images.as_fd(), change).step("shifting image layers into the Pod's user ids")?;
    let at = openat(stage.as_fd(), "images", OFlags::PATH | OFlags::DIRECTORY).step("opening the stage")?;
    attach(&images, at.as_fd()).step("attaching the image folder")?;
    sealed_layers::attach_all(&plan.sealed, owner, stage.as_fd())?;
    mount_overlay(plan, scratch)?;
    Ok((reopen(&scratch.join("root")).step("opening the new root")?, Some(stage)))
}

/// One `mount` call with short, relative layer names: `fsconfig` accepts at most 256 bytes per value, and no path of
/// the host appears in the container's mount table.
fn mount_overlay(plan: &RootPlan, scratch: &Path) -> StepResult<()> {
    let open =
        |path: &Path| rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let upper = open(&plan.upper).step("opening the writable layer")?;
    let work = open(&plan.work).step("opening the writable layer")?;
    rustix::process::chdir(scratch.join("images")).step("entering the stage")?;
    let sealed = (0..plan.sealed.len()).map(sealed_layers::path_from_images);
    let images = plan.lowers.iter().map(|layer| layer.to_string_lossy().into_owned());
    let lower = sealed.chain(images).collect::<Vec<_>>().join(":");
    let mut options = format!(
        "lowerdir={lower},upperdir=/proc/self/fd/{},workdir=/proc/self/fd/{}",
        upper.as_raw_fd(),
        work.as_raw_fd()
    );
    if plan.user_xattr {
        options.push_str(",userxattr");
    }
    if plan.volatile {
        options.push_str(",volatile");
    }
    let options = std::ffi::CString::new(options).map_err(io::Error::other).step("mounting the overlay")?;
    let flags = rustix::mount::MountFlags::NOSUID | rustix::mount::MountFlags::NODEV;
    rustix::mount::mount("overlay", "../root", "overlay", flags, options.as_c_str()).step("mounting the overlay")?;
    rustix::process::chdir("/").step("leaving the stage")
}

/// Size of the staging file system, which holds the generated files of a container and its termination message.
const STAGE_BYTES: &str = "1m";

/// Maximum number of pseudo-terminals of a container. The kernel counts those of all containers together (4,096, of
/// which 1,024 are kept for the host), and processes inside cannot mount again what they were given.
pub(crate) const MAX_TERMINALS: &str = "128";

/// The file of the staging file system for the termination message. No other one begins with a dot.
const MESSAGE: &str = ".message";

/// An empty folder of the staging file system, for hiding other folders.
const EMPTY: &str = "empty";

/// A folder of the staging file system with mount points for the parts of a folder that is otherwise hidden.
const KEPT: &str = "kept";

/// A folder of the staging file system that every user may enter, whatever the node's umask; it may exist.
fn make_stage_folder(stage: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    match rustix::fs::mkdirat(stage, name, Mode::from_raw_mode(0o555)) {
        Err(rustix::io::Errno::EXIST) => Ok(()),
        made => Ok(made.and_then(|()| rustix::fs::chmodat(stage, name, Mode::from_raw_mode(0o555), AtFlags::empty()))?),
    }
}

struct Builder<'a> {
    plan: &'a RootPlan,
    root: BorrowedFd<'a>,
    owner: Owner<'a>,
    stage: Option<BorrowedFd<'a>>,
    /// The root's `/dev/null`, opened on first use.
    null: OnceCell<OwnedFd>,
    message: OnceCell<OwnedFd>,
}

impl<'a> Builder<'a> {
    fn new(plan: &'a RootPlan, root: BorrowedFd<'a>, owner: Owner<'a>, stage: Option<BorrowedFd<'a>>) -> Self {
        Self { plan, root, owner, stage, null: OnceCell::new(), message: OnceCell::new() }
    }

    /// The ids that the container runs as, as seen by the set-up process. The container's start reports a user that the
    /// image does not have.
    fn guest(&self) -> Option<(u32, u32)> {
        let read = |path: &str| read_at(self.root, path).unwrap_or_default();
        let found = find_user(&self.plan.user, &read("etc/passwd"), &read("etc/group")).ok()?;
        Some((self.plan.ids.seen_by_setup(found.uid)?, self.plan.ids.seen_by_setup(found.gid)?))
    }

    fn apply(&self, step: &MountStep) -> StepResult<()> {
        match step {
            MountStep::Proc { target, low_ports } => {
                let mount = new_mount("proc", &[], ATTR_NOSUID | ATTR_NODEV | ATTR_NOEXEC).step("mounting proc")?;
                if *low_ports {
                    open_low_ports(mount.as_fd()).step("setting kernel parameters")?;
                }
                self.place(&mount, target, FileKind::Folder)
            }
            MountStep::Sys { target } => {
                let attributes = ATTR_NOSUID | ATTR_NODEV | ATTR_NOEXEC | ATTR_RDONLY;
                let mount = new_mount("sysfs", &[], attributes).step("mounting sysfs")?;
                self.place(&mount, target, FileKind::Folder)
            }
            MountStep::MessageQueues { target } => {
                let mount = new_mount("mqueue", &[], ATTR_NOSUID | ATTR_NODEV | ATTR_NOEXEC).step("mounting mqueue")?;
                self.place(&mount, target, FileKind::Folder)
            }
            MountStep::Terminals { target, group } => {
                let group = group.map(|gid| gid.to_string());
                let mut options =
                    vec![("newinstance", ""), ("ptmxmode", "0666"), ("mode", "0620"), ("max", MAX_TERMINALS)];
                if let Some(group) = &group {
                    options.push(("gid", group));
                }
                let mount = new_mount("devpts", &options, ATTR_NOSUID | ATTR_NOEXEC).step("mounting devpts")?;
                self.place(&mount, target, FileKind::Folder)
            }
            MountStep::Memory { target, size, mode, no_exec } => self.place_tmpfs(target, *size, mode, *no_exec),
            MountStep::Devices { target } => self.place_devices(target),
            MountStep::Link { target, to } => {
                let (folder, name) = self.parent_of(target)?;
                match rustix::fs::symlinkat(to.as_str(), &folder, name) {
                    Err(rustix::io::Errno::EXIST) => Ok(()),
                    other => other.step("making a link"),
                }
            }
            MountStep::Bind { source, target, read_only } => self.place_bind(source, target, *read_only),
            MountStep::Text { target, text } => self.place_text(target, text),
            MountStep::Message { target } => self.place_message(target),
            MountStep::HideFile { target } => self.hide(target, FileKind::File),
            MountStep::HideFolder { target } => self.hide(target, FileKind::Folder),
            MountStep::ReadOnly { target } => self.make_read_only(target),
            MountStep::KeepOnly { target, kept } => self.keep_only(target, kept),
        }
    }

    fn place(&self, mount: &OwnedFd, target: &str, kind: FileKind) -> StepResult<()> {
        let at = self.ensure(target, kind)?;
        attach(mount, at.as_fd()).step("attaching a mount")
    }

    fn place_tmpfs(&self, target: &str, size: Option<u64>, mode: &str, no_exec: bool) -> StepResult<()> {
        let (uid, gid) = (self.owner.uid.to_string(), self.owner.gid.to_string());
        let size = size.map(|bytes| bytes.to_string());
        let mut options = vec![("mode", mode), ("uid", uid.as_str()), ("gid", gid.as_str())];
        if let Some(size) = &size {
            options.push(("size", size));
        }
        let attributes = ATTR_NOSUID | ATTR_NODEV | if no_exec { ATTR_NOEXEC } else { 0 };
        let mount = mount_tmpfs(&options, attributes).step("mounting tmpfs")?;
        self.place(&mount, target, FileKind::Folder)
    }

    /// The few harmless devices: created where allowed, otherwise the host's own are bound.
    fn place_devices(&self, target: &str) -> StepResult<()> {
        let (uid, gid) = (self.owner.uid.to_string(), self.owner.gid.to_string());
        let options = [("mode", "0755"), ("size", "64k"), ("uid", uid.as_str()), ("gid", gid.as_str())];
        let mount = mount_tmpfs(&options, ATTR_NOSUID | ATTR_NOEXEC).step("mounting /dev")?;
        self.place(&mount, target, FileKind::Folder)?;
        let folder = self.resolve(target, OFlags::PATH | OFlags::DIRECTORY).step("opening /dev")?;
        for (name, major, minor) in DEVICES {
            match sys::make_device(folder.as_fd(), name, *major, *minor, 0o666) {
                Ok(()) => {}
                Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                    let name = name.to_str().unwrap_or_default();
                    let device = clone_tree(CWD, &Path::new("/dev").join(name), false).step("showing a device")?;
                    self.place(&device, &format!("{target}/{name}"), FileKind::File)?;
                }
                Err(error) => return Err(("making a device", error)),
            }
        }
        Ok(())
    }

    fn place_bind(&self, source: &BindSource, target: &str, read_only: bool) -> StepResult<()> {
        let context = BindContext { owner: self.owner, stage: self.stage, guest: &|| self.guest() };
        let (tree, kind) = bind::open(source, read_only, &context)?;
        self.place(&tree, target, kind)
    }

    /// Writes the text to the staging file system and binds it: it is gone with the container, and never reaches the
    /// disk.
    fn place_text(&self, target: &str, text: &str) -> StepResult<()> {
        // Without a staging file system the root is the host's tree, which has files of its own.
        let Some(stage) = self.stage else { return Ok(()) };
        let name = target.trim_start_matches('/').replace('/', "-");
        let file = self.make_stage_file(stage, &name, 0o644).step("writing a file")?;
        io::Write::write_all(&mut std::fs::File::from(file), text.as_bytes()).step("writing a file")?;
        self.place_stage_file(stage, &name, target, ATTR_RDONLY)
    }

    /// The file is part of the staging file system: what is written there takes neither the disk nor more memory than
    /// that has.
    fn place_message(&self, target: &str) -> StepResult<()> {
        let Some(stage) = self.stage else { return Ok(()) };
        let file = self.make_stage_file(stage, MESSAGE, 0o666).step("making the file for the termination message")?;
        self.place_stage_file(stage, MESSAGE, target, ATTR_NOEXEC)?;
        let _ = self.message.set(file);
        Ok(())
    }

    fn make_stage_file(&self, stage: BorrowedFd<'_>, name: &str, mode: u32) -> io::Result<OwnedFd> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(stage, name, flags, Mode::from_raw_mode(mode))?;
        // Regardless of the node's umask.
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
        rustix::fs::fchown(&file, Some(Uid::from_raw(self.owner.uid)), Some(Gid::from_raw(self.owner.gid)))?;
        Ok(file)
    }

    fn place_stage_file(&self, stage: BorrowedFd<'_>, name: &str, target: &str, attributes: u64) -> StepResult<()> {
        let shown = clone_tree(stage, Path::new(name), false).step("showing a file")?;
        let change = MountChange {
            set: ATTR_NOSUID | ATTR_NODEV | attributes,
            propagation: libc::MS_PRIVATE,
            ..MountChange::default()
        };
        sys::mount_setattr(shown.as_fd(), change).step("restricting a mount")?;
        self.place(&shown, target, FileKind::File)
    }

    /// Covers an existing path with an empty, read-only file or folder; a path that does not exist needs no cover.
    fn hide(&self, target: &str, kind: FileKind) -> StepResult<()> {
        let Some(at) = self.resolve_existing(target)? else { return Ok(()) };
        let change = MountChange { set: ATTR_RDONLY | ATTR_NOEXEC, ..MountChange::default() };
        let cover = match kind {
            FileKind::File => clone_tree(self.null()?, Path::new(""), false).step("hiding a file")?,
            // One empty folder for all: a file system for each would be most of the work of a start.
            FileKind::Folder => match self.stage {
                Some(stage) => clone_tree(stage, Path::new(EMPTY), false).step("hiding a folder")?,
                None => mount_tmpfs(&[("mode", "0555"), ("size", "4k")], ATTR_NOSUID | ATTR_NODEV)
                    .step("hiding a folder")?,
            },
        };
        sys::mount_setattr(cover.as_fd(), change).step("hiding a path")?;
        attach(&cover, at.as_fd()).step("hiding a path")
    }

    fn null(&self) -> StepResult<&OwnedFd> {
        match self.null.get() {
            Some(null) => Ok(null),
            None => {
                let null = self.resolve("/dev/null", OFlags::PATH).step("opening /dev/null")?;
                Ok(self.null.get_or_init(|| null))
            }
        }
    }

    fn make_read_only(&self, target: &str) -> StepResult<()> {
        let Some(at) = self.resolve_existing(target)? else { return Ok(()) };
        let copy = clone_tree(&at, Path::new(""), true).step("making a path read-only")?;
        let change = MountChange { set: ATTR_RDONLY, recursive: true, ..MountChange::default() };
        sys::mount_setattr(copy.as_fd(), change).step("making a path read-only")?;
        attach(&copy, at.as_fd()).step("making a path read-only")
    }

    /// Covers a folder with one that contains only some of its subfolders.
    fn keep_only(&self, target: &str, kept: &[&str]) -> StepResult<()> {
        const STEP: &str = "hiding a folder but for a part of it";
        let (Some(stage), Some(at)) = (self.stage, self.resolve_existing(target)?) else { return Ok(()) };
        make_stage_folder(stage, KEPT).step(STEP)?;
        let mut parts = Vec::new();
        for name in kept {
            let path = format!("{target}/{name}");
            let Some(part) = self.resolve_existing(&path)? else { continue };
            parts.push((path, clone_tree(&part, Path::new(""), true).step(STEP)?));
            let mut folder = KEPT.to_owned();
            for component in name.split('/') {
                folder = format!("{folder}/{component}");
                make_stage_folder(stage, &folder).step(STEP)?;
            }
        }
        let cover = clone_tree(stage, Path::new(KEPT), false).step(STEP)?;
        let change = MountChange { set: ATTR_RDONLY | ATTR_NOEXEC, ..MountChange::default() };
        sys::mount_setattr(cover.as_fd(), change).step(STEP)?;
        attach(&cover, at.as_fd()).step(STEP)?;
        parts.iter().try_for_each(|(path, part)| self.place(part, path, FileKind::Folder))
    }

    fn resolve_existing(&self, target: &str) -> StepResult<Option<OwnedFd>> {
        match self.resolve(target, OFlags::PATH) {
            Ok(fd) => Ok(Some(fd)),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(("resolving a path in the new root", error)),
        }
    }

    fn resolve(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
        let relative = path.trim_start_matches('/');
        let relative = if relative.is_empty() { "." } else { relative };
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        Ok(rustix::fs::openat2(self.root, relative, flags | OFlags::CLOEXEC, Mode::empty(), resolve)?)
    }

    /// Opens the parent folder of a path, creating it if missing, and returns it with the last component.
    fn parent_of<'p>(&self, path: &'p str) -> StepResult<(OwnedFd, &'p str)> {
        let trimmed = path.trim_end_matches('/');
        let (parent, name) = trimmed.rsplit_once('/').unwrap_or(("", trimmed));
        Ok((self.ensure(parent, FileKind::Folder)?, name))
    }

    /// Opens a mount target, creating what is missing as the container's root.
    fn ensure(&self, target: &str, kind: FileKind) -> StepResult<OwnedFd> {
        match self.resolve(target, OFlags::PATH) {
            Ok(fd) => return Ok(fd),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            Err(error) => return Err(("resolving a mount target", error)),
        }
        let (folder, name) = self.parent_of(target)?;
        let make = || -> io::Result<()> {
            Ok(match kind {
                FileKind::Folder => rustix::fs::mkdirat(&folder, name, Mode::from_raw_mode(0o755)),
                FileKind::File => rustix::fs::openat(
                    &folder,
                    name,
                    OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW,
                    Mode::from_raw_mode(0o644),
                )
                .map(drop),
            }?)
        };
        match make() {
            // In an id-mapped volume the set-up's own ids do not exist, and those of the folder's owner do.
            Err(error) if error.raw_os_error() == Some(libc::EOVERFLOW) => {
                let owner = rustix::fs::fstat(&folder).step("making a mount target")?;
                sys::with_file_ids(owner.st_uid, owner.st_gid, make).step("making a mount target")?;
            }
            made => {
                made.step("making a mount target")?;
                let (uid, gid) = (Uid::from_raw(self.owner.uid), Gid::from_raw(self.owner.gid));
                rustix::fs::chownat(&folder, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
                    .step("making a mount target")?;
            }
        }
        openat(folder.as_fd(), name, OFlags::PATH | OFlags::NOFOLLOW).step("opening a mount target")
    }
}

const DEVICES: &[(&CStr, u32, u32)] =
    &[(c"null", 1, 3), (c"zero", 1, 5), (c"full", 1, 7), (c"random", 1, 8), (c"urandom", 1, 9), (c"tty", 5, 0)];

fn kind_of(fd: BorrowedFd<'_>) -> io::Result<FileKind> {
    let mode = rustix::fs::fstat(fd)?.st_mode;
    Ok(if rustix::fs::FileType::from_raw_mode(mode).is_dir() { FileKind::Folder } else { FileKind::File })
}

fn openat(folder: BorrowedFd<'_>, name: &str, flags: OFlags) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(folder, name, flags | OFlags::CLOEXEC, Mode::empty())?)
}

fn reopen(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, path, flags, Mode::empty())?)
}

/// Writes through the container's own new `/proc`: in a shared one the kernel compares the name with those of all
/// network namespaces, and each Pod would start more slowly than the one before.
fn open_low_ports(proc: BorrowedFd<'_>) -> io::Result<()> {
    let path = format!("sys/{}", LOW_PORTS.replace('.', "/"));
    let file = rustix::fs::openat(proc, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    io::Write::write_all(&mut std::fs::File::from(file), b"0")
}

fn clone_tree(base: impl AsFd, path: &Path, recursive: bool) -> io::Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    flags.set(OpenTreeFlags::AT_RECURSIVE, recursive);
    Ok(open_tree(base, path, flags)?)
}

fn attach(mount: &OwnedFd, target: BorrowedFd<'_>) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(mount, "", target, "", flags)?)
}

fn attach_at_path(mount: &OwnedFd, target: &Path) -> io::Result<()> {
    Ok(move_mount(mount, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

fn mount_tmpfs(options: &[(&str, &str)], attributes: u64) -> io::Result<OwnedFd> {
    new_mount("tmpfs", options, attributes)
}

/// A new, detached mount; options with an empty value are flags.
pub(crate) fn new_mount(kind: &str, options: &[(&str, &str)], attributes: u64) -> io::Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        if value.is_empty() {
            fsconfig_set_flag(&context, *key)?;
        } else {
            fsconfig_set_string(&context, *key, *value)?;
        }
    }
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::from_bits_retain(attributes as u32);
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}
