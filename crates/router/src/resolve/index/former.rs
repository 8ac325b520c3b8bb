//! Former addresses of a Sandbox's Pods: a client that learnt one before a suspension may still send it.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use super::LivePod;

/// Maximum number of addresses per Sandbox, and of Sandboxes; the oldest are removed first.
const MAX_ADDRESSES: usize = 4;
const MAX_SANDBOXES: usize = 16_384;

/// Former addresses by Sandbox.
#[derive(Default)]
pub(super) struct FormerAddresses {
    /// Namespace → Sandbox → addresses, the newest last. Nested, so that a lookup borrows both names.
    addresses: HashMap<Arc<str>, HashMap<Arc<str>, VecDeque<IpAddr>>>,
    order: VecDeque<(Arc<str>, Arc<str>)>,
}

impl FormerAddresses {
    pub(super) fn insert(&mut self, pod: &LivePod) {
        let sandboxes = self.addresses.entry(Arc::clone(&pod.namespace)).or_default();
        let known = sandboxes.entry(Arc::clone(&pod.sandbox)).or_default();
        if known.is_empty() {
            self.order.push_back((Arc::clone(&pod.namespace), Arc::clone(&pod.sandbox)));
        }
        known.retain(|ip| !pod.has_ip(*ip));
        known.extend(pod.ips.iter().copied().take(MAX_ADDRESSES));
        known.drain(..known.len().saturating_sub(MAX_ADDRESSES));
        if self.order.len() > MAX_SANDBOXES {
            self.remove_oldest();
        }
    }

    pub(super) fn contains(&self, namespace: &str, sandbox: &str, ip: IpAddr) -> bool {
        self.addresses.get(namespace).and_then(|names| names.get(sandbox)).is_some_and(|known| known.contains(&ip))
    }

    fn remove_oldest(&mut self) {
        let Some((namespace, sandbox)) = self.order.pop_front() else { return };
        if let Some(sandboxes) = self.addresses.get_mut(&namespace) {
            sandboxes.remove(&sandbox);
            if sandboxes.is_empty() {
                self.addresses.remove(&namespace);
            }
        }
    }
}
