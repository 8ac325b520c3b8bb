//! The decision: what to do next for a Pod, given everything known about it. Pure and total.
//!
//! Work that is under way is part of the state (`Creating`, `Pulling`, `Starting`, `stopping`), so the same state gives
//! the same plan and nothing is started twice.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

use super::model::{
    ContainerRecord, ImageStep, Instance, PodState, RestartPolicy, Role, Sandbox, Verdict, Volumes, deletion_deadline,
    grace_period, roles,
};

/// One thing to do.
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
    /// preStop, SIGTERM, and SIGKILL after the grace period.
    StopContainer {
        container: String,
        grace: Duration,
    },
    RemoveSandbox,
    /// The Pod ends now, with this reason.
    Fail(Verdict),
    /// Nothing of the Pod is left here: remove the object.
    DeleteObject,
}

/// A complete decision.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Plan {
    pub actions: Vec<Action>,
    /// When to decide again although nothing happened.
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

/// Why a Pod does not go on.
enum End {
    Deleted,
    Finished,
}

/// Decides the next steps for a Pod.
pub fn plan(pod: &Pod, state: &PodState, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let Some(spec) = pod.spec.as_ref() else { return plan };
    if deletion_deadline(pod).is_some() {
        end(pod, spec, state, now, End::Deleted, &mut plan);
        return plan;
    }
    if state.verdict.is_some() || is_finished(spec, state) {
        end(pod, spec, state, now, End::Finished, &mut plan);
        return plan;
    }
    if let Some(verdict) = deadline_verdict(spec, state, now, &mut plan) {
        plan.act(Action::Fail(verdict));
        return plan;
    }
    prepare(state, now, &mut plan);
    run(pod, spec, state, now, &mut plan);
    plan
}

/// No container will run again: the Pod has Succeeded or Failed.
pub fn is_finished(spec: &PodSpec, state: &PodState) -> bool {
    let policy = RestartPolicy::of(spec);
    if init_failed(spec, state) {
        return true;
    }
    spec.containers
        .iter()
        .all(|c| state.record(&c.name).instance.termination().is_some_and(|t| !policy.restarts(t.exit_code)))
        && !spec.containers.is_empty()
}

/// An init container failed and will not be tried again.
pub fn init_failed(spec: &PodSpec, state: &PodState) -> bool {
    RestartPolicy::of(spec) == RestartPolicy::Never
        && roles(spec).any(|(c, role)| {
            role == Role::Init && state.record(&c.name).instance.termination().is_some_and(|t| t.exit_code != 0)
        })
}

fn deadline_verdict(spec: &PodSpec, state: &PodState, now: Timestamp, plan: &mut Plan) -> Option<Verdict> {
    let seconds = spec.active_deadline_seconds?;
    let deadline = state.started_at?.saturating_add(SignedDuration::from_secs(seconds)).ok()?;
    if now < deadline {
        plan.wake(deadline);
        return None;
    }
    Some(Verdict {
        reason: "DeadlineExceeded".to_owned(),
        message: "Pod was active on the node longer than the specified deadline".to_owned(),
    })
}

/// Longest a failed preparation or start waits before it is tried again; far more than it is told to.
const LONGEST_RETRY: SignedDuration = SignedDuration::from_secs(60);

/// Whether a pause that was to last at most `longest` is over. One that seems longer was begun before somebody moved the machine's
/// clock back, and nobody waits for that.
fn is_over(until: Timestamp, longest: SignedDuration, now: Timestamp) -> bool {
    until <= now || until.duration_since(now) > longest
}

/// Volumes and sandbox, independent of each other and of the images.
fn prepare(state: &PodState, now: Timestamp, plan: &mut Plan) {
    match &state.volumes {
        Volumes::Unprepared => plan.act(Action::PrepareVolumes),
        Volumes::Failed { retry_at, .. } if is_over(*retry_at, LONGEST_RETRY, now) => plan.act(Action::PrepareVolumes),
        Volumes::Failed { retry_at, .. } => plan.wake(*retry_at),
        Volumes::Preparing | Volumes::Ready => {}
    }
    match &state.sandbox {
        Sandbox::Absent => plan.act(Action::CreateSandbox),
        Sandbox::Failed { retry_at, .. } if is_over(*retry_at, LONGEST_RETRY, now) => plan.act(Action::CreateSandbox),
        Sandbox::Failed { retry_at, .. } => plan.wake(*retry_at),
        Sandbox::Creating | Sandbox::Up(_) | Sandbox::Removing => {}
    }
}

/// Starts what may start: init containers one after the other, then all main ones.
fn run(pod: &Pod, spec: &PodSpec, state: &PodState, now: Timestamp, plan: &mut Plan) {
    let policy = RestartPolicy::of(spec);
    let initialized = spec.containers.iter().any(|c| state.record(&c.name).instance != Instance::None);
    let mut blocked = false;
    for (container, role) in roles(spec) {
        let record = state.record(&container.name);
        // Images are fetched ahead: what an init container does overlaps with the download.
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
                start(pod, container, record, state, now, plan);
                blocked = role != Role::Main && !initialized;
            }
        }
    }
}

fn pull(container: &Container, record: &ContainerRecord, now: Timestamp, plan: &mut Plan) {
    let request = || Action::PullImage { container: container.name.clone() };
    match &record.image {
        ImageStep::Needed => plan.act(request()),
        ImageStep::Failed { failed_at, retry_at, .. }
            if is_over(*retry_at, retry_at.duration_since(*failed_at), now) =>
        {
            plan.act(request());
        }
        ImageStep::Failed { failed_at, retry_at, .. } => {
            plan.wake(*retry_at);
            let shown_as_backoff = failed_at.saturating_add(super::status::PULL_ERROR_SHOWN).unwrap_or(*retry_at);
            if shown_as_backoff > now {
                plan.wake(shown_as_backoff);
            }
        }
        ImageStep::Pulling | ImageStep::Ready(_) => {}
    }
}

/// When a container that is not running may start; `None` while something it needs is missing.
fn start(
    _pod: &Pod,
    container: &Container,
    record: &ContainerRecord,
    state: &PodState,
    now: Timestamp,
    plan: &mut Plan,
) {
    if state.volumes != Volumes::Ready || state.sandbox.info().is_none() || !matches!(record.image, ImageStep::Ready(_))
    {
        return;
    }
    let retry = record.start_error.as_ref().map(|error| (error.retry_at, LONGEST_RETRY));
    let back_off = record.instance.termination().map(|termination| {
        let next = record.backoff.next_attempt(termination.finished_at);
        (next, next.duration_since(termination.finished_at))
    });
    let pauses = [retry, back_off].into_iter().flatten().filter(|(until, longest)| !is_over(*until, *longest, now));
    if let Some(earliest) = pauses.map(|(until, _)| until).max() {
        plan.wake(earliest);
        return;
    }
    let attempt = match record.instance {
        Instance::Exited(_) => record.restarts + 1,
        _ => record.restarts,
    };
    plan.act(Action::StartContainer { container: container.name.clone(), attempt });
}

/// Stops main containers first, sidecars after them in reverse order, then the sandbox.
fn end(pod: &Pod, spec: &PodSpec, state: &PodState, now: Timestamp, why: End, plan: &mut Plan) {
    let grace = match (&why, deletion_deadline(pod)) {
        (End::Deleted, Some(deadline)) => {
            let left = Duration::try_from(deadline.duration_since(now)).unwrap_or_default();
            left.min(grace_period(pod))
        }
        _ => grace_period(pod),
    };
    let mut sidecars = Vec::new();
    let mut main_alive = false;
    for (container, role) in roles(spec) {
        let instance = &state.record(&container.name).instance;
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
    let working = state.any_alive() || state.volumes == Volumes::Preparing;
    match &state.sandbox {
        _ if working => {}
        Sandbox::Up(_) => plan.act(Action::RemoveSandbox),
        Sandbox::Creating | Sandbox::Removing => {}
        Sandbox::Absent | Sandbox::Failed { .. } => {
            if matches!(why, End::Deleted) && state.final_status_written {
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
