//! The actor of a Pod: one task per Pod that plans, carries the plan out and reports status until the Pod is removed.
//!
//! An actor owns every task it starts (they are aborted with it) and is the only writer of its Pod's status.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tracing::{Instrument, debug, info_span};

use crate::kubelet::admission;
use crate::kubelet::backoff::Backoff;
use crate::kubelet::context::NodeContext;
use crate::kubelet::eviction::StorageLimits;
use crate::kubelet::model::{Instance, PodFailure, PodRecord, SandboxState, deletion_deadline};
use crate::kubelet::plan::plan;
use crate::kubelet::pod_sandbox;
use crate::kubelet::probes::prober::ProbeReport;
use crate::kubelet::status::{StatusContext, compute};
use crate::kubelet::volumes::mounts::PreparedVolume;
use crate::runtime::{Exit, PodRules, ResolvedImage};

mod actions;
mod handlers;
mod probing;
mod sandboxd_ports;
mod status_tracker;
mod tasks;
mod termination;

pub(crate) use termination::{container_id, termination};

use handlers::TaskResult;
use status_tracker::StatusTracker;

/// Capacity of an actor's message queue. Watch updates supersede each other, so few messages are ever queued.
const INBOX_CAPACITY: usize = 256;

/// Messages from the manager and the disk monitor to a Pod's actor.
#[derive(Debug)]
pub enum Message {
    /// The Pod object changed.
    Update(Arc<Pod>),
    /// The Pod object no longer exists in the API: kill the containers at once and write no more status.
    Gone,
    Exited {
        container: String,
        attempt: u32,
        exit: Exit,
    },
    SupervisorLost,
    /// The node ends the Pod, for example by eviction.
    Fail(PodFailure),
    /// The flows that network policies allow for this Pod changed.
    Rules(PodRules),
}

/// State of a Pod that other parts of the node read without sending its actor a message.
#[derive(Clone, Debug, Default)]
pub struct PodView {
    pub status: PodStatus,
    /// Attempt number by container name, for containers that have started at least once.
    pub attempts: BTreeMap<String, u32>,
    /// The container that runs sandboxd.
    pub sandboxd_container: Option<String>,
    /// Storage limits of the Pod's containers and volumes.
    pub storage: Arc<StorageLimits>,
    /// The Pod has ended or is being ended: it is neither measured nor evicted any more.
    pub ending: bool,
}

/// Handle to a running actor.
#[derive(Debug)]
pub struct ActorHandle {
    pub inbox: mpsc::Sender<Message>,
    pub view: watch::Receiver<PodView>,
    pub namespace: String,
    pub name: String,
    /// Key under which the Pod's writable layers are kept, see [`pod_sandbox::owner`].
    pub owner: String,
    /// Closed once the actor has ended: waiting for a change then returns an error.
    pub ended: watch::Receiver<()>,
}

/// Arguments for starting an actor.
pub struct ActorArgs {
    pub node: Arc<NodeContext>,
    pub pod: Arc<Pod>,
    pub state: PodRecord,
    /// Flows that are allowed when the Pod's sandbox is created.
    pub rules: PodRules,
    /// The actor of an earlier Pod of the same name; this actor starts only after that one has ended.
    pub predecessor: Option<watch::Receiver<()>>,
    /// The Pod's supervisor died while the node was not running.
    pub supervisor_lost: bool,
}

/// Creates an actor and the future that runs it; the caller owns the task.
pub fn spawn(args: ActorArgs) -> (ActorHandle, impl Future<Output = String> + Send) {
    let (sender, inbox) = mpsc::channel(INBOX_CAPACITY);
    let (view_sender, view) = watch::channel(PodView::default());
    let (alive, ended) = watch::channel(());
    let meta = args.pod.metadata.clone();
    let handle = ActorHandle {
        inbox: sender.clone(),
        view,
        namespace: meta.namespace.clone().unwrap_or_default(),
        name: meta.name.clone().unwrap_or_default(),
        owner: pod_sandbox::owner(&args.pod),
        ended,
    };
    let span = info_span!("pod", namespace = handle.namespace, name = handle.name, uid = meta.uid.as_deref());
    let (probe_sender, probe_reports) = mpsc::channel(INBOX_CAPACITY);
    let actor = Actor {
        uid: meta.uid.clone().unwrap_or_default(),
        status_tracker: StatusTracker::new(args.pod.status.clone()),
        node: args.node,
        pod: args.pod,
        state: args.state,
        rules: args.rules,
        images: BTreeMap::new(),
        volumes: Arc::default(),
        storage: Arc::default(),
        source_watch: None,
        tasks: JoinSet::new(),
        stops: HashMap::new(),
        probes: HashMap::new(),
        early_exits: HashMap::new(),
        pull_backoff: HashMap::new(),
        probe_sender,
        deleting: false,
        gone: false,
        deleted: false,
        view: view_sender,
    };
    let run = async move {
        let uid = actor.uid.clone();
        if let Some(mut predecessor) = args.predecessor {
            // `changed` returns an error when the other actor has ended and dropped its sender.
            while predecessor.changed().await.is_ok() {}
        }
        actor.run(inbox, probe_reports, args.supervisor_lost).await;
        drop(alive);
        uid
    };
    (handle, run.instrument(span))
}

struct Actor {
    node: Arc<NodeContext>,
    uid: String,
    pod: Arc<Pod>,
    state: PodRecord,
    rules: PodRules,
    images: BTreeMap<String, ResolvedImage>,
    volumes: Arc<BTreeMap<String, PreparedVolume>>,
    storage: Arc<StorageLimits>,
    /// Watches the objects from which the volumes' files are written.
    source_watch: Option<AbortHandle>,
    tasks: JoinSet<TaskResult>,
    /// The running stop task of each container.
    stops: HashMap<String, AbortHandle>,
    /// The running probe tasks of each container.
    probes: HashMap<String, Vec<AbortHandle>>,
    /// Exits that were reported before the result of their start, by container and attempt.
    early_exits: HashMap<(String, u32), Exit>,
    pull_backoff: HashMap<String, Backoff>,
    probe_sender: mpsc::Sender<ProbeReport>,
    /// A delete request for the Pod object is in flight.
    deleting: bool,
    /// The Pod object no longer exists: no status is written.
    gone: bool,
    /// This actor has deleted the Pod object: it has nothing left to do.
    deleted: bool,
    status_tracker: StatusTracker,
    view: watch::Sender<PodView>,
}

impl Actor {
    async fn run(
        mut self,
        mut inbox: mpsc::Receiver<Message>,
        mut probes: mpsc::Receiver<ProbeReport>,
        supervisor_lost: bool,
    ) {
        self.admit();
        if supervisor_lost {
            self.supervisor_lost();
        }
        self.resume_probes();
        while !self.is_finished() {
            let wake_at = self.advance();
            if self.is_finished() {
                break;
            }
            tokio::select! {
                message = inbox.recv() => match message {
                    Some(message) => self.handle_message(message).await,
                    None => {
                        // The node is stopping; the Pod keeps running and the next node process recovers it.
                        debug!("Released the Pod");
                        return;
                    }
                },
                Some(report) = probes.recv() => self.probe_reported(report),
                Some(joined) = self.tasks.join_next(), if !self.tasks.is_empty() => match joined {
                    Ok(result) => self.handle_result(result).await,
                    Err(error) if error.is_cancelled() => {}
                    Err(error) => tracing::error!(%error, "A task of this Pod panicked"),
                },
                () = sleep_until(wake_at) => {}
            }
        }
        self.clean_up().await;
    }

    /// Reviews the spec once, before anything is started; a refused Pod starts nothing.
    fn admit(&mut self) {
        let review = admission::review(&self.pod, &self.node.settings.allowed);
        if self.state.failure.is_none() && self.state.containers.is_empty() {
            for (reason, message) in &review.warnings {
                self.record_warning(reason, message.clone());
            }
        }
        if let Some(failure) = review.refusal
            && self.state.failure.is_none()
        {
            self.record_warning(&failure.reason, failure.message.clone());
            self.state.failure = Some(failure);
        }
        self.state.started_at = self.state.started_at.or_else(|| Some(Timestamp::now()));
    }

    /// Plans and starts actions until none is left for now; returns when to plan again without an event.
    fn advance(&mut self) -> Option<Timestamp> {
        loop {
            let now = Timestamp::now();
            let plan = plan(&self.pod, &self.state, now);
            let mut again = false;
            for action in plan.actions {
                again |= self.start_action(action);
            }
            if !again {
                let publish_at = self.publish(now);
                return [plan.wake_at, publish_at].into_iter().flatten().min();
            }
        }
    }

    /// Computes the status, publishes it in the view and, when a write is due, starts the write. Returns when the next
    /// write is due.
    fn publish(&mut self, now: Timestamp) -> Option<Timestamp> {
        let context = StatusContext { now, host_ips: &self.node.host_ips, previous: self.status_tracker.latest() };
        let status = compute(&self.pod, &self.state, context);
        let attempts =
            self.state.containers.iter().filter(|(_, c)| !matches!(c.instance, Instance::None) || c.last.is_some());
        let attempts = attempts.map(|(name, c)| (name.clone(), c.restarts)).collect();
        let ended = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
        let ending = ended || self.state.failure.is_some() || deletion_deadline(&self.pod).is_some();
        let sandboxd_container = self.sandboxd_container();
        self.view.send_if_modified(|view| {
            let changed = view.status != status
                || view.attempts != attempts
                || view.ending != ending
                || view.sandboxd_container != sandboxd_container
                || !Arc::ptr_eq(&view.storage, &self.storage);
            if changed {
                let storage = Arc::clone(&self.storage);
                *view = PodView { status: status.clone(), attempts, sandboxd_container, storage, ending };
            }
            changed
        });
        if self.gone {
            return None;
        }
        let due = self.status_tracker.offer(status, now);
        if let status_tracker::Due::Now(patch) = due {
            let (client, pod) = (self.node.client.clone(), Arc::clone(&self.pod));
            self.tasks.spawn(async move { TaskResult::StatusWritten(tasks::write_status(client, &pod, patch).await) });
            return None;
        }
        due.at()
    }

    /// Whether the actor has nothing left to do but to clean up.
    fn is_finished(&self) -> bool {
        self.deleted || (self.gone && !self.state.any_alive() && self.sandbox_is_gone())
    }

    fn sandbox_is_gone(&self) -> bool {
        matches!(self.state.sandbox, SandboxState::Absent | SandboxState::Failed { .. })
    }

    /// Removes the Pod's sandbox, layers and logs from this machine. Retries, because no other part of the node would.
    async fn clean_up(&mut self) {
        self.tasks.shutdown().await;
        for delay in [0, 1, 5, 30] {
            tokio::time::sleep(Duration::from_secs(delay)).await;
            match self.node.runtime.remove_pod(&self.uid).await {
                Ok(()) => break,
                Err(error) => tracing::warn!(%error, "Could not remove a Pod, retrying"),
            }
        }
        let key = pod_sandbox::own_key(&self.pod);
        self.node.settings.allowed.folders.revoke(&key);
        if pod_sandbox::owner(&self.pod) == key
            && let Err(error) = self.node.runtime.delete_owner_storage(&key).await
        {
            tracing::warn!(%error, "Could not remove the writable layers of a Pod");
        }
        let logs = self.node.pod_log_dir(&self.uid);
        if let Err(error) = tokio::fs::remove_dir_all(&logs).await
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(%error, path = %logs.display(), "Could not remove logs");
        }
    }
}

async fn sleep_until(at: Option<Timestamp>) {
    match at {
        None => std::future::pending().await,
        Some(at) => {
            let left = Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default();
            // One millisecond late on purpose: a wake-up before the deadline would produce the same plan again.
            tokio::time::sleep(left + Duration::from_millis(1)).await;
        }
    }
}
