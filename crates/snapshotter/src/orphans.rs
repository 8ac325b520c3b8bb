//! Removes snapshots whose SandboxSnapshot is gone although the finalizer should have kept it: a client may remove
//! finalizers. Otherwise files would stay without an object, beyond quotas, and for a later namespace of the same name.

use std::collections::BTreeSet;
use std::sync::Arc;

use agent_sandbox_api::snapshot::SandboxSnapshot;
use futures::StreamExt;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Client};

use crate::reconcile::chain;
use crate::{KeptSnapshot, LayerStore};

/// Watches the objects until the future is dropped.
pub(crate) async fn remove_all(client: Client, store: Arc<dyn LayerStore>) {
    let objects: Api<SandboxSnapshot> = Api::all(client);
    let mut events = watch(objects, watcher::Config::default()).default_backoff().boxed();
    let mut kept = Vec::new();
    let mut listed = BTreeSet::new();
    while let Some(event) = events.next().await {
        match event {
            // Before the objects are listed: what is taken meanwhile has an object that the list may lack.
            Ok(Event::Init) => {
                listed.clear();
                kept = store.list().await.unwrap_or_else(|error| {
                    tracing::warn!(error = chain(&error), "Snapshots without an object cannot be looked for");
                    Vec::new()
                });
            }
            Ok(Event::InitApply(snapshot)) => {
                listed.insert(snapshot.uid().to_owned());
            }
            Ok(Event::InitDone) => {
                for orphan in orphans(std::mem::take(&mut kept), &listed) {
                    remove(&*store, &orphan).await;
                }
                listed.clear();
            }
            Ok(Event::Apply(_)) => {}
            Ok(Event::Delete(snapshot)) => {
                let [namespace, name, uid] = [snapshot.namespace(), snapshot.name(), snapshot.uid()].map(str::to_owned);
                remove(&*store, &KeptSnapshot { namespace, name, uid }).await;
            }
            Err(error) => tracing::debug!(%error, "The watch of snapshots was interrupted"),
        }
    }
}

/// The kept snapshots whose objects are not among the listed ones, by uid.
fn orphans(kept: Vec<KeptSnapshot>, listed: &BTreeSet<String>) -> impl Iterator<Item = KeptSnapshot> + '_ {
    kept.into_iter().filter(|snapshot| !listed.contains(&snapshot.uid))
}

async fn remove(store: &dyn LayerStore, snapshot: &KeptSnapshot) {
    if let Err(error) = store.remove(&snapshot.namespace, &snapshot.name, &snapshot.uid).await {
        let KeptSnapshot { namespace, name, .. } = snapshot;
        tracing::warn!(namespace, name, error = chain(&error), "A snapshot without an object cannot be removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_known_by_the_uid_of_its_object() {
        let kept = |name: &str, uid: &str| KeptSnapshot {
            namespace: "team".to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
        };
        let listed = BTreeSet::from(["u1".to_owned(), "u3".to_owned()]);
        let all = vec![kept("first", "u1"), kept("second", "u2"), kept("third", "u0")];
        let found: Vec<_> = orphans(all, &listed).map(|orphan| orphan.name).collect();
        assert_eq!(found, ["second", "third"], "u3 may be the next object with the name third");
    }
}
