//! A network of a test's own: a host with one interface, and behind its default route a resolver and a package index.

use crate::fixture::is_root;
use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

/// The address of the package index; it is public, as rules of `--network public` see it.
pub(crate) const FAR: &str = "203.0.113.1";
/// The resolver's address, which is private, as those of routers at home are.
pub(crate) const RESOLVER: &str = "10.77.0.53";

const SERVERS: &str = include_str!("world/servers.py");

/// Runs in a network namespace of its own until its standard input ends. The far side is the namespace of a process that
/// ends with this one.
const NEAR: &str = r#"
ip link set lo up
setpriv --pdeathsig KILL unshare --net python3 "$@" </dev/null &
far=$!
here=$(readlink /proc/self/ns/net)
while [ "$(readlink /proc/$far/ns/net)" = "$here" ]; do sleep 0.01; done
ip link add up0 type veth peer name far0 netns $far
ip address add 203.0.113.2/24 dev up0
ip link set up0 up
ip route add default via 203.0.113.1
read -r _ || true
"#;

pub(crate) struct World {
    near: Child,
    folder: tempfile::TempDir,
}

impl World {
    /// The index also has the wheels of the folder. `None`, with a message, where the tests do not run as root.
    pub(crate) fn open(wheels: &Path) -> Option<Self> {
        if !is_root() {
            eprintln!("SKIPPED: only root can make a network for the test");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let servers = folder.path().join("servers.py");
        fs::write(&servers, SERVERS).unwrap();
        fs::write(folder.path().join("resolv.conf"), format!("nameserver {RESOLVER}\n")).unwrap();
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-eu", "-c", NEAR, "sh"]).arg(servers).args([FAR, RESOLVER]).arg(wheels);
        let mut near = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(near.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let world = Self { near, folder };
        assert_eq!(line, "served\n");
        Some(world)
    }

    /// A process in the host's network namespace.
    pub(crate) fn pid(&self) -> u32 {
        self.near.id()
    }

    pub(crate) fn resolv_conf(&self) -> PathBuf {
        self.folder.path().join("resolv.conf")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Ends with its standard input.
        drop(self.near.stdin.take());
        let _ = self.near.wait();
    }
}
