//! Policies of Pods that are connected through `pasta`: rules in the Pod's own namespace first, then the uplink, which
//! is started when a policy first allows egress and stays for the Pod's life. When the host gets another address, the
//! rules of all Pods are written again.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use super::{KernelRuntime, Pod};
use crate::kernel::net::pasta::{self, Uplink};
use crate::kernel::supervisor::protocol::Call;
use crate::runtime::{PodRules, RuntimeError};

const STEP: &str = "connecting a Pod through pasta";

impl KernelRuntime {
    pub(super) async fn set_uplink_rules(
        &self,
        pod: &Arc<Pod>,
        rules: PodRules,
        pasta: PathBuf,
    ) -> Result<(), RuntimeError> {
        let allows_egress = !rules.egress.is_empty();
        if !allows_egress && !pod.has_uplink() {
            return Ok(());
        }
        let socket = filter_socket(pod).await?;
        pod.remember_uplink_rules(rules.clone());
        let (pod, network, helper) = (Arc::clone(pod), self.host.pod_network, self.config.helper.clone());
        let work = move || {
            let _guard = pod.rules_lock.lock();
            let log = pod.plan.dir.join("egress.log");
            let uplink =
                Uplink { address: pod.plan.address, network, supervisor: pod.sandbox.supervisor_pid, log: &log };
            pasta::set_rules(socket, &uplink, &rules, &pasta::host_addresses())?;
            if allows_egress { uplink.open(&pasta, &helper) } else { Ok(()) }
        };
        let done = tokio::task::spawn_blocking(work).await.map_err(|_| RuntimeError::Timeout(STEP))?;
        done.map_err(|source| RuntimeError::Kernel { step: STEP.to_owned(), source })?;
        self.follow_addresses();
        Ok(())
    }

    /// Writes the rules of all Pods with an uplink again.
    async fn refresh_uplink_rules(&self) {
        let Some(pasta) = self.pasta.clone() else { return };
        let pods: Vec<_> = self.pods.lock().values().cloned().collect();
        for pod in pods {
            let Some(rules) = pod.uplink_rules().filter(|_| !pod.is_being_removed()) else { continue };
            if let Err(error) = self.set_uplink_rules(&pod, rules, pasta.clone()).await {
                tracing::warn!(pod = pod.sandbox.uid, %error, "A Pod may reach a new address of the host");
            }
        }
    }

    /// Starts, once, a task that follows changes of the host's addresses.
    fn follow_addresses(&self) {
        if self.follows_addresses.swap(true, std::sync::atomic::Ordering::AcqRel) {
            return;
        }
        let this = self.this.clone();
        tokio::spawn(async move {
            let changes = match pasta::address_changes() {
                Ok(changes) => changes,
                Err(error) => {
                    return tracing::warn!(%error, "New addresses of the host are not noticed; Pods may reach them");
                }
            };
            while pasta::next_change(&changes).await.is_ok() {
                let Some(this) = this.upgrade() else { return };
                Box::pin(this.refresh_uplink_rules()).await;
            }
        });
    }
}

async fn filter_socket(pod: &Pod) -> Result<OwnedFd, RuntimeError> {
    let (_, descriptors) = pod.supervisor.call(Call::PacketFilter, &[]).await?;
    let missing = || RuntimeError::Protocol("the response carried no socket".to_owned());
    descriptors.into_iter().next().ok_or_else(missing)
}
