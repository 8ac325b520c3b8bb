//! Tests of the claim reconciler on the API in memory.

mod adoption;
mod cold;
mod env;
mod expiry;
mod machine;
mod metadata;
mod observability;
mod recovery;
mod status;
mod volumes;

use serde_json::json;

use crate::rig::{Rig, key};
