//! The embedded Kubernetes API server: objects, watches, patches, schemas, discovery. It knows none of the product's
//! own kinds: custom resources are data, and applying a CRD is all it takes to serve them.
//!
//! The path of a request through the modules:
//!
//! | step | modules |
//! |---|---|
//! | accept the connection, authenticate, authorize | [`front`]: TLS listener, tokens, RBAC, reviews, Pod streams |
//! | parse method, path, query and body | [`request`], [`protobuf`], [`selectors`] |
//! | handle it | `server`; [`verbs`] for resources, [`documents`] for discovery and OpenAPI |
//! | default, validate, convert, patch objects | [`registry`], [`builtin`], [`schema`], `cel`, [`convert`], [`patch`] |
//! | enforce what namespaces limit | `limits` (LimitRange, ResourceQuota), `pod_security` |
//! | store objects and their history | [`store`] |
//! | render the response | [`render`], [`table`], [`status`] |
//!
//! Beside the requests, `controllers` follow the store's events: garbage collection, namespaces, EndpointSlices,
//! the usage of quotas.

pub mod builtin;
mod cel;
mod controllers;
pub mod convert;
pub mod documents;
pub mod front;
/// Entry points for `make fuzz`, and for the test that repeats its corpora.
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod limits;
pub mod patch;
mod pod_security;
pub mod protobuf;
pub mod registry;
pub mod render;
pub mod request;
pub mod schema;
pub mod selectors;
mod server;
pub mod status;
pub mod store;
pub mod table;
pub mod verbs;

pub use convert::Converter;
pub use front::RevokeError;
pub use front::auth::UserInfo;
pub use front::auth::rbac::{AccessTarget, Attributes};
pub use front::auth::token_registry::IssuedToken;
pub use front::listener::{Listener, ListenerConfig, ListenerError};
pub use front::resource_metrics::{ContainerCounters, Counters, UsageSample, UsageSource};
pub use server::{ApiServer, Config, OpenError, collect};
pub use status::ApiError;
pub use verbs::MutatingAdmission;
