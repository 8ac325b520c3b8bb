//! Runs tests of this program again as an ordinary user, in a mount namespace whose `/etc/passwd`, `/etc/subuid` and
//! `/etc/subgid` belong to the test.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// Environment variable set for the tests that are run so.
pub(crate) const MARK: &str = "AGENT_SANDBOX_PLAIN_USER";

/// A uid that owns no files.
pub(crate) const USER: u32 = 54_321;

/// The network and programs that the tests see.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum World {
    Host,
    /// The host's, without the programs that an unprivileged node uses.
    Bare,
    /// A network namespace of the test: a host with the address [`OWN_ADDRESS`], and behind its default route a server
    /// that sends a greeting on port 7777. Its users may open /dev/net/tun, which without udev they may not.
    Own,
}

pub(crate) const OWN_ADDRESS: [u8; 4] = [203, 0, 113, 2];
pub(crate) const FAR_ADDRESS: [u8; 4] = [203, 0, 113, 1];

const HIDDEN_PROGRAMS: &str = "for program in pasta newuidmap newgidmap; do
    if [ -e /usr/bin/$program ]; then mount --bind /dev/null /usr/bin/$program; fi
done";

/// The far side is the network namespace of a process that ends with its parent, and is removed with it.
const OWN_WORLD: &str = r#"
mount -t tmpfs none /dev/net
mknod -m 666 /dev/net/tun c 10 200
ip link set lo up
setpriv --pdeathsig KILL unshare --net python3 -c "
import socket, subprocess, time
while subprocess.run(['ip', 'link', 'set', 'far0', 'up'], stderr=subprocess.DEVNULL).returncode: time.sleep(0.01)
subprocess.run(['ip', 'address', 'add', '203.0.113.1/24', 'dev', 'far0'], check=True)
s = socket.create_server(('0.0.0.0', 7777))
while True:
    c, _ = s.accept(); c.sendall(b'hello'); c.close()
" </dev/null >/dev/null 2>&1 &
far=$!
here=$(readlink /proc/self/ns/net)
while [ "$(readlink /proc/$far/ns/net)" = "$here" ]; do sleep 0.01; done
ip link add up0 type veth peer name far0 netns $far
ip address add 203.0.113.2/24 dev up0
ip link set up0 up
ip route add default via 203.0.113.1
export AGENT_SANDBOX_MORE_ADDRESS=$(mktemp -u)
setpriv --pdeathsig KILL sh -c '
while ! [ -e $AGENT_SANDBOX_MORE_ADDRESS ]; do sleep 0.05; done
rm $AGENT_SANDBOX_MORE_ADDRESS
ip address add 198.51.100.9/32 dev up0' </dev/null >/dev/null 2>&1 &
"#;

/// An address that is added to the host when a test creates the file named by this variable.
pub(crate) const MORE_ADDRESS: ([u8; 4], &str) = ([198, 51, 100, 9], "AGENT_SANDBOX_MORE_ADDRESS");

/// The user's subordinate ids.
#[derive(Clone, Copy)]
pub(crate) enum Ids {
    /// No subordinate ids.
    None,
    /// First id and number of subordinate ids, for uids and gids alike.
    From(u32, u32),
}

/// The programs that a test needs besides itself, and the variable with the path of each.
const PROGRAMS: [(&str, &str); 2] = [
    ("NODE_HELPER", env!("CARGO_BIN_EXE_agent-sandbox-node-helper")),
    ("NODE_ATTEMPTS", env!("CARGO_BIN_EXE_escape-attempts")),
];

/// Runs the tests whose names begin with one of the filters, and fails unless at least one ran and all passed.
pub(crate) fn run(ids: Ids, filters: &[&str], world: World) {
    let folder = tempfile::tempdir().unwrap();
    // Cargo's folders may be inaccessible to other users; a copy of the programs is not.
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    // Files that the tests leave belong to ids that the user cannot use; they are removed with this folder.
    let temporary = folder.path().join("t");
    std::fs::create_dir(&temporary).unwrap();
    std::os::unix::fs::chown(&temporary, Some(USER), Some(USER)).unwrap();
    let tests = folder.path().join("tests");
    std::fs::copy(std::env::current_exe().unwrap(), &tests).unwrap();
    let script = write_lists(folder.path(), ids);
    let mut command = Command::new("unshare");
    let script = match world {
        World::Host => script,
        World::Bare => format!("{HIDDEN_PROGRAMS}\n{script}"),
        World::Own => {
            command.arg("--net");
            format!("{OWN_WORLD}\n{script}")
        }
    };
    command.args(["--mount", "--propagation", "private", "sh", "-eu", "-c", &script, "sh"]);
    command
        .arg(&tests)
        .args(filters)
        .args(["--test-threads", "2"])
        .env(MARK, "1")
        .env("TMPDIR", &temporary)
        .current_dir("/");
    for (variable, program) in PROGRAMS {
        let copy = folder.path().join(variable);
        std::fs::copy(program, &copy).unwrap();
        command.env(variable, copy);
    }
    // If cargo has built it; tests that do not need it run without.
    let own = std::env::current_exe().unwrap();
    let built = own.parent().and_then(Path::parent).unwrap().join("examples/sandboxd-for-tests");
    if std::fs::copy(&built, folder.path().join("daemon")).is_ok() {
        command.env("NODE_SANDBOXD", folder.path().join("daemon"));
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("test result: ok") && !text.contains(" 0 passed"), "{text}");
}

/// Writes the lists; returns the script that mounts them over the host's and changes to the user.
fn write_lists(folder: &Path, ids: Ids) -> String {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap();
    let given = match ids {
        Ids::None => String::new(),
        Ids::From(first, count) => format!("plain-user:{first}:{count}\n"),
    };
    let lists = [
        ("passwd", format!("{passwd}plain-user:x:{USER}:{USER}::/nonexistent:/bin/sh\n")),
        ("subuid", given.clone()),
        ("subgid", given),
    ];
    let mut script = String::new();
    for (name, text) in lists {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        if Path::new("/etc").join(name).exists() {
            writeln!(script, "mount --bind {} /etc/{name}", path.display()).unwrap();
        }
    }
    script + &format!("exec setpriv --reuid {USER} --regid {USER} --clear-groups \"$@\"\n")
}

/// Whether this is such a run; otherwise prints that the test is skipped.
pub(crate) fn is_plain_user() -> bool {
    let plain = std::env::var_os(MARK).is_some();
    if !plain {
        eprintln!("skipped: run by another test, as an ordinary user");
    }
    plain
}

/// Whether subordinate ids can be used here. Where CI is set, their absence is a failure.
pub(crate) fn has_uidmap() -> bool {
    let found = Path::new("/usr/bin/newuidmap").exists() && Path::new("/etc/subuid").exists();
    assert!(found || std::env::var_os("CI").is_none(), "newuidmap (package uidmap) must be installed where CI is set");
    if !found {
        eprintln!("skipped: newuidmap (package uidmap) is not installed");
    }
    found
}
