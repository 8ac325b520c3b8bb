//! From a decoded object to one that can be stored: unknown fields, defaults, validation, generation, `managedFields`.

use serde_json::Value;

use super::{Context, namespace_rules, subresources::set_scheduled};
use crate::{
    builtin,
    patch::{
        FieldsText,
        managed::{self, Manager},
    },
    registry::{Endpoint, Resource},
    request::{FieldValidation, WriteOptions},
    schema::Schema,
    status::{ApiError, FieldError},
    store::ObjectKey,
};

/// Mutating admission in this process, as a mutating webhook does it in a cluster. What a controller or the scheduler
/// would write into every new object a moment later becomes part of the first write, which saves a write and a watch
/// event.
pub trait MutatingAdmission: Send + Sync {
    /// Changes a new object of this resource, in the API version of the request. A Pod that gets a node here counts as
    /// scheduled. An object with a `generateName` has no final name yet.
    fn mutate(&self, group: &str, plural: &str, object: &mut Value);

    /// True for objects that the engine keeps for itself: no LimitRange, ResourceQuota or Pod Security label of their
    /// namespace applies to them. A tenant must not gain anything by creating an object that looks like one.
    fn is_exempt(&self, _group: &str, _plural: &str, _object: &Value) -> bool {
        false
    }
}

/// Prepares a new object (in the request's version) to be stored.
/// In its `managedFields`, numbers stand for the returned texts.
pub(crate) fn create(
    context: &mut Context<'_>,
    mut object: Value,
    options: &WriteOptions,
) -> Result<(Value, Vec<FieldsText>), ApiError> {
    let endpoint = context.endpoint.clone();
    let resource = endpoint.resource.clone();
    check_shape(context, &mut object, options)?;
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let mut errors = check_names(&resource, &name);
    let texts;
    if resource.is_custom() {
        if endpoint.version().subresources.status
            && let Some(members) = object.as_object_mut()
        {
            members.remove("status");
        }
        default_custom(&endpoint, &mut object);
        texts = record_creation(context, &mut object, options);
        set_generation(&mut object, 1);
    } else {
        builtin::apply_defaults(&resource, &mut object);
        texts = record_creation(context, &mut object, options);
        builtin::admit(&resource, &mut object);
        namespace_rules::apply_defaults(context, &mut object)?;
        builtin::prepare_for_create(&resource, &mut object);
        if builtin::has_generation(&resource) {
            set_generation(&mut object, 1);
        }
    }
    if !options.dry_run {
        mutate(context, &mut object);
    }
    errors.extend(builtin::metadata::validate(&object));
    errors.extend(check_finalizers(context, None, &object));
    validate(&endpoint, &object, None, &mut errors);
    fail_if_invalid(&resource, &name, &errors)?;
    check_service_account(context, &object)?;
    context.core.front.check_escalation(context.user, &resource, None, &object)?;
    namespace_rules::check(context, None, &object)?;
    Ok((object, texts))
}

fn mutate(context: &Context<'_>, object: &mut Value) {
    let Some(admission) = &context.core.mutating_admission else { return };
    let resource = &context.endpoint.resource;
    let pod = &*resource.storage == "/pods";
    let has_node = |object: &Value| object["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty());
    let had_node = pod && has_node(object);
    admission.mutate(&resource.group, &resource.plural, object);
    if pod && !had_node && has_node(object) {
        set_scheduled(object);
    }
}

/// Records in `managedFields` who created an object. Fields that the server adds afterwards have no manager; the status
/// is left out if it is a subresource, because a create does not write it.
fn record_creation(context: &Context<'_>, object: &mut Value, options: &WriteOptions) -> Vec<FieldsText> {
    // An applied object has its `managedFields` already.
    if context.applied {
        return Vec::new();
    }
    let separate = context.endpoint.version().subresources.status;
    let status = object.as_object_mut().filter(|_| separate).and_then(|members| members.remove("status"));
    let schema = managed_fields_schema(&context.endpoint);
    let texts = managed::record_create(object, &manager(context, options, "Update"), schema.as_deref());
    if let Some(status) = status {
        object["status"] = status;
    }
    texts
}

/// Prepares a changed object to be stored; `old` and `new` are in the request's version. The returned flag is true if
/// they are known to differ.
pub(crate) fn update(
    context: &mut Context<'_>,
    old: &Value,
    mut new: Value,
    options: &WriteOptions,
    texts: &mut Vec<FieldsText>,
) -> Result<(Value, bool), ApiError> {
    let endpoint = context.endpoint.clone();
    let resource = endpoint.resource.clone();
    let name = context.request.name.clone();
    check_shape(context, &mut new, options)?;
    if resource.is_custom() {
        default_custom(&endpoint, &mut new);
    } else {
        builtin::apply_defaults(&resource, &mut new);
        builtin::admit(&resource, &mut new);
    }
    match context.request.subresource.as_str() {
        "status" => keep_all_but_status(&resource, old, &mut new),
        _ if endpoint.version().subresources.status => copy_member(old, &mut new, "status"),
        _ => {}
    }
    if context.request.subresource != "status" && !resource.is_custom() {
        builtin::prepare_for_update(&resource, old, &mut new);
    }
    bump_generation(&endpoint, old, &mut new);
    let mut errors = Vec::new();
    if old["metadata"] != new["metadata"] {
        let reports = builtin::metadata_reports(&resource);
        let faults = builtin::metadata::validate(&new);
        errors.extend(std::iter::repeat_n(faults, reports).flatten());
        let faults = check_finalizers(context, Some(old), &new);
        errors.extend(std::iter::repeat_n(faults, reports - 2).flatten());
    }
    validate(&endpoint, &new, Some(old), &mut errors);
    if !resource.is_custom() && !matches!(context.request.subresource.as_str(), "status" | "binding") {
        errors.extend(builtin::validate_update(&resource, old, &new));
    }
    fail_if_invalid(&resource, &name, &errors)?;
    context.core.front.check_escalation(context.user, &resource, Some(old), &new)?;
    namespace_rules::check(context, Some(old), &new)?;
    let differs = !context.applied
        && managed::record_update(
            old,
            &mut new,
            &manager(context, options, "Update"),
            managed_fields_schema(&endpoint).as_deref(),
            texts,
        );
    Ok((new, differs))
}

/// The field manager of a write, for `metadata.managedFields`.
pub(crate) fn manager(context: &Context<'_>, options: &WriteOptions, operation: &'static str) -> Manager {
    Manager {
        name: options.field_manager.clone(),
        operation,
        api_version: context.endpoint.api_version().to_owned(),
        subresource: match context.request.subresource.as_str() {
            "status" | "scale" => context.request.subresource.clone(),
            _ => String::new(),
        },
    }
}

/// The schema of a resource: its fields, and which lists are maps.
pub(crate) fn schema_of(endpoint: &Endpoint) -> Option<std::sync::Arc<Schema>> {
    if endpoint.resource.is_custom() { endpoint.version().schema.clone() } else { builtin::schema(&endpoint.resource) }
}

/// The schema for `managedFields`: that of the request's version, even if objects are stored as another version.
pub(crate) fn managed_fields_schema(endpoint: &Endpoint) -> Option<std::sync::Arc<Schema>> {
    if endpoint.resource.is_alias() { builtin::alias_schema(&endpoint.resource) } else { schema_of(endpoint) }
}

fn fail_if_invalid(resource: &Resource, name: &str, errors: &[FieldError]) -> Result<(), ApiError> {
    if errors.is_empty() { Ok(()) } else { Err(ApiError::invalid(&resource.group, &resource.kind, name, errors)) }
}

fn check_names(resource: &Resource, name: &str) -> Vec<FieldError> {
    if name.is_empty() {
        return vec![FieldError::required("metadata.name", "name or generateName is required")];
    }
    builtin::check_name(resource, name)
        .into_iter()
        .map(|why| FieldError::invalid_str("metadata.name", name, why))
        .collect()
}

fn default_custom(endpoint: &Endpoint, object: &mut Value) {
    if let Some(schema) = &endpoint.version().schema {
        schema.apply_defaults(object);
    }
}

/// Validates the content and adds what is wrong to `errors`.
fn validate(endpoint: &Endpoint, object: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let Some(schema) = &endpoint.version().schema else {
        errors.extend(builtin::validate(&endpoint.resource, object));
        return;
    };
    errors.extend(schema.validate_changed(object, old));
    if let Some(scale) = &endpoint.version().subresources.scale {
        let asked = scale.spec_replicas.iter().try_fold(object, |at, step| at.get(step));
        if let Some(count) = asked.filter(|count| count.as_i64().is_some_and(|n| n < 0)) {
            let field = format!(".{}", scale.spec_replicas.join("."));
            errors.push(FieldError::invalid(field, count, "should be a non-negative integer"));
        }
    }
    schema.validate_rules(object, old, errors);
}

/// Finalizer names should be qualified by a domain. For built-in kinds an unqualified one is an error, for custom kinds
/// a new one is a warning, for leases and CRDs it is accepted.
fn check_finalizers(context: &mut Context<'_>, old: Option<&Value>, object: &Value) -> Vec<FieldError> {
    let resource = &context.endpoint.resource;
    if resource.is_custom() {
        let before = old.map(crate::verbs::finalizers).unwrap_or_default();
        for (_, name) in builtin::metadata::unqualified_finalizers(object) {
            if !before.contains(&name) {
                context.warnings.push(format!(
                    "metadata.finalizers: {name:?}: prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers"
                ));
            }
        }
        return Vec::new();
    }
    let lenient = matches!(resource.group.as_str(), "coordination.k8s.io" | "apiextensions.k8s.io");
    if lenient { Vec::new() } else { builtin::metadata::check_finalizer_names(object) }
}

/// The service account of a Pod must exist, except for `default`, which a controller creates after a new namespace.
fn check_service_account(context: &Context<'_>, object: &Value) -> Result<(), ApiError> {
    let resource = &context.endpoint.resource;
    let account = object["spec"]["serviceAccountName"].as_str().unwrap_or("default");
    if &*resource.storage != "/pods" || account == "default" {
        return Ok(());
    }
    let namespace = context.request.namespace.as_str();
    let key = ObjectKey::new(namespace, account);
    if context.core.store.latest(&"/serviceaccounts".into(), &key).is_some() {
        return Ok(());
    }
    let why = format!("error looking up service account {namespace}/{account}: serviceaccount {account:?} not found");
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    Err(ApiError::forbidden(&resource.group, &resource.plural, name, &why))
}

/// Removes unknown fields, with an error or a warning as `fieldValidation` says, and refuses values of the wrong type.
fn check_shape(context: &mut Context<'_>, object: &mut Value, options: &WriteOptions) -> Result<(), ApiError> {
    let endpoint = &context.endpoint;
    if !nested_at_most(object, MAX_DEPTH) {
        return Err(ApiError::bad_request(format!("the object is nested more than {MAX_DEPTH} levels deep")));
    }
    if let Some(meta) = object.get_mut("metadata") {
        strip_nulls(meta);
        strip_empty(meta, &["annotations", "finalizers", "labels", "ownerReferences"]);
    }
    if matches!(&*endpoint.resource.storage, "/configmaps" | "/secrets") {
        strip_empty(object, &["binaryData", "data", "stringData"]);
    }
    // An alias of another resource's collection is checked in its stored form only.
    if endpoint.resource.is_alias() {
        return Ok(());
    }
    let Some(schema) = schema_of(endpoint) else { return Ok(()) };
    let kind = endpoint.resource.kind.clone();
    let version = endpoint.version().name.clone();
    let custom = endpoint.resource.is_custom();
    if !custom {
        strip_nulls(object);
    }
    let unknown = schema.prune(object);
    let mut problems: Vec<String> = unknown.iter().map(|path| format!("unknown field {path:?}")).collect();
    problems.extend(std::mem::take(&mut context.duplicates).iter().map(|path| format!("duplicate field {path:?}")));
    match options.field_validation {
        FieldValidation::Strict if !problems.is_empty() => {
            return Err(ApiError::bad_request(format!(
                "{kind} in version {version:?} cannot be handled as a {kind}: strict decoding error: {}",
                problems.join(", ")
            )));
        }
        FieldValidation::Warn => context.warnings.extend(problems),
        _ => {}
    }
    if let Some(why) = builtin::metadata::wrong_type(object) {
        return Err(ApiError::bad_request(format!(
            "{kind} in version {version:?} cannot be handled as a {kind}: {why}"
        )));
    }
    if custom {
        return Ok(());
    }
    if let Some(why) = builtin::decode_error(&endpoint.resource, object) {
        return Err(ApiError::bad_request(format!(
            "{kind} in version {version:?} cannot be handled as a {kind}: {why}"
        )));
    }
    let wrong =
        schema.validate_shape(object).into_iter().find(|e| e.kind == crate::status::FieldErrorKind::TypeInvalid);
    match wrong {
        None => Ok(()),
        Some(error) => Err(ApiError::bad_request(format!(
            "{kind} in version {version:?} cannot be handled as a {kind}: json: cannot unmarshal into field: {error}"
        ))),
    }
}

/// Maximum nesting of an object. Objects are read back inside lists and events, by parsers with a limit of 128 levels.
const MAX_DEPTH: usize = 120;

/// True if a value has at most `levels` levels.
fn nested_at_most(value: &Value, levels: usize) -> bool {
    match value {
        Value::Object(members) => levels > 0 && members.values().all(|v| nested_at_most(v, levels - 1)),
        Value::Array(items) => levels > 0 && items.iter().all(|v| nested_at_most(v, levels - 1)),
        _ => true,
    }
}

/// Removes nulls: in built-in kinds a null is an absent field.
fn strip_nulls(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, v| !v.is_null());
            members.values_mut().for_each(strip_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(strip_nulls),
        _ => {}
    }
}

/// Removes members that are empty, which Kubernetes does not tell from absent ones.
fn strip_empty(value: &mut Value, names: &[&str]) {
    let Some(members) = value.as_object_mut() else { return };
    members.retain(|name, value| {
        let empty =
            value.as_object().is_some_and(serde_json::Map::is_empty) || value.as_array().is_some_and(Vec::is_empty);
        !(empty && names.contains(&name.as_str()))
    });
}

fn set_generation(object: &mut Value, generation: i64) {
    if let Some(meta) = object["metadata"].as_object_mut() {
        meta.insert("generation".into(), generation.into());
    }
}

fn copy_member(from: &Value, to: &mut Value, key: &str) {
    let Some(members) = to.as_object_mut() else { return };
    match from.get(key) {
        Some(value) => members.insert(key.to_owned(), value.clone()),
        None => members.remove(key),
    };
}

/// A write to the status subresource changes only the status, and in built-in kinds also labels, annotations and
/// finalizers.
fn keep_all_but_status(resource: &Resource, old: &Value, new: &mut Value) {
    let (Some(before), Some(members)) = (old.as_object(), new.as_object_mut()) else { return };
    members.retain(|name, _| name == "status" || name == "metadata" || before.contains_key(name));
    for (name, value) in before.iter().filter(|(name, _)| *name != "status" && *name != "metadata") {
        if members.get(name) != Some(value) {
            members.insert(name.clone(), value.clone());
        }
    }
    let writable: &[&str] = if resource.is_custom() { &[] } else { &["labels", "annotations", "finalizers"] };
    keep_metadata(&old["metadata"], &mut new["metadata"], writable);
}

/// Restores all old metadata except the members in `writable`.
fn keep_metadata(old: &Value, new: &mut Value, writable: &[&str]) {
    let (Some(before), Some(members)) = (old.as_object(), new.as_object_mut()) else { return };
    members.retain(|name, _| writable.contains(&name.as_str()) || before.contains_key(name));
    for (name, value) in before.iter().filter(|(name, _)| !writable.contains(&name.as_str())) {
        if members.get(name) != Some(value) {
            members.insert(name.clone(), value.clone());
        }
    }
}

/// Increments the generation if the desired state changed: everything except metadata and a status subresource.
fn bump_generation(endpoint: &Endpoint, old: &Value, new: &mut Value) {
    let counts = endpoint.resource.is_custom() || builtin::has_generation(&endpoint.resource);
    if !counts {
        return;
    }
    let separate = endpoint.version().subresources.status;
    let ignored = |key: &str| key == "metadata" || (separate && key == "status");
    let differs = |a: &Value, b: &Value| {
        let (Some(a), Some(b)) = (a.as_object(), b.as_object()) else { return false };
        a.iter().any(|(k, v)| !ignored(k) && b.get(k) != Some(v)) || b.keys().any(|k| !ignored(k) && !a.contains_key(k))
    };
    if differs(old, new) {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or(0);
        set_generation(new, generation + 1);
    }
}
