//! The stored version: hub of every conversion.

mod claim;
mod pool;
mod sandbox;
mod template;

pub use claim::{BoundSandbox, ClaimLifecycle, SandboxClaim, SandboxClaimSpec, SandboxClaimStatus};
pub use pool::{SandboxWarmPool, SandboxWarmPoolSpec, SandboxWarmPoolStatus};
pub use sandbox::{OperatingMode, Sandbox, SandboxSpec, SandboxStatus};
pub use template::{SandboxTemplate, SandboxTemplateSpec};

#[cfg(test)]
mod tests;
