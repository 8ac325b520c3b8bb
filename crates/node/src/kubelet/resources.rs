//! Resources of a Pod's containers: QoS class, limits and the values of `resourceFieldRef`. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceFieldSelector, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use thiserror::Error;

pub mod quantity;

use quantity::{Milli, QuantityError};

/// The quality-of-service classes of `status.qosClass`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum QosClass {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl QosClass {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

/// Resources of the machine; also the value of a `resourceFieldRef` for a container without a limit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Allocatable {
    pub cpu: Milli,
    pub memory: Milli,
    pub ephemeral_storage: Milli,
}

/// Limits of one container or, summed, of a Pod; `None` means no limit.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ResourceLimits {
    pub cpu: Option<Milli>,
    pub cpu_request: Option<Milli>,
    pub memory: Option<Milli>,
    pub ephemeral_storage: Option<Milli>,
    /// The greater of limit and request, summed over the containers that have one.
    pub cpu_asked: Milli,
    pub memory_asked: Milli,
}

fn amount(map: Option<&BTreeMap<String, Quantity>>, key: &str) -> Result<Option<Milli>, QuantityError> {
    map.and_then(|m| m.get(key)).map(quantity::of).transpose()
}

/// The limits of resource requirements. The CPU request defaults to the CPU limit.
pub fn limits(resources: Option<&ResourceRequirements>) -> Result<ResourceLimits, QuantityError> {
    let limits = resources.and_then(|r| r.limits.as_ref());
    let requests = resources.and_then(|r| r.requests.as_ref());
    let (cpu, memory) = (amount(limits, "cpu")?, amount(limits, "memory")?);
    let cpu_request = amount(requests, "cpu")?.or(cpu);
    let asked = |limit: Option<Milli>, request: Option<Milli>| limit.max(request).unwrap_or_default();
    Ok(ResourceLimits {
        cpu,
        cpu_request,
        memory,
        ephemeral_storage: amount(limits, "ephemeral-storage")?,
        cpu_asked: asked(cpu, cpu_request),
        memory_asked: asked(memory, amount(requests, "memory")?),
    })
}

/// The limits of a whole Pod: its own if given, otherwise the sum over containers and sidecars (at least the largest
/// init container), and none if any container has none.
pub fn pod_limits(spec: &PodSpec) -> Result<ResourceLimits, QuantityError> {
    let own = limits(spec.resources.as_ref())?;
    let mut running = Vec::new();
    let mut init = Vec::new();
    for container in &spec.containers {
        running.push(limits(container.resources.as_ref())?);
    }
    for container in spec.init_containers.iter().flatten() {
        let limits = limits(container.resources.as_ref())?;
        if is_sidecar(container) { running.push(limits) } else { init.push(limits) }
    }
    let total = |pick: fn(&ResourceLimits) -> Option<Milli>| -> Option<Milli> {
        let sum = running.iter().map(|l| pick(l).map(|m| m.0)).sum::<Option<i128>>()?;
        let largest = init.iter().map(|l| pick(l).map(|m| m.0)).try_fold(0, |top, m| m.map(|m| m.max(top)))?;
        Some(Milli(sum.max(largest)))
    };
    let asked = |own: Milli, pick: fn(&ResourceLimits) -> Milli| {
        let sum = running.iter().map(|l| pick(l).0).sum::<i128>();
        Milli(init.iter().map(|l| pick(l).0).chain([sum, own.0]).max().unwrap_or_default())
    };
    // What the runtime itself needs, from the Pod's RuntimeClass. It is no limit where there is none.
    let overhead = |key: &str| amount(spec.overhead.as_ref(), key).map(|found| found.map_or(0, |more| more.0));
    let (more_cpu, more_memory) = (overhead("cpu")?, overhead("memory")?);
    let plus = |limit: Option<Milli>, more: i128| limit.map(|limit| Milli(limit.0 + more));
    Ok(ResourceLimits {
        cpu_asked: Milli(asked(own.cpu_asked, |l| l.cpu_asked).0 + more_cpu),
        memory_asked: Milli(asked(own.memory_asked, |l| l.memory_asked).0 + more_memory),
        cpu: plus(own.cpu.or_else(|| total(|l| l.cpu)), more_cpu),
        cpu_request: plus(own.cpu_request.or_else(|| total(|l| l.cpu_request)), more_cpu),
        memory: plus(own.memory.or_else(|| total(|l| l.memory)), more_memory),
        ephemeral_storage: own.ephemeral_storage.or_else(|| total(|l| l.ephemeral_storage)),
    })
}

/// Whether an init container is a sidecar, which keeps running beside the main containers.
pub fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// The QoS class of a Pod, computed as in Kubernetes.
pub fn qos_class(spec: &PodSpec) -> QosClass {
    let mut any = false;
    let mut guaranteed = true;
    let all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let mut requirements: Vec<Option<&ResourceRequirements>> = all.map(|c| c.resources.as_ref()).collect();
    if spec.resources.is_some() {
        requirements = vec![spec.resources.as_ref()];
    }
    for resources in requirements {
        for key in ["cpu", "memory"] {
            let limit = amount(resources.and_then(|r| r.limits.as_ref()), key).ok().flatten().filter(|m| m.0 > 0);
            let request = amount(resources.and_then(|r| r.requests.as_ref()), key).ok().flatten().filter(|m| m.0 > 0);
            any |= limit.is_some() || request.is_some();
            guaranteed &= limit.is_some() && request.is_none_or(|r| Some(r) == limit);
        }
    }
    match (any, guaranteed) {
        (false, _) => QosClass::BestEffort,
        (true, true) => QosClass::Guaranteed,
        (true, false) => QosClass::Burstable,
    }
}

/// Why a `resourceFieldRef` has no value.
#[derive(Debug, Error, Eq, PartialEq)]
pub enum ResourceFieldError {
    #[error("resourceFieldRef names container {0:?}, which the Pod does not have")]
    NoContainer(String),
    #[error("resourceFieldRef {0:?} is not one of limits.* or requests.* of cpu, memory or ephemeral-storage")]
    UnknownResource(String),
    #[error("the divisor of resourceFieldRef {0:?} must be positive")]
    ZeroDivisor(String),
    #[error(transparent)]
    Quantity(#[from] QuantityError),
}

/// The value of a `resourceFieldRef`, divided by its divisor and rounded up.
pub fn field(
    spec: &PodSpec,
    container: &Container,
    selector: &ResourceFieldSelector,
    node: &Allocatable,
) -> Result<String, ResourceFieldError> {
    let target = match selector.container_name.as_deref().filter(|n| !n.is_empty()) {
        None => container,
        Some(name) => spec
            .containers
            .iter()
            .chain(spec.init_containers.iter().flatten())
            .find(|c| c.name == name)
            .ok_or_else(|| ResourceFieldError::NoContainer(name.to_owned()))?,
    };
    let unknown = || ResourceFieldError::UnknownResource(selector.resource.clone());
    let (side, key) = selector.resource.split_once('.').ok_or_else(unknown)?;
    let resources = target.resources.as_ref();
    let limit = amount(resources.and_then(|r| r.limits.as_ref()), key)?;
    let request = amount(resources.and_then(|r| r.requests.as_ref()), key)?;
    let whole = match key {
        "cpu" => node.cpu,
        "memory" => node.memory,
        "ephemeral-storage" => node.ephemeral_storage,
        _ => return Err(unknown()),
    };
    let value = match side {
        "limits" => limit.unwrap_or(whole),
        "requests" => request.or(limit).unwrap_or_default(),
        _ => return Err(unknown()),
    };
    let divisor = match &selector.divisor {
        Some(d) if d.0 != "0" && !d.0.is_empty() => quantity::of(d)?,
        _ => Milli(1000),
    };
    if divisor.0 <= 0 {
        return Err(ResourceFieldError::ZeroDivisor(selector.resource.clone()));
    }
    Ok((value.0.div_euclid(divisor.0) + i128::from(value.0.rem_euclid(divisor.0) != 0)).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec(value: serde_json::Value) -> PodSpec {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn the_class_follows_limits_and_requests() {
        let none = spec(json!({"containers": [{"name": "a"}]}));
        assert_eq!(qos_class(&none), QosClass::BestEffort);
        let full = spec(json!({"containers": [{"name": "a", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}]}));
        assert_eq!(qos_class(&full), QosClass::Guaranteed);
        let lower = spec(json!({"containers": [{"name": "a", "resources": {
            "limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "100m"}}}]}));
        assert_eq!(qos_class(&lower), QosClass::Burstable);
        let partial =
            spec(json!({"containers": [{"name": "a", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}},
            {"name": "b"}]}));
        assert_eq!(qos_class(&partial), QosClass::Burstable);
    }

    #[test]
    fn a_pod_is_limited_only_when_every_container_is() {
        let both = spec(json!({
            "containers": [{"name": "a", "resources": {"limits": {"memory": "1Gi"}}}],
            "initContainers": [{"name": "s", "restartPolicy": "Always", "resources": {"limits": {"memory": "1Gi"}}},
                               {"name": "i", "resources": {"limits": {"memory": "4Gi"}}}]}));
        assert_eq!(pod_limits(&both).unwrap().memory, Some(quantity::parse("4Gi").unwrap()));
        assert_eq!(pod_limits(&both).unwrap().cpu, None);
        let overhead = spec(json!({
            "containers": [{"name": "a", "resources": {"limits": {"memory": "1Gi"}}}],
            "overhead": {"memory": "160Mi", "cpu": "250m"}}));
        let limits = pod_limits(&overhead).unwrap();
        assert_eq!(limits.memory, Some(quantity::parse("1184Mi").unwrap()));
        assert_eq!((limits.cpu, limits.cpu_asked), (None, quantity::parse("250m").unwrap()));
    }

    #[test]
    fn what_some_containers_ask_for_is_known_though_others_ask_for_nothing() {
        let mixed = spec(json!({"containers": [
            {"name": "a", "resources": {"limits": {"memory": "2Gi"}, "requests": {"cpu": "300m"}}},
            {"name": "b", "resources": {"requests": {"memory": "1Gi", "cpu": "200m"}}},
            {"name": "c"}]}));
        let limits = pod_limits(&mixed).unwrap();
        assert_eq!((limits.memory, limits.cpu), (None, None));
        assert_eq!((limits.memory_asked, limits.cpu_asked), (quantity::parse("3Gi").unwrap(), Milli(500)));
    }

    #[test]
    fn resource_fields_divide_and_round_up() {
        let pod =
            spec(json!({"containers": [{"name": "a", "resources": {"limits": {"cpu": "1500m", "memory": "100Mi"}}}]}));
        let node = Allocatable { cpu: Milli(8000), memory: Milli(1), ephemeral_storage: Milli(5000) };
        let get = |resource: &str, divisor: &str| {
            let selector = ResourceFieldSelector {
                resource: resource.to_owned(),
                divisor: Some(Quantity(divisor.to_owned())),
                container_name: None,
            };
            field(&pod, &pod.containers[0], &selector, &node)
        };
        assert_eq!(get("limits.cpu", "1").unwrap(), "2");
        assert_eq!(get("limits.cpu", "1m").unwrap(), "1500");
        assert_eq!(get("limits.memory", "1Mi").unwrap(), "100");
        assert_eq!(get("limits.ephemeral-storage", "1").unwrap(), "5");
        assert_eq!(get("requests.cpu", "1m").unwrap(), "1500");
        assert!(get("limits.gpu", "1").is_err());
        assert!(get("cpu", "1").is_err());
    }
}
