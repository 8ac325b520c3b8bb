//! Bounds on what the DNS server does at the same time, in all and for each client: one Pod that opens connections or
//! sends queries without end takes nothing from the others.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

/// Counts what is in progress. Cheap to clone.
#[derive(Clone)]
pub(super) struct ClientSlots {
    per_client: usize,
    in_all: usize,
    taken: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// One thing in progress; it ends when this is dropped.
pub(super) struct Slot {
    client: IpAddr,
    taken: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl ClientSlots {
    pub(super) fn new(per_client: usize, in_all: usize) -> Self {
        Self { per_client, in_all, taken: Arc::default() }
    }

    /// A slot for this client; `None` when it has, or all clients together have, as many as they may.
    pub(super) fn take(&self, client: IpAddr) -> Option<Slot> {
        let mut taken = self.taken.lock();
        let own = taken.get(&client).copied().unwrap_or_default();
        if own >= self.per_client || taken.values().sum::<usize>() >= self.in_all {
            return None;
        }
        taken.insert(client, own + 1);
        Some(Slot { client, taken: Arc::clone(&self.taken) })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut taken = self.taken.lock();
        match taken.get_mut(&self.client) {
            Some(own) if *own > 1 => *own -= 1,
            _ => drop(taken.remove(&self.client)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_and_all_together_have_a_bound() {
        let slots = ClientSlots::new(2, 3);
        let [one, other, third] = [1, 2, 3].map(|last| IpAddr::from([10, 0, 0, last]));
        let held = [slots.take(one).unwrap(), slots.take(one).unwrap()];
        assert!(slots.take(one).is_none(), "its own bound");
        let others = slots.take(other).unwrap();
        assert!(slots.take(third).is_none(), "the bound of all");
        drop(others);
        assert!(slots.take(third).is_some());
        drop(held);
        assert!(slots.taken.lock().is_empty());
    }
}
