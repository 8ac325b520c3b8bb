//! One container: from the fork in its Pod's supervisor to the running program, with the built-in isolation or an OCI
//! runtime.

pub(crate) mod isolation;
pub(crate) mod launch;
pub(crate) mod oci;
pub(crate) mod rootfs;
pub(crate) mod seccomp;
pub(crate) mod step;
pub(crate) mod user;
