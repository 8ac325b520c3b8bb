//! Wire types of the data plane: runtime REST, process gRPC, router headers, scoped tokens. No IO.

pub mod native;
pub mod runtime;
pub mod workspace;
