//! The embedded Kubernetes API: objects, watches, patches, schemas, discovery, streams. It knows no kind of ours.
//!
//! A request is parsed ([`request`]), answered by a verb ([`verbs`]) against the objects ([`store`]) of a resource that
//! the [`registry`] describes, and rendered ([`render`]). Custom resources are data: applying a CRD is all it takes.

mod admission;
pub mod auth;
mod bootstrap;
pub mod builtin;
mod cel;
mod controllers;
pub mod convert;
pub mod discovery;
mod front;
mod gc;
pub mod identity;
pub mod node;
pub mod openapi;
pub mod patch;
pub mod protobuf;
pub mod registry;
pub mod render;
pub mod request;
pub mod schema;
pub mod selectors;
pub mod serve;
mod server;
pub mod status;
pub mod store;
pub mod streams;
pub mod table;
pub mod verbs;
pub mod watch;

pub use admission::Completer;
pub use convert::Converter;
pub use identity::UserInfo;
pub use node::NodeBackend;
pub use serve::{Listener, ListenerConfig};
pub use server::{ApiServer, Config, OpenError, collect};
pub use status::ApiError;
