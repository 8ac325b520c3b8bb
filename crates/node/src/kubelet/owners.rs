//! Tracks the owners of Pods, for which writable layers are kept, and reports owners that no longer exist.
//!
//! Each controlling owner of a Pod is recorded on disk before anything is kept for it, and its kind is watched, so that
//! its layers are removed with the owner even when no Pod is left and after a restart of the node. The API does not
//! verify owner references: an owner of a kind that the API does not serve does not exist.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use futures::StreamExt;
use futures::stream::{self, BoxStream, SelectAll};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use kube::discovery::{self, verbs};
use kube::error::DiscoveryError;
use kube::runtime::{WatchStreamExt, watcher};
use serde::{Deserialize, Serialize};
use tracing::{debug, warn};

use crate::kubelet::pod_sandbox::{self, OwnerKind};
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

impl OwnerRecord {
    fn kind(&self) -> OwnerKind {
        OwnerKind::new(&self.api_version, &self.kind)
    }
}

/// A change of an owner.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum OwnerEvent {
    /// The owner with this key no longer exists.
    Gone(String),
}

/// Namespace, for objects that have one, and uid.
type Identity = (Option<String>, String);
/// A change of the objects of a kind; `None` when the API serves no such kind, so that it has no objects.
type KindEvent = Option<watcher::Event<DynamicObject>>;
type OwnerWatch = BoxStream<'static, (OwnerKind, KindEvent)>;

pub(super) struct Owners {
    client: kube::Client,
    map: PersistentMap,
    records: BTreeMap<String, OwnerRecord>,
    gone: BTreeSet<String>,
    watches: SelectAll<OwnerWatch>,
    watched: BTreeSet<OwnerKind>,
    listed: BTreeMap<OwnerKind, BTreeSet<Identity>>,
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

    /// Starts the watches, once the Pods are listed. `kept` are the keys for which the runtime keeps layers, or the
    /// node grants of folders.
    pub(super) fn start(&mut self, kept: BTreeSet<String>) {
        for record in self.records.values().cloned().collect::<Vec<_>>() {
            self.watch(&record);
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
        self.records.insert(key, record.clone());
        self.watch(&record);
    }

    /// Watches the kind of an owner. All versions of a kind have the same objects and share one watch.
    fn watch(&mut self, record: &OwnerRecord) {
        let kind = record.kind();
        if self.watched.contains(&kind) {
            return;
        }
        let version = record.api_version.rsplit_once('/').map_or(&*record.api_version, |(_, version)| version);
        let is_group = kind.group.is_empty() || kind.group.split('.').all(is_name);
        if !(is_group && is_name(version) && is_name(&kind.kind)) {
            self.mark_kind_gone(&kind);
            return;
        }
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(&kind.group, version, &kind.kind));
        let watch = KindWatch::new(self.client.clone(), kind.clone(), resource);
        self.watched.insert(kind);
        self.watches.push(stream::unfold(watch, KindWatch::next).boxed());
    }

    /// The next owner that no longer exists. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<OwnerEvent> {
        loop {
            if let Some(event) = self.pending.pop() {
                return Some(event);
            }
            let Some((kind, event)) = self.watches.next().await else { return std::future::pending().await };
            let Some(event) = event else {
                self.watched.remove(&kind);
                self.listed.remove(&kind);
                self.mark_kind_gone(&kind);
                continue;
            };
            match event {
                watcher::Event::Init => {
                    self.listed.insert(kind, BTreeSet::new());
                }
                watcher::Event::InitApply(object) => {
                    self.listed.entry(kind).or_default().insert(identity(object));
                }
                watcher::Event::InitDone => self.mark_missing(&kind),
                watcher::Event::Delete(object) => {
                    let gone = identity(object);
                    let is_key = |key: &&String| possible_identities(key).is_some_and(|both| both.contains(&gone));
                    let keys: Vec<_> = self.records.keys().filter(is_key).cloned().collect();
                    keys.into_iter().for_each(|key| self.mark_gone(key));
                }
                watcher::Event::Apply(_) => {}
            }
        }
    }

    fn mark_kind_gone(&mut self, kind: &OwnerKind) {
        self.mark_all_but(kind, &BTreeSet::new());
    }

    fn mark_missing(&mut self, kind: &OwnerKind) {
        let present = self.listed.remove(kind).unwrap_or_default();
        self.mark_all_but(kind, &present);
    }

    fn mark_all_but(&mut self, kind: &OwnerKind, present: &BTreeSet<Identity>) {
        let of_kind = self.records.iter().filter(|(_, record)| record.kind() == *kind);
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

/// The watch of one kind.
struct KindWatch {
    client: kube::Client,
    kind: OwnerKind,
    /// What is watched. Its version and plural are guesses until discovery has named them.
    resource: ApiResource,
    objects: BoxStream<'static, Result<watcher::Event<DynamicObject>, watcher::Error>>,
    unserved: bool,
}

impl KindWatch {
    fn new(client: kube::Client, kind: OwnerKind, resource: ApiResource) -> Self {
        let objects = objects(&client, &resource);
        Self { client, kind, resource, objects, unserved: false }
    }

    /// The next event and the watch after it; the watch ends when the API does not serve the kind.
    async fn next(mut self) -> Option<((OwnerKind, KindEvent), Self)> {
        if self.unserved {
            return None;
        }
        loop {
            let error = match self.objects.next().await? {
                Ok(event) => return Some(((self.kind.clone(), Some(event)), self)),
                Err(error) => error,
            };
            debug!(%error, kind = self.kind.kind, "Watch of owners was interrupted");
            if !is_not_served(&error) {
                continue;
            }
            match served_resource(&self.client, &self.kind).await {
                Ok(Some(resource)) if resource != self.resource => {
                    self.objects = objects(&self.client, &resource);
                    self.resource = resource;
                }
                // The watch goes on with its backoff.
                Ok(Some(_)) => {}
                Ok(None) => {
                    self.unserved = true;
                    return Some(((self.kind.clone(), None), self));
                }
                Err(error) => debug!(%error, kind = self.kind.kind, "Could not ask whether the API serves a kind"),
            }
        }
    }
}

fn objects(
    client: &kube::Client,
    resource: &ApiResource,
) -> BoxStream<'static, Result<watcher::Event<DynamicObject>, watcher::Error>> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), resource);
    watcher(api, watcher::Config::default()).default_backoff().boxed()
}

/// Whether a watch failed because its path is not served (404), or not for lists (405). A node that may not list a
/// kind, and an API that is unavailable, do not say whether the kind exists.
fn is_not_served(error: &watcher::Error) -> bool {
    use watcher::Error::{InitialListFailed, WatchStartFailed};
    let (InitialListFailed(error) | WatchStartFailed(error)) = error else { return false };
    matches!(error, kube::Error::Api(status) if matches!(status.code, 404 | 405))
}

/// The resource of a kind in any version that the API serves and that can be watched; `None` if there is none.
async fn served_resource(client: &kube::Client, kind: &OwnerKind) -> kube::Result<Option<ApiResource>> {
    let group = match discovery::group(client, &kind.group).await {
        Err(kube::Error::Discovery(DiscoveryError::MissingApiGroup(_))) => return Ok(None),
        other => other?,
    };
    let mut resources = group.resources_by_stability().into_iter();
    let found = resources.find(|(resource, can)| {
        resource.kind == kind.kind && can.supports_operation(verbs::LIST) && can.supports_operation(verbs::WATCH)
    });
    Ok(found.map(|(resource, _)| resource))
}

/// Whether a text can be a part of a group, a version or a kind. The API accepts any text in an owner reference, and
/// these become parts of a request's path.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
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
    use http::{Request, Response, StatusCode};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    /// A client of an API that answers these paths, and others with 404.
    fn client(answers: Vec<(&'static str, StatusCode, Value)>) -> kube::Client {
        let answer = move |request: Request<Body>| {
            let found = answers.iter().find(|(path, ..)| *path == request.uri().path());
            let (status, body) = found.map_or((StatusCode::NOT_FOUND, Value::Null), |(_, s, b)| (*s, b.clone()));
            let response = Response::builder().status(status).body(Body::from(body.to_string().into_bytes()));
            std::future::ready(response)
        };
        kube::Client::new(tower::service_fn(answer), "default")
    }

    fn failure(code: u16) -> kube::Error {
        let status = json!({"status": "Failure", "code": code, "message": "m", "reason": "r"});
        kube::Error::Api(serde_json::from_value(status).unwrap())
    }

    #[test]
    fn only_a_path_that_is_not_served_raises_doubt_about_a_kind() {
        for (code, wanted) in [(404, true), (405, true), (401, false), (403, false), (429, false), (500, false)] {
            assert_eq!(is_not_served(&watcher::Error::InitialListFailed(failure(code))), wanted, "{code}");
            assert_eq!(is_not_served(&watcher::Error::WatchStartFailed(failure(code))), wanted, "{code}");
        }
        assert!(!is_not_served(&watcher::Error::NoResourceVersion));
    }

    #[tokio::test]
    async fn a_kind_exists_in_any_version_and_with_any_plural_that_can_be_watched() {
        let groups = json!({"groups": [{"name": "x.y", "versions": [{"groupVersion": "x.y/v2", "version": "v2"}]}]});
        let resource = |kind: &str, name: &str, verbs: Value| json!({"name": name, "kind": kind, "namespaced": true, "singularName": "", "verbs": verbs});
        let resources = json!({"groupVersion": "x.y/v2", "resources": [
            resource("Ox", "oxen", json!(["list", "watch"])),
            resource("Review", "reviews", json!(["create"])),
        ]});
        let api = client(vec![("/apis", StatusCode::OK, groups), ("/apis/x.y/v2", StatusCode::OK, resources)]);
        let plural = async |api_version: &str, kind: &str| {
            let found = served_resource(&api, &OwnerKind::new(api_version, kind)).await.unwrap();
            found.map(|resource| resource.plural)
        };
        assert_eq!(plural("x.y/v1", "Ox").await.as_deref(), Some("oxen"));
        assert_eq!(plural("x.y/v2", "Review").await, None, "a kind without stored objects");
        assert_eq!(plural("x.y/v2", "Unknown").await, None);
        assert_eq!(plural("other/v1", "Ox").await, None, "a group that does not exist");
    }

    #[tokio::test]
    async fn an_api_that_cannot_answer_does_not_say_that_a_kind_is_unknown() {
        for status in [StatusCode::FORBIDDEN, StatusCode::SERVICE_UNAVAILABLE] {
            let api = client(vec![("/apis", status, json!({}))]);
            assert!(served_resource(&api, &OwnerKind::new("x.y/v1", "Ox")).await.is_err(), "{status}");
        }
    }

    #[tokio::test]
    async fn the_watch_of_an_unknown_kind_ends_and_its_owners_are_gone() {
        let api = client(vec![("/apis", StatusCode::OK, json!({"groups": []}))]);
        let data = tempfile::tempdir().unwrap();
        let mut owners = Owners::open(api, data.path()).unwrap();
        let pod = |api_version: &str, uid: &str| {
            let owner = json!({"apiVersion": api_version, "kind": "K", "name": "n", "uid": uid, "controller": true});
            let metadata = json!({"namespace": "a", "name": "p", "uid": "p", "ownerReferences": [owner]});
            serde_json::from_value(json!({"metadata": metadata})).unwrap()
        };
        for (api_version, uid) in [("x.y/v1", "u"), ("x.y/v2", "v"), ("../x/v1", "w"), ("x.y/v1?a=b", "x")] {
            owners.record(&pod(api_version, uid));
        }
        assert!(owners.watches.len() <= 1, "versions share a watch, and text that is no name is not asked for");
        let mut gone = BTreeSet::new();
        while gone.len() < 4 {
            let Some(OwnerEvent::Gone(key)) = owners.next().await else { panic!("no event") };
            gone.insert(key);
        }
        assert_eq!(gone, BTreeSet::from(["a.u", "a.v", "a.w", "a.x"].map(str::to_owned)));
        assert!(owners.watched.is_empty() && gone.iter().all(|key| owners.is_gone(key)));
    }

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
