//! Tests of the claim reconciler on the API in memory.

mod adoption;
mod cold;

use serde_json::json;

use crate::rig::{Rig, key};
