//! Other tools, started the way users start them, with our namespaces and limits as far as the tools support them.

use std::path::Path;
use std::process::{Command, Stdio};

use super::{Outcome, on_threads, row};

/// First host id of the block that peers map; unused on the host.
const FIRST_ID: u32 = 1_000_000_000;

pub(crate) fn measure(rounds: usize) -> Outcome<()> {
    show("bare fork and exec", rounds, |_, _| Command::new("/bin/true"));
    if installed("bwrap") {
        let line = "--unshare-all --ro-bind /usr /usr --symlink usr/lib /lib --symlink usr/lib64 /lib64 --symlink usr/bin /bin --proc /proc --dev /dev --tmpfs /tmp /bin/true";
        show("bwrap (no limits, no seccomp, no network)", rounds, |_, _| {
            let mut command = Command::new("bwrap");
            command.args(line.split(' '));
            command
        });
    }
    if installed("crun") {
        // crun refuses to run in hybrid mode, where the unified hierarchy has only some controllers, so that one is
        // hidden.
        let line =
            "mountpoint -q /sys/fs/cgroup/unified && umount /sys/fs/cgroup/unified; exec \"$0\" peer crun \"$1\"";
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", line]).arg(std::env::current_exe()?).arg(rounds.to_string());
        if !command.status()?.success() {
            println!("| crun | | does not run here | | |");
        }
    }
    if installed("runc") {
        measure_oci("runc", rounds)?;
    }
    if installed("podman") {
        let bundle = bundle()?;
        let root = bundle.path().join("rootfs");
        show("podman with runc (no network)", rounds.min(24), |_, _| {
            let mut command = Command::new("podman");
            command.args(["--cgroup-manager", "cgroupfs", "--runtime", "runc", "run", "--rm", "--network", "none"]);
            command.args(["--pids-limit", "1024", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]);
            command.args(["--uidmap", &format!("0:{FIRST_ID}:65536"), "-v", "/usr:/usr:ro", "--rootfs"]);
            command.arg(&root).arg("/bin/true");
            command
        });
    }
    Ok(())
}

/// Measures an OCI runtime in the mount namespace of this process.
pub(crate) fn measure_oci(name: &str, rounds: usize) -> Outcome<()> {
    let bundle = bundle()?;
    let label = match name {
        "crun" => "crun (no seccomp, no network)",
        _ => "runc (no seccomp, no network)",
    };
    show(label, rounds, |worker, round| {
        let mut command = Command::new(name);
        command.args(["run", "--bundle"]).arg(bundle.path());
        command.arg(format!("bench-{}-{worker}-{round}", std::process::id()));
        command
    });
    Ok(())
}

fn show(name: &str, rounds: usize, command: impl Fn(usize, usize) -> Command + Sync) {
    for concurrency in [1, 8] {
        let start = |worker, round| {
            let mut command = command(worker, round);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command.status().map(|status| status.success())
        };
        match on_threads(concurrency, rounds, start) {
            Some((mut list, rate)) => row(name, concurrency, &mut list, rate),
            None => println!("| {name} | {concurrency} | does not run here | | |"),
        }
    }
}

fn installed(program: &str) -> bool {
    let found =
        ["/usr/bin", "/usr/sbin", "/usr/local/bin"].iter().any(|folder| Path::new(folder).join(program).exists());
    if !found {
        println!("(skipped: {program} is not installed)");
    }
    found
}

/// A minimal OCI bundle with the same isolation as our sandboxes.
fn bundle() -> std::io::Result<tempfile::TempDir> {
    let folder = super::folder()?;
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let root = folder.path().join("rootfs");
    for name in ["", "usr", "proc", "dev", "sys", "tmp", "etc", "run"] {
        std::fs::create_dir_all(root.join(name))?;
        std::os::unix::fs::lchown(root.join(name), Some(FIRST_ID), Some(FIRST_ID))?;
    }
    for (name, to) in [("bin", "usr/bin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")] {
        std::os::unix::fs::symlink(to, root.join(name))?;
    }
    let id_map = serde_json::json!([{ "containerID": 0, "hostID": FIRST_ID, "size": 65_536 }]);
    let spaces: Vec<_> = ["pid", "network", "ipc", "uts", "mount", "cgroup", "user"]
        .iter()
        .map(|kind| serde_json::json!({ "type": kind }))
        .collect();
    let config = serde_json::json!({
        "ociVersion": "1.0.2",
        "process": { "user": { "uid": 0, "gid": 0 }, "args": ["/bin/true"], "cwd": "/", "env": ["PATH=/usr/bin"], "noNewPrivileges": true },
        "root": { "path": "rootfs", "readonly": false },
        "hostname": "bench",
        "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc" },
            { "destination": "/dev", "type": "tmpfs", "source": "tmpfs" },
            { "destination": "/usr", "type": "bind", "source": "/usr", "options": ["rbind", "ro"] },
        ],
        "linux": { "namespaces": spaces, "uidMappings": id_map, "gidMappings": id_map, "resources": { "pids": { "limit": 1024 } } },
    });
    std::fs::write(folder.path().join("config.json"), serde_json::to_vec(&config)?)?;
    Ok(folder)
}
