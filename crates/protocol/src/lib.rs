//! Wire types of the data plane: runtime REST, process gRPC, router headers, scoped and link tokens, checks of pages. No IO.

pub mod address;
pub mod capture;
pub mod chunks;
pub mod code;
pub mod e2b;
pub mod exec;
/// Entry points for `make fuzz`, and for the test that repeats its corpora.
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod grpc;
pub mod history;
pub mod link_token;
pub mod links;
pub mod native;
pub mod port_forward;
pub mod router_headers;
pub mod runtime;
pub mod sandbox_address;
pub mod sandbox_token;
pub mod scoped_token;
pub mod web;
pub mod workspace;
