//! The kinds the controller works with, and what it keeps of each in memory.
//!
//! Our own four kinds are kept whole. Of Pods, PVCs and Services only what a decision may depend on is decoded, so that ten thousand
//! sandboxes fit in tens of megabytes and a watch event costs little to parse.

use std::{fmt, sync::Arc};

use agent_sandbox_api::{
    owners,
    v1beta1::{Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool},
};
use k8s_openapi::{
    Metadata, NamespaceResourceScope, Resource,
    api::networking::v1::NetworkPolicy,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{intern::intern, world::IndexKey};

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

    pub fn of(meta: &ObjectMeta) -> Self {
        Self::new(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
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

    /// The collection's URL path inside a namespace.
    pub fn path(self, namespace: &str) -> String {
        let root = match self.group_version() {
            "v1" => "/api/v1".to_owned(),
            group_version => format!("/apis/{group_version}"),
        };
        format!("{root}/namespaces/{namespace}/{}", self.plural())
    }
}

/// An object that the store caches.
pub trait Cached:
    Metadata<Ty = ObjectMeta>
    + Resource<Scope = NamespaceResourceScope>
    + DeserializeOwned
    + fmt::Debug
    + Send
    + Sync
    + 'static
{
    const KIND_OF: Kind;

    /// The index entries this object is found under.
    fn index(&self) -> Vec<IndexKey>;

    /// Drops what no decision reads, before the object is kept.
    fn slim(&mut self) {
        slim_metadata(self.metadata_mut());
    }

    fn into_object(this: Arc<Self>) -> Object;
    fn from_object(object: &Object) -> Option<Arc<Self>>;

    fn key(&self) -> Key {
        Key::of(self.metadata())
    }

    fn uid(&self) -> &str {
        self.metadata().uid.as_deref().unwrap_or_default()
    }

    fn resource_version(&self) -> &str {
        self.metadata().resource_version.as_deref().unwrap_or_default()
    }

    fn controller(&self) -> Option<&OwnerReference> {
        owners::controller_of(self.metadata())
    }

    fn is_deleting(&self) -> bool {
        self.metadata().deletion_timestamp.is_some()
    }

    fn label(&self, key: &str) -> Option<&str> {
        self.metadata().labels.as_ref()?.get(key).map(String::as_str)
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata().annotations.as_ref()?.get(key).map(String::as_str)
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

    pub fn metadata(&self) -> &ObjectMeta {
        match self {
            Object::Sandbox(object) => object.metadata(),
            Object::Claim(object) => object.metadata(),
            Object::Pool(object) => object.metadata(),
            Object::Template(object) => object.metadata(),
            Object::Pod(object) => object.metadata(),
            Object::Pvc(object) => object.metadata(),
            Object::Service(object) => object.metadata(),
            Object::NetworkPolicy(object) => object.metadata(),
        }
    }

    pub fn key(&self) -> Key {
        Key::of(self.metadata())
    }

    /// The object as its own type; `None` when it is of another kind.
    pub fn cast<K: Cached>(&self) -> Option<Arc<K>> {
        K::from_object(self)
    }
}

/// What is kept of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pod {
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: PodSpec,
    #[serde(default)]
    pub status: PodStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSpec {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodStatus {
    #[serde(default)]
    pub phase: String,
    #[serde(default)]
    pub conditions: Vec<PodCondition>,
    #[serde(default, rename = "podIPs")]
    pub pod_ips: Vec<PodIp>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PodCondition {
    #[serde(rename = "type")]
    pub type_: String,
    pub status: String,
    #[serde(default)]
    pub reason: String,
    #[serde(default)]
    pub message: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PodIp {
    #[serde(default)]
    pub ip: String,
}

impl Pod {
    pub fn condition(&self, type_: &str) -> Option<&PodCondition> {
        self.status.conditions.iter().find(|condition| condition.type_ == type_)
    }
}

/// What is kept of a PersistentVolumeClaim: who owns it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pvc {
    #[serde(default)]
    pub metadata: ObjectMeta,
}

/// What is kept of a Service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Service {
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: ServiceSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceSpec {
    #[serde(default, rename = "clusterIP", skip_serializing_if = "Option::is_none")]
    pub cluster_ip: Option<String>,
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    #[serde(default)]
    pub selector: std::collections::BTreeMap<String, String>,
    #[serde(default)]
    pub ports: Vec<ServicePort>,
}

/// A Service port as far as we compare it (other fields, such as `appProtocol`, are left alone).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicePort {
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub protocol: String,
    pub port: i32,
    #[serde(default)]
    pub target_port: serde_json::Value,
}

macro_rules! slim_resource {
    ($type:ty, $kind:literal, $plural:literal) => {
        impl Resource for $type {
            const API_VERSION: &'static str = "v1";
            const GROUP: &'static str = "";
            const KIND: &'static str = $kind;
            const VERSION: &'static str = "v1";
            const URL_PATH_SEGMENT: &'static str = $plural;
            type Scope = NamespaceResourceScope;
        }

        impl Metadata for $type {
            type Ty = ObjectMeta;

            fn metadata(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

slim_resource!(Pod, "Pod", "pods");
slim_resource!(Pvc, "PersistentVolumeClaim", "persistentvolumeclaims");
slim_resource!(Service, "Service", "services");

/// What every kind can do without. Lists read from JSON have room for four; most hold one.
fn slim_metadata(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
    metadata.generate_name = None;
    if let Some(owners) = &mut metadata.owner_references {
        owners.shrink_to_fit();
    }
}

/// The conditions of a Pod that a decision reads.
const DECISIVE: [&str; 2] = ["PodScheduled", "Ready"];

fn slim_pod(pod: &mut Pod) {
    slim_metadata(&mut pod.metadata);
    pod.status.conditions.retain(|condition| DECISIVE.contains(&condition.type_.as_str()));
    pod.status.conditions.shrink_to_fit();
    pod.status.pod_ips.shrink_to_fit();
}

/// Members of a pool differ in little more than their names.
fn slim_sandbox(sandbox: &mut Sandbox) {
    slim_metadata(&mut sandbox.metadata);
    if let Some(status) = &mut sandbox.status {
        status.conditions.iter_mut().for_each(Vec::shrink_to_fit);
        status.pod_ips.iter_mut().for_each(Vec::shrink_to_fit);
    }
    intern(&mut sandbox.spec.pod_template.spec);
    for template in sandbox.spec.volume_claim_templates.iter_mut().flatten() {
        intern(&mut template.spec);
    }
}

macro_rules! cached {
    ($type:ty, $kind:ident, $index:path $(, $slim:path)?) => {
        impl Cached for $type {
            $(
                fn slim(&mut self) {
                    $slim(self);
                }
            )?

            const KIND_OF: Kind = Kind::$kind;

            fn index(&self) -> Vec<IndexKey> {
                $index(self)
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

cached!(Sandbox, Sandbox, crate::world::index_sandbox, slim_sandbox);
cached!(SandboxClaim, Claim, crate::world::index_claim);
cached!(SandboxWarmPool, Pool, crate::world::index_pool);
cached!(SandboxTemplate, Template, crate::world::index_template);
cached!(Pod, Pod, crate::world::index_owner, slim_pod);
cached!(Pvc, Pvc, crate::world::index_owner);
cached!(Service, Service, crate::world::index_owner);
cached!(NetworkPolicy, NetworkPolicy, crate::world::index_owner);
