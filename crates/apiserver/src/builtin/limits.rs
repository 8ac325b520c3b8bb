//! Defaults and validation of LimitRanges and ResourceQuotas.

use std::collections::{BTreeSet, HashSet};

use serde_json::{Map, Value};

use super::{default_to, items, items_mut, text};
use crate::{
    limits::Amount,
    status::{FieldError, Path},
};

/// Names of limited resources that need no prefix.
const QUOTA_NAMES: &[&str] = &[
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.storage",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "persistentvolumeclaims",
    "configmaps",
    "services.nodeports",
    "services.loadbalancers",
];
/// Names among them that are numbers of objects.
const COUNTS: &[&str] = &[
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];
const POD_NAMES: &[&str] = &["pods", "cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory"];
const SCOPES: &[&str] = &[
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "VolumeAttributesClass",
    "CrossNamespacePodAffinity",
];

/// A container's default limit is the maximum, its default request the default limit or the minimum.
pub(super) fn range_defaults(object: &mut Value) {
    for item in items_mut(&mut object["spec"], "limits").filter(|item| item["type"] == "Container") {
        for (key, source) in [("default", "max"), ("defaultRequest", "default"), ("defaultRequest", "min")] {
            let Some(from) = item.get(source).and_then(Value::as_object).cloned() else { continue };
            if from.is_empty() {
                continue;
            }
            default_to(item, key, Map::new());
            for (name, amount) in from {
                default_to(&mut item[key], &name, amount);
            }
        }
    }
}

pub(super) fn validate_range(object: &Value, errors: &mut Vec<FieldError>) {
    let spec = Path::Root.child("spec");
    let list = spec.child("limits");
    let mut types = HashSet::new();
    for (index, item) in items(&object["spec"], "limits").enumerate() {
        let at = list.index(index);
        let kind = text(item, "type");
        if !matches!(kind, "Pod" | "Container" | "PersistentVolumeClaim") && !kind.contains('/') {
            let why = "must be a standard limit type or fully qualified";
            errors.push(FieldError::invalid_str(at.child("type"), kind, why));
        }
        if !types.insert(kind) {
            errors.push(FieldError::duplicate(at.child("type"), &kind.into()));
        }
        for key in ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"] {
            validate_names(kind, &item[key], &at.child(key), errors);
        }
        if kind == "Pod" {
            for key in ["default", "defaultRequest"] {
                if item[key].as_object().is_some_and(|list| !list.is_empty()) {
                    errors.push(FieldError::forbidden(at.child(key), "may not be specified when `type` is 'Pod'"));
                }
            }
        }
        let bound = |key: &str| item[key].get("storage").is_some();
        if kind == "PersistentVolumeClaim" && !bound("min") && !bound("max") {
            let why = "either minimum or maximum storage value is required, but neither was provided";
            errors.push(FieldError::required(at.child("limits"), why));
        }
        validate_order(item, &at, errors);
    }
}

fn validate_names(kind: &str, list: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    for (name, amount) in list.as_object().into_iter().flatten() {
        let plain = matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
        if !name.contains('/') && !plain {
            validate_standard(name, &path.key(name), errors);
        }
        if matches!(kind, "Pod" | "Container") && !name.contains('/') && !plain {
            errors.push(FieldError::invalid_str(path.key(name), name, "must be a standard resource for containers"));
        }
        validate_quantity(name, amount, &path.key(name), errors);
    }
}

/// A name without a domain must be one that Kubernetes knows.
fn validate_standard(name: &str, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if !QUOTA_NAMES.contains(&name) && name != "storage" {
        let why = "must be a standard resource type or fully qualified";
        errors.push(FieldError::invalid_str(path, name, why));
    }
}

/// The bounds and defaults of a LimitRange must not contradict each other.
fn validate_order(item: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let keys = ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"];
    let names: BTreeSet<&String> = keys.iter().filter_map(|key| item[*key].as_object()).flat_map(Map::keys).collect();
    for name in names {
        let amount = |key: &str| item[key].get(name).and_then(Amount::of_json);
        let (min, max, default, request) = (amount("min"), amount("max"), amount("default"), amount("defaultRequest"));
        let mut greater =
            |low: Option<Amount>, high: Option<Amount>, key: &str, shown: Option<Amount>, words: [&str; 2]| {
                if let (Some(low), Some(high), Some(shown)) = (low, high, shown)
                    && low > high
                {
                    let why = format!("{} value {low} is greater than {} value {high}", words[0], words[1]);
                    errors.push(FieldError::invalid_str(path.child(key).key(name), &shown.to_string(), why));
                }
            };
        greater(min, max, "min", min, ["min", "max"]);
        greater(min, request, "defaultRequest", request, ["min", "default request"]);
        greater(request, max, "defaultRequest", request, ["default request", "max"]);
        greater(request, default, "defaultRequest", request, ["default request", "default limit"]);
        greater(min, default, "default", min, ["min", "default"]);
        greater(default, max, "default", max, ["default", "max"]);
        if let Some(ratio) = amount("maxLimitRequestRatio") {
            let at = path.child("maxLimitRequestRatio");
            if ratio < Amount::ONE {
                let why = format!("ratio {ratio} is less than 1");
                errors.push(FieldError::invalid_str(at.key(name), &ratio.to_string(), why));
            }
            if let (Some(min), Some(max)) = (min.filter(|min| !min.is_zero()), max)
                && ratio.as_f64() > max.ratio(min)
            {
                let why = format!("ratio {ratio} is greater than max/min = {:.6}", max.ratio(min));
                errors.push(FieldError::invalid_str(at.key(name), &ratio.to_string(), why));
            }
        }
    }
}

pub(super) fn validate_quota(object: &Value, errors: &mut Vec<FieldError>) {
    let (spec, path) = (&object["spec"], Path::Root.child("spec"));
    let hard = path.child("hard");
    for (name, amount) in spec["hard"].as_object().into_iter().flatten() {
        let huge = name.starts_with("hugepages-") || name.starts_with("requests.hugepages-");
        if !name.contains('/') && !QUOTA_NAMES.contains(&name.as_str()) && !huge {
            validate_standard(name, &hard.key(name), errors);
            let why = "must be a standard resource for quota";
            errors.push(FieldError::invalid_str(hard.key(name), name, why));
        }
        validate_quantity(name, amount, &hard.key(name), errors);
    }
    let limited: Vec<&str> = spec["hard"].as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
    let scopes: Vec<&str> = items(spec, "scopes").filter_map(Value::as_str).collect();
    let at = path.child("scopes");
    for scope in &scopes {
        if !SCOPES.contains(scope) {
            errors.push(FieldError::invalid(at, &spec["scopes"], "unsupported scope"));
        }
        for _ in limited.iter().filter(|name| !scope_fits(scope, name)) {
            errors.push(FieldError::invalid(at, &spec["scopes"], "unsupported scope applied to resource"));
        }
    }
    conflicting(&scopes, &at, &spec["scopes"], errors);
    validate_selector(spec, &limited, errors);
}

fn validate_selector(spec: &Value, limited: &[&str], errors: &mut Vec<FieldError>) {
    let (root, selector) = (Path::Root.child("spec"), &spec["scopeSelector"]);
    let selected = root.child("scopeSelector");
    let at = selected.child("matchExpressions");
    let mut scopes = Vec::new();
    for requirement in items(selector, "matchExpressions") {
        let (scope, operator) = (text(requirement, "scopeName"), text(requirement, "operator"));
        if !SCOPES.contains(&scope) {
            errors.push(FieldError::invalid_str(at.child("scopeName"), scope, "unsupported scope"));
        }
        for _ in limited.iter().filter(|name| !scope_fits(scope, name)) {
            errors.push(FieldError::invalid(at, selector, "unsupported scope applied to resource"));
        }
        if !matches!(scope, "PriorityClass" | "VolumeAttributesClass") && operator != "Exists" {
            let why = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
            errors.push(FieldError::invalid_str(at.child("operator"), operator, why));
        }
        let given = items(requirement, "values").next().is_some();
        match operator {
            "In" | "NotIn" if !given => errors.push(FieldError::required(
                at.child("values"),
                "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector",
            )),
            "Exists" | "DoesNotExist" if given => errors.push(FieldError::invalid(
                at.child("values"),
                &requirement["values"],
                "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector",
            )),
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            _ => errors.push(FieldError::invalid_str(at.child("operator"), operator, "not a valid selector operator")),
        }
        scopes.push(scope);
    }
    conflicting(&scopes, &at, &spec["scopes"], errors);
}

/// True if a quota with this scope may limit this resource.
fn scope_fits(scope: &str, name: &str) -> bool {
    let standard = QUOTA_NAMES.contains(&name);
    !standard
        || match scope {
            "Terminating" | "NotTerminating" | "NotBestEffort" | "PriorityClass" | "CrossNamespacePodAffinity" => {
                POD_NAMES.contains(&name)
            }
            "BestEffort" => name == "pods",
            "VolumeAttributesClass" => matches!(name, "persistentvolumeclaims" | "requests.storage"),
            _ => true,
        }
}

fn conflicting(scopes: &[&str], path: &Path<'_>, shown: &Value, errors: &mut Vec<FieldError>) {
    for (one, other) in [("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating")] {
        if scopes.contains(&one) && scopes.contains(&other) {
            errors.push(FieldError::invalid(path, shown, "conflicting scopes"));
        }
    }
}

fn validate_quantity(name: &str, amount: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let Some(value) = Amount::of_json(amount) else { return };
    if value < Amount::default() {
        errors.push(FieldError::invalid(path, amount, "must be greater than or equal to 0"));
    }
    if COUNTS.contains(&name) && value != value.rounded_up() {
        errors.push(FieldError::invalid(path, amount, "must be an integer"));
    }
}

pub(super) fn validate_quota_update(old: &Value, new: &Value, errors: &mut Vec<FieldError>) {
    let scopes = |quota: &Value| -> BTreeSet<String> {
        items(&quota["spec"], "scopes").filter_map(Value::as_str).map(str::to_owned).collect()
    };
    if scopes(old) != scopes(new) {
        errors.push(FieldError::invalid("spec.scopes", &new["spec"]["scopes"], "field is immutable"));
    }
}
