//! Specifications of Pods and containers: resolved, validated, free of Kubernetes objects.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::ResolvedImage;

/// The Pod: everything its containers share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PodSandboxSpec {
    /// The Pod's uid: the key of every call.
    pub uid: String,
    pub namespace: String,
    pub name: String,
    /// Key of the block of user ids and of the writable layers: `namespace.uid` of the controlling owner, or `pod-uid`
    /// of a Pod without one.
    pub owner: String,
    pub hostname: String,
    pub network: NetworkMode,
    /// Contents of `/etc/hosts` and `/etc/resolv.conf`. `{pod_ip}` in `hosts` is replaced by the Pod's address.
    pub hosts: String,
    pub resolv_conf: String,
    /// Limits of all containers together; unset values get the node's defaults.
    pub limits: Limits,
    pub handler: RuntimeHandler,
    /// All containers share one pid namespace (`shareProcessNamespace`).
    pub share_processes: bool,
    /// Memory volumes (`emptyDir` with medium Memory): name to size limit in bytes.
    pub memory_volumes: BTreeMap<String, Option<u64>>,
    /// Sysctls of the Pod's own namespaces; only the safe, namespaced ones are accepted.
    pub sysctls: BTreeMap<String, String>,
    /// A container writes to a path of the host, or to a copy of one. Without root, such a Pod has the caller's own id:
    /// files can be shown under no other.
    #[serde(default)]
    pub writes_host_paths: bool,
    /// The snapshot that the containers' files come from; `None` for the image's own files, or what the owner has.
    #[serde(default)]
    pub snapshot: Option<SnapshotOrigin>,
}

/// The snapshot that files come from. A Pod with another origin than its owner's layers replaces those layers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotOrigin {
    /// Its name in the Pod's namespace.
    pub name: String,
    /// Tells apart several times at which a sandbox was set back to the same snapshot.
    pub restored_at: String,
}

/// The network of a Pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum NetworkMode {
    /// Own namespace with an address, reachable from the node; egress as far as rules allow.
    Routed,
    /// Own namespace with loopback only; the node still connects through the supervisor.
    LoopbackOnly,
}

/// The program that isolates the Pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RuntimeHandler {
    BuiltIn,
    /// An OCI runtime on the host: a program name (`runsc`, `crun`) or an absolute path.
    Oci {
        handler: String,
        program: String,
    },
}

/// Upper bounds. `None` means the node's default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    pub memory_bytes: Option<u64>,
    /// Thousandths of a core.
    pub cpu_millis: Option<u64>,
    /// Memory and CPU that the containers request or limit themselves to, as far as they do: a default limit of the Pod
    /// is never lower.
    #[serde(default)]
    pub memory_asked_bytes: u64,
    #[serde(default)]
    pub cpu_asked_millis: u64,
    /// Relative weight: the CPU request, in thousandths of a core.
    pub cpu_request_millis: Option<u64>,
    pub pids: Option<u64>,
    /// Bytes of the writable layer.
    pub layer_bytes: Option<u64>,
}

/// One container of a Pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContainerSpec {
    pub name: String,
    /// The restart count; part of the names of the log and of the exit record.
    pub attempt: u32,
    pub image: ResolvedImage,
    /// The complete command line: image entrypoint and Pod overrides are merged. Never empty.
    pub command: Vec<String>,
    /// The complete environment; nothing is inherited.
    pub env: Vec<(String, String)>,
    pub working_dir: String,
    /// A port that is open before the first process starts; the process gets the listening socket as in systemd socket
    /// activation (descriptor 3, `LISTEN_FDS`). Early connections wait instead of being refused. Runtimes that do not
    /// support that ignore it.
    #[serde(default)]
    pub open_port: Option<u16>,
    pub user: User,
    /// Capabilities asked for; each must be on the allow list, all others are dropped.
    pub capabilities: Vec<Capability>,
    pub read_only_root: bool,
    pub mounts: Vec<Mount>,
    /// Path inside at which the container may leave a termination message; `None` gives it no file.
    #[serde(default)]
    pub termination_message_path: Option<String>,
    pub stdin: bool,
    pub stdin_once: bool,
    pub tty: bool,
    pub limits: Limits,
    pub oom_score_adj: i32,
    pub log: LogTarget,
}

/// The container's user. Names are looked up in the image's `/etc/passwd` and `/etc/group`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// `uid`, `name`, `uid:gid` or `name:group`, as in an image; empty means root.
    pub user: String,
    /// Overrides the primary group.
    pub gid: Option<u32>,
    pub supplementary_groups: Vec<u32>,
}

/// Capabilities that a container may request; others cannot be expressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Capability {
    Chown,
    DacOverride,
    Fowner,
    Fsetid,
    Kill,
    Setgid,
    Setuid,
    Setpcap,
    NetBindService,
    NetRaw,
    SysChroot,
    Setfcap,
}

impl Capability {
    /// The whole allow list.
    pub const ALL: [Self; 12] = [
        Self::Chown,
        Self::DacOverride,
        Self::Fowner,
        Self::Fsetid,
        Self::Kill,
        Self::Setgid,
        Self::Setuid,
        Self::Setpcap,
        Self::NetBindService,
        Self::NetRaw,
        Self::SysChroot,
        Self::Setfcap,
    ];

    /// Parses `NET_RAW` or `CAP_NET_RAW`, in any case; `None` for everything outside the allow list.
    pub fn parse(name: &str) -> Option<Self> {
        let upper = name.to_ascii_uppercase();
        let bare = upper.strip_prefix("CAP_").unwrap_or(&upper);
        Self::ALL.into_iter().find(|capability| capability.name() == bare)
    }

    /// The name without `CAP_`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Chown => "CHOWN",
            Self::DacOverride => "DAC_OVERRIDE",
            Self::Fowner => "FOWNER",
            Self::Fsetid => "FSETID",
            Self::Kill => "KILL",
            Self::Setgid => "SETGID",
            Self::Setuid => "SETUID",
            Self::Setpcap => "SETPCAP",
            Self::NetBindService => "NET_BIND_SERVICE",
            Self::NetRaw => "NET_RAW",
            Self::SysChroot => "SYS_CHROOT",
            Self::Setfcap => "SETFCAP",
        }
    }

    /// The kernel's number of the capability.
    pub fn number(self) -> u32 {
        match self {
            Self::Chown => 0,
            Self::DacOverride => 1,
            Self::Fowner => 3,
            Self::Fsetid => 4,
            Self::Kill => 5,
            Self::Setgid => 6,
            Self::Setuid => 7,
            Self::Setpcap => 8,
            Self::NetBindService => 10,
            Self::NetRaw => 13,
            Self::SysChroot => 18,
            Self::Setfcap => 31,
        }
    }
}

/// A mount inside the container.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mount {
    pub source: MountSource,
    /// Absolute path inside the container; created if missing, and resolved without leaving the container's root.
    pub target: String,
    pub read_only: bool,
}

/// The source of a mount.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum MountSource {
    /// A folder or file of the node (volume, projected files), id-mapped into the Pod's user ids. `sub_path` is
    /// resolved beneath it without following links out of it, and created as a folder if missing.
    Data { path: PathBuf, sub_path: Option<String> },
    /// A path of the host outside the data folder (an allowed `hostPath`): read and written as its owner, which is shown
    /// as the container's user.
    Host { path: PathBuf },
    /// A private copy of a folder of the host: an overlay over it. The folder itself is never written.
    Copy {
        path: PathBuf,
        volume: String,
        /// Changes are of no interest to the user, and are never applied.
        private: bool,
    },
    /// A program of the node (sandboxd) that every sandbox gets: read-only, with inodes of its own in each.
    Program { path: PathBuf },
    /// One of the Pod's [`PodSandboxSpec::memory_volumes`].
    Memory { volume: String, sub_path: Option<String> },
}

/// The log file of a container's output, in CRI line format.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LogTarget {
    pub path: PathBuf,
    pub max_bytes: u64,
    /// Number of rotated files kept next to the current one, as `path.1` (newest) and so on.
    pub max_files: u32,
}
