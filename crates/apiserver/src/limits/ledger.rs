//! The usage of the namespaces that have quotas, always computed from the latest state of their objects.
//!
//! A write is checked in the step that sequences it, so that two concurrent writes cannot both take the last place.
//! What an object counts is kept by its version, so that a check reads only the objects that changed since the last
//! one.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::Value;

use super::{
    amount::{Amount, Amounts},
    charge::{Charge, Tracked, counted_resource, unspecified},
    quota::Quota,
};
use crate::{
    registry::{Resource, Snapshot},
    status::ApiError,
    store::{Event, EventKind, LatestView, ObjectKey, Stored},
    verbs::MutatingAdmission,
};

pub(crate) const QUOTAS: &str = "/resourcequotas";

/// The collection of an object, and its key in it.
type ObjectId = (Arc<str>, ObjectKey);
/// Something read from an object, with the object's version.
type Versioned<T> = (u64, Arc<T>);

#[derive(Default)]
pub(crate) struct Ledger {
    /// Names of the quotas of each namespace that has any.
    namespaces: Mutex<HashMap<Box<str>, HashSet<Box<str>>>>,
    quotas: Mutex<HashMap<ObjectKey, Versioned<Quota>>>,
    charges: Mutex<HashMap<ObjectId, Versioned<Charge>>>,
    /// Decides which objects never count.
    exemptions: Option<Arc<dyn MutatingAdmission>>,
}

/// A write whose effect on the quotas is checked.
pub(crate) struct Request<'a> {
    pub(crate) resource: &'a Resource,
    pub(crate) key: &'a ObjectKey,
    /// The state after the write.
    pub(crate) new: &'a Value,
    /// The state before, unless the object is new.
    pub(crate) old: Option<&'a Value>,
}

/// The usage of one quota.
pub(crate) struct Usage {
    pub(crate) used: Amounts,
    /// When the usage will change although no object does: a Pod's grace period ends.
    pub(crate) changes_at: Option<Timestamp>,
}

impl Ledger {
    pub(crate) fn new(exemptions: Option<Arc<dyn MutatingAdmission>>) -> Self {
        Self { exemptions, ..Self::default() }
    }

    pub(crate) fn has_quotas(&self, namespace: &str) -> bool {
        self.namespaces.lock().contains_key(namespace)
    }

    /// Follows an event of the store.
    pub(crate) fn observe(&self, storage: &Arc<str>, event: &Event) {
        let key = &event.object.key;
        let deleted = event.kind == EventKind::Deleted;
        if &**storage == QUOTAS {
            self.set_quota(key, !deleted);
        }
        if deleted {
            self.quotas.lock().remove(key);
            self.charges.lock().remove(&(storage.clone(), key.clone()));
        }
    }

    /// Notes that a quota exists or not.
    pub(crate) fn set_quota(&self, key: &ObjectKey, exists: bool) {
        let mut namespaces = self.namespaces.lock();
        if exists {
            namespaces.entry(key.namespace.clone()).or_default().insert(key.name.clone());
        } else if let Some(names) = namespaces.get_mut(&key.namespace) {
            names.remove(&key.name);
            if names.is_empty() {
                namespaces.remove(&key.namespace);
            }
        }
    }

    /// An error if a write would exceed a quota of its namespace, or lacks what a quota needs to count.
    pub(crate) fn check(&self, latest: &LatestView<'_>, request: &Request<'_>) -> Result<(), ApiError> {
        let resource = request.resource;
        let Some(tracked) = Tracked::of(resource) else { return Ok(()) };
        let quotas = self.quotas(latest, &request.key.namespace);
        if quotas.is_empty() || self.is_exempt(resource, request.new) {
            return Ok(());
        }
        let forbidden = |why: &str| ApiError::forbidden(&resource.group, &resource.plural, &request.key.name, why);
        let charge = Charge::of(&tracked, request.new);
        let old = request.old.map(|old| Charge::of(&tracked, old));
        let mut concerned = Vec::new();
        for quota in quotas {
            let names: Vec<&str> = quota.names(&tracked).collect();
            if names.is_empty() || !quota.selects(&charge) {
                continue;
            }
            if tracked == Tracked::Pods
                && let Some(missing) = unspecified(&names, request.new)
            {
                return Err(forbidden(&format!("failed quota: {}: {missing}", quota.name)));
            }
            concerned.push(quota);
        }
        let now = Timestamp::now();
        for quota in concerned {
            let before = old.as_ref().filter(|old| quota.selects(old));
            let requested = added(&charge, before, &quota, now);
            if requested.is_empty() {
                continue;
            }
            let used = self.sum(latest, resource, &tracked, &request.key.namespace, &quota, now).used;
            quota.check(&requested, &used).map_err(|why| forbidden(&why))?;
        }
        Ok(())
    }

    /// The usage of a quota: an entry for each name that it limits and that objects can count against.
    pub(crate) fn usage(&self, latest: &LatestView<'_>, registry: &Snapshot, key: &ObjectKey) -> Option<Usage> {
        let stored = latest.get(&QUOTAS.into(), key)?;
        let quota = self.quota(&stored);
        let now = Timestamp::now();
        let mut total = Usage { used: Amounts::new(), changes_at: None };
        let mut resources: Vec<&Arc<Resource>> = Vec::new();
        let fixed = [("", "pods"), ("", "services"), ("", "persistentvolumeclaims")];
        let counted = quota.hard.keys().filter_map(|name| counted_resource(name));
        for (plural, group) in counted.chain(fixed.into_iter().map(|(group, plural)| (plural, group))) {
            let found = registry.resource(group, plural);
            resources.extend(found.filter(|one| resources.iter().all(|known| known.storage != one.storage)));
        }
        for resource in resources {
            let Some(tracked) = Tracked::of(resource) else { continue };
            let names: Vec<&str> = quota.names(&tracked).collect();
            if names.is_empty() {
                continue;
            }
            let usage = self.sum(latest, resource, &tracked, &key.namespace, &quota, now);
            for name in names {
                total.used.insert(name.to_owned(), usage.used.get(name).copied().unwrap_or_default());
            }
            total.changes_at = [total.changes_at, usage.changes_at].into_iter().flatten().min();
        }
        Some(total)
    }

    /// The quotas of a namespace, in the order of their names.
    fn quotas(&self, latest: &LatestView<'_>, namespace: &str) -> Vec<Arc<Quota>> {
        let mut found = Vec::new();
        latest.for_each(&QUOTAS.into(), namespace, |stored| found.push(self.quota(stored)));
        found.sort_by(|a, b| a.name.cmp(&b.name));
        found
    }

    fn quota(&self, stored: &Arc<Stored>) -> Arc<Quota> {
        let mut known = self.quotas.lock();
        match known.get(&stored.key) {
            Some((version, quota)) if *version == stored.version => quota.clone(),
            _ => {
                let quota = Arc::new(Quota::parse(&stored.parse()));
                known.insert(stored.key.clone(), (stored.version, quota.clone()));
                quota
            }
        }
    }

    /// What all objects of one kind count against a quota.
    fn sum(
        &self,
        latest: &LatestView<'_>,
        resource: &Resource,
        tracked: &Tracked,
        namespace: &str,
        quota: &Quota,
        now: Timestamp,
    ) -> Usage {
        let mut usage = Usage { used: Amounts::new(), changes_at: None };
        if matches!(tracked, Tracked::Other { .. }) {
            let mut number = 0;
            latest.for_each(&resource.storage, namespace, |_| number += 1);
            let charge = Charge::other(tracked);
            if quota.selects(&charge) {
                usage.used = charge.object.into_keys().map(|name| (name, Amount::count(number))).collect();
            }
            return usage;
        }
        latest.for_each(&resource.storage, namespace, |stored| {
            let charge = self.charge(resource, tracked, stored);
            if !quota.selects(&charge) {
                return;
            }
            for (name, amount) in charge.amounts(now).filter(|(name, _)| quota.hard.contains_key(*name)) {
                let before = usage.used.get(name).copied().unwrap_or_default();
                usage.used.insert(name.clone(), before + *amount);
            }
            let ends = charge.until.filter(|until| *until >= now);
            usage.changes_at = [usage.changes_at, ends].into_iter().flatten().min();
        });
        usage
    }

    fn charge(&self, resource: &Resource, tracked: &Tracked, stored: &Arc<Stored>) -> Arc<Charge> {
        let id = (resource.storage.clone(), stored.key.clone());
        let known = self.charges.lock().get(&id).filter(|(version, _)| *version == stored.version).cloned();
        if let Some((_, charge)) = known {
            return charge;
        }
        let object = stored.parse();
        let exempt = self.is_exempt(resource, &object);
        let charge = Arc::new(if exempt { Charge::default() } else { Charge::of(tracked, &object) });
        self.charges.lock().insert(id, (stored.version, charge.clone()));
        charge
    }

    fn is_exempt(&self, resource: &Resource, object: &Value) -> bool {
        self.exemptions.as_ref().is_some_and(|rule| rule.is_exempt(&resource.group, &resource.plural, object))
    }
}

/// What a write adds to the usage of a quota; amounts that do not grow are left out.
fn added(charge: &Charge, before: Option<&Charge>, quota: &Quota, now: Timestamp) -> Amounts {
    let limited = |charge: &Charge| -> Amounts {
        let amounts = charge.amounts(now).filter(|(name, _)| quota.hard.contains_key(*name));
        amounts.map(|(name, amount)| (name.clone(), *amount)).collect()
    };
    let before = before.map(limited).unwrap_or_default();
    let mut added = limited(charge);
    for (name, amount) in &mut added {
        if let Some(had) = before.get(name) {
            *amount = *amount - *had;
        }
    }
    added.retain(|_, amount| amount.is_positive());
    added
}
