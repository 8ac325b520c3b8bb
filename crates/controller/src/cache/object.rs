//! The compact form in which objects are cached, and what every cached kind can do.
//!
//! Claims, pools and templates are kept whole. Of Pods, PVCs and Services only the fields that a decision may depend on
//! are decoded, so that ten thousand sandboxes fit in tens of megabytes and a watch event costs little to parse.

mod children;
mod meta;
mod sandbox;

use std::{fmt, sync::Arc};

use agent_sandbox_api::owners;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde::de::DeserializeOwned;

pub use self::{
    children::{Pod, PodCondition, PodIp, PodSpec, PodStatus, Pvc, Service, ServicePort, ServiceSpec},
    meta::{Meta, ObjectMetadata, PackedMap},
    sandbox::Sandbox,
};
use super::{Change, ClusterCache, Delta, IndexKey, Kind, KindCache, Object};

/// Namespace and name of an object of a known kind.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl Key {
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// The key of an object in the same namespace.
    pub fn sibling(&self, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: self.namespace.clone(), name: name.into() }
    }
}

impl Default for Key {
    fn default() -> Self {
        Self::new("", "")
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An object that the store caches.
pub trait Cached: Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static {
    type Meta: ObjectMetadata;

    const KIND_OF: Kind;

    fn object_metadata(&self) -> &Self::Meta;

    /// The index entries this object is found under.
    fn index(&self) -> Vec<IndexKey>;

    /// Drops the fields that no decision reads and shares equal values, before the object is cached.
    fn compact(&mut self);

    fn into_object(this: Arc<Self>) -> Object;
    fn from_object(object: &Object) -> Option<Arc<Self>>;

    /// This kind's cache.
    fn cache(world: &ClusterCache) -> &KindCache<Self>;
    fn cache_mut(world: &mut ClusterCache) -> &mut KindCache<Self>;

    fn change(delta: Delta<Self>) -> Change;

    fn key(&self) -> Key {
        self.object_metadata().key()
    }

    fn uid(&self) -> &str {
        self.object_metadata().uid()
    }

    fn resource_version(&self) -> &str {
        self.object_metadata().resource_version()
    }

    fn controller(&self) -> Option<&OwnerReference> {
        owners::controller_of(self.object_metadata())
    }

    fn is_deleting(&self) -> bool {
        self.object_metadata().is_deleting()
    }

    fn label(&self, key: &str) -> Option<&str> {
        self.object_metadata().label(key)
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.object_metadata().annotation(key)
    }
}

/// Drops the metadata that no decision reads: managed fields, and the annotation that `kubectl apply` keeps for itself.
pub(super) fn compact_metadata(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
    metadata.generate_name = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.remove(LAST_APPLIED);
    }
    // Vectors decoded from JSON have capacity for four elements; most hold one.
    if let Some(owners) = &mut metadata.owner_references {
        owners.shrink_to_fit();
    }
}

/// Annotation in which `kubectl apply` stores a copy of the whole object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
