//! What a pool says about itself.

use agent_sandbox_api::{
    names,
    v1beta1::{SandboxWarmPool, SandboxWarmPoolStatus},
};
use serde_json::json;

use super::plan::is_ready;
use crate::request::Request;

use crate::object::Sandbox;

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

/// The write that brings the stored status to `new`; none when it says the same.
pub fn status_patch(pool: &SandboxWarmPool, new: &SandboxWarmPoolStatus) -> Option<Request> {
    (pool.status.as_ref() != Some(new)).then(|| Request::patch_status(pool, json!(new)))
}
