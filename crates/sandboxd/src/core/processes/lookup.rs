//! Finds a program as a shell does, with the environment and working directory of the command, not of the daemon.

use std::ffi::{CString, OsStr};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{Access, AtFlags, FileType, accessat, statat};
use rustix::io::Errno;

/// Search path if the command's environment has no PATH.
const DEFAULT_PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The file to execute for `name`: `name` itself if it contains a slash, else the first executable match in `path`.
pub(crate) fn find_program(name: &OsStr, path: Option<&OsStr>, cwd: BorrowedFd<'_>) -> Result<CString, Errno> {
    let name = name.as_bytes();
    if name.is_empty() {
        return Err(Errno::NOENT);
    }
    if name.contains(&b'/') {
        let program = CString::new(name).map_err(|_| Errno::INVAL)?;
        check(&program, cwd)?;
        return Ok(program);
    }
    let mut denied = false;
    for directory in path.map_or(DEFAULT_PATH, OsStr::as_bytes).split(|byte| *byte == b':') {
        let directory = if directory.is_empty() { b".".as_slice() } else { directory };
        let candidate = CString::new([directory, b"/", name].concat()).map_err(|_| Errno::INVAL)?;
        match check(&candidate, cwd) {
            Ok(()) => return Ok(candidate),
            Err(Errno::ACCESS) => denied = true,
            Err(_) => {}
        }
    }
    Err(if denied { Errno::ACCESS } else { Errno::NOENT })
}

fn check(program: &CString, cwd: BorrowedFd<'_>) -> Result<(), Errno> {
    let stat = statat(cwd, program, AtFlags::empty())?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Errno::ACCESS);
    }
    accessat(cwd, program, Access::EXEC_OK, AtFlags::empty())
}
