//! Egress control by domain name: which names a sandbox may resolve and connect to, decided from rules that come in as
//! data, and what is read from the first bytes of its connections to find out which name they are for.
//!
//! Everything here is pure: rules and bytes in, decisions out. It refuses to know Kubernetes, and it opens no socket.

pub mod address;
pub mod dns;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod groups;
pub mod http;
mod name;
mod policy;
mod ports;
mod resolved;
mod rules;
pub mod tls;

pub use groups::{GROUPS, Group};
pub use name::{Name, NameError};
pub use policy::{Decision, Denied, Policy};
pub use ports::{PortRange, PortSet};
pub use resolved::{LONGEST, Resolved, SHORTEST, lifetime};
pub use rules::{Problem, RuleError, RuleSet};
