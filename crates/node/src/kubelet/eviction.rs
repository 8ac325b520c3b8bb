//! Storage limits of Pods, and when the machine is short of disk space. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::PodSpec;

use crate::kubelet::model::roles;
use crate::kubelet::resources;
use crate::runtime::{StorageMechanism, StorageUsage, VolumeKey};

pub(crate) mod monitor;

/// Status reason of an evicted Pod, as in Kubernetes.
pub const EVICTED: &str = "Evicted";

/// How often storage is checked and how much of it may be used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StoragePolicy {
    /// Interval of the checks of the file system's free space.
    pub check_every: Duration,
    /// Maximum interval between two measurements of a Pod: Pods that free space could hide one that fills it.
    pub sweep_every: Duration,
    /// Bytes a Pod may write to storage that has no limit of its own; `u64::MAX` means no limit.
    pub default_limit: u64,
    /// Files and folders that a Pod may have on storage that has no limit of its own; `u64::MAX` means no limit.
    pub default_inodes: u64,
    /// Percentage of the disk that must be free; below it the machine is short of space.
    pub min_free_percent: u64,
    /// Lower and upper bound, in bytes, of what that percentage amounts to.
    pub min_free_bytes: u64,
    pub max_free_bytes: u64,
}

impl Default for StoragePolicy {
    fn default() -> Self {
        Self {
            // A fast disk can be filled with about 10 GiB between two checks; more frequent checks would cost more.
            check_every: Duration::from_secs(10),
            sweep_every: Duration::from_secs(300),
            default_limit: 10 << 30,
            // Ten times a large source tree with its dependencies. A disk of 64 GiB has four million.
            default_inodes: 1_000_000,
            min_free_percent: 5,
            min_free_bytes: 2 << 30,
            max_free_bytes: 4 << 30,
        }
    }
}

impl StoragePolicy {
    /// Bytes that must stay free on a disk of this size.
    pub fn reserve(&self, total: u64) -> u64 {
        let share = total / 100 * self.min_free_percent;
        // A small disk cannot spare 2 GiB: there only the percentage counts.
        let least = if total < self.min_free_bytes.saturating_mul(4) { 0 } else { self.min_free_bytes };
        share.min(self.max_free_bytes).max(least)
    }
}

/// Percentage of a file system's inodes that must be free.
const MIN_FREE_INODES: u64 = 5;

/// A Pod may have at most this part of a file system's inodes, whatever the default is.
const LARGEST_SHARE_OF_INODES: u64 = 4;

/// Size and free space of a file system: bytes and inodes. Some file systems report no inodes, and have no limit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DiskSpace {
    pub free: u64,
    pub total: u64,
    pub free_inodes: u64,
    pub inodes: u64,
}

impl DiskSpace {
    pub fn used(self) -> u64 {
        self.total.saturating_sub(self.free)
    }

    pub fn used_inodes(self) -> u64 {
        self.inodes.saturating_sub(self.free_inodes)
    }
}

/// What a machine is short of.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Scarce {
    Bytes,
    Inodes,
}

/// What the machine is short of, and why; `None` if it is not.
pub fn shortage(space: DiskSpace, policy: &StoragePolicy) -> Option<(Scarce, String)> {
    let wanted = policy.reserve(space.total);
    if space.free < wanted {
        return Some((Scarce::Bytes, format!("{} bytes are free, {wanted} must be", space.free)));
    }
    let wanted = space.inodes / 100 * MIN_FREE_INODES.min(policy.min_free_percent);
    (space.free_inodes < wanted)
        .then(|| (Scarce::Inodes, format!("{} inodes are free, {wanted} must be", space.free_inodes)))
}

/// Inodes that a Pod may have on this file system.
pub fn inode_limit(space: DiskSpace, policy: &StoragePolicy) -> u64 {
    match policy.default_inodes {
        u64::MAX => u64::MAX,
        limit if space.inodes == 0 => limit,
        limit => limit.min(space.inodes / LARGEST_SHARE_OF_INODES),
    }
}

/// Why a Pod must be evicted for its number of files; `None` if it is within the limit.
pub fn too_many_inodes(usage: &StorageUsage, limit: u64) -> Option<String> {
    (usage.inodes > limit).then(|| {
        format!(
            "Pod has {} files and folders of {limit} allowed (inodes) on storage that has no limit of its own",
            usage.inodes
        )
    })
}

/// A volume of a Pod that stores data on disk.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct VolumeStorage {
    pub key: VolumeKey,
    pub limit: Option<u64>,
    /// What enforces the limit.
    pub mechanism: StorageMechanism,
}

/// How the limits of a Pod's volumes are enforced, for its status.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LimitEnforcement {
    /// The file system refuses writes past every limit, so none has to be measured.
    pub enforced: bool,
    pub message: String,
}

/// How the limits of these volumes are enforced; `None` when no volume has a limit.
pub fn limit_enforcement(volumes: &BTreeMap<String, VolumeStorage>) -> Option<LimitEnforcement> {
    let limited: Vec<_> = volumes.iter().filter_map(|(name, v)| Some((name, v.limit?, v.mechanism))).collect();
    if limited.is_empty() {
        return None;
    }
    let enforced = limited.iter().all(|(_, _, mechanism)| *mechanism != StorageMechanism::Measured);
    let parts = limited.iter().map(|(name, limit, mechanism)| format!("{name}: {limit} bytes, {mechanism:?}"));
    Some(LimitEnforcement { enforced, message: parts.collect::<Vec<_>>().join("; ") })
}

/// Storage limits of a Pod's containers and volumes in bytes.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct StorageLimits {
    containers: BTreeMap<String, u64>,
    /// Limit of all containers together, when each of them has a limit.
    pod: Option<u64>,
    volumes: BTreeMap<String, VolumeStorage>,
    default: u64,
}

impl StorageLimits {
    /// The limits of a spec; `volumes` are the prepared volumes by name.
    pub fn of(spec: &PodSpec, volumes: BTreeMap<String, VolumeStorage>, policy: &StoragePolicy) -> Self {
        let limit = |resources| resources::limits(resources).ok().and_then(|l| l.ephemeral_storage);
        let limited = roles(spec).filter_map(|(c, _)| Some((c.name.clone(), limit(c.resources.as_ref())?.units_u64())));
        let pod = resources::pod_limits(spec).ok().and_then(|l| l.ephemeral_storage).map(|l| l.units_u64());
        Self { containers: limited.collect(), pod, volumes, default: policy.default_limit }
    }

    /// Persistent volumes, which the runtime does not include in the Pod's usage.
    pub fn persistent(&self) -> impl Iterator<Item = (&str, &VolumeKey)> {
        let persistent = self.volumes.iter().filter(|(_, v)| matches!(v.key, VolumeKey::Persistent { .. }));
        persistent.map(|(name, v)| (name.as_str(), &v.key))
    }

    /// Every limit as (description, limit, usage).
    fn bounds(&self, usage: &StorageUsage) -> Vec<(String, u64, u64)> {
        let mut bounds = Vec::new();
        let mut unlimited: u64 = 0;
        let mut ephemeral: u64 = 0;
        for (name, used) in &usage.layers {
            ephemeral = ephemeral.saturating_add(*used);
            match self.containers.get(name) {
                Some(limit) => bounds.push((format!("the local ephemeral storage of container {name}"), *limit, *used)),
                None => unlimited = unlimited.saturating_add(*used),
            }
        }
        for (name, used) in &usage.volumes {
            let volume = self.volumes.get(name);
            let persistent = volume.is_some_and(|v| matches!(v.key, VolumeKey::Persistent { .. }));
            if !persistent {
                ephemeral = ephemeral.saturating_add(*used);
            }
            match volume.and_then(|v| v.limit.map(|limit| (limit, v.mechanism))) {
                Some((limit, StorageMechanism::Measured)) => bounds.push((format!("volume {name}"), limit, *used)),
                // The file system enforces the limit.
                Some(_) => {}
                None => unlimited = unlimited.saturating_add(*used),
            }
        }
        bounds.push(("storage that has no limit of its own".to_owned(), self.default, unlimited));
        bounds.extend(self.pod.map(|limit| ("the ephemeral storage of all containers".to_owned(), limit, ephemeral)));
        bounds
    }

    /// Why the Pod must be evicted; `None` if it is within its limits.
    pub fn exceeded(&self, usage: &StorageUsage) -> Option<String> {
        let mut bounds = self.bounds(usage).into_iter();
        let (what, limit, used) = bounds.find(|(_, limit, used)| used > limit)?;
        Some(format!("Pod used {used} bytes of {limit} allowed for {what}"))
    }

    /// Bytes the Pod can still write before it reaches a limit.
    pub fn headroom(&self, usage: &StorageUsage) -> u64 {
        let left = self.bounds(usage).into_iter().map(|(_, limit, used)| limit.saturating_sub(used));
        left.min().unwrap_or(self.default)
    }
}

/// Bytes an eviction would free: writable layers and ephemeral volumes.
pub fn evictable(limits: &StorageLimits, usage: &StorageUsage) -> u64 {
    let goes = |name: &str| !limits.persistent().any(|(kept, _)| kept == name);
    let volumes = usage.volumes.iter().filter(|(name, _)| goes(name)).map(|(_, used)| used);
    usage.layers.iter().map(|(_, used)| used).chain(volumes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn limits(volumes: &[(&str, VolumeKey, Option<u64>, StorageMechanism)]) -> StorageLimits {
        let spec: PodSpec = serde_json::from_value(json!({"containers": [
            {"name": "a", "resources": {"limits": {"ephemeral-storage": "100"}}}, {"name": "b"}]}))
        .unwrap();
        let volumes = volumes.iter().map(|(name, key, limit, mechanism)| {
            ((*name).to_owned(), VolumeStorage { key: key.clone(), limit: *limit, mechanism: *mechanism })
        });
        let policy = StoragePolicy { default_limit: 1000, ..StoragePolicy::default() };
        StorageLimits::of(&spec, volumes.collect(), &policy)
    }

    fn ephemeral(name: &str) -> VolumeKey {
        VolumeKey::PodEphemeral { pod: "u".into(), name: name.into() }
    }

    fn used(layers: &[(&str, u64)], volumes: &[(&str, u64)]) -> StorageUsage {
        let owned = |list: &[(&str, u64)]| list.iter().map(|(n, b)| ((*n).to_owned(), *b)).collect();
        StorageUsage { layers: owned(layers), volumes: owned(volumes), ..StorageUsage::default() }
    }

    #[test]
    fn each_part_has_its_own_limit_and_the_rest_the_default() {
        let measured = StorageMechanism::Measured;
        let persistent = VolumeKey::Persistent { name: "pv".into() };
        let limits = limits(&[
            ("v", ephemeral("v"), Some(50), measured),
            ("free", ephemeral("free"), None, measured),
            ("held", ephemeral("held"), Some(10), StorageMechanism::ProjectQuota),
            ("claim", persistent, Some(500), measured),
        ]);
        assert_eq!(limits.exceeded(&used(&[("a", 100), ("b", 900)], &[("v", 50), ("free", 100)])), None);
        let message = |usage: StorageUsage| limits.exceeded(&usage).expect("evicted");
        assert!(message(used(&[("a", 101)], &[])).contains("container a"));
        assert!(message(used(&[], &[("v", 51)])).contains("volume v"));
        assert!(message(used(&[], &[("claim", 501)])).contains("volume claim"));
        assert!(message(used(&[("b", 901)], &[("free", 100)])).contains("no limit of its own"));
        assert_eq!(limits.exceeded(&used(&[], &[("held", 11)])), None, "the file system enforces it");
        assert_eq!(limits.headroom(&used(&[("a", 30), ("b", 10)], &[("v", 45)])), 5);
        let all = used(&[("a", 1), ("b", 2)], &[("v", 4), ("claim", 8)]);
        assert_eq!(evictable(&limits, &all), 7, "what a claim holds is not freed by an eviction");
    }

    #[test]
    fn the_status_says_what_enforces_the_limits() {
        let volume = |limit, mechanism| VolumeStorage { key: ephemeral("v"), limit, mechanism };
        let enforcement = |list: &[(&str, VolumeStorage)]| {
            limit_enforcement(&list.iter().map(|(name, v)| ((*name).to_owned(), v.clone())).collect())
        };
        assert_eq!(enforcement(&[("v", volume(None, StorageMechanism::Measured))]), None);
        let quota = ("q", volume(Some(7), StorageMechanism::ProjectQuota));
        assert!(
            enforcement(std::slice::from_ref(&quota))
                .is_some_and(|h| h.enforced && h.message == "q: 7 bytes, ProjectQuota")
        );
        assert!(enforcement(&[quota, ("m", volume(Some(1), StorageMechanism::Measured))]).is_some_and(|h| !h.enforced));
    }

    #[test]
    fn inodes_are_limited_for_each_pod_and_for_the_machine() {
        let policy = StoragePolicy::default();
        let space = DiskSpace { free: 50 << 30, total: 70 << 30, free_inodes: 300_000, inodes: 4_000_000 };
        assert_eq!(shortage(space, &policy), None);
        let short = shortage(DiskSpace { free_inodes: 199_000, ..space }, &policy);
        assert!(short.is_some_and(|(what, text)| what == Scarce::Inodes && text.contains("199000 inodes are free")));
        assert_eq!(shortage(DiskSpace { free_inodes: 0, inodes: 0, ..space }, &policy), None, "it counts none");
        assert_eq!(inode_limit(space, &policy), 1_000_000);
        assert_eq!(inode_limit(DiskSpace { inodes: 400_000, ..space }, &policy), 100_000, "a quarter of a small disk");
        assert_eq!(inode_limit(DiskSpace { inodes: 0, ..space }, &policy), 1_000_000);
        let off = StoragePolicy { default_inodes: u64::MAX, ..policy };
        assert_eq!(inode_limit(space, &off), u64::MAX);
        let has = |inodes| StorageUsage { inodes, ..StorageUsage::default() };
        assert_eq!(too_many_inodes(&has(100), 100), None);
        assert!(too_many_inodes(&has(101), 100).is_some_and(|text| text.contains("101 files and folders of 100")));
    }

    #[test]
    fn a_machine_is_short_below_either_bound() {
        let policy = StoragePolicy::default();
        let space = |free_gib: u64, total_gib: u64| DiskSpace {
            free: free_gib << 30,
            total: total_gib << 30,
            free_inodes: 0,
            inodes: 0,
        };
        assert_eq!(shortage(space(4, 70), &policy), None);
        assert!(shortage(space(3, 70), &policy).is_some(), "less than 5 %");
        assert_eq!(shortage(space(4, 4000), &policy), None, "of a large disk a share would be wasted");
        assert!(shortage(space(3, 4000), &policy).is_some(), "less than 4 GiB");
        assert!(shortage(space(1, 20), &policy).is_some(), "less than 2 GiB");
        assert_eq!(shortage(space(3, 20), &policy), None);
        assert_eq!(shortage(space(1, 4), &policy), None, "a small disk is judged by its own size");
    }
}
