//! LimitRanges: default requests and limits of containers, and bounds of containers, Pods and claims.

use serde_json::{Value, json};

use super::{
    Amount,
    amount::{Amounts, amounts},
    pod_resources::{Side, containers, total},
};

/// Annotation that says which resources of a Pod are defaults.
const ANNOTATION: &str = "kubernetes.io/limit-ranger";

/// Adds the defaults of a LimitRange to the containers of a new Pod.
pub(crate) fn apply_defaults(range: &Value, pod: &mut Value) {
    let (mut requests, mut limits) = (serde_json::Map::new(), serde_json::Map::new());
    for item in items(range).filter(|item| item["type"] == "Container") {
        let copy = |from: &Value, to: &mut serde_json::Map<String, Value>| {
            to.extend(from.as_object().into_iter().flatten().map(|(name, amount)| (name.clone(), amount.clone())));
        };
        copy(&item["defaultRequest"], &mut requests);
        copy(&item["default"], &mut limits);
    }
    let mut notes = Vec::new();
    for (list, kind) in [("containers", "container"), ("initContainers", "init container")] {
        for container in pod["spec"].get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let name = container["name"].as_str().unwrap_or_default().to_owned();
            for (side, label, defaults) in [("requests", "request", &requests), ("limits", "limit", &limits)] {
                let added = add_missing(&mut container["resources"], side, defaults);
                if !added.is_empty() {
                    notes.push(format!("{} {label} for {kind} {name}", added.join(", ")));
                }
            }
        }
    }
    if !notes.is_empty() {
        if !pod["metadata"]["annotations"].is_object() {
            pod["metadata"]["annotations"] = json!({});
        }
        pod["metadata"]["annotations"][ANNOTATION] = format!("LimitRanger plugin set: {}", notes.join("; ")).into();
    }
}

/// Adds the defaults that a container lacks; returns their names in order.
fn add_missing(resources: &mut Value, side: &str, defaults: &serde_json::Map<String, Value>) -> Vec<String> {
    let mut added = Vec::new();
    for (name, amount) in defaults {
        if resources[side].get(name).is_none() {
            resources[side][name] = amount.clone();
            added.push(name.clone());
        }
    }
    added.sort();
    added
}

/// What a Pod violates, in Kubernetes' words; `None` if it is within the limits.
pub(crate) fn check_pod(range: &Value, pod: &Value) -> Option<String> {
    let spec = &pod["spec"];
    let mut errors = Vec::new();
    for item in items(range) {
        match item["type"].as_str() {
            Some("Container") => {
                for container in containers(spec, "containers").chain(containers(spec, "initContainers")) {
                    let of = |side: &str| amounts(&container["resources"][side]);
                    check_bounds(item, &of("requests"), &of("limits"), &mut errors);
                }
            }
            Some("Pod") => {
                check_bounds(item, &total(spec, Side::Requests), &total(spec, Side::Limits), &mut errors);
            }
            _ => {}
        }
    }
    aggregate(errors)
}

/// What a PersistentVolumeClaim violates; `None` if it is within the limits.
pub(crate) fn check_claim(range: &Value, claim: &Value) -> Option<String> {
    let requests = amounts(&claim["spec"]["resources"]["requests"]);
    let mut errors = Vec::new();
    for item in items(range).filter(|item| item["type"] == "PersistentVolumeClaim") {
        for (name, least) in amounts(&item["min"]) {
            errors.extend(below(item, &name, least, &requests, &Amounts::new()));
        }
        for (name, most) in amounts(&item["max"]) {
            let subject = format!("maximum {name} usage per PersistentVolumeClaim is {most}");
            match requests.get(&name) {
                None => errors.push(format!("{subject}.  No request is specified")),
                Some(asked) if *asked > most => errors.push(format!("{subject}, but request is {asked}")),
                Some(_) => {}
            }
        }
    }
    aggregate(errors)
}

fn items(range: &Value) -> impl Iterator<Item = &Value> {
    range["spec"]["limits"].as_array().into_iter().flatten()
}

fn check_bounds(item: &Value, requests: &Amounts, limits: &Amounts, errors: &mut Vec<String>) {
    for (name, least) in amounts(&item["min"]) {
        errors.extend(below(item, &name, least, requests, limits));
    }
    for (name, most) in amounts(&item["max"]) {
        errors.extend(above(item, &name, most, requests, limits));
    }
    for (name, most) in amounts(&item["maxLimitRequestRatio"]) {
        errors.extend(beyond_ratio(item, &name, most, requests, limits));
    }
}

fn kind(item: &Value) -> &str {
    item["type"].as_str().unwrap_or_default()
}

fn below(item: &Value, name: &str, least: Amount, requests: &Amounts, limits: &Amounts) -> Option<String> {
    let subject = format!("minimum {name} usage per {} is {least}", kind(item));
    match (requests.get(name), limits.get(name)) {
        (None, _) => Some(format!("{subject}.  No request is specified")),
        (Some(request), _) if *request < least => Some(format!("{subject}, but request is {request}")),
        (_, Some(limit)) if *limit < least => Some(format!("{subject}, but limit is {limit}")),
        _ => None,
    }
}

fn above(item: &Value, name: &str, most: Amount, requests: &Amounts, limits: &Amounts) -> Option<String> {
    let subject = format!("maximum {name} usage per {} is {most}", kind(item));
    match (limits.get(name), requests.get(name)) {
        (None, _) => Some(format!("{subject}.  No limit is specified")),
        (Some(limit), _) if *limit > most => Some(format!("{subject}, but limit is {limit}")),
        (_, Some(request)) if *request > most => Some(format!("{subject}, but request is {request}")),
        _ => None,
    }
}

fn beyond_ratio(item: &Value, name: &str, most: Amount, requests: &Amounts, limits: &Amounts) -> Option<String> {
    let subject = format!("{name} max limit to request ratio per {} is {most}", kind(item));
    let given = |list: &Amounts| list.get(name).copied().filter(|amount| !amount.is_zero());
    let Some(request) = given(requests) else {
        return Some(format!("{subject}, but no request is specified or request is 0"));
    };
    let Some(limit) = given(limits) else {
        return Some(format!("{subject}, but no limit is specified or limit is 0"));
    };
    let ratio = limit.ratio(request);
    (ratio > most.as_f64()).then(|| format!("{subject}, but provided ratio is {ratio:.6}"))
}

/// Several errors as one text, each once.
fn aggregate(errors: Vec<String>) -> Option<String> {
    let mut seen: Vec<String> = Vec::new();
    for error in errors {
        if !seen.contains(&error) {
            seen.push(error);
        }
    }
    match seen.as_slice() {
        [] => None,
        [one] => Some(one.clone()),
        more => Some(format!("[{}]", more.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(item: Value) -> Value {
        json!({ "spec": { "limits": [item] } })
    }

    fn pod(resources: Value) -> Value {
        json!({ "metadata": {}, "spec": { "containers": [{ "name": "a", "resources": resources }] } })
    }

    #[test]
    fn defaults_are_added_where_a_container_says_nothing() {
        let range = range(json!({
            "type": "Container",
            "default": { "cpu": "1", "memory": "64Mi" },
            "defaultRequest": { "cpu": "500m" },
        }));
        let mut pod = pod(json!({ "limits": { "memory": "1Gi" } }));
        apply_defaults(&range, &mut pod);
        assert_eq!(
            pod["spec"]["containers"][0]["resources"],
            json!({ "limits": { "cpu": "1", "memory": "1Gi" }, "requests": { "cpu": "500m" } })
        );
        assert_eq!(
            pod["metadata"]["annotations"][ANNOTATION],
            "LimitRanger plugin set: cpu request for container a; cpu limit for container a"
        );
    }

    #[test]
    fn violations_have_the_messages_of_kubernetes() {
        let bounds = range(json!({ "type": "Container", "max": { "cpu": "800m" }, "min": { "memory": "10Mi" } }));
        let small = pod(json!({ "limits": { "cpu": "900m", "memory": "1Mi" }, "requests": { "memory": "1Mi" } }));
        assert_eq!(
            check_pod(&bounds, &small).unwrap(),
            "[minimum memory usage per Container is 10Mi, but request is 1Mi, maximum cpu usage per Container is 800m, but limit is 900m]"
        );
        assert_eq!(
            check_pod(&range(json!({ "type": "Pod", "max": { "cpu": "1" } })), &pod(json!({}))).unwrap(),
            "maximum cpu usage per Pod is 1.  No limit is specified"
        );
        let ratio = range(json!({ "type": "Container", "maxLimitRequestRatio": { "cpu": "2" } }));
        let wide = pod(json!({ "limits": { "cpu": "1" }, "requests": { "cpu": "250m" } }));
        assert_eq!(
            check_pod(&ratio, &wide).unwrap(),
            "cpu max limit to request ratio per Container is 2, but provided ratio is 4.000000"
        );
        let even = pod(json!({ "limits": { "cpu": "1" }, "requests": { "cpu": "500m" } }));
        assert_eq!(check_pod(&ratio, &even), None);
    }

    #[test]
    fn claims_are_bounded_by_what_they_request() {
        let storage = range(json!({
            "type": "PersistentVolumeClaim", "min": { "storage": "1Gi" }, "max": { "storage": "5Gi" },
        }));
        let claim = |size: &str| json!({ "spec": { "resources": { "requests": { "storage": size } } } });
        assert_eq!(check_claim(&storage, &claim("2Gi")), None);
        assert_eq!(
            check_claim(&storage, &claim("6Gi")).unwrap(),
            "maximum storage usage per PersistentVolumeClaim is 5Gi, but request is 6Gi"
        );
        assert_eq!(
            check_claim(&storage, &claim("512Mi")).unwrap(),
            "minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 512Mi"
        );
    }
}
