//! The node's share of the network: addresses, our table, forwarding. Everything is undone when the last user goes.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use super::filter;
use super::nft::{Batch, Channel};
use super::pool::{PodNetwork, choose_network, parse_routes};
use super::{super::plan::VethPlan, loopback_address};
use crate::kernel::leftovers::{self, Turn};
use crate::runtime::PodRules;

/// Pods' network on this host.
pub(crate) struct NodeNetwork {
    network: PodNetwork,
    /// What the names of our cables begin with.
    cables: String,
    table: String,
    channel: Channel,
    word: String,
    /// Whether connections are tracked. While all Pods are closed nothing is, because tracking costs every packet of the host,
    /// whoever it belongs to.
    tracked: Mutex<bool>,
    forwards: AtomicBool,
    /// Cables of this process, and whether they have rules: one without is closed, and needs none to be.
    cables_made: Mutex<HashMap<String, bool>>,
}

impl NodeNetwork {
    /// Puts our table in place: from the first moment, Pods reach nothing. Rules of Pods of an earlier process stay.
    pub(crate) fn open(data_dir: &Path, network: PodNetwork, has_pods: bool) -> io::Result<Self> {
        let word = word_of(data_dir);
        let this = Self {
            network,
            cables: format!("asb{}", &word[..4]),
            table: table_name(data_dir),
            channel: Channel::open()?,
            word,
            tracked: Mutex::new(has_pods),
            forwards: AtomicBool::new(false),
            cables_made: Mutex::new(HashMap::new()),
        };
        this.make_table(data_dir, has_pods)?;
        loopback_address(this.network.gateway(), true).inspect_err(|_| drop(this.delete_table()))?;
        Ok(this)
    }

    fn make_table(&self, data_dir: &Path, has_pods: bool) -> io::Result<()> {
        const INPUT: u32 = 1;
        const FORWARD: u32 = 2;
        let mut batch = Batch::new(&self.table);
        let comment = data_dir.to_string_lossy();
        if !has_pods {
            // Whatever an earlier process left is gone in the same moment; deleting wants a table that is there.
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
        self.fill_chains(&mut batch, has_pods);
        batch.commit(&self.channel)
    }

    /// The rules that all Pods share.
    fn fill_chains(&self, batch: &mut Batch, tracked: bool) {
        const POST_ROUTING: u32 = 4;
        let mut chains = vec![
            ("input", filter::input_rules(&self.cables, self.network.gateway(), tracked)),
            ("forward", filter::forward_rules(&self.cables)),
            (filter::FROM_PODS, filter::from_pods_rules(tracked)),
            (filter::TO_PODS, filter::to_pods_rules(tracked)),
        ];
        if tracked {
            batch.add_base_chain("postrouting", "nat", POST_ROUTING, 100);
            let masquerade = filter::masquerade_rules(&self.cables, self.network.base, self.network.prefix);
            chains.push(("postrouting", masquerade));
        }
        for (chain, rules) in &chains {
            batch.flush_chain(chain);
            for rule in rules {
                batch.add_rule(chain, rule);
            }
        }
    }

    pub(crate) fn gateway(&self) -> Ipv4Addr {
        self.network.gateway()
    }

    /// A cable for a new Pod.
    pub(crate) fn cable(&self) -> VethPlan {
        let host_name = format!("{}{:08x}", self.cables, rand::random::<u32>());
        self.cables_made.lock().insert(host_name.clone(), false);
        VethPlan { host_name, gateway: self.gateway() }
    }

    /// Whether a cable may have rules: those of an earlier process may.
    pub(crate) fn may_have_rules(&self, veth: &VethPlan) -> bool {
        self.cables_made.lock().get(&veth.host_name).is_none_or(|has_rules| *has_rules)
    }

    /// Whether these rules change nothing: a cable that never had any is as closed as one can be.
    pub(crate) fn is_closed_already(&self, veth: &VethPlan, rules: &PodRules) -> bool {
        rules.egress.is_empty() && rules.ingress.is_empty() && !self.may_have_rules(veth)
    }

    /// Opens what these rules allow, and closes the rest. Waits for the kernel.
    pub(crate) fn set_rules(&self, veth: &VethPlan, address: Ipv4Addr, rules: &PodRules) -> io::Result<()> {
        if self.is_closed_already(veth, rules) {
            return Ok(());
        }
        if !rules.egress.is_empty() || !rules.ingress.is_empty() {
            self.open_up()?;
        }
        self.cables_made.lock().insert(veth.host_name.clone(), true);
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
        batch.commit(&self.channel)
    }

    /// Forgets a Pod's cable. Waits for the kernel only when the cable may have rules.
    pub(crate) fn release(&self, veth: &VethPlan) -> io::Result<()> {
        // Asking the kernel to take away what is not there makes it wait for every processor, and everybody behind us.
        let has_rules = self.may_have_rules(veth);
        self.cables_made.lock().remove(&veth.host_name);
        if !has_rules {
            return Ok(());
        }
        let mut batch = Batch::new(&self.table);
        for (map, direction) in [("from", "out"), ("to", "in")] {
            let chain = chain_name(direction, veth);
            batch.remove_interface(map, &veth.host_name);
            batch.flush_chain(&chain);
            batch.delete_chain(&chain);
        }
        // The cable itself goes with the Pod's namespace: the kernel takes many down at a time, and one alone slowly.
        match batch.commit(&self.channel) {
            // It never had rules.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            other => other,
        }
    }

    /// Packets are forwarded and connections tracked only once a rule asks for it; the host's own setting comes back with
    /// [`NodeNetwork::close`].
    fn open_up(&self) -> io::Result<()> {
        if !self.forwards.load(Ordering::Relaxed) {
            leftovers::needs_forwarding(&Turn::take()?, &self.word)?;
            self.forwards.store(true, Ordering::Relaxed);
        }
        let mut tracked = self.tracked.lock();
        if !*tracked {
            let mut batch = Batch::new(&self.table);
            self.fill_chains(&mut batch, true);
            batch.commit(&self.channel)?;
            *tracked = true;
        }
        Ok(())
    }

    fn delete_table(&self) -> io::Result<()> {
        delete_table_through(&self.channel, &self.table)
    }

    /// Lends the way to the packet filter, for somebody else to close last.
    pub(crate) fn lend_channel<T>(&self, work: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
        self.channel.lend(work)
    }

    /// Takes everything back.
    pub(crate) fn close(&self, turn: Option<&Turn>) {
        if let Err(error) = self.delete_table() {
            tracing::warn!(%error, table = self.table, "Our nftables table stays behind");
        }
        if let Err(error) = loopback_address(self.network.gateway(), false) {
            tracing::warn!(%error, "The gateway's address stays behind");
        }
        if let Some(turn) = turn {
            leftovers::no_longer_forwards(turn, &self.word);
        }
    }
}

/// Removes a table of ours by name, if it is there.
pub(crate) fn delete_table(name: &str) -> io::Result<()> {
    delete_table_through(&Channel::open()?, name)
}

fn delete_table_through(channel: &Channel, name: &str) -> io::Result<()> {
    let mut batch = Batch::new(name);
    batch.delete_table();
    match batch.commit(channel) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        other => other,
    }
}

/// Name of a data folder's table, and of its control groups.
pub(crate) fn table_name(data_dir: &Path) -> String {
    format!("agent-sandbox-{}", word_of(data_dir))
}

fn chain_name(direction: &str, veth: &VethPlan) -> String {
    format!("{direction}-{}", veth.host_name)
}

/// A word of this data folder's own: eight hexadecimal digits.
pub(crate) fn word_of(data_dir: &Path) -> String {
    format!("{:08x}", number_of(data_dir))
}

fn number_of(data_dir: &Path) -> u32 {
    let hash = Sha256::digest(data_dir.as_os_str().as_encoded_bytes());
    u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]])
}

/// The network of Pod addresses: the operator's, else one that overlaps no route.
pub(crate) fn pod_network(data_dir: &Path, wanted: Option<&str>) -> io::Result<PodNetwork> {
    match wanted {
        Some(text) => PodNetwork::parse(text)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("{text} is not a Pod network"))),
        None => saved_or_chosen(&data_dir.join("pod-network"), number_of(data_dir)),
    }
}

/// A node keeps its network over restarts: running Pods have addresses in it.
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
