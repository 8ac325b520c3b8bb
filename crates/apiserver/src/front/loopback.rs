//! Upgrades (exec, attach, port-forward) for the in-process client: HTTP over a pipe in memory, because an upgrade needs
//! a connection to take over.

use std::sync::Arc;

use http::{Request, Response};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;

use super::door::boxed;
use crate::identity::UserInfo;
use crate::render::{self, Body};
use crate::server::ApiServer;
use crate::status::ApiError;

const PIPE: usize = 64 * 1024;

/// Answers an upgrade request of an in-process client; the answer can be upgraded like one from a socket.
pub(crate) async fn upgrade(
    server: ApiServer,
    user: Arc<UserInfo>,
    request: Request<kube::client::Body>,
) -> Response<Body> {
    match connect(server, user, request).await {
        Ok(response) => response,
        Err(error) => render::error_response(&ApiError::internal(format!("in-process upgrade failed: {error}"))),
    }
}

async fn connect(
    server: ApiServer,
    user: Arc<UserInfo>,
    request: Request<kube::client::Body>,
) -> Result<Response<Body>, hyper::Error> {
    let (near, far) = tokio::io::duplex(PIPE);
    let service = service_fn(move |request| {
        let (server, user) = (server.clone(), user.clone());
        async move { Ok::<_, std::convert::Infallible>(server.handle(&user, request).await) }
    });
    let serving =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(far), service).with_upgrades();
    // Both tasks end with the pipe, that is when either side lets go of it.
    tokio::spawn(serving);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(near)).await?;
    tokio::spawn(connection.with_upgrades());
    Ok(sender.send_request(request).await?.map(boxed))
}
