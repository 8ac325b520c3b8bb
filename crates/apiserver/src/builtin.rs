//! Name checks, defaulting, validation and immutability rules of Kubernetes' built-in kinds.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use parking_lot::Mutex;
use serde_json::Value;

use crate::{
    documents::openapi::builtin as definitions,
    registry::Resource,
    schema::Schema,
    status::{FieldError, Path},
};

mod crd;
mod kinds;
mod limits;
pub mod metadata;
pub mod names;
mod network;
mod pod;
mod pod_defaults;
mod quantities;
mod storage;

pub(crate) use network::cluster_ip;

/// The schema of a built-in kind in its storage version, which is what is validated. It is compiled on first use,
/// because most kinds are never used. An alias has the schema of its original.
pub fn schema(resource: &Resource) -> Option<Arc<Schema>> {
    static COMPILED: OnceLock<Mutex<HashMap<String, Option<Arc<Schema>>>>> = OnceLock::new();
    let mut compiled = COMPILED.get_or_init(Mutex::default).lock();
    if let Some(found) = compiled.get(&*resource.storage) {
        return found.clone();
    }
    let schema = compile(&resource.storage_version, &resource.kind);
    compiled.insert(resource.storage.to_string(), schema.clone());
    schema
}

/// The schema of `events.k8s.io` events, the only built-in kind that is stored in the version of another group.
pub(crate) fn alias_schema(resource: &Resource) -> Option<Arc<Schema>> {
    static COMPILED: OnceLock<Option<Arc<Schema>>> = OnceLock::new();
    COMPILED.get_or_init(|| compile(&resource.versions.first()?.api_version, &resource.kind)).clone()
}

fn compile(api_version: &str, kind: &str) -> Option<Arc<Schema>> {
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    let name = definitions::definition_of(group, version, kind);
    name.and_then(Schema::of_builtin).map(Arc::new)
}

/// Checks the name of an object of this resource; returns what is wrong with it.
pub fn check_name(resource: &Resource, name: &str) -> Vec<String> {
    match &*resource.storage {
        "/namespaces" => names::dns1123_label(name),
        "/services" => names::dns1123_label(name),
        s if s.starts_with("rbac.authorization.k8s.io/") => names::path_segment(name),
        _ => names::dns1123_subdomain(name),
    }
}

/// Applies Kubernetes' defaults. Called on every write, since an update may add fields that have defaults.
pub fn apply_defaults(resource: &Resource, object: &mut Value) {
    match &*resource.storage {
        "/pods" => pod_defaults::pod(object),
        "/services" => network::service_defaults(object),
        "/persistentvolumeclaims" => storage::claim_defaults(object),
        "/persistentvolumes" => storage::volume_defaults(object),
        "storage.k8s.io/storageclasses" => storage::class_defaults(object),
        "networking.k8s.io/networkpolicies" => network::policy_defaults(object),
        "/namespaces" => kinds::namespace_defaults(object),
        "/limitranges" => limits::range_defaults(object),
        "/secrets" => kinds::secret_defaults(object),
        "apps/deployments" | "apps/replicasets" | "apps/statefulsets" | "apps/daemonsets" => {
            kinds::workload_defaults(&resource.plural, object);
        }
        "apiextensions.k8s.io/customresourcedefinitions" => crd::defaults(object),
        _ => {}
    }
}

/// Sets fields that the server itself decides. No field manager owns them.
pub fn admit(resource: &Resource, object: &mut Value) {
    match &*resource.storage {
        "/pods" => pod_defaults::admit(object),
        "/services" => network::admit_service(object),
        "/namespaces" => kinds::admit_namespace(object),
        "/events" => kinds::admit_event(object, resource.is_alias()),
        _ => {}
    }
}

/// Sets the initial status of a new object and other fields that a client cannot choose on creation.
pub fn prepare_for_create(resource: &Resource, object: &mut Value) {
    match &*resource.storage {
        "/pods" => pod_defaults::init_status(object),
        "/namespaces" => object["status"] = serde_json::json!({ "phase": "Active" }),
        "/persistentvolumeclaims" | "/persistentvolumes" => {
            object["status"] = serde_json::json!({ "phase": "Pending" });
        }
        "/services" => object["status"] = serde_json::json!({ "loadBalancer": {} }),
        "/resourcequotas" => object["status"] = serde_json::json!({}),
        "apps/deployments" | "apps/replicasets" | "apps/statefulsets" | "apps/daemonsets" => {
            object["status"] = serde_json::json!({});
        }
        "apiextensions.k8s.io/customresourcedefinitions" => crd::establish(object, None),
        _ => {}
    }
}

/// All validation errors of an object of a built-in kind.
pub fn validate(resource: &Resource, object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    match &*resource.storage {
        "/pods" => pod::validate(object, &Path::Root.child("spec"), &mut errors),
        "/services" => network::validate_service(object, &mut errors),
        "/persistentvolumeclaims" => storage::validate_claim(object, &mut errors),
        "networking.k8s.io/networkpolicies" => network::validate_policy(object, &mut errors),
        "node.k8s.io/runtimeclasses" => kinds::validate_runtime_class(object, &mut errors),
        "storage.k8s.io/storageclasses" => kinds::validate_storage_class(object, &mut errors),
        "/limitranges" => limits::validate_range(object, &mut errors),
        "/resourcequotas" => limits::validate_quota(object, &mut errors),
        "/configmaps" | "/secrets" => kinds::validate_keys(object, &mut errors),
        "/events" if resource.is_alias() => kinds::validate_event(object, &mut errors),
        "/events" => kinds::validate_core_event(object, &mut errors),
        "apps/deployments" | "apps/replicasets" | "apps/statefulsets" | "apps/daemonsets" => {
            kinds::validate_workload(object, &mut errors);
        }
        s if s.starts_with("rbac.authorization.k8s.io/") => kinds::validate_rbac(&resource.kind, object, &mut errors),
        "coordination.k8s.io/leases" => kinds::validate_lease(object, &mut errors),
        "apiextensions.k8s.io/customresourcedefinitions" => crd::validate(object, &mut errors),
        _ => {}
    }
    errors
}

/// True for kinds whose objects a PUT creates if they do not exist.
pub fn allows_create_on_update(resource: &Resource) -> bool {
    matches!(&*resource.storage, "/services" | "/endpoints" | "/events" | "/limitranges" | "coordination.k8s.io/leases")
        || resource.group == "rbac.authorization.k8s.io"
}

/// How often Kubernetes reports the same metadata error in an update: once for each of its layers that validates.
pub fn metadata_reports(resource: &Resource) -> usize {
    if matches!(&*resource.storage, "/configmaps" | "/secrets" | "/serviceaccounts") { 4 } else { 3 }
}

/// Errors for changes that an update may not make.
pub fn validate_update(resource: &Resource, old: &Value, new: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    match &*resource.storage {
        "/pods" => pod::validate_update(old, new, &mut errors),
        "/services" => network::validate_service_update(old, new, &mut errors),
        "/persistentvolumeclaims" => storage::validate_claim_update(old, new, &mut errors),
        "/resourcequotas" => limits::validate_quota_update(old, new, &mut errors),
        "/configmaps" | "/secrets" => kinds::validate_immutable_data(old, new, &mut errors),
        "node.k8s.io/runtimeclasses" => kinds::immutable(old, new, "handler", &mut errors),
        "storage.k8s.io/storageclasses" => {
            for field in ["provisioner", "reclaimPolicy", "volumeBindingMode", "parameters"] {
                kinds::immutable(old, new, field, &mut errors);
            }
        }
        "rbac.authorization.k8s.io/rolebindings" | "rbac.authorization.k8s.io/clusterrolebindings"
            if old["roleRef"] != new["roleRef"] =>
        {
            errors.push(FieldError::invalid("roleRef", &new["roleRef"], "cannot change roleRef"));
        }
        "apps/deployments" | "apps/replicasets" | "apps/statefulsets" | "apps/daemonsets"
            if old["spec"]["selector"] != new["spec"]["selector"] =>
        {
            errors.push(FieldError::invalid("spec.selector", &new["spec"]["selector"], "field is immutable"));
        }
        "apiextensions.k8s.io/customresourcedefinitions" => crd::validate_update(old, new, &mut errors),
        _ => {}
    }
    errors
}

/// Updates fields that are derived from the spec: accepted names and stored versions of a CRD.
pub fn prepare_for_update(resource: &Resource, old: &Value, new: &mut Value) {
    if &*resource.storage == "apiextensions.k8s.io/customresourcedefinitions" {
        crd::establish(new, Some(old));
    }
}

/// The error for a value that Kubernetes could not even decode although its type is right, such as invalid base64 or a
/// quantity that is none.
pub fn decode_error(resource: &Resource, object: &Value) -> Option<String> {
    match &*resource.storage {
        "/configmaps" | "/secrets" => {
            kinds::invalid_base64_offset(object).map(|at| format!("illegal base64 data at input byte {at}"))
        }
        storage => quantities::any_invalid(storage, object).then(|| quantities::MESSAGE.to_owned()),
    }
}

/// True for kinds whose `metadata.generation` counts changes of their spec.
pub fn has_generation(resource: &Resource) -> bool {
    matches!(
        &*resource.storage,
        "/pods"
            | "apps/deployments"
            | "apps/replicasets"
            | "apps/statefulsets"
            | "apps/daemonsets"
            | "networking.k8s.io/networkpolicies"
            | "apiextensions.k8s.io/customresourcedefinitions"
            | "policy/poddisruptionbudgets"
    )
}

/// Sets a member if it is absent or null.
fn default_to(object: &mut Value, key: &str, value: impl Into<Value>) {
    let Some(members) = object.as_object_mut() else { return };
    if members.get(key).is_none_or(Value::is_null) {
        members.insert(key.to_owned(), value.into());
    }
}

fn items_mut<'a>(object: &'a mut Value, key: &str) -> impl Iterator<Item = &'a mut Value> {
    object.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten()
}

fn items<'a>(object: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    object.get(key).and_then(Value::as_array).into_iter().flatten()
}

fn text<'a>(object: &'a Value, key: &str) -> &'a str {
    object.get(key).and_then(Value::as_str).unwrap_or_default()
}
