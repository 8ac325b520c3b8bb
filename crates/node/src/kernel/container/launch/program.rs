//! The program that a process of a sandbox executes: its arguments, environment and lookup in `PATH`.

use std::ffi::CString;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::kernel::container::user::FoundUser;
use crate::kernel::sys;
use crate::runtime::{Capability, User};

/// The program to run, and its user.
pub(crate) struct Program<'a> {
    pub(crate) command: &'a [String],
    pub(crate) env: &'a [(String, String)],
    pub(crate) working_dir: &'a str,
    pub(crate) user: &'a User,
    pub(crate) capabilities: &'a [Capability],
    pub(crate) hostname: &'a str,
    /// A port to open before exec, passed as a listening socket.
    pub(crate) open_port: Option<u16>,
    /// Create the working folder if it is missing: only for a container's first process.
    pub(crate) make_working_dir: bool,
}

/// The program's environment, and the `PATH` to look it up in.
pub(super) fn environment(program: &Program<'_>, found: &FoundUser, has_port: bool) -> (Vec<CString>, String) {
    let mut pairs = with_defaults(program.env, &found.home, program.hostname);
    if has_port {
        pairs.retain(|(key, _)| !key.starts_with("LISTEN_"));
        pairs.extend([
            ("LISTEN_FDS".to_owned(), "1".to_owned()),
            ("LISTEN_PID".to_owned(), std::process::id().to_string()),
        ]);
    }
    let path = pairs.iter().rev().find(|(key, _)| key == "PATH").map(|(_, value)| value.clone()).unwrap_or_default();
    // An entry with a zero byte cannot exist in an environment, so it is left out.
    (pairs.iter().filter_map(|(key, value)| CString::new(format!("{key}={value}")).ok()).collect(), path)
}

/// Adds the variables that programs rely on, where `env` does not set them.
pub(crate) fn with_defaults(env: &[(String, String)], home: &str, hostname: &str) -> Vec<(String, String)> {
    let is_missing = |key: &str| env.iter().all(|(name, _)| name != key);
    let defaults = [("PATH", DEFAULT_PATH), ("HOME", home), ("HOSTNAME", hostname)];
    let missing = defaults.into_iter().filter(|(key, _)| is_missing(key));
    missing.map(|(key, value)| (key.to_owned(), value.to_owned())).chain(env.iter().cloned()).collect()
}

/// A listening socket on a port of all addresses of the Pod.
pub(super) fn open_port(port: u16) -> io::Result<OwnedFd> {
    let listener = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::sockopt::set_socket_reuseaddr(&listener, true)?;
    rustix::net::bind(&listener, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port))?;
    rustix::net::listen(&listener, BACKLOG)?;
    Ok(listener)
}

/// Maximum number of connections that wait until the program accepts them.
const BACKLOG: i32 = 1_024;

/// The default `PATH`.
pub(crate) const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Executes the program, looked up in `path` if its name has no slash. Returns only on failure.
pub(super) fn exec_by_path(command: &[String], environment: &[CString], path: &str) -> io::Error {
    let Some(program) = command.first() else { return io::Error::from_raw_os_error(libc::EINVAL) };
    let Ok(arguments) = command.iter().map(|argument| CString::new(argument.as_str())).collect::<Result<Vec<_>, _>>()
    else {
        return io::Error::from_raw_os_error(libc::EINVAL);
    };
    let try_exec = |candidate: &str| match CString::new(candidate) {
        Ok(candidate) => sys::exec(&candidate, &arguments, environment),
        Err(_) => io::Error::from_raw_os_error(libc::EINVAL),
    };
    if program.contains('/') {
        return try_exec(program);
    }
    let mut last = io::Error::from_raw_os_error(libc::ENOENT);
    for folder in path.split(':').filter(|folder| !folder.is_empty()) {
        let error = try_exec(&format!("{folder}/{program}"));
        if !matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) {
            last = error;
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_has_defaults_and_describes_an_open_port() {
        let (user, env) = (User::default(), [("HOME", "/mine"), ("LISTEN_FDS", "9"), ("LISTEN_FDNAMES", "x")]);
        let env = env.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let program = Program {
            command: &[],
            env: &env,
            working_dir: "/",
            user: &user,
            capabilities: &[],
            hostname: "box",
            open_port: None,
            make_working_dir: false,
        };
        let found = FoundUser { uid: 0, gid: 0, groups: Vec::new(), home: "/root".to_owned() };
        let listed = |has_port| {
            let (variables, path) = environment(&program, &found, has_port);
            assert_eq!(path, DEFAULT_PATH);
            let text = variables.iter().map(|variable| variable.to_str().unwrap()).collect::<Vec<_>>();
            text.into_iter().skip(1).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(listed(false), ["HOSTNAME=box", "HOME=/mine", "LISTEN_FDS=9", "LISTEN_FDNAMES=x"]);
        let own = format!("LISTEN_PID={}", std::process::id());
        assert_eq!(listed(true), ["HOSTNAME=box", "HOME=/mine", "LISTEN_FDS=1", &own]);
    }
}
