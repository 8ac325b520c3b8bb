//! The controllers that kube-controller-manager runs in a cluster: garbage collection, namespace deletion, default
//! service accounts, EndpointSlices, expiry of Events, deletion of the objects of a deleted CRD, usage of quotas,
//! removal of deleted Pods without a node.
//!
//! The store's events add tasks to a work queue without duplicates; one loop reconciles them.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Weak},
    time::Duration,
};

use futures::{StreamExt as _, stream};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use crate::{
    limits::ledger::{Ledger, QUOTAS},
    server::Core,
    status::ApiError,
    store::{Event, EventKind, ObjectKey, OwnerRef, PublishPhase, Stored},
};

mod crds;
mod endpoint_slices;
mod event_expiry;
mod gc;
mod namespaces;
mod orphaned_pods;
mod quotas;
mod service_accounts;

pub(crate) use endpoint_slices::cluster_ip;
use event_expiry::EventExpiry;
use gc::{DependencyGraph, Item};

/// Maximum number of tasks that are reconciled concurrently; most of their time is spent waiting for the disk.
const CONCURRENCY: usize = 64;
/// Delay before a failed task is retried.
const RETRY_DELAY: Duration = Duration::from_millis(200);

pub(crate) const NAMESPACES: &str = "/namespaces";
pub(crate) const SERVICES: &str = "/services";
const EVENTS: &str = "/events";

/// One unit of work: an object to reconcile.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Task {
    /// A dependent whose owners may have been deleted.
    Dependent(Item),
    /// An owner that is being deleted in the foreground or with orphaning.
    DeletedOwner(Item),
    /// A namespace whose content may have to be deleted, or that may lack its default service account.
    Namespace(Box<str>),
    /// A Service whose endpoints may have changed.
    Service(ObjectKey),
    /// A CRD that is being deleted.
    Crd(Box<str>),
    /// A Pod that is being deleted and whose node may not exist.
    OrphanedPod(ObjectKey),
    /// A namespace with quotas whose usage may have changed.
    Quotas(Box<str>),
}

/// State of the controllers.
#[derive(Default)]
pub(crate) struct Controllers {
    pub(crate) graph: DependencyGraph,
    work_queue: Mutex<HashSet<Task>>,
    wake: Notify,
    /// Names of the namespaces that are being deleted.
    terminating: Mutex<HashSet<Box<str>>>,
    services: endpoint_slices::ServiceIndex,
    event_expiry: Mutex<EventExpiry>,
    ledger: Arc<Ledger>,
    /// When the usage of a namespace has to be computed again although none of its objects changed.
    quota_timers: Mutex<HashMap<Box<str>, jiff::Timestamp>>,
}

impl Controllers {
    pub(crate) fn new(ledger: Arc<Ledger>) -> Self {
        Self { ledger, ..Self::default() }
    }

    /// The Service that has this cluster IP.
    pub(crate) fn service_with_ip(&self, ip: &str) -> Option<ObjectKey> {
        self.services.service_with_ip(ip)
    }

    pub(crate) fn enqueue(&self, task: Task) {
        if self.work_queue.lock().insert(task) {
            self.wake.notify_one();
        }
    }

    /// Called by the store for every event, on the writer's thread, twice. Before readers can see the event, the graph
    /// of owners is updated, so that it is never behind what can be read. Once readers can see it, tasks are enqueued:
    /// earlier, a task could still read the previous state.
    pub(crate) fn observe(&self, storage: &Arc<str>, event: &Event, moment: PublishPhase) {
        if moment == PublishPhase::BeforePublish {
            self.graph.apply(storage, event);
            self.ledger.observe(storage, event);
            return;
        }
        let object = &event.object;
        match event.kind {
            EventKind::Deleted => self.on_deleted(storage, object),
            EventKind::Added | EventKind::Modified => self.on_stored(storage, object, event.previous.as_deref()),
        }
        let namespace = &object.key.namespace;
        if !namespace.is_empty() && &**storage != EVENTS && self.ledger.has_quotas(namespace) {
            self.enqueue(Task::Quotas(namespace.clone()));
        }
        match &**storage {
            NAMESPACES => self.enqueue(Task::Namespace(object.key.name.clone())),
            EVENTS if event.kind == EventKind::Deleted => self.event_expiry.lock().remove(&object.key),
            EVENTS => self.event_expiry.lock().touch(&object.key, Instant::now()),
            SERVICES => self.services.apply(event).into_iter().for_each(|key| self.enqueue(Task::Service(key))),
            "/pods" => {
                self.services.apply_pod(event).into_iter().for_each(|key| self.enqueue(Task::Service(key)));
            }
            _ => {}
        }
    }

    fn on_deleted(&self, storage: &Arc<str>, object: &Stored) {
        for dependent in self.graph.dependents(object) {
            self.enqueue(Task::Dependent(dependent));
        }
        self.enqueue_unblocked_owners(object, &[]);
        if &**storage == NAMESPACES {
            self.terminating.lock().remove(&object.key.name);
        }
        self.enqueue_terminating_namespace(object);
        if let Some(name) = crds::crd_of(storage) {
            self.enqueue(Task::Crd(name));
        }
        if &**storage == service_accounts::STORAGE {
            self.enqueue(Task::Namespace(object.key.namespace.clone()));
        }
    }

    /// The owners that an object blocked, and that are not among those it has `now`, may have waited for it as their
    /// last dependent; for other owners the task does nothing.
    fn enqueue_unblocked_owners(&self, object: &Stored, now: &[OwnerRef]) {
        for owner in object.facts.owners.iter().filter(|owner| owner.blocks && !now.contains(owner)) {
            let key = ObjectKey::new(&object.key.namespace, &owner.name);
            self.enqueue(Task::DeletedOwner((owner_storage(owner), key)));
        }
    }

    /// A namespace that is being deleted is reconciled again whenever one of its objects changes.
    fn enqueue_terminating_namespace(&self, object: &Stored) {
        if !object.key.namespace.is_empty() && self.terminating.lock().contains(&object.key.namespace) {
            self.enqueue(Task::Namespace(object.key.namespace.clone()));
        }
    }

    fn on_stored(&self, storage: &Arc<str>, object: &Stored, previous: Option<&Stored>) {
        if &**storage == NAMESPACES && object.facts.deleting {
            self.terminating.lock().insert(object.key.name.clone());
        }
        self.enqueue_terminating_namespace(object);
        let item = || (storage.clone(), object.key.clone());
        // Other changes of a dependent do not concern its owners.
        let owners = &object.facts.owners;
        if !owners.is_empty() && previous.is_none_or(|p| p.facts.owners != *owners) {
            self.enqueue(Task::Dependent(item()));
        }
        if let Some(previous) = previous {
            self.enqueue_unblocked_owners(previous, owners);
        }
        if object.facts.deleting && object.facts.collector_finalizer.is_some() {
            self.enqueue(Task::DeletedOwner(item()));
        }
        if &**storage == crds::STORAGE && object.facts.deleting {
            self.enqueue(Task::Crd(object.key.name.clone()));
        }
        if &**storage == orphaned_pods::PODS && object.facts.deleting && previous.is_none_or(|p| !p.facts.deleting) {
            self.enqueue(Task::OrphanedPod(object.key.clone()));
        }
    }

    /// Loads the Events that were stored before a restart, with their age: a restart must not prolong their lifetime.
    fn load_events(&self, events: Vec<Arc<Stored>>) {
        let (now, wall) = (Instant::now(), jiff::Timestamp::now());
        let mut expiry = self.event_expiry.lock();
        for event in events {
            let age = event_age(&event.parse(), wall).min(event_expiry::EVENT_TTL);
            expiry.touch(&event.key, now.checked_sub(age).unwrap_or(now));
        }
    }

    /// Loads the objects that were stored before this process started.
    pub(crate) fn load(&self, core: &Core) {
        for (storage, collection) in core.store.collections() {
            if &*storage == EVENTS {
                self.load_events(collection.list(""));
            }
            for object in collection.list("") {
                self.graph.load(&storage, &object);
                self.on_stored(&storage, &object, None);
                match &*storage {
                    NAMESPACES => self.enqueue(Task::Namespace(object.key.name.clone())),
                    SERVICES => self.enqueue(Task::Service(self.services.load(&object))),
                    QUOTAS => {
                        self.ledger.set_quota(&object.key, true);
                        self.enqueue(Task::Quotas(object.key.namespace.clone()));
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Time since the last occurrence of an Event, according to its timestamps.
fn event_age(event: &serde_json::Value, now: jiff::Timestamp) -> Duration {
    let times = [&event["series"]["lastObservedTime"], &event["lastTimestamp"], &event["eventTime"]];
    times
        .into_iter()
        .chain([&event["metadata"]["creationTimestamp"]])
        .find_map(|time| time.as_str()?.parse::<jiff::Timestamp>().ok())
        .and_then(|time| Duration::try_from(now.duration_since(time)).ok())
        .unwrap_or_default()
}

/// A placeholder `group#Kind` for the collection that an owner reference points into: the plural is looked up when the
/// task is reconciled.
fn owner_storage(owner: &OwnerRef) -> Arc<str> {
    format!("{}#{}", owner.group, owner.kind).into()
}

/// Reconciles tasks until the server is dropped.
pub(crate) async fn run(core: Weak<Core>) {
    loop {
        let Some(strong) = core.upgrade() else { return };
        let tasks: Vec<Task> = strong.controllers.work_queue.lock().drain().collect();
        if tasks.is_empty() {
            let next = next_expiry(&strong.controllers);
            let controllers = strong.controllers.clone();
            drop(strong);
            let waiting = controllers.wake.notified();
            tokio::select! {
                () = waiting => {}
                () = tokio::time::sleep_until(next) => expire_events(&core, Instant::now()).await,
            }
            continue;
        }
        stream::iter(tasks).for_each_concurrent(CONCURRENCY, |task| reconcile_or_retry(strong.clone(), task)).await;
    }
}

async fn reconcile_or_retry(core: Arc<Core>, task: Task) {
    let Err(error) = reconcile(&core, &task).await else { return };
    if matches!(error.code.as_u16(), 404 | 409) {
        return;
    }
    tracing::warn!(%error, ?task, "Controller task failed, will retry");
    let core = Arc::downgrade(&core);
    tokio::spawn(async move {
        tokio::time::sleep(RETRY_DELAY).await;
        if let Some(core) = core.upgrade() {
            core.controllers.enqueue(task);
        }
    });
}

async fn reconcile(core: &Arc<Core>, task: &Task) -> Result<(), ApiError> {
    let controllers = &core.controllers;
    match task {
        Task::Dependent(item) => gc::reconcile_dependent(core, &controllers.graph, item).await,
        Task::DeletedOwner(item) => {
            let Some(item) = resolve_owner(core, item) else { return Ok(()) };
            for dependent in gc::reconcile_deleted_owner(core, &controllers.graph, &item).await? {
                controllers.enqueue(Task::Dependent(dependent));
            }
            Ok(())
        }
        Task::Namespace(name) => namespaces::reconcile(core, name).await,
        Task::Service(key) => endpoint_slices::reconcile(core, key).await,
        Task::Crd(name) => crds::reconcile(core, name).await,
        Task::OrphanedPod(key) => orphaned_pods::reconcile(core, key).await,
        Task::Quotas(namespace) => quotas::reconcile(core, namespace).await,
    }
}

/// Replaces the placeholder of [`owner_storage`] by the collection of the owner's kind.
fn resolve_owner(core: &Core, item: &Item) -> Option<Item> {
    let Some((group, kind)) = item.0.split_once('#') else { return Some(item.clone()) };
    let registry = core.registry.snapshot();
    let resource = registry.by_kind(group, kind)?;
    let namespace = if resource.namespaced { &*item.1.namespace } else { "" };
    Some((resource.storage.clone(), ObjectKey::new(namespace, &item.1.name)))
}

fn next_expiry(controllers: &Controllers) -> Instant {
    controllers.event_expiry.lock().next_expiry().unwrap_or_else(|| Instant::now() + event_expiry::EVENT_TTL)
}

/// Deletes Events whose last occurrence is at least [`event_expiry::EVENT_TTL`] ago.
async fn expire_events(core: &Weak<Core>, now: Instant) {
    let Some(core) = core.upgrade() else { return };
    let registry = core.registry.snapshot();
    let Some(resource) = registry.resource("", "events").cloned() else { return };
    loop {
        let expired = core.controllers.event_expiry.lock().pop_expired(now);
        let Some(key) = expired else { return };
        match crate::verbs::delete_object(&core, &resource, &key, &Default::default()).await {
            Ok(_) => {}
            Err(error) if error.code == http::StatusCode::NOT_FOUND => {}
            Err(error) => {
                tracing::debug!(%error, "Could not delete an expired Event, will retry");
                core.controllers.event_expiry.lock().touch(&key, Instant::now());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Event as KubeEvent;
    use kube::api::{Api, Patch, PatchParams, PostParams};
    use serde_json::json;

    use super::*;
    use crate::{ApiServer, Config};

    fn kube_event(name: &str, last: Option<&str>) -> KubeEvent {
        let mut event =
            json!({"metadata": {"name": name}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"}});
        if let Some(last) = last {
            event["lastTimestamp"] = last.into();
        }
        serde_json::from_value(event).unwrap()
    }

    #[tokio::test]
    async fn events_are_deleted_an_hour_after_their_last_occurrence() {
        let server = ApiServer::open(Config::default()).await.unwrap();
        let api: Api<KubeEvent> = Api::namespaced(server.client(), "default");
        for name in ["once", "again"] {
            api.create(&PostParams::default(), &kube_event(name, None)).await.unwrap();
        }
        let core = Arc::downgrade(server.core());
        let first = server.core().controllers.event_expiry.lock().next_expiry().unwrap();
        expire_events(&core, first - Duration::from_secs(1)).await;
        assert_eq!(api.list(&Default::default()).await.unwrap().items.len(), 2);
        for name in ["once", "again"] {
            let more = Patch::Merge(json!({"count": 2}));
            api.patch(name, &PatchParams::default(), &more).await.unwrap();
        }
        let renewed = server.core().controllers.event_expiry.lock().next_expiry().unwrap();
        assert!(renewed > first, "another occurrence prolongs the lifetime");
        expire_events(&core, renewed).await;
        let left: Vec<_> = api.list(&Default::default()).await.unwrap().items;
        assert_eq!(left.iter().filter_map(|e| e.metadata.name.as_deref()).collect::<Vec<_>>(), ["again"]);
        expire_events(&core, Instant::now() + event_expiry::EVENT_TTL).await;
        assert!(api.list(&Default::default()).await.unwrap().items.is_empty());
        assert!(server.core().controllers.event_expiry.lock().next_expiry().is_none(), "the index is empty");
    }

    #[tokio::test]
    async fn a_restart_does_not_prolong_the_lifetime_of_events() {
        let folder = tempfile::tempdir().unwrap();
        let config = || Config { data_dir: Some(folder.path().to_owned()), ..Config::default() };
        let server = ApiServer::open(config()).await.unwrap();
        let api: Api<KubeEvent> = Api::namespaced(server.client(), "default");
        api.create(&PostParams::default(), &kube_event("old", Some("2020-01-01T00:00:00Z"))).await.unwrap();
        api.create(&PostParams::default(), &kube_event("new", None)).await.unwrap();
        server.close();
        let server = ApiServer::open(config()).await.unwrap();
        let api: Api<KubeEvent> = Api::namespaced(server.client(), "default");
        let deadline = Instant::now() + Duration::from_secs(20);
        while api.get_opt("old").await.unwrap().is_some() {
            assert!(Instant::now() < deadline, "the Event was not deleted");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(api.get_opt("new").await.unwrap().is_some());
    }
}
