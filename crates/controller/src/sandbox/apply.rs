//! Carrying out a Sandbox's plan: it sends what was decided, in order, and reports what came of it.

use std::sync::Arc;

use agent_sandbox_api::keys::annotations;
use serde_json::{Map, Value, json};

use super::{
    plan::{Observed, PodName, PodPlan, Reconcile, Step, plan_pod_name},
    service::ServicePlan,
    status::{Facts, PodFact, ServiceFact},
    volume::VolumePlan,
};
use crate::{
    object::{Key, Kind, Object, Pod},
    ports::{ApiError, Writer},
    request::Request,
    tracing_context::PassSpan,
};

/// Why a pass has to start over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Interrupted {
    /// The object is not what the plan was made for: read it live and plan again.
    Stale { kind: Kind, key: Key },
    /// Leadership was lost: no further writes.
    NotLeader,
}

/// What one write meant for the pass.
enum Sent {
    Done(Option<Object>),
    /// Said in the Ready condition and tried again.
    Failed(String),
    /// Said in the Ready condition and not tried again before something changes.
    Invalid(String),
}

async fn send(writer: &Writer, step: &Step) -> Result<Sent, Interrupted> {
    let stale = || Interrupted::Stale { kind: step.request.kind, key: step.request.key.clone() };
    match writer.send(&step.request).await {
        Ok(object) => Ok(Sent::Done(object)),
        Err(ApiError::NotLeader) => Err(Interrupted::NotLeader),
        Err(ApiError::AlreadyExists { .. } | ApiError::Conflict { .. }) => Err(stale()),
        // What was to be deleted is gone; what was to be changed has to be made anew.
        Err(ApiError::NotFound { .. }) if matches!(step.request.verb, crate::request::Verb::Delete { .. }) => {
            Ok(Sent::Done(None))
        }
        Err(ApiError::NotFound { .. }) if step.request.uid().is_some() => Err(stale()),
        Err(ApiError::Invalid { message }) if step.request.uid().is_none() => Ok(Sent::Invalid(message)),
        Err(error) => Ok(Sent::Failed(format!("{}{}", step.failure, stable_text(&error)))),
    }
}

/// The error without what differs from attempt to attempt: every new text would be a status write, an event and a new attempt.
pub(super) fn stable_text(error: &ApiError) -> String {
    match error {
        ApiError::Unknown { .. } => "the API server did not answer properly".to_owned(),
        ApiError::Busy { .. } => "the API server is busy".to_owned(),
        other => other.to_string(),
    }
}

/// Children first, then the annotation that names the Pod.
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
    let name = plan_pod_name(observed, &plan.pod, pod_succeeded);
    let traced = observed.sandbox.annotation(annotations::TRACE_CONTEXT).is_some_and(|context| !context.is_empty());
    if let Some(step) = annotate(observed, &name, span.annotation().filter(|_| !traced)) {
        let failure = match name {
            PodName::Clear => "failed to clear pod name annotation: ",
            PodName::Set(_) | PodName::Leave => "failed to set pod name annotation: ",
        };
        if let Sent::Failed(error) = send(writer, &Step::new(step, failure)).await? {
            facts.errors.push(error);
        }
    }
    Ok(facts)
}

/// What one of the concurrent child steps found out.
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

/// Whether every claim template has a PVC that may be mounted.
async fn apply_volumes(writer: &Writer, plan: &VolumePlan, facts: &mut Facts) -> Result<bool, Interrupted> {
    for step in &plan.steps {
        match send(writer, step).await? {
            Sent::Done(_) => {}
            Sent::Failed(error) => {
                facts.errors.push(error);
                return Ok(false);
            }
            Sent::Invalid(text) => {
                facts.invalid = Some(text);
                return Ok(false);
            }
        }
    }
    facts.errors.extend(plan.refusal.clone());
    Ok(plan.refusal.is_none())
}

/// The Pod's part as a span of its own, which notes how the Pod was seen.
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
        // A Pod would mount whatever holds the claim's name, which may be somebody else's data.
        PodPlan::Create(_) if !volumes_ready => ChildFacts::of(PodFact::Absent),
        PodPlan::Create(step) => match send(writer, step).await? {
            Sent::Done(object) => ChildFacts::of(present(object)),
            Sent::Failed(error) => ChildFacts::failed(PodFact::Unknown, error),
            Sent::Invalid(text) => ChildFacts::invalid(PodFact::Absent, text),
        },
        PodPlan::Use { pod, patch: None } | PodPlan::Await { pod } => ChildFacts::of(PodFact::Present(pod.clone())),
        PodPlan::Use { pod, patch: Some(step) } => match send(writer, step).await? {
            Sent::Done(object) => ChildFacts::of(present(object)),
            // The Pod is still known to be there, and clients keep its address.
            Sent::Failed(error) | Sent::Invalid(error) => ChildFacts::failed(PodFact::Present(pod.clone()), error),
        },
        PodPlan::Delete { pod, step } => match send(writer, step).await? {
            Sent::Done(Some(object)) => ChildFacts::of(present(Some(object))),
            Sent::Done(None) => ChildFacts::of(PodFact::Absent),
            Sent::Failed(error) | Sent::Invalid(error) => ChildFacts::failed(PodFact::Present(pod.clone()), error),
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
            Sent::Done(_) => ChildFacts::of(ServiceFact::Present),
            Sent::Failed(error) => ChildFacts::failed(ServiceFact::Unchanged, error),
            Sent::Invalid(text) => ChildFacts::invalid(ServiceFact::Unchanged, text),
        },
        ServicePlan::Delete(step) => match send(writer, step).await? {
            Sent::Done(_) => ChildFacts::of(ServiceFact::Absent),
            Sent::Failed(error) | Sent::Invalid(error) => ChildFacts::failed(ServiceFact::Unchanged, error),
        },
    })
}

/// One patch for both annotations of the Sandbox; `None` when neither changes.
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
    (!changes.is_empty()).then(|| Request::patch(&*observed.sandbox, json!({ "metadata": { "annotations": changes } })))
}

/// Deletes in order, all of them attempted; the errors seen.
pub(super) async fn apply_deletes(writer: &Writer, steps: &[Step]) -> Result<Vec<String>, Interrupted> {
    let mut errors = Vec::new();
    for step in steps {
        match send(writer, step).await? {
            Sent::Done(_) => {}
            Sent::Failed(error) | Sent::Invalid(error) => errors.push(error),
        }
    }
    Ok(errors)
}
