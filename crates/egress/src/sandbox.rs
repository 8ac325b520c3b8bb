//! One sandbox as the gateway sees it: its policy, what it has resolved, and bounds on what it does at a time.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::name::Name;
use crate::policy::Policy;
use crate::resolved::Resolved;

/// Maximum number of connections of one sandbox through the proxy.
const MAX_CONNECTIONS: usize = 256;
/// Maximum number of open pairs of address and port that do not lead through the proxy.
const MAX_OPEN: usize = 1024;

/// Ports whose connections are diverted to the proxy; all others are opened in the packet filter.
pub(crate) const PROXIED: [u16; 2] = [80, 443];

/// A sandbox with egress rules.
pub struct Sandbox {
    /// Identifies the sandbox to [`OpenPorts`](crate::OpenPorts).
    pub id: String,
    pub namespace: String,
    pub name: String,
    policy: watch::Sender<Arc<Policy>>,
    seen: Mutex<Seen>,
    /// Held while the packet filter is changed.
    pub(crate) port_changes: tokio::sync::Mutex<()>,
    connections: Arc<Semaphore>,
}

#[derive(Default)]
struct Seen {
    resolved: Resolved,
    /// Pairs that are open in the packet filter, with the name that led to them for the longest time.
    open: HashMap<(Ipv4Addr, u16), (Name, Instant)>,
}

impl Sandbox {
    pub fn new(id: String, namespace: String, name: String, policy: Policy) -> Self {
        Self {
            id,
            namespace,
            name,
            policy: watch::Sender::new(Arc::new(policy)),
            seen: Mutex::default(),
            port_changes: tokio::sync::Mutex::default(),
            connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
        }
    }

    pub fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.policy.borrow())
    }

    /// Ends when the policy is replaced, or the sandbox is gone.
    pub(crate) fn policy_changes(&self) -> watch::Receiver<Arc<Policy>> {
        self.policy.subscribe()
    }

    /// Replaces the policy. Returns what must be closed with [`Gateway::close`](crate::Gateway::close); open
    /// connections through the proxy check the new policy themselves.
    #[must_use]
    pub fn set_policy(&self, policy: Policy) -> Vec<(Ipv4Addr, u16)> {
        let policy = Arc::new(policy);
        self.policy.send_replace(Arc::clone(&policy));
        let mut seen = self.seen.lock();
        seen.resolved.retain(|name| !policy.ports(name).is_empty());
        let closed: Vec<_> = seen
            .open
            .iter()
            .filter(|((_, port), (name, _))| !policy.decide(name, *port).is_allowed())
            .map(|(pair, _)| *pair)
            .collect();
        for pair in &closed {
            seen.open.remove(pair);
        }
        closed
    }

    /// Notes what a name led to. Returns the pairs that are to be opened in the packet filter, and for how long: an answer
    /// never shortens the time of an earlier one.
    pub(crate) fn note(
        &self,
        name: &Name,
        addresses: &[Ipv4Addr],
        lifetime: Duration,
    ) -> Vec<((Ipv4Addr, u16), Duration)> {
        let now = Instant::now();
        let until = now + lifetime;
        let mut seen = self.seen.lock();
        // Read under the lock: a policy that is set from now on finds what is noted here.
        let policy = self.policy();
        seen.resolved.insert(name, addresses, until, now);
        seen.open.retain(|_, (_, until)| *until > now);
        let ports: Vec<u16> = policy.ports(name).ports().filter(|port| !PROXIED.contains(port)).collect();
        let mut opened = Vec::new();
        for pair in addresses.iter().flat_map(|address| ports.iter().map(|port| (*address, *port))) {
            if seen.open.len() >= MAX_OPEN && !seen.open.contains_key(&pair) {
                continue;
            }
            let (kept_name, kept) = seen.open.entry(pair).or_insert_with(|| (name.clone(), until));
            if *kept < until {
                (*kept_name, *kept) = (name.clone(), until);
            }
            opened.push((pair, *kept - now));
        }
        opened
    }

    /// Those of these pairs that are not to be open.
    pub(crate) fn not_open(&self, mut pairs: Vec<(Ipv4Addr, u16)>) -> Vec<(Ipv4Addr, u16)> {
        let seen = self.seen.lock();
        pairs.retain(|pair| !seen.open.contains_key(pair));
        pairs
    }

    pub(crate) fn has_resolved(&self, name: &Name, address: Ipv4Addr) -> bool {
        self.seen.lock().resolved.contains(name, address, Instant::now())
    }

    /// A place for a connection; `None` when the sandbox has as many as it may.
    pub(crate) fn connection(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.connections).try_acquire_owned().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ports_that_bypass_the_proxy_are_opened_and_a_narrower_policy_closes_them() {
        let policy = |rules| Policy::default().and("test", rules).unwrap();
        let sandbox = Sandbox::new("1".into(), "ns".into(), "box".into(), policy("a.b a.b:22 a.b:5432-5433"));
        let (name, address) = (Name::parse("a.b").unwrap(), Ipv4Addr::new(192, 0, 2, 1));
        let time = Duration::from_secs(60);
        let opened = sandbox.note(&name, &[address], time);
        assert_eq!(opened, [22, 5432, 5433].map(|port| ((address, port), time)));
        assert_eq!(sandbox.set_policy(policy("a.b:22")).len(), 2);
        assert!(sandbox.has_resolved(&name, address), "the name is still allowed");
        assert_eq!(sandbox.set_policy(policy("c.d")), [(address, 22)]);
        assert!(!sandbox.has_resolved(&name, address));
    }

    #[test]
    fn a_shorter_answer_does_not_shorten_what_is_open() {
        let policy = |rules| Policy::default().and("test", rules).unwrap();
        let sandbox = Sandbox::new("1".into(), "ns".into(), "box".into(), policy("a.b:22 c.d:22"));
        let [long, short] = ["a.b", "c.d"].map(|name| Name::parse(name).unwrap());
        let (address, minute) = (Ipv4Addr::new(192, 0, 2, 1), Duration::from_secs(60));
        assert_eq!(sandbox.note(&long, &[address], 60 * minute), [((address, 22), 60 * minute)]);
        let again = sandbox.note(&short, &[address], minute);
        assert!(matches!(again[..], [(_, time)] if time > 59 * minute), "{again:?}");
        assert!(sandbox.set_policy(policy("a.b:22")).is_empty(), "the name with the longer time leads there");
        assert_eq!(sandbox.note(&long, &[address], 61 * minute), [((address, 22), 61 * minute)], "a longer one does");
    }
}
