//! Label and field selectors: parsed once per request, matched against the parsed facts of stored objects.

mod field;
mod label;

pub use field::FieldSelector;
pub use label::LabelSelector;

use crate::{
    registry::Resource,
    status::ApiError,
    store::{ObjectKey, Stored},
};

/// Selects the objects of a resource that a list, watch or collection delete applies to.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    namespace: Box<str>,
    labels: LabelSelector,
    fields: FieldSelector,
}

impl Filter {
    pub fn parse(resource: &Resource, namespace: &str, labels: &str, fields: &str) -> Result<Self, ApiError> {
        Ok(Self {
            namespace: namespace.into(),
            labels: LabelSelector::parse(labels).map_err(ApiError::bad_request)?,
            fields: FieldSelector::parse(resource, fields).map_err(ApiError::bad_request)?,
        })
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    pub fn matches(&self, object: &Stored) -> bool {
        (self.namespace.is_empty() || self.namespace == object.key.namespace)
            && self.fields.matches(object)
            && self.labels.matches(|key| object.label(key))
    }

    /// The key of the only object that this filter can match, if it selects by name.
    pub fn only(&self) -> Option<ObjectKey> {
        let name = self.fields.name()?;
        let namespace = if self.namespace.is_empty() { self.fields.namespace()? } else { &self.namespace };
        Some(ObjectKey::new(namespace, name))
    }
}
