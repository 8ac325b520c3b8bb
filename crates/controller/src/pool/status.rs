//! The status of a pool.

use agent_sandbox_api::{
    names,
    v1beta1::{SandboxWarmPool, SandboxWarmPoolStatus},
};
use serde_json::json;

use super::plan::is_ready;
use crate::api_client::Request;

use crate::cache::Sandbox;

/// The status for these members.
pub fn pool_status<'a>(
    pool: &SandboxWarmPool,
    active: impl Iterator<Item = &'a Sandbox> + Clone,
) -> SandboxWarmPoolStatus {
    let count = |number: usize| Some(i32::try_from(number).unwrap_or(i32::MAX));
    SandboxWarmPoolStatus {
        replicas: count(active.clone().count()),
        ready_replicas: count(active.filter(|sandbox| is_ready(sandbox)).count()),
        selector: Some(names::pool_selector(pool.name())),
        observed_generation: Some(pool.generation()),
    }
}

/// The request that writes the status; `None` when it is unchanged.
pub fn status_patch(pool: &SandboxWarmPool, new: &SandboxWarmPoolStatus) -> Option<Request> {
    (pool.status.as_ref() != Some(new)).then(|| Request::patch_status(pool, json!(new)))
}
