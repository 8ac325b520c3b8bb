//! The status of a Sandbox: conditions and fields as a pure function of the outcome of the pass.

use std::{sync::Arc, time::Duration};

use agent_sandbox_api::{
    conditions::{
        self, ConditionStatus, ConditionType, DesiredCondition, PodOutcome, PodScheduling, Reason, SandboxReady,
        SandboxSuspended, VolumesPending,
    },
    names,
    owners::{self, Ownership},
    v1beta1::{OperatingMode, SandboxStatus},
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::{Map, Value, json};

use super::{plan::Settings, sleep::idle_suspend};
use crate::cache::{Pod, Sandbox};

/// The state of the Pod at the end of a pass.
#[derive(Clone, Debug, Default)]
pub enum PodFact {
    /// No Pod exists.
    #[default]
    Absent,
    /// The Pod step failed, so the state is not known.
    Unknown,
    Present(Arc<Pod>),
}

/// The state of the Service at the end of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServiceFact {
    /// The Sandbox owns none.
    #[default]
    Absent,
    Present,
    /// Not examined, or reading it failed: the status keeps its Service fields.
    Unchanged,
}

/// The outcome of a pass.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub pod: PodFact,
    pub service: ServiceFact,
    /// Number of Pods that the Sandbox controls, when it is more than one.
    pub ambiguous: Option<usize>,
    /// Errors that will be retried, in the order of their occurrence.
    pub errors: Vec<String>,
    /// The message of a request that the API rejected as invalid.
    pub invalid: Option<String>,
}

/// The message of the multiple-Pods error.
pub fn multiple_pods(count: usize) -> String {
    format!("multiple Pods ({count}) are controlled by this Sandbox; refusing to choose or create a Pod")
}

/// The status after a pass over a live Sandbox.
pub fn status_after(sandbox: &Sandbox, facts: &Facts, settings: &Settings, now: Timestamp) -> SandboxStatus {
    let mut status = sandbox.status.clone().unwrap_or_default();
    let pod = match &facts.pod {
        PodFact::Present(pod) => Some(&**pod),
        PodFact::Absent | PodFact::Unknown => None,
    };
    let owned = pod.filter(|pod| owners::ownership(&pod.metadata, sandbox.uid()) == Ownership::Owned);
    if pod.is_some() {
        status.selector = Some(names::sandbox_selector(sandbox.name()));
    }
    status.pod_ips = owned.map(pod_ips).filter(|ips| !ips.is_empty());
    status.node_name =
        owned.and_then(|pod| pod.spec.node_name.as_deref()).filter(|node| !node.is_empty()).map(str::to_owned);
    match facts.service {
        ServiceFact::Unchanged => {}
        ServiceFact::Absent => {
            status.service = None;
            status.service_fqdn = None;
        }
        ServiceFact::Present => {
            status.service = Some(sandbox.name().to_owned());
            status.service_fqdn =
                Some(names::service_fqdn(sandbox.name(), sandbox.namespace(), &settings.cluster_domain));
        }
    }
    let desired = [
        (ConditionType::Suspended, Some(suspended(sandbox, facts, pod, owned))),
        (ConditionType::Finished, owned.and_then(outcome).map(PodOutcome::finished)),
        (ConditionType::PodScheduled, scheduled(facts, owned)),
        (ConditionType::Ready, Some(ready(sandbox, facts, pod))),
        (ConditionType::VolumesPending, volumes_pending(sandbox, owned)),
        (ConditionType::IdleSuspend, idle_suspend(sandbox)),
    ];
    let conditions = status.conditions.get_or_insert_default();
    for (type_, condition) in desired {
        match condition {
            Some(condition) => put(conditions, condition, sandbox, now),
            None => conditions::remove(conditions, type_),
        }
    }
    status
}

/// The status of a Sandbox that has just expired; nothing else has happened yet.
pub fn status_marked_expired(sandbox: &Sandbox, now: Timestamp) -> SandboxStatus {
    let mut status = sandbox.status.clone().unwrap_or_default();
    let conditions = status.conditions.get_or_insert_default();
    conditions::remove(conditions, ConditionType::PodScheduled);
    conditions::remove(conditions, ConditionType::VolumesPending);
    put(conditions, SandboxReady::Expired.desired_condition(), sandbox, now);
    status
}

/// The status of an expired Sandbox without children: conditions only.
pub fn status_cleaned_up(sandbox: &Sandbox, now: Timestamp) -> SandboxStatus {
    SandboxStatus { conditions: status_marked_expired(sandbox, now).conditions, ..SandboxStatus::default() }
}

/// The merge patch from the stored status to the new one; `None` when no write is due.
///
/// A changed node name alone causes no write while the Sandbox is not Ready: it is included in the next write. The same
/// holds in a pool for the news that the scheduler has chosen a node: no client waits for it, and it would cost a write
/// per member.
pub fn status_patch(sandbox: &Sandbox, new: &SandboxStatus) -> Option<Value> {
    let old = normalised(sandbox.status.as_ref().unwrap_or(&SandboxStatus::default()));
    let new = normalised(new);
    if old == new {
        return None;
    }
    let says = |status: &SandboxStatus, type_: ConditionType| {
        let condition = status.conditions.as_deref().and_then(|conditions| conditions::find(conditions, type_));
        condition.map(|condition| condition.status.clone()).unwrap_or_default()
    };
    let placed = owners::owning_pool(&sandbox.metadata).is_some()
        && says(&old, ConditionType::PodScheduled) == ConditionStatus::Unknown.as_str()
        && says(&new, ConditionType::PodScheduled) == ConditionStatus::True.as_str();
    let essence = |status: &SandboxStatus| {
        let mut essence = SandboxStatus { node_name: None, ..status.clone() };
        if let Some(conditions) = essence.conditions.as_mut().filter(|_| placed) {
            conditions::remove(conditions, ConditionType::PodScheduled);
        }
        essence
    };
    if says(&new, ConditionType::Ready) != ConditionStatus::True.as_str() && essence(&old) == essence(&new) {
        return None;
    }
    let (old, new) = (json!(old), json!(new));
    let empty = Map::new();
    let (old, new) = (old.as_object().unwrap_or(&empty), new.as_object().unwrap_or(&empty));
    let changed = new
        .iter()
        .filter(|(field, value)| old.get(*field) != Some(value))
        .map(|(field, value)| (field.clone(), value.clone()));
    let removed = old.keys().filter(|field| !new.contains_key(*field)).map(|field| (field.clone(), Value::Null));
    Some(Value::Object(changed.chain(removed).collect()))
}

/// How long the first status of a new Sandbox may still be deferred; `None` when it must be written now. It may be
/// deferred while it would only report that the Pod was just created: mostly the Pod is Ready soon, and one write
/// reports everything. No client waits for a single member of a pool; for others the wait is `delay` from the first
/// time this was asked.
pub fn first_status_wait(
    sandbox: &Sandbox,
    new: &SandboxStatus,
    (since, delay): (Timestamp, Duration),
    now: Timestamp,
) -> Option<Duration> {
    let ready = new.conditions.as_deref().and_then(|conditions| conditions::find(conditions, ConditionType::Ready))?;
    let scheduled = new.conditions.as_deref().and_then(|all| conditions::find(all, ConditionType::PodScheduled));
    let is_uninformative = ready.reason == Reason::DependenciesNotReady.as_str()
        && new.pod_ips.is_none()
        && scheduled.is_none_or(|scheduled| scheduled.status != ConditionStatus::False.as_str());
    if !is_uninformative || !sandbox.conditions().is_empty() {
        return None;
    }
    let (since, delay) = match owners::owning_pool(&sandbox.metadata) {
        Some(_) => (sandbox.metadata.creation_timestamp.as_ref()?.0, POOL_FIRST_STATUS_DELAY),
        None => (since, delay),
    };
    // A clock that runs behind the API server's must not make this wait longer.
    let age = Duration::try_from(now.duration_since(since)).ok()?;
    delay.checked_sub(age).filter(|rest| !rest.is_zero())
}

/// How long the first status of a pool member may be deferred. Creation times are whole seconds, so the actual delay is
/// between one and two seconds.
const POOL_FIRST_STATUS_DELAY: Duration = Duration::from_secs(2);

/// The status with empty collections and strings replaced by absent ones, which mean the same.
fn normalised(status: &SandboxStatus) -> SandboxStatus {
    let mut status = status.clone();
    status.conditions = status.conditions.filter(|conditions| !conditions.is_empty());
    status.pod_ips = status.pod_ips.filter(|ips| !ips.is_empty());
    for field in [&mut status.service, &mut status.service_fqdn, &mut status.selector, &mut status.node_name] {
        *field = field.take().filter(|value| !value.is_empty());
    }
    status
}

fn put(conditions: &mut Vec<Condition>, condition: DesiredCondition, sandbox: &Sandbox, now: Timestamp) {
    // Whole seconds, as they are on the wire: otherwise the stored condition never equals the computed one.
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    conditions::upsert(conditions, condition, sandbox.generation(), &Time(now));
}

fn pod_ips(pod: &Pod) -> Vec<String> {
    pod.status.pod_ips.iter().filter(|ip| !ip.ip.is_empty()).map(|ip| ip.ip.to_string()).collect()
}

fn outcome(pod: &Pod) -> Option<PodOutcome> {
    match &*pod.status.phase {
        "Succeeded" => Some(PodOutcome::Succeeded),
        "Failed" => Some(PodOutcome::Failed),
        _ => None,
    }
}

fn suspended(sandbox: &Sandbox, facts: &Facts, pod: Option<&Pod>, owned: Option<&Pod>) -> DesiredCondition {
    if sandbox.operating_mode() != OperatingMode::Suspended {
        return SandboxSuspended::NotSuspended.desired_condition();
    }
    match (pod, owned) {
        (Some(_), Some(_)) => SandboxSuspended::PodTerminating,
        (Some(_), None) => SandboxSuspended::PodNotOwned,
        (None, _) if matches!(facts.pod, PodFact::Unknown) => SandboxSuspended::PodStateUnknown,
        (None, _) => SandboxSuspended::PodTerminated,
    }
    .desired_condition()
}

fn scheduled(facts: &Facts, owned: Option<&Pod>) -> Option<DesiredCondition> {
    let scheduling = match (&facts.pod, owned) {
        (PodFact::Unknown, _) => PodScheduling::Unknown,
        (_, None) => return None,
        (_, Some(pod)) => match pod.condition("PodScheduled") {
            None => PodScheduling::NotReported,
            Some(condition) => PodScheduling::Mirrored {
                status: ConditionStatus::from_wire(&condition.status),
                reason: condition.reason.clone(),
                message: condition.message.clone(),
            },
        },
    };
    Some(scheduling.desired_condition())
}

/// The claims that only one of the template and the running Pod has. Those of volume claim templates cannot change.
fn volumes_pending(sandbox: &Sandbox, owned: Option<&Pod>) -> Option<DesiredCondition> {
    let pod = owned.filter(|_| sandbox.operating_mode() == OperatingMode::Running)?;
    let templates = sandbox.volume_claim_templates();
    let replaced = |name: &Value| templates.iter().any(|template| name.as_str() == Some(template.name()));
    let volumes = sandbox.spec.pod_template.spec.get("volumes").and_then(Value::as_array);
    let named: Vec<&str> = volumes
        .into_iter()
        .flatten()
        .filter(|volume| !replaced(&volume["name"]))
        .filter_map(|volume| volume["persistentVolumeClaim"]["claimName"].as_str())
        .collect();
    let of_template =
        |claim: &str| templates.iter().any(|one| claim == names::volume_claim(one.name(), sandbox.name()));
    let is_mounted = |claim: &str| pod.spec.claims.iter().any(|mounted| **mounted == *claim);
    let attach = named.iter().filter(|claim| !is_mounted(claim)).map(ToString::to_string).collect();
    let mounted = pod.spec.claims.iter().map(|claim| &**claim);
    let detach = mounted.filter(|claim| !named.contains(claim) && !of_template(claim)).map(str::to_owned).collect();
    VolumesPending::of(attach, detach).map(VolumesPending::desired_condition)
}

fn ready(sandbox: &Sandbox, facts: &Facts, pod: Option<&Pod>) -> DesiredCondition {
    if let Some(count) = facts.ambiguous {
        return SandboxReady::MultiplePods(multiple_pods(count)).desired_condition();
    }
    if !facts.errors.is_empty() {
        return SandboxReady::ReconcilerError(facts.errors.clone()).desired_condition();
    }
    if let Some(text) = &facts.invalid {
        return SandboxReady::InvalidConfiguration(text.clone()).desired_condition();
    }
    if sandbox.operating_mode() == OperatingMode::Suspended {
        return if pod.is_some() { SandboxReady::Suspending } else { SandboxReady::Suspended }.desired_condition();
    }
    if let Some(outcome) = pod.and_then(outcome) {
        return SandboxReady::Finished(outcome).desired_condition();
    }
    let (pod_ready, mut text) = pod_part(pod);
    let present = facts.service == ServiceFact::Present;
    let service_ready = match (sandbox.spec.service, present) {
        (_, true) => {
            text.push_str("; Service Exists");
            true
        }
        (Some(true), false) => {
            text.push_str("; Service does not exist");
            false
        }
        (_, false) => true,
    };
    if pod_ready && service_ready {
        SandboxReady::DependenciesReady(text)
    } else {
        SandboxReady::DependenciesNotReady(text)
    }
    .desired_condition()
}

fn pod_part(pod: Option<&Pod>) -> (bool, String) {
    let Some(pod) = pod else { return (false, "Pod does not exist".to_owned()) };
    if &*pod.status.phase != "Running" {
        return (false, format!("Pod exists with phase: {}", pod.status.phase));
    }
    if pod.condition("Ready").is_none_or(|condition| condition.status != ConditionStatus::True.as_str()) {
        return (false, "Pod is Running but not Ready".to_owned());
    }
    if pod_ips(pod).is_empty() {
        return (false, "Pod is Ready but has no podIPs yet".to_owned());
    }
    (true, "Pod is Ready".to_owned())
}
