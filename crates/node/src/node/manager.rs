//! The node's main loop: turns watch events, runtime events and commands into messages to the Pods' actors.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use futures::StreamExt;
use futures::stream::BoxStream;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::Api;
use kube::runtime::{WatchStreamExt, watcher};
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use super::owners::{OwnerEvent, Owners};
use super::{NodeError, NodeOptions, Pods, stopped};
use crate::dns::SharedNames;
use crate::pods::actor::{self, Birth, Handle, Message};
use crate::pods::model::PodState;
use crate::pods::recorder::Severity;
use crate::pods::recover::recover;
use crate::pods::shared::Shared;
use crate::policy::{Member, World};
use crate::runtime::{self, PodRules, RuntimeEvent};
use crate::schedule::{self, Decision};

mod binding;
mod surroundings;

use binding::{bind, explain};

pub(super) type Registry = Arc<Pods>;

/// What a handle may ask for.
pub(super) enum Command {
    /// Let go of all Pods; answered when the actors are gone.
    LetGo(oneshot::Sender<()>),
}

/// The end of one of the manager's own tasks.
enum Done {
    /// A Pod was bound to this node.
    Bound(Box<Pod>),
    Nothing,
}

pub(super) struct Manager {
    shared: Arc<Shared>,
    registry: Registry,
    embedded: bool,
    labels: BTreeMap<String, String>,
    world: World,
    /// Rules as last given to each actor.
    rules: HashMap<String, PodRules>,
    actors: JoinSet<String>,
    /// Ends of actors by namespace and name, so that a Pod of the same name waits for the one before it.
    by_name: HashMap<(String, String), watch::Receiver<()>>,
    tasks: JoinSet<Done>,
    binding: BTreeSet<String>,
    /// What the runtime had when the node started.
    found: HashMap<String, runtime::PodState>,
    stopped: BTreeSet<String>,
    owners: Owners,
    names: SharedNames,
    synced: bool,
    listed: BTreeSet<String>,
    peers_listed: BTreeSet<String>,
    /// What this node was told it may not list.
    forbidden: BTreeSet<&'static str>,
    runtime_events: broadcast::Receiver<RuntimeEvent>,
    runtime_closed: bool,
}

impl Manager {
    pub(super) async fn open(
        shared: Arc<Shared>,
        registry: Registry,
        names: SharedNames,
        options: &NodeOptions,
    ) -> Result<Self, NodeError> {
        // Subscribed before listing: an exit in between is in one or the other, or harmlessly in both.
        let runtime_events = shared.runtime.events();
        let found = shared.runtime.list().await.map_err(NodeError::List)?;
        let owners = Owners::open(shared.client.clone(), &options.data_dir)
            .map_err(|source| NodeError::Folder { path: options.data_dir.clone(), source })?;
        Ok(Self {
            embedded: options.embedded,
            labels: crate::register::labels(&options.node_name),
            world: World { pod_network: shared.runtime.pod_network(), ..World::default() },
            rules: HashMap::new(),
            actors: JoinSet::new(),
            by_name: HashMap::new(),
            tasks: JoinSet::new(),
            binding: BTreeSet::new(),
            found: found.into_iter().map(|p| (p.sandbox.uid.clone(), p)).collect(),
            stopped: stopped::take(&options.data_dir),
            owners,
            names,
            synced: false,
            listed: BTreeSet::new(),
            peers_listed: BTreeSet::new(),
            forbidden: BTreeSet::new(),
            runtime_events,
            runtime_closed: false,
            shared,
            registry,
        })
    }

    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let client = self.shared.client.clone();
        let (mut pods, mut peers) = self.watch_pods(&client);
        let mut policies = watched::<NetworkPolicy>(Api::all(client.clone()), watcher::Config::default());
        let mut namespaces = watched::<Namespace>(Api::all(client.clone()), watcher::Config::default());
        let mut services = watched::<Service>(Api::all(client), watcher::Config::default());
        loop {
            tokio::select! {
                Some(event) = pods.next() => self.pod_event(event).await,
                Some(event) = peers.next() => self.peer_event(event).await,
                Some(event) = policies.next() => self.policy_event(event).await,
                Some(event) = namespaces.next() => self.namespace_event(event).await,
                Some(event) = services.next() => self.service_event(event),
                event = self.runtime_events.recv(), if !self.runtime_closed => self.runtime_event(event).await,
                Some(done) = self.tasks.join_next(), if !self.tasks.is_empty() => self.task_done(done).await,
                Some(ended) = self.actors.join_next(), if !self.actors.is_empty() => self.actor_ended(ended).await,
                Some(event) = self.owners.next() => self.owner_event(event).await,
                command = commands.recv() => match command {
                    Some(Command::LetGo(done)) => {
                        self.let_go().await;
                        let _ = done.send(());
                        return;
                    }
                    None => return,
                },
            }
        }
    }

    /// In embedded mode all Pods at once; else only those bound here, which is all that a kubelet may list, and the others
    /// beside them, as far as allowed.
    fn watch_pods(&self, client: &kube::Client) -> (Watch<Pod>, Watch<Pod>) {
        let all = || watched::<Pod>(Api::all(client.clone()), watcher::Config::default());
        if self.embedded {
            return (all(), futures::stream::pending().boxed());
        }
        let bound = format!("spec.nodeName={}", self.shared.settings.node_name);
        (watched(Api::all(client.clone()), watcher::Config::default().fields(&bound)), all())
    }

    async fn pod_event(&mut self, event: Result<watcher::Event<Pod>, watcher::Error>) {
        match event {
            Ok(watcher::Event::Init) => self.listed.clear(),
            Ok(watcher::Event::InitApply(pod)) => {
                self.listed.insert(uid(&pod));
                self.pod_applied(pod).await;
            }
            Ok(watcher::Event::InitDone) => self.pods_listed().await,
            Ok(watcher::Event::Apply(pod)) => self.pod_applied(pod).await,
            Ok(watcher::Event::Delete(pod)) => self.pod_gone(&uid(&pod)).await,
            Err(error) => self.interrupted("Pods", &error),
        }
    }

    async fn pod_applied(&mut self, pod: Pod) {
        let key = uid(&pod);
        let changed = self.meet(&pod);
        let node = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or_default();
        if node == self.shared.settings.node_name {
            self.give(pod).await;
        } else if node.is_empty() && self.embedded {
            self.schedule(pod);
        }
        if changed {
            self.spread(&key).await;
        }
    }

    /// Hands a Pod of this node to its actor, making one if it is new.
    async fn give(&mut self, pod: Pod) {
        let key = uid(&pod);
        let handle = self.registry.read().get(&key).cloned();
        match handle {
            Some(handle) => {
                let _ = handle.inbox.send(Message::Update(Arc::new(pod))).await;
            }
            None => self.adopt(pod),
        }
    }

    fn adopt(&mut self, pod: Pod) {
        let key = uid(&pod);
        self.owners.note(&pod);
        let name = (pod.metadata.namespace.clone().unwrap_or_default(), pod.metadata.name.clone().unwrap_or_default());
        let member = Member::of(&pod);
        let rules = self.world.rules(&member);
        self.rules.insert(key.clone(), rules.clone());
        let found = self.found.remove(&key);
        if self.embedded && found.is_none() && pod.status.as_ref().is_none_or(|status| status.start_time.is_none()) {
            self.announce(&pod);
        }
        let (state, lost) = if self.stopped.remove(&key) {
            (resumed(&pod), false)
        } else {
            recover(&pod, found.as_ref(), &self.shared.settings.backoff, Timestamp::now())
        };
        let birth = Birth {
            shared: Arc::clone(&self.shared),
            pod: Arc::new(pod),
            state,
            rules,
            predecessor: self.by_name.get(&name).cloned(),
            lost,
        };
        let (handle, run) = actor::spawn(birth);
        self.by_name.insert(name, handle.ended.clone());
        self.registry.write().insert(key, Arc::new(handle));
        self.actors.spawn(run);
    }

    /// What a scheduler would say of a Pod that it gave this node.
    fn announce(&self, pod: &Pod) {
        let [namespace, name] = [&pod.metadata.namespace, &pod.metadata.name].map(|t| t.as_deref().unwrap_or_default());
        let message = format!("Successfully assigned {namespace}/{name} to {}", self.shared.settings.node_name);
        self.shared.recorder.pod(pod, Severity::Normal, "Scheduled", message);
    }

    async fn pods_listed(&mut self) {
        let known: Vec<String> = self.registry.read().keys().cloned().collect();
        let gone: Vec<String> = known.into_iter().filter(|k| !self.listed.contains(k)).collect();
        for key in gone {
            self.pod_gone(&key).await;
        }
        // Elsewhere the list holds this node's Pods only; peers have a watch of their own.
        if self.embedded {
            self.world.members.retain(|key, _| self.listed.contains(key));
        }
        if !self.synced {
            self.synced = true;
            for (key, _) in std::mem::take(&mut self.found) {
                info!(uid = key, "Removing a Pod whose object is gone");
                let runtime = self.shared.runtime.clone();
                self.tasks.spawn(async move {
                    if let Err(error) = runtime.remove_pod(&key).await {
                        warn!(%error, uid = key, "Could not remove a Pod");
                    }
                    Done::Nothing
                });
            }
            let kept = self.shared.runtime.kept_owners().await.unwrap_or_default();
            self.owners.start(kept);
        }
    }

    async fn pod_gone(&mut self, key: &str) {
        self.binding.remove(key);
        let handle = self.registry.read().get(key).cloned();
        if let Some(handle) = handle {
            let _ = handle.inbox.send(Message::Gone).await;
        }
        self.part(key).await;
    }

    fn schedule(&mut self, pod: Pod) {
        match schedule::decide(&pod, &self.labels) {
            Decision::Leave => {}
            Decision::Bind => {
                if self.binding.insert(uid(&pod)) {
                    self.tasks.spawn(bind(Arc::clone(&self.shared), pod));
                }
            }
            Decision::Unschedulable(message) => {
                self.tasks.spawn(explain(Arc::clone(&self.shared), pod, message));
            }
        }
    }

    async fn task_done(&mut self, done: Result<Done, tokio::task::JoinError>) {
        match done {
            Ok(Done::Bound(pod)) => {
                self.binding.remove(&uid(&pod));
                // The watch may have brought it already.
                let known = self.registry.read().contains_key(&uid(&pod));
                if !known && self.world.members.contains_key(&uid(&pod)) {
                    self.adopt(*pod);
                }
            }
            Ok(Done::Nothing) => {}
            Err(error) if error.is_cancelled() => {}
            Err(error) => tracing::error!(%error, "A task of the node panicked"),
        }
    }

    async fn actor_ended(&mut self, ended: Result<String, tokio::task::JoinError>) {
        let Ok(key) = ended else {
            tracing::error!("The actor of a Pod panicked; its Pod is looked at again after the next restart");
            return;
        };
        let handle = self.registry.write().remove(&key);
        self.rules.remove(&key);
        let Some(handle) = handle else { return };
        let name = (handle.namespace.clone(), handle.name.clone());
        if self.by_name.get(&name).is_some_and(|ended| ended.same_channel(&handle.ended)) {
            self.by_name.remove(&name);
        }
        let others = self.registry.read().values().any(|other| other.owner == handle.owner);
        if !others && self.owners.is_gone(&handle.owner) {
            self.forget(handle.owner.clone());
        }
    }

    async fn owner_event(&mut self, event: OwnerEvent) {
        let OwnerEvent::Gone(owner) = event;
        let used = self.registry.read().values().any(|handle| handle.owner == owner);
        if !used {
            self.forget(owner);
        }
    }

    fn forget(&mut self, owner: String) {
        self.owners.forget(&owner);
        let runtime = self.shared.runtime.clone();
        self.tasks.spawn(async move {
            if let Err(error) = runtime.forget_owner(&owner).await {
                warn!(%error, owner, "Could not remove what was kept for an owner");
            }
            Done::Nothing
        });
    }

    async fn runtime_event(&mut self, event: Result<RuntimeEvent, broadcast::error::RecvError>) {
        match event {
            Ok(RuntimeEvent::ContainerExited { pod, container, attempt, exit }) => {
                self.tell(&pod, Message::Exited { container, attempt, exit }).await;
            }
            Ok(RuntimeEvent::SupervisorLost { pod }) => self.tell(&pod, Message::SupervisorLost).await,
            Err(broadcast::error::RecvError::Lagged(missed)) => {
                debug!(missed, "Runtime events were missed, looking at every Pod");
                self.compare_all().await;
            }
            Err(broadcast::error::RecvError::Closed) => {
                tracing::error!("The runtime ended; Pods are no longer reported");
                self.runtime_closed = true;
            }
        }
    }

    /// Replays the present state of every Pod; actors pass over what they already know.
    async fn compare_all(&mut self) {
        let Ok(states) = self.shared.runtime.list().await else { return };
        for state in states {
            let pod = state.sandbox.uid;
            if !state.alive {
                self.tell(&pod, Message::SupervisorLost).await;
                continue;
            }
            for container in state.containers {
                if let Some(exit) = container.exit {
                    let message = Message::Exited { container: container.name, attempt: container.attempt, exit };
                    self.tell(&pod, message).await;
                }
            }
        }
    }

    async fn tell(&mut self, key: &str, message: Message) {
        let handle: Option<Arc<Handle>> = self.registry.read().get(key).cloned();
        if let Some(handle) = handle {
            let _ = handle.inbox.send(message).await;
        }
    }

    /// Drops the actors' mailboxes, which ends them without touching their Pods.
    async fn let_go(&mut self) {
        self.registry.write().clear();
        self.by_name.clear();
        self.tasks.shutdown().await;
        while self.actors.join_next().await.is_some() {}
    }
}

fn uid(pod: &Pod) -> String {
    pod.metadata.uid.clone().unwrap_or_default()
}

type Watch<K> = BoxStream<'static, Result<watcher::Event<K>, watcher::Error>>;

/// A watch that goes on for ever, backing off when the API is away.
fn watched<K>(api: Api<K>, config: watcher::Config) -> Watch<K>
where
    K: kube::Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    watcher(api, config).default_backoff().boxed()
}

/// The state of a Pod that was stopped on purpose: it starts anew, counting on from its restarts.
fn resumed(pod: &Pod) -> PodState {
    let (mut state, _) = recover(pod, None, &Default::default(), Timestamp::now());
    if state.verdict.is_some()
        || matches!(pod.status.as_ref().and_then(|s| s.phase.as_deref()), Some("Succeeded" | "Failed"))
    {
        return state;
    }
    for record in state.containers.values_mut() {
        let instance = std::mem::take(&mut record.instance);
        record.last = instance.termination().cloned();
        record.restarts += 1;
        record.ready = false;
        record.started = false;
        record.image = Default::default();
        record.backoff = Default::default();
    }
    state
}
