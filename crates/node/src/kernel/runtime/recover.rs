//! Finding Pods again after the node was restarted.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::super::cgroup::CgroupPlan;
use super::super::link::Link;
use super::super::supervisor::records::{self, SupervisorRecord};
use super::super::wire::{Answer, Call};
use super::KernelRuntime;
use super::create::SavedPlan;
use super::pod::Pod;
use crate::runtime::{PodRuntime, PodState, RuntimeError};

impl KernelRuntime {
    /// Reconnects to every supervisor that still runs, and reports Pods whose supervisor does not.
    pub(super) async fn recover(&self) -> Result<Vec<PodState>, RuntimeError> {
        let first_look = !self.recovered.swap(true, Ordering::AcqRel);
        let mut states = Vec::new();
        // Pods that are being made have no folder at first; their turn ends when they are in the books.
        let mut uids = self.pod_folders();
        uids.extend(self.turns.lock().keys().cloned());
        uids.sort_unstable();
        uids.dedup();
        for uid in uids {
            let turn = self.turn(&uid);
            let _turn = turn.lock().await;
            if let Ok(pod) = self.pod(&uid) {
                states.push(pod.state());
                continue;
            }
            match self.recover_pod(&uid).await {
                Some(state) => states.push(state),
                // Died before its supervisor was ready: nothing ran, nobody was told. Only the first look may say so:
                // later such a folder belongs to a Pod whose files are being prepared.
                None if first_look => self.remove_remains(&uid, None).await?,
                None => {}
            }
        }
        self.refill();
        Ok(states)
    }

    pub(super) fn pod_folders(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.config.data_dir.join("pods")) else { return Vec::new() };
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    async fn recover_pod(&self, uid: &str) -> Option<PodState> {
        let dir = self.pod_dir(uid);
        let record = records::read_supervisor(&dir).ok()?;
        let saved = SavedPlan::read(&dir)?;
        self.holders.lock().insert(saved.keeper.clone(), uid.to_owned());
        self.addresses.lock().mark(saved.plan.address);
        let cgroup = saved.plan.cgroup.clone();
        if records::is_running(&record.process) {
            match self.reconnect(&dir, saved).await {
                Ok(pod) => {
                    let state = pod.state();
                    self.pods.lock().insert(uid.to_owned(), pod);
                    return Some(state);
                }
                Err(error) => tracing::warn!(pod = uid, %error, "Supervisor does not answer; giving the Pod up"),
            }
        }
        Some(bury(uid, &dir, record, &cgroup))
    }

    async fn reconnect(&self, dir: &Path, saved: SavedPlan) -> Result<Arc<Pod>, RuntimeError> {
        let failed = |source| RuntimeError::Kernel { step: "connecting to a supervisor".to_owned(), source };
        let socket = Link::connect(dir).map_err(failed)?;
        let (link, _) = self.listen(&saved.plan.spec.uid, &saved.plan.cgroup, socket).map_err(failed)?;
        match link.call(Call::State, &[]).await? {
            (Answer::State { sandbox, containers }, _) => {
                Ok(Arc::new(Pod::new(saved.plan, sandbox, link, saved.keeper, containers)))
            }
            _ => Err(RuntimeError::Protocol("a state was not answered with one".to_owned())),
        }
    }
}

/// The last known state of a Pod whose supervisor is dead; what is left of it is killed.
fn bury(uid: &str, dir: &Path, record: SupervisorRecord, cgroup: &CgroupPlan) -> PodState {
    if let Err(error) = cgroup.kill() {
        tracing::warn!(pod = uid, %error, "Processes of a dead Pod may be left");
    }
    PodState {
        sandbox: record.sandbox,
        namespace: record.namespace,
        name: record.name,
        alive: false,
        containers: records::read_containers(dir),
    }
}
