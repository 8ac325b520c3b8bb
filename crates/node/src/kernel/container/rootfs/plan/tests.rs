//! Plans of containers' trees.

use std::collections::BTreeMap;

use super::*;
use crate::kernel::host::cgroup::CgroupPlan;
use crate::kernel::supervisor::plan::{IdMode, Isolation, PodBasePlan};
use crate::runtime::{
    ContainerSpec, ImageConfig, Limits, LogTarget, Mount, NetworkMode, PodSandboxSpec, ResolvedImage, RuntimeHandler,
    User,
};

fn pod(ids: IdMode) -> PodPlan {
    PodPlan {
        spec: PodSandboxSpec {
            uid: "pod-1".into(),
            namespace: "default".into(),
            name: "p".into(),
            owner: "owner".into(),
            hostname: "p".into(),
            network: NetworkMode::LoopbackOnly,
            hosts: String::new(),
            resolv_conf: String::new(),
            limits: Limits::default(),
            handler: RuntimeHandler::BuiltIn,
            share_processes: false,
            memory_volumes: BTreeMap::new(),
            sysctls: BTreeMap::new(),
            writes_host_paths: false,
            snapshot: None,
        },
        dir: "/data/pods/pod-1".into(),
        base: PodBasePlan {
            ids,
            address: std::net::Ipv4Addr::new(10, 64, 0, 2),
            veth: None,
            group: "pod".into(),
            cgroup: CgroupPlan::default(),
            supervisor_group: None,
            ends_with_node: false,
            isolation: Isolation::ALL,
        },
        limits: Vec::new(),
        stage: "/data/stage".into(),
        images_dir: "/data/images".into(),
        weaknesses: Vec::new(),
    }
}

fn container(content: ImageContent, mounts: Vec<Mount>) -> ContainerPlan {
    ContainerPlan {
        spec: ContainerSpec {
            open_port: None,
            name: "c".into(),
            attempt: 0,
            image: ResolvedImage {
                reference: "i".into(),
                digest: "sha256:0".into(),
                content,
                config: ImageConfig::default(),
                alias_of: None,
            },
            command: vec!["true".into()],
            env: Vec::new(),
            working_dir: "/".into(),
            user: User::default(),
            capabilities: Vec::new(),
            read_only_root: false,
            mounts,
            termination_message_path: None,
            stdin: false,
            stdin_once: false,
            tty: false,
            limits: Limits::default(),
            oom_score_adj: 0,
            log: LogTarget { path: "/data/log".into(), max_bytes: 1, max_files: 1 },
        },
        id: "x".into(),
        sealed: Vec::new(),
        copies: std::collections::BTreeMap::new(),
        layer: "/data/layers/owner/c".into(),
        cgroup: CgroupPlan::default(),
        isolation: Isolation::ALL,
    }
}

fn layers() -> ImageContent {
    ImageContent::Layers { layers: vec!["/data/images/layers/b".into(), "/data/images/layers/a".into()] }
}

#[test]
fn layers_are_named_relative_to_the_shifted_image_folder() {
    let plan = plan_root(&pod(IdMode::Block { first: 1 << 30 }), &container(layers(), Vec::new()));
    assert_eq!(plan.lowers, [PathBuf::from("layers/b"), PathBuf::from("layers/a")]);
    assert!(!plan.user_xattr && plan.whole_host.is_none());
}

#[test]
fn host_paths_are_read_only_and_never_shifted() {
    let content =
        ImageContent::Host { skeleton: "/data/images/host/1".into(), shown: vec!["/usr".into(), "/opt/tools".into()] };
    let plan = plan_root(&pod(IdMode::Block { first: 1 << 30 }), &container(content, Vec::new()));
    for path in ["/usr", "/opt/tools"] {
        let step = plan.steps.iter().find(|step| step.target() == path);
        assert!(
            matches!(step, Some(MountStep::Bind { read_only: true, source: BindSource::View(_), .. })),
            "{path} is planned as {step:?}"
        );
    }
}

#[test]
fn nested_mounts_follow_the_mount_they_lie_in() {
    let data = |path: &str, target: &str| Mount {
        source: MountSource::Data { path: path.into(), sub_path: None },
        target: target.into(),
        read_only: false,
    };
    let mut container = container(layers(), vec![data("/data/v/inner", "/work/a/b"), data("/data/v/outer", "/work")]);
    container.spec.termination_message_path = Some("/work/a/b/message".into());
    let plan = plan_root(&pod(IdMode::Block { first: 1 << 30 }), &container);
    let position = |target: &str| plan.steps.iter().position(|step| step.target() == target).unwrap();
    assert!(position("/work") < position("/work/a/b") && position("/work/a/b") < position("/work/a/b/message"));
}

#[test]
fn proc_is_hidden_only_after_devices_exist() {
    let plan = plan_root(&pod(IdMode::Block { first: 1 << 30 }), &container(layers(), Vec::new()));
    let position = |target: &str| plan.steps.iter().position(|step| step.target() == target).unwrap();
    assert!(position("/dev") < position("/proc/kcore"), "hiding a file needs /dev/null");
    assert!(position("/proc") < position("/proc/sys"));
}

#[test]
fn without_privilege_the_overlay_uses_user_attributes() {
    let plan = plan_root(&pod(IdMode::Single { uid: 1000, gid: 1000 }), &container(layers(), Vec::new()));
    assert!(plan.user_xattr);
    let terminals = plan.steps.iter().find(|step| step.target() == "/dev/pts");
    assert_eq!(terminals, Some(&MountStep::Terminals { target: "/dev/pts".into(), group: None }));
}

#[test]
fn low_ports_are_open_in_a_pods_own_network_unless_it_sets_the_sysctl() {
    let opens = |pod: &PodPlan| {
        let plan = plan_root(pod, &container(layers(), Vec::new()));
        plan.steps.iter().any(|step| matches!(step, MountStep::Proc { low_ports: true, .. }))
    };
    let default = pod(IdMode::Block { first: 1 << 30 });
    assert!(opens(&default));
    let mut with_sysctl = default.clone();
    with_sysctl.spec.sysctls.insert(LOW_PORTS.to_owned(), "1024".to_owned());
    assert!(!opens(&with_sysctl));
    let mut in_host_network = default;
    in_host_network.base.isolation.network_namespace = false;
    assert!(!opens(&in_host_network));
}

/// Plans are saved in the Pods' folders, and read by the next version of the node.
#[test]
fn names_in_saved_plans_do_not_change() {
    let pod = serde_json::to_value(pod(IdMode::Block { first: 1 << 30 })).unwrap();
    let container = serde_json::to_value(container(layers(), Vec::new())).unwrap();
    for (plan, keys) in [(pod, ["ids", "group", "walls", "stage"]), (container, ["spec", "layer", "walls", "cgroup"])] {
        for key in keys {
            assert!(!plan[key].is_null(), "{key} is missing in {plan}");
        }
    }
}
