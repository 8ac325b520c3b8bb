//! What the DNS server and the proxy share: the sandboxes by address, resolving names for them, and the log.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::RwLock;

use crate::address;
use crate::log::{Log, Outcome, Protocol, Record};
use crate::metrics::Metrics;
use crate::name::Name;
use crate::policy::Policy;
use crate::resolved::lifetime;
use crate::resolver;
use crate::sandbox::Sandbox;

/// Longest time to live in answers to sandboxes, in seconds: a program that asks again renews what is open.
const MAX_TTL: u32 = 300;

/// Opens pairs of address and port for a sandbox in the packet filter, and closes them.
#[async_trait]
pub trait OpenPorts: Send + Sync + 'static {
    /// Opens the pairs for this time. They are open when this returns.
    async fn open(&self, id: &str, pairs: Vec<(Ipv4Addr, u16)>, time: Duration) -> io::Result<()>;
}

/// Result of a lookup for a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    Found {
        addresses: Vec<Ipv4Addr>,
        ttl: u32,
    },
    /// The name does not exist, or has no IPv4 address: the response code.
    Missing(u8),
    /// Denied, with the reason.
    Denied(String),
    /// No resolver answered.
    Failed,
}

/// The way out of all sandboxes of a node that have egress rules.
pub struct Gateway {
    sandboxes: RwLock<HashMap<Ipv4Addr, Arc<Sandbox>>>,
    upstreams: Vec<SocketAddr>,
    ports: Arc<dyn OpenPorts>,
    log: Option<Log>,
    pub metrics: Metrics,
}

impl Gateway {
    pub fn new(upstreams: Vec<SocketAddr>, ports: Arc<dyn OpenPorts>, log: Option<Log>) -> Self {
        Self { sandboxes: RwLock::default(), upstreams, ports, log, metrics: Metrics::default() }
    }

    /// The sandbox with this address.
    pub fn sandbox(&self, address: Ipv4Addr) -> Option<Arc<Sandbox>> {
        self.sandboxes.read().get(&address).cloned()
    }

    pub fn insert(&self, address: Ipv4Addr, sandbox: Arc<Sandbox>) {
        self.sandboxes.write().insert(address, sandbox);
    }

    /// Forgets a sandbox: its address resolves and reaches nothing from now on.
    pub fn remove(&self, id: &str) {
        self.sandboxes.write().retain(|_, sandbox| {
            let gone = sandbox.id == id;
            if gone {
                // Ends its connections through the proxy. What is open in the packet filter goes with its interface.
                let _ = sandbox.set_policy(Policy::default());
            }
            !gone
        });
    }

    /// Resolves a name for a sandbox if a rule allows a port of it, and opens what the rules allow.
    pub async fn resolve(&self, sandbox: &Sandbox, name: &Name) -> Lookup {
        let policy = sandbox.policy();
        let mut record = self.record(sandbox, Protocol::Dns, Outcome::Deny);
        record.name = name.to_string();
        if policy.ports(name).is_empty() {
            let denied = policy.why_unresolved(name);
            record.set_denied(&denied);
            self.write(&record);
            return Lookup::Denied(format!("{name}: {denied}"));
        }
        let Some(answer) = resolver::resolve(&self.upstreams, name).await else {
            record.decision = Outcome::Fail;
            record.reason = "no resolver answered".to_owned();
            self.write(&record);
            return Lookup::Failed;
        };
        if answer.addresses.is_empty() {
            record.decision = Outcome::Allow;
            record.reason = "the name has no IPv4 address".to_owned();
            self.write(&record);
            return Lookup::Missing(answer.code);
        }
        let refused = |address: &Ipv4Addr| refused(*address);
        let usable: Vec<Ipv4Addr> = answer.addresses.iter().copied().filter(|a| refused(a).is_none()).collect();
        record.addresses.clone_from(&answer.addresses);
        if usable.is_empty() {
            let what = answer.addresses.iter().find_map(refused).unwrap_or_default();
            record.reason = format!("it resolves to {what}");
            self.write(&record);
            return Lookup::Denied(format!("{name}: it resolves to {what}"));
        }
        let time = lifetime(answer.ttl);
        let pairs = sandbox.note(name, &usable, time);
        if !pairs.is_empty()
            && let Err(error) = self.ports.open(&sandbox.id, pairs, time).await
        {
            record.decision = Outcome::Fail;
            record.reason = format!("its ports cannot be opened: {error}");
            self.write(&record);
            return Lookup::Failed;
        }
        record.decision = Outcome::Allow;
        record.addresses.clone_from(&usable);
        self.write(&record);
        Lookup::Found { addresses: usable, ttl: answer.ttl.min(MAX_TTL) }
    }

    /// Whether a name leads to this address: as the sandbox has asked, or, after a restart of this process, as it would
    /// be answered now.
    pub(crate) async fn leads_to(&self, sandbox: &Sandbox, name: &Name, address: Ipv4Addr) -> bool {
        if sandbox.has_resolved(name, address) {
            return true;
        }
        matches!(self.resolve(sandbox, name).await, Lookup::Found { addresses, .. } if addresses.contains(&address))
    }

    pub(crate) fn record(&self, sandbox: &Sandbox, protocol: Protocol, decision: Outcome) -> Record {
        Record {
            time: Timestamp::now(),
            namespace: sandbox.namespace.clone(),
            sandbox: sandbox.name.clone(),
            protocol,
            decision,
            name: String::new(),
            sni: String::new(),
            addresses: Vec::new(),
            port: None,
            method: String::new(),
            path: String::new(),
            bytes_sent: 0,
            bytes_received: 0,
            rule: String::new(),
            reason: String::new(),
        }
    }

    pub(crate) fn write(&self, record: &Record) {
        self.metrics.count(record);
        if let Some(log) = &self.log {
            log.write(record);
        }
    }
}

/// Why an address is refused, those of this machine included.
pub(crate) fn refused(address: Ipv4Addr) -> Option<&'static str> {
    address::refused(address).or_else(|| is_own(address).then_some("an address of this machine"))
}

/// Whether this machine has the address: then it would be its own source. Nothing is sent.
fn is_own(address: Ipv4Addr) -> bool {
    let source = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|socket| {
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip() == address)
}
