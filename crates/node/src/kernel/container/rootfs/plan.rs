//! Decides what a container's tree consists of, from its plan alone.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::CopiedFolder;
use crate::kernel::storage::sealed::LowerLayer;
use crate::kernel::supervisor::plan::{ContainerPlan, IdMode, PodPlan};
use crate::runtime::{ImageContent, Mount, MountSource, RuntimeHandler, User};

/// Whether a mount covers a folder or a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileKind {
    Folder,
    File,
}

/// The tree, in the order it is built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RootPlan {
    pub(crate) images_dir: PathBuf,
    /// Layers, topmost first, relative to `images_dir`.
    pub(crate) lowers: Vec<PathBuf>,
    /// Layers of snapshots above those, topmost first.
    pub(crate) sealed: Vec<LowerLayer>,
    pub(crate) upper: PathBuf,
    pub(crate) work: PathBuf,
    /// Mount the overlay with its attributes in the `user.*` namespace, the only one that an unprivileged process may
    /// write.
    pub(crate) user_xattr: bool,
    /// Mount the overlay `volatile`, which never syncs to disk: otherwise the end of every container writes out
    /// everything that is dirty on the whole machine.
    pub(crate) volatile: bool,
    pub(crate) read_only: bool,
    pub(crate) steps: Vec<MountStep>,
    /// The container's user and the Pod's ids: a host path is shown as that user's.
    pub(crate) user: User,
    pub(crate) ids: IdMode,
    /// Only in controls of the escape tests.
    pub(crate) whole_host: Option<PathBuf>,
}

/// One mount, or one file created in the tree. Targets are absolute paths inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MountStep {
    Proc {
        target: String,
        /// Every user may bind ports below 1024: they are ports of the Pod's own network.
        low_ports: bool,
    },
    Sys {
        target: String,
    },
    MessageQueues {
        target: String,
    },
    Terminals {
        target: String,
        group: Option<u32>,
    },
    Memory {
        target: String,
        size: Option<u64>,
        mode: &'static str,
        no_exec: bool,
    },
    Devices {
        target: String,
    },
    Link {
        target: String,
        to: String,
    },
    Bind {
        source: BindSource,
        target: String,
        read_only: bool,
    },
    /// A read-only file with this text.
    Text {
        target: String,
        text: String,
    },
    /// The file for the termination message, which every user inside may write.
    Message {
        target: String,
    },
    HideFile {
        target: String,
    },
    HideFolder {
        target: String,
    },
    ReadOnly {
        target: String,
    },
    /// Hides everything in a folder but some subfolders.
    KeepOnly {
        target: String,
        kept: &'static [&'static str],
    },
}

/// The source of a bind mount, and how it is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BindSource {
    /// A path chosen by the node, with the host's ids.
    Ours(PathBuf),
    /// A path chosen by the node that all sandboxes share, with the host's ids, through an overlay of its own.
    View(PathBuf),
    /// A host path named by a Pod, read and written as its owner: no link on the way is followed, because the Pod may
    /// have created one beneath an allowed folder.
    Named(PathBuf),
    /// A private copy of a host path named by a Pod.
    Copy(CopiedFolder),
    /// A volume or a part of it; `shifted` ones are id-mapped into the Pod's ids.
    Volume { path: PathBuf, sub_path: Option<String>, shifted: bool },
}

impl MountStep {
    /// The path inside that this step concerns.
    pub(crate) fn target(&self) -> &str {
        match self {
            Self::Proc { target, .. }
            | Self::Sys { target }
            | Self::MessageQueues { target }
            | Self::Terminals { target, .. }
            | Self::Memory { target, .. }
            | Self::Devices { target }
            | Self::Link { target, .. }
            | Self::Bind { target, .. }
            | Self::Text { target, .. }
            | Self::Message { target }
            | Self::HideFile { target }
            | Self::HideFolder { target }
            | Self::ReadOnly { target }
            | Self::KeepOnly { target, .. } => target,
        }
    }
}

/// Files of /proc that reveal or affect the whole machine.
const HIDDEN_FILES: &[&str] = &[
    "/proc/cmdline",
    "/proc/kcore",
    "/proc/keys",
    "/proc/key-users",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/sched_debug",
    "/proc/interrupts",
    "/proc/sysrq-trigger",
    "/proc/kallsyms",
    "/proc/modules",
    "/proc/config.gz",
];

/// Folders that reveal or affect the whole machine.
const HIDDEN_FOLDERS: &[&str] = &[
    "/proc/acpi",
    "/proc/asound",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/fs/cgroup",
    "/sys/kernel",
    "/sys/module",
    "/sys/power",
    "/sys/devices/virtual/powercap",
    "/sys/bus",
    "/sys/dev",
];

/// What programs need of /sys/devices: processors, memory nodes, and the Pod's own network interfaces.
const KEPT_DEVICES: &[&str] = &["system/cpu", "system/node", "virtual/net"];

const READ_ONLY: &[&str] = &["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys"];

/// The sysctl for the first port that unprivileged users may bind.
pub(crate) const LOW_PORTS: &str = "net.ipv4.ip_unprivileged_port_start";

/// The host's number of its current boot, by which sandboxes could tell that they share a host.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The number that a Pod sees instead: the same in all its containers and as long as it exists.
fn boot_id(pod_uid: &str) -> String {
    let hash = Sha256::new_with_prefix("boot id\0").chain_update(pod_uid).finalize();
    let bytes = std::array::from_fn(|index| hash.get(index).copied().unwrap_or_default());
    format!("{}\n", uuid::Builder::from_random_bytes(bytes).into_uuid())
}

/// Size of /dev/shm, as in other container runtimes.
const SHARED_MEMORY: u64 = 64 << 20;

/// The group of terminals (`tty`) in every distribution.
const TERMINAL_GROUP: u32 = 5;

/// Decides a container's whole tree.
pub(crate) fn plan_root(pod: &PodPlan, container: &ContainerPlan) -> RootPlan {
    let mut steps = vec![
        MountStep::Proc { target: "/proc".to_owned(), low_ports: opens_low_ports(pod) },
        MountStep::Sys { target: "/sys".to_owned() },
        MountStep::Devices { target: "/dev".to_owned() },
        MountStep::Terminals { target: "/dev/pts".to_owned(), group: terminal_group(pod) },
        MountStep::Memory { target: "/dev/shm".to_owned(), size: Some(SHARED_MEMORY), mode: "1777", no_exec: true },
        MountStep::MessageQueues { target: "/dev/mqueue".to_owned() },
    ];
    for (target, to) in [
        ("/dev/ptmx", "pts/ptmx"),
        ("/dev/fd", "/proc/self/fd"),
        ("/dev/stdin", "/proc/self/fd/0"),
        ("/dev/stdout", "/proc/self/fd/1"),
        ("/dev/stderr", "/proc/self/fd/2"),
    ] {
        steps.push(MountStep::Link { target: target.to_owned(), to: to.to_owned() });
    }
    if container.isolation.masks {
        let owned = |path: &&str| (*path).to_owned();
        steps.extend(HIDDEN_FILES.iter().map(|path| MountStep::HideFile { target: owned(path) }));
        steps.extend(HIDDEN_FOLDERS.iter().map(|path| MountStep::HideFolder { target: owned(path) }));
        steps.extend(READ_ONLY.iter().map(|path| MountStep::ReadOnly { target: owned(path) }));
        steps.push(MountStep::KeepOnly { target: "/sys/devices".to_owned(), kept: KEPT_DEVICES });
        steps.push(MountStep::Text { target: BOOT_ID.to_owned(), text: boot_id(&pod.spec.uid) });
    }
    if let ImageContent::Host { shown, .. } = &container.spec.image.content {
        steps.extend(shown.iter().map(|path| MountStep::Bind {
            source: BindSource::View(path.clone()),
            target: path.to_string_lossy().into_owned(),
            read_only: true,
        }));
    }
    steps.extend(own_files(pod).into_iter().map(|(name, text)| {
        let target = format!("/etc/{name}");
        match pod.spec.handler {
            RuntimeHandler::BuiltIn => MountStep::Text { target, text },
            RuntimeHandler::Oci { .. } => own_bind(&own_files_dir(&pod.dir).join(name), &target),
        }
    }));
    steps.extend(volume_steps(pod, container));
    let lowers = match &container.spec.image.content {
        ImageContent::Host { skeleton, .. } => vec![relative(skeleton, &pod.images_dir)],
        ImageContent::Layers { layers } => layers.iter().map(|layer| relative(layer, &pod.images_dir)).collect(),
    };
    RootPlan {
        images_dir: pod.images_dir.clone(),
        lowers,
        sealed: container.sealed.clone(),
        upper: container.layer.join("upper"),
        work: container.layer.join("work"),
        user_xattr: !pod.ids.is_privileged(),
        volatile: pod.ends_with_node,
        read_only: container.spec.read_only_root,
        steps,
        user: container.spec.user.clone(),
        ids: pod.ids,
        whole_host: (!container.isolation.private_root).then(|| PathBuf::from("/")),
    }
}

/// Whether low ports are opened: not in the host's network, and not if the Pod sets the sysctl itself.
pub(crate) fn opens_low_ports(pod: &PodPlan) -> bool {
    pod.isolation.network_namespace && !pod.spec.sysctls.contains_key(LOW_PORTS)
}

/// The files of `/etc` that are specific to the Pod.
pub(crate) fn own_files(pod: &PodPlan) -> [(&'static str, String); 3] {
    [
        ("hosts", pod.spec.hosts.replace("{pod_ip}", &pod.address.to_string())),
        ("hostname", format!("{}\n", pod.spec.hostname)),
        ("resolv.conf", pod.spec.resolv_conf.clone()),
    ]
}

/// Folder of these files for OCI runtimes, which bind files.
pub(crate) fn own_files_dir(pod_dir: &Path) -> PathBuf {
    pod_dir.join("etc")
}

fn volume_steps(pod: &PodPlan, container: &ContainerPlan) -> Vec<MountStep> {
    let mut steps: Vec<_> =
        container.spec.mounts.iter().filter_map(|mount| volume_step(pod, container, mount)).collect();
    steps.extend(container.spec.termination_message_path.clone().map(|target| MountStep::Message { target }));
    // A mount inside another one must come after it, in whatever order the Pod lists them.
    steps.sort_by_key(|step| Path::new(step.target()).components().count());
    steps
}

/// The mount of a volume; `None` if the volume is not there.
fn volume_step(pod: &PodPlan, container: &ContainerPlan, mount: &Mount) -> Option<MountStep> {
    Some(match &mount.source {
        MountSource::Data { path, sub_path } => volume_bind(path.clone(), sub_path.as_ref(), mount, true),
        MountSource::Program { path } => {
            MountStep::Bind { source: BindSource::View(path.clone()), target: mount.target.clone(), read_only: true }
        }
        MountSource::Host { path } => MountStep::Bind {
            source: BindSource::Named(path.clone()),
            target: mount.target.clone(),
            read_only: mount.read_only,
        },
        MountSource::Copy { path, volume, .. } => MountStep::Bind {
            source: BindSource::Copy(CopiedFolder {
                source: path.clone(),
                layer: container.copies.get(volume)?.clone(),
                user_xattr: !pod.ids.is_privileged(),
                volatile: pod.ends_with_node,
            }),
            target: mount.target.clone(),
            read_only: false,
        },
        MountSource::Memory { volume, sub_path } => {
            volume_bind(memory_volume_path(&pod.dir, volume), sub_path.as_ref(), mount, false)
        }
    })
}

/// Where a Pod's memory volume is mounted in its supervisor's own mount namespace.
pub(crate) fn memory_volume_path(pod_dir: &Path, volume: &str) -> PathBuf {
    pod_dir.join("memory").join(volume)
}

fn volume_bind(path: PathBuf, sub_path: Option<&String>, mount: &Mount, shifted: bool) -> MountStep {
    MountStep::Bind {
        source: BindSource::Volume { path, sub_path: sub_path.cloned(), shifted },
        target: mount.target.clone(),
        read_only: mount.read_only,
    }
}

fn own_bind(source: &Path, target: &str) -> MountStep {
    MountStep::Bind { source: BindSource::Ours(source.to_owned()), target: target.to_owned(), read_only: true }
}

fn terminal_group(pod: &PodPlan) -> Option<u32> {
    pod.ids.seen_by_setup(TERMINAL_GROUP)
}

fn relative(path: &Path, base: &Path) -> PathBuf {
    path.strip_prefix(base).unwrap_or(path).to_owned()
}

#[cfg(test)]
mod tests;
