//! How reconcilers read and write the Kubernetes API: requests as data, the client that sends them, and its
//! connections.

mod audit;
mod client;
pub mod connections;
mod kube_client;
pub mod rate_limit;
mod request;

pub use self::{
    audit::AuditedApiClient,
    client::{ApiClient, ApiError, Lane, Writer},
    kube_client::{Clients, KubeApiClient},
    request::{Precondition, Propagation, Request, Verb, merge_diff},
};
