//! Who has written too much: limits of a Pod's storage, and when a machine is short of it. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::PodSpec;

use crate::pods::model::roles;
use crate::pods::resources;
use crate::runtime::{StorageMechanism, StorageUsage, VolumeKey};

/// The reason of every evicted Pod, as in Kubernetes.
pub const EVICTED: &str = "Evicted";

/// When storage is looked at and how much of it may be used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StoragePolicy {
    pub check_every: Duration,
    /// A Pod is measured at least this often: other Pods that free space could hide one that fills it.
    pub sweep_every: Duration,
    /// What a Pod may write where it asked for no limit.
    pub default_limit: u64,
    /// Share of the disk, in hundredths, below which the machine is short of space.
    pub min_free_percent: u64,
    /// However small or large that share is, at least and at most so many bytes.
    pub min_free_bytes: u64,
    pub max_free_bytes: u64,
}

impl Default for StoragePolicy {
    fn default() -> Self {
        Self {
            // A fast disk fills about 10 GiB in that time: late enough to be cheap, early enough to matter.
            check_every: Duration::from_secs(10),
            sweep_every: Duration::from_secs(300),
            default_limit: 10 << 30,
            min_free_percent: 5,
            min_free_bytes: 2 << 30,
            max_free_bytes: 4 << 30,
        }
    }
}

impl StoragePolicy {
    /// Bytes of a disk of this size that stay free.
    pub fn reserve(&self, total: u64) -> u64 {
        let share = total / 100 * self.min_free_percent;
        // A small disk has no 2 GiB to spare: there the share alone decides.
        let least = if total < self.min_free_bytes.saturating_mul(4) { 0 } else { self.min_free_bytes };
        share.min(self.max_free_bytes).max(least)
    }
}

/// Room on the file system.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Space {
    pub free: u64,
    pub total: u64,
}

impl Space {
    pub fn used(self) -> u64 {
        self.total.saturating_sub(self.free)
    }
}

/// Why the machine is short of space, if it is.
pub fn shortage(space: Space, policy: &StoragePolicy) -> Option<String> {
    let wanted = policy.reserve(space.total);
    (space.free < wanted).then(|| format!("{} bytes are free, {wanted} must be", space.free))
}

/// One volume of a Pod that holds data.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct VolumeStorage {
    pub key: VolumeKey,
    pub limit: Option<u64>,
    /// What keeps it from growing past its limit.
    pub mechanism: StorageMechanism,
}

/// What holds the limits of a Pod's volumes, for its status.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Holding {
    /// The file system refuses what is too much; nothing has to be measured.
    pub firm: bool,
    pub message: String,
}

/// How the limits of these volumes are held; `None` when none has one.
pub fn holding(volumes: &BTreeMap<String, VolumeStorage>) -> Option<Holding> {
    let limited: Vec<_> = volumes.iter().filter_map(|(name, v)| Some((name, v.limit?, v.mechanism))).collect();
    if limited.is_empty() {
        return None;
    }
    let firm = limited.iter().all(|(_, _, mechanism)| *mechanism != StorageMechanism::Measured);
    let told = limited.iter().map(|(name, limit, mechanism)| format!("{name}: {limit} bytes, {mechanism:?}"));
    Some(Holding { firm, message: told.collect::<Vec<_>>().join("; ") })
}

/// What the parts of a Pod may use.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Limits {
    containers: BTreeMap<String, u64>,
    /// All containers together, when each of them asked.
    pod: Option<u64>,
    volumes: BTreeMap<String, VolumeStorage>,
    default: u64,
}

impl Limits {
    /// Reads a spec; `volumes` are those that were made, by name.
    pub fn of(spec: &PodSpec, volumes: BTreeMap<String, VolumeStorage>, policy: &StoragePolicy) -> Self {
        let asked = |resources| resources::limits(resources).ok().and_then(|l| l.ephemeral_storage);
        let limited = roles(spec).filter_map(|(c, _)| Some((c.name.clone(), asked(c.resources.as_ref())?.units_u64())));
        let pod = resources::pod_limits(spec).ok().and_then(|l| l.ephemeral_storage).map(|l| l.units_u64());
        Self { containers: limited.collect(), pod, volumes, default: policy.default_limit }
    }

    /// Volumes that outlive the Pod, which the runtime does not measure with it.
    pub fn persistent(&self) -> impl Iterator<Item = (&str, &VolumeKey)> {
        let kept = self.volumes.iter().filter(|(_, v)| matches!(v.key, VolumeKey::Persistent { .. }));
        kept.map(|(name, v)| (name.as_str(), &v.key))
    }

    /// Every bound with what is used of it: what it is about, limit, use.
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
                // Something stronger than measuring holds it.
                Some(_) => {}
                None => unlimited = unlimited.saturating_add(*used),
            }
        }
        bounds.push(("what has no limit of its own".to_owned(), self.default, unlimited));
        bounds.extend(self.pod.map(|limit| ("the ephemeral storage of all containers".to_owned(), limit, ephemeral)));
        bounds
    }

    /// Why the Pod must go, if it must.
    pub fn exceeded(&self, usage: &StorageUsage) -> Option<String> {
        let mut bounds = self.bounds(usage).into_iter();
        let (what, limit, used) = bounds.find(|(_, limit, used)| used > limit)?;
        Some(format!("Pod used {used} bytes of {limit} allowed for {what}"))
    }

    /// How much the Pod can grow before it meets any bound.
    pub fn headroom(&self, usage: &StorageUsage) -> u64 {
        let left = self.bounds(usage).into_iter().map(|(_, limit, used)| limit.saturating_sub(used));
        left.min().unwrap_or(self.default)
    }
}

/// What an eviction would free: layers and volumes that go with the Pod.
pub fn evictable(limits: &Limits, usage: &StorageUsage) -> u64 {
    let goes = |name: &str| !limits.persistent().any(|(kept, _)| kept == name);
    let volumes = usage.volumes.iter().filter(|(name, _)| goes(name)).map(|(_, used)| used);
    usage.layers.iter().map(|(_, used)| used).chain(volumes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn limits(volumes: &[(&str, VolumeKey, Option<u64>, StorageMechanism)]) -> Limits {
        let spec: PodSpec = serde_json::from_value(json!({"containers": [
            {"name": "a", "resources": {"limits": {"ephemeral-storage": "100"}}}, {"name": "b"}]}))
        .unwrap();
        let volumes = volumes.iter().map(|(name, key, limit, mechanism)| {
            ((*name).to_owned(), VolumeStorage { key: key.clone(), limit: *limit, mechanism: *mechanism })
        });
        let policy = StoragePolicy { default_limit: 1000, ..StoragePolicy::default() };
        Limits::of(&spec, volumes.collect(), &policy)
    }

    fn ephemeral(name: &str) -> VolumeKey {
        VolumeKey::PodEphemeral { pod: "u".into(), name: name.into() }
    }

    fn used(layers: &[(&str, u64)], volumes: &[(&str, u64)]) -> StorageUsage {
        let owned = |list: &[(&str, u64)]| list.iter().map(|(n, b)| ((*n).to_owned(), *b)).collect();
        StorageUsage { layers: owned(layers), volumes: owned(volumes), ..StorageUsage::default() }
    }

    #[test]
    fn each_part_is_held_to_its_own_limit_and_the_rest_to_the_default() {
        let measured = StorageMechanism::Measured;
        let persistent = VolumeKey::Persistent { name: "pv".into() };
        let limits = limits(&[
            ("v", ephemeral("v"), Some(50), measured),
            ("free", ephemeral("free"), None, measured),
            ("held", ephemeral("held"), Some(10), StorageMechanism::ProjectQuota),
            ("claim", persistent, Some(500), measured),
        ]);
        assert_eq!(limits.exceeded(&used(&[("a", 100), ("b", 900)], &[("v", 50), ("free", 100)])), None);
        let word = |usage: StorageUsage| limits.exceeded(&usage).expect("evicted");
        assert!(word(used(&[("a", 101)], &[])).contains("container a"));
        assert!(word(used(&[], &[("v", 51)])).contains("volume v"));
        assert!(word(used(&[], &[("claim", 501)])).contains("volume claim"));
        assert!(word(used(&[("b", 901)], &[("free", 100)])).contains("no limit of its own"));
        assert_eq!(limits.exceeded(&used(&[], &[("held", 11)])), None, "the file system holds it");
        assert_eq!(limits.headroom(&used(&[("a", 30), ("b", 10)], &[("v", 45)])), 5);
        let all = used(&[("a", 1), ("b", 2)], &[("v", 4), ("claim", 8)]);
        assert_eq!(evictable(&limits, &all), 7, "what a claim holds is not freed by an eviction");
    }

    #[test]
    fn the_status_tells_what_holds_the_limits() {
        let volume = |limit, mechanism| VolumeStorage { key: ephemeral("v"), limit, mechanism };
        let held = |list: &[(&str, VolumeStorage)]| {
            holding(&list.iter().map(|(name, v)| ((*name).to_owned(), v.clone())).collect())
        };
        assert_eq!(held(&[("v", volume(None, StorageMechanism::Measured))]), None);
        let quota = ("q", volume(Some(7), StorageMechanism::ProjectQuota));
        assert!(held(std::slice::from_ref(&quota)).is_some_and(|h| h.firm && h.message == "q: 7 bytes, ProjectQuota"));
        assert!(held(&[quota, ("m", volume(Some(1), StorageMechanism::Measured))]).is_some_and(|h| !h.firm));
    }

    #[test]
    fn a_machine_is_short_below_either_bound() {
        let policy = StoragePolicy::default();
        let space = |free_gib: u64, total_gib: u64| Space { free: free_gib << 30, total: total_gib << 30 };
        assert_eq!(shortage(space(4, 70), &policy), None);
        assert!(shortage(space(3, 70), &policy).is_some(), "less than 5 %");
        assert_eq!(shortage(space(4, 4000), &policy), None, "of a large disk a share would be wasted");
        assert!(shortage(space(3, 4000), &policy).is_some(), "less than 4 GiB");
        assert!(shortage(space(1, 20), &policy).is_some(), "less than 2 GiB");
        assert_eq!(shortage(space(3, 20), &policy), None);
        assert_eq!(shortage(space(1, 4), &policy), None, "a small disk is judged by its own size");
    }
}
