//! The embedded Kubernetes API: objects, watches, patches, schemas, discovery, streams. It knows no kind of ours.
//!
//! A request is parsed ([`request`]), answered by a verb ([`verbs`]) against the objects ([`store`]) of a resource that
//! the [`registry`] describes, and rendered ([`render`]). Custom resources are data: applying a CRD is all it takes.

mod admission;
mod bootstrap;
pub mod builtin;
pub mod convert;
pub mod identity;
pub mod patch;
pub mod registry;
pub mod render;
pub mod request;
pub mod schema;
pub mod selectors;
mod server;
pub mod status;
pub mod store;
pub mod verbs;
pub mod watch;

pub use convert::Converter;
pub use identity::UserInfo;
pub use server::{ApiServer, Config, OpenError, collect};
pub use status::ApiError;
