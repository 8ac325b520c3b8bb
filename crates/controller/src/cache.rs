//! The controller's copy of the cluster: objects in compact form, one cache per kind with its indexes, the warm
//! candidates, and the reflectors that keep all of it up to date.

mod candidates;
mod index;
pub(crate) mod intern;
mod kind_cache;
mod kinds;
mod object;
pub mod reflector;
mod store;
mod world;

pub use self::{
    candidates::{Candidates, Grade, Reserved},
    index::IndexKey,
    kind_cache::{Delta, KindCache},
    kinds::{Change, ClusterCache, Kind, KindVisitor, Object},
    object::{
        Cached, Key, Meta, ObjectMetadata, PackedMap, Pod, PodCondition, PodIp, PodSpec, PodStatus, Pvc, Sandbox,
        Service, ServicePort, ServiceSpec,
    },
    store::{Queues, ReconcilerKind, Route, Store, WorkItem},
    world::CacheUpdate,
};
