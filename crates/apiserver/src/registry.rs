//! What the server serves: built-in resources plus the ones CRDs define, as one immutable snapshot that is replaced
//! when a CRD changes. Discovery, OpenAPI, tables and the verbs all read from here.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use arc_swap::ArcSwap;

mod builtins;
mod crd;
mod descriptor;

pub(crate) use crd::compare_versions;
pub use crd::compile_crd;
pub use descriptor::{
    Conversion, Origin, PrinterColumn, Resource, ScaleSubresource, SelectableField, Subresources, Version,
    WebhookClient,
};

/// One resource in one of its versions: what a request's path selects.
#[derive(Clone)]
pub struct Endpoint {
    pub resource: Arc<Resource>,
    index: usize,
}

impl Endpoint {
    pub fn version(&self) -> &Version {
        &self.resource.versions[self.index]
    }

    /// `apiVersion` of objects read and written here.
    pub fn api_version(&self) -> &str {
        &self.version().api_version
    }
}

/// An immutable view of everything served.
#[derive(Default)]
pub struct Snapshot {
    resources: Vec<Arc<Resource>>,
    by_path: HashMap<(String, String, String), Endpoint>,
}

impl Snapshot {
    fn build(builtins: &[Arc<Resource>], custom: &BTreeMap<String, Arc<Resource>>) -> Self {
        let resources: Vec<_> = builtins.iter().chain(custom.values()).cloned().collect();
        let mut by_path = HashMap::new();
        for resource in &resources {
            for (index, version) in resource.versions.iter().enumerate().filter(|(_, v)| v.served) {
                by_path.insert(
                    (resource.group.clone(), version.name.clone(), resource.plural.clone()),
                    Endpoint { resource: resource.clone(), index },
                );
            }
        }
        Self { resources, by_path }
    }

    /// Every resource, built-ins first, each with all its versions.
    pub fn resources(&self) -> &[Arc<Resource>] {
        &self.resources
    }

    /// The served endpoint for `/apis/{group}/{version}/{plural}`.
    pub fn endpoint(&self, group: &str, version: &str, plural: &str) -> Option<Endpoint> {
        self.by_path.get(&(group.to_owned(), version.to_owned(), plural.to_owned())).cloned()
    }

    /// The resource of a group and plural, in any version.
    pub fn resource(&self, group: &str, plural: &str) -> Option<&Arc<Resource>> {
        self.resources.iter().find(|r| r.group == group && r.plural == plural)
    }

    /// The resource whose objects have this group and kind (owner references name kinds).
    pub fn by_kind(&self, group: &str, kind: &str) -> Option<&Arc<Resource>> {
        self.resources.iter().find(|r| r.group == group && r.kind == kind)
    }

    /// The resource that owns a storage key.
    pub fn by_storage(&self, storage: &str) -> Option<&Arc<Resource>> {
        self.resources.iter().find(|r| &*r.storage == storage && !r.is_alias())
    }

    /// The endpoint of the version that a resource is stored in.
    pub fn stored(&self, resource: &Arc<Resource>) -> Endpoint {
        Endpoint { resource: resource.clone(), index: resource.storage_index() }
    }
}

/// The replaceable registry.
pub struct Registry {
    builtins: Vec<Arc<Resource>>,
    custom: parking_lot::Mutex<BTreeMap<String, Arc<Resource>>>,
    snapshot: ArcSwap<Snapshot>,
}

impl Default for Registry {
    fn default() -> Self {
        let builtins = builtins::all();
        let snapshot = ArcSwap::from_pointee(Snapshot::build(&builtins, &BTreeMap::new()));
        Self { builtins, custom: parking_lot::Mutex::default(), snapshot }
    }
}

impl Registry {
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Serves what a CRD defines, replacing what the CRD of that name defined before.
    pub fn put(&self, crd_name: &str, mut resource: Resource) {
        let mut custom = self.custom.lock();
        if let Some(earlier) = custom.get(crd_name) {
            resource.succeed(earlier);
        }
        custom.insert(crd_name.to_owned(), Arc::new(resource));
        self.snapshot.store(Arc::new(Snapshot::build(&self.builtins, &custom)));
    }

    pub fn remove(&self, crd_name: &str) {
        let mut custom = self.custom.lock();
        if custom.remove(crd_name).is_some() {
            self.snapshot.store(Arc::new(Snapshot::build(&self.builtins, &custom)));
        }
    }
}
