//! Watches policies, namespaces, Services and other Pods, and turns them into network rules and DNS names.

use std::collections::BTreeSet;

use agent_sandbox_egress::Policy;
use k8s_openapi::api::core::v1::{Namespace, ObjectReference, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::runtime::watcher;
use tracing::{debug, warn};

use super::{Manager, TaskResult, uid};
use crate::kubelet::actor::Message;
use crate::kubelet::egress::pods::Closing;
use crate::kubelet::events::Severity;
use crate::kubelet::policy::PolicyPod;

/// Reason of the event about egress rules that cannot be read.
const INVALID_RULES: &str = "InvalidEgressRules";

/// The lists that rules are computed from, as they are named in messages.
pub(super) const PODS: &str = "Pods";
const PEERS: &str = "Pods of other nodes";
const POLICIES: &str = "network policies";
const NAMESPACES: &str = "namespaces";

/// The lists that a node reads. In embedded mode that of Pods has those of other nodes too.
pub(super) fn lists(embedded: bool) -> BTreeSet<&'static str> {
    [PODS, POLICIES, NAMESPACES].into_iter().chain((!embedded).then_some(PEERS)).collect()
}

impl Manager {
    /// Stores a Pod of any node as a possible peer of this node's Pods. Returns true when something policies see has
    /// changed.
    pub(super) fn update_peer(&mut self, pod: &Pod) -> bool {
        let key = uid(pod);
        self.names.write().put_pod(&key, pod);
        let policy_pod = PolicyPod::of(pod);
        let changed = self.policy_inputs.pods.get(&key) != Some(&policy_pod);
        if changed {
            self.policy_inputs.pods.insert(key, policy_pod);
        }
        changed
    }

    /// Removes a Pod as a peer.
    pub(super) async fn remove_peer(&mut self, key: &str) {
        self.policy_inputs.pods.remove(key);
        self.egress.remove(key);
        self.names.write().remove_pod(key);
        if self.policy_inputs.has_selectors() {
            self.refresh_rules().await;
        }
    }

    /// Recomputes the rules that a change of one Pod can affect.
    pub(super) async fn refresh_rules_after_change(&mut self, key: &str) {
        if self.policy_inputs.has_selectors() {
            self.refresh_rules().await;
        } else {
            self.refresh_rules_of(key).await;
        }
        if let Some(rules) = self.rules.get(key) {
            self.names.write().put_rules(key, rules);
        }
    }

    /// Handles Pods of other nodes, which matter only as policy peers and for DNS names.
    pub(super) async fn peer_event(&mut self, event: Result<watcher::Event<Pod>, watcher::Error>) {
        match event {
            Ok(watcher::Event::Init) => self.peers_listed.clear(),
            Ok(watcher::Event::InitApply(pod)) => {
                self.peers_listed.insert(uid(&pod));
                self.peer_applied(&pod).await;
            }
            Ok(watcher::Event::Apply(pod)) => self.peer_applied(&pod).await,
            Ok(watcher::Event::InitDone) => {
                let known: Vec<String> = self.policy_inputs.pods.keys().cloned().collect();
                for key in known {
                    if !self.peers_listed.contains(&key) && !self.listed.contains(&key) {
                        self.remove_peer(&key).await;
                    }
                }
                self.list_ended(PEERS).await;
            }
            Ok(watcher::Event::Delete(pod)) => self.remove_peer(&uid(&pod)).await,
            Err(error) => self.watch_interrupted(PEERS, &error).await,
        }
    }

    async fn peer_applied(&mut self, pod: &Pod) {
        if self.update_peer(pod) {
            self.refresh_rules_after_change(&uid(pod)).await;
        }
    }

    /// Notes that a list has ended. The first time that all have, Pods of an earlier node process get their rules: what
    /// they are computed from may have changed while no node ran. Rules from a part of the lists would close what is
    /// allowed.
    pub(super) async fn list_ended(&mut self, what: &'static str) {
        if self.awaited_lists.remove(what) && self.awaited_lists.is_empty() {
            self.resend_rules().await;
        }
    }

    /// Logs an interrupted watch, which is restarted by itself; a forbidden one is logged as a warning once.
    pub(super) async fn watch_interrupted(&mut self, what: &'static str, error: &watcher::Error) {
        if is_forbidden(error) && self.forbidden.insert(what) {
            warn!(
                what,
                "This node is not allowed to list these: flows that depend on them stay closed and their names unknown"
            );
            self.list_ended(what).await;
        } else {
            debug!(%error, what, "A watch was interrupted");
        }
    }

    pub(super) async fn policy_event(&mut self, event: Result<watcher::Event<NetworkPolicy>, watcher::Error>) {
        let key = |p: &NetworkPolicy| p.metadata.uid.clone().unwrap_or_default();
        match event {
            Ok(watcher::Event::Init) => self.policy_inputs.policies.clear(),
            Ok(watcher::Event::InitApply(policy)) => {
                self.policy_inputs.policies.insert(key(&policy), policy);
            }
            Ok(watcher::Event::InitDone) => {
                self.refresh_rules().await;
                self.list_ended(POLICIES).await;
            }
            Ok(watcher::Event::Apply(policy)) => {
                self.policy_inputs.policies.insert(key(&policy), policy);
                self.refresh_rules().await;
            }
            Ok(watcher::Event::Delete(policy)) => {
                self.policy_inputs.policies.remove(&key(&policy));
                self.refresh_rules().await;
            }
            Err(error) => self.watch_interrupted(POLICIES, &error).await,
        }
    }

    pub(super) async fn namespace_event(&mut self, event: Result<watcher::Event<Namespace>, watcher::Error>) {
        let name = |n: &Namespace| n.metadata.name.clone().unwrap_or_default();
        match event {
            Ok(watcher::Event::InitApply(namespace) | watcher::Event::Apply(namespace)) => {
                let labels = namespace.metadata.labels.clone().unwrap_or_default();
                let old = self.policy_inputs.namespaces.insert(name(&namespace), labels.clone());
                let ceiling_changed = self.policy_inputs.ceilings.put(&name(&namespace), &namespace);
                if ceiling_changed || (old != Some(labels) && self.policy_inputs.has_selectors()) {
                    self.refresh_rules().await;
                }
            }
            Ok(watcher::Event::Delete(namespace)) => {
                self.policy_inputs.namespaces.remove(&name(&namespace));
                self.policy_inputs.ceilings.remove(&name(&namespace));
            }
            Ok(watcher::Event::Init) => {}
            Ok(watcher::Event::InitDone) => {
                self.policy_inputs.ceilings.set_listed();
                self.list_ended(NAMESPACES).await;
            }
            Err(error) => {
                if is_forbidden(&error) && self.policy_inputs.ceilings.set_forbidden() {
                    self.refresh_rules().await;
                }
                self.watch_interrupted(NAMESPACES, &error).await;
            }
        }
    }

    pub(super) async fn service_event(&mut self, event: Result<watcher::Event<Service>, watcher::Error>) {
        let key = |service: &Service| {
            let meta = &service.metadata;
            (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
        };
        match event {
            Ok(watcher::Event::Init) => {
                self.names.write().clear_services();
                self.node.services.write().clear();
            }
            Ok(watcher::Event::InitApply(service) | watcher::Event::Apply(service)) => {
                self.names.write().put_service(&service);
                self.node.services.write().insert(key(&service), service);
            }
            Ok(watcher::Event::Delete(service)) => {
                self.names.write().remove_service(&service);
                self.node.services.write().remove(&key(&service));
            }
            Ok(watcher::Event::InitDone) => {}
            Err(error) => self.watch_interrupted("services", &error).await,
        }
    }

    /// Gives the egress gateway the policy of a Pod with rules by domain. With a bad rule nothing is allowed.
    fn set_egress_policy(&mut self, key: &str) {
        let Some(pod) = self.policy_inputs.pods.get(key) else { return };
        let policy = self.policy_inputs.ceilings.policy(&pod.namespace, pod.egress.as_ref()).unwrap_or_else(|error| {
            let about = ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                namespace: Some(pod.namespace.clone()),
                name: Some(pod.name.clone()),
                uid: Some(key.to_owned()),
                ..ObjectReference::default()
            };
            self.node.recorder.about(about, Severity::Warning, INVALID_RULES, format!("{error}; nothing is allowed"));
            Policy::default()
        });
        let closing = self.egress.put(key, pod, policy);
        self.close_ports(key, closing);
    }

    /// Closes what a Pod may no longer reach past the proxy.
    fn close_ports(&mut self, key: &str, closing: Option<Closing>) {
        let Some(closing) = closing else { return };
        let key = key.to_owned();
        self.tasks.spawn(async move {
            if let Err(error) = closing.run().await {
                warn!(%error, uid = key, "Ports that egress rules no longer allow stay open until they expire");
            }
            TaskResult::Nothing
        });
    }

    pub(super) async fn refresh_rules(&mut self) {
        let keys: Vec<String> = self.registry.read().keys().cloned().collect();
        for key in keys {
            self.refresh_rules_of(&key).await;
        }
    }

    pub(super) async fn refresh_rules_of(&mut self, key: &str) {
        let Some(policy_pod) = self.policy_inputs.pods.get(key) else { return };
        let handle = self.registry.read().get(key).cloned();
        let Some(handle) = handle else { return };
        let rules = self.policy_inputs.rules(policy_pod);
        match rules.by_domain {
            true => self.set_egress_policy(key),
            false => {
                let closing = self.egress.remove(key);
                self.close_ports(key, closing);
            }
        }
        if self.rules.get(key) != Some(&rules) {
            self.names.write().put_rules(key, &rules);
            self.rules.insert(key.to_owned(), rules.clone());
            let _ = handle.inbox.send(Message::Rules(rules)).await;
        }
    }
}

/// Whether a watch failed because this node lacks the right.
fn is_forbidden(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(source)
        | watcher::Error::WatchStartFailed(source)
        | watcher::Error::WatchFailed(source) => matches!(source, kube::Error::Api(status) if status.code == 403),
        _ => false,
    }
}
