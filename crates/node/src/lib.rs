//! The embedded node: Pods in, isolated process trees and Pod status out.
//!
//! Two halves meet at [`runtime`]: the [`kubelet`] half decides what each Pod should be and reports what it is; the
//! [`kernel`] half turns those decisions into namespaces, cgroups, mounts and processes, which keep running when the
//! node process is killed. [`changes`] compares copies of folders with the folders themselves.

pub mod changes;
pub mod kernel;
pub mod kubelet;
pub mod runtime;
pub mod standalone;

/// Entry points for `make fuzz`, and for the test that repeats its corpora.
#[cfg(any(test, fuzzing))]
pub mod fuzzing;

mod helper;
mod persistent_map;
mod topdir;

pub use helper::helper_main;
pub use kubelet::node::{Node, NodeError, NodeHandle, NodeOptions, PodKey, PodRequestError};
pub use kubelet::volumes::grants::{FolderAccess, GrantedFolder};
