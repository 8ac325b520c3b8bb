//! create: from a request body to a stored object.

use http::StatusCode;
use serde_json::{Value, json};

use super::{
    Context, Payload, Reply, admission, body,
    metadata::{generate_name, meta_mut, meta_text, now},
    namespace_rules::QuotaCheck,
    service_addresses,
};
use crate::{
    convert::View,
    patch::{
        FieldsText,
        managed::{self, Manager},
    },
    registry::{Origin, Resource},
    request::WriteOptions,
    status::{ApiError, FieldError},
    store::{Change, CommitError, Draft, Expect, LatestView, ObjectKey, Write},
};

/// Attempts to find a free generated name before the create fails.
const NAME_ATTEMPTS: usize = 8;

pub(super) async fn create(context: &mut Context<'_>, raw: &[u8]) -> Result<Reply, ApiError> {
    let options = WriteOptions::parse(&context.parts.uri, context.user_agent(), context.request.verb)?;
    let (object, duplicates) = body::decode_with_duplicates(context.content_type(), raw)?;
    context.duplicates = duplicates;
    create_object(context, object, &options).await
}

/// Creates `object`; type, namespace and identity are added where they are missing.
pub(super) async fn create_object(
    context: &mut Context<'_>,
    mut object: Value,
    options: &WriteOptions,
) -> Result<Reply, ApiError> {
    check_type(context, &mut object)?;
    set_namespace(context, &mut object)?;
    let prefix = set_identity(&mut object)?;
    let allocate_ip = service_addresses::needs_cluster_ip(&context.endpoint.resource, &object);
    let (mut admitted, texts) = admission::create(context, object, options)?;
    if allocate_ip {
        service_addresses::allocate(context.core, &mut admitted);
    }
    let Some(prefix) = prefix else { return store_new(context, admitted, &texts, options).await };
    for attempt in 1.. {
        let mut object = admitted.clone();
        meta_mut(&mut object)?.insert("name".into(), generate_name(&prefix).into());
        let result = store_new(context, object, &texts, options).await;
        let taken = result.as_ref().is_err_and(|e| e.reason == "AlreadyExists");
        if !(taken && attempt < NAME_ATTEMPTS) {
            return result;
        }
    }
    unreachable!("the loop returns on its last attempt")
}

/// Creates an object by server-side apply: its fields are managed by the applier, defaults have no manager.
pub(super) async fn create_applied(
    context: &mut Context<'_>,
    mut object: Value,
    manager: &Manager,
    options: &WriteOptions,
) -> Result<Reply, ApiError> {
    set_namespace(context, &mut object)?;
    meta_mut(&mut object)?.insert("name".into(), context.request.name.as_str().into());
    managed::record_apply(&mut object, manager, admission::managed_fields_schema(&context.endpoint).as_deref());
    set_identity(&mut object)?;
    let allocate_ip = service_addresses::needs_cluster_ip(&context.endpoint.resource, &object);
    let (mut admitted, _) = admission::create(context, object, options)?;
    if allocate_ip {
        service_addresses::allocate(context.core, &mut admitted);
    }
    match store_new(context, admitted, &[], options).await {
        // Another client created the object in between: after this error the client retries and finds it.
        Err(error) if error.reason == "AlreadyExists" => {
            let resource = &context.endpoint.resource;
            Err(ApiError::stale(&resource.group, &resource.plural, &context.request.name))
        }
        other => other,
    }
}

async fn store_new(
    context: &mut Context<'_>,
    object: Value,
    texts: &[FieldsText],
    options: &WriteOptions,
) -> Result<Reply, ApiError> {
    let resource = context.endpoint.resource.clone();
    let core = context.core.clone();
    let quota = QuotaCheck::of_new(&resource, &object);
    let draft = core.conversions.draft(&resource, object, texts).await?;
    check_size(&draft)?;
    let key = draft.key.clone();
    let cluster_ip = service_addresses::cluster_ip_of(&resource, &draft.facts).map(str::to_owned);
    let exists = || ApiError::already_exists(&resource.group, &resource.plural, &key.name);
    if options.dry_run {
        if core.store.get(&resource.storage, &key).is_some() {
            return Err(exists());
        }
        core.store.inspect(|latest| quota.run(&core, latest, &key))?;
        let preview = std::sync::Arc::new(draft.preview(0));
        let view = core.conversions.view(&context.endpoint, &preview).await?;
        return Ok(Reply::created(Payload::Object(without_version(view))));
    }
    let write = Write {
        storage: resource.storage.clone(),
        key: key.clone(),
        expect: Expect::Absent,
        change: Change::Put(draft),
        durable: !resource.ephemeral(),
    };
    let namespaced = resource.namespaced.then(|| ObjectKey::new("", &key.namespace));
    let namespaces: std::sync::Arc<str> = "/namespaces".into();
    let outcome = core
        .store
        .commit_checked(write, |latest| {
            if let Some(error) = check_crd_exists(&resource, latest) {
                return Err(CommitError::Refused(Box::new(error)));
            }
            if let Some(ip) = &cluster_ip {
                service_addresses::check_free(&core, latest, &key, ip)
                    .map_err(|e| CommitError::Refused(Box::new(e)))?;
            }
            let Some(namespace) = &namespaced else { return Ok(()) };
            let checked = match latest.get(&namespaces, namespace) {
                None => Err(ApiError::not_found("", "namespaces", &namespace.name)),
                Some(found) if found.facts.deleting => Err(terminating(&resource.group, &resource.plural, &key)),
                Some(_) => quota.run(&core, latest, &key),
            };
            checked.map_err(|error| CommitError::Refused(Box::new(error)))
        })
        .await;
    match outcome {
        Ok(stored) => {
            core.on_stored(&resource, &stored)?;
            let view = core.conversions.view(&context.endpoint, &stored).await?;
            Ok(Reply::created(Payload::Object(view)))
        }
        Err(error) => Err(core.commit_error(error, exists).await),
    }
}

/// Bounds the size of an object: requests are bounded as well, but many patches could grow one object.
pub(super) fn check_size(draft: &Draft) -> Result<(), ApiError> {
    if draft.size() > body::MAX_BODY { Err(ApiError::too_large(body::MAX_BODY)) } else { Ok(()) }
}

/// The result of a dry run was not stored, so it has no resourceVersion.
pub(super) fn without_version(view: View) -> View {
    let mut value = view.to_value();
    if let Some(meta) = value["metadata"].as_object_mut() {
        meta.remove("resourceVersion");
    }
    View::Value(std::sync::Arc::new(value))
}

/// Objects cannot be created while their CRD is being deleted: the deletion would miss them.
fn check_crd_exists(resource: &Resource, latest: &LatestView<'_>) -> Option<ApiError> {
    let Origin::Custom { crd_name, .. } = &resource.origin else { return None };
    let crd = latest.get(&crate::server::CRDS.into(), &ObjectKey::new("", crd_name));
    if crd.is_some_and(|d| !d.facts.deleting) {
        return None;
    }
    let mut error = ApiError::method_not_allowed().with_object(&resource.group, &resource.plural, "");
    error.message = "create not allowed while custom resource definition is terminating".into();
    Some(error)
}

fn terminating(group: &str, resource: &str, key: &ObjectKey) -> ApiError {
    let mut error = ApiError::forbidden(
        group,
        resource,
        &key.name,
        &format!("unable to create new content in namespace {} because it is being terminated", key.namespace),
    );
    if let Some(details) = &mut error.details {
        details.causes.push(crate::status::Cause {
            reason: "NamespaceTerminating",
            message: format!("namespace {} is being terminated", key.namespace),
            field: "metadata.namespace".into(),
        });
    }
    error
}

/// Fails if the body's kind or version is not that of the path; sets them if the body has none.
pub(super) fn check_type(context: &Context<'_>, object: &mut Value) -> Result<(), ApiError> {
    let endpoint = &context.endpoint;
    let expected = endpoint.api_version();
    let given = object["apiVersion"].as_str().unwrap_or_default();
    if given.is_empty() {
        object["apiVersion"] = expected.into();
    } else if given != expected {
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({given}) does not match the expected API version ({expected})"
        )));
    }
    let given = object["kind"].as_str().unwrap_or_default();
    let expected = endpoint.resource.kind.as_str();
    if given.is_empty() {
        object["kind"] = expected.into();
    } else if given != expected && endpoint.resource.is_custom() {
        let error = FieldError::invalid_str("kind", given, format!("must be {expected}"));
        return Err(ApiError::invalid(&endpoint.resource.group, given, meta_text(object, "name"), &[error]));
    } else if given != expected {
        let group = &endpoint.resource.group;
        return Err(ApiError::bad_request(format!(
            "{given} in version {:?} cannot be handled as a {expected}: the path names resource {}",
            endpoint.version().name,
            crate::status::qualified(&endpoint.resource.plural, group)
        )));
    }
    Ok(())
}

pub(super) fn set_namespace(context: &Context<'_>, object: &mut Value) -> Result<(), ApiError> {
    let wanted = context.request.namespace.as_str();
    let namespaced = context.endpoint.resource.namespaced;
    let meta = meta_mut(object)?;
    let given = meta.get("namespace").and_then(Value::as_str).unwrap_or_default();
    if !namespaced {
        meta.remove("namespace");
        return Ok(());
    }
    if wanted.is_empty() {
        return Err(ApiError::bad_request("an empty namespace may not be set during creation"));
    }
    if !given.is_empty() && given != wanted {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    meta.insert("namespace".into(), wanted.into());
    Ok(())
}

/// Sets uid and creationTimestamp of a new object. Returns the prefix if its name has to be generated.
fn set_identity(object: &mut Value) -> Result<Option<String>, ApiError> {
    let version = meta_text(object, "resourceVersion");
    if !version.is_empty() && version != "0" {
        // Kubernetes' storage refuses it, which counts as an internal error without a reason.
        let why = "resourceVersion should not be set on objects to be created";
        return Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "", why));
    }
    let meta = meta_mut(object)?;
    for key in ["resourceVersion", "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"] {
        meta.remove(key);
    }
    meta.insert("uid".into(), uuid::Uuid::new_v4().to_string().into());
    meta.insert("creationTimestamp".into(), now().into());
    let named = meta.get("name").and_then(Value::as_str).is_some_and(|n| !n.is_empty());
    let prefix = meta.get("generateName").and_then(Value::as_str).filter(|p| !p.is_empty()).map(str::to_owned);
    match (named, prefix) {
        (true, _) => Ok(None),
        (false, Some(prefix)) => {
            // A name for validation in admission; the final one is generated when the object is stored.
            meta.insert("name".into(), json!(generate_name(&prefix)));
            Ok(Some(prefix))
        }
        (false, None) => Ok(None),
    }
}
