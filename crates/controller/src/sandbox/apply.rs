//! Applies a Sandbox's plan: sends the planned requests in order and reports the outcome of each.

use std::sync::Arc;

use agent_sandbox_api::{keys::annotations, sleep, v1beta1::SandboxStatus};
use serde_json::{Map, Value, json};

use super::{
    plan::{Observed, PodName, PodPlan, Reconcile, Step},
    service::ServicePlan,
    sleep::{is_resumed, lacks_activity},
    status::{Facts, PodFact, ServiceFact, status_patch},
    volume::VolumePlan,
};
use crate::{
    api_client::{ApiError, Request, Writer},
    cache::{Cached, Kind, Object, Pod, Sandbox},
    reconcile::Interrupted,
    serving::tracing_context::PassSpan,
};

/// The outcome of one write.
enum WriteOutcome {
    Done(Option<Object>),
    /// Reported in the Ready condition and retried.
    Failed(String),
    /// Reported in the Ready condition and not retried before something changes.
    Invalid(String),
}

async fn send(writer: &Writer, step: &Step) -> Result<WriteOutcome, Interrupted> {
    let stale = || Interrupted::Stale { kind: step.request.kind, key: step.request.key.clone() };
    match writer.send(&step.request).await {
        Ok(object) => Ok(WriteOutcome::Done(object)),
        Err(error @ ApiError::NotLeader) => Err(error.into()),
        Err(ApiError::AlreadyExists { .. } | ApiError::Conflict { .. }) => Err(stale()),
        // A deletion of a missing object has succeeded; a patch of a missing object needs a new plan.
        Err(ApiError::NotFound { .. }) if matches!(step.request.verb, crate::api_client::Verb::Delete { .. }) => {
            Ok(WriteOutcome::Done(None))
        }
        Err(ApiError::NotFound { .. }) if step.request.uid().is_some() => Err(stale()),
        Err(ApiError::Invalid { message }) if step.request.uid().is_none() => Ok(WriteOutcome::Invalid(message)),
        Err(error) => Ok(WriteOutcome::Failed(format!("{}{}", step.failure, error.stable_text()))),
    }
}

/// Writes the children first, then the annotation that names the Pod.
pub(super) async fn apply(
    writer: &Writer,
    observed: &Observed,
    plan: &Reconcile,
    span: &PassSpan,
) -> Result<Facts, Interrupted> {
    let mut facts = Facts::default();
    let volumes_ready = {
        let _part = span.child("reconcilePVCs");
        apply_volumes(writer, &plan.volumes, &mut facts).await?
    };
    let (pod, service) =
        tokio::join!(traced_pod(writer, &plan.pod, volumes_ready, span), apply_service(writer, &plan.service));
    let pod_succeeded = {
        let pod = pod?;
        let succeeded = matches!(pod.fact, PodFact::Present(_)) && pod.errors.is_empty();
        merge(&mut facts, pod, service?);
        succeeded
    };
    let name = if pod_succeeded { &plan.pod_name.if_succeeded } else { &plan.pod_name.if_failed };
    let traced = observed.sandbox.annotation(annotations::TRACE_CONTEXT).is_some_and(|context| !context.is_empty());
    if let Some(step) = annotate(observed, name, span.annotation().filter(|_| !traced)) {
        let failure = match name {
            PodName::Clear => "failed to clear pod name annotation: ",
            PodName::Set(_) | PodName::Leave => "failed to set pod name annotation: ",
        };
        if let WriteOutcome::Failed(error) = send(writer, &Step::new(step, failure)).await? {
            facts.errors.push(error);
        }
    }
    Ok(facts)
}

/// The result of one of the concurrent child steps.
struct ChildFacts<F> {
    fact: F,
    errors: Vec<String>,
    invalid: Option<String>,
    ambiguous: Option<usize>,
}

impl<F> ChildFacts<F> {
    fn of(fact: F) -> Self {
        Self { fact, errors: Vec::new(), invalid: None, ambiguous: None }
    }

    fn failed(fact: F, error: String) -> Self {
        Self { errors: vec![error], ..Self::of(fact) }
    }

    fn invalid(fact: F, text: String) -> Self {
        Self { invalid: Some(text), ..Self::of(fact) }
    }
}

fn merge(facts: &mut Facts, pod: ChildFacts<PodFact>, service: ChildFacts<ServiceFact>) {
    facts.pod = pod.fact;
    facts.service = service.fact;
    facts.ambiguous = pod.ambiguous;
    facts.errors.extend(pod.errors);
    facts.errors.extend(service.errors);
    facts.invalid = facts.invalid.take().or(pod.invalid).or(service.invalid);
}

/// Returns whether every volume claim template has a PVC that may be mounted.
async fn apply_volumes(writer: &Writer, plan: &VolumePlan, facts: &mut Facts) -> Result<bool, Interrupted> {
    for step in &plan.steps {
        match send(writer, step).await? {
            WriteOutcome::Done(_) => {}
            WriteOutcome::Failed(error) => {
                facts.errors.push(error);
                return Ok(false);
            }
            WriteOutcome::Invalid(text) => {
                facts.invalid = Some(text);
                return Ok(false);
            }
        }
    }
    facts.errors.extend(plan.refusal.clone());
    Ok(plan.refusal.is_none())
}

/// Applies the Pod's part in a span of its own, which records the Pod's phase.
async fn traced_pod(
    writer: &Writer,
    plan: &PodPlan,
    volumes_ready: bool,
    span: &PassSpan,
) -> Result<ChildFacts<PodFact>, Interrupted> {
    let mut part = span.child("reconcilePod");
    let outcome = apply_pod(writer, plan, volumes_ready).await?;
    if let PodFact::Present(pod) = &outcome.fact {
        let created = matches!(plan, PodPlan::Create(_));
        part.pod_observed(if created { "NewPodStatusObserved" } else { "ExistingPodStatusObserved" }, pod);
    }
    if let Some(error) = outcome.errors.first().or(outcome.invalid.as_ref()) {
        part.failed(error);
    }
    Ok(outcome)
}

async fn apply_pod(writer: &Writer, plan: &PodPlan, volumes_ready: bool) -> Result<ChildFacts<PodFact>, Interrupted> {
    Ok(match plan {
        PodPlan::None => ChildFacts::of(PodFact::Absent),
        PodPlan::Ambiguous(count) => ChildFacts { ambiguous: Some(*count), ..ChildFacts::of(PodFact::Unknown) },
        PodPlan::Refuse { error, .. } => ChildFacts::failed(PodFact::Unknown, error.clone()),
        // The Pod would mount the PVC of that name, which may belong to another owner.
        PodPlan::Create(_) if !volumes_ready => ChildFacts::of(PodFact::Absent),
        PodPlan::Create(step) => match send(writer, step).await? {
            WriteOutcome::Done(object) => ChildFacts::of(present(object)),
            WriteOutcome::Failed(error) => ChildFacts::failed(PodFact::Unknown, error),
            WriteOutcome::Invalid(text) => ChildFacts::invalid(PodFact::Absent, text),
        },
        PodPlan::Use { pod, patch: None } | PodPlan::Await { pod } => ChildFacts::of(PodFact::Present(pod.clone())),
        PodPlan::Use { pod, patch: Some(step) } => match send(writer, step).await? {
            WriteOutcome::Done(object) => ChildFacts::of(present(object)),
            // The Pod still exists, so clients keep its address.
            WriteOutcome::Failed(error) | WriteOutcome::Invalid(error) => {
                ChildFacts::failed(PodFact::Present(pod.clone()), error)
            }
        },
        PodPlan::Delete { pod, step } => match send(writer, step).await? {
            WriteOutcome::Done(Some(object)) => ChildFacts::of(present(Some(object))),
            WriteOutcome::Done(None) => ChildFacts::of(PodFact::Absent),
            WriteOutcome::Failed(error) | WriteOutcome::Invalid(error) => {
                ChildFacts::failed(PodFact::Present(pod.clone()), error)
            }
        },
    })
}

fn present(object: Option<Object>) -> PodFact {
    object.and_then(|object| object.cast::<Pod>()).map_or(PodFact::Unknown, |pod: Arc<Pod>| PodFact::Present(pod))
}

async fn apply_service(writer: &Writer, plan: &ServicePlan) -> Result<ChildFacts<ServiceFact>, Interrupted> {
    Ok(match plan {
        ServicePlan::None => ChildFacts::of(ServiceFact::Absent),
        ServicePlan::Keep => ChildFacts::of(ServiceFact::Present),
        ServicePlan::Skip => ChildFacts::of(ServiceFact::Unchanged),
        ServicePlan::Refuse(error) => ChildFacts::failed(ServiceFact::Unchanged, error.clone()),
        ServicePlan::Write(step) => match send(writer, step).await? {
            WriteOutcome::Done(_) => ChildFacts::of(ServiceFact::Present),
            WriteOutcome::Failed(error) => ChildFacts::failed(ServiceFact::Unchanged, error),
            WriteOutcome::Invalid(text) => ChildFacts::invalid(ServiceFact::Unchanged, text),
        },
        ServicePlan::Delete(step) => match send(writer, step).await? {
            WriteOutcome::Done(_) => ChildFacts::of(ServiceFact::Absent),
            WriteOutcome::Failed(error) | WriteOutcome::Invalid(error) => {
                ChildFacts::failed(ServiceFact::Unchanged, error)
            }
        },
    })
}

/// One patch for the annotations of the Sandbox; `None` when none changes.
fn annotate(observed: &Observed, name: &PodName, trace: Option<&str>) -> Option<Request> {
    let mut changes = Map::new();
    match name {
        PodName::Leave => {}
        PodName::Set(name) => {
            changes.insert(annotations::POD_NAME.into(), name.as_str().into());
        }
        PodName::Clear => {
            changes.insert(annotations::POD_NAME.into(), Value::Null);
        }
    }
    if let Some(trace) = trace {
        changes.insert(annotations::TRACE_CONTEXT.into(), trace.into());
    }
    if lacks_activity(&observed.sandbox) {
        changes.insert(annotations::LAST_ACTIVITY_AT.into(), sleep::format_time(observed.now).into());
    }
    if is_resumed(&observed.sandbox) {
        changes.insert(annotations::SUSPENDED_BY.into(), Value::Null);
    }
    (!changes.is_empty()).then(|| Request::patch(&*observed.sandbox, json!({ "metadata": { "annotations": changes } })))
}

/// Attempts all deletes in order; returns the errors.
pub(super) async fn apply_deletes(writer: &Writer, steps: &[Step]) -> Result<Vec<String>, Interrupted> {
    let mut errors = Vec::new();
    for step in steps {
        match send(writer, step).await? {
            WriteOutcome::Done(_) => {}
            WriteOutcome::Failed(error) | WriteOutcome::Invalid(error) => errors.push(error),
        }
    }
    Ok(errors)
}

/// Writes the status if it differs from the stored one. After a conflict the pass starts over; a deleted Sandbox needs
/// no status.
pub(super) async fn publish(
    writer: &Writer,
    sandbox: &Sandbox,
    status: &SandboxStatus,
) -> Result<Result<(), ApiError>, Interrupted> {
    let Some(patch) = status_patch(sandbox, status) else { return Ok(Ok(())) };
    match writer.send(&Request::patch_status(sandbox, patch)).await {
        Ok(_) | Err(ApiError::NotFound { .. }) => Ok(Ok(())),
        Err(error @ ApiError::NotLeader) => Err(error.into()),
        Err(ApiError::Conflict { .. }) => Err(Interrupted::Stale { kind: Kind::Sandbox, key: Cached::key(sandbox) }),
        Err(error) => Ok(Err(error)),
    }
}
