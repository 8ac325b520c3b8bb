//! Plans what to do next for a Pod, given its object and its record. Pure and total.
//!
//! Work in progress is part of the record (`Creating`, `Pulling`, `Starting`, `stopping`), so the same record gives the
//! same plan and nothing is started twice.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

use crate::kubelet::model::{
    ContainerRecord, ImageState, Instance, PodFailure, PodRecord, RestartPolicy, Role, SandboxState, VolumesState,
    deletion_deadline, grace_period, roles,
};

/// One step of a plan.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Action {
    PrepareVolumes,
    CreateSandbox,
    PullImage {
        container: String,
    },
    StartContainer {
        container: String,
        attempt: u32,
    },
    /// Run the preStop hook, send SIGTERM, and SIGKILL after the grace period.
    StopContainer {
        container: String,
        grace: Duration,
    },
    RemoveSandbox,
    /// End the Pod with this reason.
    Fail(PodFailure),
    /// Nothing of the Pod is left on this machine: delete the object.
    DeleteObject,
}

/// A complete decision.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Plan {
    pub actions: Vec<Action>,
    /// When to plan again if no event comes before.
    pub wake_at: Option<Timestamp>,
}

impl Plan {
    fn wake(&mut self, at: Timestamp) {
        self.wake_at = Some(self.wake_at.map_or(at, |now| now.min(at)));
    }

    fn act(&mut self, action: Action) {
        self.actions.push(action);
    }
}

/// Why a Pod is ended.
enum EndReason {
    Deleted,
    Finished,
}

/// Plans the next steps for a Pod.
pub fn plan(pod: &Pod, state: &PodRecord, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let Some(spec) = pod.spec.as_ref() else { return plan };
    if deletion_deadline(pod).is_some() {
        end(pod, spec, state, now, EndReason::Deleted, &mut plan);
        return plan;
    }
    if state.failure.is_some() || is_finished(spec, state) {
        end(pod, spec, state, now, EndReason::Finished, &mut plan);
        return plan;
    }
    if let Some(failure) = deadline_failure(spec, state, now, &mut plan) {
        plan.act(Action::Fail(failure));
        return plan;
    }
    prepare(state, now, &mut plan);
    run(spec, state, now, &mut plan);
    plan
}

/// Whether no container will run again: the Pod has Succeeded or Failed.
pub fn is_finished(spec: &PodSpec, state: &PodRecord) -> bool {
    let policy = RestartPolicy::of(spec);
    if init_failed(spec, state) {
        return true;
    }
    spec.containers
        .iter()
        .all(|c| state.container(&c.name).instance.termination().is_some_and(|t| !policy.restarts(t.exit_code)))
        && !spec.containers.is_empty()
}

/// Whether an init container failed and will not be restarted.
pub fn init_failed(spec: &PodSpec, state: &PodRecord) -> bool {
    RestartPolicy::of(spec) == RestartPolicy::Never
        && roles(spec).any(|(c, role)| {
            role == Role::Init && state.container(&c.name).instance.termination().is_some_and(|t| t.exit_code != 0)
        })
}

fn deadline_failure(spec: &PodSpec, state: &PodRecord, now: Timestamp, plan: &mut Plan) -> Option<PodFailure> {
    let seconds = spec.active_deadline_seconds?;
    let deadline = state.started_at?.saturating_add(SignedDuration::from_secs(seconds)).ok()?;
    if now < deadline {
        plan.wake(deadline);
        return None;
    }
    Some(PodFailure {
        reason: "DeadlineExceeded".to_owned(),
        message: "Pod was active on the node longer than the specified deadline".to_owned(),
    })
}

/// Upper bound for the retry delay of a failed preparation or start; actual delays are much shorter.
const MAX_RETRY_DELAY: SignedDuration = SignedDuration::from_secs(60);

/// Whether a delay until `until`, which was set to at most `longest`, is over. If the remaining time is longer than
/// that, the machine's clock was moved back after the delay was set, and the delay counts as over.
fn is_due(until: Timestamp, longest: SignedDuration, now: Timestamp) -> bool {
    until <= now || until.duration_since(now) > longest
}

/// Plans volumes and sandbox, which depend neither on each other nor on the images.
fn prepare(state: &PodRecord, now: Timestamp, plan: &mut Plan) {
    match &state.volumes {
        VolumesState::Unprepared => plan.act(Action::PrepareVolumes),
        VolumesState::Failed { retry_at, .. } if is_due(*retry_at, MAX_RETRY_DELAY, now) => {
            plan.act(Action::PrepareVolumes)
        }
        VolumesState::Failed { retry_at, .. } => plan.wake(*retry_at),
        VolumesState::Preparing | VolumesState::Ready => {}
    }
    match &state.sandbox {
        SandboxState::Absent => plan.act(Action::CreateSandbox),
        SandboxState::Failed { retry_at, .. } if is_due(*retry_at, MAX_RETRY_DELAY, now) => {
            plan.act(Action::CreateSandbox)
        }
        SandboxState::Failed { retry_at, .. } => plan.wake(*retry_at),
        SandboxState::RemovalFailed { retry_at } => remove_again(*retry_at, now, plan),
        SandboxState::Creating | SandboxState::Up(_) | SandboxState::Removing => {}
    }
}

fn remove_again(retry_at: Timestamp, now: Timestamp, plan: &mut Plan) {
    if is_due(retry_at, MAX_RETRY_DELAY, now) {
        plan.act(Action::RemoveSandbox);
    } else {
        plan.wake(retry_at);
    }
}

/// Plans the starts that are possible now: init containers one after the other, then all main containers.
fn run(spec: &PodSpec, state: &PodRecord, now: Timestamp, plan: &mut Plan) {
    let policy = RestartPolicy::of(spec);
    let initialized = spec.containers.iter().any(|c| state.container(&c.name).instance != Instance::None);
    let mut blocked = false;
    for (container, role) in roles(spec) {
        let record = state.container(&container.name);
        // Images of later containers are pulled while init containers run.
        pull(container, record, now, plan);
        if blocked {
            continue;
        }
        match (&record.instance, role) {
            (Instance::Starting, _) => blocked = role != Role::Main,
            (Instance::Running(_), Role::Init) => blocked = !initialized,
            (Instance::Running(_), Role::Sidecar) => blocked = !record.started && !initialized,
            (Instance::Running(_), Role::Main) => {}
            (Instance::Exited(t), Role::Init) if t.exit_code == 0 || initialized => {}
            (Instance::Exited(t), Role::Main) if !policy.restarts(t.exit_code) => {}
            (Instance::None, Role::Init) if initialized => {}
            (Instance::None | Instance::Exited(_), _) => {
                start(container, record, state, now, plan);
                blocked = role != Role::Main && !initialized;
            }
        }
    }
}

fn pull(container: &Container, record: &ContainerRecord, now: Timestamp, plan: &mut Plan) {
    let request = || Action::PullImage { container: container.name.clone() };
    match &record.image {
        ImageState::Needed => plan.act(request()),
        ImageState::Failed { failed_at, retry_at, .. }
            if is_due(*retry_at, retry_at.duration_since(*failed_at), now) =>
        {
            plan.act(request());
        }
        ImageState::Failed { failed_at, retry_at, .. } => {
            plan.wake(*retry_at);
            let shown_as_backoff =
                failed_at.saturating_add(crate::kubelet::status::PULL_ERROR_SHOWN).unwrap_or(*retry_at);
            if shown_as_backoff > now {
                plan.wake(shown_as_backoff);
            }
        }
        ImageState::Pulling | ImageState::Ready(_) => {}
    }
}

/// Plans the start of a container that is not running, or when to check again; nothing while a prerequisite is missing.
fn start(container: &Container, record: &ContainerRecord, state: &PodRecord, now: Timestamp, plan: &mut Plan) {
    if state.volumes != VolumesState::Ready
        || state.sandbox.info().is_none()
        || !matches!(record.image, ImageState::Ready(_))
    {
        return;
    }
    let retry = record.start_error.as_ref().map(|error| (error.retry_at, MAX_RETRY_DELAY));
    let back_off = record.instance.termination().map(|termination| {
        let next = record.backoff.next_attempt(termination.finished_at);
        (next, next.duration_since(termination.finished_at))
    });
    let pauses = [retry, back_off].into_iter().flatten().filter(|(until, longest)| !is_due(*until, *longest, now));
    if let Some(not_before) = pauses.map(|(until, _)| until).max() {
        plan.wake(not_before);
        return;
    }
    let attempt = match record.instance {
        Instance::Exited(_) => record.restarts + 1,
        _ => record.restarts,
    };
    plan.act(Action::StartContainer { container: container.name.clone(), attempt });
}

/// Plans the end of a Pod: main containers stop first, then sidecars in reverse order, then the sandbox is removed.
fn end(pod: &Pod, spec: &PodSpec, state: &PodRecord, now: Timestamp, why: EndReason, plan: &mut Plan) {
    let grace = match (&why, deletion_deadline(pod)) {
        (EndReason::Deleted, Some(deadline)) => {
            let left = Duration::try_from(deadline.duration_since(now)).unwrap_or_default();
            left.min(grace_period(pod))
        }
        _ => grace_period(pod),
    };
    let mut sidecars = Vec::new();
    let mut main_alive = false;
    for (container, role) in roles(spec) {
        let instance = &state.container(&container.name).instance;
        if role == Role::Sidecar {
            sidecars.push((container, instance));
            continue;
        }
        main_alive |= instance.is_alive();
        stop(container, instance, grace, plan);
    }
    if !main_alive && let Some((container, instance)) = sidecars.iter().rev().find(|(_, i)| i.is_alive()) {
        stop(container, instance, grace, plan);
    }
    let working = state.any_alive() || state.volumes == VolumesState::Preparing;
    match &state.sandbox {
        _ if working => {}
        SandboxState::Up(_) => plan.act(Action::RemoveSandbox),
        SandboxState::RemovalFailed { retry_at } => remove_again(*retry_at, now, plan),
        SandboxState::Creating | SandboxState::Removing => {}
        SandboxState::Absent | SandboxState::Failed { .. } => {
            if matches!(why, EndReason::Deleted) && state.final_status_written {
                plan.act(Action::DeleteObject);
            }
        }
    }
}

fn stop(container: &Container, instance: &Instance, grace: Duration, plan: &mut Plan) {
    if let Instance::Running(run) = instance
        && !run.stopping
    {
        plan.act(Action::StopContainer { container: container.name.clone(), grace });
    }
}

#[cfg(test)]
mod tests;
