//! Tests of the pool reconciler on the API in memory.

mod size;

use std::time::Duration;

use serde_json::json;

use crate::rig::{Rig, key};
