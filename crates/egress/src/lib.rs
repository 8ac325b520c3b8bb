//! Egress control by domain name: which names a sandbox may resolve and connect to.
//!
//! Deciding is pure: rules in ([`RuleSet`], [`Policy`]), and what is read from answers of resolvers ([`dns`]), TLS
//! handshakes ([`tls`]) and HTTP requests ([`http`]). Doing is [`Gateway`], which resolves names for sandboxes, and
//! [`proxy`], to which their connections are diverted. Refuses to know Kubernetes and the packet filter: sandboxes and
//! rules come in as data, ports are opened through [`OpenPorts`].

pub mod address;
pub mod dns;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod gateway;
mod groups;
pub mod http;
pub mod log;
mod metrics;
mod name;
mod policy;
mod ports;
pub mod proxy;
mod resolved;
mod resolver;
mod rules;
mod sandbox;
pub mod tls;

pub use gateway::{Gateway, Lookup, OpenPorts};
pub use groups::{GROUPS, Group};
pub use metrics::Metrics;
pub use name::{Name, NameError};
pub use policy::{Decision, Denied, Policy};
pub use ports::{PortRange, PortSet};
pub use resolved::{LONGEST, Resolved, SHORTEST, lifetime};
pub use resolver::upstreams;
pub use rules::{Problem, RuleError, RuleSet};
pub use sandbox::Sandbox;
