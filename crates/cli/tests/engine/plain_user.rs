//! Runs the program as an ordinary user, whose `/etc/passwd`, programs and network belong to the test.

use crate::{
    fixture::{Mode, PROGRAM, is_root, write_program},
    world::World,
};
use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// A uid that owns no files.
pub(crate) const USER: u32 = 54_323;

/// Programs that an ordinary user's node uses when they are installed.
const HIDDEN_PROGRAMS: &str = "for program in pasta newuidmap newgidmap; do
    if [ -e /usr/bin/$program ]; then mount --bind /dev/null /usr/bin/$program; fi
done
";

/// Without udev, users may not open the device.
const TUN: &str = "mount -t tmpfs none /dev/net
mknod -m 666 /dev/net/tun c 10 200
";

/// Whether tests can run so; prints that they are skipped when they cannot.
pub(crate) fn is_possible() -> bool {
    if !is_root() {
        eprintln!("SKIPPED: only root can become another user");
        return false;
    }
    let mut probe = as_user();
    probe.args(["unshare", "--user", "--map-root-user", "true"]).stderr(Stdio::null());
    if probe.status().is_ok_and(|status| status.success()) {
        return true;
    }
    assert!(std::env::var_os("CI").is_none(), "ordinary users must be able to make user namespaces where CI is set");
    eprintln!("SKIPPED: ordinary users cannot make user namespaces here");
    false
}

fn as_user() -> Command {
    let mut command = Command::new("setpriv");
    command.args(become_user());
    command
}

fn become_user() -> [String; 3] {
    [format!("--reuid={USER}"), format!("--regid={USER}"), "--clear-groups".to_owned()]
}

/// Writes a script into the folder that runs the program as the mode says, in the world's network. Cargo's folders may
/// be closed to other users, so the program is mounted into the folder.
pub(crate) fn launcher(folder: &Path, mode: Mode, world: Option<&World>) -> PathBuf {
    let program = folder.join("program");
    let passwd = folder.join("passwd");
    fs::write(&program, "").unwrap();
    let known = fs::read_to_string("/etc/passwd").unwrap();
    let home = folder.join("home");
    fs::create_dir(&home).unwrap();
    fs::write(&passwd, format!("{known}plain-user:x:{USER}:{USER}::{}:/bin/sh\n", home.display())).unwrap();
    let mut setup = format!("mount --bind {PROGRAM} {}\n", program.display());
    let mut change = String::new();
    if mode != Mode::Caller {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
        for path in [folder, &home] {
            chown(path, Some(USER), Some(USER)).unwrap();
        }
        setup += &format!("mount --bind {} /etc/passwd\n", passwd.display());
        setup += if mode == Mode::PlainUser { HIDDEN_PROGRAMS } else { TUN };
        change = format!("setpriv {} ", become_user().join(" "));
    }
    let mut enter = String::new();
    if let Some(world) = world {
        enter = format!("nsenter --net=/proc/{}/ns/net ", world.pid());
        setup += &format!("mount --bind {} \"$(realpath /etc/resolv.conf)\"\n", world.resolv_conf().display());
    }
    let script = format!(
        "#!/bin/sh\nexec {enter}unshare --mount --propagation private sh -eu -c '{setup}exec {change}{} \"$@\"' \
         agent-sandbox \"$@\"\n",
        program.display()
    );
    let launcher = folder.join("launcher");
    write_program(&launcher, &script);
    launcher
}
