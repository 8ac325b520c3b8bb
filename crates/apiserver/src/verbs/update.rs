//! update (PUT), and the read-modify-write loop that patches use as well.

use std::{future::Future, sync::Arc};

use serde_json::Value;

use super::{
    Context, Payload, Reply, admission, body,
    create::{check_size, check_type, create_object, set_namespace},
    metadata::{check_new_finalizers, finalizers, is_deleting, meta_mut, meta_text},
    namespace_rules::QuotaCheck,
};
use crate::{
    builtin,
    patch::{FieldsText, managed},
    registry::Resource,
    request::{Verb, WriteOptions},
    status::{ApiError, FieldError},
    store::{Change, CommitError, Expect, LatestView, ObjectKey, Stored, Write},
};

/// Attempts of a read-modify-write before it fails because the object keeps changing.
const ATTEMPTS: usize = 64;

pub(super) async fn update(context: &mut Context<'_>, raw: &[u8]) -> Result<Reply, ApiError> {
    let options = WriteOptions::parse(&context.parts.uri, context.user_agent(), context.request.verb)?;
    let (mut object, duplicates) = body::decode_with_duplicates(context.content_type(), raw)?;
    context.duplicates = duplicates;
    check_type(context, &mut object)?;
    set_namespace(context, &mut object)?;
    let given = meta_text(&object, "name").to_owned();
    let wanted = context.request.name.clone();
    if given.is_empty() {
        meta_mut(&mut object)?.insert("name".into(), wanted.into());
    } else if given != wanted {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({given}) does not match the name on the URL ({wanted})"
        )));
    }
    let resource = &context.endpoint.resource;
    let missing = || context.core.store.latest(&resource.storage, &context.key()).is_none();
    if context.request.subresource.is_empty() && builtin::allows_create_on_update(resource) && missing() {
        meta_mut(&mut object)?.remove("resourceVersion");
        return create_object(context, object, &options).await;
    }
    modify(context, &options, false, move |_| {
        let object = object.clone();
        async move { Ok(object) }
    })
    .await
}

/// Reads the object, computes a new one from it with `change` (both in the request's version), and stores the result.
/// Retries after a concurrent write. `ignores_managed_fields`: `change` neither reads nor writes
/// `metadata.managedFields`.
pub(super) async fn modify<F, R>(
    context: &mut Context<'_>,
    options: &WriteOptions,
    ignores_managed_fields: bool,
    mut change: F,
) -> Result<Reply, ApiError>
where
    F: FnMut(Value) -> R,
    R: Future<Output = Result<Value, ApiError>>,
{
    let core = context.core.clone();
    let resource = context.endpoint.resource.clone();
    let key = context.key();
    for _ in 0..ATTEMPTS {
        let Some(current) = core.store.latest(&resource.storage, &key) else {
            return Err(core.error_once_durable(context.not_found()).await);
        };
        let (old, texts) = core.conversions.editable(&context.endpoint, &current, ignores_managed_fields).await?;
        let new = match change(old.clone()).await {
            Ok(new) => new,
            Err(error) => return Err(core.error_once_durable(error).await),
        };
        if let Err(error) = check_identity(context, &current, &new) {
            return Err(core.error_once_durable(error).await);
        }
        match attempt(context, options, &current, old, new, texts).await {
            Ok(reply) => return Ok(reply),
            Err(AttemptError::Failed(error)) => return Err(core.error_once_durable(error).await),
            // A request that names a resourceVersion fails its check the next time.
            Err(AttemptError::ConcurrentWrite) => {}
        }
    }
    Err(ApiError::stale(&resource.group, &resource.plural, &context.request.name))
}

/// Edits an object without the admission of updates; for subresources that have rules of their own.
pub(super) async fn modify_object(
    context: &mut Context<'_>,
    options: &WriteOptions,
    mut edit: impl FnMut(&mut Value) -> Result<(), ApiError>,
) -> Result<Reply, ApiError> {
    let core = context.core.clone();
    let resource = context.endpoint.resource.clone();
    let key = context.key();
    for _ in 0..ATTEMPTS {
        let Some(current) = core.store.latest(&resource.storage, &key) else {
            return Err(core.error_once_durable(context.not_found()).await);
        };
        let old = current.parse();
        let mut new = old.clone();
        if let Err(error) = edit(&mut new) {
            return Err(core.error_once_durable(error).await);
        }
        // A binding is not recorded in `managedFields`.
        if context.request.subresource != "binding" {
            let manager = admission::manager(context, options, "Update");
            let schema = admission::managed_fields_schema(&context.endpoint);
            managed::record_update(&old, &mut new, &manager, schema.as_deref(), &mut Vec::new());
        }
        match store_changed(context, options, &current, new, &[]).await {
            Err(AttemptError::ConcurrentWrite) => {}
            Err(AttemptError::Failed(error)) => return Err(error),
            Ok(reply) => return Ok(reply),
        }
    }
    Err(ApiError::stale(&resource.group, &resource.plural, &context.request.name))
}

/// Why one attempt of a read-modify-write failed.
enum AttemptError {
    ConcurrentWrite,
    Failed(ApiError),
}

impl From<ApiError> for AttemptError {
    fn from(error: ApiError) -> Self {
        Self::Failed(error)
    }
}

/// Checks name, uid and resourceVersion of the new object.
fn check_identity(context: &Context<'_>, current: &Stored, new: &Value) -> Result<(), ApiError> {
    let resource = &context.endpoint.resource;
    let replaces = context.request.verb == Verb::Update;
    let invalid =
        |errors: &[FieldError]| ApiError::invalid(&resource.group, &resource.kind, &context.request.name, errors);
    for (key, wanted) in [("name", &context.request.name), ("namespace", &context.request.namespace)] {
        let given = meta_text(new, key);
        if !given.is_empty() && given != wanted {
            return Err(ApiError::bad_request(format!(
                "the {key} of the object ({given}) does not match the {key} on the URL ({wanted})"
            )));
        }
    }
    let uid = meta_text(new, "uid");
    if !uid.is_empty() && uid != current.uid() {
        if replaces {
            return Err(uid_conflict(resource, &current.key, uid, current.uid()));
        }
        // Kubernetes validates this twice and reports the error twice.
        let error = FieldError::invalid_str("metadata.uid", uid, "field is immutable");
        return Err(invalid(&[error.clone(), error]));
    }
    let version = meta_text(new, "resourceVersion");
    if version.is_empty() {
        if replaces && resource.is_custom() && context.request.subresource != "scale" {
            let why = "must be specified for an update";
            return Err(invalid(&[FieldError::invalid("metadata.resourceVersion", &Value::from(0), why)]));
        }
        return Ok(());
    }
    let number: u64 = version.parse().map_err(|_| {
        let error = FieldError::invalid_str("metadata.resourceVersion", version, "must be a number");
        invalid(&[error])
    })?;
    if number != current.version {
        return Err(ApiError::stale(&resource.group, &resource.plural, &context.request.name));
    }
    Ok(())
}

/// 409: the object of that name has another uid. The message is that of Kubernetes' storage layer.
fn uid_conflict(resource: &Resource, key: &ObjectKey, given: &str, actual: &str) -> ApiError {
    let prefix = match (&*resource.storage, resource.is_custom()) {
        ("/services", _) => "services/specs".to_owned(),
        ("/nodes", _) => "minions".to_owned(),
        (_, true) => format!("{}/{}", resource.group, resource.plural),
        (_, false) => resource.plural.clone(),
    };
    let namespace = if key.namespace.is_empty() { String::new() } else { format!("{}/", key.namespace) };
    let why = format!(
        "StorageError: invalid object, Code: 4, Key: /registry/{prefix}/{namespace}{}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {given}, UID in object meta: {actual}",
        key.name
    );
    ApiError::conflict(&resource.group, &resource.plural, &key.name, &why)
}

async fn attempt(
    context: &mut Context<'_>,
    options: &WriteOptions,
    current: &Arc<Stored>,
    old: Value,
    mut new: Value,
    mut texts: Vec<FieldsText>,
) -> Result<Reply, AttemptError> {
    let core = context.core.clone();
    let resource = context.endpoint.resource.clone();
    keep_system_metadata(&old, &mut new)?;
    if let Some(error) = check_new_finalizers(&old, &new) {
        return Err(
            ApiError::invalid(&resource.group, &resource.kind, &context.request.name, &[error.clone(), error]).into()
        );
    }
    let (new, differs) = admission::update(context, &old, new, options, &mut texts)?;
    if !differs && old == new {
        core.store.flush().await.map_err(|e| core.storage_error(&e))?;
        return Ok(Reply::ok(Payload::Object(core.conversions.view(&context.endpoint, current).await?)));
    }
    store_changed(context, options, current, new, &texts).await
}

/// Stores the new state, or removes an object that is being deleted once it has no finalizers and no grace period.
async fn store_changed(
    context: &Context<'_>,
    options: &WriteOptions,
    current: &Arc<Stored>,
    new: Value,
    texts: &[FieldsText],
) -> Result<Reply, AttemptError> {
    let core = context.core.clone();
    let resource = context.endpoint.resource.clone();
    let remove = is_deleting(&new)
        && finalizers(&new).is_empty()
        && new["spec"]["finalizers"].as_array().is_none_or(|f| f.is_empty() || &*resource.storage != "/namespaces")
        && new["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0;
    let quota = QuotaCheck::of_changed(context, current, &new);
    let draft = core.conversions.draft(&resource, new, texts).await?;
    check_size(&draft)?;
    if options.dry_run {
        core.store.inspect(|latest| quota.run(&core, latest, &current.key))?;
        let preview = Arc::new(draft.preview(current.version));
        return Ok(Reply::ok(Payload::Object(core.conversions.view(&context.endpoint, &preview).await?)));
    }
    // The response to a write that removes the object has the object's new state, not the last stored one.
    let (change, removed) = match remove {
        true => (Change::Delete, Some(Arc::new(draft.preview(current.version)))),
        false => (Change::Put(draft), None),
    };
    let write = Write {
        storage: resource.storage.clone(),
        key: current.key.clone(),
        expect: Expect::Version(current.version),
        change,
        durable: !resource.ephemeral(),
    };
    let check = |latest: &LatestView<'_>| {
        quota.run(&core, latest, &current.key).map_err(|error| CommitError::Refused(Box::new(error)))
    };
    match core.store.commit_checked(write, check).await {
        Ok(stored) => {
            if remove {
                core.on_removed(&resource, &stored);
            } else {
                core.on_stored(&resource, &stored)?;
            }
            let shown = removed.as_ref().unwrap_or(&stored);
            Ok(Reply::ok(Payload::Object(core.conversions.view(&context.endpoint, shown).await?)))
        }
        Err(CommitError::Changed(_) | CommitError::Missing) => Err(AttemptError::ConcurrentWrite),
        Err(error) => Err(core.commit_error(error, || context.not_found()).await.into()),
    }
}

/// Restores the metadata that clients cannot change: identity and life cycle.
fn keep_system_metadata(old: &Value, new: &mut Value) -> Result<(), ApiError> {
    let meta = meta_mut(new)?;
    meta.remove("selfLink");
    for key in [
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "name",
        "namespace",
        "generateName",
        "resourceVersion",
    ] {
        match old["metadata"].get(key) {
            Some(value) if meta.get(key) == Some(value) => {}
            Some(value) => {
                meta.insert(key.into(), value.clone());
            }
            None => {
                meta.remove(key);
            }
        }
    }
    Ok(())
}
