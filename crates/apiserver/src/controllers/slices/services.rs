//! Which Pods belong to which services. A Pod's event finds its services, and a service its Pods, without looking at all others: there may
//! be ten thousand of either in one namespace.

use std::collections::{BTreeSet, HashMap, HashSet};

use parking_lot::Mutex;

use super::{Selector, selector_of};
use crate::store::{Collection, Event, EventKind, Facts, ObjectKey, Stored};

/// The selectors of all services.
#[derive(Default)]
pub(in crate::controllers) struct Services {
    index: Mutex<Index>,
}

#[derive(Default)]
struct Index {
    services: HashMap<ObjectKey, Service>,
    /// Services by the first label they select, within their namespace: a Pod they select has it.
    by_label: HashMap<Label, HashSet<Box<str>>>,
    /// Who has which cluster address.
    by_address: HashMap<Box<str>, ObjectKey>,
}

#[derive(PartialEq, Eq, Hash)]
struct Label {
    namespace: Box<str>,
    key: Box<str>,
    value: Box<str>,
}

struct Service {
    selector: Selector,
    /// Names of the Pods it selects; unknown until somebody asks.
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

/// The cluster address of a service: the first of its selectable fields.
pub(crate) fn own_address(service: &Facts) -> Option<&str> {
    service.fields.first().map(|a| &**a).filter(|a| !matches!(*a, "" | "None"))
}

impl Services {
    /// Follows a service; returns it when its slices are to be looked at.
    pub(in crate::controllers) fn follow(&self, event: &Event) -> Option<ObjectKey> {
        if event.kind == EventKind::Deleted {
            let mut index = self.index.lock();
            index.remove(&event.object.key);
            if let Some(address) = own_address(&event.object.facts) {
                index.by_address.remove(address);
            }
            return None;
        }
        Some(self.load(&event.object))
    }

    pub(in crate::controllers) fn load(&self, service: &Stored) -> ObjectKey {
        let selector = selector_of(&service.parse());
        let mut index = self.index.lock();
        index.put(&service.key, selector);
        if let Some(address) = own_address(&service.facts) {
            index.by_address.insert(address.into(), service.key.clone());
        }
        service.key.clone()
    }

    pub(in crate::controllers) fn holder(&self, address: &str) -> Option<ObjectKey> {
        self.index.lock().by_address.get(address).cloned()
    }

    /// The services that select a Pod, now or before.
    pub(in crate::controllers) fn concerned(&self, event: &Event) -> Vec<ObjectKey> {
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

    /// Names of the Pods that a service selects.
    pub(super) fn pods(&self, key: &ObjectKey, all: &Collection) -> Vec<Box<str>> {
        let mut index = self.index.lock();
        let Some(service) = index.services.get_mut(key) else { return Vec::new() };
        if service.pods.is_none() {
            // Events that come meanwhile wait for the index, and are told to it afterwards.
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
