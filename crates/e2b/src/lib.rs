//! The control API that E2B's published clients speak, over the Sandboxes and claims of a cluster.
//!
//! The crate has no state: a sandbox of a client is a Sandbox, or a claim on a template, with labels and annotations; a
//! key is a Secret that names a ServiceAccount, and every request acts with that account's rights.
//!
//! A request passes `server` (key, body, response), `routes` (which call), and the module of the call: `create`, `list`,
//! `lifecycle`, `network`, `snapshots`, `templates`, `observe`. `record` reads a sandbox from the cluster and shows it as clients
//! expect it.

mod block;
mod create;
mod error;
/// Entry points for `make fuzz`, and for the test that repeats its corpora.
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod keys;
mod lifecycle;
mod list;
mod metadata;
mod network;
mod observe;
mod record;
mod routes;
mod server;
mod snapshots;
mod source;
mod templates;

pub use server::{Account, Accounts, Api, Capacity, Fetch, Settings};
