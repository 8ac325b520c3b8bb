//! Wire types of the data plane: runtime REST, process gRPC, router headers, scoped tokens. No IO.

pub mod address;
pub mod chunks;
pub mod grpc;
pub mod native;
pub mod port_forward;
pub mod router_headers;
pub mod runtime;
pub mod scoped_token;
pub mod workspace;
