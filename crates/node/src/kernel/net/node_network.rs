//! The node's part of the Pods' network: addresses, our nftables table, packet forwarding. Everything is removed with
//! the last user.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::addresses::{PodNetwork, choose_network, parse_routes};
use super::engine_group::{self, EngineGroup};
use super::filter;
use super::loopback_address;
use super::nft::{Batch, KeyPart, KeySet, NftSocket, set_key};
use crate::kernel::host::node_registry::{self, MachineLock};
use crate::kernel::supervisor::plan::VethPlan;
use crate::runtime::PodRules;

/// The Pods' network on this host.
pub(crate) struct NodeNetwork {
    network: PodNetwork,
    /// Prefix of the names of the host's ends of our veths.
    veth_prefix: String,
    table: String,
    /// Whether this process has removed the table.
    is_removed: AtomicBool,
    data_dir: PathBuf,
    nft: NftSocket,
    node_id: String,
    /// Whether connections are tracked. While all Pods are closed nothing is tracked, because tracking costs every
    /// packet of the host, including those of other programs.
    tracked: Mutex<bool>,
    forwards: AtomicBool,
    /// The cgroup from which the host may connect to Pods, or why there is none.
    group: Result<EngineGroup, String>,
    /// Interfaces between which this host should not forward packets; set once a node has switched forwarding on.
    not_forwarded: Mutex<Option<Vec<String>>>,
    /// Whether the table has what Pods with rules by domain need.
    by_domain: AtomicBool,
    /// Veths of this process whose Pods have, or had, rules by domain.
    by_domain_veths: Mutex<HashSet<String>>,
    /// Veths created by this process, and whether they have rules: one without rules is closed.
    veths: Mutex<HashMap<String, bool>>,
}

impl NodeNetwork {
    /// Creates our table: from the first moment, Pods reach nothing. Rules of Pods of an earlier process are kept.
    pub(crate) fn open(data_dir: &Path, network: PodNetwork, has_pods: bool) -> io::Result<Self> {
        let node_id = node_registry::node_id(data_dir);
        let group = engine_group::enter().map_err(|error| error.to_string());
        let mut this = Self {
            network,
            veth_prefix: format!("asb{}", &node_id[..4]),
            table: node_registry::resource_name(data_dir),
            is_removed: AtomicBool::new(false),
            data_dir: data_dir.to_owned(),
            nft: NftSocket::open()?,
            node_id,
            tracked: Mutex::new(has_pods),
            forwards: AtomicBool::new(false),
            by_domain: AtomicBool::new(false),
            by_domain_veths: Mutex::default(),
            group,
            not_forwarded: Mutex::new(node_registry::recorded_interfaces().filter(|_| has_pods)),
            veths: Mutex::new(HashMap::new()),
        };
        if this.group.is_ok()
            && let Err(error) = this.make_table(has_pods)
        {
            // A kernel without `socket cgroupv2`.
            this.leave_group();
            this.group = Err(format!("nftables refuses to match cgroups: {error}"));
        }
        if this.group.is_err() {
            this.make_table(has_pods)?;
        }
        if has_pods && let Err(error) = this.add_by_domain_sets() {
            // Pods of the earlier process with rules by domain stay closed.
            tracing::debug!(%error, "The table cannot have rules by domain");
        }
        let undo = |_: &io::Error| {
            this.leave_group();
            drop(this.delete_table());
        };
        loopback_address(this.network.gateway(), true).inspect_err(undo)?;
        Ok(this)
    }

    /// With `tracked`, the rules of Pods that the table has stay.
    fn make_table(&self, tracked: bool) -> io::Result<()> {
        const INPUT: u32 = 1;
        const FORWARD: u32 = 2;
        const OUTPUT: u32 = 3;
        let mut batch = Batch::new(&self.table);
        let comment = self.data_dir.to_string_lossy();
        if !tracked {
            // What an earlier process left is removed in the same batch; deleting needs an existing table.
            batch.add_table(&comment);
            batch.delete_table();
        }
        batch.add_table(&comment);
        batch.add_interface_map("from");
        batch.add_interface_map("to");
        batch.add_chain(filter::FROM_PODS);
        batch.add_chain(filter::TO_PODS);
        batch.add_base_chain("input", "filter", INPUT, -10);
        batch.add_base_chain("forward", "filter", FORWARD, -10);
        batch.add_base_chain("output", "filter", OUTPUT, -10);
        self.fill_chains(&mut batch, tracked);
        batch.commit(&self.nft)
    }

    /// Makes the table again if another program has removed it, as `nft flush ruleset` does. Returns whether it has: then
    /// Pods reach nothing until their rules are set again.
    pub(crate) fn restore_table(&self) -> io::Result<bool> {
        let tracked = self.tracked.lock();
        if self.is_removed.load(Ordering::Relaxed) || self.nft.has_table(&self.table)? {
            return Ok(false);
        }
        self.make_table(*tracked)?;
        Ok(true)
    }

    /// The rules that all Pods share.
    fn fill_chains(&self, batch: &mut Batch, tracked: bool) {
        const POST_ROUTING: u32 = 4;
        let by_domain = self.by_domain.load(Ordering::Relaxed);
        let not_forwarded = self.not_forwarded.lock();
        if let Some(interfaces) = not_forwarded.as_deref() {
            batch.add_interface_set(filter::NOT_FORWARDED, interfaces);
        }
        let mut chains = vec![
            ("input", filter::input_rules(&self.veth_prefix, self.network.gateway(), tracked)),
            ("forward", filter::forward_rules(&self.veth_prefix, not_forwarded.is_some())),
            ("output", filter::output_rules(&self.veth_prefix, self.group.as_ref().ok().copied())),
            (filter::FROM_PODS, filter::from_pods_rules(tracked, by_domain)),
            (filter::TO_PODS, filter::to_pods_rules(tracked)),
        ];
        if tracked {
            batch.add_base_chain("postrouting", "nat", POST_ROUTING, 100);
            let masquerade = filter::masquerade_rules(&self.veth_prefix, self.network.base, self.network.prefix);
            chains.push(("postrouting", masquerade));
        }
        if by_domain {
            const PRE_ROUTING: u32 = 0;
            for set in BY_DOMAIN_SETS {
                batch.add_set(set);
            }
            batch.add_open_interface_map(filter::DIVERTED);
            batch.add_base_chain("prerouting", "nat", PRE_ROUTING, -100);
            chains.push(("prerouting", filter::prerouting_rules()));
            chains[0].1.splice(BY_DOMAIN_POSITION..BY_DOMAIN_POSITION, filter::by_domain_input_rules(self.gateway()));
        }
        for (chain, rules) in &chains {
            batch.flush_chain(chain);
            for rule in rules {
                batch.add_rule(chain, rule);
            }
        }
    }

    /// Why other programs of root can connect to Pods; `None` if they cannot.
    pub(crate) fn open_to_root(&self) -> Option<&str> {
        self.group.as_ref().err().map(String::as_str)
    }

    fn leave_group(&self) {
        if self.group.is_ok() {
            engine_group::leave();
        }
    }

    pub(crate) fn gateway(&self) -> Ipv4Addr {
        self.network.gateway()
    }

    /// Plans the veth of a new Pod.
    pub(crate) fn new_veth(&self) -> VethPlan {
        let host_name = format!("{}{:08x}", self.veth_prefix, rand::random::<u32>());
        self.veths.lock().insert(host_name.clone(), false);
        VethPlan { host_name, gateway: self.gateway() }
    }

    /// Whether a veth may have rules. Those of an earlier process may.
    pub(crate) fn may_have_rules(&self, veth: &VethPlan) -> bool {
        self.veths.lock().get(&veth.host_name).is_none_or(|has_rules| *has_rules)
    }

    /// Whether these rules change nothing: a veth that never had any rules is closed already.
    pub(crate) fn is_closed_already(&self, veth: &VethPlan, rules: &PodRules) -> bool {
        rules.egress.is_empty() && rules.ingress.is_empty() && !rules.by_domain && !self.may_have_rules(veth)
    }

    /// Opens what these rules allow, and closes the rest. Waits for the kernel.
    pub(crate) fn set_rules(&self, veth: &VethPlan, address: Ipv4Addr, rules: &PodRules) -> io::Result<()> {
        if self.is_closed_already(veth, rules) {
            return Ok(());
        }
        if rules.by_domain {
            self.enable_by_domain()?;
        } else if !rules.egress.is_empty() || !rules.ingress.is_empty() {
            self.enable_forwarding_and_tracking()?;
        }
        self.veths.lock().insert(veth.host_name.clone(), true);
        let mut batch = Batch::new(&self.table);
        let directions = [
            ("from", chain_name("out", veth), filter::egress_rules(address, rules)),
            ("to", chain_name("in", veth), filter::ingress_rules(rules)),
        ];
        for (map, chain, list) in &directions {
            batch.add_chain(chain);
            batch.flush_chain(chain);
            for rule in list {
                batch.add_rule(chain, rule);
            }
            batch.add_interface(map, &veth.host_name, chain);
        }
        if rules.by_domain {
            self.by_domain_veths.lock().insert(veth.host_name.clone());
            let chain = chain_name("divert", veth);
            batch.add_chain(&chain);
            batch.flush_chain(&chain);
            for rule in filter::divert_rules(address, self.gateway(), rules) {
                batch.add_rule(&chain, &rule);
            }
            add_by_domain(&mut batch, veth, address, &chain);
        } else if self.may_be_by_domain(veth) {
            remove_by_domain(&mut batch, veth, address);
        }
        batch.commit(&self.nft)
    }

    /// The address to which connections of Pods with rules by domain are diverted.
    pub(crate) fn proxy(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.gateway(), filter::PROXY_PORT)
    }

    /// Opens pairs of address and TCP port for a Pod with rules by domain, each for its time. Waits for the kernel.
    pub(crate) fn open_ports(&self, veth: &VethPlan, pairs: &[((Ipv4Addr, u16), Duration)]) -> io::Result<()> {
        let keys: Vec<_> = pairs.iter().map(|(pair, time)| (open_key(veth, *pair), Some(*time))).collect();
        let mut batch = Batch::new(&self.table);
        batch.renew_elements(filter::OPEN, &keys);
        batch.commit(&self.nft)
    }

    /// Closes pairs again, whether they are still open or not. Waits for the kernel.
    pub(crate) fn close_ports(&self, veth: &VethPlan, pairs: &[(Ipv4Addr, u16)]) -> io::Result<()> {
        let keys: Vec<_> = pairs.iter().map(|pair| (open_key(veth, *pair), Some(Duration::from_secs(1)))).collect();
        let mut batch = Batch::new(&self.table);
        batch.clear_elements(filter::OPEN, &keys);
        batch.commit(&self.nft)
    }

    /// Whether the table may have elements for this veth's Pod as one with rules by domain.
    fn may_be_by_domain(&self, veth: &VethPlan) -> bool {
        let known = self.veths.lock().contains_key(&veth.host_name);
        let ruled = self.by_domain_veths.lock().contains(&veth.host_name);
        self.by_domain.load(Ordering::Relaxed) && (ruled || !known)
    }

    /// Removes a Pod's rules. Waits for the kernel only if the veth may have any.
    pub(crate) fn release(&self, veth: &VethPlan, address: Ipv4Addr) -> io::Result<()> {
        // Deleting what does not exist makes the kernel wait for every processor, and blocks all other changes
        // meanwhile.
        let has_rules = self.may_have_rules(veth);
        let by_domain = self.may_be_by_domain(veth);
        self.by_domain_veths.lock().remove(&veth.host_name);
        self.veths.lock().remove(&veth.host_name);
        if !has_rules {
            return Ok(());
        }
        let mut batch = Batch::new(&self.table);
        if by_domain {
            remove_by_domain(&mut batch, veth, address);
        }
        for (map, direction) in [("from", "out"), ("to", "in")] {
            let chain = chain_name(direction, veth);
            batch.remove_interface(map, &veth.host_name);
            batch.flush_chain(&chain);
            batch.delete_chain(&chain);
        }
        // The veth itself is removed with the Pod's namespace: the kernel removes many at a time faster than one alone.
        match batch.commit(&self.nft) {
            // The veth never had rules.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            other => other,
        }
    }

    /// Enables packet forwarding and connection tracking once a rule needs them; [`NodeNetwork::close`] restores the
    /// host's own setting.
    fn enable_forwarding_and_tracking(&self) -> io::Result<()> {
        let mut tracked = self.tracked.lock();
        let mut stale = !*tracked;
        if !self.forwards.load(Ordering::Relaxed) {
            stale = true;
            *self.not_forwarded.lock() = node_registry::enable_forwarding(&MachineLock::acquire()?, &self.node_id)?;
            self.forwards.store(true, Ordering::Relaxed);
        }
        if stale {
            let mut batch = Batch::new(&self.table);
            self.fill_chains(&mut batch, true);
            batch.commit(&self.nft)?;
            *tracked = true;
        }
        Ok(())
    }

    /// Prepares the table for Pods with rules by domain, when there is the first one.
    fn enable_by_domain(&self) -> io::Result<()> {
        self.enable_forwarding_and_tracking()?;
        let _one_at_a_time = self.tracked.lock();
        if self.by_domain.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.add_by_domain_sets()
    }

    fn add_by_domain_sets(&self) -> io::Result<()> {
        self.by_domain.store(true, Ordering::Relaxed);
        let mut batch = Batch::new(&self.table);
        self.fill_chains(&mut batch, true);
        // What an earlier process opened was decided by rules that may have changed since.
        batch.flush_set(filter::OPEN);
        batch.commit(&self.nft).inspect_err(|_| self.by_domain.store(false, Ordering::Relaxed))
    }

    fn delete_table(&self) -> io::Result<()> {
        let _one_at_a_time = self.tracked.lock();
        self.is_removed.store(true, Ordering::Relaxed);
        delete_table_over(&self.nft, &self.table)
    }

    /// Runs `work` with the nftables socket, for passing it to another process that closes it last.
    pub(crate) fn with_nft_socket<T>(&self, work: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
        self.nft.with_fd(work)
    }

    /// Removes everything again.
    pub(crate) fn close(&self, lock: Option<&MachineLock>) {
        if let Err(error) = self.delete_table() {
            tracing::warn!(%error, table = self.table, "The node's nftables table could not be removed");
        }
        if let Err(error) = loopback_address(self.network.gateway(), false) {
            tracing::warn!(%error, "The gateway's address could not be removed");
        }
        self.leave_group();
        if let Some(lock) = lock {
            node_registry::release_forwarding(lock, &self.node_id);
        }
    }
}

/// Removes a table by name, if it exists.
pub(crate) fn delete_table(name: &str) -> io::Result<()> {
    delete_table_over(&NftSocket::open()?, name)
}

fn delete_table_over(nft: &NftSocket, name: &str) -> io::Result<()> {
    let mut batch = Batch::new(name);
    batch.delete_table();
    match batch.commit(nft) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        other => other,
    }
}

/// The sets of Pods with rules by domain.
const BY_DOMAIN_SETS: &[KeySet] = &[
    KeySet { name: filter::BY_DOMAIN, parts: &[KeyPart::Address], timed: false },
    KeySet { name: filter::BY_DOMAIN_PAIRS, parts: &[KeyPart::Interface, KeyPart::Address], timed: false },
    KeySet { name: filter::OPEN, parts: &[KeyPart::Interface, KeyPart::Address, KeyPart::Port], timed: true },
];

/// Position in the input chain of the rules for them: after those about other interfaces and protocols.
const BY_DOMAIN_POSITION: usize = 2;

fn open_key(veth: &VethPlan, (address, port): (Ipv4Addr, u16)) -> Vec<u8> {
    set_key(Some(&veth.host_name), address, Some(port))
}

/// Adds a Pod to the sets and the map of Pods with rules by domain.
fn add_by_domain(batch: &mut Batch, veth: &VethPlan, address: Ipv4Addr, chain: &str) {
    batch.add_elements(filter::BY_DOMAIN, &[(set_key(None, address, None), None)]);
    batch.add_elements(filter::BY_DOMAIN_PAIRS, &[(set_key(Some(&veth.host_name), address, None), None)]);
    batch.add_interface(filter::DIVERTED, &veth.host_name, chain);
}

/// Removes a Pod from them, whether it is there or not: adding what exists is no error, removing what does not is.
fn remove_by_domain(batch: &mut Batch, veth: &VethPlan, address: Ipv4Addr) {
    let chain = chain_name("divert", veth);
    batch.add_chain(&chain);
    add_by_domain(batch, veth, address, &chain);
    batch.remove_elements(filter::BY_DOMAIN, &[(set_key(None, address, None), None)]);
    batch.remove_elements(filter::BY_DOMAIN_PAIRS, &[(set_key(Some(&veth.host_name), address, None), None)]);
    batch.remove_interface(filter::DIVERTED, &veth.host_name);
    batch.flush_chain(&chain);
    batch.delete_chain(&chain);
}

fn chain_name(direction: &str, veth: &VethPlan) -> String {
    format!("{direction}-{}", veth.host_name)
}

/// The network of Pod addresses: the operator's choice, or one that overlaps no route.
pub(crate) fn pod_network(data_dir: &Path, wanted: Option<&str>) -> io::Result<PodNetwork> {
    match wanted {
        Some(text) => PodNetwork::parse(text)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("{text} is not a Pod network"))),
        None => saved_or_chosen(&data_dir.join("pod-network"), node_registry::node_number(data_dir)),
    }
}

/// A node keeps its network across restarts: running Pods have addresses in it.
fn saved_or_chosen(file: &Path, seed: u32) -> io::Result<PodNetwork> {
    if let Some(saved) = fs::read_to_string(file).ok().and_then(|text| PodNetwork::parse(text.trim())) {
        return Ok(saved);
    }
    let routes = parse_routes(&fs::read_to_string("/proc/net/route")?);
    let chosen = choose_network(seed, &routes)
        .ok_or_else(|| io::Error::new(io::ErrorKind::AddrNotAvailable, "every Pod network overlaps a route"))?;
    fs::write(file, format!("{}/{}\n", chosen.base, chosen.prefix))?;
    Ok(chosen)
}
