//! Between a decoded object and a storable one: unknown fields, defaults, validation, generation, ownership of fields.

use serde_json::Value;

use crate::{
    builtin,
    patch::{
        Text,
        managed::{self, Manager},
    },
    registry::{Endpoint, Resource},
    request::{FieldValidation, WriteOptions},
    schema::Schema,
    status::{ApiError, FieldError},
    store::ObjectKey,
    verbs::{Context, set_scheduled},
};

/// Completes new objects in-process, as a mutating webhook would: what a controller or the scheduler would write into every one of
/// them a moment later is then part of the first write, and everybody who watches hears of it once.
pub trait Completer: Send + Sync {
    /// May add to a new object of this kind, in the version that the request speaks. A Pod that it gives a node to counts as scheduled.
    /// With a `generateName` the name may still change.
    fn complete(&self, group: &str, plural: &str, object: &mut Value);
}

/// Prepares a new object (in the request's version).
/// In its `managedFields`, numbers stand for the texts returned.
pub(crate) fn create(
    context: &mut Context<'_>,
    mut object: Value,
    options: &WriteOptions,
) -> Result<(Value, Vec<Text>), ApiError> {
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
        builtin::begin(&resource, &mut object);
        if builtin::has_generation(&resource) {
            set_generation(&mut object, 1);
        }
    }
    if !options.dry_run {
        complete(context, &mut object);
    }
    errors.extend(builtin::metadata::validate(&object));
    errors.extend(check_finalizers(context, None, &object));
    validate(&endpoint, &object, None, &mut errors);
    refuse(&resource, &name, &errors)?;
    check_account(context, &object)?;
    context.core.front.check_escalation(context.user, &resource, None, &object)?;
    Ok((object, texts))
}

fn complete(context: &Context<'_>, object: &mut Value) {
    let Some(completer) = &context.core.completer else { return };
    let resource = &context.endpoint.resource;
    let pod = &*resource.storage == "/pods";
    let placed = |object: &Value| object["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty());
    let was_placed = pod && placed(object);
    completer.complete(&resource.group, &resource.plural, object);
    if pod && !was_placed && placed(object) {
        set_scheduled(object);
    }
}

/// Records who made an object. What the server adds afterwards is nobody's; a status of its own is not written here.
fn record_creation(context: &Context<'_>, object: &mut Value, options: &WriteOptions) -> Vec<Text> {
    // An applied object has its record already.
    if context.applied {
        return Vec::new();
    }
    let separate = context.endpoint.version().subresources.status;
    let status = object.as_object_mut().filter(|_| separate).and_then(|members| members.remove("status"));
    let schema = owners_schema(&context.endpoint);
    let texts = managed::created(object, &manager(context, options, "Update"), schema.as_deref());
    if let Some(status) = status {
        object["status"] = status;
    }
    texts
}

/// Prepares a changed object; `old` and `new` are in the request's version. The flag is true when they are known to differ.
pub(crate) fn update(
    context: &mut Context<'_>,
    old: &Value,
    mut new: Value,
    options: &WriteOptions,
    texts: &mut Vec<Text>,
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
        builtin::settle(&resource, old, &mut new);
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
    refuse(&resource, &name, &errors)?;
    context.core.front.check_escalation(context.user, &resource, Some(old), &new)?;
    let differs = !context.applied
        && managed::updated(
            old,
            &mut new,
            &manager(context, options, "Update"),
            owners_schema(&endpoint).as_deref(),
            texts,
        );
    Ok((new, differs))
}

/// Who writes, for `metadata.managedFields`.
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

/// The schema that says which lists are maps, and what is known at all.
pub(crate) fn schema_of(endpoint: &Endpoint) -> Option<std::sync::Arc<Schema>> {
    if endpoint.resource.is_custom() { endpoint.version().schema.clone() } else { builtin::schema(&endpoint.resource) }
}

/// The schema by which fields are owned: that of the version spoken, even where it is stored as another.
pub(crate) fn owners_schema(endpoint: &Endpoint) -> Option<std::sync::Arc<Schema>> {
    if endpoint.resource.is_alias() { builtin::alias_schema(&endpoint.resource) } else { schema_of(endpoint) }
}

fn refuse(resource: &Resource, name: &str, errors: &[FieldError]) -> Result<(), ApiError> {
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

/// Adds everything wrong with the content to what is known to be wrong already.
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

/// Finalizers should name a domain: built-in kinds insist, custom ones warn about new ones, leases do not mind.
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

/// A Pod that names an account needs it to be there. The default one of a new namespace may still be on its way.
fn check_account(context: &Context<'_>, object: &Value) -> Result<(), ApiError> {
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

/// Drops unknown fields (or complains about them) and refuses values of the wrong type.
fn check_shape(context: &mut Context<'_>, object: &mut Value, options: &WriteOptions) -> Result<(), ApiError> {
    let endpoint = &context.endpoint;
    if !within(object, MAX_DEPTH) {
        return Err(ApiError::bad_request(format!("the object is nested more than {MAX_DEPTH} levels deep")));
    }
    if let Some(meta) = object.get_mut("metadata") {
        strip_nulls(meta);
    }
    // The second face of a shared collection is checked in its stored form only.
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
    if custom {
        return Ok(());
    }
    if let Some(why) = builtin::unreadable(&endpoint.resource, object) {
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

/// Objects are read back inside lists and events, by readers that go 128 levels deep.
const MAX_DEPTH: usize = 120;

/// True when a value has at most so many levels.
fn within(value: &Value, levels: usize) -> bool {
    match value {
        Value::Object(members) => levels > 0 && members.values().all(|v| within(v, levels - 1)),
        Value::Array(items) => levels > 0 && items.iter().all(|v| within(v, levels - 1)),
        _ => true,
    }
}

/// Built-in kinds have no nulls: a null is an absent field.
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

/// A status write changes the status; of the metadata, built-in kinds let labels, annotations and finalizers through.
fn keep_all_but_status(resource: &Resource, old: &Value, new: &mut Value) {
    let (Some(before), Some(members)) = (old.as_object(), new.as_object_mut()) else { return };
    members.retain(|name, _| name == "status" || name == "metadata" || before.contains_key(name));
    for (name, value) in before.iter().filter(|(name, _)| *name != "status" && *name != "metadata") {
        if members.get(name) != Some(value) {
            members.insert(name.clone(), value.clone());
        }
    }
    let kept: &[&str] = if resource.is_custom() { &[] } else { &["labels", "annotations", "finalizers"] };
    keep_metadata(&old["metadata"], &mut new["metadata"], kept);
}

/// Puts back all metadata but the members named.
fn keep_metadata(old: &Value, new: &mut Value, but: &[&str]) {
    let (Some(before), Some(members)) = (old.as_object(), new.as_object_mut()) else { return };
    members.retain(|name, _| but.contains(&name.as_str()) || before.contains_key(name));
    for (name, value) in before.iter().filter(|(name, _)| !but.contains(&name.as_str())) {
        if members.get(name) != Some(value) {
            members.insert(name.clone(), value.clone());
        }
    }
}

/// The generation counts changes of what the user asked for: everything but metadata and a separate status.
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
