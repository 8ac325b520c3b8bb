//! The life of a Pod once more, as an ordinary user: without subordinate ids, with few and with many.

use std::os::unix::fs::MetadataExt;

use agent_sandbox_node::runtime::{
    Limits, MountSource, PodRuntime, PodSandboxSpec, RuntimeError, VolumeKey, VolumeRequest, WeaknessKind,
};

use crate::fixture::{Node, is_root, pod};
use crate::plain_user::{self, Ids, USER, has_uidmap, is_plain_user};

/// Ids that no user of a fresh machine has; those of one test are not another's, because all are one user's.
const FEW: Ids = Ids::From(2_000_000_000, 65_536);
const MANY: Ids = Ids::From(2_010_000_000, 1 << 20);

#[test]
fn pods_live_the_same_life_without_privilege() {
    if is_root() {
        plain_user::run(Ids::None, &["lifecycle::", "escape::", "rootless::alone"], |_| {});
    }
}

/// What Debian gives to every user: too little for whole blocks.
#[test]
fn pods_live_the_same_life_with_few_subordinate_ids() {
    if is_root() && has_uidmap() {
        plain_user::run(FEW, &["lifecycle::", "escape::", "rootless::blocks"], |_| {});
    }
}

#[test]
fn pods_have_whole_blocks_with_many_subordinate_ids() {
    if is_root() && has_uidmap() {
        plain_user::run(MANY, &["rootless::blocks"], |_| {});
    }
}

/// Run as an ordinary user who has nothing but his own id.
mod alone {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn without_subordinate_ids_pods_have_the_callers_and_say_so() {
        if !is_plain_user() {
            return;
        }
        let node = Node::start().await;
        let sandbox = node.runtime.create_pod(pod("p1")).await.unwrap();
        assert_eq!((sandbox.first_host_id, sandbox.id_count), (USER, 1));
        let said = sandbox.weaknesses.iter().find(|weak| weak.kind == WeaknessKind::SharedUid);
        let said = &said.expect("the Pod says that it shares its caller's id").message;
        assert!(said.contains("uidmap") || said.contains("/etc/subuid"), "what to do about it: {said}");
        node.runtime.remove_pod("p1").await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_owners_next_pod_gets_the_layer_again() {
        if !is_plain_user() {
            return;
        }
        let node = Node::start().await;
        let of = |uid: &str| PodSandboxSpec { owner: "mine".into(), ..pod(uid) };
        node.runtime.create_pod(of("p1")).await.unwrap();
        node.run("p1", node.container("p1", "c", &["sh", "-c", "umask 077; echo kept > ~/file"]).await).await;
        node.runtime.remove_pod("p1").await.unwrap();
        node.runtime.create_pod(of("p2")).await.unwrap();
        node.run("p2", node.container("p2", "c", &["cat", "/home/user/file"]).await).await;
        assert_eq!(node.output("p2", "c"), "kept");
        node.runtime.remove_pod("p2").await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn limits_that_cannot_be_held_are_said_and_refused_when_strict() {
        if !is_plain_user() {
            return;
        }
        let limits = Limits { memory_bytes: Some(64 << 20), ..Limits::default() };
        let wanted = || PodSandboxSpec { limits, ..pod("p1") };
        let strict = Node::start_with(|config| config.strict_limits = true).await;
        let refused = strict.runtime.create_pod(wanted()).await;
        let Err(RuntimeError::Refused(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("memory") && why.contains("strict"), "{why}");
        // Control: without the flag the same Pod runs, and says that its limit is a wish.
        let node = Node::start().await;
        let sandbox = node.runtime.create_pod(wanted()).await.unwrap();
        assert!(sandbox.weaknesses.iter().any(|weak| weak.kind == WeaknessKind::LimitNotEnforced), "{sandbox:?}");
        let exit = node.run("p1", node.container("p1", "c", &["true"]).await).await;
        assert_eq!(exit.code, 0);
        node.runtime.remove_pod("p1").await.unwrap();
    }
}

/// Run as an ordinary user who has subordinate ids.
mod blocks {
    use super::*;

    /// The host's uid of a container's process.
    fn uid_of(pid: u32) -> u32 {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn two_pods_of_one_user_have_ids_of_their_own() {
        if !is_plain_user() {
            return;
        }
        let node = Node::start().await;
        let mut uids = Vec::new();
        for uid in ["one", "two"] {
            let sandbox = node.runtime.create_pod(pod(uid)).await.unwrap();
            assert!(sandbox.weaknesses.iter().all(|weak| weak.kind != WeaknessKind::SharedUid), "{sandbox:?}");
            let mut spec = node.container(uid, "c", &["sleep", "1000"]).await;
            let as_user = node.runtime.start_container(uid, spec.clone()).await.unwrap();
            assert_eq!(uid_of(as_user.pid), sandbox.first_host_id + 1_000);
            spec.name = "root".into();
            spec.log.path = node.log_path(uid, "root");
            spec.user.user = "0".into();
            let as_root = node.runtime.start_container(uid, spec).await.unwrap();
            assert_eq!(uid_of(as_root.pid), sandbox.first_host_id);
            uids.push(sandbox.first_host_id..sandbox.first_host_id + sandbox.id_count);
        }
        assert!(uids[0].end <= uids[1].start || uids[1].end <= uids[0].start, "{uids:?}");
        assert!(uids.iter().all(|range| !range.contains(&USER)), "{uids:?}");
        // The outermost ids work: root, nobody, and nothing of the caller's.
        let (code, out, err) = node.exec("one", "c", &["sh", "-c", "id -u; stat -c %u ~; ls -ln /etc/passwd"]).await;
        assert!(code == 0 && out.starts_with("1000\n1000\n"), "{out}{err}");
        for uid in ["one", "two"] {
            node.runtime.remove_pod(uid).await.unwrap();
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn files_ids_and_layers_are_kept_for_the_owner_and_go_with_it() {
        if !is_plain_user() {
            return;
        }
        let node = Node::start().await;
        let of = |uid: &str, owner: &str| PodSandboxSpec { owner: owner.into(), ..pod(uid) };
        let first = node.runtime.create_pod(of("p1", "mine")).await.unwrap();
        let write = "umask 077; mkdir -p ~/closed/inner; echo kept > ~/closed/inner/file; dd if=/dev/zero of=~/closed/big bs=1M count=3 2>/dev/null; mkdir /opt/made && echo more >> /etc/passwd && echo wrote";
        let write = write.replace("of=~", "of=/home/user");
        node.run("p1", node.container("p1", "c", &["sh", "-c", &write]).await).await;
        assert_eq!(node.output("p1", "c"), "wrote", "the image's own folders and files can be changed");
        let used = node.runtime.storage_usage("p1").await.unwrap();
        assert!(used.layers[0].1 >= 3 << 20, "what is in closed folders is measured: {used:?}");
        node.runtime.remove_pod("p1").await.unwrap();
        let second = node.runtime.create_pod(of("p2", "mine")).await.unwrap();
        assert_eq!(first.first_host_id, second.first_host_id);
        node.run("p2", node.container("p2", "c", &["cat", "/home/user/closed/inner/file"]).await).await;
        assert_eq!(node.output("p2", "c"), "kept");
        let other = node.runtime.create_pod(of("p3", "other")).await.unwrap();
        assert_ne!(other.first_host_id, second.first_host_id);
        let layer = node.data().join("layers/mine/c/upper/home/user");
        let found = std::fs::metadata(&layer).unwrap();
        assert_eq!((found.uid(), found.gid()), (first.first_host_id + 1_000, first.first_host_id + 1_000));
        assert!(std::fs::read_dir(layer.join("closed")).is_err(), "control: the caller itself may not look inside");
        for uid in ["p2", "p3"] {
            node.runtime.remove_pod(uid).await.unwrap();
        }
        node.runtime.forget_owner("mine").await.unwrap();
        node.runtime.forget_owner("other").await.unwrap();
        assert!(node.runtime.kept_owners().await.unwrap().is_empty());
        node.runtime.close();
        assert_eq!(std::fs::read_dir(node.data().join("layers")).unwrap().count(), 0);
        let trash = node.data().join("trash");
        let left = std::fs::read_dir(&trash).into_iter().flatten().count();
        assert_eq!(left, 0, "what was thrown away is gone from the disk");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn volumes_are_written_and_removed_under_the_pods_ids() {
        if !is_plain_user() {
            return;
        }
        let node = Node::start().await;
        node.runtime.create_pod(pod("p1")).await.unwrap();
        let key = VolumeKey::Persistent { name: "v".into() };
        let request = VolumeRequest { key: key.clone(), limit_bytes: None, group: None };
        let volume = node.runtime.ensure_volume(request).await.unwrap();
        let mut spec = node.container("p1", "c", &["sh", "-c", "umask 077; mkdir /v/d; echo x > /v/d/f; id -u"]).await;
        let source = MountSource::Data { path: volume.path.clone(), sub_path: None };
        spec.mounts = vec![agent_sandbox_node::runtime::Mount { source, target: "/v".into(), read_only: false }];
        assert_eq!(node.run("p1", spec).await.code, 0, "{}", node.output("p1", "c"));
        assert!(std::fs::read_dir(volume.path.join("d")).is_err(), "control: it belongs to the Pod's ids");
        node.runtime.remove_pod("p1").await.unwrap();
        node.runtime.remove_volume(&key).await.unwrap();
        assert!(!volume.path.exists());
    }
}
