//! Tracks the owners of Pods, for which writable layers are kept, and reports owners that no longer exist.
//!
//! Each controlling owner of a Pod is recorded on disk before anything is kept for it, and its kind is watched, so that
//! its layers are removed with the owner even when no Pod is left and after a restart of the node.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use futures::StreamExt;
use futures::stream::{BoxStream, SelectAll};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::{WatchStreamExt, watcher};
use serde::{Deserialize, Serialize};
use tracing::{debug, warn};

use crate::kubelet::pod_sandbox;
use crate::persistent_map::PersistentMap;

/// Name of the file in the data folder in which owners are recorded.
pub(super) const FILE_NAME: &str = "owners.ledger";

/// The stored reference to an owner.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
struct OwnerRecord {
    api_version: String,
    kind: String,
    namespace: String,
    name: String,
}

/// A change of an owner.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum OwnerEvent {
    /// The owner with this key no longer exists.
    Gone(String),
}

type Kind = (String, String);
/// Namespace, for objects that have one, and uid.
type Identity = (Option<String>, String);
type OwnerWatch = BoxStream<'static, (Kind, Result<watcher::Event<DynamicObject>, watcher::Error>)>;

pub(super) struct Owners {
    client: kube::Client,
    map: PersistentMap,
    records: BTreeMap<String, OwnerRecord>,
    gone: BTreeSet<String>,
    watches: SelectAll<OwnerWatch>,
    watched: BTreeSet<Kind>,
    listed: BTreeMap<Kind, BTreeSet<Identity>>,
    pending: Vec<OwnerEvent>,
}

impl Owners {
    pub(super) fn open(client: kube::Client, data_dir: &Path) -> io::Result<Self> {
        let map = PersistentMap::open(data_dir.join(FILE_NAME), &data_dir.join("owners"))?;
        let known = map.entries().iter();
        let records = known.filter_map(|(key, text)| Some((key.clone(), serde_json::from_str(text).ok()?))).collect();
        Ok(Self {
            client,
            map,
            records,
            gone: BTreeSet::new(),
            watches: SelectAll::new(),
            watched: BTreeSet::new(),
            listed: BTreeMap::new(),
            pending: Vec::new(),
        })
    }

    /// Starts the watches, once the Pods are listed. `kept` are the keys for which the runtime keeps layers.
    pub(super) fn start(&mut self, kept: Vec<String>) {
        let kinds: BTreeSet<Kind> = self.records.values().map(|n| (n.api_version.clone(), n.kind.clone())).collect();
        for kind in kinds {
            self.watch(kind);
        }
        // Owners are recorded before anything is kept for them, so a key without a record belongs to a deleted Pod that
        // had no owner.
        let strays = kept.into_iter().filter(|owner| !self.records.contains_key(owner));
        self.pending.extend(strays.map(OwnerEvent::Gone));
    }

    /// Records a Pod's controlling owner.
    pub(super) fn record(&mut self, pod: &Pod) {
        let Some(owner) = pod_sandbox::controller(pod) else { return };
        let key = pod_sandbox::owner(pod);
        if self.records.contains_key(&key) {
            return;
        }
        let record = OwnerRecord {
            api_version: owner.api_version.clone(),
            kind: owner.kind.clone(),
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: owner.name.clone(),
        };
        let text = serde_json::to_string(&record).map_err(io::Error::other);
        if let Err(error) = text.and_then(|text| self.map.set(&key, &text)) {
            warn!(%error, owner = key, "Could not record the owner of a Pod");
        }
        self.watch((record.api_version.clone(), record.kind.clone()));
        self.records.insert(key, record);
    }

    fn watch(&mut self, kind: Kind) {
        if !self.watched.insert(kind.clone()) {
            return;
        }
        let (group, version) = kind.0.split_once('/').unwrap_or(("", &kind.0));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &kind.1));
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        let events = watcher(api, watcher::Config::default()).default_backoff();
        self.watches.push(events.map(move |event| (kind.clone(), event)).boxed());
    }

    /// The next owner that no longer exists. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<OwnerEvent> {
        loop {
            if let Some(event) = self.pending.pop() {
                return Some(event);
            }
            let Some((kind, event)) = self.watches.next().await else { return std::future::pending().await };
            match event {
                Ok(watcher::Event::Init) => {
                    self.listed.insert(kind, BTreeSet::new());
                }
                Ok(watcher::Event::InitApply(object)) => {
                    self.listed.entry(kind).or_default().insert(identity(object));
                }
                Ok(watcher::Event::InitDone) => self.mark_missing(&kind),
                Ok(watcher::Event::Delete(object)) => {
                    let gone = identity(object);
                    let is_key = |key: &&String| possible_identities(key).is_some_and(|both| both.contains(&gone));
                    let keys: Vec<_> = self.records.keys().filter(is_key).cloned().collect();
                    keys.into_iter().for_each(|key| self.mark_gone(key));
                }
                Ok(watcher::Event::Apply(_)) => {}
                Err(error) => debug!(%error, kind = kind.1, "Watch of owners was interrupted"),
            }
        }
    }

    fn mark_missing(&mut self, kind: &Kind) {
        let present = self.listed.remove(kind).unwrap_or_default();
        let of_kind = self.records.iter().filter(|(_, n)| n.api_version == kind.0 && n.kind == kind.1);
        let is_here =
            |key: &String| possible_identities(key).is_some_and(|both| both.iter().any(|one| present.contains(one)));
        let missing: Vec<String> = of_kind.map(|(key, _)| key.clone()).filter(|key| !is_here(key)).collect();
        for key in missing {
            self.mark_gone(key);
        }
    }

    fn mark_gone(&mut self, key: String) {
        if self.records.contains_key(&key) && self.gone.insert(key.clone()) {
            self.pending.push(OwnerEvent::Gone(key));
        }
    }

    pub(super) fn is_gone(&self, owner: &str) -> bool {
        self.gone.contains(owner)
    }

    /// Removes an owner for which nothing is kept any more.
    pub(super) fn forget(&mut self, owner: &str) {
        self.records.remove(owner);
        self.gone.remove(owner);
        if let Err(error) = self.map.remove(owner) {
            warn!(%error, owner, "Could not remove the record of an owner");
        }
    }
}

fn identity(object: DynamicObject) -> Identity {
    (object.metadata.namespace, object.metadata.uid.unwrap_or_default())
}

/// The objects an owner key can refer to: one in the key's namespace, or a cluster-scoped one.
fn possible_identities(key: &str) -> Option<[Identity; 2]> {
    let (namespace, uid) = key.rsplit_once('.')?;
    Some([(Some(namespace.to_owned()), uid.to_owned()), (None, uid.to_owned())])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_of_one_namespace_is_not_an_owner_in_another() {
        let means = |key: &str, namespace: Option<&str>| {
            possible_identities(key).is_some_and(|both| both.contains(&(namespace.map(str::to_owned), "u".to_owned())))
        };
        assert!(means("a.u", Some("a")) && !means("b.u", Some("a")) && !means("a.v", Some("a")));
        assert!(means("a.u", None) && means("b.u", None) && !means("a.v", None));
        assert!(!means("pod-u", None), "a Pod's own key refers to no object");
    }
}
