//! Arguments for how this machine runs sandboxes, shared by `up` and `node`, and the arguments of `node` itself.

use super::values::{cidr, count_limit, folder, id_range, pair, quantity_limit};
use agent_sandbox_engine::{DefaultLimit, NodeConfig};
use clap::Args;
use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sandboxes")]
pub(crate) struct NodeConfigArgs {
    /// Network of sandbox addresses, for example 10.88.0.0/16; by default one that no route uses
    #[arg(long, value_name = "CIDR", value_parser = cidr)]
    pod_cidr: Option<String>,
    /// Folder that Pods may mount with hostPath; may be repeated
    #[arg(long, value_name = "DIR", value_parser = folder)]
    allow_host_path: Vec<PathBuf>,
    /// Folder that the image `host` contains besides /usr, read-only; may be repeated
    #[arg(long, value_name = "DIR", value_parser = folder)]
    show_host_path: Vec<PathBuf>,
    /// Maximum number of processes of one Pod, or `none`
    #[arg(long, value_name = "N", default_value = "1024", value_parser = count_limit)]
    pod_pids_limit: DefaultLimit,
    /// Memory limit of Pods that set none, or `none`; by default half of the machine's memory
    #[arg(long, value_name = "QUANTITY", value_parser = quantity_limit)]
    pod_memory: Option<DefaultLimit>,
    /// CPU limit of Pods that set none, or `none`; by default all CPUs but one, at least three quarters of them
    #[arg(long, value_name = "QUANTITY", value_parser = quantity_limit)]
    pod_cpus: Option<DefaultLimit>,
    /// Disk space of Pods on storage that has no limit of its own, or `none`
    #[arg(long, value_name = "QUANTITY", default_value = "10Gi", value_parser = quantity_limit)]
    pod_storage: DefaultLimit,
    /// Files and folders of Pods on storage that has no limit of its own, or `none`; at most a quarter of the disk's
    #[arg(long, value_name = "N", default_value = "1000000", value_parser = count_limit)]
    pod_inodes: DefaultLimit,
    /// Refuse Pods whose limits this machine cannot enforce, instead of warning
    #[arg(long)]
    strict_limits: bool,
    /// Program that runs the Pods of a runtime class, beyond the well-known ones; may be repeated
    #[arg(long, value_name = "CLASS=PROGRAM", value_parser = pair)]
    runtime: Vec<(String, String)>,
    /// Mirror to pull from instead of a registry; may be repeated
    #[arg(long, value_name = "REGISTRY=MIRROR", value_parser = pair)]
    registry_mirror: Vec<(String, String)>,
    /// Host user ids for sandboxes: the first one, and the number of blocks of 65,536
    #[arg(long, value_name = "FIRST:BLOCKS", value_parser = id_range)]
    uid_range: Option<(u32, u32)>,
}

impl NodeConfigArgs {
    pub(crate) fn into_config(self) -> NodeConfig {
        NodeConfig {
            pod_network: self.pod_cidr,
            host_paths: self.allow_host_path,
            shown_paths: self.show_host_path,
            pids: self.pod_pids_limit,
            memory: self.pod_memory.unwrap_or_default(),
            cpus: self.pod_cpus.unwrap_or_default(),
            storage: self.pod_storage,
            inodes: self.pod_inodes,
            strict_limits: self.strict_limits,
            runtimes: self.runtime.into_iter().collect(),
            mirrors: self.registry_mirror,
            ids: self.uid_range,
            images: None,
            copies: None,
            ephemeral: false,
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct NodeArgs {
    /// Name of the Node object; by default this machine's host name
    #[arg(long, value_name = "NAME", value_parser = super::values::object_name)]
    pub(crate) node_name: Option<String>,
    /// Address of this machine for other hosts; by default the source address of the route to the API
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) node_ip: Option<IpAddr>,
    /// Address to serve logs, exec, attach and port-forward on, over TLS
    #[arg(long, value_name = "HOST:PORT", default_value = "0.0.0.0:10250")]
    pub(crate) listen: SocketAddr,
    /// CA of client certificates; callers need one, or a token, and access to nodes/proxy
    #[arg(long, value_name = "FILE")]
    pub(crate) client_ca_file: Option<PathBuf>,
    /// Certificate of the node; self-signed by default
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    pub(crate) tls_cert_file: Option<PathBuf>,
    /// Private key of the certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    pub(crate) tls_private_key_file: Option<PathBuf>,
    /// Domain of the cluster's Services
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local")]
    pub(crate) cluster_domain: String,
    #[command(flatten)]
    pub(crate) config: NodeConfigArgs,
}
