//! States of Pods and containers, as reported by the kernel half.

use std::net::IpAddr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// A created Pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PodSandbox {
    pub uid: String,
    /// The Pod's addresses; empty when it has loopback only.
    pub ips: Vec<IpAddr>,
    /// First host uid and gid of the Pod's block, and the number of ids (1 without a block).
    pub first_host_id: u32,
    pub id_count: u32,
    /// Host pid of the Pod's supervisor.
    pub supervisor_pid: u32,
    pub weaknesses: Vec<Weakness>,
}

/// The state of one Pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PodState {
    pub sandbox: PodSandbox,
    pub namespace: String,
    pub name: String,
    /// False when the supervisor died: no process of the Pod is running any more, and only `remove_pod` is possible.
    pub alive: bool,
    pub containers: Vec<ContainerState>,
}

/// The latest attempt of one container.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContainerState {
    pub name: String,
    pub attempt: u32,
    /// Unique per attempt, for `containerID`.
    pub id: String,
    pub pid: u32,
    pub started_at: Timestamp,
    pub exit: Option<Exit>,
    /// Whether the requested [`open_port`](super::ContainerSpec::open_port) was opened.
    #[serde(default)]
    pub port_open: bool,
    /// The previous attempt (`lastState`).
    pub previous: Option<PreviousAttempt>,
}

/// The attempt before the latest one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreviousAttempt {
    pub id: String,
    pub attempt: u32,
    pub started_at: Timestamp,
    pub exit: Exit,
}

/// The exit of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// The exit code, or 128 plus the signal.
    pub code: i32,
    pub signal: Option<i32>,
    pub oom_killed: bool,
    pub finished_at: Timestamp,
}

/// An event that no call caused.
#[derive(Debug, Clone, PartialEq)]
pub enum RuntimeEvent {
    ContainerExited {
        pod: String,
        container: String,
        attempt: u32,
        exit: Exit,
    },
    /// The supervisor is lost; all processes of the Pod have been killed.
    SupervisorLost {
        pod: String,
    },
    /// The rules of all Pods were lost; all are closed until [`PodRuntime::set_rules`](super::PodRuntime) is called again.
    RulesLost,
}

/// A layer of isolation that is weaker than possible, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Weakness {
    pub kind: WeaknessKind,
    /// One sentence for users.
    pub message: String,
}

/// The kind of weakness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WeaknessKind {
    /// All Pods run as the caller's one uid.
    SharedUid,
    /// Memory or CPU limits are not enforced.
    LimitNotEnforced,
    /// Disk limits are measured, not enforced.
    StorageMeasuredOnly,
    /// Pods have no egress.
    NoEgress,
    /// What the kernel counts per user is counted for the caller.
    SharedUserLimits,
    /// Other programs of root on this machine can connect to Pods.
    OpenToRoot,
    /// The kernel lacks Landlock.
    NoLandlock,
}

impl WeaknessKind {
    /// The reason word of the Pod event.
    pub fn reason(self) -> &'static str {
        match self {
            Self::SharedUid => "SharedUid",
            Self::LimitNotEnforced => "LimitNotEnforced",
            Self::StorageMeasuredOnly => "StorageMeasuredOnly",
            Self::NoEgress => "NoEgress",
            Self::SharedUserLimits => "SharedUserLimits",
            Self::OpenToRoot => "OpenToRoot",
            Self::NoLandlock => "NoLandlock",
        }
    }
}
