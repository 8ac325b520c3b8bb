//! Wire types of the router's own paths for links to ports.

use serde::{Deserialize, Serialize};

/// Path below which links are created and revoked: `<PREFIX>/<namespace>/<sandbox>[/<id>]`.
pub const PREFIX: &str = "/sandbox-links";

/// Body of `POST <PREFIX>/<namespace>/<sandbox>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateLink {
    pub ports: Vec<u16>,
    pub ttl_seconds: u64,
    #[serde(default)]
    pub read_only: bool,
    /// The ports may be those of the sandbox's daemon, through which commands are run.
    #[serde(default)]
    pub allow_daemon: bool,
}

/// A new link. Its addresses hold its token and are in no other response.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CreatedLink {
    pub id: String,
    /// Unix seconds.
    pub expires: i64,
    /// One for each port.
    pub urls: Vec<LinkUrl>,
}

/// The addresses of a port, in the forms that the router serves.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LinkUrl {
    pub port: u16,
    /// The sandbox is named in the host: an origin of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The sandbox is named in the path: one origin for all sandboxes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}
