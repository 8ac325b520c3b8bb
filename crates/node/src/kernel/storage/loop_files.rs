//! File systems in files: copied from a template of the same size, which is created once, and mounted through a loop
//! device that is freed with the mount.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use parking_lot::Mutex;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags};

use crate::kernel::sys;

/// Attempts to get a free loop device: another process may take it between the query and the use.
const ATTEMPTS: usize = 64;

/// Empty file systems, one for each size requested so far. A copy takes a few hundred kilobytes on disk, and a fraction
/// of the time of mkfs.
pub(super) struct Templates {
    folder: PathBuf,
    program: PathBuf,
    making: Mutex<()>,
}

impl Templates {
    /// `None` where file systems cannot be created or mounted.
    pub(super) fn new(folder: &Path) -> Option<Self> {
        let program = ["/usr/sbin", "/sbin", "/usr/bin", "/usr/local/sbin"]
            .iter()
            .map(|place| Path::new(place).join("mkfs.ext4"))
            .find(|path| path.exists())?;
        Path::new("/dev/loop-control").exists().then_some(())?;
        Some(Self { folder: folder.to_owned(), program, making: Mutex::new(()) })
    }

    /// Creates a file system of `bytes` in a new file.
    pub(super) fn make(&self, bytes: u64, image: &Path) -> io::Result<()> {
        let template = self.folder.join(format!("{bytes}.ext4"));
        {
            let _one_at_a_time = self.making.lock();
            if !template.exists() {
                self.make_template(bytes, &template)?;
            }
        }
        let staging = image.with_extension("making");
        copy_sparse(&template, &staging, bytes)?;
        fs::rename(staging, image)
    }

    fn make_template(&self, bytes: u64, template: &Path) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let staging = template.with_extension("making");
        let file = fs::OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&staging)?;
        file.set_len(bytes)?;
        let output = Command::new(&self.program)
            .args(["-q", "-F", "-m", "0", "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard"])
            .arg(&staging)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .output()?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(io::Error::other(format!("mkfs.ext4 failed: {text}")));
        }
        fs::rename(staging, template)
    }
}

/// Copies a sparse file without its holes.
fn copy_sparse(from: &Path, to: &Path, bytes: u64) -> io::Result<()> {
    let source = fs::File::open(from)?;
    let target = fs::OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(to)?;
    target.set_len(bytes)?;
    let mut buffer = vec![0; 256 * 1024];
    let mut at = 0;
    while let Ok(start) = rustix::fs::seek(&source, rustix::fs::SeekFrom::Data(at)) {
        let end = rustix::fs::seek(&source, rustix::fs::SeekFrom::Hole(start))?;
        let mut position = start;
        while position < end {
            let most = usize::try_from(end - position).unwrap_or(buffer.len()).min(buffer.len());
            let read = source.read_at(&mut buffer[..most], position)?;
            if read == 0 {
                break;
            }
            target.write_all_at(&buffer[..read], position)?;
            position += read as u64;
        }
        at = end;
    }
    Ok(())
}

/// Mounts the file system in `image` at a folder.
pub(super) fn mount(image: &Path, folder: &Path) -> io::Result<()> {
    // Two loop devices over one file would be two inconsistent file systems. A mount of the file that is still being
    // taken down, or that a sandbox still has, is joined instead: one device is one file system.
    let (device, held) = match attached(image)? {
        Some(found) => found,
        None => attach(&fs::OpenOptions::new().read(true).write(true).open(image)?)?,
    };
    let context = rustix::mount::fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_set_string(&context, "source", device.as_str())?;
    rustix::mount::fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let mount = rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    // The loop device is freed with its last user: from here on the mount uses it.
    drop(held);
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(rustix::mount::move_mount(&mount, "", rustix::fs::CWD, folder, flags)?)
}

/// The loop device that is already attached to a file, opened so that it stays attached.
fn attached(image: &Path) -> io::Result<Option<(String, fs::File)>> {
    let image = image.canonicalize()?;
    for entry in fs::read_dir("/sys/block")?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        // The kernel appends a word to the name of a deleted backing file, so it does not match a new file of the same
        // name.
        let behind = || fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
        if !name.starts_with("loop") || Path::new(behind().trim_end()) != image {
            continue;
        }
        let path = format!("/dev/{name}");
        let Ok(device) = fs::OpenOptions::new().read(true).write(true).open(&path) else { continue };
        // The device may have been freed and attached to another file before it was opened.
        if Path::new(behind().trim_end()) == image {
            return Ok(Some((path, device)));
        }
    }
    Ok(None)
}

/// Attaches a loop device to a file; it is freed with its last user. Returns its path and its first user.
fn attach(backing: &fs::File) -> io::Result<(String, fs::File)> {
    let control = fs::OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
    for _ in 0..ATTEMPTS {
        let path = format!("/dev/loop{}", sys::free_loop_device(control.as_fd())?);
        let device = fs::OpenOptions::new().read(true).write(true).open(&path)?;
        match sys::configure_loop_device(device.as_fd(), backing.as_fd()) {
            Ok(()) => return Ok((path, device)),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::from_raw_os_error(libc::EBUSY))
}
