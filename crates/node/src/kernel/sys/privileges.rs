//! Ids, capabilities, seccomp and Landlock of the calling process: changed step by step while it enters a sandbox.

use std::io;

use super::{check, prctl};

/// Sets the effective, permitted and inheritable capabilities of this process to `mask`.
pub(crate) fn set_capabilities(mask: u64) -> io::Result<()> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Data {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    let header = Header { version: 0x2008_0522, pid: 0 };
    let half = |bits: u32| Data { effective: bits, permitted: bits, inheritable: bits };
    let data = [half(mask as u32), half((mask >> 32) as u32)];
    // SAFETY: version 3 of the interface takes a header and exactly two data elements.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) }).map(drop)
}

/// Drops a capability from the bounding set. `EINVAL` means that the kernel does not know it.
pub(crate) fn drop_bounding(capability: u32) -> io::Result<()> {
    prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(capability), 0).map(drop)
}

pub(crate) fn raise_ambient(capability: u32) -> io::Result<()> {
    prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE as libc::c_ulong, libc::c_ulong::from(capability)).map(drop)
}

pub(crate) fn clear_ambient() -> io::Result<()> {
    prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong, 0).map(drop)
}

pub(crate) fn set_no_new_privileges() -> io::Result<()> {
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0).map(drop)
}

/// Keeps permitted capabilities over a change of user.
pub(crate) fn keep_capabilities() -> io::Result<()> {
    prctl(libc::PR_SET_KEEPCAPS, 1, 0).map(drop)
}

pub(crate) fn set_groups(groups: &[u32]) -> io::Result<()> {
    // SAFETY: pointer and length describe the same slice.
    check(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) }).map(drop)
}

pub(crate) fn set_gid(gid: u32) -> io::Result<()> {
    // SAFETY: integers only; the raw call changes this (only) thread.
    check(unsafe { libc::syscall(libc::SYS_setresgid, gid, gid, gid) }).map(drop)
}

pub(crate) fn set_uid(uid: u32) -> io::Result<()> {
    // SAFETY: integers only; the raw call changes this (only) thread.
    check(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) }).map(drop)
}

/// Installs a seccomp program for this process and its descendants.
pub(crate) fn install_seccomp(program: &[libc::sock_filter]) -> io::Result<()> {
    let description = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: the kernel only reads `len` instructions behind the pointer during the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER as libc::c_long,
            0 as libc::c_long,
            &raw const description,
        )
    })
    .map(drop)
}

/// Securebit that keeps capabilities over changes of effective and file-system ids.
const KEEP_OVER_ID_CHANGES: libc::c_ulong = 1 << 2; // SECBIT_NO_SETUID_FIXUP

/// "Unchanged", for calls that set several ids.
const SAME_ID: u32 = u32::MAX;

/// Changes this task's effective uid, and keeps its capabilities: a user namespace that it creates then belongs to
/// `uid`, and the kernel counts everything in it (inotify instances, timers, namespaces, …) for `uid`. Only for a task
/// that exits soon; it may share its memory with a parent that stays dumpable.
pub(crate) fn own_new_namespaces_as(uid: u32) -> io::Result<()> {
    prctl(libc::PR_SET_SECUREBITS, KEEP_OVER_ID_CHANGES, 0)?;
    // SAFETY: integers only; the raw call changes this task alone.
    check(unsafe { libc::syscall(libc::SYS_setresuid, SAME_ID, uid, SAME_ID) })?;
    super::set_dumpable(true)
}

/// Runs `work` with other file-system ids: files that it creates belong to them. Capabilities are kept, and everything
/// that the kernel resets on such a change is restored.
pub(crate) fn with_file_ids<T>(uid: u32, gid: u32, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let securebits = prctl(libc::PR_GET_SECUREBITS, 0, 0)?;
    let dumpable = prctl(libc::PR_GET_DUMPABLE, 0, 0)?;
    let mut death_signal: libc::c_int = 0;
    prctl(libc::PR_GET_PDEATHSIG, (&raw mut death_signal) as libc::c_ulong, 0)?;
    prctl(libc::PR_SET_SECUREBITS, KEEP_OVER_ID_CHANGES, 0)?;
    let result = set_file_ids(uid, gid).and_then(|()| work());
    let (own_uid, own_gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    set_file_ids(own_uid, own_gid)?;
    prctl(libc::PR_SET_SECUREBITS, securebits as libc::c_ulong, 0)?;
    super::set_dumpable(dumpable == 1)?;
    super::set_parent_death_signal(death_signal)?;
    result
}

fn set_file_ids(uid: u32, gid: u32) -> io::Result<()> {
    for (call, id) in [(libc::SYS_setfsgid, gid), (libc::SYS_setfsuid, uid)] {
        // SAFETY: integers only. The calls return the previous id whether or not they succeed.
        let now = unsafe {
            libc::syscall(call, id);
            libc::syscall(call, SAME_ID)
        };
        if now as u32 != id {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
    }
    Ok(())
}

/// Version of Landlock in this kernel; an error where it is missing or disabled.
pub(crate) fn landlock_version() -> io::Result<libc::c_long> {
    const VERSION: libc::c_long = 1;
    // SAFETY: with this flag the kernel takes neither a structure nor a size.
    check(unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, 0_usize, 0_usize, VERSION) })
}
