//! The decisions of leader election, without IO.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::LeaseConfig;

/// The content of a Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Empty: released.
    pub holder: String,
    pub duration: Duration,
    pub acquired: Option<Timestamp>,
    pub renewed: Option<Timestamp>,
    pub transitions: i32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Another replica holds it, and was seen to renew it recently enough.
    Wait,
    Create(Record),
    /// Replace the record of this version.
    Update(Record, String),
}

/// The Lease as last observed, and when this process saw it change.
#[derive(Debug)]
pub struct Elector {
    config: LeaseConfig,
    seen: Option<Seen>,
}

#[derive(Debug)]
struct Seen {
    record: Record,
    version: String,
    /// When this record was first seen, by the local monotonic clock.
    at: Instant,
}

impl Elector {
    pub fn new(config: LeaseConfig) -> Self {
        Self { config, seen: None }
    }

    /// Observes the Lease as it is now. The expiry restarts only when the record differs from the one seen before.
    pub fn observe(&mut self, lease: Option<(Record, String)>, now: Instant) {
        self.seen = lease.map(|(record, version)| {
            let at = self.seen.as_ref().filter(|seen| seen.record == record).map_or(now, |seen| seen.at);
            Seen { record, version, at }
        });
    }

    pub fn is_holder(&self) -> bool {
        self.seen.as_ref().is_some_and(|seen| seen.record.holder == self.config.identity)
    }

    /// Whether the Lease names another replica as its holder.
    pub fn held_by_other(&self) -> bool {
        self.seen
            .as_ref()
            .is_some_and(|seen| !seen.record.holder.is_empty() && seen.record.holder != self.config.identity)
    }

    /// When another replica's lease expires, if no renewal is seen before; `None` when no other replica holds it.
    pub fn held_until(&self) -> Option<Instant> {
        self.seen.as_ref().filter(|_| self.held_by_other()).map(|seen| seen.at + seen.record.duration)
    }

    /// The version of the Lease that was last seen.
    pub fn version(&self) -> Option<&str> {
        self.seen.as_ref().map(|seen| seen.version.as_str())
    }

    /// The next action. `wall` is only written, never compared.
    pub fn decide(&self, now: Instant, wall: Timestamp) -> Decision {
        let fresh = |transitions, acquired| Record {
            holder: self.config.identity.clone(),
            duration: self.config.duration,
            acquired: Some(acquired),
            renewed: Some(wall),
            transitions,
        };
        let Some(seen) = &self.seen else { return Decision::Create(fresh(0, wall)) };
        if self.is_holder() {
            let acquired = seen.record.acquired.unwrap_or(wall);
            return Decision::Update(fresh(seen.record.transitions, acquired), seen.version.clone());
        }
        if self.held_until().is_some_and(|end| now < end) {
            return Decision::Wait;
        }
        Decision::Update(fresh(seen.record.transitions.saturating_add(1), wall), seen.version.clone())
    }

    /// The record that releases the Lease, if this process holds it.
    pub fn release(&mut self) -> Option<(Record, String)> {
        let seen = self.seen.take()?;
        let ours = seen.record.holder == self.config.identity;
        ours.then(|| (Record { holder: String::new(), duration: Duration::from_secs(1), ..seen.record }, seen.version))
    }
}
