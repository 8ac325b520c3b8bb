//! The embedded node: Pods in, isolated process trees and Pod status out.
//!
//! Two halves meet at [`runtime`]: the kubelet half decides what each Pod should be and reports what it is; the kernel
//! half turns those decisions into namespaces, cgroups, mounts and processes, and survives the node being killed.

pub mod dns;
pub mod evict;
pub mod kernel;
pub mod kubelet;
pub mod logs;
pub mod node;
pub mod pods;
pub mod policy;
pub mod register;
pub mod runtime;
pub mod schedule;
pub mod standalone;
pub mod storage;

mod helper;
mod ledger;
mod spread;

pub use helper::helper_main;
pub use node::{Node, NodeError, NodeHandle, NodeOptions, PodKey, ServiceError};
