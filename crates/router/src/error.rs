//! Every error of a request, and its conversion into a response.

use std::io;
use std::time::Duration;

use agent_sandbox_protocol::router_headers::{HeaderError, Label};
use agent_sandbox_protocol::sandbox_address::AddressError;
use agent_sandbox_protocol::web::PageError;
use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{Response, StatusCode};

use crate::e2b::E2bError;
use crate::links::LinkError;

/// Why the router responded to a request itself.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RouterError {
    #[error(transparent)]
    Header(#[from] HeaderError),
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error("unauthenticated")]
    Unauthenticated,
    /// A static token is configured and the request carries none.
    #[error("Missing or invalid Authorization header.")]
    MissingStaticToken,
    #[error("Invalid token.")]
    WrongStaticToken,
    #[error("forbidden")]
    Forbidden,
    /// A request of E2B's clients.
    #[error(transparent)]
    E2b(#[from] E2bError),
    /// A link was refused, or could not be created or revoked.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A web page may have sent the request.
    #[error(transparent)]
    Page(#[from] PageError),
    /// A web page sent the request, no credential is required, and the page may have a name of its own for the router.
    #[error(
        "the Host {0:?} is not a name of this server for web pages; add it to --allowed-hosts of the router, or require a credential"
    )]
    PageHost(String),
    /// The API server could not check the token. Its error message is logged, not sent to the client.
    #[error("tokenreview: the token could not be checked")]
    TokenReview,
    /// The API server could not decide about the caller's access. Its own message stays in the router's log.
    #[error("rbac: access could not be checked")]
    AccessReview,
    #[error("Method Not Allowed")]
    Method,
    #[error("Request body is larger than {0} bytes.")]
    BodyTooLarge(u64),
    #[error("Could not connect to the backend sandbox: {id}")]
    Dial { id: Label, cause: DialError },
    /// The Sandbox is suspended and requests do not wake it. The status is that of a sandbox without a Pod.
    #[error("Could not connect to the backend sandbox: {id}: it is suspended; resume it first")]
    Suspended { id: Label },
    /// The API did not accept the record that keeps the Sandbox running for this request; nothing was forwarded.
    #[error("The use of the backend sandbox could not be recorded: {id}; try again")]
    Unrecorded { id: Label },
    /// The time of the request was over before a Sandbox that was woken for it was ready.
    #[error(
        "Timed out waiting for the backend sandbox: {id}: it was suspended, is being resumed, and was not ready within {waited:?}"
    )]
    NotAwake { id: Label, waited: Duration },
    #[error("Timed out waiting for the backend sandbox: {id}")]
    Timeout { id: Label },
    /// The request was sent and its effect is unknown, so it is not sent again.
    #[error("The backend sandbox closed the connection: {id}")]
    Upstream { id: Label, reason: UpstreamReason },
    #[error("Backend attempted a protocol upgrade that was not requested.")]
    UnexpectedUpgrade,
    #[error("The router is overloaded.")]
    Overloaded,
    #[error("Too many requests for sandbox: {id}")]
    SandboxOverloaded { id: Label },
    #[error("Too many upgraded connections from this client.")]
    TooManyUpgrades,
}

/// Why no connection to the sandbox was made. Nothing was sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error("no live Pod is known")]
    NoPod,
    #[error("name does not resolve")]
    Dns(#[source] io::Error),
    #[error("connect failed")]
    Connect(#[source] io::Error),
    #[error("connect timed out")]
    TimedOut,
}

impl DialError {
    /// Whether the Pod's host looks dead, in contrast to a program that does not listen yet.
    pub(crate) fn host_looks_dead(&self) -> bool {
        match self {
            Self::TimedOut => true,
            Self::Connect(error) => matches!(
                error.kind(),
                io::ErrorKind::TimedOut | io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable
            ),
            Self::NoPod | Self::Dns(_) => false,
        }
    }
}

/// Reasons in the metric of upstream errors; a bounded set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum UpstreamReason {
    Dial,
    Timeout,
    Eof,
    Other,
}

impl UpstreamReason {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Dial => "dial",
            Self::Timeout => "timeout",
            Self::Eof => "eof",
            Self::Other => "other",
        }
    }
}

impl RouterError {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Header(_) | Self::Address(_) => StatusCode::BAD_REQUEST,
            Self::Unauthenticated | Self::MissingStaticToken | Self::WrongStaticToken => StatusCode::UNAUTHORIZED,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::E2b(error) => error.status(),
            Self::Link(error) => error.status(),
            Self::Page(error) => error.status(),
            Self::PageHost(_) => StatusCode::MISDIRECTED_REQUEST,
            Self::TokenReview | Self::AccessReview => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::BodyTooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Dial { .. } | Self::Suspended { .. } | Self::Upstream { .. } | Self::UnexpectedUpgrade => {
                StatusCode::BAD_GATEWAY
            }
            Self::Timeout { .. } | Self::NotAwake { .. } => StatusCode::GATEWAY_TIMEOUT,
            Self::Overloaded | Self::SandboxOverloaded { .. } | Self::TooManyUpgrades | Self::Unrecorded { .. } => {
                StatusCode::SERVICE_UNAVAILABLE
            }
        }
    }

    /// The reason counted in the metric of upstream errors, if the sandbox's side failed.
    pub(crate) fn upstream_reason(&self) -> Option<UpstreamReason> {
        match self {
            Self::Dial { .. } | Self::Suspended { .. } => Some(UpstreamReason::Dial),
            Self::Timeout { .. } | Self::NotAwake { .. } => Some(UpstreamReason::Timeout),
            Self::Upstream { reason, .. } => Some(*reason),
            Self::UnexpectedUpgrade => Some(UpstreamReason::Other),
            _ => None,
        }
    }

    /// The response, with the wording of the contract.
    pub(crate) fn into_response(self) -> Response<Bytes> {
        let mut body = serde_json::json!({ "detail": self.to_string() }).to_string();
        body.push('\n');
        let mut response = Response::new(Bytes::from(body));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        match self.status() {
            StatusCode::UNAUTHORIZED => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            // The rest of the body is not read, so the connection cannot be reused.
            StatusCode::PAYLOAD_TOO_LARGE => {
                headers.insert(CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        response
    }
}
