//! Index of which Pods each Service selects. It finds the Services of a Pod, and the Pods of a Service, without a scan
//! of all others: one namespace may have ten thousand of either.

use std::collections::{BTreeSet, HashMap, HashSet};

use parking_lot::Mutex;

use super::{Selector, selector_of};
use crate::store::{Collection, Event, EventKind, Facts, ObjectKey, Stored};

/// The selectors and cluster IPs of all Services.
#[derive(Default)]
pub(in crate::controllers) struct ServiceIndex {
    index: Mutex<Index>,
}

#[derive(Default)]
struct Index {
    services: HashMap<ObjectKey, Service>,
    /// Services by namespace and first label of their selector; every Pod that they select has this label.
    by_label: HashMap<Label, HashSet<Box<str>>>,
    by_cluster_ip: HashMap<Box<str>, ObjectKey>,
}

#[derive(PartialEq, Eq, Hash)]
struct Label {
    namespace: Box<str>,
    key: Box<str>,
    value: Box<str>,
}

struct Service {
    selector: Selector,
    /// Names of the Pods that the Service selects; `None` until they are first needed.
    pods: Option<BTreeSet<Box<str>>>,
}

impl Service {
    fn selects(&self, pod: &Stored) -> bool {
        self.selector.iter().all(|(k, v)| pod.label(k) == Some(v))
    }
}

fn label(namespace: &str, key: &str, value: &str) -> Label {
    Label { namespace: namespace.into(), key: key.into(), value: value.into() }
}

/// The cluster IP of a Service, which is the first of its selectable fields; `None` for a headless Service.
pub(crate) fn cluster_ip(service: &Facts) -> Option<&str> {
    service.fields.first().map(|a| &**a).filter(|a| !matches!(*a, "" | "None"))
}

impl ServiceIndex {
    /// Applies an event of a Service; returns the Service if its slice must be reconciled.
    pub(in crate::controllers) fn apply(&self, event: &Event) -> Option<ObjectKey> {
        let key = &event.object.key;
        let mut index = self.index.lock();
        // A Service may be changed to another cluster IP, or to none.
        if let Some(ip) = event.previous.as_ref().and_then(|before| cluster_ip(&before.facts)) {
            index.release_ip(ip, key);
        }
        if event.kind == EventKind::Deleted {
            index.remove(key);
            if let Some(ip) = cluster_ip(&event.object.facts) {
                index.release_ip(ip, key);
            }
            return None;
        }
        drop(index);
        Some(self.load(&event.object))
    }

    pub(in crate::controllers) fn load(&self, service: &Stored) -> ObjectKey {
        let selector = selector_of(&service.parse());
        let mut index = self.index.lock();
        index.put(&service.key, selector);
        if let Some(ip) = cluster_ip(&service.facts) {
            index.by_cluster_ip.insert(ip.into(), service.key.clone());
        }
        service.key.clone()
    }

    pub(in crate::controllers) fn service_with_ip(&self, ip: &str) -> Option<ObjectKey> {
        self.index.lock().by_cluster_ip.get(ip).cloned()
    }

    /// Applies an event of a Pod; returns the Services that select the Pod before or after the event.
    pub(in crate::controllers) fn apply_pod(&self, event: &Event) -> Vec<ObjectKey> {
        let mut index = self.index.lock();
        if index.services.is_empty() {
            return Vec::new();
        }
        let pod = &event.object;
        let mut found = HashSet::new();
        for state in std::iter::once(pod).chain(&event.previous) {
            for (key, value) in &state.facts.labels {
                if let Some(names) = index.by_label.get(&label(&pod.key.namespace, key, value)) {
                    found.extend(names.iter().map(|name| ObjectKey::new(&pod.key.namespace, name)));
                }
            }
        }
        let present = event.kind != EventKind::Deleted;
        found.retain(|key| {
            let Some(service) = index.services.get_mut(key) else { return false };
            let now = present && service.selects(pod);
            if let Some(pods) = &mut service.pods {
                if now {
                    pods.insert(pod.key.name.clone());
                } else {
                    pods.remove(&pod.key.name);
                }
            }
            now || event.previous.as_ref().is_some_and(|p| service.selects(p)) || (!present && service.selects(pod))
        });
        found.into_iter().collect()
    }

    /// Names of the Pods that a Service selects.
    pub(super) fn pods(&self, key: &ObjectKey, all: &Collection) -> Vec<Box<str>> {
        let mut index = self.index.lock();
        let Some(service) = index.services.get_mut(key) else { return Vec::new() };
        if service.pods.is_none() {
            // The index is locked, so events that arrive during the scan are applied after it.
            let mut pods = BTreeSet::new();
            all.scan(&key.namespace, None, |pod| {
                if service.selects(pod) {
                    pods.insert(pod.key.name.clone());
                }
                true
            });
            service.pods = Some(pods);
        }
        service.pods.iter().flatten().cloned().collect()
    }
}

impl Index {
    /// Forgets the cluster IP of a Service, unless another Service has it meanwhile.
    fn release_ip(&mut self, ip: &str, key: &ObjectKey) {
        if self.by_cluster_ip.get(ip).is_some_and(|holder| holder == key) {
            self.by_cluster_ip.remove(ip);
        }
    }

    fn put(&mut self, key: &ObjectKey, selector: Selector) {
        if self.services.get(key).is_some_and(|known| known.selector == selector) {
            return;
        }
        self.remove(key);
        let Some((first, value)) = selector.first() else { return };
        self.by_label.entry(label(&key.namespace, first, value)).or_default().insert(key.name.clone());
        self.services.insert(key.clone(), Service { selector, pods: None });
    }

    fn remove(&mut self, key: &ObjectKey) {
        let Some(Service { selector, .. }) = self.services.remove(key) else { return };
        let Some((first, value)) = selector.first() else { return };
        let at = label(&key.namespace, first, value);
        if let Some(names) = self.by_label.get_mut(&at) {
            names.remove(&key.name);
            if names.is_empty() {
                self.by_label.remove(&at);
            }
        }
    }
}
