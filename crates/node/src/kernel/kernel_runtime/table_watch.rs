//! Notices when another program removes the node's nftables table, and makes it again.

use std::time::Duration;

use super::KernelRuntime;
use crate::kernel::net::NodeNetwork;
use crate::runtime::RuntimeEvent;

/// Interval of checks that the node's nftables table is still there.
const TABLE_CHECK_INTERVAL: Duration = Duration::from_secs(10);

impl KernelRuntime {
    /// Starts a task that makes the node's nftables table again when another program has removed it.
    pub(super) fn watch_table(&self) {
        if self.host.network.is_none() {
            return;
        }
        let this = self.this.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(TABLE_CHECK_INTERVAL).await;
                let Some(this) = this.upgrade() else { return };
                let events = this.events.clone();
                let check = move || this.host.network.as_ref().map_or(Ok(false), NodeNetwork::restore_table);
                match tokio::task::spawn_blocking(check).await {
                    Ok(Ok(true)) => {
                        tracing::warn!(
                            "Another program removed the node's nftables table, as `nft flush ruleset` does: until now \
                             users of this host could connect to its Pods; the table is written again"
                        );
                        // No receiver is fine: then no kubelet has set rules.
                        let _ = events.send(RuntimeEvent::RulesLost);
                    }
                    Ok(Err(error)) => tracing::debug!(%error, "The node's nftables table cannot be checked"),
                    Ok(Ok(false)) | Err(_) => {}
                }
            }
        });
    }
}
