//! Keeps the egress gateway's sandboxes equal to the Pods of this node.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use agent_sandbox_egress::{Gateway, Policy, Sandbox};

use crate::kubelet::policy::PolicyPod;

/// Pairs of address and port that must be closed for a sandbox in the packet filter.
pub(in crate::kubelet) struct Closing {
    gateway: Arc<Gateway>,
    sandbox: Arc<Sandbox>,
    pairs: Vec<(Ipv4Addr, u16)>,
}

impl Closing {
    pub(in crate::kubelet) async fn run(self) -> io::Result<()> {
        self.gateway.close(&self.sandbox, self.pairs).await
    }
}

/// The sandboxes by Pod uid.
pub(in crate::kubelet) struct EgressPods {
    gateway: Arc<Gateway>,
    sandboxes: HashMap<String, (Ipv4Addr, Arc<Sandbox>)>,
}

impl EgressPods {
    pub(in crate::kubelet) fn new(gateway: Arc<Gateway>) -> Self {
        Self { gateway, sandboxes: HashMap::new() }
    }

    /// Sets the policy of a Pod. Returns what must be closed in the packet filter. A Pod without an address, or that has
    /// ended, is forgotten.
    pub(in crate::kubelet) fn put(&mut self, uid: &str, pod: &PolicyPod, policy: Policy) -> Option<Closing> {
        let address = pod.ips.iter().find_map(|ip| match ip {
            IpAddr::V4(address) => Some(*address),
            IpAddr::V6(_) => None,
        });
        let Some(address) = address else {
            self.remove(uid);
            return None;
        };
        if let Some((known, sandbox)) = self.sandboxes.get(uid)
            && *known == address
        {
            return self.closing(sandbox, sandbox.set_policy(policy));
        }
        self.remove(uid);
        let sandbox = Arc::new(Sandbox::new(uid.to_owned(), pod.namespace.clone(), pod.name.clone(), policy));
        self.gateway.insert(address, Arc::clone(&sandbox));
        self.sandboxes.insert(uid.to_owned(), (address, sandbox));
        None
    }

    fn closing(&self, sandbox: &Arc<Sandbox>, pairs: Vec<(Ipv4Addr, u16)>) -> Option<Closing> {
        let closing = Closing { gateway: Arc::clone(&self.gateway), sandbox: Arc::clone(sandbox), pairs };
        Some(closing).filter(|closing| !closing.pairs.is_empty())
    }

    /// Forgets a Pod that has no rules any more. Its connections end. Returns what must be closed in the packet filter,
    /// unless the Pod itself is gone: that goes with its interface.
    pub(in crate::kubelet) fn remove(&mut self, uid: &str) -> Option<Closing> {
        let (_, sandbox) = self.sandboxes.remove(uid)?;
        self.closing(&sandbox, self.gateway.remove(uid))
    }
}
