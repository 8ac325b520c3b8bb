//! The router's own paths for links: `POST /sandbox-links/<namespace>/<name>` creates one, `DELETE` with `/<id>` behind
//! it revokes it. The caller needs the rights that a port-forward to the sandbox needs.

use std::sync::Arc;
use std::time::Duration;

use agent_sandbox_api::keys::annotations;
use agent_sandbox_api::links::{self as records, LinkRecord};
use agent_sandbox_api::v1beta1::Sandbox;
use agent_sandbox_protocol::e2b::{ENVD_PORT, INTERPRETER_PORT, SANDBOX_ID as E2B_SANDBOX_ID};
use agent_sandbox_protocol::link_token::{LinkClaims, looks_like_link};
use agent_sandbox_protocol::links::{CreateLink, CreatedLink, LinkUrl, PREFIX};
use agent_sandbox_protocol::router_headers::{DEFAULT_PORT, Label, SANDBOX_ID, SandboxRequest};
use agent_sandbox_protocol::sandbox_address::Address;
use agent_sandbox_protocol::web::BodyKind;
use agent_sandbox_telemetry::audit::Action;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderValue, ORIGIN};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;

use super::{LinkError, Links};
use crate::addressing::Routing;
use crate::auth::{Identity, bearer, unix_seconds};
use crate::error::RouterError;
use crate::proxy::exchange::Exchange;
use crate::server::client_connection::ConnectionAuth;

/// Maximum size of a request's body in bytes.
const MAX_BODY: usize = 4096;
/// Timeout for a request's body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time for which a link may be valid.
const MAX_TTL: Duration = Duration::from_secs(30 * 24 * 3600);
/// Ports that one link may open.
const MAX_PORTS: usize = 8;
/// Longest name of one level in DNS.
const MAX_LABEL: usize = 63;

/// Whether a request is for these paths. One that names a sandbox goes to the sandbox.
pub(crate) fn is_for<B>(routing: &Routing, request: &Request<B>) -> bool {
    request.uri().path().strip_prefix(PREFIX).is_some_and(|rest| rest.starts_with('/'))
        && !request.headers().contains_key(SANDBOX_ID)
        && !request.headers().contains_key(E2B_SANDBOX_ID)
        && routing.in_host(request).is_none()
}

/// Handles a request for these paths.
pub(crate) async fn serve(
    exchange: &mut Exchange,
    auth: &ConnectionAuth,
    links: &Links,
    request: Request<Incoming>,
) -> Result<Response<Bytes>, RouterError> {
    refuse_pages(request.headers())?;
    let identity = authenticate(exchange, auth, request.headers()).await?;
    exchange.set_caller(&identity);
    let path = request.uri().path().to_owned();
    let segments: Vec<&str> = path[PREFIX.len() + 1..].split('/').collect();
    match (request.method(), segments.as_slice()) {
        (&Method::POST, [namespace, name]) => {
            let (address, json) = (address(namespace, name)?, BodyKind::of(request.headers()) == BodyKind::Json);
            let creator = authorize(exchange, &identity, &address, Action::Create).await?;
            let wanted = read_body(json, request.into_body()).await?;
            let created = create(links, &exchange.worker().shared.config.routing, exchange, &address, wanted, creator);
            Ok(respond(StatusCode::CREATED, &created.await?))
        }
        (&Method::DELETE, [namespace, name, id]) => {
            let address = address(namespace, name)?;
            authorize(exchange, &identity, &address, Action::Delete).await?;
            revoke(links, &address, id).await?;
            Ok(respond(StatusCode::OK, &serde_json::json!({ "id": id })))
        }
        _ => Err(RouterError::Method),
    }
}

/// No page has a reason to send these requests: what a browser marks as a page's request is refused, also of the
/// router's own origin, which with sandboxes in paths is that of their pages.
fn refuse_pages(headers: &HeaderMap) -> Result<(), LinkError> {
    match headers.contains_key(ORIGIN) || headers.contains_key("sec-fetch-site") {
        true => Err(LinkError::Request("web pages may not create or revoke links".to_owned())),
        false => Ok(()),
    }
}

async fn authenticate(
    exchange: &Exchange,
    auth: &ConnectionAuth,
    headers: &HeaderMap,
) -> Result<Identity, RouterError> {
    let worker = Arc::clone(exchange.worker());
    let token = bearer(headers);
    if token.is_some_and(looks_like_link) {
        return Err(LinkError::Credential.into());
    }
    let identity = match auth {
        ConnectionAuth::User(caller) => Identity::User(Arc::clone(caller)),
        ConnectionAuth::Unauthenticated => worker.shared.authorizer.authenticate(token).await?,
    };
    match identity {
        // Who was given one sandbox for a time cannot pass it on for longer.
        Identity::Scoped(_) | Identity::Link(_) => Err(LinkError::Credential.into()),
        known => Ok(known),
    }
}

fn address(namespace: &str, name: &str) -> Result<Address, LinkError> {
    let label = |text: &str| Label::new(HeaderValue::from_str(text).ok()?);
    match (label(namespace), label(name)) {
        (Some(namespace), Some(id)) => Ok(Address { namespace, id, port: DEFAULT_PORT }),
        _ => Err(LinkError::Request(format!("the path must be {PREFIX}/<namespace>/<sandbox>, with valid names"))),
    }
}

/// Refuses callers that may not forward ports to the sandbox; returns the caller's name.
async fn authorize(
    exchange: &mut Exchange,
    identity: &Identity,
    address: &Address,
    action: Action,
) -> Result<String, RouterError> {
    let worker = Arc::clone(exchange.worker());
    let shared = &worker.shared;
    let wanted = SandboxRequest::of_address(address.clone(), &HeaderMap::new());
    exchange.set_sandbox(&wanted);
    if let Some(audit) = exchange.audit() {
        audit.set_link(action);
    }
    let allowed = shared.authorizer.authorize(identity, &wanted, &shared.index, true).await;
    shared.metrics.decision(exchange.namespace(), allowed.is_ok());
    allowed?;
    Ok(match identity {
        Identity::User(caller) => caller.user.clone(),
        _ => String::new(),
    })
}

async fn read_body(json: bool, body: Incoming) -> Result<CreateLink, LinkError> {
    let wrong =
        |why: &str| LinkError::Request(format!("the body must be a JSON object with ports and ttlSeconds: {why}"));
    if !json {
        return Err(wrong("its Content-Type is not application/json"));
    }
    let read = tokio::time::timeout(BODY_TIMEOUT, Limited::new(body, MAX_BODY).collect()).await;
    let read = read.map_err(|_| wrong("it did not arrive in time"))?.map_err(|error| wrong(&error.to_string()))?;
    serde_json::from_slice(&read.to_bytes()).map_err(|error| wrong(&error.to_string()))
}

async fn create(
    links: &Links,
    routing: &Routing,
    exchange: &Exchange,
    address: &Address,
    wanted: CreateLink,
    created_by: String,
) -> Result<CreatedLink, LinkError> {
    let ttl = Duration::from_secs(wanted.ttl_seconds);
    if ttl.is_zero() || ttl > MAX_TTL {
        return Err(LinkError::Request("a link is valid for at least one second and at most 720h".to_owned()));
    }
    let mut ports = wanted.ports.clone();
    ports.dedup();
    if ports.is_empty() || ports.contains(&0) || ports.len() > MAX_PORTS {
        return Err(LinkError::Request(format!("a link is for one to {MAX_PORTS} ports between 1 and 65535")));
    }
    let parameter = exchange.worker().shared.config.cookie.as_ref().and_then(|cookie| cookie.query_param.clone());
    let parameter =
        parameter.ok_or_else(|| LinkError::Request("this router has no sessions for browsers".to_owned()))?;
    let (namespace, name) = (address.namespace.as_str(), address.id.as_str());
    let now = unix_seconds();
    let claims = LinkClaims {
        id: format!("{:016x}", rand::random::<u64>()),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        ports,
        read_only: wanted.read_only,
        expires: now + i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX / 2),
    };
    let token = links.secrets.sign_link(&claims);
    let token = token.ok_or_else(|| LinkError::Request("this router has no secret for links".to_owned()))?;
    let public = links.config.public_url.as_deref();
    let urls: Result<Vec<LinkUrl>, LinkError> = claims
        .ports
        .iter()
        .map(|port| {
            urls(routing, public, &Address { port: *port, ..address.clone() }, &format!("?{parameter}={token}"))
        })
        .collect();
    let urls = urls?;
    let record = LinkRecord {
        id: claims.id.clone(),
        ports: claims.ports.clone(),
        read_only: claims.read_only,
        created: now,
        expires: claims.expires,
        created_by,
    };
    let change = |sandbox: &Sandbox| {
        if let Some(port) = claims.ports.iter().find(|port| is_daemon_port(links, sandbox, **port))
            && !wanted.allow_daemon
        {
            return Err(LinkError::Request(format!(
                "port {port} is the sandbox's daemon, which runs commands and reads every file; \
                 to give that away, say so: --allow-daemon"
            )));
        }
        Ok(Some(records::with(sandbox.annotation(annotations::LINKS), record.clone(), now)?))
    };
    links.store.change(namespace, name, change).await?;
    links.forget(namespace, name);
    Ok(CreatedLink { id: claims.id, expires: claims.expires, urls })
}

async fn revoke(links: &Links, address: &Address, id: &str) -> Result<(), LinkError> {
    let (namespace, name) = (address.namespace.as_str(), address.id.as_str());
    let change = |sandbox: &Sandbox| {
        let annotation = sandbox.annotation(annotations::LINKS);
        records::without(annotation, id, unix_seconds()).ok_or_else(|| LinkError::NoLink(id.to_owned()))
    };
    links.store.change(namespace, name, change).await?;
    links.forget(namespace, name);
    Ok(())
}

/// Whether the sandbox's daemon may listen on the port.
fn is_daemon_port(links: &Links, sandbox: &Sandbox, port: u16) -> bool {
    match port {
        DEFAULT_PORT | ENVD_PORT | INTERPRETER_PORT => true,
        8080 | 9090 => !links.config.injected_daemon || declares(sandbox, port),
        _ => false,
    }
}

fn declares(sandbox: &Sandbox, port: u16) -> bool {
    let spec = serde_json::to_value(&sandbox.spec.pod_template.spec).unwrap_or_default();
    let containers = spec["containers"].as_array().into_iter().flatten();
    let mut ports = containers.flat_map(|container| container["ports"].as_array().into_iter().flatten());
    ports.any(|declared| declared["containerPort"] == port)
}

/// The addresses of a port in the forms that the router serves.
fn urls(routing: &Routing, public: Option<&str>, address: &Address, query: &str) -> Result<LinkUrl, LinkError> {
    let default = routing.host_domain.as_ref().map(|domain| format!("https://{domain}"));
    let public = public.map(str::to_owned).or(default);
    let unusable = || LinkError::Request("the router does not know its URL: set --public-url".to_owned());
    let public: Uri = public.as_deref().unwrap_or_default().parse().map_err(|_| unusable())?;
    let (Some(scheme), Some(authority)) = (public.scheme_str(), public.authority()) else { return Err(unusable()) };
    let port = authority.port_u16().map(|port| format!(":{port}")).unwrap_or_default();
    let Address { namespace, id, port: target } = address;
    let host = routing.host_domain.as_deref().and_then(|domain| {
        let label = format!("{target}-{id}--{namespace}");
        let host = format!("{label}.{domain}");
        let unique = Address::of_host(domain, &host).is_some_and(|found| found.as_ref() == Ok(address));
        (unique && label.len() <= MAX_LABEL).then(|| format!("{scheme}://{host}{port}/{query}"))
    });
    let path = routing.path_prefix.as_ref();
    let path = path.map(|prefix| format!("{scheme}://{authority}{prefix}/{namespace}/{id}/{target}/{query}"));
    if host.is_none() && path.is_none() {
        return Err(LinkError::Request(match routing.host_domain {
            Some(_) => format!("'{id}' and '{namespace}' make no host name: use shorter names without '--'"),
            None => "this router serves no URLs that name sandboxes".to_owned(),
        }));
    }
    Ok(LinkUrl { port: *target, host, path })
}

fn respond(status: StatusCode, body: &impl serde::Serialize) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(serde_json::to_vec(body).unwrap_or_default()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(routing: &Routing, public: Option<&str>, name: &'static str) -> (Option<String>, Option<String>) {
        let address = Address { namespace: Label::from_static("team"), id: Label::from_static(name), port: 3000 };
        let urls = urls(routing, public, &address, "?t=x").unwrap();
        (urls.host, urls.path)
    }

    #[test]
    fn every_form_that_the_router_serves_gets_an_address() {
        let host = Routing { host_domain: Some("boxes.example".to_owned()), ..Routing::default() };
        let both = Routing { path_prefix: Some("/router".to_owned()), ..host.clone() };
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(shown(&host, None, "box"), (text("https://3000-box--team.boxes.example/?t=x"), None));
        let local = Some("http://boxes.example:8080");
        assert_eq!(shown(&host, local, "box").0, text("http://3000-box--team.boxes.example:8080/?t=x"));
        let path = text("http://boxes.example:8080/router/team/box/3000/?t=x");
        assert_eq!(shown(&both, local, "box").1, path);
        // A host name that could be read as another sandbox's is not given out.
        assert_eq!(shown(&both, local, "a--b").0, None);
    }

    #[test]
    fn a_name_without_an_address_is_an_error() {
        let host = Routing { host_domain: Some("boxes.example".to_owned()), ..Routing::default() };
        let id = Label::from_static("a-name-of-sixty-letters-which-does-not-fit-with-a-port-and-more");
        let address = Address { namespace: Label::from_static("team"), id, port: 3000 };
        assert!(urls(&host, None, &address, "").err().unwrap().to_string().contains("shorter names"));
        assert!(urls(&Routing::default(), None, &address, "").err().unwrap().to_string().contains("--public-url"));
    }
}
