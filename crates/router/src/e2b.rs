//! Requests of E2B's clients, which know a sandbox by an id and prove their access by tokens of that one sandbox:
//! which sandbox a request is for, and whether it is admitted.

use agent_sandbox_protocol::e2b::{
    ACCESS_TOKEN, ENVD_PORT, INTERPRETER_PORT, Operation, PUBLIC_ACCESS, SignedAddress, TRAFFIC_TOKEN, Token,
    address_in, sandbox_id,
};
use agent_sandbox_protocol::router_headers::{DEFAULT_PORT, SANDBOX_ID};
use agent_sandbox_protocol::sandbox_address::{Address, AddressError};
use agent_sandbox_protocol::scoped_token::{Claims, Secret};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use serde_json::json;

use crate::addressing::{Named, Route};
use crate::auth::Identity;
use crate::error::{DialError, RouterError};
use crate::resolve::index::{PodIndex, Traffic};

/// Checks the tokens of E2B's clients.
pub(crate) struct E2bAccess {
    secret: Secret,
}

/// What E2B's rules say about a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Grant {
    /// Nothing: the router's own authentication decides.
    Ordinary,
    /// A token of the sandbox admits it.
    Proven,
    /// It is for a port of a program in the sandbox, and admitted there.
    Program,
    Refused(E2bError),
}

/// Why a request of E2B's clients is refused, in the words that the clients look for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum E2bError {
    #[error("The sandbox was not found")]
    NotFound,
    #[error("The sandbox is running but port is not open")]
    PortClosed,
    #[error("the access token is missing or wrong; send it as X-Access-Token")]
    Token,
    #[error("this sandbox is not public: send its traffic token as E2B-Traffic-Access-Token")]
    Traffic,
    #[error("/init is for the platform only")]
    Init,
}

impl E2bError {
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::NotFound | Self::PortClosed => StatusCode::BAD_GATEWAY,
            Self::Token => StatusCode::UNAUTHORIZED,
            Self::Traffic | Self::Init => StatusCode::FORBIDDEN,
        }
    }
}

impl E2bAccess {
    pub(crate) fn new(secret: Secret) -> Self {
        Self { secret }
    }

    /// The sandbox that a request without headers of ours is for: named in headers, or by the signature of a file's
    /// address, which names no sandbox but was made with the token of one.
    pub(crate) fn find<B>(&self, request: &Request<B>, index: &PodIndex) -> Option<Result<Named, AddressError>> {
        if request.headers().contains_key(SANDBOX_ID) {
            return None;
        }
        if let Some(named) = address_in(request.headers()) {
            return Some(named.map(Named::ByE2b));
        }
        let signed = signature(request)?;
        let operation = operation(request.method());
        let now = crate::auth::unix_seconds();
        let pod = index.find_e2b(|pod| signed.is_of(&self.secret, &pod.namespace, &pod.sandbox, operation, now))?;
        Address::of_joined(&sandbox_id(&pod.namespace, &pod.sandbox), ENVD_PORT)
            .ok()
            .map(|found| Ok(Named::ByE2b(found)))
    }

    /// Whether a request is admitted. `credential`: it carries a credential that the router knows.
    pub(crate) fn decide<B>(&self, named: &Named, request: &Request<B>, index: &PodIndex, credential: bool) -> Grant {
        let (address, path, by_client) = match named {
            Named::InHeaders => return Grant::Ordinary,
            Named::InUrl(Route { address, path, .. }) => (address, path.as_str(), false),
            Named::ByE2b(address) => (address, request.uri().path(), true),
        };
        let otherwise = |error| if by_client || !credential { Grant::Refused(error) } else { Grant::Ordinary };
        let holds = |token: Token| token.is_in(&self.secret, address, request.headers());
        let live = index.by_name(address.namespace.as_str(), address.id.as_str()).filter(|pod| pod.name_routable);
        let path = path.trim_matches('/');
        let Some(live) = live else {
            // Without a Pod it may be suspended: what may wake it is what would be admitted then.
            return match address.port {
                ENVD_PORT if path != "init" && holds(Token::Access) => Grant::Proven,
                INTERPRETER_PORT if holds(Token::Traffic) || holds(Token::Access) => Grant::Proven,
                port if !matches!(port, ENVD_PORT | INTERPRETER_PORT | DEFAULT_PORT) && holds(Token::Traffic) => {
                    Grant::Program
                }
                _ if by_client => Grant::Refused(E2bError::NotFound),
                _ => Grant::Ordinary,
            };
        };
        let traffic = match (live.e2b, by_client) {
            (Some(traffic), _) => traffic,
            (None, true) => return Grant::Refused(E2bError::NotFound),
            (None, false) => return Grant::Ordinary,
        };
        match address.port {
            ENVD_PORT if path == "init" => Grant::Refused(E2bError::Init),
            ENVD_PORT if path == "health" || holds(Token::Access) || self.is_signed(address, path, request) => {
                Grant::Proven
            }
            ENVD_PORT => otherwise(E2bError::Token),
            INTERPRETER_PORT if path == "health" || holds(Token::Traffic) || holds(Token::Access) => Grant::Proven,
            INTERPRETER_PORT => otherwise(E2bError::Traffic),
            // The runtime API runs commands: it is never public.
            DEFAULT_PORT => Grant::Ordinary,
            _ if traffic == Traffic::Public || holds(Token::Traffic) => Grant::Program,
            _ => otherwise(E2bError::Traffic),
        }
    }

    fn is_signed<B>(&self, address: &Address, path: &str, request: &Request<B>) -> bool {
        // A wrong token is not made good by a signature.
        let (namespace, name) = (address.namespace.as_str(), address.id.as_str());
        path == "files"
            && !request.headers().contains_key(ACCESS_TOKEN)
            && signature(request).is_some_and(|signed| {
                signed.is_of(&self.secret, namespace, name, operation(request.method()), crate::auth::unix_seconds())
            })
    }
}

impl Grant {
    /// The identity of an admitted request: it stands for its one sandbox.
    pub(crate) fn identity(&self, named: &Named) -> Option<Identity> {
        let (Self::Proven | Self::Program) = self else { return None };
        let (Named::InUrl(Route { address, .. }) | Named::ByE2b(address)) = named else { return None };
        let (namespace, name) = (address.namespace.to_string(), address.id.to_string());
        Some(Identity::Scoped(Claims { namespace, name, expires: i64::MAX }))
    }

    /// Puts headers that are not the router's own into the request to the sandbox. `authorization` was in the client's
    /// request: it names a user of the sandbox, or is for a program in it.
    pub(crate) fn complete(&self, headers: &mut HeaderMap, authorization: Option<HeaderValue>) {
        match self {
            Self::Proven => {
                if let Some(user) = authorization.filter(is_basic) {
                    headers.insert(AUTHORIZATION, user);
                }
            }
            Self::Program => {
                if let Some(value) = authorization {
                    headers.insert(AUTHORIZATION, value);
                }
                headers.remove(ACCESS_TOKEN);
                headers.remove(TRAFFIC_TOKEN);
                headers.insert(PUBLIC_ACCESS, HeaderValue::from_static("true"));
            }
            Self::Ordinary | Self::Refused(_) => {}
        }
    }
}

/// Whether a request asks E2B's part of a sandbox for its state only: it then neither wakes the sandbox nor keeps it awake.
pub(crate) fn asks_state<B>(port: u16, request: &Request<B>) -> bool {
    let path = request.uri().path().trim_matches('/');
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    reads && matches!((port, path), (ENVD_PORT, "health" | "metrics") | (INTERPRETER_PORT, "health"))
}

fn is_basic(value: &HeaderValue) -> bool {
    value.as_bytes().get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"basic "))
}

fn signature<B>(request: &Request<B>) -> Option<SignedAddress> {
    let files = request.uri().path().trim_matches('/') == "files";
    request.uri().query().filter(|_| files).and_then(SignedAddress::of_query)
}

fn operation(method: &Method) -> Operation {
    if matches!(*method, Method::GET | Method::HEAD) { Operation::Read } else { Operation::Write }
}

/// The id of the sandbox in the response to one of E2B's clients; `None` for other requests.
pub(crate) fn client_id(named: &Named, grant: &Grant) -> Option<String> {
    let address = match (named, grant) {
        (Named::ByE2b(address), _) => address,
        (Named::InUrl(Route { address, .. }), Grant::Proven | Grant::Program | Grant::Refused(_)) => address,
        _ => return None,
    };
    Some(sandbox_id(address.namespace.as_str(), address.id.as_str()))
}

/// The response to one of E2B's clients for an error of the router, if the clients know it; otherwise the error.
pub(crate) fn into_response(error: RouterError, id: &str) -> Result<Response<Bytes>, RouterError> {
    let known = match error {
        RouterError::E2b(known) => known,
        RouterError::Dial { cause: DialError::NoPod, .. } | RouterError::Suspended { .. } => E2bError::NotFound,
        RouterError::Dial { cause: DialError::Connect(_), .. } => E2bError::PortClosed,
        other => return Err(other),
    };
    let status = known.status();
    let body = json!({ "sandboxId": id, "message": known.to_string(), "code": status.as_u16() });
    let mut response = Response::new(Bytes::from(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

#[cfg(test)]
mod tests;
