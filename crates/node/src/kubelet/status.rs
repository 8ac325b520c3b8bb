//! Computes the `status` of a Pod from its record, with the reasons and messages of the upstream kubelet. Pure.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
    HostIP, Pod, PodCondition, PodIP, PodSpec, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::kubelet::model::{
    ContainerRecord, ImageState, Instance, PodRecord, RestartPolicy, Role, Run, Termination, deletion_deadline, roles,
};
use crate::kubelet::plan::{init_failed, is_finished};
use crate::kubelet::resources::qos_class;

pub mod conditions;

/// How long a failed pull is shown as `ErrImagePull` before it is shown as `ImagePullBackOff`; upstream alternates the
/// two.
pub const PULL_ERROR_SHOWN: SignedDuration = SignedDuration::from_secs(1);

/// The phases the node reports.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
}

impl Phase {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }
}

/// Inputs of the status besides the Pod's object and record.
#[derive(Clone, Copy, Debug)]
pub struct StatusContext<'a> {
    pub now: Timestamp,
    /// The addresses of the machine.
    pub host_ips: &'a [String],
    /// The last status, whose transition times are kept.
    pub previous: Option<&'a PodStatus>,
}

/// Computes the whole status.
pub fn compute(pod: &Pod, state: &PodRecord, context: StatusContext<'_>) -> PodStatus {
    let Some(spec) = pod.spec.as_ref() else { return PodStatus::default() };
    let phase = phase(spec, state, context.previous);
    let finished = matches!(phase, Phase::Succeeded | Phase::Failed) || deletion_deadline(pod).is_some();
    let mut init = Vec::new();
    let mut main = Vec::new();
    let initialized = conditions::is_initialized(spec, state);
    for (container, role) in roles(spec) {
        let view = ContainerView {
            pod,
            spec,
            container,
            role,
            record: state.container(&container.name),
            initialized,
            finished,
        };
        let status = container_status(&view, context.now);
        if role == Role::Main { main.push(status) } else { init.push(status) }
    }
    let pod_ips: Vec<String> = match (state.sandbox.info(), context.previous) {
        (Some(info), _) => info.pod_ips.clone(),
        // A Pod that has ended keeps its addresses in the status, as with a kubelet.
        (None, Some(previous)) if finished => previous.pod_ips.iter().flatten().map(|ip| ip.ip.clone()).collect(),
        _ => Vec::new(),
    };
    let conditions = conditions::compute(pod, spec, state, phase, &init, &main, context);
    PodStatus {
        phase: Some(phase.as_str().to_owned()),
        conditions: Some(conditions),
        container_statuses: Some(main),
        init_container_statuses: (!init.is_empty()).then_some(init),
        host_ip: context.host_ips.first().cloned(),
        host_ips: Some(context.host_ips.iter().map(|ip| HostIP { ip: ip.clone() }).collect()),
        pod_ip: pod_ips.first().cloned(),
        pod_ips: (!pod_ips.is_empty()).then(|| pod_ips.into_iter().map(|ip| PodIP { ip }).collect()),
        start_time: state.started_at.map(whole_seconds),
        qos_class: Some(qos_class(spec).as_str().to_owned()),
        reason: state.failure.as_ref().map(|v| v.reason.clone()),
        message: state.failure.as_ref().map(|v| v.message.clone()),
        observed_generation: pod.metadata.generation,
        ..PodStatus::default()
    }
}

/// The Pod's phase. A final phase never changes.
fn phase(spec: &PodSpec, state: &PodRecord, previous: Option<&PodStatus>) -> Phase {
    match previous.and_then(|p| p.phase.as_deref()) {
        Some("Succeeded") => return Phase::Succeeded,
        Some("Failed") => return Phase::Failed,
        _ => {}
    }
    if state.failure.is_some() {
        return if state.any_alive() { live_phase(spec, state) } else { Phase::Failed };
    }
    live_phase(spec, state)
}

fn live_phase(spec: &PodSpec, state: &PodRecord) -> Phase {
    if state.any_alive() && is_finished(spec, state) {
        return Phase::Running;
    }
    if init_failed(spec, state) {
        return Phase::Failed;
    }
    let policy = RestartPolicy::of(spec);
    let (mut running, mut waiting, mut stopped, mut succeeded) = (0, 0, 0, 0);
    for container in &spec.containers {
        let record = state.container(&container.name);
        match &record.instance {
            Instance::Running(_) => running += 1,
            Instance::Exited(t) => {
                stopped += 1;
                succeeded += u32::from(t.exit_code == 0);
            }
            // A container that is about to be restarted counts as running.
            Instance::None | Instance::Starting if record.last.is_some() => running += 1,
            Instance::None | Instance::Starting => waiting += 1,
        }
    }
    match () {
        () if waiting > 0 => Phase::Pending,
        () if running > 0 => Phase::Running,
        () if stopped == 0 => Phase::Pending,
        () if policy == RestartPolicy::Always => Phase::Running,
        () if stopped == succeeded => Phase::Succeeded,
        () if policy == RestartPolicy::Never => Phase::Failed,
        () => Phase::Running,
    }
}

/// A container with everything its status depends on.
struct ContainerView<'a> {
    pod: &'a Pod,
    spec: &'a PodSpec,
    container: &'a Container,
    role: Role,
    record: &'a ContainerRecord,
    initialized: bool,
    /// No container of the Pod will start any more.
    finished: bool,
}

fn container_status(view: &ContainerView<'_>, now: Timestamp) -> ContainerStatus {
    let record = view.record;
    let image = match &record.image {
        ImageState::Ready(image) => (image.image.clone(), image.image_id.clone()),
        _ => (view.container.image.clone().unwrap_or_default(), String::new()),
    };
    let (state, last_state) = states(view, now);
    let running = matches!(record.instance, Instance::Running(_));
    ContainerStatus {
        name: view.container.name.clone(),
        ready: match view.role {
            Role::Init => record.instance.termination().is_some_and(|t| t.exit_code == 0),
            Role::Sidecar | Role::Main => running && record.ready,
        },
        started: Some(running && record.started),
        restart_count: i32::try_from(record.restarts).unwrap_or(i32::MAX),
        image: image.0,
        image_id: image.1,
        container_id: current_id(&record.instance).or_else(|| record.last.as_ref().map(|t| t.id.clone())),
        state: Some(state),
        last_state,
        resources: view.container.resources.clone(),
        ..ContainerStatus::default()
    }
}

fn current_id(instance: &Instance) -> Option<String> {
    match instance {
        Instance::Running(run) => Some(run.id.clone()),
        Instance::Exited(termination) => Some(termination.id.clone()),
        Instance::None | Instance::Starting => None,
    }
    .filter(|id| !id.is_empty())
}

/// `state` and `lastState`.
fn states(view: &ContainerView<'_>, now: Timestamp) -> (ContainerState, Option<ContainerState>) {
    let record = view.record;
    let last = record.last.as_ref().map(terminated);
    match &record.instance {
        Instance::Running(run) => (running(run), last),
        Instance::Exited(t) => match waiting_to_restart(view, t, now) {
            Some(waiting) => (waiting, Some(terminated(t))),
            None => (terminated(t), last),
        },
        Instance::None | Instance::Starting => (waiting(view, now), last),
    }
}

fn running(run: &Run) -> ContainerState {
    let started_at = Some(whole_seconds(run.started_at));
    ContainerState { running: Some(ContainerStateRunning { started_at }), ..ContainerState::default() }
}

fn terminated(t: &Termination) -> ContainerState {
    let state = ContainerStateTerminated {
        container_id: Some(t.id.clone()).filter(|id| !id.is_empty()),
        exit_code: t.exit_code,
        signal: t.signal,
        reason: Some(t.reason.clone()),
        message: t.message.clone(),
        started_at: t.started_at.map(whole_seconds),
        finished_at: Some(whole_seconds(t.finished_at)),
    };
    ContainerState { terminated: Some(state), ..ContainerState::default() }
}

fn waiting_state(reason: &str, message: Option<String>) -> ContainerState {
    let state = ContainerStateWaiting { reason: Some(reason.to_owned()), message };
    ContainerState { waiting: Some(state), ..ContainerState::default() }
}

/// What an exited container is waiting for; `None` if it is not restarted or will be restarted at once.
fn waiting_to_restart(view: &ContainerView<'_>, t: &Termination, now: Timestamp) -> Option<ContainerState> {
    let policy = RestartPolicy::of(view.spec);
    let restarts = match view.role {
        Role::Sidecar => true,
        Role::Init => t.exit_code != 0 && policy != RestartPolicy::Never,
        Role::Main => policy.restarts(t.exit_code),
    };
    if view.finished || !restarts {
        return None;
    }
    if let Some(error) = &view.record.start_error {
        return Some(waiting_state(&error.reason, Some(error.message.clone())));
    }
    let delay = view.record.backoff.delay();
    (view.record.backoff.next_attempt(t.finished_at) > now).then(|| {
        let meta = &view.pod.metadata;
        let message = format!(
            "back-off {} restarting failed container={} pod={}_{}({})",
            go_duration(delay.as_secs()),
            view.container.name,
            meta.name.as_deref().unwrap_or_default(),
            meta.namespace.as_deref().unwrap_or_default(),
            meta.uid.as_deref().unwrap_or_default(),
        );
        waiting_state("CrashLoopBackOff", Some(message))
    })
}

/// Seconds as Go prints a duration: `10s`, `1m20s`, `5m0s`.
fn go_duration(seconds: u64) -> String {
    match seconds / 60 {
        0 => format!("{seconds}s"),
        minutes => format!("{minutes}m{}s", seconds % 60),
    }
}

/// What a container that never ran is waiting for.
fn waiting(view: &ContainerView<'_>, now: Timestamp) -> ContainerState {
    if let Some(error) = &view.record.start_error {
        return waiting_state(&error.reason, Some(error.message.clone()));
    }
    let blocked_by_init = view.role == Role::Main && !view.initialized;
    if let ImageState::Failed { reason, message, failed_at, .. } = &view.record.image
        && !blocked_by_init
    {
        let shown = failed_at.saturating_add(PULL_ERROR_SHOWN).is_ok_and(|until| now < until);
        if reason != "ErrImagePull" || shown {
            return waiting_state(reason, Some(message.clone()));
        }
        let image = view.container.image.as_deref().unwrap_or_default();
        let message = format!("Back-off pulling image {image:?}: {reason}: {message}");
        return waiting_state("ImagePullBackOff", Some(message));
    }
    let has_init = view.spec.init_containers.as_ref().is_some_and(|i| !i.is_empty());
    waiting_state(if has_init { "PodInitializing" } else { "ContainerCreating" }, None)
}

/// A time without fractions of a second: the API drops them, and a status must equal its stored form.
pub fn whole_seconds(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

/// The condition of this type, if the status has it.
pub fn condition<'a>(status: &'a PodStatus, type_: &str) -> Option<&'a PodCondition> {
    status.conditions.iter().flatten().find(|c| c.type_ == type_)
}

#[cfg(test)]
mod tests;
