//! What surrounds the Pods: policies, namespaces, Services and other Pods, turned into flows and names.

use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::runtime::watcher;
use tracing::{debug, warn};

use super::{Manager, uid};
use crate::pods::actor::Message;
use crate::policy::Member;

impl Manager {
    /// Takes note of a Pod as a peer of others, whoever runs it. True when something changed.
    pub(super) fn meet(&mut self, pod: &Pod) -> bool {
        let key = uid(pod);
        self.names.write().put_pod(&key, pod);
        let member = Member::of(pod);
        let changed = self.world.members.get(&key) != Some(&member);
        if changed {
            self.world.members.insert(key, member);
        }
        changed
    }

    /// A peer went away.
    pub(super) async fn part(&mut self, key: &str) {
        self.world.members.remove(key);
        self.names.write().remove_pod(key);
        if self.world.has_selectors() {
            self.refresh_rules().await;
        }
    }

    /// What a change of one Pod means for the flows of all.
    pub(super) async fn spread(&mut self, key: &str) {
        if self.world.has_selectors() {
            self.refresh_rules().await;
        } else {
            self.refresh_rules_of(key).await;
        }
        if let Some(rules) = self.rules.get(key) {
            self.names.write().put_rules(key, rules);
        }
    }

    /// Pods of other nodes: they are peers in policies and have names, and that is all.
    pub(super) async fn peer_event(&mut self, event: Result<watcher::Event<Pod>, watcher::Error>) {
        match event {
            Ok(watcher::Event::Init) => self.peers_listed.clear(),
            Ok(watcher::Event::InitApply(pod)) => {
                self.peers_listed.insert(uid(&pod));
                self.peer_applied(&pod).await;
            }
            Ok(watcher::Event::Apply(pod)) => self.peer_applied(&pod).await,
            Ok(watcher::Event::InitDone) => {
                let known: Vec<String> = self.world.members.keys().cloned().collect();
                for key in known {
                    if !self.peers_listed.contains(&key) && !self.listed.contains(&key) {
                        self.part(&key).await;
                    }
                }
            }
            Ok(watcher::Event::Delete(pod)) => self.part(&uid(&pod)).await,
            Err(error) => self.interrupted("Pods of other nodes", &error),
        }
    }

    async fn peer_applied(&mut self, pod: &Pod) {
        if self.meet(pod) {
            self.spread(&uid(pod)).await;
        }
    }

    /// A watch that ends is begun again; one that is forbidden is said once, with what follows from it.
    pub(super) fn interrupted(&mut self, what: &'static str, error: &watcher::Error) {
        let (watcher::Error::InitialListFailed(source)
        | watcher::Error::WatchStartFailed(source)
        | watcher::Error::WatchFailed(source)) = error
        else {
            debug!(%error, what, "A watch was interrupted");
            return;
        };
        let forbidden = matches!(source, kube::Error::Api(status) if status.code == 403);
        if forbidden && self.forbidden.insert(what) {
            warn!(what, "This node may not list these, so flows that need them stay closed and their names unknown");
        } else {
            debug!(%error, what, "A watch was interrupted");
        }
    }

    pub(super) async fn policy_event(&mut self, event: Result<watcher::Event<NetworkPolicy>, watcher::Error>) {
        let key = |p: &NetworkPolicy| p.metadata.uid.clone().unwrap_or_default();
        match event {
            Ok(watcher::Event::Init) => self.world.policies.clear(),
            Ok(watcher::Event::InitApply(policy)) => {
                self.world.policies.insert(key(&policy), policy);
            }
            Ok(watcher::Event::InitDone) => self.refresh_rules().await,
            Ok(watcher::Event::Apply(policy)) => {
                self.world.policies.insert(key(&policy), policy);
                self.refresh_rules().await;
            }
            Ok(watcher::Event::Delete(policy)) => {
                self.world.policies.remove(&key(&policy));
                self.refresh_rules().await;
            }
            Err(error) => self.interrupted("network policies", &error),
        }
    }

    pub(super) async fn namespace_event(&mut self, event: Result<watcher::Event<Namespace>, watcher::Error>) {
        let name = |n: &Namespace| n.metadata.name.clone().unwrap_or_default();
        match event {
            Ok(watcher::Event::InitApply(namespace) | watcher::Event::Apply(namespace)) => {
                let labels = namespace.metadata.labels.clone().unwrap_or_default();
                let old = self.world.namespaces.insert(name(&namespace), labels.clone());
                if old != Some(labels) && self.world.has_selectors() {
                    self.refresh_rules().await;
                }
            }
            Ok(watcher::Event::Delete(namespace)) => {
                self.world.namespaces.remove(&name(&namespace));
            }
            Ok(watcher::Event::Init | watcher::Event::InitDone) => {}
            Err(error) => self.interrupted("namespaces", &error),
        }
    }

    pub(super) fn service_event(&mut self, event: Result<watcher::Event<Service>, watcher::Error>) {
        let key = |service: &Service| {
            let meta = &service.metadata;
            (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
        };
        match event {
            Ok(watcher::Event::Init) => {
                self.names.write().clear_services();
                self.shared.services.write().clear();
            }
            Ok(watcher::Event::InitApply(service) | watcher::Event::Apply(service)) => {
                self.names.write().put_service(&service);
                self.shared.services.write().insert(key(&service), service);
            }
            Ok(watcher::Event::Delete(service)) => {
                self.names.write().remove_service(&service);
                self.shared.services.write().remove(&key(&service));
            }
            Ok(watcher::Event::InitDone) => {}
            Err(error) => self.interrupted("services", &error),
        }
    }

    pub(super) async fn refresh_rules(&mut self) {
        let keys: Vec<String> = self.registry.read().keys().cloned().collect();
        for key in keys {
            self.refresh_rules_of(&key).await;
        }
    }

    pub(super) async fn refresh_rules_of(&mut self, key: &str) {
        let Some(member) = self.world.members.get(key) else { return };
        let handle = self.registry.read().get(key).cloned();
        let Some(handle) = handle else { return };
        let rules = self.world.rules(member);
        if self.rules.get(key) != Some(&rules) {
            self.names.write().put_rules(key, &rules);
            self.rules.insert(key.to_owned(), rules.clone());
            let _ = handle.inbox.send(Message::Rules(rules)).await;
        }
    }
}
