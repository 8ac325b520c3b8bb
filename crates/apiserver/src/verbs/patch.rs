//! patch: JSON, merge, strategic merge and server-side apply, by media type.

use serde_json::Value;

use super::{Context, Reply, admission, body, create::create_applied, update::modify};
use crate::{
    patch,
    request::{WriteOptions, query_value},
    status::{ApiError, FieldError},
};

/// The patch media types of custom kinds, which have no strategic merge.
const CUSTOM: &[&str] =
    &["application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"];

pub(super) async fn patch(context: &mut Context<'_>, raw: &[u8]) -> Result<Reply, ApiError> {
    let options = WriteOptions::parse(&context.parts.uri, context.user_agent(), context.request.verb)?;
    let media = context.content_type().split(';').next().unwrap_or_default().trim().to_owned();
    match media.as_str() {
        "application/merge-patch+json" => {
            let patch = body::from_json(raw)?;
            modify(context, &options, ignores_managed_fields(&patch), |old| ready(patch::merge(old, &patch))).await
        }
        "application/json-patch+json" => {
            let operations = patch::JsonPatch::parse(raw)?;
            modify(context, &options, false, |old| ready(operations.apply(old))).await
        }
        "application/strategic-merge-patch+json" if !context.endpoint.resource.is_custom() => {
            let patch = body::from_json(raw)?;
            let schema = admission::schema_of(&context.endpoint);
            let change = |old| ready(patch::strategic(old, &patch, schema.as_deref()));
            modify(context, &options, ignores_managed_fields(&patch), change).await
        }
        "application/apply-patch+yaml" | "application/apply-patch" => apply(context, raw, options).await,
        _ if context.endpoint.resource.is_custom() => Err(ApiError::unsupported_media_type(CUSTOM)),
        _ => Err(ApiError::new(
            http::StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "UnsupportedMediaType",
            "415: Unsupported Media Type",
        )
        .with_empty_details()),
    }
}

/// True if a merge patch does not contain `managedFields`. Merge patches cannot copy, so they then neither read nor
/// write it.
fn ignores_managed_fields(patch: &Value) -> bool {
    patch["metadata"].get("managedFields").is_none()
}

async fn ready(result: Result<Value, ApiError>) -> Result<Value, ApiError> {
    result
}

async fn apply(context: &mut Context<'_>, raw: &[u8], options: WriteOptions) -> Result<Reply, ApiError> {
    let resource = context.endpoint.resource.clone();
    if query_value(&context.parts.uri, "fieldManager").is_none_or(|m| m.is_empty()) {
        let error = FieldError::required("fieldManager", "is required for apply patch");
        return Err(ApiError::invalid("meta.k8s.io", "PatchOptions", "", &[error]));
    }
    let mut applied = body::from_yaml(raw)?;
    if !applied.is_object() {
        return Err(ApiError::bad_request("an applied configuration must be an object"));
    }
    for (field, wanted) in [("apiVersion", context.endpoint.api_version()), ("kind", resource.kind.as_str())] {
        if applied[field].as_str().unwrap_or_default() != wanted {
            return Err(ApiError::bad_request(format!(
                "Incorrect version specified in apply patch. Specified patch {field}: {}, expected: {wanted}",
                applied[field]
            )));
        }
    }
    let name = applied["metadata"]["name"].as_str().unwrap_or_default();
    if !name.is_empty() && name != context.request.name {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            context.request.name
        )));
    }
    if applied["metadata"].get("managedFields").is_some_and(|m| m.as_array().is_some_and(|m| !m.is_empty())) {
        return Err(ApiError::bad_request("metadata.managedFields must be nil"));
    }
    if let Some(members) = applied.as_object_mut()
        && resource.is_custom()
        && context.endpoint.version().subresources.status
        && context.request.subresource.is_empty()
    {
        members.remove("status");
    }
    context.applied = true;
    let manager = admission::manager(context, &options, "Apply");
    let schema = admission::managed_fields_schema(&context.endpoint);
    let exists = context.core.store.latest(&resource.storage, &context.key()).is_some();
    if !exists && context.request.subresource.is_empty() {
        return create_applied(context, applied, &manager, &options).await;
    }
    let force = options.force;
    modify(context, &options, false, |mut old| {
        patch::managed::record_before_first_apply(&mut old, &manager, schema.as_deref());
        ready(patch::apply(old, &applied, &manager, force, schema.as_deref()))
    })
    .await
}
