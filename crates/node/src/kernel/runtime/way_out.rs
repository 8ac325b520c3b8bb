//! Policies of Pods whose way out is `pasta`: rules in the Pod's own namespace first, then the way, which is opened when a policy first
//! allows anything and stays for the Pod's life. When the host gets another address, every Pod's rules are written anew.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use super::super::net::egress::{self, Way};
use super::super::wire::Call;
use super::{KernelRuntime, Pod};
use crate::runtime::{PodRules, RuntimeError};

const STEP: &str = "connecting a Pod through pasta";

impl KernelRuntime {
    pub(super) async fn set_way_out(
        &self,
        pod: &Arc<Pod>,
        rules: PodRules,
        pasta: PathBuf,
    ) -> Result<(), RuntimeError> {
        let opens = !rules.egress.is_empty();
        if !opens && !pod.has_way_out() {
            return Ok(());
        }
        let socket = filter_socket(pod).await?;
        pod.note_rules(rules.clone());
        let (pod, network, helper) = (Arc::clone(pod), self.share.pod_network, self.config.helper.clone());
        let work = move || {
            let _turn = pod.rules_turn.lock();
            let log = pod.plan.dir.join("egress.log");
            let way = Way { address: pod.plan.address, network, supervisor: pod.sandbox.supervisor_pid, log: &log };
            egress::set_rules(socket, &way, &rules, &egress::host_addresses())?;
            if opens { way.open(&pasta, &helper) } else { Ok(()) }
        };
        let done = tokio::task::spawn_blocking(work).await.map_err(|_| RuntimeError::Timeout(STEP))?;
        done.map_err(|source| RuntimeError::Kernel { step: STEP.to_owned(), source })?;
        self.follow_addresses();
        Ok(())
    }

    /// Writes the rules of all Pods that have a way out anew.
    async fn renew_ways_out(&self) {
        let Some(pasta) = self.pasta.clone() else { return };
        let pods: Vec<_> = self.pods.lock().values().cloned().collect();
        for pod in pods {
            let Some(rules) = pod.rules_of_way_out().filter(|_| !pod.is_being_removed()) else { continue };
            if let Err(error) = self.set_way_out(&pod, rules, pasta.clone()).await {
                tracing::warn!(pod = pod.sandbox.uid, %error, "A Pod may reach an address that the host has got");
            }
        }
    }

    /// Listens, once, for changes of the host's addresses.
    fn follow_addresses(&self) {
        if self.follows_addresses.swap(true, std::sync::atomic::Ordering::AcqRel) {
            return;
        }
        let this = self.this.clone();
        tokio::spawn(async move {
            let changes = match egress::address_changes() {
                Ok(changes) => changes,
                Err(error) => return tracing::warn!(%error, "Changes of the host's addresses go unnoticed"),
            };
            while egress::next_change(&changes).await.is_ok() {
                let Some(this) = this.upgrade() else { return };
                Box::pin(this.renew_ways_out()).await;
            }
        });
    }
}

async fn filter_socket(pod: &Pod) -> Result<OwnedFd, RuntimeError> {
    let (_, descriptors) = pod.link.call(Call::PacketFilter, &[]).await?;
    let missing = || RuntimeError::Protocol("a socket did not come with the answer".to_owned());
    descriptors.into_iter().next().ok_or_else(missing)
}
