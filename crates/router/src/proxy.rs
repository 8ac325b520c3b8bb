//! Handles one request in order: address → authenticate → validate → authorise → resolve → proxy.

pub(crate) mod body;
pub(crate) mod connector;
pub(crate) mod exchange;
mod extended_connect;
pub(crate) mod headers;
pub(crate) mod pool;
pub(crate) mod signer;
mod tunnel;
mod upgrade;
mod upstream;
pub(crate) mod websocket;

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use agent_sandbox_protocol::link_token::looks_like_link;
use agent_sandbox_protocol::router_headers::{Loopback, SANDBOX_ID, SandboxRequest};
use agent_sandbox_protocol::sandbox_address::AddressError;
use agent_sandbox_protocol::web::{self, AllowedHosts, PageError};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, HeaderMap, HeaderValue};
use http::uri::PathAndQuery;
use http::{Request, Response, StatusCode, Uri, Version};
use hyper::body::{Body as _, Incoming};
use hyper::upgrade::OnUpgrade;

use crate::addressing::{Named, Route};
use crate::auth::Identity;
use crate::auth::admission::{Admission, Credential};
use crate::browser::{self, CookieConfig, Source};
use crate::e2b::{self, Grant};
use crate::error::RouterError;
use crate::links;
use crate::mounted::is_for;
use crate::observability::trace::TRACEPARENT;
use crate::pages;
use crate::proxy::body::{RequestBody, ResponseBody};
use crate::proxy::exchange::{CredentialEnd, Exchange};
use crate::proxy::extended_connect::{ConnectRequest, Handshake};
use crate::proxy::upstream::{UpstreamProtocol, UpstreamResponse};
use crate::server::client_connection::{ClientConnection, ConnectionAuth};
use crate::state::{Shared, Worker};

/// Handles one request; every error becomes a response.
pub(crate) async fn handle(
    worker: Arc<Worker>,
    client: Arc<ClientConnection>,
    request: Request<Incoming>,
) -> Result<Response<ResponseBody>, Infallible> {
    if let Some(response) = own_endpoint(&worker, &request) {
        client.request_begins();
        client.request_ends();
        return Ok(response);
    }
    let reader = pages::Reader::of(&worker.shared.config.routing, &request);
    let http1 = request.version() < Version::HTTP_2;
    let has_body = !request.body().is_end_stream();
    // The client then sends its next request to another router instead of losing it here.
    let mut closing = worker.shared.draining.load(Ordering::Relaxed);
    let mut exchange = Exchange::begin(&worker, &client, &request);
    let mut request = Some(request);
    let mut response = match serve(&mut exchange, &client, &mut request).await {
        Ok(Served::Response(response)) => respond(exchange, response),
        Ok(Served::Upgrading(pending)) => pending.start(exchange, &client),
        Ok(Served::Own(response)) => {
            let status = response.status();
            // A mounted service does not know who calls; requests of known callers are recorded where they lead to.
            if let (StatusCode::UNAUTHORIZED, Some(audit)) = (status, exchange.audit()) {
                audit.failed(status.as_u16(), "the credential is missing or not valid");
            }
            exchange.set_status(status.as_u16());
            closing |= has_body && !status.is_success();
            response.map(ResponseBody::from_bytes)
        }
        Err(error) => {
            // Unless the body has been read to its end the connection is closed, which the client has to know before it
            // sends its next request.
            closing |= has_body && !body::discard(request.map(Request::into_body)).await;
            exchange.record_error(&error);
            let response = match exchange.e2b_id.take() {
                Some(id) => e2b::into_response(error, &id).unwrap_or_else(RouterError::into_response),
                None => match reader {
                    Some(reader) => reader.page(error),
                    None => error.into_response(),
                },
            };
            exchange.add_bytes_out(response.body().len() as u64);
            response.map(ResponseBody::from_bytes)
        }
    };
    if http1 && closing && response.status() != StatusCode::SWITCHING_PROTOCOLS {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}

/// The result of a request without errors.
pub(crate) enum Served {
    Response(UpstreamResponse),
    Upgrading(Box<upgrade::PendingUpgrade>),
    /// The router's own: an upgrade that is refused in its own protocol, or a cookie.
    Own(Response<Bytes>),
}

/// Takes the request out of `incoming` where it passes it on; one that is refused before stays there.
async fn serve(
    exchange: &mut Exchange,
    client: &Arc<ClientConnection>,
    incoming: &mut Option<Request<Incoming>>,
) -> Result<Served, RouterError> {
    const NOT_PASSED_ON: &str = "the request is there until it is passed on";
    let request = incoming.as_mut().expect(NOT_PASSED_ON);
    let worker = Arc::clone(exchange.worker());
    let shared = &worker.shared;
    let limits = &shared.config.limits;
    // Shed load before any work is done.
    if exchange.overload {
        return Err(RouterError::Overloaded);
    }
    match client.auth {
        ConnectionAuth::Unauthenticated => {
            shared.config.allowed_hosts.check(request)?;
            check_page_host(shared, request)?;
        }
        // A forwarded port on a user's machine: any page in its browser reaches it.
        ConnectionAuth::User(_) => AllowedHosts::private([]).check(request)?,
    }
    if let Some(mounted) = shared.mounted.as_deref().filter(|one| is_for(*one, &shared.config.routing, request)) {
        let response = mounted.serve(incoming.take().expect(NOT_PASSED_ON)).await;
        if response.status() != StatusCode::UNAUTHORIZED {
            client.admitted();
        }
        return Ok(Served::Own(response));
    }
    if let Some(served) = shared.links.as_deref().filter(|_| links::endpoint::is_for(&shared.config.routing, request)) {
        let request = incoming.take().expect(NOT_PASSED_ON);
        return links::endpoint::serve(exchange, &client.auth, served, request).await.map(Served::Own);
    }
    let mut named = shared.config.routing.find(request);
    if let (Some(e2b), Ok(Named::InHeaders)) = (&shared.e2b, &named)
        && let Some(found) = e2b.find(request, &shared.index)
    {
        named = found;
    }
    let in_url = !matches!(named, Ok(Named::InHeaders | Named::ByE2b(_)));
    let cookie = shared.config.cookie.as_ref();
    let credential = browser::credential(cookie, in_url, request);
    // Where no token is checked, a page of any origin can write one into a URL.
    let proves = |token: &str, source: Source| {
        let is_link = shared.links.is_some() && looks_like_link(token);
        source != Source::Query || shared.authorizer.checks_tokens() || is_link
    };
    let source = credential.as_ref().filter(|(token, source)| proves(token, *source)).map(|(_, source)| *source);
    let grant = match (&shared.e2b, &named) {
        (Some(e2b), Ok(named)) => e2b.decide(named, request, &shared.index, credential.is_some()),
        _ => Grant::Ordinary,
    };
    exchange.e2b_id = named.as_ref().ok().and_then(|named| e2b::client_id(named, &grant));
    if let Grant::Refused(error) = grant {
        if let (Some(audit), Ok(Named::InUrl(Route { address, .. }) | Named::ByE2b(address))) =
            (exchange.audit(), &named)
        {
            audit.set_target(address.namespace.as_str(), address.id.as_str(), address.port);
        }
        return Err(error.into());
    }
    // A port that is open to everyone is open to pages.
    if (in_url || is_open(shared, &client.auth)) && grant == Grant::Ordinary {
        // Where a credential is required, headers that name a sandbox are more than a page of another origin can send.
        let config = &shared.config;
        let tls = client.inbound.is_tls();
        browser::check_page(cookie, &config.allowed_origins, source, tls, &config.routing, request)?;
    }
    let token = credential.as_ref().map(|(token, _)| token.as_ref());
    let granted = named.as_ref().ok().and_then(|named| grant.identity(named));
    let (wanted, named) = admit(exchange, request.headers(), &client.auth, token, granted, named).await?;
    client.admitted();
    let connect = ConnectRequest::of(request);
    if matches!(connect, ConnectRequest::Unsupported) {
        return Err(RouterError::Method);
    }
    let too_large = |length: &HeaderValue| {
        length.to_str().ok().and_then(|text| text.parse::<u64>().ok()).is_some_and(|n| n > limits.request_body_bytes)
    };
    if limits.request_body_bytes > 0 && request.headers().get(CONTENT_LENGTH).is_some_and(too_large) {
        return Err(RouterError::BodyTooLarge(limits.request_body_bytes));
    }
    let upgrade = match (&connect, request.version()) {
        (ConnectRequest::WebSocket, _) => Some(HeaderValue::from_static("websocket")),
        (_, Version::HTTP_11) => headers::requested_upgrade(request.headers()),
        _ => None,
    };
    if exchange.link().is_some_and(|link| !link.allows_method(request.method(), upgrade.is_some())) {
        return Err(links::LinkError::ReadOnly.into());
    }
    if let (None, Some(config), Named::InUrl(route), Some((token, Source::Query))) =
        (&upgrade, cookie, &named, &credential)
        && let Some(response) = browser::set_cookie(config, route, token, exchange.link().map(|link| &**link), request)
    {
        return Ok(Served::Own(response));
    }
    drop(credential);
    let mut request = incoming.take().expect(NOT_PASSED_ON);
    rewrite(&mut request, &named, cookie);
    exchange.asks_e2b_state = shared.e2b.is_some() && e2b::asks_state(wanted.port, &request);
    let authorization = request.headers().get(AUTHORIZATION).cloned();
    if let Some(audit) = exchange.audit() {
        audit.set_request(&request);
    }
    let Some(protocol) = upgrade else {
        let upstream_protocol = if is_grpc(&request) { UpstreamProtocol::Http2 } else { UpstreamProtocol::Http1 };
        let mut request = outbound(request, exchange, client, None, limits.request_body_bytes);
        grant.complete(request.headers_mut(), authorization);
        let end = exchange.credential_end();
        return while_admitted(end, upstream::send(exchange, &wanted, request, upstream_protocol))
            .await
            .map(Served::Response);
    };
    let permit = match upgrade::Permit::take(shared, client, request.headers()) {
        Some(permit) => permit,
        None => return upgrade::refuse(&protocol, request),
    };
    let client_upgrade: OnUpgrade = hyper::upgrade::on(&mut request);
    let handshake = matches!(connect, ConnectRequest::WebSocket).then(|| Handshake::begin(&mut request));
    let mut request = outbound(request, exchange, client, Some(&protocol), limits.request_body_bytes);
    grant.complete(request.headers_mut(), authorization);
    let end = exchange.credential_end();
    match while_admitted(end, upstream::send(exchange, &wanted, request, UpstreamProtocol::Http1)).await? {
        UpstreamResponse::Leased(response, lease)
            if response.status() == StatusCode::SWITCHING_PROTOCOLS
                && handshake.as_ref().is_none_or(|handshake| handshake.is_accepted_by(response.headers())) =>
        {
            let over_http2 = handshake.is_some();
            Ok(Served::Upgrading(Box::new(upgrade::PendingUpgrade {
                response,
                lease,
                client_upgrade,
                protocol,
                permit,
                over_http2,
            })))
        }
        response => Ok(Served::Response(response)),
    }
}

/// Whether a request of this connection may pass without a credential.
fn is_open(shared: &Shared, auth: &ConnectionAuth) -> bool {
    matches!(auth, ConnectionAuth::Unauthenticated) && shared.authorizer.accepts_anonymous()
}

/// Where no credential is required, refuses requests of pages that have a name of their own for the router. Clients
/// other than browsers may use any name.
fn check_page_host<B>(shared: &Shared, request: &Request<B>) -> Result<(), RouterError> {
    let named_by_domain = || shared.config.routing.in_host(request).is_some();
    if !shared.authorizer.accepts_anonymous() || !web::is_of_page(request) || named_by_domain() {
        return Ok(());
    }
    match shared.page_hosts.check(request) {
        Err(PageError::Host(host)) => Err(RouterError::PageHost(host)),
        other => Ok(other?),
    }
}

/// Ends the work, such as a long upload, when the caller's credential ends.
async fn while_admitted<T>(
    end: Option<CredentialEnd>,
    work: impl Future<Output = Result<T, RouterError>>,
) -> Result<T, RouterError> {
    let Some(end) = end else { return work.await };
    tokio::select! {
        done = work => done,
        reason = end => Err(reason),
    }
}

/// Authenticates, then validates, then authorises, so that unauthenticated callers learn nothing about what is valid.
async fn admit(
    exchange: &mut Exchange,
    headers: &HeaderMap,
    auth: &ConnectionAuth,
    token: Option<&str>,
    granted: Option<Identity>,
    named: Result<Named, AddressError>,
) -> Result<(SandboxRequest, Named), RouterError> {
    let worker = Arc::clone(exchange.worker());
    let shared = &worker.shared;
    let link = shared.links.as_ref().zip(token.filter(|token| looks_like_link(token)));
    let (identity, credential) = match (granted, auth) {
        (Some(identity), _) => (identity, None),
        // Who presents a link has no more than the link, also where nothing is required.
        _ if let Some((links, token)) = link => {
            let known = links.verify(token).await;
            (Identity::Link(known.inspect_err(|_| shared.metrics.decision(None, false))?), None)
        }
        (None, ConnectionAuth::User(caller)) => {
            (Identity::User(Arc::clone(caller)), Some(Credential::User(Arc::clone(caller))))
        }
        (None, ConnectionAuth::Unauthenticated) => {
            let known = shared.authorizer.authenticate(token).await;
            let known = known.inspect_err(|_| shared.metrics.decision(None, false))?;
            let ends = token.filter(|_| shared.authorizer.tokens_may_end());
            (known, ends.map(|token| Credential::Token(token.into())))
        }
    };
    exchange.set_caller(&identity);
    if let Identity::Link(link) = &identity {
        exchange.set_link(Arc::clone(link));
    }
    let loopback = if shared.config.verification.allow_loopback { Loopback::Allowed } else { Loopback::Refused };
    let named = named?;
    let wanted = named.read(headers, loopback)?;
    exchange.set_sandbox(&wanted);
    let verified = shared.config.verification.verify_targets;
    let allowed = shared.authorizer.authorize(&identity, &wanted, &shared.index, verified).await;
    shared.metrics.decision(exchange.namespace(), allowed.is_ok());
    allowed?;
    if let Some(credential) = credential {
        exchange.set_admission(Admission::new(credential, &wanted, &shared.index));
    }
    Ok((wanted, named))
}

/// Removes from the request what is the router's: the sandbox's address in the path, and the credential.
fn rewrite(request: &mut Request<Incoming>, named: &Named, cookie: Option<&CookieConfig>) {
    if let Some(config) = cookie {
        browser::strip_cookie(request.headers_mut(), &config.name);
    }
    let Named::InUrl(route) = named else { return };
    let query = match (request.uri().query(), cookie.and_then(|config| config.query_param.as_deref())) {
        (Some(query), Some(name)) => browser::without_parameter(query, name),
        (query, _) => query.map(str::to_owned),
    };
    let target = match query {
        Some(query) => format!("{}?{query}", route.path),
        None => route.path.clone(),
    };
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.path_and_query = PathAndQuery::try_from(target).ok();
    *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
}

fn is_grpc(request: &Request<Incoming>) -> bool {
    request.version() == Version::HTTP_2
        && request.headers().get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// The request as the sandbox will see it, except for its authority, which depends on the endpoint.
fn outbound(
    request: Request<Incoming>,
    exchange: &Exchange,
    client: &ClientConnection,
    upgrade: Option<&HeaderValue>,
    body_limit: u64,
) -> Request<RequestBody> {
    let (mut parts, body) = request.into_parts();
    let mut uri = parts.uri.into_parts();
    let authority = uri.authority.take().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
    uri.scheme = None;
    // Path and query are passed on unchanged.
    parts.uri = Uri::from_parts(uri).unwrap_or_default();
    parts.extensions.clear();
    if parts.version == Version::HTTP_2 {
        join_cookies(&mut parts.headers);
    }
    headers::prepare_request(&mut parts.headers, &client.inbound, authority, upgrade);
    if let Some(traceparent) = exchange.trace.header() {
        parts.headers.insert(TRACEPARENT, traceparent);
    }
    Request::from_parts(parts, RequestBody::new(body, body_limit, exchange.audit().cloned()))
}

/// HTTP/2 may split cookies over several fields; HTTP/1.1 allows one.
fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(COOKIE).iter().nth(1).is_none() {
        return;
    }
    let joined: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&joined.join(b"; ".as_slice())) {
        headers.insert(COOKIE, joined);
    }
}

/// Streams the sandbox's response.
fn respond(mut exchange: Box<Exchange>, upstream: UpstreamResponse) -> Response<ResponseBody> {
    let idle = exchange.worker().shared.config.timeouts.stream_idle;
    let credential_end = exchange.credential_end();
    let (response, lease) = match upstream {
        UpstreamResponse::Leased(response, lease) => (response, Some(lease)),
        UpstreamResponse::Shared(response) => (response, None),
    };
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let error = RouterError::UnexpectedUpgrade;
        exchange.record_error(&error);
        return error.into_response().map(ResponseBody::from_bytes);
    }
    exchange.set_status(response.status().as_u16());
    let (mut parts, body) = response.into_parts();
    headers::prepare_response(&mut parts.headers, None);
    parts.version = exchange.version;
    parts.extensions.clear();
    let body = match lease {
        Some(lease) => ResponseBody::leased(body, lease, exchange, idle),
        None => ResponseBody::shared(body, exchange, idle),
    };
    let body = body.ending_with(credential_end);
    Response::from_parts(parts, body)
}

/// Health endpoints of the router itself; a request that names a sandbox always goes to the sandbox.
fn own_endpoint(worker: &Worker, request: &Request<Incoming>) -> Option<Response<ResponseBody>> {
    let path = request.uri().path();
    if !matches!(path, "/healthz" | "/readyz")
        || request.headers().contains_key(SANDBOX_ID)
        || request.headers().contains_key(agent_sandbox_protocol::e2b::SANDBOX_ID)
        || worker.shared.config.routing.in_host(request).is_some()
    {
        return None;
    }
    Some(crate::server::probes::respond(&worker.shared, path).map(ResponseBody::from_bytes))
}

/// The client that an upgrade is counted against: the peer, or the address that a trusted proxy reports.
pub(crate) fn client_address(worker_config: &crate::config::RouterConfig, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
    let trusted = |ip: IpAddr| worker_config.trusted_proxies.iter().any(|block| block.contains(ip));
    if !trusted(peer) {
        return peer;
    }
    let hops = headers.get_all(headers::FORWARDED_FOR).iter().filter_map(|value| value.to_str().ok());
    let hops: Vec<&str> = hops.flat_map(|value| value.split(',')).map(str::trim).collect();
    // The right-most hop that is not a trusted proxy; everything to its left may be forged.
    hops.iter().rev().map_while(|hop| hop.parse().ok()).find(|ip| !trusted(*ip)).unwrap_or(peer)
}
