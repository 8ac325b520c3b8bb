//! The Kubernetes API of the product: types of both versions, conversion, conditions, every key, names and hashes,
//! and the CRDs as data.
//!
//! Refuses: IO, async, clocks. Functions that depend on time take it as an argument. The crate does not depend on a
//! client; the types implement `k8s_openapi::{Resource, Metadata}`, which is all that `kube::Api<Sandbox>` needs.
//!
//! Pod specs and PVC specs are [`Opaque`] JSON from end to end: a typed round trip would rewrite quantities, lose
//! fields newer than our dependencies, and violate the immutability rule of `volumeClaimTemplates`.

mod opaque;
mod resource;
mod string_enum;

pub mod conditions;
pub mod conversion;
pub mod crd;
pub mod groups;
pub mod keys;
pub mod links;
pub mod names;
pub mod owners;
pub mod quantity;
pub mod sleep;
pub mod snapshot;
pub mod template;
pub mod v1alpha1;
pub mod v1beta1;

pub use opaque::Opaque;
