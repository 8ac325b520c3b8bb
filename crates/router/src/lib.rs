//! The entry point of the data plane: authenticate, resolve, authorise, wake, proxy.
//!
//! The router reads which Sandbox a request names, in `X-Sandbox-*` headers, path or host, finds its live Pod in an index
//! that it keeps by watching Pods, and streams the request there: HTTP/1.1, HTTP/2, gRPC, WebSockets and other upgrades.
//! It creates no objects, and it never trusts an address that a client sends.
//!
//! A request passes `server` (connection, TLS, worker), `proxy` (its stages), `addressing` (which Sandbox), `browser`
//! (credentials of web pages), `auth` (who may), `resolve` (which Pod), `sleep` (wakes the Sandbox, records its use) and
//! `proxy::upstream` (the connection to the Pod); `observability` records it.
//!
//! An embedder provides a configuration and the router's dependencies:
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use agent_sandbox_router::{Deps, Router, RouterConfig};
//! # async fn example(client: kube::Client) -> Result<(), Box<dyn std::error::Error>> {
//! let router = Router::new(RouterConfig::default(), Deps::watching(client))?;
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! let shutdown = tokio_util::sync::CancellationToken::new();
//! router.serve(listener, shutdown).await;
//! # Ok(()) }
//! ```

mod addressing;
mod auth;
mod browser;
mod config;
mod e2b;
mod error;
/// Entry points for `make fuzz`, and for the test that repeats its corpora.
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod links;
mod mounted;
mod observability;
mod pages;
mod proxy;
mod resolve;
mod router;
mod run;
mod server;
mod sleep;
mod state;

pub use addressing::Routing;
pub use auth::mint::{TokenMintArgs, TokenMintError, mint_token};
pub use auth::{
    AccessReview, AuthzConfig, AuthzSetupError, Caller, KubeAccessReview, KubeTokenReview, Modes, ReviewOutcome,
    StaticToken, TokenReview, TokenReviewConfig,
};
pub use browser::{CookieConfig, SameSite};
pub use config::args::RouterArgs;
pub use config::settings;
pub use config::{
    Cidr, ClientAuth, HttpsConfig, Limits, ProcessConfig, Retries, RouterConfig, Timeouts, TlsConfig, UpgradeLimits,
};
pub use links::LinkConfig;
pub use mounted::Mounted;
pub use observability::otlp::OtlpError;
pub use proxy::connector::{ByteStream, Connector, Stream, TcpConnector};
pub use proxy::signer::SignerError;
pub use resolve::dns::{Lookup, SystemDns};
pub use resolve::index::{LivePod, PodFacts, PodIndex, Traffic};
pub use resolve::{Endpoint, Verification};
pub use router::{Deps, Router, RouterSetupError};
pub use run::{RunError, run_router};
pub use server::client_connection::ConnectionAuth;
pub use server::tls::{Acceptor, TlsError};
pub use sleep::{ActivityGuard, NotBegun};
