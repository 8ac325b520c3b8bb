//! Ways to make a set-user-id file: one per system call that gives a file its mode.

use std::ffi::CString;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;

use crate::raw;

/// Set-user-id, readable and executable by all.
const MODE: libc::c_long = 0o4755;

/// Makes a file in the folder with this system call, and checks that it is set-user-id.
pub(crate) fn make(call: &str, folder: &str) -> io::Result<()> {
    let path = format!("{folder}/{call}");
    let text = CString::new(path.clone())?;
    let (name, here) = (text.as_ptr() as libc::c_long, libc::c_long::from(libc::AT_FDCWD));
    let create = libc::c_long::from(libc::O_CREAT | libc::O_WRONLY);
    let existing = || std::fs::File::create(&path);
    match call {
        "fchmod" => raw(libc::SYS_fchmod, [existing()?.as_raw_fd().into(), MODE, 0, 0, 0])?,
        "fchmodat" => {
            existing()?;
            raw(libc::SYS_fchmodat, [here, name, MODE, 0, 0])?;
        }
        "fchmodat2" => {
            existing()?;
            raw(452, [here, name, MODE, 0, 0])?;
        }
        "openat" => raw(libc::SYS_openat, [here, name, create, MODE, 0])?,
        "openat2" => {
            let how = [create as u64, MODE as u64, 0];
            raw(libc::SYS_openat2, [here, name, how.as_ptr() as libc::c_long, size_of_val(&how) as libc::c_long, 0])?;
        }
        "mknodat" => raw(libc::SYS_mknodat, [here, name, libc::c_long::from(libc::S_IFREG) | MODE, 0, 0])?,
        "unnamed" => {
            let folder = CString::new(folder)?;
            let flags = libc::c_long::from(libc::O_TMPFILE | libc::O_WRONLY);
            // SAFETY: a path that lives until the call returns, and integers.
            let file = unsafe { libc::syscall(libc::SYS_openat, here, folder.as_ptr(), flags, MODE) };
            crate::check(file)?;
            let source = CString::new(format!("/proc/self/fd/{file}"))?;
            let follow = libc::c_long::from(libc::AT_SYMLINK_FOLLOW);
            raw(libc::SYS_linkat, [here, source.as_ptr() as libc::c_long, here, name, follow])?;
        }
        #[cfg(target_arch = "x86_64")]
        "chmod" => {
            existing()?;
            raw(libc::SYS_chmod, [name, MODE, 0, 0, 0])?;
        }
        #[cfg(target_arch = "x86_64")]
        "open" => raw(libc::SYS_open, [name, create, MODE, 0, 0])?,
        #[cfg(target_arch = "x86_64")]
        "creat" => raw(libc::SYS_creat, [name, MODE, 0, 0, 0])?,
        #[cfg(target_arch = "x86_64")]
        "mknod" => raw(libc::SYS_mknod, [name, libc::c_long::from(libc::S_IFREG) | MODE, 0, 0, 0])?,
        _ => return Err(io::Error::from_raw_os_error(libc::ENOTSUP)),
    }
    match std::fs::metadata(&path)?.permissions().mode() & 0o4000 {
        0 => Err(io::Error::from_raw_os_error(libc::EPERM)),
        _ => Ok(()),
    }
}
