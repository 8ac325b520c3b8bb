//! What unit tests run on: an API server in memory, fixtures over it, and the property tests of all four reconcilers
//! together.

pub(crate) mod fake_api;
#[allow(dead_code, reason = "a fixture: not every test needs every method")]
pub(crate) mod fixture;
mod property;
mod take_over;
