//! What exec requests to the local engine have beyond Kubernetes' own parameters.

/// Query parameter: the user to run the command as, by name or id, instead of the container's.
pub const EXEC_USER: &str = "agent-sandbox-user";
