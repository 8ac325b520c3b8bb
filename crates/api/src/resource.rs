//! The macro that makes a struct with `metadata`, `spec` and optionally `status` a Kubernetes resource.

/// Implements serialisation with `apiVersion` and `kind`, and k8s-openapi's resource traits.
///
/// Deserialisation ignores `apiVersion` and `kind` (list items of some servers lack them); serialisation always
/// writes them.
macro_rules! custom_resource {
    ($kind:ident, $list_kind:literal, $plural:literal, $group:expr, $version:expr, $api_version:expr, [$($status:ident)?]) => {
        impl k8s_openapi::Resource for $kind {
            const API_VERSION: &'static str = $api_version;
            const GROUP: &'static str = $group;
            const KIND: &'static str = stringify!($kind);
            const VERSION: &'static str = $version;
            const URL_PATH_SEGMENT: &'static str = $plural;
            type Scope = k8s_openapi::NamespaceResourceScope;
        }

        impl k8s_openapi::ListableResource for $kind {
            const LIST_KIND: &'static str = $list_kind;
        }

        impl k8s_openapi::Metadata for $kind {
            type Ty = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

            fn metadata(&self) -> &Self::Ty {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut Self::Ty {
                &mut self.metadata
            }
        }

        impl serde::Serialize for $kind {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeStruct;
                let mut object = serializer.serialize_struct(stringify!($kind), 5)?;
                object.serialize_field("apiVersion", <Self as k8s_openapi::Resource>::API_VERSION)?;
                object.serialize_field("kind", <Self as k8s_openapi::Resource>::KIND)?;
                object.serialize_field("metadata", &self.metadata)?;
                object.serialize_field("spec", &self.spec)?;
                $(
                    if let Some(status) = &self.$status {
                        object.serialize_field("status", status)?;
                    }
                )?
                object.end()
            }
        }

        impl $kind {
            /// The object's name; empty before the server has generated one.
            pub fn name(&self) -> &str {
                self.metadata.name.as_deref().unwrap_or_default()
            }

            /// The object's namespace; empty when it was never stored.
            pub fn namespace(&self) -> &str {
                self.metadata.namespace.as_deref().unwrap_or_default()
            }

            /// The object's uid; empty when it was never stored.
            pub fn uid(&self) -> &str {
                self.metadata.uid.as_deref().unwrap_or_default()
            }

            /// The object's resourceVersion; empty when it was never stored.
            pub fn resource_version(&self) -> &str {
                self.metadata.resource_version.as_deref().unwrap_or_default()
            }

            /// The object's generation; 0 when it was never stored.
            pub fn generation(&self) -> i64 {
                self.metadata.generation.unwrap_or_default()
            }

            /// True once a deletion has been requested.
            pub fn is_deleting(&self) -> bool {
                self.metadata.deletion_timestamp.is_some()
            }

            /// A label's value.
            pub fn label(&self, key: &str) -> Option<&str> {
                self.metadata.labels.as_ref()?.get(key).map(String::as_str)
            }

            /// An annotation's value.
            pub fn annotation(&self, key: &str) -> Option<&str> {
                self.metadata.annotations.as_ref()?.get(key).map(String::as_str)
            }

            /// A controller owner reference to this object, always in the stored version.
            pub fn controller_reference(&self) -> k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference {
                crate::owners::controller_reference(
                    <Self as k8s_openapi::Resource>::GROUP,
                    <Self as k8s_openapi::Resource>::KIND,
                    self.name(),
                    self.uid(),
                )
            }
        }
    };
}

pub(crate) use custom_resource;
