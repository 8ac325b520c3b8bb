//! The quantities of built-in kinds: Kubernetes decodes them with the object, so that a malformed one is a bad request.

use agent_sandbox_api::quantity::Quantity;
use serde_json::Value;

use super::items;

pub(super) const MESSAGE: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

/// True if an object has a quantity that cannot be read.
pub(super) fn any_invalid(storage: &str, object: &Value) -> bool {
    let spec = &object["spec"];
    match storage {
        "/pods" => pod(spec),
        "apps/deployments" | "apps/replicasets" | "apps/statefulsets" | "apps/daemonsets" => {
            pod(&spec["template"]["spec"]) || items(spec, "volumeClaimTemplates").any(|claim| resources(&claim["spec"]))
        }
        "/persistentvolumeclaims" => resources(spec) || list(&object["status"]["capacity"]),
        "/persistentvolumes" => list(&spec["capacity"]),
        "/resourcequotas" => list(&spec["hard"]) || list(&object["status"]["hard"]) || list(&object["status"]["used"]),
        "/limitranges" => items(spec, "limits").any(|item| {
            ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"].iter().any(|key| list(&item[*key]))
        }),
        "/nodes" => list(&object["status"]["capacity"]) || list(&object["status"]["allocatable"]),
        _ => false,
    }
}

fn pod(spec: &Value) -> bool {
    let containers = ["containers", "initContainers", "ephemeralContainers"];
    let volume = |volume: &Value| {
        invalid(&volume["emptyDir"]["sizeLimit"]) || resources(&volume["ephemeral"]["volumeClaimTemplate"]["spec"])
    };
    containers.iter().any(|list| items(spec, list).any(resources))
        || resources(spec)
        || list(&spec["overhead"])
        || items(spec, "volumes").any(volume)
}

fn resources(of: &Value) -> bool {
    list(&of["resources"]["limits"]) || list(&of["resources"]["requests"])
}

fn list(amounts: &Value) -> bool {
    amounts.as_object().is_some_and(|members| members.values().any(invalid))
}

fn invalid(amount: &Value) -> bool {
    !amount.is_null() && Quantity::of_json(amount).is_none()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_place_of_a_quantity_is_looked_at() {
        for (storage, object) in [
            ("/pods", json!({"spec": {"containers": [{"resources": {"requests": {"cpu": "x"}}}]}})),
            ("/pods", json!({"spec": {"volumes": [{"emptyDir": {"sizeLimit": "1GB!"}}]}})),
            ("/persistentvolumeclaims", json!({"spec": {"resources": {"requests": {"storage": true}}}})),
            ("/resourcequotas", json!({"spec": {"hard": {"pods": "many"}}})),
            ("/limitranges", json!({"spec": {"limits": [{"max": {"cpu": ""}}]}})),
            ("apps/deployments", json!({"spec": {"template": {"spec": {"overhead": {"cpu": "1 2"}}}}})),
        ] {
            assert!(any_invalid(storage, &object), "{storage} {object}");
        }
        let good = json!({"spec": {"containers": [{"resources": {"limits": {"cpu": 1, "memory": "1Gi"}}}]}});
        assert!(!any_invalid("/pods", &good));
    }
}
