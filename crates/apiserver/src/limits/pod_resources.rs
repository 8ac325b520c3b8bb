//! Requests and limits of a whole Pod, from those of its containers.

use serde_json::Value;

use super::amount::{Amounts, add_all, amounts, raise_all};

/// Which of a container's resources are summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Requests,
    Limits,
}

impl Side {
    fn key(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Limits => "limits",
        }
    }
}

/// The containers of a list of the spec.
pub(super) fn containers<'a>(spec: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    spec[list].as_array().into_iter().flatten()
}

/// True if the Pod has resources of its own, beside those of its containers.
pub(super) fn has_pod_level(spec: &Value) -> bool {
    let set = |side: Side| {
        spec["resources"][side.key()].as_object().is_some_and(|list| list.keys().any(|name| is_pod_level(name)))
    };
    set(Side::Requests) || set(Side::Limits)
}

fn is_pod_level(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with("hugepages-")
}

/// The sum over the containers. Init containers run one after the other, so that the largest counts; those that keep
/// running (`restartPolicy: Always`) count like containers and beside every later init container.
pub(super) fn total(spec: &Value, side: Side) -> Amounts {
    let of = |container: &Value| amounts(&container["resources"][side.key()]);
    let mut sum = Amounts::new();
    for container in containers(spec, "containers") {
        add_all(&mut sum, &of(container));
    }
    let (mut sidecars, mut initial) = (Amounts::new(), Amounts::new());
    for container in containers(spec, "initContainers") {
        let mut own = of(container);
        if container["restartPolicy"] == "Always" {
            add_all(&mut sum, &own);
            add_all(&mut sidecars, &own);
            own = sidecars.clone();
        } else {
            add_all(&mut own, &sidecars);
        }
        raise_all(&mut initial, &own);
    }
    raise_all(&mut sum, &initial);
    let pod_level = amounts(&spec["resources"][side.key()]);
    sum.extend(pod_level.into_iter().filter(|(name, _)| is_pod_level(name)));
    sum
}

/// Like [`total`], with the overhead of the Pod's RuntimeClass.
pub(super) fn total_with_overhead(spec: &Value, side: Side) -> Amounts {
    let mut sum = total(spec, side);
    let mut overhead = amounts(&spec["overhead"]);
    if side == Side::Limits {
        overhead.retain(|name, _| sum.get(name).is_some_and(|limit| !limit.is_zero()));
    }
    add_all(&mut sum, &overhead);
    sum
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn container(cpu: &str) -> Value {
        json!({ "resources": { "requests": { "cpu": cpu }, "limits": { "cpu": cpu } } })
    }

    fn sidecar(cpu: &str) -> Value {
        let mut container = container(cpu);
        container["restartPolicy"] = "Always".into();
        container
    }

    fn cpu(spec: &Value) -> String {
        total_with_overhead(spec, Side::Requests)["cpu"].to_string()
    }

    #[test]
    fn containers_are_summed_and_init_containers_count_once() {
        let two = json!([container("100m"), container("200m")]);
        assert_eq!(cpu(&json!({ "containers": two })), "300m");
        assert_eq!(cpu(&json!({ "containers": two, "initContainers": [container("250m")] })), "300m");
        assert_eq!(cpu(&json!({ "containers": two, "initContainers": [container("2")] })), "2");
        assert_eq!(cpu(&json!({ "containers": two, "initContainers": [sidecar("1")] })), "1300m");
        assert_eq!(cpu(&json!({ "containers": two, "initContainers": [sidecar("1"), container("1")] })), "2");
    }

    #[test]
    fn pod_level_resources_replace_the_sum_and_overhead_is_added() {
        let spec = json!({
            "containers": [container("100m")],
            "resources": { "requests": { "cpu": "3" } },
            "overhead": { "cpu": "50m", "memory": "1Mi" },
        });
        assert_eq!(cpu(&spec), "3050m");
        assert!(has_pod_level(&spec));
        let limits = total_with_overhead(&spec, Side::Limits);
        assert_eq!(limits["cpu"].to_string(), "150m");
        assert!(!limits.contains_key("memory"), "overhead is no limit where there is none");
    }
}
