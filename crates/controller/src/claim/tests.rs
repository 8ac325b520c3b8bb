//! Tests of the claim reconciler on the API in memory.

mod adoption;
mod cold;
mod edges;
mod env;
mod expiry;
mod metadata;
mod observability;
mod random_histories;
mod recovery;
mod status;
mod volumes;

use serde_json::json;

use crate::testing::fixture::{Fixture, key};
