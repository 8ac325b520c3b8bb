//! Finds Pods again after a restart of the node.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::KernelRuntime;
use super::create::SavedPlan;
use super::pod::Pod;
use crate::kernel::host::cgroup::{self, CgroupPlan};
use crate::kernel::host::process;
use crate::kernel::supervisor::client::SupervisorClient;
use crate::kernel::supervisor::protocol::{Call, Response};
use crate::kernel::supervisor::records::{self, SupervisorRecord};
use crate::runtime::{PodRuntime, PodState, RuntimeError};

impl KernelRuntime {
    /// Reconnects to every running supervisor, and reports Pods whose supervisor is dead.
    pub(super) async fn recover(&self) -> Result<Vec<PodState>, RuntimeError> {
        let first_look = !self.recovered.swap(true, Ordering::AcqRel);
        let mut states = Vec::new();
        // Pods in creation have no folder at first; their lock is released when they are in the table.
        let mut uids = self.pod_folders();
        uids.extend(self.pod_locks.lock().keys().cloned());
        uids.sort_unstable();
        uids.dedup();
        for uid in uids {
            let lock = self.pod_lock(&uid);
            let _guard = lock.lock().await;
            if let Ok(pod) = self.pod(&uid) {
                states.push(pod.state());
                continue;
            }
            match self.recover_pod(&uid).await {
                Some(state) => states.push(state),
                // The node died before the supervisor was ready: nothing ran, and no caller was told. Only the first
                // pass may conclude that: later such a folder belongs to a Pod whose files are being prepared.
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
        self.storage_users.lock().insert(saved.storage_key.clone(), uid.to_owned());
        self.addresses.lock().mark(saved.plan.address);
        let cgroup = saved.plan.cgroup.clone();
        if let Err(error) = cgroup::thaw_leftover(&cgroup) {
            tracing::warn!(pod = uid, %error, "A Pod may still be frozen for a snapshot that was interrupted");
        }
        if process::is_running(&record.process) {
            match self.reconnect(&dir, saved).await {
                Ok(pod) => {
                    let state = pod.state();
                    self.pods.lock().insert(uid.to_owned(), pod);
                    return Some(state);
                }
                Err(error) => {
                    tracing::warn!(pod = uid, %error, "The supervisor does not respond; treating the Pod as dead")
                }
            }
        }
        Some(last_known_state(uid, &dir, record, &cgroup))
    }

    async fn reconnect(&self, dir: &Path, saved: SavedPlan) -> Result<Arc<Pod>, RuntimeError> {
        let failed = |source| RuntimeError::Kernel { step: "connecting to a supervisor".to_owned(), source };
        let socket = SupervisorClient::connect(dir).map_err(failed)?;
        let (client, _) = self.listen(&saved.plan.spec.uid, &saved.plan.cgroup, socket).map_err(failed)?;
        match client.call(Call::State, &[]).await? {
            (Response::State { sandbox, containers }, _) => {
                Ok(Arc::new(Pod::new(saved.plan, sandbox, client, saved.storage_key, containers)))
            }
            _ => Err(RuntimeError::Protocol("a state request was not answered with a state".to_owned())),
        }
    }
}

/// The last known state of a Pod whose supervisor is dead. Kills processes that are left.
fn last_known_state(uid: &str, dir: &Path, record: SupervisorRecord, cgroup: &CgroupPlan) -> PodState {
    if let Err(error) = cgroup.kill() {
        tracing::warn!(pod = uid, %error, "Processes of a dead Pod could not be killed");
    }
    PodState {
        sandbox: record.sandbox,
        namespace: record.namespace,
        name: record.name,
        alive: false,
        containers: records::read_containers(dir),
    }
}
