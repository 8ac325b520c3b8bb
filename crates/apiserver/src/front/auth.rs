//! Authentication by bearer token, authorization by RBAC, and the review resources for both.
//!
//! | module | does |
//! |---|---|
//! | [`user`] | the authenticated user of a request |
//! | [`tokens`] | signs and verifies ServiceAccount tokens |
//! | [`authenticate`] | from request headers to a [`UserInfo`], with impersonation |
//! | [`token_registry`] | tokens that were requested and revoked |
//! | [`rbac`] | compiles roles and bindings into a policy and evaluates it |
//! | `policy_cache` | the compiled policy of the stored roles and bindings |
//! | [`escalation`] | prevents users from granting permissions that they do not have |
//! | [`reviews`] | access reviews, rules reviews, token reviews and token requests |
//! | [`defaults`] | the cluster roles that every cluster has |

pub mod authenticate;
pub mod defaults;
pub mod escalation;
pub(crate) mod policy_cache;
pub mod rbac;
pub mod reviews;
pub mod token_registry;
pub mod tokens;
pub mod user;

pub use authenticate::Authenticator;
pub use rbac::{Attributes, Policy};
pub use user::UserInfo;
