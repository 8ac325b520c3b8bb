//! What a status write says has happened to a Sandbox, for the metrics: suspend, resume, end and expiry.

use agent_sandbox_api::{
    conditions::{self, ConditionType, Reason},
    v1beta1::OperatingMode,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// A step in the life of a Sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    SuspendRequested,
    /// The Pod is gone.
    Suspended,
    /// The first of a series of failed passes over a Sandbox that should be suspended.
    SuspendFailed,
    ResumeRequested,
    /// Ready again after a suspension.
    Resumed,
    /// The first of a series of failed passes over a Sandbox that is being resumed.
    ResumeFailed,
    /// The Pod ended; whether it succeeded.
    Finished {
        succeeded: bool,
    },
    Expired,
}

/// The steps between two lists of conditions. `resuming` says whether a resumption was under way before.
pub fn transitions(before: &[Condition], after: &[Condition], mode: OperatingMode, resuming: bool) -> Vec<Transition> {
    let holds = |list: &[Condition], type_| conditions::is_true(conditions::find(list, type_));
    let becomes_true = |type_| holds(after, type_) && !holds(before, type_);
    let has_reason = |list: &[Condition], type_, reason: Reason| {
        conditions::find(list, type_).is_some_and(|condition| condition.reason == reason.as_str())
    };
    let gets_reason = |type_, reason: Reason| has_reason(after, type_, reason) && !has_reason(before, type_, reason);
    let mut steps = Vec::new();
    let fails = gets_reason(ConditionType::Ready, Reason::ReconcilerError);
    match mode {
        OperatingMode::Suspended => {
            let was_running = conditions::find(before, ConditionType::Suspended).is_none()
                || has_reason(before, ConditionType::Suspended, Reason::NotSuspended);
            steps.extend(was_running.then_some(Transition::SuspendRequested));
            steps.extend(becomes_true(ConditionType::Suspended).then_some(Transition::Suspended));
            steps.extend(fails.then_some(Transition::SuspendFailed));
        }
        OperatingMode::Running => {
            let starts = holds(before, ConditionType::Suspended);
            steps.extend(starts.then_some(Transition::ResumeRequested));
            if starts || resuming {
                steps.extend(becomes_true(ConditionType::Ready).then_some(Transition::Resumed));
                steps.extend(fails.then_some(Transition::ResumeFailed));
            }
        }
    }
    if becomes_true(ConditionType::Finished) {
        let succeeded = has_reason(after, ConditionType::Finished, Reason::PodSucceeded);
        steps.push(Transition::Finished { succeeded });
    }
    steps.extend(gets_reason(ConditionType::Ready, Reason::SandboxExpired).then_some(Transition::Expired));
    steps
}
