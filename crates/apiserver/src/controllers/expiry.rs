//! When events go: an hour after they last happened, as in Kubernetes. Each event is remembered once, however often it happens.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use tokio::time::Instant;

use crate::store::ObjectKey;

/// How long events live.
pub(super) const LIFE: Duration = Duration::from_secs(3600);

#[derive(Default)]
pub(super) struct Expiry {
    last: HashMap<ObjectKey, Instant>,
    order: BTreeSet<(Instant, ObjectKey)>,
}

impl Expiry {
    /// An event happened, perhaps again.
    pub(super) fn happened(&mut self, key: &ObjectKey, at: Instant) {
        self.forget(key);
        self.last.insert(key.clone(), at);
        self.order.insert((at, key.clone()));
    }

    pub(super) fn forget(&mut self, key: &ObjectKey) {
        if let Some(at) = self.last.remove(key) {
            self.order.remove(&(at, key.clone()));
        }
    }

    /// When the next one goes.
    pub(super) fn next(&self) -> Option<Instant> {
        self.order.first().map(|(at, _)| *at + LIFE)
    }

    /// Takes one that is due.
    pub(super) fn due(&mut self, now: Instant) -> Option<ObjectKey> {
        if self.next()? > now {
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
    fn an_event_goes_an_hour_after_it_last_happened() {
        let begin = Instant::now();
        let minutes = |n: u64| begin + Duration::from_secs(60 * n);
        let key = |name: &str| ObjectKey::new("default", name);
        let mut expiry = Expiry::default();
        expiry.happened(&key("once"), minutes(0));
        for n in 0..30 {
            expiry.happened(&key("often"), minutes(n));
        }
        expiry.happened(&key("deleted"), minutes(1));
        expiry.forget(&key("deleted"));
        assert_eq!((expiry.order.len(), expiry.last.len()), (2, 2), "each is remembered once");
        assert_eq!(expiry.next(), Some(minutes(60)));
        assert_eq!(expiry.due(minutes(59)), None);
        assert_eq!(expiry.due(minutes(60)), Some(key("once")));
        assert_eq!((expiry.due(minutes(88)), expiry.due(minutes(89))), (None, Some(key("often"))));
        assert_eq!((expiry.next(), expiry.last.len()), (None, 0));
    }
}
