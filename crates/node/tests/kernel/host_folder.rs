//! Volumes: folders of the host that are read and written as their owner, and mounts inside volumes.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use agent_sandbox_node::runtime::{Mount, MountSource, PodRuntime, PodSandboxSpec, VolumeKey, VolumeRequest};

use crate::escape::attempts_program;
use crate::fixture::{Node, pod, runs_as_root};

/// A user of the host that is neither root nor in any sandbox.
const OWNER: u32 = 54_322;

/// Lists the folder, reads what only its owner may read, changes it and creates files.
const USE: &str = "set -e
cat /shared/secret
echo changed >> /shared/secret
mkdir /shared/made
echo new > /shared/made/file
cp /bin/true /shared/program
/shared/program
rm /shared/old";

fn volume(source: MountSource, target: &str, read_only: bool) -> Mount {
    Mount { source, target: target.into(), read_only }
}

/// A folder with a file that only its owner may read, and one to remove.
fn folder_of(owner: u32, below: &Path) -> tempfile::TempDir {
    let folder = tempfile::tempdir_in(below).unwrap();
    for name in ["secret", "old"] {
        let path = folder.path().join(name);
        std::fs::write(&path, "secret\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        chown(path, Some(owner), Some(owner)).unwrap();
    }
    chown(folder.path(), Some(owner), Some(owner)).unwrap();
    folder
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_folder_is_read_and_written_as_its_owner() {
    let node = Node::start().await;
    let own = rustix::process::geteuid().as_raw();
    let owners = if runs_as_root() { vec![0, OWNER] } else { vec![own] };
    let temporary = std::env::temp_dir();
    for (number, (below, owner, user)) in [temporary.as_path(), Path::new("/dev/shm")]
        .into_iter()
        .flat_map(|below| owners.iter().map(move |owner| (below, *owner)))
        .flat_map(|(below, owner)| ["0", "1000", "user"].map(|user| (below, owner, user)))
        .enumerate()
    {
        let case = format!("{} of {owner}, as {user}", below.display());
        let folder = folder_of(owner, below);
        let uid = format!("p{number}");
        node.runtime.create_pod(PodSandboxSpec { writes_host_paths: true, ..pod(&uid) }).await.unwrap();
        let mut spec = node.container(&uid, "c", &["sh", "-c", USE]).await;
        spec.user.user = user.to_owned();
        let source = MountSource::Host { path: folder.path().canonicalize().unwrap() };
        spec.mounts.push(volume(source, "/shared", false));
        let exit = node.run(&uid, spec).await;
        assert_eq!((exit.code, node.output(&uid, "c").as_str()), (0, "secret"), "{case}");
        for name in ["secret", "made", "made/file", "program"] {
            let found = std::fs::metadata(folder.path().join(name)).unwrap();
            assert_eq!((found.uid(), found.gid()), (owner, owner), "{case}: {name}");
        }
        assert!(!folder.path().join("old").exists());
        node.runtime.remove_pod(&uid).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_other_users_in_a_host_folder_stay_closed() {
    if !runs_as_root() {
        return;
    }
    let node = Node::start().await;
    let folder = folder_of(OWNER, &std::env::temp_dir());
    let secret = folder.path().join("secret");
    chown(&secret, Some(0), Some(0)).unwrap();
    node.runtime.create_pod(pod("p1")).await.unwrap();
    let command = "cat /shared/secret || echo x > /shared/secret || chown 1000 /shared/secret";
    let mut spec = node.container("p1", "c", &["sh", "-c", command]).await;
    let source = MountSource::Host { path: folder.path().canonicalize().unwrap() };
    spec.mounts.push(volume(source, "/shared", false));
    assert_ne!(node.run("p1", spec).await.code, 0);
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "secret\n");
    node.runtime.remove_pod("p1").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_system_that_cannot_map_ids_is_refused_for_writing_and_shown_for_reading() {
    if !runs_as_root() {
        return;
    }
    let node = Node::start().await;
    node.runtime.create_pod(pod("p1")).await.unwrap();
    let mut spec = node.container("p1", "c", &["ls", "/shared"]).await;
    let source = || MountSource::Host { path: "/sys/class".into() };
    spec.mounts = vec![volume(source(), "/shared", false)];
    let error = node.runtime.start_container("p1", spec.clone()).await.unwrap_err().to_string();
    assert!(error.contains("/sys/class") && error.contains("copy"), "{error}");
    spec.mounts = vec![volume(source(), "/shared", true)];
    assert_eq!(node.run("p1", spec).await.code, 0, "{}", node.output("p1", "c"));
    node.runtime.remove_pod("p1").await.unwrap();
}

/// A file in a folder of the host belongs to its owner there, and set-user-id counts there. In the sandbox's own files,
/// where packages have such programs, it counts for nothing and is allowed.
#[tokio::test(flavor = "multi_thread")]
async fn no_set_id_file_is_made_in_a_host_folder() {
    let mut calls = vec!["fchmod", "fchmodat", "fchmodat2", "openat", "openat2", "mknodat", "unnamed"];
    if cfg!(target_arch = "x86_64") {
        calls.extend(["chmod", "open", "creat", "mknod"]);
    }
    let node = Node::start().await;
    let folder = folder_of(rustix::process::geteuid().as_raw(), &std::env::temp_dir());
    let host = |path: &Path| MountSource::Host { path: path.canonicalize().unwrap() };
    node.runtime.create_pod(PodSandboxSpec { writes_host_paths: true, ..pod("p1") }).await.unwrap();
    let script = |target: &str| {
        let each = calls.iter().map(|call| format!("echo {call} $(/attempt set-id-{call} {target} 2>&1)"));
        each.collect::<Vec<_>>().join("\n")
    };
    for (name, target) in [("shared", "/shared"), ("own", "/tmp")] {
        let mut spec = node.container("p1", name, &["sh", "-c", &script(target)]).await;
        spec.mounts.push(volume(host(&attempts_program()), "/attempt", true));
        if name == "shared" {
            spec.mounts.push(volume(host(folder.path()), "/shared", false));
        }
        node.run("p1", spec).await;
        let output = node.output("p1", name);
        assert_eq!(output.lines().count(), calls.len(), "{output}");
        for line in output.lines() {
            match name {
                "shared" => assert!(line.contains(" errno "), "{line}"),
                _ => assert!(line.ends_with(" ok"), "control: {line}"),
            }
        }
    }
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().mode() & 0o6000, 0, "{}", entry.path().display());
    }
    node.runtime.remove_pod("p1").await.unwrap();
}

/// Device files in a folder of the host cannot be made, and those that are there cannot be opened.
#[tokio::test(flavor = "multi_thread")]
async fn no_device_is_made_or_opened_in_a_host_folder() {
    if !runs_as_root() {
        return;
    }
    let node = Node::start().await;
    let folder = folder_of(0, &std::env::temp_dir());
    let (kind, mode) = (rustix::fs::FileType::CharacterDevice, rustix::fs::Mode::from_raw_mode(0o666));
    let null = rustix::fs::makedev(1, 3);
    rustix::fs::mknodat(rustix::fs::CWD, folder.path().join("null"), kind, mode, null).unwrap();
    node.runtime.create_pod(PodSandboxSpec { writes_host_paths: true, ..pod("p1") }).await.unwrap();
    let script = "cat /dev/null && echo control; cat /shared/null || echo closed; mknod /shared/made c 1 3 || echo refused; touch /shared/file";
    let mut spec = node.container("p1", "c", &["sh", "-c", script]).await;
    spec.mounts.push(volume(MountSource::Host { path: folder.path().canonicalize().unwrap() }, "/shared", false));
    assert_eq!(node.run("p1", spec).await.code, 0);
    let output = node.output("p1", "c");
    let said: Vec<&str> = output.lines().filter(|line| !line.contains(": ")).collect();
    assert_eq!(said, ["control", "closed", "refused"], "{output}");
    assert!(folder.path().join("file").exists() && !folder.path().join("made").exists());
    node.runtime.remove_pod("p1").await.unwrap();
}

/// Mount targets inside a volume are created in it, and belong to the Pod.
#[tokio::test(flavor = "multi_thread")]
async fn mounts_inside_a_volume_are_made() {
    let node = Node::start().await;
    node.runtime.create_pod(pod("p1")).await.unwrap();
    let mut paths = Vec::new();
    for name in ["outer", "inner"] {
        let key = VolumeKey::PodEphemeral { pod: "p1".into(), name: name.into() };
        let request = VolumeRequest { key, limit_bytes: None, group: None };
        paths.push(node.runtime.ensure_volume(request).await.unwrap().path);
    }
    let command =
        "set -e; echo a > /v/a; echo b > /v/deep/sub/b; echo done > /v/message; stat -c %u /v/deep /v/deep/sub";
    let mut spec = node.container("p1", "c", &["sh", "-c", command]).await;
    spec.termination_message_path = Some("/v/message".into());
    let [outer, inner] = <[_; 2]>::try_from(paths).unwrap();
    let data = |path: &Path| MountSource::Data { path: path.to_owned(), sub_path: None };
    spec.mounts = vec![volume(data(&inner), "/v/deep/sub", false), volume(data(&outer), "/v", false)];
    assert_eq!(node.run("p1", spec).await.code, 0, "{}", node.output("p1", "c"));
    if runs_as_root() {
        assert_eq!(node.output("p1", "c"), "0\n0");
    }
    assert!(outer.join("a").exists() && inner.join("b").exists());
    assert_eq!(node.runtime.termination_message("p1", "c", 100).await, b"done\n");
    node.runtime.remove_pod("p1").await.unwrap();
}
