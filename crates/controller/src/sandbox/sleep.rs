//! When a Sandbox is suspended for being idle and when a request wakes it: decided from its annotations.
//!
//! Routers record activity and report idleness; nothing else does. A report that was made after the idle time had passed
//! suspends the Sandbox, by a write that is valid only for the version with that report: activity that was recorded in
//! between makes it fail. So a router that recorded activity, and saw the Sandbox running in the response, knows that it
//! keeps running for the idle time.
//!
//! Besides, a Sandbox can have a time at which it is suspended whether or not it is used, and one for after a wake.

use std::time::Duration;

use agent_sandbox_api::{
    conditions::{DesiredCondition, IdleSuspend},
    keys::{self, annotations},
    owners,
    sleep::{self, IdlePolicy},
    v1beta1::OperatingMode,
};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::{api_client::Request, cache::Sandbox};

/// Event when a Sandbox is suspended because it was idle.
const IDLE_SUSPENDED: &str = "IdleSuspended";
/// Event when a Sandbox is suspended because its time is over.
const TIME_OVER: &str = "TimeOver";
/// Event when a request resumes a Sandbox.
const WOKEN: &str = "WokenByRequest";

/// A write to the Sandbox, valid only for the version it was decided for.
#[derive(Clone, Debug, PartialEq)]
pub struct SleepChange {
    pub request: Request,
    /// Reason and note of the event that reports it.
    pub event: Option<(&'static str, String)>,
}

/// What is to be changed now; `None` when nothing is. Members of pools wait for claims: they neither sleep nor wake.
pub(super) fn plan_sleep(sandbox: &Sandbox, now: Timestamp) -> Option<SleepChange> {
    if owners::owning_pool(&sandbox.metadata).is_some() {
        return None;
    }
    let annotation = |key| sandbox.annotation(key);
    let requested = annotation(annotations::WAKE_REQUESTED_AT);
    match (sandbox.operating_mode(), requested) {
        (OperatingMode::Suspended, None) => None,
        (OperatingMode::Suspended, Some(at)) if sleep::wakes_on_request(annotation) => Some(wake(sandbox, at, now)),
        // It runs already, or requests do not wake it: a request from before must not wake it later.
        (_, Some(_)) => Some(change(sandbox, json!({ annotations::WAKE_REQUESTED_AT: null }), None, None)),
        (OperatingMode::Running, None) => suspend_in_time(sandbox, now).or_else(|| suspend(sandbox, now)),
    }
}

fn wake(sandbox: &Sandbox, requested_at: &str, now: Timestamp) -> SleepChange {
    let mut annotations = Map::from_iter([
        (annotations::WAKE_REQUESTED_AT.to_owned(), Value::Null),
        (annotations::SUSPENDED_BY.to_owned(), Value::Null),
        (annotations::IDLE_REPORTED_AT.to_owned(), Value::Null),
    ]);
    if policy(sandbox).is_some() {
        annotations.insert(annotations::LAST_ACTIVITY_AT.to_owned(), sleep::format_time(now).into());
    }
    if let Some(end) = sleep::suspends_again_at(|key| sandbox.annotation(key), now) {
        annotations.insert(annotations::SUSPEND_AT.to_owned(), sleep::format_time(end).into());
    }
    let note = format!("A request at {requested_at} waits for it");
    change(sandbox, annotations.into(), Some(OperatingMode::Running), Some((WOKEN, note)))
}

/// Suspends a Sandbox whose time is over, also while it starts or is used.
fn suspend_in_time(sandbox: &Sandbox, now: Timestamp) -> Option<SleepChange> {
    let at = sleep::suspends_at(|key| sandbox.annotation(key)).filter(|at| *at <= now)?;
    let marks = json!({ annotations::SUSPEND_AT: null, annotations::IDLE_REPORTED_AT: null });
    let note = format!("Its time ended at {}", sleep::format_time(at));
    Some(change(sandbox, marks, Some(OperatingMode::Suspended), Some((TIME_OVER, note))))
}

/// Time left until a running Sandbox is suspended whether or not it is used. Members of pools never are.
pub(super) fn until_suspension(sandbox: &Sandbox, now: Timestamp) -> Option<Duration> {
    if owners::owning_pool(&sandbox.metadata).is_some() || sandbox.operating_mode() == OperatingMode::Suspended {
        return None;
    }
    let at = sleep::suspends_at(|key| sandbox.annotation(key))?;
    Some(Duration::try_from(at.duration_since(now)).unwrap_or(Duration::ZERO))
}

/// Suspends a Ready Sandbox that a router found idle after its idle time.
fn suspend(sandbox: &Sandbox, now: Timestamp) -> Option<SleepChange> {
    let policy = policy(sandbox)?;
    let due = policy.due_at(|key| sandbox.annotation(key), sandbox.conditions())?;
    let reported = sleep::time(sandbox.annotation(annotations::IDLE_REPORTED_AT))?;
    if reported < due || now < due {
        return None;
    }
    let marks = json!({ annotations::SUSPENDED_BY: keys::SUSPENDED_BY_IDLENESS, annotations::IDLE_REPORTED_AT: null });
    let note = format!("No activity for {}", sleep::format_duration(policy.after));
    Some(change(sandbox, marks, Some(OperatingMode::Suspended), Some((IDLE_SUSPENDED, note))))
}

fn change(
    sandbox: &Sandbox,
    annotations: Value,
    mode: Option<OperatingMode>,
    event: Option<(&'static str, String)>,
) -> SleepChange {
    let mut body = json!({ "metadata": { "annotations": annotations } });
    if let Some(mode) = mode {
        body["spec"] = json!({ "operatingMode": mode });
    }
    SleepChange { request: Request::patch_exact(sandbox, body), event }
}

/// The valid idle policy of a Sandbox that no pool owns.
fn policy(sandbox: &Sandbox) -> Option<IdlePolicy> {
    if owners::owning_pool(&sandbox.metadata).is_some() {
        return None;
    }
    IdlePolicy::read(|key| sandbox.annotation(key)).ok().flatten()
}

/// The annotations of the Pod that tell routers when the Sandbox is idle.
pub(super) fn pod_policy(sandbox: &Sandbox) -> Vec<(String, String)> {
    if policy(sandbox).is_none() {
        return Vec::new();
    }
    let pair = |key: &str| Some((key.to_owned(), sandbox.annotation(key)?.to_owned()));
    [annotations::IDLE_TIMEOUT, annotations::IDLE_PROCESSES].into_iter().filter_map(pair).collect()
}

/// Whether the Sandbox has an idle time and no activity is recorded yet.
pub(super) fn lacks_activity(sandbox: &Sandbox) -> bool {
    let recorded = sleep::time(sandbox.annotation(annotations::LAST_ACTIVITY_AT));
    sandbox.operating_mode() == OperatingMode::Running && recorded.is_none() && policy(sandbox).is_some()
}

/// Whether the Sandbox still has the mark of an idle suspension that a user has ended.
pub(super) fn is_resumed(sandbox: &Sandbox) -> bool {
    sandbox.operating_mode() == OperatingMode::Running && sandbox.annotation(annotations::SUSPENDED_BY).is_some()
}

/// The condition that says when the Sandbox sleeps, or why it does.
pub(super) fn idle_suspend(sandbox: &Sandbox) -> Option<DesiredCondition> {
    if owners::owning_pool(&sandbox.metadata).is_some() {
        return None;
    }
    let annotation = |key| sandbox.annotation(key);
    let condition = match (IdlePolicy::read(annotation), sleep::Wake::read(annotation)) {
        (Err(error), _) | (_, Err(error)) => IdleSuspend::Invalid(error.to_string()),
        (Ok(None), Ok(_)) => return None,
        (Ok(Some(policy)), Ok(_)) => {
            let after = sleep::format_duration(policy.after);
            let asleep = sandbox.operating_mode() == OperatingMode::Suspended
                && annotation(annotations::SUSPENDED_BY) == Some(keys::SUSPENDED_BY_IDLENESS);
            match asleep {
                true => IdleSuspend::Idle { after, wakes: sleep::wakes_on_request(annotation) },
                false => IdleSuspend::NotIdle { after },
            }
        }
    };
    Some(condition.desired_condition())
}
