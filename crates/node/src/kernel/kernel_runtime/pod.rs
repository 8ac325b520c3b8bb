//! One Pod in the node's table, kept up to date by events of its supervisor.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use super::KernelRuntime;
use crate::kernel::host::cgroup::CgroupPlan;
use crate::kernel::storage::layers;
use crate::kernel::supervisor::client::{Reply, SupervisorClient, SupervisorEvent};
use crate::kernel::supervisor::plan::PodPlan;
use crate::kernel::supervisor::protocol::Call;
use crate::kernel::sys;
use crate::runtime::{ContainerState, Exit, PodRules, PodSandbox, PodState, RuntimeError, RuntimeEvent};

/// Timeout for a supervisor's exit after its last response.
const EXIT_DEADLINE: Duration = Duration::from_secs(2);

/// One Pod with a supervisor.
pub(super) struct Pod {
    pub(super) plan: PodPlan,
    pub(super) sandbox: PodSandbox,
    pub(super) supervisor: Arc<SupervisorClient>,
    /// The key for its layers and ids.
    pub(super) storage_key: String,
    inner: Mutex<PodInner>,
    /// Changes with every exit.
    changed: watch::Sender<()>,
    /// Serialises changes of its network rules; the last one removes them.
    pub(super) rules_lock: Mutex<()>,
    /// An unused socket inside the Pod.
    socket: Mutex<Option<OwnedFd>>,
    /// The rules last set by its policies, once it has an uplink through pasta.
    uplink_rules: Mutex<Option<PodRules>>,
}

#[derive(Default)]
struct PodInner {
    containers: HashMap<String, ContainerState>,
    /// Memory limits of containers that this process has started.
    memory_limits: HashMap<String, u64>,
    /// Exits received before the response of the start they belong to.
    early: HashMap<(String, u32), Exit>,
    lost: bool,
    removing: bool,
}

impl Pod {
    pub(super) fn new(
        plan: PodPlan,
        sandbox: PodSandbox,
        supervisor: Arc<SupervisorClient>,
        storage_key: String,
        containers: Vec<ContainerState>,
    ) -> Self {
        let containers = containers.into_iter().map(|state| (state.name.clone(), state)).collect();
        let inner = PodInner { containers, lost: supervisor.is_closed(), ..PodInner::default() };
        Self {
            plan,
            sandbox,
            supervisor,
            storage_key,
            inner: Mutex::new(inner),
            changed: watch::Sender::new(()),
            rules_lock: Mutex::new(()),
            socket: Mutex::new(None),
            uplink_rules: Mutex::new(None),
        }
    }

    pub(super) fn state(&self) -> PodState {
        let inner = self.inner.lock();
        let mut containers: Vec<_> = inner.containers.values().cloned().collect();
        containers.sort_by(|a, b| a.name.cmp(&b.name));
        PodState {
            sandbox: self.sandbox.clone(),
            namespace: self.plan.spec.namespace.clone(),
            name: self.plan.spec.name.clone(),
            alive: !inner.lost,
            containers,
        }
    }

    /// Whether the Pod has an uplink, started by this process or an earlier one.
    pub(super) fn has_uplink(&self) -> bool {
        self.uplink_rules.lock().is_some() || self.plan.dir.join("egress.log").exists()
    }

    pub(super) fn remember_uplink_rules(&self, rules: PodRules) {
        *self.uplink_rules.lock() = Some(rules);
    }

    pub(super) fn uplink_rules(&self) -> Option<PodRules> {
        self.uplink_rules.lock().clone()
    }

    pub(super) fn begin_removal(&self) {
        self.inner.lock().removing = true;
    }

    pub(super) fn is_being_removed(&self) -> bool {
        self.inner.lock().removing
    }

    /// Shuts down its processes and its supervisor. If that fails, the caller kills its cgroups.
    pub(super) async fn shut_down(&self) {
        // Opened while the process certainly exists: later its pid may be reused.
        let process =
            (!self.supervisor.is_closed()).then(|| sys::watch_process(self.sandbox.supervisor_pid).ok()).flatten();
        match self.supervisor.call(Call::Shutdown, &[]).await {
            Ok(_) => {}
            Err(RuntimeError::SupervisorLost(_)) => return,
            Err(error) => {
                tracing::warn!(pod = self.sandbox.uid, %error, "Supervisor did not shut down; killing the Pod's groups");
                return;
            }
        }
        // Its cgroups can be removed once it has left them.
        if let Some(process) = process {
            let _ = tokio::time::timeout(EXIT_DEADLINE, process.readable()).await;
        }
    }

    pub(super) fn keep_socket(&self, socket: OwnedFd) {
        *self.socket.lock() = Some(socket);
    }

    /// A socket inside the Pod: the one that came with the start, or a new one from its supervisor.
    pub(super) async fn socket(&self, ipv6: bool) -> Result<OwnedFd, RuntimeError> {
        let kept = if ipv6 { None } else { self.socket.lock().take() };
        if let Some(socket) = kept {
            return Ok(socket);
        }
        let (_, descriptors) = self.supervisor.call(Call::Socket { ipv6 }, &[]).await?;
        let missing = || RuntimeError::Protocol("the response carried no socket".to_owned());
        descriptors.into_iter().next().ok_or_else(missing)
    }

    pub(super) fn note_memory_limit(&self, container: &str, bytes: Option<u64>) {
        if let Some(bytes) = bytes {
            self.inner.lock().memory_limits.insert(container.to_owned(), bytes);
        }
    }

    pub(super) fn memory_limit_of(&self, container: &str) -> Option<u64> {
        self.inner.lock().memory_limits.get(container).copied()
    }

    pub(super) fn note_started(&self, mut state: ContainerState) -> ContainerState {
        let mut inner = self.inner.lock();
        let early = inner.early.remove(&(state.name.clone(), state.attempt));
        let known = inner.containers.get(&state.name).filter(|known| known.attempt == state.attempt);
        state.exit = state.exit.or(early).or(known.and_then(|known| known.exit));
        inner.containers.insert(state.name.clone(), state.clone());
        state
    }

    fn note_exited(&self, container: &str, attempt: u32, exit: Exit) {
        let mut inner = self.inner.lock();
        match inner.containers.get_mut(container) {
            Some(state) if state.attempt == attempt => state.exit = Some(exit),
            _ => drop(inner.early.insert((container.to_owned(), attempt), exit)),
        }
        drop(inner);
        self.changed.send_replace(());
    }

    /// Marks the supervisor as lost. Returns whether that is unexpected: a Pod being removed loses its supervisor on
    /// purpose.
    fn note_lost(&self) -> bool {
        let mut inner = self.inner.lock();
        let unexpected = !inner.lost && !inner.removing;
        inner.lost = true;
        drop(inner);
        self.changed.send_replace(());
        unexpected
    }

    /// Waits until the current attempt of a container has exited; `None` when its supervisor is lost first.
    pub(super) async fn wait_for_exit(&self, container: &str) -> Option<Exit> {
        let mut changes = self.changed.subscribe();
        loop {
            {
                let inner = self.inner.lock();
                match inner.containers.get(container) {
                    Some(state) if state.exit.is_some() => return state.exit,
                    None => return None,
                    Some(_) if inner.lost => return None,
                    Some(_) => {}
                }
            }
            if changes.changed().await.is_err() {
                return None;
            }
        }
    }
}

impl KernelRuntime {
    /// Reads from a supervisor for as long as it lives. Also returns the receiver of its first response.
    pub(super) fn listen(
        &self,
        uid: &str,
        cgroup: &CgroupPlan,
        control: OwnedFd,
    ) -> io::Result<(Arc<SupervisorClient>, oneshot::Receiver<Reply>)> {
        let (pods, events) = (Arc::clone(&self.pods), self.events.clone());
        let (pod_uid, cgroup) = (uid.to_owned(), cgroup.clone());
        let unmounts = Arc::clone(&self.unmounts);
        SupervisorClient::start(uid.to_owned(), control, move |event| {
            let pod = pods.lock().get(&pod_uid).cloned();
            match event {
                SupervisorEvent::Exited { container, attempt, exit, mounts } => {
                    let storage_key = pod.as_ref().map_or(pod_uid.as_str(), |pod| &pod.storage_key);
                    unmounts.add(&layers::key(storage_key, &container), mounts);
                    let Some(pod) = pod else { return };
                    pod.note_exited(&container, attempt, exit);
                    // No receiver is fine: states contain the same.
                    let _ =
                        events.send(RuntimeEvent::ContainerExited { pod: pod_uid.clone(), container, attempt, exit });
                }
                SupervisorEvent::Lost => {
                    if pod.is_some_and(|pod| pod.note_lost()) {
                        let _ = cgroup.kill();
                        let _ = events.send(RuntimeEvent::SupervisorLost { pod: pod_uid.clone() });
                    }
                }
            }
        })
    }
}
