//! Counters of all sandboxes together, by what was decided: their number does not grow with names or sandboxes.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::log::{Outcome, Protocol, Record};

const PROTOCOLS: [(Protocol, &str); 4] =
    [(Protocol::Dns, "dns"), (Protocol::Http, "http"), (Protocol::Tls, "tls"), (Protocol::Tcp, "tcp")];
const OUTCOMES: [(Outcome, &str); 3] = [(Outcome::Allow, "allow"), (Outcome::Deny, "deny"), (Outcome::Fail, "fail")];

/// Counters since the start of the process.
#[derive(Debug, Default)]
pub struct Metrics {
    decisions: [[AtomicU64; 3]; 4],
    sent: AtomicU64,
    received: AtomicU64,
}

impl Metrics {
    pub(crate) fn count(&self, record: &Record) {
        self.decisions[record.protocol as usize][record.decision as usize].fetch_add(1, Ordering::Relaxed);
        self.sent.fetch_add(record.bytes_sent, Ordering::Relaxed);
        self.received.fetch_add(record.bytes_received, Ordering::Relaxed);
    }

    /// Protocol, decision and number.
    pub fn decisions(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> + '_ {
        PROTOCOLS.iter().flat_map(move |(protocol, protocol_name)| {
            OUTCOMES.iter().map(move |(outcome, outcome_name)| {
                let number = self.decisions[*protocol as usize][*outcome as usize].load(Ordering::Relaxed);
                (*protocol_name, *outcome_name, number)
            })
        })
    }

    /// Bytes that sandboxes sent and received through the proxy.
    pub fn bytes(&self) -> (u64, u64) {
        (self.sent.load(Ordering::Relaxed), self.received.load(Ordering::Relaxed))
    }
}
