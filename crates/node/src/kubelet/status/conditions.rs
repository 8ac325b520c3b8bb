//! Computes the Pod conditions that the node owns; other conditions are kept as they are.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition, PodSpec};

use crate::kubelet::model::{Instance, PodRecord, Role, roles};
use crate::kubelet::status::{Phase, StatusContext, whole_seconds};

/// Conditions the node computes, in the order it writes them.
const OWN: [&str; 5] = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];

/// Type of the condition that shows whether the limits of the Pod's volumes are enforced by the file system (True) or
/// only measured (False); the message has the mechanism of each volume. Only Pods with volume limits have the
/// condition.
pub const STORAGE_LIMIT: &str = "runtime.agents.x-k8s.io/StorageLimit";

/// Status, reason and message of a condition.
struct Value {
    met: bool,
    reason: Option<String>,
    message: Option<String>,
}

impl Value {
    fn plain(met: bool) -> Self {
        Self { met, reason: None, message: None }
    }

    fn unmet(reason: &str, message: Option<String>) -> Self {
        Self { met: false, reason: Some(reason.to_owned()), message }
    }
}

/// Whether all init containers have finished and all sidecars have started.
pub fn is_initialized(spec: &PodSpec, state: &PodRecord) -> bool {
    spec.containers.iter().any(|c| state.container(&c.name).instance != Instance::None)
        || uninitialized(spec, state).is_empty()
}

fn uninitialized(spec: &PodSpec, state: &PodRecord) -> Vec<String> {
    roles(spec)
        .filter(|(container, role)| {
            let record = state.container(&container.name);
            match role {
                Role::Init => record.instance.termination().is_none_or(|t| t.exit_code != 0),
                Role::Sidecar => !record.started,
                Role::Main => false,
            }
        })
        .map(|(container, _)| container.name.clone())
        .collect()
}

/// All conditions: those the node owns, then those of other owners.
pub fn compute(
    pod: &Pod,
    spec: &PodSpec,
    state: &PodRecord,
    phase: Phase,
    init: &[ContainerStatus],
    main: &[ContainerStatus],
    context: StatusContext<'_>,
) -> Vec<PodCondition> {
    let sidecars = init.iter().zip(spec.init_containers.iter().flatten());
    let watched: Vec<&ContainerStatus> =
        sidecars.filter(|(_, c)| c.restart_policy.as_deref() == Some("Always")).map(|(s, _)| s).chain(main).collect();
    let own: Vec<PodCondition> = OWN
        .iter()
        .map(|type_| {
            let value = match *type_ {
                "PodReadyToStartContainers" => Value::plain(state.sandbox.info().is_some()),
                "Initialized" => initialized(spec, state, phase),
                "ContainersReady" => containers_ready(phase, &watched),
                "Ready" => ready(pod, spec, phase, &watched, context),
                _ => Value::plain(true),
            };
            condition(type_, value, pod, context)
        })
        .collect();
    let existing =
        context.previous.and_then(|p| p.conditions.as_ref()).or_else(|| pod.status.as_ref()?.conditions.as_ref());
    let foreign = existing.into_iter().flatten().filter(|c| !OWN.contains(&c.type_.as_str())).cloned();
    let mut all = own;
    all.extend(foreign);
    if let Some(enforcement) = &state.storage {
        all.retain(|c| c.type_ != STORAGE_LIMIT);
        let reason = if enforcement.enforced { "HeldByFileSystem" } else { "Measured" };
        let (reason, message) = (Some(reason.to_owned()), Some(enforcement.message.clone()));
        all.push(condition(STORAGE_LIMIT, Value { met: enforcement.enforced, reason, message }, pod, context));
    }
    if let Some(failure) = state.failure.as_ref().filter(|v| v.reason == crate::kubelet::eviction::EVICTED) {
        all.retain(|c| c.type_ != "DisruptionTarget");
        let (reason, message) = (Some("TerminationByKubelet".to_owned()), Some(failure.message.clone()));
        all.push(condition("DisruptionTarget", Value { met: true, reason, message }, pod, context));
    }
    all
}

fn initialized(spec: &PodSpec, state: &PodRecord, phase: Phase) -> Value {
    if is_initialized(spec, state) {
        let reason = (phase == Phase::Succeeded).then(|| "PodCompleted".to_owned());
        return Value { met: true, reason, message: None };
    }
    let names = uninitialized(spec, state).join(" ");
    Value::unmet("ContainersNotInitialized", Some(format!("containers with incomplete status: [{names}]")))
}

fn containers_ready(phase: Phase, watched: &[&ContainerStatus]) -> Value {
    match phase {
        Phase::Succeeded => return Value::unmet("PodCompleted", None),
        Phase::Failed => return Value::unmet("PodFailed", None),
        Phase::Pending | Phase::Running => {}
    }
    let unready: Vec<&str> = watched.iter().filter(|c| !c.ready).map(|c| c.name.as_str()).collect();
    if unready.is_empty() {
        return Value::plain(true);
    }
    Value::unmet("ContainersNotReady", Some(format!("containers with unready status: [{}]", unready.join(" "))))
}

fn ready(pod: &Pod, spec: &PodSpec, phase: Phase, watched: &[&ContainerStatus], context: StatusContext<'_>) -> Value {
    let containers = containers_ready(phase, watched);
    if !containers.met {
        return containers;
    }
    let status = pod.status.as_ref().or(context.previous);
    let has = |gate: &str| status.and_then(|s| crate::kubelet::status::condition(s, gate)).map(|c| c.status == "True");
    let unmet: Vec<String> = spec
        .readiness_gates
        .iter()
        .flatten()
        .filter_map(|gate| match has(&gate.condition_type) {
            Some(true) => None,
            Some(false) => {
                Some(format!("the status of pod readiness gate {:?} is not \"True\", but False", gate.condition_type))
            }
            None => {
                Some(format!("corresponding condition of pod readiness gate {:?} does not exist.", gate.condition_type))
            }
        })
        .collect();
    if unmet.is_empty() { Value::plain(true) } else { Value::unmet("ReadinessGatesNotReady", Some(unmet.join(", "))) }
}

/// Builds a condition; its transition time changes only with its status.
fn condition(type_: &str, value: Value, pod: &Pod, context: StatusContext<'_>) -> PodCondition {
    let status = if value.met { "True" } else { "False" };
    let old = context.previous.or(pod.status.as_ref()).and_then(|s| crate::kubelet::status::condition(s, type_));
    let since = old.filter(|c| c.status == status).and_then(|c| c.last_transition_time.clone());
    PodCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: value.reason,
        message: value.message,
        last_probe_time: None,
        last_transition_time: Some(since.unwrap_or_else(|| whole_seconds(context.now))),
        observed_generation: pod.metadata.generation,
    }
}
