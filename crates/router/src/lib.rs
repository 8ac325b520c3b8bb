//! The entry point of the data plane: authenticate, resolve, authorise, wake, proxy.
//!
//! The router reads the `X-Sandbox-*` headers of a request, finds the live Pod of the Sandbox they name in an index that
//! it keeps by watching Pods, and streams the request there: HTTP/1.1, HTTP/2, gRPC, WebSockets and other upgrades.
//! It creates no objects, and it never trusts an address that a client sends.
//!
//! A request passes `server` (connection, TLS, worker), `proxy` (its stages), `auth` (who may), `resolve` (which Pod) and
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

mod auth;
mod config;
mod error;
mod observability;
mod proxy;
mod resolve;
mod router;
mod run;
mod server;
mod state;

pub use auth::mint::{TokenMintArgs, TokenMintError, mint_token};
pub use auth::{
    AccessReview, AuthzConfig, AuthzSetupError, Caller, KubeAccessReview, KubeTokenReview, Modes, ReviewOutcome,
    StaticToken, TokenReview, TokenReviewConfig,
};
pub use config::args::RouterArgs;
pub use config::settings;
pub use config::{
    Cidr, ClientAuth, HttpsConfig, Limits, ProcessConfig, Retries, RouterConfig, Timeouts, TlsConfig, UpgradeLimits,
};
pub use observability::otlp::OtlpError;
pub use proxy::connector::{ByteStream, Connector, Stream, TcpConnector};
pub use resolve::dns::{Lookup, SystemDns};
pub use resolve::index::{LivePod, PodFacts, PodIndex};
pub use resolve::wake::{Wake, WakeOutcome};
pub use resolve::{Endpoint, Verification};
pub use router::{Deps, Router, RouterSetupError};
pub use run::{RunError, run_router};
pub use server::client_connection::ConnectionAuth;
pub use server::tls::{Acceptor, TlsError};
