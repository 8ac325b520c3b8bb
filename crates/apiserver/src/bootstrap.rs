//! What a new cluster contains: the namespaces every client expects.

use std::sync::Arc;

use serde_json::json;

use crate::{
    server::{Core, OpenError},
    store::{Change, CommitError, Draft, Expect, Write},
    verbs::now,
};

const NAMESPACES: &[&str] = &["default", "kube-system", "kube-public", "kube-node-lease"];

pub(crate) async fn run(core: &Arc<Core>) -> Result<(), OpenError> {
    let registry = core.registry.snapshot();
    let namespaces = registry.resource("", "namespaces").expect("namespaces are built in");
    for name in NAMESPACES {
        let object = json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": name,
                "uid": uuid::Uuid::new_v4().to_string(),
                "creationTimestamp": now(),
                "labels": { "kubernetes.io/metadata.name": name },
            },
            "spec": { "finalizers": ["kubernetes"] },
            "status": { "phase": "Active" },
        });
        let draft = Draft::new(namespaces, &object);
        let write = Write {
            storage: namespaces.storage.clone(),
            key: draft.key.clone(),
            expect: Expect::Absent,
            change: Change::Put(draft),
            durable: true,
        };
        match core.store.commit(write).await {
            Ok(_) | Err(CommitError::Exists) => {}
            Err(error) => return Err(OpenError::Bootstrap(error)),
        }
    }
    Ok(())
}
