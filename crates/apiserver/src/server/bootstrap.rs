//! Creates the namespaces and cluster roles that every cluster has.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Core, OpenError};
use crate::{
    front::auth::defaults,
    store::{Change, CommitError, Draft, Expect, ObjectKey, Write},
    verbs::now,
};

const NAMESPACES: &[&str] = &["default", "kube-system", "kube-public", "kube-node-lease"];

pub(crate) async fn run(core: &Arc<Core>) -> Result<(), OpenError> {
    let namespaces = NAMESPACES.iter().map(|name| {
        let object = json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": { "name": name, "labels": { "kubernetes.io/metadata.name": name } },
            "spec": { "finalizers": ["kubernetes"] },
            "status": { "phase": "Active" },
        });
        ("", "namespaces", object)
    });
    let roles = defaults::cluster_roles().into_iter().map(|role| ("rbac.authorization.k8s.io", "clusterroles", role));
    // Concurrent, so that they share one group commit.
    let writes = namespaces.chain(roles).map(|(group, plural, object)| create(core, group, plural, object));
    futures::future::try_join_all(writes).await.map(drop)
}

/// Stores an object unless one of that name exists. Rules of an existing cluster role are replaced when they differ: a
/// data folder of an earlier version may grant more than this one, and rules of aggregated roles are not for users to edit.
async fn create(core: &Arc<Core>, group: &str, plural: &str, mut object: Value) -> Result<(), OpenError> {
    let registry = core.registry.snapshot();
    let resource = registry.resource(group, plural).expect("only built-in kinds are created here");
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let mut expect = Expect::Absent;
    if let Some(stored) = core.store.get(&resource.storage, &ObjectKey::new("", &name)) {
        let mut current: Value = stored.parse();
        if object["rules"].is_null() || current["rules"] == object["rules"] {
            return Ok(());
        }
        current["rules"] = object["rules"].take();
        object = current;
        expect = Expect::Version(stored.version);
    } else {
        object["metadata"]["uid"] = uuid::Uuid::new_v4().to_string().into();
        object["metadata"]["creationTimestamp"] = now().into();
    }
    let draft = Draft::new(resource, &object);
    let write = Write {
        storage: resource.storage.clone(),
        key: draft.key.clone(),
        expect,
        change: Change::Put(draft),
        durable: true,
    };
    match core.store.commit(write).await {
        Ok(_) | Err(CommitError::Exists) => Ok(()),
        Err(error) => Err(OpenError::Bootstrap(error)),
    }
}
