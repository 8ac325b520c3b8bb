//! The embedded node: Pods in, isolated process trees and Pod status out.
//!
//! Two halves meet at [`runtime`]: the kubelet half decides what each Pod should be and reports what it is; the kernel
//! half turns those decisions into namespaces, cgroups, mounts and processes, and survives the node being killed.

pub mod kernel;
pub mod pods;
pub mod runtime;

mod helper;

pub use helper::helper_main;
