//! The description of one resource: names, versions, subresources, columns, schema.

use std::sync::Arc;

use serde_json::Value;

use crate::schema::Schema;

/// A resource: one plural in one group, in one or more versions.
pub struct Resource {
    pub group: String,
    pub plural: String,
    pub singular: String,
    pub kind: String,
    pub list_kind: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub namespaced: bool,
    /// Name of the collection in the store. Two resources may share one: events are stored once and served by two
    /// groups.
    pub storage: Arc<str>,
    /// `apiVersion` of stored objects.
    pub storage_version: String,
    /// In order of preference.
    pub versions: Vec<Version>,
    pub origin: Origin,
    /// Field selectors beyond `metadata.name` and `metadata.namespace`.
    pub fields: Vec<SelectableField>,
}

impl Resource {
    /// True for the second resource of a shared collection (`events.k8s.io`).
    pub fn is_alias(&self) -> bool {
        matches!(self.origin, Origin::Alias)
    }

    pub fn is_custom(&self) -> bool {
        matches!(self.origin, Origin::Custom { .. })
    }

    /// `sandboxes.agents.x-k8s.io`.
    pub fn qualified(&self) -> String {
        crate::status::qualified(&self.plural, &self.group)
    }

    pub(super) fn storage_index(&self) -> usize {
        self.versions.iter().position(|v| v.api_version == self.storage_version).unwrap_or(0)
    }

    /// The current schema of `api_version`, if an object with this resource version may have been stored under an older
    /// one; such an object is pruned and defaulted when it is read.
    pub(crate) fn schema_newer_than_object(&self, api_version: &str, version: u64) -> Option<&Schema> {
        let Origin::Custom { schema_since, .. } = &self.origin else { return None };
        if version >= *schema_since {
            return None;
        }
        self.versions.iter().find(|v| v.api_version == api_version)?.schema.as_deref()
    }

    /// Takes over `schema_since` from an earlier state of the same CRD if its spec, and with it the schema, is
    /// unchanged.
    pub(super) fn inherit_schema_version(&mut self, earlier: &Self) {
        if let (
            Origin::Custom { crd_uid, crd_generation, schema_since, .. },
            Origin::Custom { crd_uid: uid, crd_generation: generation, schema_since: since, .. },
        ) = (&mut self.origin, &earlier.origin)
            && crd_uid == uid
            && crd_generation == generation
        {
            *schema_since = *since;
        }
    }

    /// True for collections that may lose recent writes in a power failure: events.
    pub fn ephemeral(&self) -> bool {
        &*self.storage == "/events"
    }
}

/// Where a resource comes from.
#[derive(Debug, Clone)]
pub enum Origin {
    BuiltIn,
    /// The same collection as a built-in resource, served by another group.
    Alias,
    Custom {
        crd_name: String,
        crd_uid: String,
        /// `metadata.generation` of the CRD, which counts changes of its spec.
        crd_generation: i64,
        /// Resource version from which the current schema applies. Objects with an older one may have been stored under
        /// another schema.
        schema_since: u64,
        conversion: Conversion,
    },
}

/// How a custom resource is converted between versions.
#[derive(Debug, Clone)]
pub enum Conversion {
    /// Only `apiVersion` is rewritten.
    None,
    Webhook(WebhookClient),
}

/// Address and trust of a conversion webhook.
#[derive(Debug, Clone)]
pub struct WebhookClient {
    pub url: String,
    /// PEM certificates; empty if the CRD has none.
    pub ca_bundle: Vec<u8>,
    pub review_versions: Vec<String>,
}

/// One version of a resource.
pub struct Version {
    pub name: String,
    /// `group/version`, or `v1` for core.
    pub api_version: String,
    pub served: bool,
    /// Text of the `Warning` header if this version is deprecated.
    pub deprecation_warning: Option<String>,
    pub verbs: &'static [&'static str],
    pub subresources: Subresources,
    /// From `additionalPrinterColumns`; empty for built-ins.
    pub columns: Vec<PrinterColumn>,
    /// Structural schema of a custom resource.
    pub schema: Option<Arc<Schema>>,
    /// The schema as written in the CRD, for OpenAPI. Kept as text, because it is rarely requested.
    pub openapi: Option<Arc<str>>,
}

#[derive(Debug, Clone, Default)]
pub struct Subresources {
    pub status: bool,
    pub scale: Option<ScaleSubresource>,
    /// `log`, `exec`, `attach`, `portforward`, `binding`, `eviction`, `token`, `finalize`, …
    pub others: &'static [&'static str],
}

/// JSON paths (`.spec.replicas`) of the scale subresource, split at the dots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScaleSubresource {
    pub spec_replicas: Vec<String>,
    pub status_replicas: Vec<String>,
    pub label_selector: Option<Vec<String>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PrinterColumn {
    pub name: String,
    /// `string`, `integer`, `number`, `boolean`, `date`.
    pub kind: String,
    pub format: String,
    pub description: String,
    pub priority: i64,
    pub json_path: String,
}

/// A field usable in a field selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelectableField {
    /// As written in the selector: `status.phase`.
    pub name: String,
    pub path: Vec<String>,
    /// The value that a missing field is compared as: `""`, or `false` for booleans.
    pub default: &'static str,
}

impl SelectableField {
    pub fn at(name: &str) -> Self {
        Self { name: name.to_owned(), path: name.split('.').map(str::to_owned).collect(), default: "" }
    }

    /// The value in an object, as text.
    pub fn read(&self, object: &Value) -> Box<str> {
        let mut at = object;
        for step in &self.path {
            match at.get(step) {
                Some(next) => at = next,
                None => return self.default.into(),
            }
        }
        match at {
            Value::String(text) => text.as_str().into(),
            Value::Null => self.default.into(),
            other => other.to_string().into(),
        }
    }
}
