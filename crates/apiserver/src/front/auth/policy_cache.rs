//! Caches the compiled RBAC policy until a role or binding changes.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use serde_json::Value;

use super::rbac::{Policy, RbacObjects};
use crate::store::{Collection, Store};

const ROLES: &str = "rbac.authorization.k8s.io/roles";
const CLUSTER_ROLES: &str = "rbac.authorization.k8s.io/clusterroles";
const ROLE_BINDINGS: &str = "rbac.authorization.k8s.io/rolebindings";
const CLUSTER_ROLE_BINDINGS: &str = "rbac.authorization.k8s.io/clusterrolebindings";

struct Compiled {
    /// Versions of the four collections that the policy was compiled from.
    versions: [u64; 4],
    policy: Arc<Policy>,
}

pub(crate) struct PolicyCache {
    collections: [Arc<Collection>; 4],
    compiled: ArcSwapOption<Compiled>,
}

impl PolicyCache {
    pub(crate) fn new(store: Arc<Store>) -> Self {
        let collections =
            [ROLES, CLUSTER_ROLES, ROLE_BINDINGS, CLUSTER_ROLE_BINDINGS].map(|name| store.collection(&name.into()));
        Self { collections, compiled: ArcSwapOption::empty() }
    }

    pub(crate) fn current(&self) -> Arc<Policy> {
        // Versions are read before objects: after a change in between, the next request compiles again.
        let versions = self.collections.each_ref().map(|collection| collection.version());
        if let Some(compiled) = self.compiled.load_full().filter(|compiled| compiled.versions == versions) {
            return compiled.policy.clone();
        }
        let [roles, cluster_roles, role_bindings, cluster_role_bindings] =
            self.collections.each_ref().map(|collection| objects(collection));
        let objects = RbacObjects { roles, cluster_roles, role_bindings, cluster_role_bindings };
        let policy = Arc::new(Policy::compile(&objects));
        self.compiled.store(Some(Arc::new(Compiled { versions, policy: policy.clone() })));
        policy
    }
}

fn objects(collection: &Collection) -> Vec<Value> {
    collection.list("").iter().map(|object| object.parse()).collect()
}
