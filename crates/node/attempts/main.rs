//! Attempts to leave a sandbox, one per name: each prints `ok` when it succeeded and `errno N` when the kernel refused.
//! Run inside sandboxes by the escape suite, with every wall standing and with some taken away.

#![expect(unsafe_code, reason = "each attempt is one raw system call")]

mod set_id;

use std::fs::OpenOptions;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};

fn check(answer: libc::c_long) -> io::Result<()> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn raw(number: libc::c_long, arguments: [libc::c_long; 5]) -> io::Result<()> {
    let [a, b, c, d, e] = arguments;
    // SAFETY: attempts pass integers and static strings only; a wrong pointer is answered with EFAULT.
    check(unsafe { libc::syscall(number, a, b, c, d, e) })
}

fn attempt(name: &str, argument: &str) -> io::Result<()> {
    let address = |text: &std::ffi::CStr| text.as_ptr() as libc::c_long;
    match name {
        "mount" => raw(libc::SYS_mount, [address(c"none"), address(c"/tmp"), address(c"tmpfs"), 0, 0]),
        "user-namespace" => raw(libc::SYS_unshare, [libc::CLONE_NEWUSER.into(), 0, 0, 0, 0]),
        "keyring" => raw(libc::SYS_keyctl, [0, -3, 1, 0, 0]),
        "userfaultfd" => raw(libc::SYS_userfaultfd, [1, 0, 0, 0, 0]),
        "io-uring" => {
            let mut parameters = [0u8; 120];
            raw(libc::SYS_io_uring_setup, [1, parameters.as_mut_ptr() as libc::c_long, 0, 0, 0])
        }
        "clone3" => raw(libc::SYS_clone3, [0, 0, 0, 0, 0]),
        "raw-socket" => {
            raw(libc::SYS_socket, [libc::AF_INET.into(), libc::SOCK_RAW.into(), libc::IPPROTO_ICMP.into(), 0, 0])
        }
        "packet-socket" => raw(libc::SYS_socket, [libc::AF_PACKET.into(), libc::SOCK_RAW.into(), 0, 0, 0]),
        "device" => {
            let path = c"/tmp/device";
            let device = libc::makedev(1, 1) as libc::c_long;
            raw(libc::SYS_mknodat, [libc::AT_FDCWD.into(), address(path), (libc::S_IFCHR | 0o600).into(), device, 0])
        }
        "signal" => raw(libc::SYS_kill, [argument.parse().map_err(io::Error::other)?, 0, 0, 0, 0]),
        "trace" => {
            raw(libc::SYS_ptrace, [libc::PTRACE_SEIZE.into(), argument.parse().map_err(io::Error::other)?, 0, 0, 0])
        }
        "read" => OpenOptions::new().read(true).open(argument).map(drop),
        "write" => OpenOptions::new().write(true).open(argument).map(drop),
        "create" => OpenOptions::new().write(true).create(true).truncate(true).open(argument).map(drop),
        "look" => std::fs::symlink_metadata(argument).map(drop),
        "connect" => std::net::TcpStream::connect_timeout(
            &argument.parse().map_err(io::Error::other)?,
            std::time::Duration::from_secs(1),
        )
        .map(drop),
        "socket-file" => UnixStream::connect(argument).map(drop),
        "abstract-socket" => UnixStream::connect_addr(&SocketAddr::from_abstract_name(argument)?).map(drop),
        "effective-root" => {
            // SAFETY: no arguments.
            let user = unsafe { libc::geteuid() };
            if user == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EPERM)) }
        }
        "pidfd-getfd" => {
            // SAFETY: integers only.
            let own = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) };
            check(own)?;
            raw(libc::SYS_pidfd_getfd, [own, 2, 0, 0, 0])
        }
        "control-groups" => raw(libc::SYS_mount, [address(c"none"), address(c"/tmp"), address(c"cgroup2"), 0, 0]),
        "asynchronous-io" => {
            let mut context = 0_u64;
            raw(libc::SYS_io_setup, [1, (&raw mut context) as libc::c_long, 0, 0, 0])
        }
        "inotify" => make_inotify(),
        "timer" => make_timer(),
        "terminal" => open_terminal(),
        "hold-inotify" => hold(make_inotify),
        "hold-timers" => hold(make_timer),
        "hold-terminals" => hold(open_terminal),
        "fill" => fill(argument),
        "fill-inodes" => fill_inodes(argument),
        "hostname" => raw(libc::SYS_sethostname, [address(c"mine"), 4, 0, 0, 0]),
        "chroot" => raw(libc::SYS_chroot, [address(c"/tmp"), 0, 0, 0, 0]),
        _ => match name.strip_prefix("set-id-") {
            Some(call) => set_id::make(call, argument),
            None => Err(io::Error::from_raw_os_error(libc::ENOTSUP)),
        },
    }
}

/// An inotify instance, which stays until the process ends.
fn make_inotify() -> io::Result<()> {
    raw(libc::SYS_inotify_init1, [0; 5])
}

/// A timer, which stays until the process ends.
fn make_timer() -> io::Result<()> {
    let mut timer = 0_i32;
    raw(libc::SYS_timer_create, [libc::CLOCK_MONOTONIC.into(), 0, (&raw mut timer) as libc::c_long, 0, 0])
}

/// A pseudo-terminal, which stays until the process ends.
fn open_terminal() -> io::Result<()> {
    OpenOptions::new().read(true).write(true).open("/dev/ptmx").map(std::mem::forget)
}

/// Takes as many as the kernel gives, prints their number and the error that ended it, and holds them until killed.
fn hold(take: fn() -> io::Result<()>) -> io::Result<()> {
    let mut held = 0_u32;
    let error = loop {
        match take() {
            Ok(()) => held += 1,
            Err(error) => break error,
        }
    };
    eprintln!("held {held} errno {}", error.raw_os_error().unwrap_or(0));
    loop {
        std::thread::sleep(std::time::Duration::from_secs(1_000));
    }
}

/// Bytes and files that a folder with a limit must not take, and one without takes easily.
const MANY_BYTES: usize = 64 << 20;
const MANY_FILES: usize = 20_000;

fn fill(folder: &str) -> io::Result<()> {
    use std::io::Write;
    let mut file = std::fs::File::create(format!("{folder}/fill"))?;
    let block = vec![1; 1 << 20];
    (0..MANY_BYTES / block.len()).try_for_each(|_| file.write_all(&block))?;
    file.sync_all()
}

fn fill_inodes(folder: &str) -> io::Result<()> {
    // What filled the disk makes room for names.
    let _ = std::fs::remove_file(format!("{folder}/fill"));
    let folder = format!("{folder}/many");
    std::fs::create_dir_all(&folder)?;
    (0..MANY_FILES).try_for_each(|number| std::fs::File::create(format!("{folder}/{number}")).map(drop))
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (name, argument) = (arguments.next().unwrap_or_default(), arguments.next().unwrap_or_default());
    match attempt(&name, &argument) {
        Ok(()) => eprintln!("ok"),
        Err(error) => eprintln!("errno {}", error.raw_os_error().unwrap_or(0)),
    }
}
