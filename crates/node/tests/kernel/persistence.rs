//! Data that outlives a Pod, and the contents of volumes.

use agent_sandbox_node::runtime::{Mount, MountSource, PodRuntime, PodSandboxSpec, VolumeKey, VolumeRequest};

use crate::fixture::{Node, is_root, pod};

#[tokio::test(flavor = "multi_thread")]
async fn the_owners_next_pod_gets_the_same_layer_and_ids_and_other_owners_do_not() {
    if !is_root() {
        return;
    }
    let node = Node::start().await;
    let of = |uid: &str, owner: &str| PodSandboxSpec { owner: owner.into(), ..pod(uid) };
    let first = node.runtime.create_pod(of("p1", "mine")).await.unwrap();
    let write = "echo kept > /home/user/file; chmod 640 /home/user/file";
    node.run("p1", node.container("p1", "c", &["sh", "-c", write]).await).await;
    node.runtime.remove_pod("p1").await.unwrap();
    let second = node.runtime.create_pod(of("p2", "mine")).await.unwrap();
    assert_eq!(first.first_host_id, second.first_host_id);
    let show = "cat /home/user/file; stat -c '%u %a' /home/user/file";
    node.run("p2", node.container("p2", "c", &["sh", "-c", show]).await).await;
    assert_eq!(node.output("p2", "c"), "kept\n1000 640");
    let other = node.runtime.create_pod(of("p3", "other")).await.unwrap();
    assert_ne!(other.first_host_id, second.first_host_id);
    node.run("p3", node.container("p3", "c", &["sh", "-c", show]).await).await;
    assert!(node.output("p3", "c").contains("No such file"));
    let at_once = node.runtime.create_pod(of("p4", "mine")).await.unwrap();
    assert_ne!(at_once.first_host_id, second.first_host_id, "two Pods of one owner never share ids or layers");
    assert!(node.runtime.delete_owner_storage("mine").await.is_err(), "it is still in use");
    for uid in ["p2", "p3", "p4"] {
        node.runtime.remove_pod(uid).await.unwrap();
    }
    node.runtime.delete_owner_storage("mine").await.unwrap();
    assert_eq!(node.runtime.kept_owners().await.unwrap(), ["other"]);
    assert!(!node.data().join("layers/mine").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn volumes_belong_to_the_pods_ids_and_links_do_not_lead_out() {
    if !is_root() {
        return;
    }
    let node = Node::start().await;
    let mut spec = pod("p1");
    spec.memory_volumes.insert("mem".into(), Some(1 << 20));
    node.runtime.create_pod(spec).await.unwrap();
    let request = VolumeRequest { key: VolumeKey::Persistent { name: "v".into() }, limit_bytes: None, group: None };
    let volume = node.runtime.ensure_volume(request).await.unwrap();
    let outside = node.data().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("secret"), "secret").unwrap();
    std::os::unix::fs::symlink(&outside, volume.path.join("trap")).unwrap();
    let mount = |source, target: &str| Mount { source, target: target.into(), read_only: false };
    let data = |sub: Option<&str>| MountSource::Data { path: volume.path.clone(), sub_path: sub.map(str::to_owned) };
    let script = "echo data > /work/file; id -u; stat -c %u /work/file; echo x > /mem/x && echo mem; dd if=/dev/zero of=/mem/big bs=1M count=4 2>&1 | grep -c 'No space'";
    let mut container = node.container("p1", "c", &["sh", "-c", script]).await;
    container.mounts = vec![
        mount(data(Some("a/b")), "/work"),
        mount(MountSource::Memory { volume: "mem".into(), sub_path: None }, "/mem"),
    ];
    node.run("p1", container.clone()).await;
    assert_eq!(node.output("p1", "c"), "1000\n1000\nmem\n1");
    let metadata = std::fs::metadata(volume.path.join("a/b/file")).unwrap();
    assert_eq!(
        std::os::unix::fs::MetadataExt::uid(&metadata),
        1000,
        "on disk the volume has the ids that the Pod sees"
    );
    container.attempt = 1;
    container.mounts = vec![mount(data(Some("trap")), "/work")];
    let refused = node.runtime.start_container("p1", container).await;
    assert!(refused.is_err(), "a link out of the volume was followed");
    node.runtime.remove_pod("p1").await.unwrap();
}

/// A host path named by a Pod is opened without following any link: the Pod may have created one beneath an allowed
/// folder.
#[tokio::test(flavor = "multi_thread")]
async fn a_link_on_the_way_to_a_host_path_is_not_followed() {
    if !is_root() {
        return;
    }
    let node = Node::start().await;
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().canonicalize().unwrap().join(name);
    std::fs::create_dir_all(at("secret/inner")).unwrap();
    std::fs::create_dir_all(at("allowed/real")).unwrap();
    std::os::unix::fs::symlink(at("secret"), at("allowed/trap")).unwrap();
    node.runtime.create_pod(pod("p1")).await.unwrap();
    let with = async |path: &str, attempt: u32| {
        let mut spec = node.container("p1", "c", &["true"]).await;
        spec.attempt = attempt;
        let source = MountSource::Host { path: at(path) };
        spec.mounts = vec![Mount { source, target: "/seen".into(), read_only: false }];
        spec
    };
    for (attempt, trap) in ["allowed/trap", "allowed/trap/inner"].into_iter().enumerate() {
        let refused = node.runtime.start_container("p1", with(trap, attempt as u32).await).await;
        let text = refused.map_err(|error| error.to_string()).unwrap_err();
        assert!(text.contains("without following links"), "{text}");
    }
    assert_eq!(node.run("p1", with("allowed/real", 2).await).await.code, 0, "control: without a link it is mounted");
    node.runtime.remove_pod("p1").await.unwrap();
}
