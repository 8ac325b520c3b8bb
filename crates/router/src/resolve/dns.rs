//! Looks up the Service name of a Sandbox.

use std::io;
use std::net::IpAddr;

use async_trait::async_trait;

/// Resolves names; implemented by the system's resolver, and by tests.
#[async_trait]
pub trait Lookup: Send + Sync + 'static {
    async fn lookup(&self, name: &str) -> io::Result<Vec<IpAddr>>;
}

/// The system's resolver.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemDns;

#[async_trait]
impl Lookup for SystemDns {
    async fn lookup(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        // The final dot disables search domains.
        let found = tokio::net::lookup_host((format!("{name}."), 0)).await?;
        Ok(found.map(|addr| addr.ip()).collect())
    }
}
