//! Who may do what: authentication by bearer token, authorisation by RBAC, and the review resources that ask about both.
//!
//! | module | does |
//! |---|---|
//! | [`tokens`] | ServiceAccount tokens: minting and checking |
//! | [`authenticate`] | from request headers to a [`UserInfo`](crate::identity::UserInfo), with impersonation |
//! | [`escalation`] | keeps writers of roles from granting what they do not have |
//! | [`rbac`] | roles and bindings compiled into a policy that answers yes or no |
//! | [`reviews`] | access reviews, rules reviews, token reviews and token requests |
//! | [`defaults`] | the cluster roles every cluster has |

pub mod authenticate;
pub mod defaults;
pub mod escalation;
pub mod rbac;
pub mod reviews;
pub mod tokens;

pub use authenticate::Authenticator;
pub use rbac::{Attributes, Policy};
