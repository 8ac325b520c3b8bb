//! Asks the daemon in a sandbox whether commands run there.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use agent_sandbox_protocol::native;
use agent_sandbox_protocol::router_headers::DEFAULT_PORT;
use http::header::HOST;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;

use crate::resolve::Endpoint;
use crate::resolve::index::LivePod;
use crate::state::Shared;

const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of the list of processes.
const MAX_BYTES: usize = 4 << 20;

/// Whether a command runs that the daemon started; `None` without a readable answer.
pub(super) async fn command_runs(shared: &Shared, pod: &Arc<LivePod>) -> Option<bool> {
    let answer = tokio::time::timeout(TIMEOUT, list(shared, pod)).await.ok()?;
    answer
        .inspect_err(|error| tracing::debug!(%error, sandbox = %pod.sandbox, "The sandbox's daemon did not say whether commands run"))
        .ok()
        .map(|list| list.processes.iter().any(|process| process.running))
}

async fn list(
    shared: &Shared,
    pod: &Arc<LivePod>,
) -> Result<native::ProcessList, Box<dyn std::error::Error + Send + Sync>> {
    let ip = pod.ips.first().ok_or("the Pod has no address")?;
    let endpoint = Endpoint { addr: SocketAddr::new(*ip, DEFAULT_PORT), pod: Some(Arc::clone(pod)) };
    let stream = shared.connector.connect(&endpoint).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let exchange = async {
        let mut request = Request::get(format!("{}/processes", native::PREFIX))
            .header(HOST, endpoint.addr.to_string())
            .body(Empty::<Bytes>::new())?;
        if let Some(signer) = &shared.signer {
            signer.sign(request.headers_mut(), Some(pod));
        }
        let response = sender.send_request(request).await?;
        if response.status() != StatusCode::OK {
            return Err(format!("it answered {}", response.status()).into());
        }
        let body = Limited::new(response.into_body(), MAX_BYTES).collect().await?.to_bytes();
        Ok(serde_json::from_slice(&body)?)
    };
    tokio::select! {
        answer = exchange => answer,
        ended = connection => Err(ended.err().map_or_else(|| "the connection was closed".into(), Into::into)),
    }
}
