//! Removes what is left of a Pod when its supervisor has exited: network, cgroups and folders.

use std::io;
use std::sync::Arc;

use super::pod::Pod;
use super::{KernelRuntime, create, has_mounts};
use crate::kernel::container::oci;
use crate::kernel::storage;
use crate::kernel::supervisor::plan::PodPlan;
use crate::runtime::{PodRuntime, RuntimeError, RuntimeHandler};

impl KernelRuntime {
    pub(super) fn release_network(&self, plan: &PodPlan) {
        if let (Some(network), Some(veth)) = (&self.host.network, &plan.veth)
            && let Err(error) = network.release(veth, plan.address)
        {
            tracing::warn!(pod = plan.spec.uid, %error, "Network rules of a removed Pod could not be removed");
        }
        self.addresses.lock().give_back(plan.address);
    }

    /// As [`Self::release_network`], for a Pod that is being removed: waits for a running change of its rules.
    pub(super) async fn end_network(&self, pod: Option<Arc<Pod>>, plan: PodPlan) {
        let network = self.host.network.as_ref();
        let waits = network.zip(plan.veth.as_ref()).is_some_and(|(network, veth)| network.may_have_rules(veth));
        let Some(this) = self.this.upgrade().filter(|_| waits) else {
            let _guard = pod.as_ref().map(|pod| pod.rules_lock.lock());
            return self.release_network(&plan);
        };
        let work = move || {
            let _guard = pod.as_ref().map(|pod| pod.rules_lock.lock());
            this.release_network(&plan);
        };
        if tokio::task::spawn_blocking(work).await.is_err() {
            tracing::warn!("Network rules of a removed Pod could not be removed");
        }
    }

    /// Removes what a Pod's supervisor cannot remove itself, because it is in the Pod's own cgroup.
    pub(super) async fn remove_remains(&self, uid: &str, pod: Option<&Pod>) -> Result<(), RuntimeError> {
        let dir = self.pod_dir(uid);
        let cgroup = match pod {
            Some(pod) => pod.plan.cgroup.clone(),
            // A Pod without a saved plan has no cgroups yet.
            None => create::SavedPlan::read(&dir).map(|saved| saved.plan.base.cgroup).unwrap_or_default(),
        };
        let own_layers = self.layers_dir().join(uid);
        let kept_layers = pod.map(|pod| self.layers_dir().join(&pod.storage_key));
        let storage = Arc::clone(&self.storage);
        let foreign = pod.is_none_or(|pod| matches!(pod.plan.spec.handler, RuntimeHandler::Oci { .. }));
        let work = move || -> io::Result<()> {
            create::remove_cgroup(&cgroup)?;
            if foreign {
                oci::remove_leftover_cgroups(&cgroup);
            }
            if let Some(layers) = kept_layers.filter(|layers| has_mounts(layers)) {
                storage::unmount_below(&layers)?;
            }
            storage.remove(&own_layers)?;
            storage.remove_records(&dir)
        };
        tokio::task::spawn_blocking(work)
            .await
            .map_err(|_| RuntimeError::Timeout("removing the Pod's folders"))?
            .map_err(|source| RuntimeError::Kernel { step: "removing the Pod's folders".to_owned(), source })
    }
}
