//! The front door of the data plane: authenticate, resolve, authorise, wake, proxy.
//!
//! The router reads the `X-Sandbox-*` headers of a request, finds the live Pod of the Sandbox they name in an index that
//! it keeps by watching Pods, and streams the request there: HTTP/1.1, HTTP/2, gRPC, WebSockets and other upgrades.
//! It creates no objects and never dials an address because a client said so.
//!
//! Embedding it takes a configuration and a few ports to the outside:
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

mod access_log;
mod args;
mod authz;
mod body;
mod client_side;
mod config;
mod connect;
mod dns;
mod error;
mod exchange;
mod extended_connect;
mod file_watch;
mod forward;
mod index;
mod metrics;
mod mint;
mod otlp;
mod pool;
mod probes;
mod proxy;
mod resolve;
mod router;
mod run;
mod server;
mod tls;
mod trace;
mod tunnel;
mod upgrade;
mod upstream;
mod wake;
mod websocket;
mod worker;

pub use args::RouterArgs;
pub use authz::{
    AccessReview, AuthzConfig, AuthzSetupError, Caller, KubeAccessReview, KubeTokenReview, Modes, ReviewOutcome,
    StaticToken, TokenReview, TokenReviewConfig,
};
pub use client_side::Trust;
pub use config::settings;
pub use config::{
    Cidr, ClientAuth, HttpsConfig, Limits, ProcessConfig, Retries, RouterConfig, Timeouts, TlsConfig, UpgradeLimits,
};
pub use connect::{ByteStream, Connect, Stream, Target, TcpConnect};
pub use dns::{Lookup, SystemDns};
pub use index::{LivePod, PodFacts, PodIndex};
pub use mint::{TokenMintArgs, TokenMintError, mint_token};
pub use otlp::OtlpError;
pub use resolve::Verification;
pub use router::{Deps, Router, RouterSetupError};
pub use run::{RunError, run_router};
pub use tls::{Acceptor, TlsError};
pub use wake::{Wake, WakeOutcome};
