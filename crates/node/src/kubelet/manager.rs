//! The main loop of the node: turns watch events, runtime events and commands into messages to the Pods' actors.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use agent_sandbox_egress::Gateway;
use futures::StreamExt;
use futures::stream::BoxStream;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::Api;
use kube::runtime::{WatchStreamExt, watcher};
use parking_lot::RwLock;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use crate::kubelet::actor::{self, ActorArgs, ActorHandle, Message};
use crate::kubelet::context::NodeContext;
use crate::kubelet::dns::SharedNames;
use crate::kubelet::egress::pods::EgressPods;
use crate::kubelet::events::Severity;
use crate::kubelet::model::PodRecord;
use crate::kubelet::node::{NodeError, NodeOptions};
use crate::kubelet::owners::{OwnerEvent, Owners};
use crate::kubelet::policy::{PolicyInputs, PolicyPod};
use crate::kubelet::recovery::recover;
use crate::kubelet::registration;
use crate::kubelet::scheduling::{self, Decision};
use crate::kubelet::stopped_pods;
use crate::runtime::{self, PodRules, RuntimeEvent};

mod binding;
mod network;

use binding::{bind, report_unschedulable};

/// The actors of this node's Pods by Pod uid, shared with everything that looks Pods up.
pub(crate) type PodRegistry = Arc<RwLock<HashMap<String, Arc<ActorHandle>>>>;

/// Commands from a [`NodeHandle`](crate::kubelet::node::NodeHandle).
pub(super) enum Command {
    /// End all actors and leave their Pods running; the sender is notified when the actors have ended.
    Release(oneshot::Sender<()>),
}

/// Result of one of the manager's own tasks.
enum TaskResult {
    /// A Pod was bound to this node.
    Bound(Box<Pod>),
    Nothing,
}

/// The state of the main loop.
pub(super) struct Manager {
    node: Arc<NodeContext>,
    registry: PodRegistry,
    embedded: bool,
    labels: BTreeMap<String, String>,
    policy_inputs: PolicyInputs,
    /// The rules last sent to each actor, by Pod uid.
    rules: HashMap<String, PodRules>,
    actors: JoinSet<String>,
    /// Receivers that close when an actor ends, by namespace and name, so that a new Pod waits for the previous one of
    /// its name.
    by_name: HashMap<(String, String), watch::Receiver<()>>,
    tasks: JoinSet<TaskResult>,
    /// Uids of Pods whose binding is being written.
    binding: BTreeSet<String>,
    /// Pods that the runtime had when the node started and whose objects have not been seen yet, by uid.
    running_pods: HashMap<String, runtime::PodState>,
    /// Uids of Pods that were stopped on purpose with the last node process.
    stopped_pods: BTreeSet<String>,
    owners: Owners,
    names: SharedNames,
    egress: EgressPods,
    /// The Pods were listed at least once.
    synced: bool,
    /// Lists that rules are computed from and that have not ended for the first time.
    awaited_lists: BTreeSet<&'static str>,
    /// Uids of the Pods in the current list of the Pod watch, and in that of the watch of other Pods.
    listed: BTreeSet<String>,
    peers_listed: BTreeSet<String>,
    /// Resources that this node is not allowed to list; each is logged once.
    forbidden: BTreeSet<&'static str>,
    runtime_events: broadcast::Receiver<RuntimeEvent>,
    runtime_closed: bool,
}

impl Manager {
    pub(super) async fn open(
        node: Arc<NodeContext>,
        registry: PodRegistry,
        names: SharedNames,
        gateway: Arc<Gateway>,
        options: &NodeOptions,
    ) -> Result<Self, NodeError> {
        // Subscribe before listing: an exit in between is then in the list, in the events, or harmlessly in both.
        let runtime_events = node.runtime.events();
        let running_pods = node.runtime.list().await.map_err(NodeError::List)?;
        let owners = Owners::open(node.client.clone(), &options.data_dir)
            .map_err(|source| NodeError::Folder { path: options.data_dir.clone(), source })?;
        Ok(Self {
            embedded: options.embedded,
            labels: registration::labels(&options.node_name),
            policy_inputs: PolicyInputs { pod_network: node.runtime.pod_network(), ..PolicyInputs::default() },
            rules: HashMap::new(),
            actors: JoinSet::new(),
            by_name: HashMap::new(),
            tasks: JoinSet::new(),
            binding: BTreeSet::new(),
            running_pods: running_pods.into_iter().map(|p| (p.sandbox.uid.clone(), p)).collect(),
            stopped_pods: stopped_pods::take(&options.data_dir),
            owners,
            names,
            egress: EgressPods::new(gateway),
            synced: false,
            awaited_lists: network::lists(options.embedded),
            listed: BTreeSet::new(),
            peers_listed: BTreeSet::new(),
            forbidden: BTreeSet::new(),
            runtime_events,
            runtime_closed: false,
            node,
            registry,
        })
    }

    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let client = self.node.client.clone();
        let (mut pods, mut peers) = self.watch_pods(&client);
        let mut policies = watch_objects::<NetworkPolicy>(Api::all(client.clone()), watcher::Config::default());
        let mut namespaces = watch_objects::<Namespace>(Api::all(client.clone()), watcher::Config::default());
        let mut services = watch_objects::<Service>(Api::all(client), watcher::Config::default());
        loop {
            tokio::select! {
                Some(event) = pods.next() => self.pod_event(event).await,
                Some(event) = peers.next() => self.peer_event(event).await,
                Some(event) = policies.next() => self.policy_event(event).await,
                Some(event) = namespaces.next() => self.namespace_event(event).await,
                Some(event) = services.next() => self.service_event(event).await,
                event = self.runtime_events.recv(), if !self.runtime_closed => self.runtime_event(event).await,
                Some(result) = self.tasks.join_next(), if !self.tasks.is_empty() => self.task_finished(result).await,
                Some(ended) = self.actors.join_next(), if !self.actors.is_empty() => self.actor_ended(ended).await,
                Some(event) = self.owners.next() => self.owner_event(event).await,
                command = commands.recv() => match command {
                    Some(Command::Release(done)) => {
                        self.release_pods().await;
                        let _ = done.send(());
                        return;
                    }
                    None => return,
                },
            }
        }
    }

    /// The watches of this node's Pods and of other Pods. In embedded mode one watch covers all Pods. Otherwise the
    /// first covers the Pods bound to this node, which is all that a kubelet may list, and the second all Pods, if the
    /// node may list them.
    fn watch_pods(&self, client: &kube::Client) -> (Watch<Pod>, Watch<Pod>) {
        let all = || watch_objects::<Pod>(Api::all(client.clone()), watcher::Config::default());
        if self.embedded {
            return (all(), futures::stream::pending().boxed());
        }
        let bound = format!("spec.nodeName={}", self.node.settings.node_name);
        (watch_objects(Api::all(client.clone()), watcher::Config::default().fields(&bound)), all())
    }

    async fn pod_event(&mut self, event: Result<watcher::Event<Pod>, watcher::Error>) {
        match event {
            Ok(watcher::Event::Init) => self.listed.clear(),
            Ok(watcher::Event::InitApply(pod)) => {
                self.listed.insert(uid(&pod));
                self.pod_applied(pod).await;
            }
            Ok(watcher::Event::InitDone) => {
                self.pods_listed().await;
                self.list_ended(network::PODS).await;
            }
            Ok(watcher::Event::Apply(pod)) => self.pod_applied(pod).await,
            Ok(watcher::Event::Delete(pod)) => self.pod_gone(&uid(&pod)).await,
            Err(error) => self.watch_interrupted(network::PODS, &error).await,
        }
    }

    async fn pod_applied(&mut self, pod: Pod) {
        let key = uid(&pod);
        let changed = self.update_peer(&pod);
        let node = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or_default();
        if node == self.node.settings.node_name {
            self.dispatch(pod).await;
        } else if node.is_empty() && self.embedded {
            self.schedule(pod);
        }
        if changed {
            self.refresh_rules_after_change(&key).await;
        }
    }

    /// Sends a Pod of this node to its actor; a new Pod gets an actor.
    async fn dispatch(&mut self, pod: Pod) {
        let key = uid(&pod);
        let handle = self.registry.read().get(&key).cloned();
        match handle {
            Some(handle) => {
                let _ = handle.inbox.send(Message::Update(Arc::new(pod))).await;
            }
            None => self.start_actor(pod),
        }
    }

    fn start_actor(&mut self, pod: Pod) {
        let key = uid(&pod);
        self.owners.record(&pod);
        let name = (pod.metadata.namespace.clone().unwrap_or_default(), pod.metadata.name.clone().unwrap_or_default());
        let policy_pod = PolicyPod::of(&pod);
        let rules = self.policy_inputs.rules(&policy_pod);
        self.rules.insert(key.clone(), rules.clone());
        let found = self.running_pods.remove(&key);
        if self.embedded && found.is_none() && pod.status.as_ref().is_none_or(|status| status.start_time.is_none()) {
            self.record_scheduled(&pod);
        }
        let (state, supervisor_lost) = if self.stopped_pods.remove(&key) {
            (record_of_stopped_pod(&pod), false)
        } else {
            recover(&pod, found.as_ref(), &self.node.settings.backoff, Timestamp::now())
        };
        let args = ActorArgs {
            node: Arc::clone(&self.node),
            pod: Arc::new(pod),
            state,
            rules,
            predecessor: self.by_name.get(&name).cloned(),
            supervisor_lost,
        };
        let (handle, run) = actor::spawn(args);
        self.by_name.insert(name, handle.ended.clone());
        self.registry.write().insert(key, Arc::new(handle));
        self.actors.spawn(run);
    }

    /// Records the event that a scheduler records when it binds a Pod.
    fn record_scheduled(&self, pod: &Pod) {
        let [namespace, name] = [&pod.metadata.namespace, &pod.metadata.name].map(|t| t.as_deref().unwrap_or_default());
        let message = format!("Successfully assigned {namespace}/{name} to {}", self.node.settings.node_name);
        self.node.recorder.pod(pod, Severity::Normal, "Scheduled", message);
    }

    async fn pods_listed(&mut self) {
        let known: Vec<String> = self.registry.read().keys().cloned().collect();
        let gone: Vec<String> = known.into_iter().filter(|k| !self.listed.contains(k)).collect();
        for key in gone {
            self.pod_gone(&key).await;
        }
        // Outside embedded mode the list has only this node's Pods; other Pods have a watch of their own.
        if self.embedded {
            self.policy_inputs.pods.retain(|key, _| self.listed.contains(key));
        }
        if !self.synced {
            self.synced = true;
            for (key, _) in std::mem::take(&mut self.running_pods) {
                info!(uid = key, "Removing a Pod whose object is gone");
                let runtime = self.node.runtime.clone();
                self.tasks.spawn(async move {
                    if let Err(error) = runtime.remove_pod(&key).await {
                        warn!(%error, uid = key, "Could not remove a Pod");
                    }
                    TaskResult::Nothing
                });
            }
            let kept = self.node.runtime.kept_owners().await.unwrap_or_default();
            let granted = self.node.settings.allowed.folders.owners();
            self.owners.start(kept.into_iter().chain(granted).collect());
        }
    }

    async fn pod_gone(&mut self, key: &str) {
        self.binding.remove(key);
        let handle = self.registry.read().get(key).cloned();
        if let Some(handle) = handle {
            let _ = handle.inbox.send(Message::Gone).await;
        }
        self.remove_peer(key).await;
    }

    fn schedule(&mut self, pod: Pod) {
        match scheduling::decide(&pod, &self.labels) {
            Decision::Leave => {}
            Decision::Bind => {
                if self.binding.insert(uid(&pod)) {
                    self.tasks.spawn(bind(Arc::clone(&self.node), pod));
                }
            }
            Decision::Unschedulable(message) => {
                self.tasks.spawn(report_unschedulable(Arc::clone(&self.node), pod, message));
            }
        }
    }

    async fn task_finished(&mut self, result: Result<TaskResult, tokio::task::JoinError>) {
        match result {
            Ok(TaskResult::Bound(pod)) => {
                self.binding.remove(&uid(&pod));
                // The watch may have delivered the bound Pod already, or its deletion.
                let known = self.registry.read().contains_key(&uid(&pod));
                if !known && self.policy_inputs.pods.contains_key(&uid(&pod)) {
                    self.start_actor(*pod);
                }
            }
            Ok(TaskResult::Nothing) => {}
            Err(error) if error.is_cancelled() => {}
            Err(error) => tracing::error!(%error, "A task of the node panicked"),
        }
    }

    async fn actor_ended(&mut self, ended: Result<String, tokio::task::JoinError>) {
        let Ok(key) = ended else {
            tracing::error!("The actor of a Pod panicked; its Pod is unmanaged until the node restarts");
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
            self.delete_owner_storage(handle.owner.clone());
        }
    }

    async fn owner_event(&mut self, event: OwnerEvent) {
        let OwnerEvent::Gone(owner) = event;
        let used = self.registry.read().values().any(|handle| handle.owner == owner);
        // Grants end at once: Pods that name an owner that is gone would otherwise keep them, and can be forged.
        // An owner that is used and not known to be gone is a Pod without a controller.
        if !used || self.owners.is_gone(&owner) {
            self.node.settings.allowed.folders.revoke(&owner);
        }
        if !used {
            self.delete_owner_storage(owner);
        }
    }

    fn delete_owner_storage(&mut self, owner: String) {
        self.owners.forget(&owner);
        let runtime = self.node.runtime.clone();
        self.tasks.spawn(async move {
            if let Err(error) = runtime.delete_owner_storage(&owner).await {
                warn!(%error, owner, "Could not remove the writable layers of an owner");
            }
            TaskResult::Nothing
        });
    }

    async fn runtime_event(&mut self, event: Result<RuntimeEvent, broadcast::error::RecvError>) {
        match event {
            Ok(RuntimeEvent::ContainerExited { pod, container, attempt, exit }) => {
                self.send_to_actor(&pod, Message::Exited { container, attempt, exit }).await;
            }
            Ok(RuntimeEvent::SupervisorLost { pod }) => self.send_to_actor(&pod, Message::SupervisorLost).await,
            Ok(RuntimeEvent::RulesLost) => self.resend_rules().await,
            Err(broadcast::error::RecvError::Lagged(missed)) => {
                debug!(missed, "Runtime events were missed, comparing every Pod");
                self.resync_all().await;
                self.resend_rules().await;
            }
            Err(broadcast::error::RecvError::Closed) => {
                tracing::error!("The runtime ended; Pod status is no longer updated");
                self.runtime_closed = true;
            }
        }
    }

    /// Sends every actor the rules of its Pod again.
    async fn resend_rules(&mut self) {
        for (pod, rules) in self.rules.clone() {
            self.send_to_actor(&pod, Message::Rules(rules)).await;
        }
    }

    /// Sends every Pod's current state as if it had just changed; actors ignore what they already know.
    async fn resync_all(&mut self) {
        let Ok(states) = self.node.runtime.list().await else { return };
        for state in states {
            let pod = state.sandbox.uid;
            if !state.alive {
                self.send_to_actor(&pod, Message::SupervisorLost).await;
                continue;
            }
            for container in state.containers {
                if let Some(exit) = container.exit {
                    let message = Message::Exited { container: container.name, attempt: container.attempt, exit };
                    self.send_to_actor(&pod, message).await;
                }
            }
        }
    }

    async fn send_to_actor(&mut self, key: &str, message: Message) {
        let handle: Option<Arc<ActorHandle>> = self.registry.read().get(key).cloned();
        if let Some(handle) = handle {
            let _ = handle.inbox.send(message).await;
        }
    }

    /// Closes the actors' message queues, which ends the actors and leaves their Pods running.
    async fn release_pods(&mut self) {
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

/// A watch that never ends and backs off while the API is unreachable.
fn watch_objects<K>(api: Api<K>, config: watcher::Config) -> Watch<K>
where
    K: kube::Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    watcher(api, config).default_backoff().boxed()
}

/// The record of a Pod that was stopped on purpose: its containers start again, and the restart count goes on.
fn record_of_stopped_pod(pod: &Pod) -> PodRecord {
    let (mut state, _) = recover(pod, None, &Default::default(), Timestamp::now());
    if state.failure.is_some()
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
