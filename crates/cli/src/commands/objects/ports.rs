//! The ports on which programs in sandboxes listen. Asking is no use of a sandbox: it wakes none and keeps none awake.

use super::show::state;
use crate::cluster::ClusterClient;
use agent_sandbox_api::v1beta1::Sandbox;
use agent_sandbox_client::{Cluster, Connection, SandboxClient, Tunnel, native::DAEMON_PORT};
use futures::StreamExt as _;
use kube::ResourceExt as _;
use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

/// Timeout for the answer of one sandbox; a list does not wait longer for one that hangs.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Sandboxes that are asked at once.
const CONCURRENT: usize = 16;
/// Ports that are shown of one sandbox.
const SHOWN: usize = 6;

/// Ports by namespace and name of the Sandbox. Sandboxes that do not run or do not answer are absent.
#[derive(Default)]
pub(crate) struct PortsOf(HashMap<(String, String), BTreeSet<u16>>);

impl PortsOf {
    /// The ports of one Sandbox, as text.
    pub(crate) fn text(&self, sandbox: &Sandbox) -> Option<String> {
        let ports = self.0.get(&(sandbox.namespace().to_owned(), sandbox.name_any()))?;
        let mut shown: Vec<String> = ports.iter().take(SHOWN).map(ToString::to_string).collect();
        if ports.len() > SHOWN {
            shown.push("…".to_owned());
        }
        (!shown.is_empty()).then(|| shown.join(","))
    }

    #[cfg(test)]
    pub(crate) fn for_test(namespace: &str, name: &str, ports: impl IntoIterator<Item = u16>) -> Self {
        Self(HashMap::from([((namespace.to_owned(), name.to_owned()), ports.into_iter().collect())]))
    }
}

/// Asks the Sandboxes that are ready.
pub(crate) async fn ports_of(cluster: &ClusterClient, sandboxes: &[Sandbox]) -> PortsOf {
    let ready = sandboxes.iter().filter(|sandbox| state(sandbox) == "Ready");
    let found = futures::stream::iter(ready)
        .map(|sandbox| async move {
            let key = (sandbox.namespace().to_owned(), sandbox.name_any());
            // The engine's router is in every namespace.
            let router_namespace = cluster.is_local().then(|| key.0.clone());
            let connection = Connection::Tunnel(Tunnel { router_namespace });
            let handle =
                SandboxClient::new(Cluster::of(cluster.client.clone()), connection).handle(&key.0, &key.1, None);
            let asked = async { handle.ok()?.ports().await.ok() };
            let answer = tokio::time::timeout(TIMEOUT, asked).await.ok()??;
            let ports = answer.into_iter().map(|found| found.port).filter(|port| *port != DAEMON_PORT).collect();
            Some((key, ports))
        })
        .buffer_unordered(CONCURRENT);
    PortsOf(found.filter_map(std::future::ready).collect().await)
}
