//! What a controller manager does in a cluster and nobody else does here: garbage collection, emptying namespaces,
//! default service accounts, endpoint slices, expiring events, removing the objects of a removed CRD.
//!
//! The store's events put things to look at into an inbox, each once; one task looks at them.

use std::{
    collections::{HashSet, VecDeque},
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
mod namespaces;
mod slices;

/// Things looked at side by side: most of the time is spent waiting for the disk.
const CONCURRENCY: usize = 64;
/// How long a failed look waits for the next try.
const RETRY: Duration = Duration::from_millis(200);
/// How long events live, as in Kubernetes.
const EVENT_LIFE: Duration = Duration::from_secs(3600);

pub(crate) const NAMESPACES: &str = "/namespaces";
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
    events: Mutex<VecDeque<(Instant, ObjectKey, u64)>>,
}

impl Controllers {
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
            EventKind::Added | EventKind::Modified => self.present(storage, object),
        }
        match &**storage {
            NAMESPACES => self.push(Task::Namespace(object.key.name.clone())),
            EVENTS if event.kind != EventKind::Deleted => self.remember_event(object),
            "/services" => self.services.follow(event).into_iter().for_each(|key| self.push(Task::Slices(key))),
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

    fn present(&self, storage: &Arc<str>, object: &Stored) {
        if &**storage == NAMESPACES && object.facts.deleting {
            self.terminating.lock().insert(object.key.name.clone());
        }
        self.concerns_namespace(object);
        let item = || (storage.clone(), object.key.clone());
        if !object.facts.owners.is_empty() {
            self.push(Task::Check(item()));
        }
        if object.facts.deleting && object.facts.collector_finalizer.is_some() {
            self.push(Task::Release(item()));
        }
        if &**storage == crds::STORAGE && object.facts.deleting {
            self.push(Task::Definition(object.key.name.clone()));
        }
    }

    fn remember_event(&self, object: &Stored) {
        self.events.lock().push_back((Instant::now(), object.key.clone(), object.version));
    }

    /// Takes in what was stored before this process began.
    pub(crate) fn load(&self, core: &Core) {
        for (storage, collection) in core.store.collections() {
            for object in collection.list("") {
                self.graph.load(&storage, &object);
                self.present(&storage, &object);
                match &*storage {
                    NAMESPACES => self.push(Task::Namespace(object.key.name.clone())),
                    EVENTS => self.remember_event(&object),
                    "/services" => self.push(Task::Slices(self.services.load(&object))),
                    _ => {}
                }
            }
        }
    }
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
                () = tokio::time::sleep_until(next) => expire_events(&core).await,
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
    let idle = Instant::now() + EVENT_LIFE;
    controllers.events.lock().front().map_or(idle, |(at, _, _)| *at + EVENT_LIFE)
}

/// Removes events that nobody touched for an hour.
async fn expire_events(core: &Weak<Core>) {
    let Some(core) = core.upgrade() else { return };
    let registry = core.registry.snapshot();
    let Some(resource) = registry.resource("", "events").cloned() else { return };
    let now = Instant::now();
    loop {
        let due = {
            let mut events = core.controllers.events.lock();
            match events.front() {
                Some((at, _, _)) if *at + EVENT_LIFE <= now => events.pop_front(),
                _ => None,
            }
        };
        let Some((_, key, version)) = due else { return };
        if core.store.latest(&resource.storage, &key).is_none_or(|o| o.version != version) {
            continue;
        }
        if let Err(error) = crate::verbs::delete_object(&core, &resource, &key, &Default::default()).await {
            tracing::debug!(%error, "An expired event stays a little longer");
        }
    }
}
