//! The deprecated version, as its clients see it. Stored objects are always v1beta1; see `conversion`.

mod claim;
mod pool;
mod sandbox;
mod template;

pub use claim::{SandboxClaim, SandboxClaimSpec};
pub use pool::{SandboxWarmPool, SandboxWarmPoolSpec, SandboxWarmPoolStatus};
pub use sandbox::{Sandbox, SandboxSpec, SandboxStatus};
pub use template::{SandboxTemplate, SandboxTemplateSpec};
