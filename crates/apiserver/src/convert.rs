//! Conversion between the version that an object is stored in and the version that a request uses.

use std::sync::Arc;

use serde_json::Value;

use crate::{
    patch::{FieldsText, expand_fields_v1},
    registry::{Conversion, Endpoint, Origin, Resource},
    status::ApiError,
    store::{Draft, Stored},
};

mod events;
mod webhook;

/// Converts custom resources in-process, for kinds whose conversion code is linked into this program. Other kinds are
/// converted by the webhook in their CRD.
pub trait Converter: Send + Sync {
    fn handles(&self, group: &str, kind: &str) -> bool;
    fn convert(&self, object: Value, desired_api_version: &str) -> Result<Value, String>;
}

/// An object in the version that a request asked for.
#[derive(Debug, Clone)]
pub enum View {
    /// The object is stored in that version: the stored buffer is sent as it is.
    Stored(Arc<Stored>),
    Value(Arc<Value>),
}

impl View {
    pub fn to_value(&self) -> Value {
        match self {
            Self::Stored(object) => object.parse(),
            Self::Value(value) => Value::clone(value),
        }
    }

    /// The object's name.
    pub fn name(&self) -> Option<String> {
        match self {
            Self::Stored(object) => Some(object.key.name.to_string()),
            Self::Value(value) => value["metadata"]["name"].as_str().map(str::to_owned),
        }
    }

    /// Appends the JSON text of the object.
    pub fn write_json(&self, out: &mut bytes::BytesMut) {
        match self {
            Self::Stored(object) => object.write_json(out),
            Self::Value(value) => {
                use bytes::BufMut as _;
                serde_json::to_writer(out.writer(), &**value).expect("JSON values serialise into memory");
            }
        }
    }

    /// Appends the JSON text of the object, with most of `managedFields` left out if that is possible without parsing.
    pub fn write_lean(&self, out: &mut bytes::BytesMut) {
        match self {
            Self::Stored(object) => object.write_lean(out),
            Self::Value(_) => self.write_json(out),
        }
    }

    /// Appends the JSON text of the object without `apiVersion` and `kind`.
    pub fn write_untyped_json(&self, out: &mut bytes::BytesMut) {
        match self {
            Self::Stored(object) => object.write_untyped_json(out),
            Self::Value(_) => {
                use bytes::BufMut as _;
                serde_json::to_writer(out.writer(), &self.to_untyped_value())
                    .expect("JSON values serialise into memory");
            }
        }
    }

    /// The object without `apiVersion` and `kind`.
    pub fn to_untyped_value(&self) -> Value {
        let mut value = self.to_value();
        if let Some(members) = value.as_object_mut() {
            members.remove("apiVersion");
            members.remove("kind");
        }
        value
    }

    /// Length of the JSON text, or 0 if it is not known without serialising.
    pub fn json_len(&self) -> usize {
        match self {
            Self::Stored(object) => object.json_len(),
            Self::Value(_) => 0,
        }
    }

    /// JSON text of the object.
    pub fn to_json(&self) -> bytes::Bytes {
        match self {
            Self::Stored(object) => object.json(),
            Self::Value(value) => serde_json::to_vec(&**value).expect("JSON values serialise into memory").into(),
        }
    }
}

/// Converts objects between versions: in-process, by webhook, or by renaming fields (events).
#[derive(Clone, Default)]
pub struct Conversions {
    in_process: Option<Arc<dyn Converter>>,
}

impl Conversions {
    pub fn new(in_process: Option<Arc<dyn Converter>>) -> Self {
        Self { in_process }
    }

    pub async fn view(&self, endpoint: &Endpoint, object: &Arc<Stored>) -> Result<View, ApiError> {
        let updated = upgrade_to_current_schema(&endpoint.resource, object);
        if updated.is_none() && object.api_version() == endpoint.api_version() {
            return Ok(View::Stored(object.clone()));
        }
        let value = updated.unwrap_or_else(|| object.parse());
        let value = self.convert(&endpoint.resource, value, endpoint.api_version()).await?;
        Ok(View::Value(Arc::new(value)))
    }

    /// The object to be edited, in the endpoint's version. With `by_reference`, `fieldsV1` values may be indexes into
    /// the returned texts; the caller must then not read, copy or replace `managedFields`.
    pub(crate) async fn editable(
        &self,
        endpoint: &Endpoint,
        object: &Arc<Stored>,
        by_reference: bool,
    ) -> Result<(Value, Vec<FieldsText>), ApiError> {
        match self.view(endpoint, object).await? {
            View::Stored(object) if by_reference => Ok(object.parse_with_text_refs()),
            view => Ok((view.to_value(), Vec::new())),
        }
    }

    /// Prepares an edited object for storing. `fieldsV1` values may be indexes into `texts`.
    pub(crate) async fn draft(
        &self,
        resource: &Resource,
        mut object: Value,
        texts: &[FieldsText],
    ) -> Result<Draft, ApiError> {
        if object["apiVersion"] == resource.storage_version {
            return Ok(Draft::with_texts(resource, &object, texts));
        }
        expand_fields_v1(&mut object, texts);
        let stored = self.convert(resource, object, &resource.storage_version).await?;
        Ok(Draft::new(resource, &stored))
    }

    pub async fn convert(&self, resource: &Resource, object: Value, desired: &str) -> Result<Value, ApiError> {
        if object["apiVersion"] == desired {
            return Ok(object);
        }
        match &resource.origin {
            Origin::BuiltIn | Origin::Alias => Ok(events::convert(object, desired)),
            Origin::Custom { conversion, .. } => {
                let preserved = PreservedMetadata::of(&object);
                let converted = self.convert_custom(resource, conversion, object, desired).await?;
                preserved.restore(converted, desired).map_err(|why| conversion_error(resource, &why))
            }
        }
    }

    async fn convert_custom(
        &self,
        resource: &Resource,
        conversion: &Conversion,
        mut object: Value,
        desired: &str,
    ) -> Result<Value, ApiError> {
        if let Some(converter) = self.in_process.as_ref().filter(|c| c.handles(&resource.group, &resource.kind)) {
            return converter.convert(object, desired).map_err(|why| conversion_error(resource, &why));
        }
        match conversion {
            Conversion::None => {
                object["apiVersion"] = desired.into();
                Ok(object)
            }
            Conversion::Webhook(hook) => {
                webhook::convert(hook, object, desired).await.map_err(|why| conversion_error(resource, &why))
            }
        }
    }
}

/// Prunes and defaults an object that was stored under an older schema. `None` if that changes nothing.
fn upgrade_to_current_schema(resource: &Resource, object: &Stored) -> Option<Value> {
    let schema = resource.schema_newer_than_object(object.api_version(), object.version)?;
    let stored = object.parse();
    let mut value = stored.clone();
    schema.prune(&mut value);
    schema.apply_defaults(&mut value);
    (value != stored).then_some(value)
}

fn conversion_error(resource: &Resource, why: &str) -> ApiError {
    ApiError::internal(format!("conversion of {} failed: {why}", resource.qualified()))
}

/// The metadata of an object before conversion. A conversion may change only labels and annotations.
struct PreservedMetadata {
    metadata: serde_json::Map<String, Value>,
}

impl PreservedMetadata {
    fn of(object: &Value) -> Self {
        Self { metadata: object["metadata"].as_object().cloned().unwrap_or_default() }
    }

    fn restore(self, mut converted: Value, desired: &str) -> Result<Value, String> {
        if converted["apiVersion"] != desired {
            return Err(format!("asked for {desired}, got {}", converted["apiVersion"]));
        }
        let Some(meta) = converted.get_mut("metadata").and_then(Value::as_object_mut) else {
            return Err("the converted object has no metadata".into());
        };
        let edited: Vec<(String, Value)> = ["labels", "annotations"]
            .iter()
            .filter_map(|k| meta.get(*k).map(|v| ((*k).to_owned(), v.clone())))
            .collect();
        let mut restored = self.metadata;
        restored.remove("labels");
        restored.remove("annotations");
        restored.extend(edited);
        *meta = restored;
        Ok(converted)
    }
}
