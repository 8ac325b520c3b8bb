//! The record of a Pod, which is the input of every decision. No IO and no clock.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

use crate::kubelet::backoff::Backoff;
use crate::kubelet::resources::is_sidecar;

/// Everything the node knows about a Pod besides its object.
#[derive(Clone, Debug, Default)]
pub struct PodRecord {
    pub volumes: VolumesState,
    pub sandbox: SandboxState,
    pub containers: BTreeMap<String, ContainerRecord>,
    /// Set when the node ends the Pod: refused, evicted, or past its deadline. The Pod's phase becomes Failed with this
    /// reason.
    pub failure: Option<PodFailure>,
    /// When the node first saw the Pod (`status.startTime`).
    pub started_at: Option<Timestamp>,
    /// How the limits of its volumes are enforced, once the volumes are prepared.
    pub storage: Option<crate::kubelet::eviction::LimitEnforcement>,
    /// The final status was written where it has to be, so that the object may be deleted.
    pub final_status_written: bool,
}

/// Why the node ended a Pod.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PodFailure {
    pub reason: String,
    pub message: String,
}

/// Progress of the volumes.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum VolumesState {
    #[default]
    Unprepared,
    Preparing,
    Ready,
    Failed {
        message: String,
        retry_at: Timestamp,
    },
}

/// Progress of the Pod's sandbox: its namespaces and network, which outlive single containers.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum SandboxState {
    #[default]
    Absent,
    Creating,
    Up(SandboxInfo),
    Failed {
        message: String,
        retry_at: Timestamp,
    },
    Removing,
    /// It is still there, and has to be removed again.
    RemovalFailed {
        retry_at: Timestamp,
    },
}

impl SandboxState {
    pub fn info(&self) -> Option<&SandboxInfo> {
        match self {
            Self::Up(info) => Some(info),
            _ => None,
        }
    }
}

/// Addresses of a running sandbox.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct SandboxInfo {
    pub pod_ips: Vec<String>,
}

/// The record of one container over all its attempts.
#[derive(Clone, Debug, Default)]
pub struct ContainerRecord {
    /// Number of restarts; also the number of the current attempt.
    pub restarts: u32,
    pub instance: Instance,
    /// How the previous attempt ended.
    pub last: Option<Termination>,
    pub image: ImageState,
    /// Why the last start failed before a process was created.
    pub start_error: Option<StartError>,
    pub started: bool,
    pub ready: bool,
    pub backoff: Backoff,
}

/// A failed start and when it is retried.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StartError {
    pub reason: String,
    pub message: String,
    pub retry_at: Timestamp,
}

/// The current process of a container.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum Instance {
    #[default]
    None,
    Starting,
    Running(Run),
    Exited(Termination),
}

/// A running process.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Run {
    pub id: String,
    pub started_at: Timestamp,
    /// A stop is in progress.
    pub stopping: bool,
}

/// How a process ended, as `state.terminated` reports it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Termination {
    pub id: String,
    pub exit_code: i32,
    pub signal: Option<i32>,
    pub reason: String,
    pub message: Option<String>,
    pub started_at: Option<Timestamp>,
    pub finished_at: Timestamp,
}

/// Progress of a container's image.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum ImageState {
    #[default]
    Needed,
    Pulling,
    Ready(ImageStatus),
    Failed {
        reason: String,
        message: String,
        failed_at: Timestamp,
        retry_at: Timestamp,
    },
}

/// The image as `containerStatuses` shows it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ImageStatus {
    pub image: String,
    pub image_id: String,
}

/// The Pod's `restartPolicy`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

impl RestartPolicy {
    pub fn of(spec: &PodSpec) -> Self {
        match spec.restart_policy.as_deref() {
            Some("Never") => Self::Never,
            Some("OnFailure") => Self::OnFailure,
            _ => Self::Always,
        }
    }

    /// Whether a main container is restarted after this exit code.
    pub fn restarts(self, exit_code: i32) -> bool {
        match self {
            Self::Always => true,
            Self::OnFailure => exit_code != 0,
            Self::Never => false,
        }
    }
}

/// The role of a container in its Pod; it decides when the container starts, restarts and stops.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Role {
    Init,
    Sidecar,
    Main,
}

/// All containers in start order, with their roles.
pub fn roles(spec: &PodSpec) -> impl Iterator<Item = (&Container, Role)> {
    let init =
        spec.init_containers.iter().flatten().map(|c| (c, if is_sidecar(c) { Role::Sidecar } else { Role::Init }));
    init.chain(spec.containers.iter().map(|c| (c, Role::Main)))
}

impl PodRecord {
    /// The record of a container; that of a container that never started if there is none.
    pub fn container(&self, name: &str) -> &ContainerRecord {
        const UNSTARTED: &ContainerRecord = &ContainerRecord {
            restarts: 0,
            instance: Instance::None,
            last: None,
            image: ImageState::Needed,
            start_error: None,
            started: false,
            ready: false,
            backoff: Backoff::new(),
        };
        self.containers.get(name).unwrap_or(UNSTARTED)
    }

    pub fn container_mut(&mut self, name: &str) -> &mut ContainerRecord {
        self.containers.entry(name.to_owned()).or_default()
    }

    /// Whether any container has a process or is starting.
    pub fn any_alive(&self) -> bool {
        self.containers.values().any(|c| c.instance.is_alive())
    }
}

impl Instance {
    pub fn is_alive(&self) -> bool {
        matches!(self, Self::Starting | Self::Running(_))
    }

    pub fn run(&self) -> Option<&Run> {
        match self {
            Self::Running(run) => Some(run),
            _ => None,
        }
    }

    pub fn termination(&self) -> Option<&Termination> {
        match self {
            Self::Exited(termination) => Some(termination),
            _ => None,
        }
    }
}

/// When the Pod's grace period ends, if it is being deleted.
pub fn deletion_deadline(pod: &Pod) -> Option<Timestamp> {
    pod.metadata.deletion_timestamp.as_ref().map(|t| t.0)
}

/// Time between the stop signal and SIGKILL.
pub fn grace_period(pod: &Pod) -> Duration {
    let requested = pod.metadata.deletion_grace_period_seconds;
    let seconds =
        requested.or_else(|| pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds)).unwrap_or(30);
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}
