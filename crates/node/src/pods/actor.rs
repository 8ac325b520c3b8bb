//! One task per Pod: it plans, carries the plan out, and reports, until the Pod is gone.
//!
//! The actor owns every task it starts (they end with it) and is the only writer of its Pod's status.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tracing::{Instrument, debug, info_span};

use super::backoff::Backoff;
use super::model::{PodState, Verdict};
use super::mounts::Prepared;
use super::plan::plan;
use super::prober::ProbeReport;
use super::refuse;
use super::sandbox;
use super::shared::Shared;
use super::status::{StatusContext, compute};
use crate::evict::Limits;
use crate::runtime::{Exit, PodRules, ResolvedImage};

mod act;
mod ledger;
mod ports;
mod probing;
mod react;
mod work;

use ledger::Ledger;
pub(crate) use react::termination;

use react::Done;

/// Messages waiting for a Pod's actor. Watch updates replace each other, so few are ever in flight.
const INBOX: usize = 256;

/// What the rest of the node tells a Pod's actor.
#[derive(Debug)]
pub enum Message {
    /// The object changed.
    Update(Arc<Pod>),
    /// The object is gone from the API: end at once, there is nobody to report to.
    Gone,
    Exited {
        container: String,
        attempt: u32,
        exit: Exit,
    },
    SupervisorLost,
    /// The node ends the Pod (eviction).
    End(Verdict),
    /// The flows that policies allow changed.
    Rules(PodRules),
}

/// What others may see of a Pod without asking its actor.
#[derive(Clone, Debug, Default)]
pub struct View {
    pub status: PodStatus,
    /// Attempt number by container, for those that ever started.
    pub attempts: BTreeMap<String, u32>,
    /// What its parts may use on disk.
    pub storage: Arc<Limits>,
    /// It has ended or is about to: nothing more is asked of it.
    pub ending: bool,
}

/// A running actor.
#[derive(Debug)]
pub struct Handle {
    pub inbox: mpsc::Sender<Message>,
    pub view: watch::Receiver<View>,
    pub namespace: String,
    pub name: String,
    /// The uid its layers are kept under.
    pub owner: String,
    /// Resolves (to an error) once the actor has ended.
    pub ended: watch::Receiver<()>,
}

/// The start of an actor.
pub struct Birth {
    pub shared: Arc<Shared>,
    pub pod: Arc<Pod>,
    pub state: PodState,
    /// Flows allowed when the sandbox comes up.
    pub rules: PodRules,
    /// An earlier Pod of the same name whose end must be awaited.
    pub predecessor: Option<watch::Receiver<()>>,
    /// Resume a Pod whose supervisor died while nobody looked.
    pub lost: bool,
}

/// Makes an actor and the future that runs it; the caller owns the task.
pub fn spawn(birth: Birth) -> (Handle, impl Future<Output = String> + Send) {
    let (sender, inbox) = mpsc::channel(INBOX);
    let (view_sender, view) = watch::channel(View::default());
    let (alive, ended) = watch::channel(());
    let meta = birth.pod.metadata.clone();
    let handle = Handle {
        inbox: sender.clone(),
        view,
        namespace: meta.namespace.clone().unwrap_or_default(),
        name: meta.name.clone().unwrap_or_default(),
        owner: sandbox::owner(&birth.pod),
        ended,
    };
    let span = info_span!("pod", namespace = handle.namespace, name = handle.name, uid = meta.uid.as_deref());
    let (probe_sender, probe_reports) = mpsc::channel(INBOX);
    let actor = Actor {
        uid: meta.uid.clone().unwrap_or_default(),
        ledger: Ledger::new(birth.pod.status.clone()),
        shared: birth.shared,
        pod: birth.pod,
        state: birth.state,
        rules: birth.rules,
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
        if let Some(mut predecessor) = birth.predecessor {
            // Ends with an error when the other actor drops its side.
            while predecessor.changed().await.is_ok() {}
        }
        actor.run(inbox, probe_reports, birth.lost).await;
        drop(alive);
        uid
    };
    (handle, run.instrument(span))
}

struct Actor {
    shared: Arc<Shared>,
    uid: String,
    pod: Arc<Pod>,
    state: PodState,
    rules: PodRules,
    images: BTreeMap<String, ResolvedImage>,
    volumes: Arc<BTreeMap<String, Prepared>>,
    storage: Arc<Limits>,
    /// Waits for what the volumes' files come from to change.
    source_watch: Option<AbortHandle>,
    tasks: JoinSet<Done>,
    /// The stop under way for a container.
    stops: HashMap<String, AbortHandle>,
    /// The probes of a container.
    probes: HashMap<String, Vec<AbortHandle>>,
    /// Exits that overtook the answer to their start.
    early_exits: HashMap<(String, u32), Exit>,
    pull_backoff: HashMap<String, Backoff>,
    probe_sender: mpsc::Sender<ProbeReport>,
    /// The object's removal is under way.
    deleting: bool,
    /// The object no longer exists: nothing is written.
    gone: bool,
    /// The object was removed by this actor: done.
    deleted: bool,
    ledger: Ledger,
    view: watch::Sender<View>,
}

impl Actor {
    async fn run(mut self, mut inbox: mpsc::Receiver<Message>, mut probes: mpsc::Receiver<ProbeReport>, lost: bool) {
        self.review();
        if lost {
            self.supervisor_lost();
        }
        self.resume_probes();
        while !self.is_over() {
            let wake_at = self.advance();
            if self.is_over() {
                break;
            }
            tokio::select! {
                message = inbox.recv() => match message {
                    Some(message) => self.receive(message).await,
                    None => {
                        // The node is stopping; the Pod runs on and is found again.
                        debug!("Let go of the Pod");
                        return;
                    }
                },
                Some(report) = probes.recv() => self.probe_reported(report),
                Some(done) = self.tasks.join_next(), if !self.tasks.is_empty() => match done {
                    Ok(done) => self.complete(done).await,
                    Err(error) if error.is_cancelled() => {}
                    Err(error) => tracing::error!(%error, "A task of this Pod panicked"),
                },
                () = sleep_until(wake_at) => {}
            }
        }
        self.clean_up().await;
    }

    /// Reads the spec once; a refused Pod never starts anything.
    fn review(&mut self) {
        let review = refuse::review(&self.pod, &self.shared.settings.allowed);
        if self.state.verdict.is_none() && self.state.containers.is_empty() {
            for (reason, message) in &review.warnings {
                self.warn(reason, message.clone());
            }
        }
        if let Some(verdict) = review.refusal
            && self.state.verdict.is_none()
        {
            self.warn(&verdict.reason, verdict.message.clone());
            self.state.verdict = Some(verdict);
        }
        self.state.started_at = self.state.started_at.or_else(|| Some(Timestamp::now()));
    }

    /// Plans and acts until nothing more can be done now; returns when to look again.
    fn advance(&mut self) -> Option<Timestamp> {
        loop {
            let now = Timestamp::now();
            let plan = plan(&self.pod, &self.state, now);
            let mut again = false;
            for action in plan.actions {
                again |= self.begin(action, now);
            }
            if !again {
                let publish_at = self.publish(now);
                return [plan.wake_at, publish_at].into_iter().flatten().min();
            }
        }
    }

    /// Computes the status and, when due, starts writing it.
    fn publish(&mut self, now: Timestamp) -> Option<Timestamp> {
        let context = StatusContext { now, host_ips: &self.shared.host_ips, previous: self.ledger.latest() };
        let status = compute(&self.pod, &self.state, context);
        let attempts = self
            .state
            .containers
            .iter()
            .filter(|(_, c)| !matches!(c.instance, super::model::Instance::None) || c.last.is_some());
        let attempts = attempts.map(|(name, c)| (name.clone(), c.restarts)).collect();
        let ended = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
        let ending = ended || self.state.verdict.is_some() || super::model::deletion_deadline(&self.pod).is_some();
        self.view.send_if_modified(|view| {
            let changed = view.status != status
                || view.attempts != attempts
                || view.ending != ending
                || !Arc::ptr_eq(&view.storage, &self.storage);
            if changed {
                *view = View { status: status.clone(), attempts, storage: Arc::clone(&self.storage), ending };
            }
            changed
        });
        if self.gone {
            return None;
        }
        let due = self.ledger.offer(status, now);
        if let ledger::Due::Now(patch) = due {
            let (client, pod) = (self.shared.client.clone(), Arc::clone(&self.pod));
            self.tasks.spawn(async move { Done::StatusWritten(work::write_status(client, &pod, patch).await) });
            return None;
        }
        due.at()
    }

    fn is_over(&self) -> bool {
        self.deleted || (self.gone && !self.state.any_alive() && self.sandbox_is_gone())
    }

    fn sandbox_is_gone(&self) -> bool {
        use super::model::Sandbox;
        matches!(self.state.sandbox, Sandbox::Absent | Sandbox::Failed { .. })
    }

    /// Removes what is left on this machine; retried because nothing else would.
    async fn clean_up(&mut self) {
        self.tasks.shutdown().await;
        for pause in [0, 1, 5, 30] {
            tokio::time::sleep(Duration::from_secs(pause)).await;
            match self.shared.runtime.remove_pod(&self.uid).await {
                Ok(()) => break,
                Err(error) => tracing::warn!(%error, "Could not remove a Pod, trying again"),
            }
        }
        let key = sandbox::own_key(&self.pod);
        if sandbox::owner(&self.pod) == key
            && let Err(error) = self.shared.runtime.forget_owner(&key).await
        {
            tracing::warn!(%error, "Could not remove the writable layers of a Pod");
        }
        let logs = self.shared.pod_log_dir(&self.uid);
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
            // A little late rather than a little early: waking early would plan the same again.
            tokio::time::sleep(left + Duration::from_millis(1)).await;
        }
    }
}
