//! What a namespace allows the objects in it: LimitRanges, Pod Security labels and ResourceQuotas. Also what RuntimeClasses
//! add to Pods.

use std::sync::Arc;

use serde_json::Value;

use super::{Context, metadata::is_deleting};
use crate::{
    controllers::NAMESPACES,
    limits::{ledger::Request, limit_range, runtime_class},
    pod_security::{self, Policy},
    registry::Resource,
    server::Core,
    status::ApiError,
    store::{LatestView, ObjectKey, Stored},
};

const PODS: &str = "/pods";
const CLAIMS: &str = "/persistentvolumeclaims";
const LIMIT_RANGES: &str = "/limitranges";
const RUNTIME_CLASSES: &str = "node.k8s.io/runtimeclasses";

/// Adds to a new Pod the defaults of the namespace's LimitRanges and what its RuntimeClass requires.
pub(super) fn apply_defaults(context: &Context<'_>, object: &mut Value) -> Result<(), ApiError> {
    if &*context.endpoint.resource.storage != PODS || is_exempt(context, object) {
        return Ok(());
    }
    for range in limit_ranges(context) {
        limit_range::apply_defaults(&range, object);
    }
    let class = object["spec"]["runtimeClassName"].as_str().and_then(|name| {
        let class = context.core.store.latest(&RUNTIME_CLASSES.into(), &ObjectKey::new("", name))?;
        Some(class.parse())
    });
    runtime_class::apply(class.as_ref(), object).map_err(|why| forbidden(context, object, &why))
}

/// Fails if LimitRanges or Pod Security labels forbid a new or changed object. Adds what Pod Security says of it to the
/// response and to the audit log.
pub(super) fn check(context: &mut Context<'_>, old: Option<&Value>, new: &Value) -> Result<(), ApiError> {
    let subresource = context.request.subresource.as_str();
    match &*context.endpoint.resource.storage {
        NAMESPACES if subresource.is_empty() => check_namespace(context, old, new),
        PODS | CLAIMS if is_exempt(context, new) => Ok(()),
        PODS => {
            if old.is_none() || subresource == "resize" {
                check_limit_ranges(context, old, new)?;
            }
            match old {
                Some(old) if subresource == "status" || !pod_security::is_significant(old, new) => Ok(()),
                _ => check_pod_security(context, new),
            }
        }
        CLAIMS if subresource.is_empty() => check_limit_ranges(context, old, new),
        "apps/deployments" | "apps/replicasets" | "apps/statefulsets" | "apps/daemonsets" if subresource.is_empty() => {
            let (policy, _) = policy_of(context);
            context.warnings.extend(policy.warning(&new["spec"]["template"]));
            context.audit_reason = policy.audit_reason(&new["spec"]["template"]);
            Ok(())
        }
        _ => Ok(()),
    }
}

fn is_exempt(context: &Context<'_>, object: &Value) -> bool {
    let resource = &context.endpoint.resource;
    let admission = context.core.mutating_admission.as_ref();
    admission.is_some_and(|admission| admission.is_exempt(&resource.group, &resource.plural, object))
}

fn forbidden(context: &Context<'_>, object: &Value, why: &str) -> ApiError {
    let resource = &context.endpoint.resource;
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    ApiError::forbidden(&resource.group, &resource.plural, name, why)
}

fn limit_ranges(context: &Context<'_>) -> Vec<Value> {
    let ranges = context.core.store.collection(&LIMIT_RANGES.into()).list(&context.request.namespace);
    ranges.iter().map(|range| range.parse()).collect()
}

fn check_limit_ranges(context: &Context<'_>, old: Option<&Value>, new: &Value) -> Result<(), ApiError> {
    if old.is_some_and(is_deleting) {
        return Ok(());
    }
    let pods = &*context.endpoint.resource.storage == PODS;
    for range in limit_ranges(context) {
        let broken = if pods { limit_range::check_pod(&range, new) } else { limit_range::check_claim(&range, new) };
        if let Some(why) = broken {
            return Err(forbidden(context, new, &why));
        }
    }
    Ok(())
}

/// The policy of the request's namespace, and the namespace.
fn policy_of(context: &Context<'_>) -> (Policy, Option<Arc<Stored>>) {
    let key = ObjectKey::new("", &context.request.namespace);
    let namespace = context.core.store.latest(&NAMESPACES.into(), &key);
    let labels = namespace.as_ref().map(|namespace| {
        let labels = namespace.facts.labels.iter();
        Value::Object(labels.map(|(key, value)| (key.to_string(), Value::from(&**value))).collect())
    });
    (Policy::parse(&labels.unwrap_or_default()).0, namespace)
}

fn check_pod_security(context: &mut Context<'_>, pod: &Value) -> Result<(), ApiError> {
    let (policy, _) = policy_of(context);
    if policy.is_privileged() {
        return Ok(());
    }
    if let Some(why) = policy.refusal(pod) {
        return Err(forbidden(context, pod, &why));
    }
    context.warnings.extend(policy.warning(pod));
    context.audit_reason = policy.audit_reason(pod);
    Ok(())
}

/// Labels must be readable when they are set; Pods that a stricter level would not allow are named in warnings.
fn check_namespace(context: &mut Context<'_>, old: Option<&Value>, new: &Value) -> Result<(), ApiError> {
    let resource = context.endpoint.resource.clone();
    let name = new["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let (policy, errors) = Policy::parse(&new["metadata"]["labels"]);
    let (before, old_errors) = old.map(|old| Policy::parse(&old["metadata"]["labels"])).unwrap_or_default();
    if !errors.is_empty() && errors != old_errors {
        return Err(ApiError::invalid(&resource.group, &resource.kind, &name, &errors));
    }
    if old.is_some() && policy != before {
        let pods = context.core.store.collection(&PODS.into()).list(&name);
        let exempt = |pod: &Value| {
            let admission = context.core.mutating_admission.as_ref();
            admission.is_some_and(|admission| admission.is_exempt("", "pods", pod))
        };
        let pods: Vec<Value> = pods.iter().map(|pod| pod.parse()).filter(|pod| !exempt(pod)).collect();
        context.warnings.extend(policy.warnings_about_existing(&before, &name, &pods));
    }
    Ok(())
}

/// The check of a write against the quotas of its namespace, to be run when the write is sequenced.
pub(super) struct QuotaCheck {
    resource: Arc<Resource>,
    /// The object's states before and after the write; `None` if it cannot change what quotas count.
    states: Option<(Option<Value>, Value)>,
}

impl QuotaCheck {
    pub(super) fn of_new(resource: &Arc<Resource>, object: &Value) -> Self {
        // Kinds that are only counted are charged for without looking at them.
        let counts = matches!(&*resource.storage, PODS | CLAIMS | "/services");
        let state = if counts { object.clone() } else { Value::Null };
        Self { resource: resource.clone(), states: resource.namespaced.then_some((None, state)) }
    }

    pub(super) fn of_changed(context: &Context<'_>, current: &Stored, new: &Value) -> Self {
        let resource = &context.endpoint.resource;
        let subresource = context.request.subresource.as_str();
        let may_grow = match (&*resource.storage, subresource) {
            (PODS, "resize") | (CLAIMS, "" | "status") | ("/services", "") => true,
            (PODS, "") => {
                let deadline = |pod: &Value| pod["spec"]["activeDeadlineSeconds"].as_i64().is_some_and(|s| s >= 0);
                deadline(&current.parse()) != deadline(new)
            }
            _ => false,
        };
        let states = may_grow.then(|| (Some(current.parse()), new.clone()));
        Self { resource: resource.clone(), states }
    }

    pub(super) fn run(&self, core: &Core, latest: &LatestView<'_>, key: &ObjectKey) -> Result<(), ApiError> {
        let Some((old, new)) = &self.states else { return Ok(()) };
        core.ledger.check(latest, &Request { resource: &self.resource, key, new, old: old.as_ref() })
    }
}
