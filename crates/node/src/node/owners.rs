//! Owners of Pods: for whom layers are kept, and when they are gone.
//!
//! Each controlling owner of a Pod is noted on disk before anything is kept for it, and its kind is watched, so that
//! what is kept goes with the owner even when no Pod is left, and after a restart of the node.

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

use crate::ledger::Ledger;
use crate::pods::sandbox;

/// Where owners are noted.
pub(super) const LEDGER: &str = "owners.ledger";

/// What is noted about an owner.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
struct Note {
    api_version: String,
    kind: String,
    namespace: String,
    name: String,
}

/// An owner went away.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum OwnerEvent {
    Gone(String),
}

type Kind = (String, String);
/// Namespace, for objects that have one, and uid.
type Identity = (Option<String>, String);
type Watch = BoxStream<'static, (Kind, Result<watcher::Event<DynamicObject>, watcher::Error>)>;

pub(super) struct Owners {
    client: kube::Client,
    ledger: Ledger,
    notes: BTreeMap<String, Note>,
    gone: BTreeSet<String>,
    watches: SelectAll<Watch>,
    watched: BTreeSet<Kind>,
    listed: BTreeMap<Kind, BTreeSet<Identity>>,
    ready: Vec<OwnerEvent>,
}

impl Owners {
    pub(super) fn open(client: kube::Client, data_dir: &Path) -> io::Result<Self> {
        let ledger = Ledger::open(data_dir.join(LEDGER), &data_dir.join("owners"))?;
        let known = ledger.entries().iter();
        let notes = known.filter_map(|(key, text)| Some((key.clone(), serde_json::from_str(text).ok()?))).collect();
        Ok(Self {
            client,
            ledger,
            notes,
            gone: BTreeSet::new(),
            watches: SelectAll::new(),
            watched: BTreeSet::new(),
            listed: BTreeMap::new(),
            ready: Vec::new(),
        })
    }

    /// Begins to watch, once the Pods are known. `kept` are the owners for whom the runtime keeps something.
    pub(super) fn start(&mut self, kept: Vec<String>) {
        let kinds: BTreeSet<Kind> = self.notes.values().map(|n| (n.api_version.clone(), n.kind.clone())).collect();
        for kind in kinds {
            self.watch(kind);
        }
        // Nothing is kept before it is noted, so what has no note belongs to a Pod without an owner that is gone.
        let strays = kept.into_iter().filter(|owner| !self.notes.contains_key(owner));
        self.ready.extend(strays.map(OwnerEvent::Gone));
    }

    /// Takes note of a Pod's controlling owner.
    pub(super) fn note(&mut self, pod: &Pod) {
        let Some(owner) = sandbox::controller(pod) else { return };
        let key = sandbox::owner(pod);
        if self.notes.contains_key(&key) {
            return;
        }
        let note = Note {
            api_version: owner.api_version.clone(),
            kind: owner.kind.clone(),
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: owner.name.clone(),
        };
        let text = serde_json::to_string(&note).map_err(io::Error::other);
        if let Err(error) = text.and_then(|text| self.ledger.set(&key, &text)) {
            warn!(%error, owner = key, "Could not note the owner of a Pod");
        }
        self.watch((note.api_version.clone(), note.kind.clone()));
        self.notes.insert(key, note);
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

    /// The next owner that went away. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<OwnerEvent> {
        loop {
            if let Some(event) = self.ready.pop() {
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
                Ok(watcher::Event::InitDone) => self.compare(&kind),
                Ok(watcher::Event::Delete(object)) => {
                    let gone = identity(object);
                    let is_key = |key: &&String| meanings(key).is_some_and(|both| both.contains(&gone));
                    let keys: Vec<_> = self.notes.keys().filter(is_key).cloned().collect();
                    keys.into_iter().for_each(|key| self.went(key));
                }
                Ok(watcher::Event::Apply(_)) => {}
                Err(error) => debug!(%error, kind = kind.1, "Watch of owners was interrupted"),
            }
        }
    }

    fn compare(&mut self, kind: &Kind) {
        let present = self.listed.remove(kind).unwrap_or_default();
        let of_kind = self.notes.iter().filter(|(_, n)| n.api_version == kind.0 && n.kind == kind.1);
        let is_here = |key: &String| meanings(key).is_some_and(|both| both.iter().any(|one| present.contains(one)));
        let missing: Vec<String> = of_kind.map(|(key, _)| key.clone()).filter(|key| !is_here(key)).collect();
        for key in missing {
            self.went(key);
        }
    }

    fn went(&mut self, key: String) {
        if self.notes.contains_key(&key) && self.gone.insert(key.clone()) {
            self.ready.push(OwnerEvent::Gone(key));
        }
    }

    pub(super) fn is_gone(&self, owner: &str) -> bool {
        self.gone.contains(owner)
    }

    /// Nothing is kept for this owner any more.
    pub(super) fn forget(&mut self, owner: &str) {
        self.notes.remove(owner);
        self.gone.remove(owner);
        if let Err(error) = self.ledger.remove(owner) {
            warn!(%error, owner, "Could not forget the owner of a Pod");
        }
    }
}

fn identity(object: DynamicObject) -> Identity {
    (object.metadata.namespace, object.metadata.uid.unwrap_or_default())
}

/// The objects an owner's key may mean: one in its namespace, or one without a namespace.
fn meanings(key: &str) -> Option<[Identity; 2]> {
    let (namespace, uid) = key.rsplit_once('.')?;
    Some([(Some(namespace.to_owned()), uid.to_owned()), (None, uid.to_owned())])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_of_one_namespace_is_no_owner_in_another() {
        let means = |key: &str, namespace: Option<&str>| {
            meanings(key).is_some_and(|both| both.contains(&(namespace.map(str::to_owned), "u".to_owned())))
        };
        assert!(means("a.u", Some("a")) && !means("b.u", Some("a")) && !means("a.v", Some("a")));
        assert!(means("a.u", None) && means("b.u", None) && !means("a.v", None));
        assert!(!means("pod-u", None), "a Pod's own key means no object");
    }
}
