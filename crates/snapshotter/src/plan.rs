//! The decision for one SandboxSnapshot: a pure function of what was observed.

use std::time::Duration;

use agent_sandbox_api::conditions::truncated_message;
use agent_sandbox_api::keys::{EGRESS_RULES, annotations};
use agent_sandbox_api::snapshot::{FINALIZER, SandboxSnapshot, SandboxSnapshotStatus, SnapshotReason, SnapshotSource};
use agent_sandbox_api::v1beta1::Sandbox;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::{TakeError, TakeRequest, Taken};

/// What to do next for a snapshot.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// Nothing until an event, or until this time has passed.
    Wait(Option<Duration>),
    /// The node does not keep files of the Sandbox yet.
    AwaitFiles,
    /// So that a deletion waits until the node has removed the layers.
    AddFinalizer,
    Take(TakeRequest),
    /// The Sandbox does not exist.
    Fail(SnapshotReason, String),
    /// Its time is up: delete the object.
    Expire,
    /// The object is being deleted: remove the layers, then the finalizer.
    Remove,
}

pub(crate) fn plan(snapshot: &SandboxSnapshot, sandbox: Option<&Sandbox>, keeps: bool, now: Timestamp) -> Step {
    let finalized = snapshot.metadata.finalizers.as_ref().is_some_and(|list| list.iter().any(|name| name == FINALIZER));
    if snapshot.is_deleting() {
        return if finalized { Step::Remove } else { Step::Wait(None) };
    }
    let left = snapshot.spec.expires_at.as_ref().map(|at| at.0.duration_since(now));
    if left.is_some_and(|left| !left.is_positive()) {
        return Step::Expire;
    }
    if snapshot.is_ready() || snapshot.has_failed() {
        return Step::Wait(left.and_then(|left| Duration::try_from(left).ok()));
    }
    let Some(sandbox) = sandbox else {
        let text =
            format!("there is no sandbox {:?} in namespace {}", snapshot.spec.sandbox_name, snapshot.namespace());
        return Step::Fail(SnapshotReason::SandboxNotFound, text);
    };
    match (keeps, finalized) {
        (false, _) => Step::AwaitFiles,
        (true, false) => Step::AddFinalizer,
        (true, true) => Step::Take(TakeRequest {
            namespace: snapshot.namespace().to_owned(),
            name: snapshot.name().to_owned(),
            uid: snapshot.uid().to_owned(),
            sandbox_uid: sandbox.uid().to_owned(),
        }),
    }
}

/// The status after an attempt.
pub(crate) fn status_after(
    snapshot: &SandboxSnapshot,
    sandbox: &Sandbox,
    taken: &Result<Taken, TakeError>,
    node_name: &str,
    now: Timestamp,
) -> SandboxSnapshotStatus {
    match taken {
        Ok(taken) => SandboxSnapshotStatus {
            conditions: Some(vec![condition(snapshot, SnapshotReason::Taken, "The files are kept.", now)]),
            taken_at: Some(Time(now)),
            node_name: Some(node_name.to_owned()),
            size_bytes: i64::try_from(taken.bytes).ok(),
            frozen_milliseconds: taken.frozen.and_then(|time| i64::try_from(time.as_millis()).ok()),
            parent: sandbox.metadata.annotations.as_ref().and_then(|map| map.get(annotations::SNAPSHOT)).cloned(),
            sandbox: Some(SnapshotSource {
                uid: sandbox.uid().to_owned(),
                pod_template: sandbox.spec.pod_template.clone(),
                volume_claim_templates: sandbox.spec.volume_claim_templates.clone(),
                egress: EGRESS_RULES
                    .into_iter()
                    .filter_map(|key| Some((key.to_owned(), sandbox.annotation(key)?.to_owned())))
                    .collect(),
            }),
        },
        Err(TakeError::Transient(text)) => failed(snapshot, SnapshotReason::Taking, text, now),
        Err(TakeError::Permanent(text)) => failed(snapshot, SnapshotReason::Refused, text, now),
    }
}

/// The status of a snapshot that does not exist.
pub(crate) fn failed(
    snapshot: &SandboxSnapshot,
    reason: SnapshotReason,
    text: &str,
    now: Timestamp,
) -> SandboxSnapshotStatus {
    let conditions = Some(vec![condition(snapshot, reason, text, now)]);
    SandboxSnapshotStatus { conditions, ..SandboxSnapshotStatus::default() }
}

fn condition(snapshot: &SandboxSnapshot, reason: SnapshotReason, text: &str, now: Timestamp) -> Condition {
    let status = if reason == SnapshotReason::Taken { "True" } else { "False" };
    let since = snapshot.ready().filter(|ready| ready.status == status).map(|ready| ready.last_transition_time.clone());
    Condition {
        type_: "Ready".to_owned(),
        status: status.to_owned(),
        reason: reason.as_str().to_owned(),
        message: truncated_message(text.to_owned()),
        last_transition_time: since.unwrap_or(Time(now)),
        observed_generation: snapshot.metadata.generation,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    fn snapshot() -> SandboxSnapshot {
        let mut snapshot = SandboxSnapshot::default();
        snapshot.metadata.name = Some("first".to_owned());
        snapshot.metadata.namespace = Some("team".to_owned());
        snapshot.metadata.uid = Some("u1".to_owned());
        snapshot.spec.sandbox_name = "box".to_owned();
        snapshot
    }

    fn sandbox() -> Sandbox {
        let mut sandbox = Sandbox::default();
        sandbox.metadata.uid = Some("s1".to_owned());
        sandbox
    }

    #[test]
    fn a_snapshot_is_taken_once_behind_a_finalizer() {
        let mut snapshot = snapshot();
        assert_eq!(plan(&snapshot, Some(&sandbox()), true, now()), Step::AddFinalizer);
        snapshot.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
        let Step::Take(request) = plan(&snapshot, Some(&sandbox()), true, now()) else { panic!() };
        assert_eq!((request.namespace.as_str(), request.sandbox_uid.as_str()), ("team", "s1"));
        assert_eq!(plan(&snapshot, Some(&sandbox()), false, now()), Step::AwaitFiles, "it was never started");
        let taken = Ok(Taken { bytes: 5, frozen: None });
        let mut closed = sandbox();
        closed.metadata.annotations = Some([(annotations::EGRESS.to_owned(), "pypi.org".to_owned())].into());
        snapshot.status = Some(status_after(&snapshot, &closed, &taken, "local", now()));
        let source = snapshot.status.as_ref().unwrap().sandbox.as_ref().unwrap();
        assert_eq!(source.egress.get(annotations::EGRESS).map(String::as_str), Some("pypi.org"), "rules are kept");
        assert_eq!(plan(&snapshot, Some(&sandbox()), true, now()), Step::Wait(None));
        assert_eq!(plan(&snapshot, None, false, now()), Step::Wait(None), "the sandbox may be deleted");
        snapshot.metadata.deletion_timestamp = Some(Time(now()));
        assert_eq!(plan(&snapshot, None, false, now()), Step::Remove);
    }

    #[test]
    fn what_may_succeed_later_is_tried_again_and_a_refusal_is_final() {
        let mut snapshot = snapshot();
        snapshot.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
        let mut after = |error| {
            snapshot.status = Some(status_after(&snapshot, &sandbox(), &Err(error), "local", now()));
            plan(&snapshot, Some(&sandbox()), true, now())
        };
        assert!(matches!(after(TakeError::Transient("starting".to_owned())), Step::Take(_)));
        assert_eq!(after(TakeError::Permanent("too deep".to_owned())), Step::Wait(None));
    }

    #[test]
    fn a_missing_sandbox_and_an_expired_snapshot_are_reported_and_removed() {
        let mut snapshot = snapshot();
        let Step::Fail(reason, text) = plan(&snapshot, None, false, now()) else { panic!() };
        assert_eq!(reason, SnapshotReason::SandboxNotFound);
        assert!(text.contains("\"box\" in namespace team"), "{text}");
        snapshot.status = Some(failed(&snapshot, reason, &text, now()));
        assert_eq!(plan(&snapshot, Some(&sandbox()), true, now()), Step::Wait(None), "a later sandbox is another one");
        let at = |seconds| Some(Time(now() + jiff::SignedDuration::from_secs(seconds)));
        snapshot.spec.expires_at = at(60);
        assert_eq!(plan(&snapshot, None, false, now()), Step::Wait(Some(Duration::from_secs(60))));
        snapshot.spec.expires_at = at(0);
        assert_eq!(plan(&snapshot, None, false, now()), Step::Expire);
    }
}
