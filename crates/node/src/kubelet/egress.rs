//! Egress rules by domain of Pods: which annotations they come from, and what they amount to. What they allow is decided
//! in the crate `agent-sandbox-egress`.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;

use agent_sandbox_api::keys::annotations;
use agent_sandbox_egress::{Gateway, OpenPorts, Policy, RuleError, proxy};
use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use tokio::net::TcpListener;
use tracing::{info, warn};

use crate::runtime::{SharedRuntime, chain};

pub(super) mod pods;

/// Interval of attempts to listen for diverted connections.
const BIND_RETRY: Duration = Duration::from_secs(2);

/// The annotations of a Pod that have egress rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EgressRules {
    own: Option<String>,
    of_claim: Option<String>,
}

impl EgressRules {
    /// The rules of a Pod; `None` when it has none, so that network policies alone decide.
    pub fn of(pod: &Pod) -> Option<Self> {
        let annotations = pod.metadata.annotations.as_ref()?;
        let [own, of_claim] =
            [annotations::EGRESS, annotations::EGRESS_OF_CLAIM].map(|key| annotations.get(key).cloned());
        (own.is_some() || of_claim.is_some()).then_some(Self { own, of_claim })
    }

    /// The policy without the ceiling of the namespace. A claim's rules without the Sandbox's own allow nothing.
    pub fn policy(&self) -> Result<Policy, RuleError> {
        let own = self.own.as_deref().unwrap_or_default();
        let policy = Policy::default().and(&format!("the annotation {}", annotations::EGRESS), own)?;
        match &self.of_claim {
            Some(text) => policy.and("the claim", text),
            None => Ok(policy),
        }
    }
}

/// The ceilings that administrators have set on namespaces.
#[derive(Clone, Debug, Default)]
pub struct Ceilings {
    /// Of each known namespace; `None` for one without a ceiling.
    by_namespace: BTreeMap<String, Option<String>>,
    listing: Listing,
}

/// What this node knows about which namespaces exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Listing {
    /// The first list has not ended.
    #[default]
    Pending,
    Listed,
    /// The node has no right to list them, and has never listed them.
    Forbidden,
}

/// How the ceiling of a namespace holds its Pods that have no rules of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Network policies alone decide.
    Free,
    /// The namespace is not known yet and may have a ceiling: its Pods reach no wide block of addresses.
    Unknown,
    /// The Pods have the rules by domain of the ceiling.
    Ceiling,
}

impl Ceilings {
    /// Notes a namespace. Returns whether its ceiling is new or has changed.
    pub fn put(&mut self, name: &str, namespace: &Namespace) -> bool {
        let annotation = |all: &BTreeMap<String, String>| all.get(annotations::EGRESS_CEILING).cloned();
        let ceiling = namespace.metadata.annotations.as_ref().and_then(annotation);
        self.by_namespace.insert(name.to_owned(), ceiling.clone()) != Some(ceiling)
    }

    pub fn remove(&mut self, name: &str) {
        self.by_namespace.remove(name);
    }

    /// Notes that all namespaces that exist have been put.
    pub fn set_listed(&mut self) {
        self.listing = Listing::Listed;
    }

    /// Notes that the node may not list namespaces. Returns whether that is news; what was listed before stays known.
    pub fn set_forbidden(&mut self) -> bool {
        let news = self.listing == Listing::Pending;
        if news {
            self.listing = Listing::Forbidden;
        }
        news
    }

    /// How the Pods of a namespace are held, also those without rules of their own.
    pub fn hold(&self, namespace: &str) -> Hold {
        match self.by_namespace.get(namespace) {
            Some(Some(_)) => Hold::Ceiling,
            Some(None) => Hold::Free,
            None if self.listing == Listing::Forbidden => Hold::Free,
            None => Hold::Unknown,
        }
    }

    /// Narrows a policy by the ceiling of a namespace.
    fn narrow(&self, namespace: &str, policy: Policy) -> Result<Policy, RuleError> {
        match self.by_namespace.get(namespace) {
            Some(None) => Ok(policy),
            Some(Some(text)) => policy.and(&format!("the ceiling of namespace {namespace}"), text),
            None => Ok(Policy::default()),
        }
    }

    /// The policy of a Pod of this namespace.
    pub fn policy(&self, namespace: &str, rules: Option<&EgressRules>) -> Result<Policy, RuleError> {
        let policy = match rules {
            Some(rules) => rules.policy()?,
            None => EgressRules::default().policy()?,
        };
        self.narrow(namespace, policy)
    }
}

/// Opens and closes ports through the runtime.
pub(super) struct RuntimePorts(pub(super) SharedRuntime);

#[async_trait]
impl OpenPorts for RuntimePorts {
    async fn open(&self, id: &str, pairs: Vec<((Ipv4Addr, u16), Duration)>) -> io::Result<()> {
        self.0.open_ports(id, pairs).await.map_err(|error| io::Error::other(chain(&error)))
    }

    async fn close(&self, id: &str, pairs: Vec<(Ipv4Addr, u16)>) -> io::Result<()> {
        self.0.close_ports(id, pairs).await.map_err(|error| io::Error::other(chain(&error)))
    }
}

/// Serves diverted connections until the future is dropped. While the address cannot be bound, they are refused.
pub(super) async fn serve(address: SocketAddrV4, gateway: Arc<Gateway>) {
    let mut warned = false;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => {
                info!(%address, "Serving connections of Pods with egress rules");
                proxy::serve(listener, Arc::clone(&gateway)).await;
            }
            Err(error) if !warned => {
                warned = true;
                warn!(%error, %address, "Pods with egress rules reach nothing: the proxy cannot listen");
            }
            Err(_) => {}
        }
        tokio::time::sleep(BIND_RETRY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_sandbox_egress::Name;
    use serde_json::json;

    fn rules(annotations: serde_json::Value) -> Option<EgressRules> {
        EgressRules::of(&serde_json::from_value(json!({"metadata": {"annotations": annotations}})).unwrap())
    }

    fn ceilings(ceiling: Option<&str>) -> Ceilings {
        let annotations = ceiling.map(|text| json!({annotations::EGRESS_CEILING: text}));
        let namespace = serde_json::from_value(json!({"metadata": {"annotations": annotations}})).unwrap();
        let mut ceilings = Ceilings::default();
        assert!(ceilings.put("ns", &namespace));
        assert!(!ceilings.put("ns", &namespace), "unchanged");
        ceilings
    }

    fn allows(policy: &Policy, name: &str) -> bool {
        policy.decide(&Name::parse(name).unwrap(), 443).is_allowed()
    }

    #[test]
    fn a_pod_without_rules_is_left_to_network_policies() {
        assert_eq!(rules(json!({"other": "x"})), None);
        assert_eq!(ceilings(None).hold("ns"), Hold::Free);
        let mut not_listable = Ceilings::default();
        assert!(not_listable.set_forbidden());
        assert!(!not_listable.set_forbidden(), "once");
        assert_eq!(not_listable.hold("ns"), Hold::Free, "namespaces that a node may not list");
    }

    #[test]
    fn claims_and_ceilings_only_narrow() {
        let both = rules(json!({annotations::EGRESS: "a.com b.com", annotations::EGRESS_OF_CLAIM: "b.com c.com"}));
        let open = ceilings(None).policy("ns", both.as_ref()).unwrap();
        assert_eq!(["a.com", "b.com", "c.com"].map(|name| allows(&open, name)), [false, true, false]);
        let narrow = ceilings(Some("a.com")).policy("ns", both.as_ref()).unwrap();
        assert!(!["a.com", "b.com", "c.com"].iter().any(|name| allows(&narrow, name)));
        let claim_only = rules(json!({annotations::EGRESS_OF_CLAIM: "c.com"}));
        assert!(!allows(&ceilings(None).policy("ns", claim_only.as_ref()).unwrap(), "c.com"), "nothing to narrow");
    }

    #[test]
    fn a_ceiling_holds_pods_without_rules_and_an_unknown_namespace_is_closed() {
        let known = ceilings(Some("*"));
        assert_eq!(known.hold("ns"), Hold::Ceiling);
        assert!(!allows(&known.policy("ns", None).unwrap(), "a.com"), "a ceiling allows nothing by itself");
        let own = rules(json!({annotations::EGRESS: "*"}));
        assert!(allows(&known.policy("ns", own.as_ref()).unwrap(), "a.com"));
        assert!(!allows(&known.policy("later", own.as_ref()).unwrap(), "a.com"), "not known yet");
        assert_eq!(known.hold("later"), Hold::Unknown, "before the first list has ended");
        let mut listed = known;
        listed.set_listed();
        assert_eq!(listed.hold("later"), Hold::Unknown);
        assert!(!listed.set_forbidden(), "a right that was taken away");
        assert_eq!((listed.hold("ns"), listed.hold("later")), (Hold::Ceiling, Hold::Unknown));
    }

    #[test]
    fn a_bad_rule_is_an_error_wherever_it_is() {
        for annotations in [json!({annotations::EGRESS: "a..b"}), json!({annotations::EGRESS_OF_CLAIM: "@nope"})] {
            assert!(ceilings(None).policy("ns", rules(annotations).as_ref()).is_err());
        }
        assert!(ceilings(Some("10.0.0.1")).policy("ns", rules(json!({annotations::EGRESS: "*"})).as_ref()).is_err());
    }
}
