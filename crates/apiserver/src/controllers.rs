//! What a controller manager does in a cluster and nobody else does here: garbage collection, emptying namespaces,
//! default service accounts, endpoint slices, expiring events, removing the objects of a removed CRD.
//!
//! The store's events put things to look at into an inbox, each once; one task looks at them.

use std::{
    collections::HashSet,
    sync::{Arc, Weak},
    time::Duration,
};

use futures::{StreamExt as _, stream};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use crate::{
    gc::{self, Graph, Item},
    server::Core,
    status::ApiError,
    store::{Event, EventKind, Moment, ObjectKey, Stored},
};

mod accounts;
mod crds;
mod expiry;
mod namespaces;
mod slices;

use expiry::Expiry;
pub(crate) use slices::own_address;

/// Things looked at side by side: most of the time is spent waiting for the disk.
const CONCURRENCY: usize = 64;
/// How long a failed look waits for the next try.
const RETRY: Duration = Duration::from_millis(200);

pub(crate) const NAMESPACES: &str = "/namespaces";
pub(crate) const SERVICES: &str = "/services";
const EVENTS: &str = "/events";

/// Something to look at.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Task {
    /// A dependent: do its owners still exist?
    Check(Item),
    /// An owner in foreground or orphaning deletion.
    Release(Item),
    /// A namespace that may have to be emptied, or to get its service account.
    Namespace(Box<str>),
    /// A service whose endpoints may have changed.
    Slices(ObjectKey),
    /// A CRD that is being deleted.
    Definition(Box<str>),
}

/// Everything the controllers remember between looks.
#[derive(Default)]
pub(crate) struct Controllers {
    pub(crate) graph: Graph,
    inbox: Mutex<HashSet<Task>>,
    wake: Notify,
    terminating: Mutex<HashSet<Box<str>>>,
    services: slices::Services,
    events: Mutex<Expiry>,
}

impl Controllers {
    /// The service that has this address.
    pub(crate) fn address_holder(&self, address: &str) -> Option<ObjectKey> {
        self.services.holder(address)
    }

    pub(crate) fn push(&self, task: Task) {
        if self.inbox.lock().insert(task) {
            self.wake.notify_one();
        }
    }

    /// Called by the store for every published event, on the writer's thread. The graph of owners is never behind what can be read; tasks
    /// come once it can be, or a look would still find the state before.
    pub(crate) fn observe(&self, storage: &Arc<str>, event: &Event, moment: Moment) {
        if moment == Moment::BeforeShown {
            self.graph.follow(storage, event);
            return;
        }
        let object = &event.object;
        match event.kind {
            EventKind::Deleted => self.gone(storage, object),
            EventKind::Added | EventKind::Modified => self.present(storage, object, event.previous.as_deref()),
        }
        match &**storage {
            NAMESPACES => self.push(Task::Namespace(object.key.name.clone())),
            EVENTS if event.kind == EventKind::Deleted => self.events.lock().forget(&object.key),
            EVENTS => self.events.lock().happened(&object.key, Instant::now()),
            SERVICES => self.services.follow(event).into_iter().for_each(|key| self.push(Task::Slices(key))),
            "/pods" => self.services.concerned(event).into_iter().for_each(|key| self.push(Task::Slices(key))),
            _ => {}
        }
    }

    fn gone(&self, storage: &Arc<str>, object: &Stored) {
        for dependent in self.graph.dependents(object.uid()) {
            self.push(Task::Check(dependent));
        }
        // An owner that waits for its last dependent; harmless for the others.
        for owner in &object.facts.owners {
            if owner.blocks {
                self.push(Task::Release((owner_storage(owner), ObjectKey::new(&object.key.namespace, &owner.name))));
            }
        }
        if &**storage == NAMESPACES {
            self.terminating.lock().remove(&object.key.name);
        }
        self.concerns_namespace(object);
        if let Some(name) = crds::definition_of(storage) {
            self.push(Task::Definition(name));
        }
        if &**storage == accounts::STORAGE {
            self.push(Task::Namespace(object.key.namespace.clone()));
        }
    }

    /// A namespace that is being emptied is looked at again whenever something in it changes.
    fn concerns_namespace(&self, object: &Stored) {
        if !object.key.namespace.is_empty() && self.terminating.lock().contains(&object.key.namespace) {
            self.push(Task::Namespace(object.key.namespace.clone()));
        }
    }

    fn present(&self, storage: &Arc<str>, object: &Stored, previous: Option<&Stored>) {
        if &**storage == NAMESPACES && object.facts.deleting {
            self.terminating.lock().insert(object.key.name.clone());
        }
        self.concerns_namespace(object);
        let item = || (storage.clone(), object.key.clone());
        // Other changes of a dependent say nothing about its owners.
        let owners = &object.facts.owners;
        if !owners.is_empty() && previous.is_none_or(|p| p.facts.owners != *owners) {
            self.push(Task::Check(item()));
        }
        if object.facts.deleting && object.facts.collector_finalizer.is_some() {
            self.push(Task::Release(item()));
        }
        if &**storage == crds::STORAGE && object.facts.deleting {
            self.push(Task::Definition(object.key.name.clone()));
        }
    }

    /// Events of before a restart have lived for a while.
    fn load_events(&self, events: Vec<Arc<Stored>>) {
        let (now, wall) = (Instant::now(), jiff::Timestamp::now());
        let mut known = self.events.lock();
        for event in events {
            let age = event_age(&event.parse(), wall).min(expiry::LIFE);
            known.happened(&event.key, now.checked_sub(age).unwrap_or(now));
        }
    }

    /// Takes in what was stored before this process began.
    pub(crate) fn load(&self, core: &Core) {
        for (storage, collection) in core.store.collections() {
            if &*storage == EVENTS {
                self.load_events(collection.list(""));
            }
            for object in collection.list("") {
                self.graph.load(&storage, &object);
                self.present(&storage, &object, None);
                match &*storage {
                    NAMESPACES => self.push(Task::Namespace(object.key.name.clone())),
                    SERVICES => self.push(Task::Slices(self.services.load(&object))),
                    _ => {}
                }
            }
        }
    }
}

/// How long ago an event last happened, as far as it says.
fn event_age(event: &serde_json::Value, now: jiff::Timestamp) -> Duration {
    let said = [&event["series"]["lastObservedTime"], &event["lastTimestamp"], &event["eventTime"]];
    said.into_iter()
        .chain([&event["metadata"]["creationTimestamp"]])
        .find_map(|time| time.as_str()?.parse::<jiff::Timestamp>().ok())
        .and_then(|time| Duration::try_from(now.duration_since(time)).ok())
        .unwrap_or_default()
}

/// The collection an owner reference points into. Custom kinds are resolved when the task is looked at, so the kind's
/// name stands in for the plural.
fn owner_storage(owner: &crate::store::OwnerRef) -> Arc<str> {
    format!("{}#{}", owner.group, owner.kind).into()
}

/// Looks at things until the server is gone.
pub(crate) async fn run(core: Weak<Core>) {
    loop {
        let Some(strong) = core.upgrade() else { return };
        let tasks: Vec<Task> = strong.controllers.inbox.lock().drain().collect();
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
        stream::iter(tasks).for_each_concurrent(CONCURRENCY, |task| look(strong.clone(), task)).await;
    }
}

async fn look(core: Arc<Core>, task: Task) {
    let Err(error) = act(&core, &task).await else { return };
    if matches!(error.code.as_u16(), 404 | 409) {
        return;
    }
    tracing::warn!(%error, ?task, "Housekeeping failed, trying again");
    let core = Arc::downgrade(&core);
    tokio::spawn(async move {
        tokio::time::sleep(RETRY).await;
        if let Some(core) = core.upgrade() {
            core.controllers.push(task);
        }
    });
}

async fn act(core: &Arc<Core>, task: &Task) -> Result<(), ApiError> {
    let controllers = &core.controllers;
    match task {
        Task::Check(item) => gc::check(core, &controllers.graph, item).await,
        Task::Release(item) => {
            let Some(item) = resolve(core, item) else { return Ok(()) };
            for dependent in gc::release(core, &controllers.graph, &item).await? {
                controllers.push(Task::Check(dependent));
            }
            Ok(())
        }
        Task::Namespace(name) => namespaces::look(core, name).await,
        Task::Slices(key) => slices::look(core, key).await,
        Task::Definition(name) => crds::look(core, name).await,
    }
}

/// Finds the collection of an owner that was named by kind.
fn resolve(core: &Core, item: &Item) -> Option<Item> {
    let Some((group, kind)) = item.0.split_once('#') else { return Some(item.clone()) };
    let registry = core.registry.snapshot();
    let resource = registry.by_kind(group, kind)?;
    let namespace = if resource.namespaced { &*item.1.namespace } else { "" };
    Some((resource.storage.clone(), ObjectKey::new(namespace, &item.1.name)))
}

fn next_expiry(controllers: &Controllers) -> Instant {
    controllers.events.lock().next().unwrap_or_else(|| Instant::now() + expiry::LIFE)
}

/// Removes events that nobody touched for an hour.
async fn expire_events(core: &Weak<Core>, now: Instant) {
    let Some(core) = core.upgrade() else { return };
    let registry = core.registry.snapshot();
    let Some(resource) = registry.resource("", "events").cloned() else { return };
    loop {
        let due = core.controllers.events.lock().due(now);
        let Some(key) = due else { return };
        match crate::verbs::delete_object(&core, &resource, &key, &Default::default()).await {
            Ok(_) => {}
            Err(error) if error.code == http::StatusCode::NOT_FOUND => {}
            Err(error) => {
                tracing::debug!(%error, "An expired event stays a little longer");
                core.controllers.events.lock().happened(&key, Instant::now());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Event as Happening;
    use kube::api::{Api, Patch, PatchParams, PostParams};
    use serde_json::json;

    use super::*;
    use crate::{ApiServer, Config};

    fn happening(name: &str, last: Option<&str>) -> Happening {
        let mut event =
            json!({"metadata": {"name": name}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"}});
        if let Some(last) = last {
            event["lastTimestamp"] = last.into();
        }
        serde_json::from_value(event).unwrap()
    }

    #[tokio::test]
    async fn events_go_an_hour_after_they_last_happened() {
        let server = ApiServer::open(Config::default()).await.unwrap();
        let api: Api<Happening> = Api::namespaced(server.client(), "default");
        for name in ["once", "again"] {
            api.create(&PostParams::default(), &happening(name, None)).await.unwrap();
        }
        let core = Arc::downgrade(server.core());
        let first = server.core().controllers.events.lock().next().unwrap();
        expire_events(&core, first - Duration::from_secs(1)).await;
        assert_eq!(api.list(&Default::default()).await.unwrap().items.len(), 2);
        for name in ["once", "again"] {
            let more = Patch::Merge(json!({"count": 2}));
            api.patch(name, &PatchParams::default(), &more).await.unwrap();
        }
        let renewed = server.core().controllers.events.lock().next().unwrap();
        assert!(renewed > first, "what happens again stays longer");
        expire_events(&core, renewed).await;
        let left: Vec<_> = api.list(&Default::default()).await.unwrap().items;
        assert_eq!(left.iter().filter_map(|e| e.metadata.name.as_deref()).collect::<Vec<_>>(), ["again"]);
        expire_events(&core, Instant::now() + expiry::LIFE).await;
        assert!(api.list(&Default::default()).await.unwrap().items.is_empty());
        assert!(server.core().controllers.events.lock().next().is_none(), "nothing is remembered about them");
    }

    #[tokio::test]
    async fn a_restart_does_not_make_events_younger() {
        let folder = tempfile::tempdir().unwrap();
        let config = || Config { data_dir: Some(folder.path().to_owned()), ..Config::default() };
        let server = ApiServer::open(config()).await.unwrap();
        let api: Api<Happening> = Api::namespaced(server.client(), "default");
        api.create(&PostParams::default(), &happening("old", Some("2020-01-01T00:00:00Z"))).await.unwrap();
        api.create(&PostParams::default(), &happening("new", None)).await.unwrap();
        server.close();
        let server = ApiServer::open(config()).await.unwrap();
        let api: Api<Happening> = Api::namespaced(server.client(), "default");
        let deadline = Instant::now() + Duration::from_secs(20);
        while api.get_opt("old").await.unwrap().is_some() {
            assert!(Instant::now() < deadline, "the event stays");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(api.get_opt("new").await.unwrap().is_some());
    }
}
