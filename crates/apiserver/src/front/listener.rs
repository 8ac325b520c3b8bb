//! The network listener: TLS, connections, certificates and the kubeconfig.
//!
//! | module | does |
//! |---|---|
//! | [`accept`] | accepts connections and serves HTTP/1.1 and HTTP/2 with upgrades |
//! | [`credentials`] | the CA, the administrator's token and the token-signing key, kept across restarts |
//! | [`certificates`] | the server certificate, renewed before it expires |
//! | [`kubeconfig`] | the file that kubectl and SDKs read |
//! | [`private_file`] | files that only their owner may read |

pub mod accept;
pub mod certificates;
pub mod credentials;
pub mod kubeconfig;
pub mod private_file;

pub use accept::{Listener, ListenerConfig};
pub use credentials::{Credentials, UnsavedCredentials};

/// Why the listener could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ListenerError {
    #[error("cannot listen on {address}")]
    Bind {
        address: std::net::SocketAddr,
        #[source]
        source: std::io::Error,
    },
    #[error("refusing to listen on {0}: it is not a loopback address; allow remote clients explicitly")]
    NotLoopback(std::net::SocketAddr),
    #[error("cannot {action} {}", path.display())]
    File {
        action: &'static str,
        path: std::path::PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{} is damaged ({why}); delete it to get new credentials", path.display())]
    Damaged { path: std::path::PathBuf, why: String },
    #[error("cannot serve under one of the additional names")]
    Name(#[from] agent_sandbox_protocol::web::HostError),
    #[error("cannot make a certificate")]
    Certificate(#[from] rcgen::Error),
    #[error("cannot set up TLS")]
    Tls(#[from] rustls::Error),
}
