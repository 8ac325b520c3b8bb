//! Supervisors kept ready: each has created the base of a Pod (cgroups, namespaces, veth) before any Pod needs it,
//! because the kernel does parts of that asynchronously. A supervisor that is never needed cleans up when the node
//! closes its connection or dies.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::KernelRuntime;
use crate::kernel::supervisor::plan::{IdMode, PodBasePlan};
use crate::kernel::supervisor::protocol::{self, Message, Response, Setup};
use crate::kernel::sys;
use crate::runtime::{NetworkMode, PodSandboxSpec, RuntimeError};

/// Missing supervisors are created only when no Pod was started for this long, if few are missing: creating them needs
/// the same processors.
const QUIET_PERIOD: Duration = Duration::from_millis(50);

/// Timeout for a supervisor to get ready, or to exit.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A supervisor that waits for its Pod.
pub(super) struct ReadySupervisor {
    pub(super) control: OwnedFd,
    pub(super) base: PodBasePlan,
}

/// All ready supervisors, and the state of the task that creates more.
#[derive(Default)]
pub(super) struct ReadyPool {
    waiting: Mutex<VecDeque<ReadySupervisor>>,
    filling: AtomicBool,
    last_taken: Mutex<Option<Instant>>,
    closed: AtomicBool,
}

impl ReadyPool {
    fn len(&self) -> usize {
        self.waiting.lock().len()
    }
}

impl KernelRuntime {
    /// Takes a supervisor that fits this Pod, if there is one.
    pub(super) fn take_ready(&self, spec: &PodSandboxSpec, storage_key: &str) -> Option<ReadySupervisor> {
        let routed = spec.network == NetworkMode::Routed && self.host.network.is_some();
        if routed != self.host.network.is_some()
            || self.needs_callers_id(spec)
            || self.ids.lock().has(storage_key)
            || self.predates_id_blocks(storage_key)
        {
            return None;
        }
        let ready = self.ready.waiting.lock().pop_front()?;
        *self.ready.last_taken.lock() = Some(Instant::now());
        Some(ready)
    }

    /// Creates missing supervisors, in the background.
    pub(super) fn refill(&self) {
        let Some(this) = self.this.upgrade() else { return };
        if self.config.ready_pods == 0 || self.ready.filling.swap(true, Ordering::AcqRel) {
            return;
        }
        tokio::spawn(async move {
            this.fill().await;
            this.ready.filling.store(false, Ordering::Release);
        });
    }

    async fn fill(self: &Arc<Self>) {
        let wanted = self.config.ready_pods;
        while self.ready.len() < wanted && !self.ready.closed.load(Ordering::Acquire) {
            let quiet_at =
                (*self.ready.last_taken.lock()).map(|at| at + QUIET_PERIOD).filter(|at| *at > Instant::now());
            if let Some(at) = quiet_at.filter(|_| self.ready.len() > wanted / 2) {
                tokio::time::sleep_until(at.into()).await;
                continue;
            }
            match self.make_ready_supervisor().await {
                Ok(ready) => self.add_ready(ready),
                Err(error) => {
                    // Pods are then created without a ready supervisor, if possible.
                    tracing::debug!(%error, "A supervisor could not be created in advance");
                    return;
                }
            }
        }
    }

    fn add_ready(&self, ready: ReadySupervisor) {
        let mut waiting = self.ready.waiting.lock();
        if self.ready.closed.load(Ordering::Acquire) {
            drop(waiting);
            self.release_ready(vec![ready]);
        } else {
            waiting.push_back(ready);
        }
    }

    async fn make_ready_supervisor(&self) -> Result<ReadySupervisor, RuntimeError> {
        let ids = self.reserve_ids()?;
        let routed = self.host.network.is_some();
        let made = async {
            let base = self.plan_base(ids, routed)?;
            match self.start_ready_supervisor(&base).await {
                Ok(control) => Ok(ReadySupervisor { control, base }),
                Err(source) => {
                    self.addresses.lock().give_back(base.address);
                    Err(RuntimeError::Kernel { step: "making a supervisor ready".to_owned(), source })
                }
            }
        };
        made.await.inspect_err(|_| self.return_ids(ids))
    }

    async fn start_ready_supervisor(&self, base: &PodBasePlan) -> io::Result<OwnedFd> {
        let control = self.spawn_supervisor().await?;
        let file = protocol::memory_file(base)?;
        protocol::send(&control, &Setup::Base { answer: true }, &[file.as_fd()])?;
        rustix::io::ioctl_fionbio(&control, true)?;
        let control = sys::register(control)?;
        let response = async {
            loop {
                let mut readable = control.readable().await?;
                match readable.try_io(|socket| protocol::receive::<Message>(socket.get_ref())) {
                    Ok(Ok(Some((Message::Response { response: Response::Done, .. }, _)))) => return Ok(()),
                    Ok(Ok(Some((Message::Response { response, .. }, _)))) => {
                        return Err(io::Error::other(format!("{response:?}")));
                    }
                    Ok(Ok(Some(_)) | Err(_)) => {}
                    Ok(Ok(None)) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
                    Err(_would_block) => {}
                }
            }
        };
        tokio::time::timeout(TIMEOUT, response).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        Ok(control.into_inner())
    }

    fn reserve_ids(&self) -> Result<IdMode, RuntimeError> {
        if !self.id_source.has_blocks() {
            return Ok(self.caller_ids());
        }
        let reserved = self.ids.lock().reserve();
        let reserved =
            reserved.map_err(|source| RuntimeError::Kernel { step: "saving id blocks".to_owned(), source })?;
        reserved.and_then(|first| self.id_source.mode(first)).ok_or_else(super::create::no_ids_left)
    }

    fn return_ids(&self, ids: IdMode) {
        if ids.has_block() {
            self.ids.lock().unreserve(ids.host_range().0);
        }
    }

    /// Releases all ready supervisors, and waits until they have cleaned up.
    pub(super) fn close_ready(&self) {
        self.ready.closed.store(true, Ordering::Release);
        let all = std::mem::take(&mut *self.ready.waiting.lock());
        self.release_ready(all.into());
    }

    fn release_ready(&self, list: Vec<ReadySupervisor>) {
        for ready in &list {
            self.addresses.lock().give_back(ready.base.address);
            self.return_ids(ready.base.ids);
            let _ = rustix::net::shutdown(&ready.control, rustix::net::Shutdown::Write);
        }
        let until = Instant::now() + TIMEOUT;
        for ready in &list {
            // The supervisor's end closes when it exits.
            let mut set = [rustix::event::PollFd::new(&ready.control, rustix::event::PollFlags::IN)];
            let left = until.saturating_duration_since(Instant::now());
            let left = rustix::event::Timespec { tv_sec: left.as_secs() as i64, tv_nsec: 0 };
            let _ = rustix::event::poll(&mut set, Some(&left));
        }
    }
}
