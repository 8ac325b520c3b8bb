//! The list of kinds the controller works with. One row per kind generates its names and URL, its cache, its index and
//! its change: adding a kind is one row here, its routes, and its reflector's scope in [`Kind::is_child`] or
//! [`Kind::is_extension`].

use std::sync::Arc;

use agent_sandbox_api::v1beta1::{SandboxClaim, SandboxTemplate, SandboxWarmPool};
use k8s_openapi::{api::networking::v1::NetworkPolicy, apimachinery::pkg::apis::meta::v1::ObjectMeta};

use super::{
    Cached, Candidates, Delta, IndexKey, Key, KindCache, Meta, Pod, Pvc, Sandbox, Service,
    index::{index_claim, index_owner, index_pool, index_sandbox, index_template},
    object::compact_metadata,
};

macro_rules! kinds {
    (
        cached: {
            $($kind:ident($group_version:literal, $name:literal, $plural:literal): $type:ty {
                cache: $cache:ident, meta: $meta:ty, index: $index:path, compact: $compact:expr
            })*
        }
        written_only: { $($other:ident($other_group_version:literal, $other_name:literal, $other_plural:literal))* }
    ) => {
        /// Every kind the controller reads or writes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Kind {
            $($kind,)*
            $($other,)*
        }

        impl Kind {
            /// The kinds that are cached.
            pub const CACHED: &'static [Kind] = &[$(Kind::$kind),*];

            pub fn group_version(self) -> &'static str {
                match self {
                    $(Kind::$kind => $group_version,)*
                    $(Kind::$other => $other_group_version,)*
                }
            }

            pub fn name(self) -> &'static str {
                match self {
                    $(Kind::$kind => $name,)*
                    $(Kind::$other => $other_name,)*
                }
            }

            pub fn plural(self) -> &'static str {
                match self {
                    $(Kind::$kind => $plural,)*
                    $(Kind::$other => $other_plural,)*
                }
            }

            /// Calls the visitor with the type of this kind; `None` for kinds that are not cached.
            pub fn visit<V: KindVisitor>(self, visitor: V) -> Option<V::Output> {
                match self {
                    $(Kind::$kind => Some(visitor.visit::<$type>()),)*
                    $(Kind::$other => None,)*
                }
            }
        }

        /// An object of any cached kind, shared with the store.
        #[derive(Clone, Debug)]
        pub enum Object {
            $($kind(Arc<$type>),)*
        }

        impl Object {
            pub fn kind(&self) -> Kind {
                match self {
                    $(Object::$kind(_) => Kind::$kind,)*
                }
            }

            pub fn label(&self, key: &str) -> Option<&str> {
                match self {
                    $(Object::$kind(object) => object.label(key),)*
                }
            }
        }

        /// A change of one object, as the routes see it that decide which reconcilers to wake.
        #[derive(Clone, Debug)]
        pub enum Change {
            $($kind(Delta<$type>),)*
        }

        /// Everything the controller knows: one cache per kind, and the warm candidates.
        #[derive(Default)]
        pub struct ClusterCache {
            $(pub $cache: KindCache<$type>,)*
            pub candidates: Candidates,
        }

        impl ClusterCache {
            /// Overlays an object; `ours`: it is the response to one of this controller's writes.
            pub(super) fn overlay(&mut self, object: &Object, ours: bool) -> Option<Change> {
                match object {
                    $(Object::$kind(object) => self.overlay_typed(object, ours),)*
                }
            }
        }

        $(
            impl Cached for $type {
                type Meta = $meta;

                const KIND_OF: Kind = Kind::$kind;

                fn object_metadata(&self) -> &$meta {
                    &self.metadata
                }

                fn index(&self) -> Vec<IndexKey> {
                    $index(self)
                }

                fn compact(&mut self) {
                    let compact: fn(&mut Self) = $compact;
                    compact(self);
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

                fn cache(world: &ClusterCache) -> &KindCache<Self> {
                    &world.$cache
                }

                fn cache_mut(world: &mut ClusterCache) -> &mut KindCache<Self> {
                    &mut world.$cache
                }

                fn change(delta: Delta<Self>) -> Change {
                    Change::$kind(delta)
                }
            }
        )*
    };
}

kinds! {
    cached: {
        Sandbox("agents.x-k8s.io/v1beta1", "Sandbox", "sandboxes"): Sandbox {
            cache: sandboxes, meta: Meta, index: index_sandbox, compact: Sandbox::compact_fields
        }
        Claim("extensions.agents.x-k8s.io/v1beta1", "SandboxClaim", "sandboxclaims"): SandboxClaim {
            cache: claims, meta: ObjectMeta, index: index_claim, compact: |claim| compact_metadata(&mut claim.metadata)
        }
        Pool("extensions.agents.x-k8s.io/v1beta1", "SandboxWarmPool", "sandboxwarmpools"): SandboxWarmPool {
            cache: pools, meta: ObjectMeta, index: index_pool, compact: |pool| compact_metadata(&mut pool.metadata)
        }
        Template("extensions.agents.x-k8s.io/v1beta1", "SandboxTemplate", "sandboxtemplates"): SandboxTemplate {
            cache: templates, meta: ObjectMeta, index: index_template,
            compact: |template| compact_metadata(&mut template.metadata)
        }
        Pod("v1", "Pod", "pods"): Pod {
            cache: pods, meta: Meta, index: index_owner, compact: Pod::compact_fields
        }
        Pvc("v1", "PersistentVolumeClaim", "persistentvolumeclaims"): Pvc {
            cache: pvcs, meta: Meta, index: index_owner, compact: |_| {}
        }
        Service("v1", "Service", "services"): Service {
            cache: services, meta: Meta, index: index_owner, compact: |_| {}
        }
        NetworkPolicy("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"): NetworkPolicy {
            cache: policies, meta: ObjectMeta, index: index_owner,
            compact: |policy| compact_metadata(&mut policy.metadata)
        }
    }
    written_only: { Event("events.k8s.io/v1", "Event", "events") }
}

/// Code for every cached kind, called with the type of one of them.
pub trait KindVisitor {
    type Output;

    fn visit<K: Cached>(self) -> Self::Output;
}

impl Kind {
    /// Whether Sandboxes own objects of this kind, so that the tracking label may restrict its cache.
    pub fn is_child(self) -> bool {
        matches!(self, Kind::Pod | Kind::Pvc | Kind::Service)
    }

    /// Whether only the claim, pool and template reconcilers need this kind.
    pub fn is_extension(self) -> bool {
        matches!(self, Kind::Claim | Kind::Pool | Kind::Template | Kind::NetworkPolicy)
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

impl Object {
    /// Decodes a response body of the given kind; `None` for kinds that are not cached.
    pub fn decode(kind: Kind, body: &[u8]) -> Result<Option<Self>, serde_json::Error> {
        struct Decode<'a>(&'a [u8]);

        impl KindVisitor for Decode<'_> {
            type Output = Result<Object, serde_json::Error>;

            fn visit<K: Cached>(self) -> Self::Output {
                let mut object: K = serde_json::from_slice(self.0)?;
                object.compact();
                Ok(K::into_object(Arc::new(object)))
            }
        }
        kind.visit(Decode(body)).transpose()
    }

    /// The object as its own type; `None` when it is of another kind.
    pub fn cast<K: Cached>(&self) -> Option<Arc<K>> {
        K::from_object(self)
    }
}

impl ClusterCache {
    /// Applies that the API no longer has this uid.
    pub fn forget(&mut self, kind: Kind, key: &Key, uid: &str) -> Option<Change> {
        struct Forget<'a>(&'a mut ClusterCache, &'a Key, &'a str);

        impl KindVisitor for Forget<'_> {
            type Output = Option<Change>;

            fn visit<K: Cached>(self) -> Self::Output {
                let Forget(world, key, uid) = self;
                let delta = K::cache_mut(world).forget(key, uid)?;
                Some(world.update_candidates(delta))
            }
        }
        kind.visit(Forget(self, key, uid)).flatten()
    }
}
