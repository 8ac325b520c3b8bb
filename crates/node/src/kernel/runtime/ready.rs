//! Supervisors kept ready: each has made everything a Pod stands on (groups, namespaces, cable) before any Pod asked for
//! it, because the kernel does parts of that in its own time. One that is never needed cleans up after itself when we let
//! go of it, or die.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::super::plan::{GroundPlan, IdMode};
use super::super::sys;
use super::super::wire::{self, Answer, Begin, Message};
use super::KernelRuntime;
use crate::runtime::{NetworkMode, PodSandboxSpec, RuntimeError};

/// How long nobody must have asked before a few missing ones are made: making them costs the same processors.
const QUIET: Duration = Duration::from_millis(50);

/// Longest one may take to get ready, or to go.
const DEADLINE: Duration = Duration::from_secs(10);

/// A supervisor that waits for its Pod.
pub(super) struct Ready {
    pub(super) control: OwnedFd,
    pub(super) ground: GroundPlan,
}

/// All that wait, and who makes more.
#[derive(Default)]
pub(super) struct ReadyPool {
    waiting: Mutex<VecDeque<Ready>>,
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
    /// One that fits this Pod, if there is any.
    pub(super) fn take_ready(&self, spec: &PodSandboxSpec, keeper: &str) -> Option<Ready> {
        let routed = spec.network == NetworkMode::Routed && self.share.network.is_some();
        if routed != self.share.network.is_some() || self.ids.lock().has(keeper) || self.is_older_than_blocks(keeper) {
            return None;
        }
        let ready = self.ready.waiting.lock().pop_front()?;
        *self.ready.last_taken.lock() = Some(Instant::now());
        Some(ready)
    }

    /// Sees to it that there are enough, in the background.
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
            let quiet_at = (*self.ready.last_taken.lock()).map(|at| at + QUIET).filter(|at| *at > Instant::now());
            if let Some(at) = quiet_at.filter(|_| self.ready.len() > wanted / 2) {
                tokio::time::sleep_until(at.into()).await;
                continue;
            }
            match self.make_ready().await {
                Ok(ready) => self.keep(ready),
                Err(error) => {
                    // Pods are made without, as far as they can be.
                    tracing::debug!(%error, "A supervisor could not be made ahead");
                    return;
                }
            }
        }
    }

    fn keep(&self, ready: Ready) {
        let mut waiting = self.ready.waiting.lock();
        if self.ready.closed.load(Ordering::Acquire) {
            drop(waiting);
            self.let_go(vec![ready]);
        } else {
            waiting.push_back(ready);
        }
    }

    async fn make_ready(&self) -> Result<Ready, RuntimeError> {
        let ids = self.reserve_ids()?;
        let routed = self.share.network.is_some();
        let made = async {
            let ground = self.plan_ground(ids, routed)?;
            match self.start_ready(&ground).await {
                Ok(control) => Ok(Ready { control, ground }),
                Err(source) => {
                    self.addresses.lock().give_back(ground.address);
                    Err(RuntimeError::Kernel { step: "making a supervisor ready".to_owned(), source })
                }
            }
        };
        made.await.inspect_err(|_| self.return_ids(ids))
    }

    async fn start_ready(&self, ground: &GroundPlan) -> io::Result<OwnedFd> {
        let control = self.spawn_supervisor().await?;
        let file = wire::memory_file(ground)?;
        wire::send(&control, &Begin::Ground { answer: true }, &[file.as_fd()])?;
        rustix::io::ioctl_fionbio(&control, true)?;
        let control = sys::register(control)?;
        let answer = async {
            loop {
                let mut readable = control.readable().await?;
                match readable.try_io(|socket| wire::receive::<Message>(socket.get_ref())) {
                    Ok(Ok(Some((Message::Answer { answer: Answer::Done, .. }, _)))) => return Ok(()),
                    Ok(Ok(Some((Message::Answer { answer, .. }, _)))) => {
                        return Err(io::Error::other(format!("{answer:?}")));
                    }
                    Ok(Ok(Some(_)) | Err(_)) => {}
                    Ok(Ok(None)) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
                    Err(_would_block) => {}
                }
            }
        };
        tokio::time::timeout(DEADLINE, answer).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        Ok(control.into_inner())
    }

    fn reserve_ids(&self) -> Result<IdMode, RuntimeError> {
        if !self.source.has_blocks() {
            return Ok(self.own_ids());
        }
        let reserved = self.ids.lock().reserve();
        let reserved =
            reserved.map_err(|source| RuntimeError::Kernel { step: "saving id blocks".to_owned(), source })?;
        reserved.and_then(|first| self.source.mode(first)).ok_or_else(super::create::no_ids_left)
    }

    fn return_ids(&self, ids: IdMode) {
        if ids.has_block() {
            self.ids.lock().unreserve(ids.host_range().0);
        }
    }

    /// Lets go of all that wait, and waits until they have cleaned up.
    pub(super) fn close_ready(&self) {
        self.ready.closed.store(true, Ordering::Release);
        let all = std::mem::take(&mut *self.ready.waiting.lock());
        self.let_go(all.into());
    }

    fn let_go(&self, list: Vec<Ready>) {
        for ready in &list {
            self.addresses.lock().give_back(ready.ground.address);
            self.return_ids(ready.ground.ids);
            let _ = rustix::net::shutdown(&ready.control, rustix::net::Shutdown::Write);
        }
        let until = Instant::now() + DEADLINE;
        for ready in &list {
            // Its end closes when it has ended.
            let mut set = [rustix::event::PollFd::new(&ready.control, rustix::event::PollFlags::IN)];
            let left = until.saturating_duration_since(Instant::now());
            let left = rustix::event::Timespec { tv_sec: left.as_secs() as i64, tv_nsec: 0 };
            let _ = rustix::event::poll(&mut set, Some(&left));
        }
    }
}
