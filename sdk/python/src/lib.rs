//! The native module of the Python SDK.
//!
//! Every operation is a [`pending::Pending`], which can be waited for (the GIL is released, and signals interrupt the
//! wait) or started with a callback, from which the Python side makes an awaitable. The synchronous and the
//! asynchronous API share everything else.

mod client;
mod content;
mod convert;
mod errors;
mod files;
mod handle;
mod pending;
mod process;
mod snapshots;
mod stream;
mod tokio_runtime;

use pyo3::prelude::*;

#[pymodule]
mod _native {
    #[pymodule_export]
    use super::client::Client;
    #[pymodule_export]
    use super::files::Files;
    #[pymodule_export]
    use super::handle::Handle;
    #[pymodule_export]
    use super::pending::Pending;
    #[pymodule_export]
    use super::process::Process;
    #[pymodule_export]
    use super::stream::{Stream, Upload};
    #[pymodule_export]
    use super::tokio_runtime::shutdown;
}
