//! delete and deletecollection: preconditions, finalizers, grace periods, propagation.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{
    Context, Payload, Reply,
    create::without_version,
    metadata::{finalizers, is_deleting, meta_mut, stamp},
};
use crate::{
    convert::View,
    registry::Resource,
    request::{DeleteOptions, ListOptions, Propagation},
    selectors::Filter,
    server::Core,
    status::ApiError,
    store::{Change, CommitError, Draft, Expect, LatestView, ObjectKey, Stored, Write},
};

/// Attempts of a delete before it fails because the object keeps changing.
const ATTEMPTS: usize = 64;

pub(super) async fn delete(context: &mut Context<'_>, raw: &[u8]) -> Result<Reply, ApiError> {
    let options = DeleteOptions::parse(&context.parts.uri, raw)?;
    let resource = context.endpoint.resource.clone();
    let outcome = delete_object(context.core, &resource, &context.key(), &options).await?;
    let code = http::StatusCode::OK;
    let payload = match outcome {
        DeleteOutcome::Removed(object) if &*resource.storage == "/pods" => {
            let view = context.core.conversions.view(&context.endpoint, &object).await?;
            Payload::Object(View::Value(Arc::new(with_deletion(view.to_value()))))
        }
        DeleteOutcome::Removed(object) if returns_object(&resource) => {
            Payload::Object(context.core.conversions.view(&context.endpoint, &object).await?)
        }
        DeleteOutcome::Removed(object) => Payload::Value(success(&resource, &object)),
        DeleteOutcome::Marked(object) => {
            let view = context.core.conversions.view(&context.endpoint, &object).await?;
            Payload::Object(if options.dry_run { without_version(view) } else { view })
        }
    };
    Ok(Reply::with_code(code, payload))
}

/// A Pod that was removed at once, as the response shows it: with the time of its deletion and no grace period.
fn with_deletion(mut pod: Value) -> Value {
    if !is_deleting(&pod) {
        let generation = pod["metadata"]["generation"].as_i64().unwrap_or(0);
        pod["metadata"]["generation"] = (generation + 1).into();
        pod["metadata"]["deletionTimestamp"] = stamp(Timestamp::now()).into();
    }
    pod["metadata"]["deletionGracePeriodSeconds"] = 0.into();
    pod
}

/// The response to a delete is the object for these resources, and a `Status` for all others.
fn returns_object(resource: &Resource) -> bool {
    resource.group.is_empty()
        && matches!(
            resource.plural.as_str(),
            "pods" | "services" | "persistentvolumeclaims" | "persistentvolumes" | "serviceaccounts"
        )
}

fn success(resource: &Resource, object: &Stored) -> Value {
    let mut details = json!({ "name": &*object.key.name, "kind": resource.plural, "uid": object.uid() });
    if !resource.group.is_empty() {
        details["group"] = resource.group.as_str().into();
    }
    json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details })
}

/// The outcome of a delete.
pub(crate) enum DeleteOutcome {
    Removed(Arc<Stored>),
    /// The object has a deletionTimestamp; it is removed once its finalizers are removed or its node has stopped it.
    Marked(Arc<Stored>),
}

/// Deletes one object, or marks it as deleted if its finalizers or its grace period require that.
pub(crate) async fn delete_object(
    core: &Arc<Core>,
    resource: &Arc<Resource>,
    key: &ObjectKey,
    options: &DeleteOptions,
) -> Result<DeleteOutcome, ApiError> {
    delete_checked(core, resource, key, options, |_, _| Ok(())).await
}

/// Like [`delete_object`], if `check` succeeds when the delete is sequenced. `check` gets the object that would be
/// deleted and the latest state of all others.
pub(crate) async fn delete_checked(
    core: &Arc<Core>,
    resource: &Arc<Resource>,
    key: &ObjectKey,
    options: &DeleteOptions,
    check: impl Fn(&Stored, &LatestView<'_>) -> Result<(), CommitError>,
) -> Result<DeleteOutcome, ApiError> {
    let not_found = || ApiError::not_found(&resource.group, &resource.plural, &key.name);
    for _ in 0..ATTEMPTS {
        let Some(current) = core.store.latest(&resource.storage, key) else {
            return Err(core.error_once_durable(not_found()).await);
        };
        if let Err(error) = check_preconditions(resource, &current, options) {
            return Err(core.error_once_durable(error).await);
        }
        let marked = mark_deleted(resource, &current, options)?;
        let change = match &marked {
            Some(value) if *value == current.parse() => {
                core.store.flush().await.map_err(|e| core.storage_error(&e))?;
                return Ok(DeleteOutcome::Marked(current));
            }
            Some(value) => Change::Put(Draft::new(resource, value)),
            None => Change::Delete,
        };
        if options.dry_run {
            return Ok(match change {
                Change::Put(draft) => DeleteOutcome::Marked(Arc::new(draft.preview(current.version))),
                Change::Delete => DeleteOutcome::Removed(current),
            });
        }
        let write = Write {
            storage: resource.storage.clone(),
            key: key.clone(),
            expect: Expect::Version(current.version),
            change,
            durable: !resource.ephemeral(),
        };
        match core.store.commit_checked(write, |latest| check(&current, latest)).await {
            Ok(stored) if marked.is_some() => return Ok(DeleteOutcome::Marked(stored)),
            Ok(stored) => {
                core.on_removed(resource, &stored);
                return Ok(DeleteOutcome::Removed(stored));
            }
            Err(CommitError::Changed(_) | CommitError::Missing) => {}
            Err(error) => return Err(core.commit_error(error, not_found).await),
        }
    }
    Err(ApiError::stale(&resource.group, &resource.plural, &key.name))
}

fn check_preconditions(resource: &Resource, current: &Stored, options: &DeleteOptions) -> Result<(), ApiError> {
    let conflict = |what: &str, given: &str, actual: &str, guess: &str| {
        ApiError::conflict(
            &resource.group,
            &resource.kind,
            &current.key.name,
            &format!(
                "the {what} in the precondition ({given}) does not match the {what} in record ({actual}). The object might have been {guess}"
            ),
        )
    };
    if let Some(uid) = options.preconditions.uid.as_deref().filter(|u| *u != current.uid()) {
        return Err(conflict("UID", uid, current.uid(), "deleted and then recreated"));
    }
    let version = current.version.to_string();
    if let Some(given) = options.preconditions.resource_version.as_deref().filter(|v| *v != version) {
        return Err(conflict("ResourceVersion", given, &version, "modified"));
    }
    Ok(())
}

/// The object with its deletionTimestamp, or `None` if it can be removed now.
fn mark_deleted(resource: &Resource, current: &Stored, options: &DeleteOptions) -> Result<Option<Value>, ApiError> {
    let old = current.parse();
    let mut new = old.clone();
    set_collector_finalizer(&mut new, options)?;
    let grace = grace_seconds(resource, &old, options);
    let already = is_deleting(&old);
    let remaining = old["metadata"]["deletionGracePeriodSeconds"].as_i64();
    if grace == 0 && finalizers(&new).is_empty() && !has_spec_finalizers(resource, &new) {
        return Ok(None);
    }
    let shortens = already && remaining.is_some_and(|r| grace < r);
    if !already || shortens {
        let at = Timestamp::now() + SignedDuration::from_secs(grace);
        let generation = old["metadata"]["generation"].as_i64();
        let meta = meta_mut(&mut new)?;
        meta.insert("deletionTimestamp".into(), stamp(at).into());
        meta.insert("deletionGracePeriodSeconds".into(), grace.into());
        if let Some(generation) = generation.filter(|g| *g > 0 && !already) {
            meta.insert("generation".into(), (generation + 1).into());
        }
    }
    if &*resource.storage == "/namespaces" {
        new["status"]["phase"] = "Terminating".into();
    }
    Ok(Some(new))
}

/// A namespace is removed only once it is empty, which is when its spec has no finalizers.
fn has_spec_finalizers(resource: &Resource, object: &Value) -> bool {
    &*resource.storage == "/namespaces" && object["spec"]["finalizers"].as_array().is_some_and(|f| !f.is_empty())
}

fn set_collector_finalizer(object: &mut Value, options: &DeleteOptions) -> Result<(), ApiError> {
    let wanted = match options.propagation {
        None => return Ok(()),
        Some(Propagation::Background) => None,
        Some(Propagation::Foreground) => Some("foregroundDeletion"),
        Some(Propagation::Orphan) => Some("orphan"),
    };
    let mut list: Vec<Value> = finalizers(object)
        .into_iter()
        .filter(|f| !matches!(*f, "foregroundDeletion" | "orphan"))
        .map(Value::from)
        .collect();
    list.extend(wanted.map(Value::from));
    let meta = meta_mut(object)?;
    if list.is_empty() {
        meta.remove("finalizers");
    } else {
        meta.insert("finalizers".into(), Value::Array(list));
    }
    Ok(())
}

/// Only Pods have a grace period, and only once a node may run them.
fn grace_seconds(resource: &Resource, object: &Value, options: &DeleteOptions) -> i64 {
    if &*resource.storage != "/pods" {
        return 0;
    }
    let started = object["spec"]["nodeName"].as_str().is_some_and(|n| !n.is_empty());
    let terminated = matches!(object["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    if !started || terminated {
        return 0;
    }
    let own = object["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(30);
    let requested = options.grace_period_seconds.unwrap_or(own);
    // A negative period means one second.
    if requested < 0 { 1 } else { requested }
}

pub(super) async fn delete_collection(context: &mut Context<'_>, raw: &[u8]) -> Result<Reply, ApiError> {
    let mut options = DeleteOptions::parse(&context.parts.uri, raw)?;
    let list = ListOptions::parse(&context.parts.uri)?;
    let resource = context.endpoint.resource.clone();
    let filter = Filter::parse(&resource, &context.request.namespace, &list.label_selector, &list.field_selector)?;
    let core = context.core.clone();
    let version = core.store.version();
    let mut chosen = core.store.collection(&resource.storage).list(filter.namespace());
    chosen.retain(|object| filter.matches(object));
    if list.limit > 0 {
        chosen.truncate(list.limit);
    }
    let mut items = Vec::with_capacity(chosen.len());
    for object in chosen {
        // Deletes the listed object, not one that was created with its name in between.
        options.preconditions.uid = Some(object.uid().to_owned());
        match delete_object(&core, &resource, &object.key, &options).await {
            Ok(DeleteOutcome::Removed(object) | DeleteOutcome::Marked(object)) => {
                items.push(core.conversions.view(&context.endpoint, &object).await?);
            }
            Err(error) if matches!(error.reason, "NotFound" | "Conflict") => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Reply::ok(Payload::List(super::List { version, next: String::new(), remaining: None, items })))
}
