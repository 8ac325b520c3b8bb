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
    /// Opens each pair for its time from now on, also one that is open already. They are open when this returns.
    async fn open(&self, id: &str, pairs: Vec<((Ipv4Addr, u16), Duration)>) -> io::Result<()>;

    /// Closes pairs, whether they are open or not.
    async fn close(&self, id: &str, pairs: Vec<(Ipv4Addr, u16)>) -> io::Result<()>;
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

    /// Forgets a sandbox: its address resolves and reaches nothing from now on, and its connections through the proxy end.
    /// Returns what is open for it in the packet filter: [`Gateway::close`] closes that, or its interface goes too.
    pub fn remove(&self, id: &str) -> Vec<(Ipv4Addr, u16)> {
        let gone: Vec<_> = self.sandboxes.write().extract_if(|_, sandbox| sandbox.id == id).collect();
        gone.into_iter().flat_map(|(_, sandbox)| sandbox.set_policy(Policy::default())).collect()
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
        if let Err(error) = self.open(sandbox, name, &usable, lifetime(answer.ttl)).await {
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

    /// Notes what a name led to, and opens what the rules allow.
    async fn open(&self, sandbox: &Sandbox, name: &Name, addresses: &[Ipv4Addr], time: Duration) -> io::Result<()> {
        let _one_at_a_time = sandbox.port_changes.lock().await;
        let pairs = sandbox.note(name, addresses, time);
        if pairs.is_empty() { Ok(()) } else { self.ports.open(&sandbox.id, pairs).await }
    }

    /// Closes what [`Sandbox::set_policy`] returned, except what a later policy has opened again. What was still being
    /// opened when the policy changed is closed once it is open.
    pub async fn close(&self, sandbox: &Sandbox, pairs: Vec<(Ipv4Addr, u16)>) -> io::Result<()> {
        let _one_at_a_time = sandbox.port_changes.lock().await;
        let pairs = sandbox.not_open(pairs);
        if pairs.is_empty() { Ok(()) } else { self.ports.close(&sandbox.id, pairs).await }
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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use parking_lot::Mutex;
    use tokio::sync::Semaphore;

    use super::*;

    const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
    const TIME: Duration = Duration::from_secs(60);

    /// A packet filter that opens ports when it gets a permit.
    struct Ports {
        open: Mutex<HashSet<(Ipv4Addr, u16)>>,
        permits: Semaphore,
    }

    #[async_trait]
    impl OpenPorts for Ports {
        async fn open(&self, _: &str, pairs: Vec<((Ipv4Addr, u16), Duration)>) -> io::Result<()> {
            self.permits.acquire().await.unwrap().forget();
            self.open.lock().extend(pairs.into_iter().map(|(pair, _)| pair));
            Ok(())
        }

        async fn close(&self, _: &str, pairs: Vec<(Ipv4Addr, u16)>) -> io::Result<()> {
            self.open.lock().retain(|pair| !pairs.contains(pair));
            Ok(())
        }
    }

    fn gateway(permits: usize) -> (Gateway, Arc<Ports>) {
        let ports = Arc::new(Ports { open: Mutex::default(), permits: Semaphore::new(permits) });
        (Gateway::new(Vec::new(), ports.clone(), None), ports)
    }

    fn policy(rules: &str) -> Policy {
        Policy::default().and("test", rules).unwrap()
    }

    fn sandbox(rules: &str) -> Sandbox {
        Sandbox::new("1".into(), "ns".into(), "box".into(), policy(rules))
    }

    #[tokio::test]
    async fn a_port_that_is_being_opened_while_the_policy_changes_is_closed() {
        let (gateway, ports) = gateway(0);
        let (sandbox, name) = (sandbox("a.b:22"), Name::parse("a.b").unwrap());
        let opening = gateway.open(&sandbox, &name, &[ADDRESS], TIME);
        let closing = async {
            let closed = sandbox.set_policy(policy("c.d"));
            assert_eq!(closed, [(ADDRESS, 22)]);
            gateway.close(&sandbox, closed).await
        };
        // Polled in this order.
        let (opened, closed, ()) = tokio::join!(opening, closing, async { ports.permits.add_permits(1) });
        opened.and(closed).unwrap();
        assert!(ports.open.lock().is_empty(), "{:?}", ports.open.lock());
    }

    #[tokio::test]
    async fn a_port_that_a_later_policy_opened_again_stays_open() {
        let (gateway, ports) = gateway(2);
        let (sandbox, name) = (sandbox("a.b:22"), Name::parse("a.b").unwrap());
        gateway.open(&sandbox, &name, &[ADDRESS], TIME).await.unwrap();
        let closed = sandbox.set_policy(policy("c.d"));
        assert!(sandbox.set_policy(policy("a.b:22")).is_empty());
        gateway.open(&sandbox, &name, &[ADDRESS], TIME).await.unwrap();
        gateway.close(&sandbox, closed).await.unwrap();
        assert!(ports.open.lock().contains(&(ADDRESS, 22)));
    }

    #[tokio::test]
    async fn what_is_open_for_a_removed_sandbox_is_known_and_closed() {
        let (gateway, ports) = gateway(1);
        let (sandbox, name) = (Arc::new(sandbox("a.b:5432")), Name::parse("a.b").unwrap());
        gateway.insert(Ipv4Addr::LOCALHOST, Arc::clone(&sandbox));
        gateway.open(&sandbox, &name, &[ADDRESS], TIME).await.unwrap();
        let open = gateway.remove("1");
        assert!(gateway.sandbox(Ipv4Addr::LOCALHOST).is_none());
        gateway.close(&sandbox, open).await.unwrap();
        assert!(ports.open.lock().is_empty(), "{:?}", ports.open.lock());
    }
}
