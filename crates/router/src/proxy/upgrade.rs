//! Upgraded connections: admission, refusal, and starting the tunnel.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, UPGRADE};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt;

use crate::error::RouterError;
use crate::proxy::body::ResponseBody;
use crate::proxy::exchange::Exchange;
use crate::proxy::extended_connect::Handshake;
use crate::proxy::headers;
use crate::proxy::pool::Lease;
use crate::proxy::tunnel;
use crate::proxy::websocket::{CloseCode, accept_key, close_to_client};
use crate::proxy::{Served, client_address};
use crate::server::client_connection::ClientConnection;
use crate::state::Shared;

const WEBSOCKET_KEY: HeaderName = HeaderName::from_static("sec-websocket-key");
const WEBSOCKET_ACCEPT: HeaderName = HeaderName::from_static("sec-websocket-accept");

/// Permission for one upgraded connection; released when dropped.
pub(crate) struct Permit {
    held: Option<(Arc<Shared>, IpAddr)>,
}

impl Permit {
    /// `None` if the client is at its limit.
    pub(crate) fn take(shared: &Arc<Shared>, client: &ClientConnection, headers: &HeaderMap) -> Option<Self> {
        let limit = shared.config.upgrades.per_client;
        let (true, Some(peer)) = (limit > 0, client.peer) else { return Some(Self { held: None }) };
        let address = client_address(&shared.config, peer, headers);
        let mut upgrades = shared.upgrades.lock();
        let count = upgrades.entry(address).or_default();
        if *count >= limit {
            return None;
        }
        *count += 1;
        drop(upgrades);
        Some(Self { held: Some((Arc::clone(shared), address)) })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some((shared, address)) = &self.held {
            let mut upgrades = shared.upgrades.lock();
            if let Some(count) = upgrades.get_mut(address) {
                *count -= 1;
                if *count == 0 {
                    upgrades.remove(address);
                }
            }
        }
    }
}

/// Refuses an upgrade beyond the client's limit: a WebSocket gets a close frame, other protocols a status.
pub(crate) fn refuse(protocol: &HeaderValue, mut request: Request<Incoming>) -> Result<Served, RouterError> {
    let key = request.headers().get(WEBSOCKET_KEY).cloned();
    let (true, Some(key)) = (is_websocket(protocol), key) else { return Err(RouterError::TooManyUpgrades) };
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        if let Ok(upgraded) = upgrade.await {
            let mut client = TokioIo::new(upgraded);
            let close = async {
                client.write_all(&close_to_client(CloseCode::PolicyViolation)).await?;
                client.shutdown().await
            };
            let _ = tokio::time::timeout(std::time::Duration::from_secs(1), close).await;
        }
    });
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, protocol.clone());
    let accept = HeaderValue::from_str(&accept_key(key.as_bytes())).expect("base64 is visible ASCII");
    headers.insert(WEBSOCKET_ACCEPT, accept);
    Ok(Served::Own(response))
}

fn is_websocket(protocol: &HeaderValue) -> bool {
    protocol.as_bytes().eq_ignore_ascii_case(b"websocket")
}

/// An upgrade that the sandbox has accepted.
pub(crate) struct PendingUpgrade {
    pub(crate) response: Response<Incoming>,
    pub(crate) lease: Lease,
    pub(crate) client_upgrade: OnUpgrade,
    pub(crate) protocol: HeaderValue,
    pub(crate) permit: Permit,
    /// The client's side is a stream of an HTTP/2 connection.
    pub(crate) over_http2: bool,
}

impl PendingUpgrade {
    /// Responds to the client and starts the tunnel, which runs until it ends by itself, reaches a limit or is drained.
    pub(crate) fn start(
        self: Box<Self>,
        mut exchange: Box<Exchange>,
        client: &ClientConnection,
    ) -> Response<ResponseBody> {
        let Self { mut response, lease, client_upgrade, protocol, permit, over_http2 } = *self;
        let worker = Arc::clone(exchange.worker());
        let sandbox_upgrade = hyper::upgrade::on(&mut response);
        let websocket = is_websocket(&protocol);
        let agreed = response.headers().get(UPGRADE).cloned().unwrap_or(protocol);
        let (mut parts, _) = response.into_parts();
        if over_http2 {
            Handshake::accept_response(&mut parts);
        } else {
            headers::prepare_response(&mut parts.headers, Some(&agreed));
            client.upgraded();
        }
        parts.headers.remove(CONTENT_LENGTH);
        parts.extensions.clear();
        exchange.set_status(parts.status.as_u16());
        let audit = exchange.audit().cloned();
        let credential_end = exchange.credential_end();
        let shared = Arc::clone(&worker.shared);
        worker.shared.tasks.spawn(async move {
            let _permit = permit;
            // The driver completes the sandbox's side of the upgrade and then ends.
            if let Some(driver) = lease.into_driver()
                && let Err(error) = driver.await
            {
                tracing::debug!(%error, "Upgrade failed on the sandbox's side");
                return;
            }
            let (Ok(client), Ok(sandbox)) = futures::future::join(client_upgrade, sandbox_upgrade).await else {
                return;
            };
            let abort = shared.abort.child_token();
            let mut tunnel = std::pin::pin!(tunnel::run(
                TokioIo::new(client),
                TokioIo::new(sandbox),
                websocket,
                &shared.config.upgrades,
                &abort,
                audit,
            ));
            let ended = async {
                match credential_end {
                    Some(end) => end.await,
                    None => std::future::pending().await,
                }
            };
            let report = tokio::select! {
                report = &mut tunnel => report,
                reason = ended => {
                    tracing::debug!(%reason, "The credential of a tunnel ended");
                    abort.cancel();
                    tunnel.await
                }
            };
            exchange.add_bytes_out(report.to_client);
            tracing::debug!(end = ?report.end, "Tunnel ended");
        });
        Response::from_parts(parts, ResponseBody::from_bytes(Bytes::new()))
    }
}
