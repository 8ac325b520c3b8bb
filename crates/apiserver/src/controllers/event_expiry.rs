//! Tracks when Events expire: an hour after their last occurrence, as in Kubernetes. Each Event has one entry, however
//! often it occurs.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use tokio::time::Instant;

use crate::store::ObjectKey;

/// Lifetime of an Event after its last occurrence.
pub(super) const EVENT_TTL: Duration = Duration::from_secs(3600);

#[derive(Default)]
pub(super) struct EventExpiry {
    last: HashMap<ObjectKey, Instant>,
    order: BTreeSet<(Instant, ObjectKey)>,
}

impl EventExpiry {
    /// Records an occurrence of an Event.
    pub(super) fn touch(&mut self, key: &ObjectKey, at: Instant) {
        self.remove(key);
        self.last.insert(key.clone(), at);
        self.order.insert((at, key.clone()));
    }

    pub(super) fn remove(&mut self, key: &ObjectKey) {
        if let Some(at) = self.last.remove(key) {
            self.order.remove(&(at, key.clone()));
        }
    }

    /// The time at which the next Event expires.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.order.first().map(|(at, _)| *at + EVENT_TTL)
    }

    /// Removes and returns one expired Event.
    pub(super) fn pop_expired(&mut self, now: Instant) -> Option<ObjectKey> {
        if self.next_expiry()? > now {
            return None;
        }
        let (_, key) = self.order.pop_first()?;
        self.last.remove(&key);
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_expires_an_hour_after_its_last_occurrence() {
        let begin = Instant::now();
        let minutes = |n: u64| begin + Duration::from_secs(60 * n);
        let key = |name: &str| ObjectKey::new("default", name);
        let mut expiry = EventExpiry::default();
        expiry.touch(&key("once"), minutes(0));
        for n in 0..30 {
            expiry.touch(&key("often"), minutes(n));
        }
        expiry.touch(&key("deleted"), minutes(1));
        expiry.remove(&key("deleted"));
        assert_eq!((expiry.order.len(), expiry.last.len()), (2, 2), "each has one entry");
        assert_eq!(expiry.next_expiry(), Some(minutes(60)));
        assert_eq!(expiry.pop_expired(minutes(59)), None);
        assert_eq!(expiry.pop_expired(minutes(60)), Some(key("once")));
        assert_eq!((expiry.pop_expired(minutes(88)), expiry.pop_expired(minutes(89))), (None, Some(key("often"))));
        assert_eq!((expiry.next_expiry(), expiry.last.len()), (None, 0));
    }
}
