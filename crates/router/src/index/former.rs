//! Addresses that a Sandbox's Pods had before: a client that learnt one before a suspension still means that Sandbox.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use super::LivePod;

/// Addresses remembered of one Sandbox, and Sandboxes remembered; the oldest go first.
const ADDRESSES: usize = 4;
const SANDBOXES: usize = 16_384;

/// Who had which address.
#[derive(Default)]
pub(super) struct Former {
    /// namespace → Sandbox → addresses, the newest last. Nested so that a look-up borrows both parts.
    addresses: HashMap<Arc<str>, HashMap<Arc<str>, VecDeque<IpAddr>>>,
    order: VecDeque<(Arc<str>, Arc<str>)>,
}

impl Former {
    pub(super) fn remember(&mut self, pod: &LivePod) {
        let sandboxes = self.addresses.entry(Arc::clone(&pod.namespace)).or_default();
        let known = sandboxes.entry(Arc::clone(&pod.sandbox)).or_default();
        if known.is_empty() {
            self.order.push_back((Arc::clone(&pod.namespace), Arc::clone(&pod.sandbox)));
        }
        known.retain(|ip| !pod.has_ip(*ip));
        known.extend(pod.ips.iter().copied().take(ADDRESSES));
        known.drain(..known.len().saturating_sub(ADDRESSES));
        if self.order.len() > SANDBOXES {
            self.forget_oldest();
        }
    }

    pub(super) fn has(&self, namespace: &str, sandbox: &str, ip: IpAddr) -> bool {
        self.addresses.get(namespace).and_then(|names| names.get(sandbox)).is_some_and(|known| known.contains(&ip))
    }

    fn forget_oldest(&mut self) {
        let Some((namespace, sandbox)) = self.order.pop_front() else { return };
        if let Some(sandboxes) = self.addresses.get_mut(&namespace) {
            sandboxes.remove(&sandbox);
            if sandboxes.is_empty() {
                self.addresses.remove(&namespace);
            }
        }
    }
}
