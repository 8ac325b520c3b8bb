//! The node's share of the network: addresses, our table, forwarding. Everything is undone when the last user goes.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::filter;
use super::nft::Batch;
use super::pool::{PodNetwork, choose_network, parse_routes};
use super::{super::plan::VethPlan, loopback_address};
use crate::runtime::PodRules;

const FORWARDING: &str = "/proc/sys/net/ipv4/ip_forward";

/// Pods' network on this host.
pub(crate) struct NodeNetwork {
    network: PodNetwork,
    /// What the names of our cables begin with.
    cables: String,
    table: String,
    /// Where the host's own setting of forwarding is kept while ours is in place.
    forwarding_record: PathBuf,
}

impl NodeNetwork {
    /// Puts our table in place: from the first moment, Pods reach nothing.
    pub(crate) fn open(data_dir: &Path, network: PodNetwork) -> io::Result<Self> {
        let word = word_of(data_dir);
        let this = Self {
            network,
            cables: format!("asb{:04x}", word >> 16),
            table: format!("agent-sandbox-{word:08x}"),
            forwarding_record: data_dir.join("ip-forward"),
        };
        this.make_table()?;
        loopback_address(this.network.gateway(), true)?;
        Ok(this)
    }

    fn make_table(&self) -> io::Result<()> {
        const INPUT: u32 = 1;
        const FORWARD: u32 = 2;
        const POST_ROUTING: u32 = 4;
        let mut batch = Batch::new(&self.table);
        batch.add_table();
        batch.add_interface_map("from");
        batch.add_interface_map("to");
        batch.add_base_chain("input", "filter", INPUT, -10);
        batch.add_base_chain("forward", "filter", FORWARD, -10);
        batch.add_base_chain("postrouting", "nat", POST_ROUTING, 100);
        for (chain, rules) in [
            ("input", filter::input_rules(&self.cables, self.network.gateway())),
            ("forward", filter::forward_rules(&self.cables)),
            ("postrouting", filter::masquerade_rules(&self.cables, self.network.base, self.network.prefix)),
        ] {
            batch.flush_chain(chain);
            for rule in &rules {
                batch.add_rule(chain, rule);
            }
        }
        batch.commit()
    }

    pub(crate) fn gateway(&self) -> Ipv4Addr {
        self.network.gateway()
    }

    /// A cable for a new Pod.
    pub(crate) fn cable(&self) -> VethPlan {
        let number = rand::random::<u32>();
        VethPlan { host_name: format!("{}{number:08x}", self.cables), gateway: self.gateway() }
    }

    /// Opens what these rules allow, and closes the rest.
    pub(crate) fn set_rules(&self, veth: &VethPlan, address: Ipv4Addr, rules: &PodRules) -> io::Result<()> {
        if !rules.egress.is_empty() || !rules.ingress.is_empty() {
            self.forward()?;
        }
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
        batch.commit()
    }

    /// Forgets a Pod's cable.
    pub(crate) fn release(&self, veth: &VethPlan) -> io::Result<()> {
        let mut batch = Batch::new(&self.table);
        for (map, direction) in [("from", "out"), ("to", "in")] {
            let chain = chain_name(direction, veth);
            batch.remove_interface(map, &veth.host_name);
            batch.flush_chain(&chain);
            batch.delete_chain(&chain);
        }
        // The cable itself goes with the Pod's namespace: the kernel takes many down at a time, and one alone slowly.
        match batch.commit() {
            // It never had rules.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            other => other,
        }
    }

    /// Packets are forwarded only once a rule asks for it; the host's own setting comes back with [`NodeNetwork::close`].
    fn forward(&self) -> io::Result<()> {
        let present = fs::read_to_string(FORWARDING)?;
        if present.trim() == "1" {
            return Ok(());
        }
        fs::write(&self.forwarding_record, present)?;
        fs::write(FORWARDING, "1")
    }

    /// The name of our table, for whoever has to remove it in our place.
    pub(crate) fn table(&self) -> &str {
        &self.table
    }

    /// Takes everything back.
    pub(crate) fn close(&self) {
        if let Err(error) = delete_table(&self.table) {
            tracing::warn!(%error, table = self.table, "Our nftables table stays behind");
        }
        if let Err(error) = loopback_address(self.network.gateway(), false) {
            tracing::warn!(%error, "The gateway's address stays behind");
        }
        if let Ok(before) = fs::read_to_string(&self.forwarding_record) {
            // The record is only removed once the value is back.
            if fs::write(FORWARDING, before).is_ok() {
                let _ = fs::remove_file(&self.forwarding_record);
            }
        }
    }
}

/// Removes a table of ours by name.
pub(crate) fn delete_table(name: &str) -> io::Result<()> {
    let mut batch = Batch::new(name);
    batch.delete_table();
    batch.commit()
}

fn chain_name(direction: &str, veth: &VethPlan) -> String {
    format!("{direction}-{}", veth.host_name)
}

/// A number of this data folder's own.
pub(crate) fn word_of(data_dir: &Path) -> u32 {
    let hash = Sha256::digest(data_dir.as_os_str().as_encoded_bytes());
    u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]])
}

/// The network of Pod addresses: the operator's, else one that overlaps no route.
pub(crate) fn pod_network(data_dir: &Path, wanted: Option<&str>) -> io::Result<PodNetwork> {
    match wanted {
        Some(text) => PodNetwork::parse(text)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("{text} is not a Pod network"))),
        None => saved_or_chosen(&data_dir.join("pod-network"), word_of(data_dir)),
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
