//! The kinds the controller works with, and what it keeps of each in memory.
//!
//! Our own four kinds are kept whole. Of Pods, PVCs and Services only what a decision may depend on is decoded, so that ten thousand
//! sandboxes fit in tens of megabytes and a watch event costs little to parse.

mod children;
mod meta;
mod sandbox;

use std::{fmt, sync::Arc};

use agent_sandbox_api::{
    owners,
    v1beta1::{SandboxClaim, SandboxTemplate, SandboxWarmPool},
};
use k8s_openapi::{
    api::networking::v1::NetworkPolicy,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use serde::de::DeserializeOwned;

pub use self::{
    children::{Pod, PodCondition, PodIp, PodSpec, PodStatus, Pvc, Service, ServicePort, ServiceSpec},
    meta::{About, Meta, Pairs},
    sandbox::Sandbox,
};
use crate::world::IndexKey;

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

/// Every kind the controller reads or writes through its ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Sandbox,
    Claim,
    Pool,
    Template,
    Pod,
    Pvc,
    Service,
    NetworkPolicy,
    Event,
}

impl Kind {
    pub fn group_version(self) -> &'static str {
        match self {
            Kind::Sandbox => "agents.x-k8s.io/v1beta1",
            Kind::Claim | Kind::Pool | Kind::Template => "extensions.agents.x-k8s.io/v1beta1",
            Kind::Pod | Kind::Pvc | Kind::Service => "v1",
            Kind::NetworkPolicy => "networking.k8s.io/v1",
            Kind::Event => "events.k8s.io/v1",
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Kind::Sandbox => "Sandbox",
            Kind::Claim => "SandboxClaim",
            Kind::Pool => "SandboxWarmPool",
            Kind::Template => "SandboxTemplate",
            Kind::Pod => "Pod",
            Kind::Pvc => "PersistentVolumeClaim",
            Kind::Service => "Service",
            Kind::NetworkPolicy => "NetworkPolicy",
            Kind::Event => "Event",
        }
    }

    pub fn plural(self) -> &'static str {
        match self {
            Kind::Sandbox => "sandboxes",
            Kind::Claim => "sandboxclaims",
            Kind::Pool => "sandboxwarmpools",
            Kind::Template => "sandboxtemplates",
            Kind::Pod => "pods",
            Kind::Pvc => "persistentvolumeclaims",
            Kind::Service => "services",
            Kind::NetworkPolicy => "networkpolicies",
            Kind::Event => "events",
        }
    }

    fn root(self) -> String {
        match self.group_version() {
            "v1" => "/api/v1".to_owned(),
            group_version => format!("/apis/{group_version}"),
        }
    }

    /// The collection's URL path inside a namespace.
    pub fn path(self, namespace: &str) -> String {
        format!("{}/namespaces/{namespace}/{}", self.root(), self.plural())
    }

    /// The collection's URL path in the whole cluster.
    pub fn path_everywhere(self) -> String {
        format!("{}/{}", self.root(), self.plural())
    }
}

/// An object that the store caches.
pub trait Cached: DeserializeOwned + fmt::Debug + Send + Sync + 'static {
    type Meta: About;

    const KIND_OF: Kind;

    fn about(&self) -> &Self::Meta;

    /// The index entries this object is found under.
    fn index(&self) -> Vec<IndexKey>;

    /// Drops what no decision reads and shares what is equal, before the object is kept.
    fn slim(&mut self);

    fn into_object(this: Arc<Self>) -> Object;
    fn from_object(object: &Object) -> Option<Arc<Self>>;

    fn key(&self) -> Key {
        self.about().key()
    }

    fn uid(&self) -> &str {
        self.about().uid()
    }

    fn resource_version(&self) -> &str {
        self.about().resource_version()
    }

    fn controller(&self) -> Option<&OwnerReference> {
        owners::controller_of(self.about())
    }

    fn is_deleting(&self) -> bool {
        self.about().is_deleting()
    }

    fn label(&self, key: &str) -> Option<&str> {
        self.about().label(key)
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.about().annotation(key)
    }
}

/// An object of any cached kind, shared with the store.
#[derive(Clone, Debug)]
pub enum Object {
    Sandbox(Arc<Sandbox>),
    Claim(Arc<SandboxClaim>),
    Pool(Arc<SandboxWarmPool>),
    Template(Arc<SandboxTemplate>),
    Pod(Arc<Pod>),
    Pvc(Arc<Pvc>),
    Service(Arc<Service>),
    NetworkPolicy(Arc<NetworkPolicy>),
}

impl Object {
    /// Decodes an API answer of the given kind.
    pub fn decode(kind: Kind, body: &[u8]) -> Result<Option<Self>, serde_json::Error> {
        fn typed<K: Cached>(body: &[u8]) -> Result<Object, serde_json::Error> {
            let mut object: K = serde_json::from_slice(body)?;
            object.slim();
            Ok(K::into_object(Arc::new(object)))
        }
        Ok(Some(match kind {
            Kind::Sandbox => typed::<Sandbox>(body)?,
            Kind::Claim => typed::<SandboxClaim>(body)?,
            Kind::Pool => typed::<SandboxWarmPool>(body)?,
            Kind::Template => typed::<SandboxTemplate>(body)?,
            Kind::Pod => typed::<Pod>(body)?,
            Kind::Pvc => typed::<Pvc>(body)?,
            Kind::Service => typed::<Service>(body)?,
            Kind::NetworkPolicy => typed::<NetworkPolicy>(body)?,
            Kind::Event => return Ok(None),
        }))
    }

    pub fn kind(&self) -> Kind {
        match self {
            Object::Sandbox(_) => Kind::Sandbox,
            Object::Claim(_) => Kind::Claim,
            Object::Pool(_) => Kind::Pool,
            Object::Template(_) => Kind::Template,
            Object::Pod(_) => Kind::Pod,
            Object::Pvc(_) => Kind::Pvc,
            Object::Service(_) => Kind::Service,
            Object::NetworkPolicy(_) => Kind::NetworkPolicy,
        }
    }

    pub fn label(&self, key: &str) -> Option<&str> {
        match self {
            Object::Sandbox(object) => object.label(key),
            Object::Claim(object) => object.label(key),
            Object::Pool(object) => object.label(key),
            Object::Template(object) => object.label(key),
            Object::Pod(object) => object.label(key),
            Object::Pvc(object) => object.label(key),
            Object::Service(object) => object.label(key),
            Object::NetworkPolicy(object) => object.label(key),
        }
    }

    /// The object as its own type; `None` when it is of another kind.
    pub fn cast<K: Cached>(&self) -> Option<Arc<K>> {
        K::from_object(self)
    }
}

/// What every kind can do without: who wrote which field, and what `kubectl apply` keeps for itself.
fn slim_metadata(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
    metadata.generate_name = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.remove(LAST_APPLIED);
    }
    // Lists read from JSON have room for four; most hold one.
    if let Some(owners) = &mut metadata.owner_references {
        owners.shrink_to_fit();
    }
}

/// A copy of the whole object inside the object, for `kubectl`.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

macro_rules! cached {
    ($type:ty, $kind:ident, $meta:ty, $index:path, $slim:expr) => {
        impl Cached for $type {
            type Meta = $meta;

            const KIND_OF: Kind = Kind::$kind;

            fn about(&self) -> &$meta {
                &self.metadata
            }

            fn index(&self) -> Vec<IndexKey> {
                $index(self)
            }

            fn slim(&mut self) {
                let slim: fn(&mut Self) = $slim;
                slim(self);
            }

            fn into_object(this: Arc<Self>) -> Object {
                Object::$kind(this)
            }

            fn from_object(object: &Object) -> Option<Arc<Self>> {
                match object {
                    Object::$kind(object) => Some(object.clone()),
                    _ => None,
                }
            }
        }
    };
}

cached!(Sandbox, Sandbox, Meta, crate::world::index_sandbox, Self::slim);
cached!(SandboxClaim, Claim, ObjectMeta, crate::world::index_claim, |claim| slim_metadata(&mut claim.metadata));
cached!(SandboxWarmPool, Pool, ObjectMeta, crate::world::index_pool, |pool| slim_metadata(&mut pool.metadata));
cached!(SandboxTemplate, Template, ObjectMeta, crate::world::index_template, |template| slim_metadata(
    &mut template.metadata
));
cached!(Pod, Pod, Meta, crate::world::index_owner, Self::slim);
cached!(Pvc, Pvc, Meta, crate::world::index_owner, |_| {});
cached!(Service, Service, Meta, crate::world::index_owner, |_| {});
cached!(NetworkPolicy, NetworkPolicy, ObjectMeta, crate::world::index_owner, |policy| slim_metadata(
    &mut policy.metadata
));
