//! Tests of the pool reconciler on the API in memory.

mod exact;
mod pacing;
mod rollout;
mod size;
mod stuck;

use std::time::Duration;

use serde_json::json;

use crate::testing::fixture::{Fixture, key};

fn status_writes(writes: &[crate::api_client::Request]) -> usize {
    writes.iter().filter(|request| matches!(request.verb, crate::api_client::Verb::PatchStatus { .. })).count()
}
