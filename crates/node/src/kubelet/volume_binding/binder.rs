//! The volume binder: creates and binds volumes for claims of the storage class, and removes volumes whose claim was
//! deleted.

use std::collections::{BTreeMap, BTreeSet};

use futures::StreamExt;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::json;
use tracing::{debug, warn};

use super::{STORAGE_CLASS, belongs_to, is_provisioned_by, needs_binding, storage_class, volume_for, volume_name};
use crate::runtime::{SharedRuntime, VolumeKey};

/// The volume binder.
pub struct Binder {
    pub client: kube::Client,
    pub runtime: SharedRuntime,
    pub node_name: String,
}

impl Binder {
    /// Creates the storage class, then binds claims until the future is dropped.
    pub async fn run(self) {
        let classes: Api<k8s_openapi::api::storage::v1::StorageClass> = Api::all(self.client.clone());
        if let Err(error) = classes.create(&PostParams::default(), &storage_class()).await
            && !matches!(&error, kube::Error::Api(status) if status.code == 409)
        {
            warn!(%error, "Could not create the storage class");
        }
        let claims: Api<PersistentVolumeClaim> = Api::all(self.client.clone());
        let mut events = watcher(claims, watcher::Config::default()).default_backoff().boxed();
        let mut listed: BTreeSet<String> = BTreeSet::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::Init) => listed.clear(),
                Ok(watcher::Event::InitApply(claim)) => {
                    listed.insert(volume_name(&claim));
                    self.bind(&claim).await;
                }
                Ok(watcher::Event::InitDone) => self.remove_unclaimed(&listed).await,
                Ok(watcher::Event::Apply(claim)) => self.bind(&claim).await,
                Ok(watcher::Event::Delete(claim)) => self.release(&volume_name(&claim), &claim).await,
                Err(error) => debug!(%error, "Watch of claims was interrupted"),
            }
        }
    }

    async fn bind(&self, claim: &PersistentVolumeClaim) {
        if needs_binding(claim)
            && let Err(error) = self.try_bind(claim).await
        {
            warn!(%error, claim = claim.metadata.name, "Could not bind a claim; retrying when it changes");
        }
    }

    async fn try_bind(&self, claim: &PersistentVolumeClaim) -> Result<(), kube::Error> {
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let volume = volume_for(claim, &self.node_name);
        let name = volume_name(claim);
        match volumes.create(&PostParams::default(), &volume).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 409 => {
                if !belongs_to(&volumes.get(&name).await?, claim) {
                    warn!(
                        claim = claim.metadata.name,
                        volume = name,
                        "Not binding a volume that belongs to another claim"
                    );
                    return Ok(());
                }
            }
            Err(error) => return Err(error),
        }
        let namespace = claim.metadata.namespace.as_deref().unwrap_or("default");
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let claim_name = claim.metadata.name.as_deref().unwrap_or_default();
        let uid = &claim.metadata.uid;
        let bound = json!({"metadata": {"uid": uid, "annotations": {
                "pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes"}},
            "spec": {"volumeName": name, "storageClassName": STORAGE_CLASS}});
        let parameters = PatchParams::default();
        claims.patch(claim_name, &parameters, &Patch::Merge(&bound)).await?;
        let spec = volume.spec.unwrap_or_default();
        let status = json!({"metadata": {"uid": uid}, "status": {"phase": "Bound", "capacity": spec.capacity,
            "accessModes": spec.access_modes}});
        claims.patch_status(claim_name, &parameters, &Patch::Merge(&status)).await?;
        let status = json!({"status": {"phase": "Bound"}});
        volumes.patch_status(&name, &parameters, &Patch::Merge(&status)).await?;
        Ok(())
    }

    /// Removes a volume whose claim was deleted, once no Pod uses it.
    async fn release(&self, name: &str, claim: &PersistentVolumeClaim) {
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let Ok(Some(volume)) = volumes.get_opt(name).await else { return };
        if !is_provisioned_by(&volume, &self.node_name) {
            return;
        }
        let policy = volume.spec.as_ref().and_then(|s| s.persistent_volume_reclaim_policy.as_deref());
        if policy == Some("Retain") {
            let status = json!({"status": {"phase": "Released"}});
            let _ = volumes.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await;
            return;
        }
        self.wait_until_unused(claim).await;
        if let Err(error) = self.runtime.remove_volume(&VolumeKey::Persistent { name: name.to_owned() }).await {
            warn!(%error, volume = name, "Could not remove the data of a volume");
            return;
        }
        if let Err(error) = volumes.delete(name, &DeleteParams::default()).await {
            debug!(%error, volume = name, "Could not delete a volume object");
        }
    }

    /// Waits until no Pod uses the claim any more, at most 60 s.
    async fn wait_until_unused(&self, claim: &PersistentVolumeClaim) {
        let namespace = claim.metadata.namespace.as_deref().unwrap_or("default");
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let mut events = watcher(pods, watcher::Config::default()).boxed();
        let mut users: BTreeMap<String, ()> = BTreeMap::new();
        let uses = |pod: &Pod| {
            let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
            volumes.filter_map(|v| v.persistent_volume_claim.as_ref()).any(|c| c.claim_name == name)
        };
        let wait = async {
            while let Some(event) = events.next().await {
                match event {
                    Ok(watcher::Event::InitApply(pod) | watcher::Event::Apply(pod)) if uses(&pod) => {
                        users.insert(pod.metadata.uid.unwrap_or_default(), ());
                    }
                    Ok(watcher::Event::Delete(pod)) => {
                        users.remove(&pod.metadata.uid.unwrap_or_default());
                        if users.is_empty() {
                            return;
                        }
                    }
                    Ok(watcher::Event::InitDone) if users.is_empty() => return,
                    _ => {}
                }
            }
        };
        let _ = tokio::time::timeout(std::time::Duration::from_secs(60), wait).await;
    }

    /// Removes volumes whose claims were deleted while the node was not running.
    async fn remove_unclaimed(&self, claimed: &BTreeSet<String>) {
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let Ok(list) = volumes.list(&ListParams::default()).await else { return };
        for volume in list {
            let name = volume.metadata.name.clone().unwrap_or_default();
            if is_provisioned_by(&volume, &self.node_name) && name.starts_with("pvc-") && !claimed.contains(&name) {
                let reference = volume.spec.as_ref().and_then(|s| s.claim_ref.clone()).unwrap_or_default();
                let mut claim = PersistentVolumeClaim::default();
                claim.metadata.name = reference.name;
                claim.metadata.namespace = reference.namespace;
                self.release(&name, &claim).await;
            }
        }
    }
}
