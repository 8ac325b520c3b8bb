//! Simulates a kernel (or gVisor) without `openat2`: a seccomp filter that returns ENOSYS.

#![expect(unsafe_code, reason = "seccomp is set with prctl")]

use std::io;

/// Installs the filter in the calling process. Makes system calls only, so that it can run between fork and exec.
pub(crate) fn install() -> io::Result<()> {
    const LOAD_NUMBER: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let refuse = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
    let mut filter = [
        libc::sock_filter { code: LOAD_NUMBER, jt: 0, jf: 0, k: 0 },
        libc::sock_filter { code: JUMP_EQUAL, jt: 0, jf: 1, k: libc::SYS_openat2 as u32 },
        libc::sock_filter { code: RETURN, jt: 0, jf: 0, k: refuse },
        libc::sock_filter { code: RETURN, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW },
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program and its filter live through the calls, which copy them.
    let installed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
    };
    if installed { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The filter works as the tests assume.
#[test]
fn openat2_is_really_gone() {
    // In a thread: the filter applies to the thread that installs it.
    let response = std::thread::spawn(|| {
        install().expect("installed");
        rustix::fs::openat2(
            rustix::fs::CWD,
            "/",
            rustix::fs::OFlags::PATH,
            rustix::fs::Mode::empty(),
            rustix::fs::ResolveFlags::empty(),
        )
        .map(drop)
    });
    assert_eq!(response.join().expect("a thread"), Err(rustix::io::Errno::NOSYS));
}
