//! API groups and versions, in one place.

/// Group of the core Sandbox.
pub const CORE: &str = "agents.x-k8s.io";
/// Group of claims, templates and warm pools.
pub const EXTENSIONS: &str = "extensions.agents.x-k8s.io";

/// Group of the kinds that are ours alone.
pub const OWN: &str = "agent-sandbox.github.io";

/// Stored version, the hub of every conversion.
pub const V1BETA1: &str = "v1beta1";
/// Deprecated version, still served.
pub const V1ALPHA1: &str = "v1alpha1";

/// `agents.x-k8s.io/v1beta1`
pub const CORE_V1BETA1: &str = "agents.x-k8s.io/v1beta1";
/// `agents.x-k8s.io/v1alpha1`
pub const CORE_V1ALPHA1: &str = "agents.x-k8s.io/v1alpha1";
/// `extensions.agents.x-k8s.io/v1beta1`
pub const EXTENSIONS_V1BETA1: &str = "extensions.agents.x-k8s.io/v1beta1";
/// `extensions.agents.x-k8s.io/v1alpha1`
pub const EXTENSIONS_V1ALPHA1: &str = "extensions.agents.x-k8s.io/v1alpha1";

/// `agent-sandbox.github.io/v1alpha1`
pub const OWN_V1ALPHA1: &str = "agent-sandbox.github.io/v1alpha1";

/// Kind of the core Sandbox.
pub const SANDBOX: &str = "Sandbox";
/// Kind of a claim.
pub const SANDBOX_CLAIM: &str = "SandboxClaim";
/// Kind of a template.
pub const SANDBOX_TEMPLATE: &str = "SandboxTemplate";
/// Kind of a warm pool.
pub const SANDBOX_WARM_POOL: &str = "SandboxWarmPool";
/// Kind of a snapshot.
pub const SANDBOX_SNAPSHOT: &str = "SandboxSnapshot";

/// The group part of an `apiVersion`; the empty string for core kinds such as `v1`.
pub fn group_of(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_is_what_precedes_the_slash() {
        assert_eq!(group_of(EXTENSIONS_V1ALPHA1), EXTENSIONS);
        assert_eq!(group_of("v1"), "");
    }
}
