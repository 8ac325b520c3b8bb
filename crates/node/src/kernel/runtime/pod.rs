//! One Pod in the node's books, kept up to date by what its supervisor says.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use super::super::cgroup::CgroupPlan;
use super::super::layers;
use super::super::link::{Link, Notice, Reply};
use super::super::plan::PodPlan;
use super::super::sys;
use super::super::wire::Call;
use super::KernelRuntime;
use crate::runtime::{ContainerState, Exit, PodRules, PodSandbox, PodState, RuntimeError, RuntimeEvent};

/// Longest a supervisor takes to go after its last word.
const EXIT_DEADLINE: Duration = Duration::from_secs(2);

/// One Pod with a supervisor.
pub(super) struct Pod {
    pub(super) plan: PodPlan,
    pub(super) sandbox: PodSandbox,
    pub(super) link: Arc<Link>,
    /// The key its layers and ids are kept under.
    pub(super) keeper: String,
    books: Mutex<PodBooks>,
    /// Changes with every exit, for those who wait for one.
    changed: watch::Sender<()>,
    /// One change of its network rules at a time, the last of which takes them away.
    pub(super) rules_turn: Mutex<()>,
    /// A socket inside the Pod that nobody has used yet.
    socket: Mutex<Option<OwnedFd>>,
    /// What its policies last allowed, once it has a way out through another program.
    way_out: Mutex<Option<PodRules>>,
}

#[derive(Default)]
struct PodBooks {
    containers: HashMap<String, ContainerState>,
    /// Exits heard of before the start they belong to was noted.
    early: HashMap<(String, u32), Exit>,
    lost: bool,
    removing: bool,
}

impl Pod {
    pub(super) fn new(
        plan: PodPlan,
        sandbox: PodSandbox,
        link: Arc<Link>,
        keeper: String,
        containers: Vec<ContainerState>,
    ) -> Self {
        let containers = containers.into_iter().map(|state| (state.name.clone(), state)).collect();
        let books = PodBooks { containers, lost: link.is_closed(), ..PodBooks::default() };
        Self {
            plan,
            sandbox,
            link,
            keeper,
            books: Mutex::new(books),
            changed: watch::Sender::new(()),
            rules_turn: Mutex::new(()),
            socket: Mutex::new(None),
            way_out: Mutex::new(None),
        }
    }

    pub(super) fn state(&self) -> PodState {
        let books = self.books.lock();
        let mut containers: Vec<_> = books.containers.values().cloned().collect();
        containers.sort_by(|a, b| a.name.cmp(&b.name));
        PodState {
            sandbox: self.sandbox.clone(),
            namespace: self.plan.spec.namespace.clone(),
            name: self.plan.spec.name.clone(),
            alive: !books.lost,
            containers,
        }
    }

    /// Whether rules were ever written, by this process or an earlier one.
    pub(super) fn has_way_out(&self) -> bool {
        self.way_out.lock().is_some() || self.plan.dir.join("egress.log").exists()
    }

    pub(super) fn note_rules(&self, rules: PodRules) {
        *self.way_out.lock() = Some(rules);
    }

    pub(super) fn rules_of_way_out(&self) -> Option<PodRules> {
        self.way_out.lock().clone()
    }

    pub(super) fn begin_removal(&self) {
        self.books.lock().removing = true;
    }

    pub(super) fn is_being_removed(&self) -> bool {
        self.books.lock().removing
    }

    /// Ends its processes and its supervisor. One that does not go is left to whoever kills its groups.
    pub(super) async fn shut_down(&self) {
        // Taken while it is there for certain: later its number may be another's.
        let process = (!self.link.is_closed()).then(|| sys::watch_process(self.sandbox.supervisor_pid).ok()).flatten();
        match self.link.call(Call::Shutdown, &[]).await {
            Ok(_) => {}
            Err(RuntimeError::SupervisorLost(_)) => return,
            Err(error) => {
                tracing::warn!(pod = self.sandbox.uid, %error, "Supervisor did not shut down; killing the Pod's groups");
                return;
            }
        }
        // Its groups can be removed once it has left them.
        if let Some(process) = process {
            let _ = tokio::time::timeout(EXIT_DEADLINE, process.readable()).await;
        }
    }

    pub(super) fn keep_socket(&self, socket: OwnedFd) {
        *self.socket.lock() = Some(socket);
    }

    /// A socket inside the Pod: the one that came with its start, or another from its supervisor.
    pub(super) async fn socket(&self, ipv6: bool) -> Result<OwnedFd, RuntimeError> {
        let kept = if ipv6 { None } else { self.socket.lock().take() };
        if let Some(socket) = kept {
            return Ok(socket);
        }
        let (_, descriptors) = self.link.call(Call::Socket { ipv6 }, &[]).await?;
        let missing = || RuntimeError::Protocol("a socket did not come with the answer".to_owned());
        descriptors.into_iter().next().ok_or_else(missing)
    }

    pub(super) fn note_started(&self, mut state: ContainerState) -> ContainerState {
        let mut books = self.books.lock();
        let early = books.early.remove(&(state.name.clone(), state.attempt));
        let known = books.containers.get(&state.name).filter(|known| known.attempt == state.attempt);
        state.exit = state.exit.or(early).or(known.and_then(|known| known.exit));
        books.containers.insert(state.name.clone(), state.clone());
        state
    }

    fn note_exited(&self, container: &str, attempt: u32, exit: Exit) {
        let mut books = self.books.lock();
        match books.containers.get_mut(container) {
            Some(state) if state.attempt == attempt => state.exit = Some(exit),
            _ => drop(books.early.insert((container.to_owned(), attempt), exit)),
        }
        drop(books);
        self.changed.send_replace(());
    }

    /// Tells whether this is news: a Pod being removed loses its supervisor on purpose.
    fn note_lost(&self) -> bool {
        let mut books = self.books.lock();
        let news = !books.lost && !books.removing;
        books.lost = true;
        drop(books);
        self.changed.send_replace(());
        news
    }

    /// Waits until the present attempt of a container has ended; `None` when its supervisor is lost first.
    pub(super) async fn wait_for_exit(&self, container: &str) -> Option<Exit> {
        let mut changes = self.changed.subscribe();
        loop {
            {
                let books = self.books.lock();
                match books.containers.get(container) {
                    Some(state) if state.exit.is_some() => return state.exit,
                    None => return None,
                    Some(_) if books.lost => return None,
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
    /// Listens to a supervisor for as long as it lives. Also gives the receiver of its first word.
    pub(super) fn listen(
        &self,
        uid: &str,
        cgroup: &CgroupPlan,
        control: OwnedFd,
    ) -> io::Result<(Arc<Link>, oneshot::Receiver<Reply>)> {
        let (books, events) = (Arc::clone(&self.pods), self.events.clone());
        let (pod_uid, cgroup) = (uid.to_owned(), cgroup.clone());
        let unmounts = Arc::clone(&self.unmounts);
        Link::start(uid.to_owned(), control, move |notice| {
            let pod = books.lock().get(&pod_uid).cloned();
            match notice {
                Notice::Exited { container, attempt, exit, mounts } => {
                    let keeper = pod.as_ref().map_or(pod_uid.as_str(), |pod| &pod.keeper);
                    unmounts.take(&layers::key(keeper, &container), mounts);
                    let Some(pod) = pod else { return };
                    pod.note_exited(&container, attempt, exit);
                    // Nobody listening is fine: states tell the same.
                    let _ =
                        events.send(RuntimeEvent::ContainerExited { pod: pod_uid.clone(), container, attempt, exit });
                }
                Notice::Lost => {
                    if pod.is_some_and(|pod| pod.note_lost()) {
                        let _ = cgroup.kill();
                        let _ = events.send(RuntimeEvent::SupervisorLost { pod: pod_uid.clone() });
                    }
                }
            }
        })
    }
}
