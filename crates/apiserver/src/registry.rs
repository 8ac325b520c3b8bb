//! The resources that the server serves: the built-in ones plus those that CRDs define, as one immutable snapshot that
//! is replaced when a CRD changes. Discovery, OpenAPI, tables and the verbs all read from it.

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

/// One resource in one of its versions, as selected by a request path.
#[derive(Clone)]
pub struct Endpoint {
    pub resource: Arc<Resource>,
    index: usize,
}

impl Endpoint {
    pub fn version(&self) -> &Version {
        &self.resource.versions[self.index]
    }

    /// `apiVersion` of objects read and written at this endpoint.
    pub fn api_version(&self) -> &str {
        &self.version().api_version
    }
}

/// An immutable view of all served resources.
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

    /// All resources, built-in ones first, each with all its versions.
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

    /// The resource with this group and kind. Owner references contain kinds, not plurals.
    pub fn by_kind(&self, group: &str, kind: &str) -> Option<&Arc<Resource>> {
        self.resources.iter().find(|r| r.group == group && r.kind == kind)
    }

    /// The resource whose objects are in the collection `storage`; never an alias.
    pub fn by_storage(&self, storage: &str) -> Option<&Arc<Resource>> {
        self.resources.iter().find(|r| &*r.storage == storage && !r.is_alias())
    }

    /// The endpoint of a resource's storage version.
    pub fn stored(&self, resource: &Arc<Resource>) -> Endpoint {
        Endpoint { resource: resource.clone(), index: resource.storage_index() }
    }
}

/// Holds the current snapshot, and replaces it when a CRD changes.
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

    /// Adds the resource that a CRD defines, replacing an earlier one of the same CRD.
    pub fn put(&self, crd_name: &str, mut resource: Resource) {
        let mut custom = self.custom.lock();
        if let Some(earlier) = custom.get(crd_name) {
            resource.inherit_schema_version(earlier);
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
