//! The tests of a Pod's life again as an ordinary user: without subordinate ids, with few and with many.

use std::os::unix::fs::MetadataExt;

use agent_sandbox_node::runtime::{
    Limits, MountSource, PodRuntime, PodSandboxSpec, RuntimeError, VolumeKey, VolumeRequest, WeaknessKind,
};

use crate::fixture::{Node, is_root, pod};
use crate::plain_user::{self, FAR_ADDRESS, Ids, MORE_ADDRESS, OWN_ADDRESS, USER, World, has_uidmap, is_plain_user};

/// Ids that no user of a fresh machine has; each test has its own range, because all belong to the same user.
const FEW: Ids = Ids::From(2_000_000_000, 65_536);
const FEW_FOR_EGRESS: Ids = Ids::From(2_020_000_000, 65_536);
const MANY: Ids = Ids::From(2_010_000_000, 1 << 20);

#[test]
fn pods_work_the_same_without_privilege() {
    if is_root() {
        plain_user::run(
            Ids::None,
            &["lifecycle::", "escape::", "user_limits::", "host_view::", "host_folder::", "rootless::alone"],
            World::Host,
        );
    }
}

/// Debian's default for each user: too few for whole blocks.
#[test]
fn pods_work_the_same_with_few_subordinate_ids() {
    if is_root() && has_uidmap() {
        plain_user::run(
            FEW,
            &["lifecycle::", "escape::", "user_limits::", "host_view::", "host_folder::", "rootless::blocks"],
            World::Host,
        );
    }
}

#[test]
fn pods_have_whole_blocks_with_many_subordinate_ids() {
    if is_root() && has_uidmap() {
        plain_user::run(MANY, &["rootless::blocks"], World::Host);
    }
}

#[test]
fn missing_programs_are_reported() {
    if is_root() {
        plain_user::run(FEW, &["rootless::bare"], World::Bare);
    }
}

/// Run as an ordinary user with subordinate ids, without the programs that would use them.
mod bare {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn packages_to_install_are_named() {
        if !is_plain_user() {
            return;
        }
        let node = Node::start().await;
        let sandbox = node.runtime.create_pod(pod("p1")).await.unwrap();
        assert_eq!((sandbox.first_host_id, sandbox.id_count), (USER, 1));
        for (kind, package) in [(WeaknessKind::SharedUid, "uidmap"), (WeaknessKind::NoEgress, "passt")] {
            let weakness = sandbox.weaknesses.iter().find(|weak| weak.kind == kind).expect("the weakness is reported");
            assert!(weakness.message.contains(package), "{weakness:?}");
        }
        node.runtime.remove_pod("p1").await.unwrap();
    }
}

/// Through `pasta`, in a network namespace of the test.
#[test]
fn policies_allow_egress_without_privilege() {
    let pasta = std::path::Path::new("/usr/bin/pasta").exists();
    assert!(pasta || std::env::var_os("CI").is_none(), "pasta (package passt) must be installed where CI is set");
    if !pasta {
        eprintln!("skipped: pasta (package passt) is not installed");
    }
    if is_root() && pasta {
        plain_user::run(Ids::None, &["rootless::egress"], World::Own);
    }
    if is_root() && pasta && has_uidmap() {
        plain_user::run(FEW_FOR_EGRESS, &["rootless::egress"], World::Own);
    }
}

/// Run as an ordinary user in a network namespace of the test.
mod egress {
    use super::*;
    use agent_sandbox_node::runtime::{Allow, IpBlock, NetworkMode, PodRules, PortRange, Protocol};
    use std::net::{IpAddr, Ipv4Addr};
    use tokio::net::{TcpListener, TcpStream};

    fn everything(except: &[([u8; 4], u8)], ports: &[u16]) -> PodRules {
        let except = except.iter().map(|(address, prefix)| (IpAddr::from(*address), *prefix)).collect();
        let ports = ports.iter().map(|port| PortRange { protocol: Protocol::Tcp, first: *port, last: *port });
        let peers = vec![IpBlock { address: Ipv4Addr::UNSPECIFIED.into(), prefix: 0, except }];
        PodRules { egress: vec![Allow { peers, ports: ports.collect() }], ingress: Vec::new(), by_domain: false }
    }

    /// Whether a Pod receives a greeting from an address.
    async fn receives_greeting(node: &Node, uid: &str, address: IpAddr, port: u16) -> bool {
        let script = format!(
            "import socket\ntry: print(socket.create_connection(('{address}', {port}), 0.7).recv(9).decode())\nexcept OSError as e: print('closed', e)"
        );
        let (_, out, err) = node.exec(uid, "c", &["/usr/bin/python3", "-c", &script]).await;
        assert!(out.starts_with("hello") || out.starts_with("closed"), "{out}{err}");
        out.starts_with("hello")
    }

    /// The host gets another address while a Pod runs that may reach everything: a moment later the address is closed
    /// to the Pod.
    async fn add_host_address(node: &Node, port: u16) {
        let (address, file) = MORE_ADDRESS;
        std::fs::write(std::env::var_os(file).unwrap(), "").unwrap();
        let closed = async {
            while TcpStream::connect((IpAddr::from(address), port)).await.is_err() {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
            while receives_greeting(node, "open", address.into(), port).await {}
        };
        tokio::time::timeout(crate::fixture::DEADLINE, closed).await.expect("no rule opens a new address of the host");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn only_what_a_policy_allows_is_reached_and_never_the_host() {
        if !is_plain_user() {
            return;
        }
        let far = IpAddr::from(FAR_ADDRESS);
        TcpStream::connect((far, 7777)).await.expect("control: the server behind the default route is there");
        // A service of the host, on all its addresses.
        let host = TcpListener::bind("0.0.0.0:0").await.unwrap();
        let port = host.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = host.accept().await {
                let _ = stream.try_write(b"hello");
            }
        });
        let node = Node::start().await;
        let weak = node.runtime.weaknesses();
        assert!(weak.iter().all(|weak| weak.kind != WeaknessKind::NoEgress), "{weak:?}");
        for uid in ["open", "shut"] {
            let spec = PodSandboxSpec { network: NetworkMode::Routed, ..pod(uid) };
            node.runtime.create_pod(spec).await.unwrap();
            node.runtime.start_container(uid, node.container(uid, "c", &["sleep", "1000"]).await).await.unwrap();
            assert!(!receives_greeting(&node, uid, far, 7777).await, "closed until a policy opens it");
        }
        node.runtime.set_rules("open", everything(&[], &[])).await.unwrap();
        assert!(receives_greeting(&node, "open", far, 7777).await);
        assert!(!receives_greeting(&node, "shut", far, 7777).await, "another Pod has no egress");
        let gateway = node.runtime.resolver().unwrap();
        for address in [OWN_ADDRESS.into(), gateway, IpAddr::from(Ipv4Addr::LOCALHOST)] {
            assert!(!receives_greeting(&node, "open", address, port).await, "no rule opens the host: {address}");
        }
        add_host_address(&node, port).await;
        for (name, rules, reached) in [
            ("another port", everything(&[], &[7778]), false),
            ("this port", everything(&[], &[7777]), true),
            ("an exception", everything(&[([203, 0, 113, 0], 24)], &[]), false),
            ("no policy", PodRules::default(), false),
            ("everything again", everything(&[], &[]), true),
        ] {
            node.runtime.set_rules("open", rules).await.unwrap();
            assert_eq!(receives_greeting(&node, "open", far, 7777).await, reached, "{name}");
        }
        // A restarted node finds the uplink running, and the Pod still closed to the host.
        let node = node.restart().await;
        node.runtime.list().await.unwrap();
        assert!(receives_greeting(&node, "open", far, 7777).await);
        node.runtime.set_rules("open", PodRules::default()).await.unwrap();
        assert!(!receives_greeting(&node, "open", far, 7777).await);
        for uid in ["open", "shut"] {
            node.runtime.remove_pod(uid).await.unwrap();
        }
        let left = async {
            while std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
                let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
                let own = std::fs::metadata(entry.path()).is_ok_and(|found| found.uid() == USER);
                own && (name.starts_with("pasta") || name.starts_with("asb-egress"))
            }) {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(crate::fixture::DEADLINE, left).await.expect("pasta ends with its Pod");
    }
}

/// Run as an ordinary user without subordinate ids.
mod alone {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn without_subordinate_ids_pods_use_the_callers_and_report_it() {
        if !is_plain_user() {
            return;
        }
        let node = Node::start().await;
        let sandbox = node.runtime.create_pod(pod("p1")).await.unwrap();
        assert_eq!((sandbox.first_host_id, sandbox.id_count), (USER, 1));
        let weakness = sandbox.weaknesses.iter().find(|weak| weak.kind == WeaknessKind::SharedUid);
        let weakness = &weakness.expect("the Pod reports that it shares its caller's id").message;
        assert!(weakness.contains("uidmap") || weakness.contains("/etc/subuid"), "what to do about it: {weakness}");
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
    async fn limits_that_cannot_be_enforced_are_reported_and_rejected_when_strict() {
        if !is_plain_user() {
            return;
        }
        let limits = Limits { memory_bytes: Some(64 << 20), ..Limits::default() };
        let wanted = || PodSandboxSpec { limits, ..pod("p1") };
        let strict = Node::start_with(|config| config.strict_limits = true).await;
        let refused = strict.runtime.create_pod(wanted()).await;
        let Err(RuntimeError::Refused(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("memory") && why.contains("strict"), "{why}");
        // Control: without the flag the same Pod runs, and reports that its limit is not enforced.
        let node = Node::start().await;
        let sandbox = node.runtime.create_pod(wanted()).await.unwrap();
        assert!(sandbox.weaknesses.iter().any(|weak| weak.kind == WeaknessKind::LimitNotEnforced), "{sandbox:?}");
        let exit = node.run("p1", node.container("p1", "c", &["true"]).await).await;
        assert_eq!(exit.code, 0);
        node.runtime.remove_pod("p1").await.unwrap();
    }
}

/// Run as an ordinary user with subordinate ids.
mod blocks {
    use super::*;

    /// The host uid of a container's process.
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
        // The id map works: root, an ordinary user, and none of the caller's ids.
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
        node.runtime.delete_owner_storage("mine").await.unwrap();
        node.runtime.delete_owner_storage("other").await.unwrap();
        assert!(node.runtime.kept_owners().await.unwrap().is_empty());
        node.runtime.close();
        assert_eq!(std::fs::read_dir(node.data().join("layers")).unwrap().count(), 0);
        let trash = node.data().join("trash");
        let left = std::fs::read_dir(&trash).into_iter().flatten().count();
        assert_eq!(left, 0, "removed files are deleted from disk");
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
