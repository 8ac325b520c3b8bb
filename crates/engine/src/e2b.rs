//! E2B's API inside the engine, on the router's port: accounts are those of the engine's own API, and requests to
//! sandboxes go through the engine's router with the account's rights.

use std::{
    path::Path,
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use agent_sandbox_api::keys::annotations;
use agent_sandbox_apiserver::{ApiServer, UserInfo};
use agent_sandbox_e2b::{
    Account, Accounts, Api, Capacity, Fetch, Settings,
    keys::{self, AccountRef},
};
use agent_sandbox_protocol::{
    router_headers::{SANDBOX_ID, SANDBOX_NAMESPACE, SANDBOX_PORT},
    scoped_token::Secret,
};
use agent_sandbox_router::{Caller, Mounted, Router};
use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response, header::HOST};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use k8s_openapi::{api::core::v1::Namespace, apimachinery::pkg::apis::meta::v1::ObjectMeta};

use crate::{backend::caller, embedded_router::RouterHandle};

/// Path of the API on the router's port.
const PREFIX: &str = "/e2b";
/// Timeout for a sandbox to answer, and again to send the whole answer.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of such an answer: one sample of metrics.
const MAX_FETCHED: usize = 64 * 1024;
/// The image of templates that exist without an object: programs of this machine.
const BASE_IMAGE: &str = "host";

/// The API, mounted in the router.
pub(crate) struct E2bApi(Api);

/// The router, once it is built: the API is one of its parts.
pub(crate) type LateRouter = Arc<OnceLock<Weak<Router>>>;

impl E2bApi {
    /// The API for a router at `port`; `folder` is on the file system that holds the sandboxes.
    pub(crate) fn new(api: ApiServer, secret: Secret, port: u16, folder: &Path, router: LateRouter) -> Self {
        let settings = Settings {
            secret,
            // Browsers resolve every name below `localhost` to this machine.
            domain: format!("localhost:{port}"),
            capacity: capacity(folder),
            egress_by_name: rustix::process::geteuid().is_root(),
            base_image: Some(BASE_IMAGE.to_owned()),
        };
        Self(Api::new(settings, Arc::new(EngineAccounts { api, router })))
    }
}

#[async_trait]
impl Mounted for E2bApi {
    fn prefix(&self) -> &str {
        PREFIX
    }

    async fn serve(&self, request: Request<Incoming>) -> Response<Bytes> {
        let path = request.uri().path().strip_prefix(PREFIX).unwrap_or_default().to_owned();
        self.0.serve(&path, request).await
    }
}

/// What sandboxes of this machine can use at most.
fn capacity(folder: &Path) -> Capacity {
    let cpus = std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX));
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = memory.lines().find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse().ok());
    let disk = rustix::fs::statvfs(folder).map_or(0, |fs| (fs.f_blocks * fs.f_frsize) >> 20);
    Capacity { cpus, memory_mb: total.unwrap_or(0_u64) >> 10, disk_mb: disk }
}

struct EngineAccounts {
    api: ApiServer,
    router: LateRouter,
}

#[async_trait]
impl Accounts for EngineAccounts {
    async fn of_key(&self, key: &str) -> Result<Option<Account>, kube::Error> {
        let client = self.api.client();
        let Some(account) = keys::find(&client, key, jiff::Timestamp::now()).await? else { return Ok(None) };
        let namespace = kube::Api::<Namespace>::all(client).get_metadata_opt(&account.namespace).await?;
        let user = user(&account);
        let sandboxes = Arc::new(RouterFetch { router: self.router.clone(), caller: Arc::new(caller(&user)) });
        Ok(Some(Account {
            client: self.api.client_as(user),
            namespace: account.namespace,
            pauses_without_memory: account.pauses_without_memory,
            egress_ceiling: has_ceiling(namespace.map(|namespace| namespace.metadata).as_ref()),
            sandboxes,
        }))
    }
}

/// Whether an administrator narrows what sandboxes of a namespace reach. The node closes a namespace that it does not
/// know.
fn has_ceiling(namespace: Option<&ObjectMeta>) -> bool {
    let annotation = |namespace: &ObjectMeta| {
        namespace.annotations.as_ref().is_some_and(|all| all.contains_key(annotations::EGRESS_CEILING))
    };
    namespace.is_none_or(annotation)
}

/// The user that a ServiceAccount is for the API server.
fn user(account: &AccountRef) -> UserInfo {
    let AccountRef { namespace, name, uid, .. } = account;
    UserInfo {
        username: format!("system:serviceaccount:{namespace}:{name}"),
        uid: uid.clone(),
        groups: vec![
            "system:serviceaccounts".to_owned(),
            format!("system:serviceaccounts:{namespace}"),
            "system:authenticated".to_owned(),
        ],
        ..UserInfo::default()
    }
}

/// Sends requests through the router as one user.
struct RouterFetch {
    router: LateRouter,
    caller: Arc<Caller>,
}

#[async_trait]
impl Fetch for RouterFetch {
    async fn get(&self, namespace: &str, name: &str, port: u16, path: &str) -> Result<Bytes, String> {
        let router = self.router.get().and_then(Weak::upgrade).ok_or("the router is not running")?;
        let stream = RouterHandle::of(router).connect(self.caller.clone());
        let text = |error: &dyn std::error::Error| format!("cannot ask the sandbox: {error}");
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| text(&error))?;
        // Ends with the sender.
        tokio::spawn(connection);
        let request = Request::get(path)
            .header(HOST, "localhost")
            .header(SANDBOX_ID, name)
            .header(SANDBOX_NAMESPACE, namespace)
            .header(SANDBOX_PORT, port)
            .body(Empty::<Bytes>::new())
            .map_err(|error| text(&error))?;
        let response = tokio::time::timeout(FETCH_TIMEOUT, sender.send_request(request)).await;
        let response = response.map_err(|error| text(&error))?.map_err(|error| text(&error))?;
        let status = response.status();
        // A program of the sandbox may be at that port: it must not fill the engine's memory, or keep it waiting.
        let body = tokio::time::timeout(FETCH_TIMEOUT, Limited::new(response.into_body(), MAX_FETCHED).collect());
        let body = body.await.map_err(|error| text(&error))?.map_err(|error| text(&*error))?.to_bytes();
        match status.is_success() {
            true => Ok(body),
            false => Err(format!("the sandbox answered {status}: {}", String::from_utf8_lossy(&body).trim())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_with_the_annotation_or_an_unknown_one_has_a_ceiling() {
        let with = |key: &str| ObjectMeta {
            annotations: Some([(key.to_owned(), String::new())].into()),
            ..ObjectMeta::default()
        };
        assert!(has_ceiling(Some(&with(annotations::EGRESS_CEILING))), "an empty one allows nothing");
        assert!(has_ceiling(None));
        assert!(!has_ceiling(Some(&ObjectMeta::default())));
        assert!(!has_ceiling(Some(&with(annotations::EGRESS))));
    }
}
