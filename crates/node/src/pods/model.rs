//! What the node knows about one Pod: the input of every decision, free of IO and of the clock.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

use super::backoff::Backoff;
use super::resources::is_sidecar;

/// Everything the node remembers about a Pod between two decisions.
#[derive(Clone, Debug, Default)]
pub struct PodState {
    pub volumes: Volumes,
    pub sandbox: Sandbox,
    pub containers: BTreeMap<String, ContainerRecord>,
    /// Set when the node ends the Pod itself: refused, evicted, out of time. The Pod is then Failed with this reason.
    pub verdict: Option<Verdict>,
    /// When the node first saw the Pod (`status.startTime`).
    pub started_at: Option<Timestamp>,
    /// What holds the limits of its volumes, once they are made.
    pub storage: Option<crate::evict::Holding>,
    /// Set once the final status was written, so that the object may be removed.
    pub final_status_written: bool,
}

/// Why the node ended a Pod.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Verdict {
    pub reason: String,
    pub message: String,
}

/// Progress of the volumes.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum Volumes {
    #[default]
    Unprepared,
    Preparing,
    Ready,
    Failed {
        message: String,
        retry_at: Timestamp,
    },
}

/// The Pod's own namespaces and network, which outlive single containers.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum Sandbox {
    #[default]
    Absent,
    Creating,
    Up(SandboxInfo),
    Failed {
        message: String,
        retry_at: Timestamp,
    },
    Removing,
}

impl Sandbox {
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

/// One container, over all its attempts.
#[derive(Clone, Debug, Default)]
pub struct ContainerRecord {
    /// Restarts so far; also the number of the present attempt.
    pub restarts: u32,
    pub instance: Instance,
    /// How the attempt before the present one ended.
    pub last: Option<Termination>,
    pub image: ImageStep,
    /// Why the last start failed before a process existed.
    pub start_error: Option<StartError>,
    pub started: bool,
    pub ready: bool,
    pub backoff: Backoff,
}

/// A start that failed and when to try again.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StartError {
    pub reason: String,
    pub message: String,
    pub retry_at: Timestamp,
}

/// The present process of a container.
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
    /// A stop is under way; its exit is awaited.
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
pub enum ImageStep {
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

/// What `containerStatuses` says about an image.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ImageStatus {
    pub image: String,
    pub image_id: String,
}

/// The three values of `restartPolicy`.
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

    /// Whether a main container that ended like this runs again.
    pub fn restarts(self, exit_code: i32) -> bool {
        match self {
            Self::Always => true,
            Self::OnFailure => exit_code != 0,
            Self::Never => false,
        }
    }
}

/// What a container is in its Pod; decides when it starts, whether it restarts and when it stops.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Role {
    Init,
    Sidecar,
    Main,
}

/// All containers in starting order, with their roles.
pub fn roles(spec: &PodSpec) -> impl Iterator<Item = (&Container, Role)> {
    let init =
        spec.init_containers.iter().flatten().map(|c| (c, if is_sidecar(c) { Role::Sidecar } else { Role::Init }));
    init.chain(spec.containers.iter().map(|c| (c, Role::Main)))
}

impl PodState {
    pub fn record(&self, name: &str) -> &ContainerRecord {
        const FRESH: &ContainerRecord = &ContainerRecord {
            restarts: 0,
            instance: Instance::None,
            last: None,
            image: ImageStep::Needed,
            start_error: None,
            started: false,
            ready: false,
            backoff: Backoff::new(),
        };
        self.containers.get(name).unwrap_or(FRESH)
    }

    pub fn record_mut(&mut self, name: &str) -> &mut ContainerRecord {
        self.containers.entry(name.to_owned()).or_default()
    }

    /// A container has a process, or is about to have one.
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

/// When the Pod must be gone, if it is being deleted.
pub fn deletion_deadline(pod: &Pod) -> Option<Timestamp> {
    pod.metadata.deletion_timestamp.as_ref().map(|t| t.0)
}

/// How long containers get between SIGTERM and SIGKILL.
pub fn grace_period(pod: &Pod) -> Duration {
    let asked = pod.metadata.deletion_grace_period_seconds;
    let seconds = asked.or_else(|| pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds)).unwrap_or(30);
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}
