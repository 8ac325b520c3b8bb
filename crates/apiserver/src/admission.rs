//! Between a decoded object and a storable one: defaults, pruning, validation, generation, per kind.

use serde_json::Value;

use crate::{
    builtin::names,
    request::WriteOptions,
    status::{ApiError, FieldError},
    verbs::Context,
};

/// Prepares a new object (in the request's version).
pub(crate) async fn create(
    context: &mut Context<'_>,
    mut object: Value,
    _options: &WriteOptions,
) -> Result<Value, ApiError> {
    let resource = context.endpoint.resource.clone();
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let mut errors = Vec::new();
    if name.is_empty() {
        errors.push(FieldError::required("metadata.name", "name or generateName is required"));
    } else {
        for why in names::dns1123_subdomain(&name) {
            errors.push(FieldError::invalid_str("metadata.name", &name, why));
        }
    }
    if !errors.is_empty() {
        return Err(ApiError::invalid(&resource.group, &resource.kind, &name, &errors));
    }
    if let Some(meta) = object["metadata"].as_object_mut() {
        meta.insert("generation".into(), 1.into());
    }
    Ok(object)
}

/// Prepares a changed object; `old` and `new` are in the request's version.
pub(crate) async fn update(
    _context: &mut Context<'_>,
    _old: &Value,
    new: Value,
    _options: &WriteOptions,
) -> Result<Value, ApiError> {
    Ok(new)
}
