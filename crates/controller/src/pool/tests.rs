//! Tests of the pool reconciler on the API in memory.

mod exact;
mod pacing;
mod rollout;
mod size;
mod stuck;

use std::time::Duration;

use serde_json::json;

use crate::rig::{Rig, key};

fn status_writes(writes: &[crate::request::Request]) -> usize {
    writes.iter().filter(|request| matches!(request.verb, crate::request::Verb::PatchStatus { .. })).count()
}
