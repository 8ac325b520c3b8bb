//! Serves the API: finds the account of the key, reads the body, dispatches the call, answers with the exact status that
//! clients expect.

use std::sync::Arc;

use agent_sandbox_protocol::e2b::query_pairs;
use agent_sandbox_protocol::scoped_token::Secret;
use async_trait::async_trait;
use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue,
};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::Error;
use crate::list::Page;
use crate::routes::{BUILDS, Route};
use crate::source::without_default_tag;

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const NEXT_TOKEN: HeaderName = HeaderName::from_static("x-next-token");
/// Largest body of a request in bytes; the largest that clients send are metadata and variables.
const MAX_BODY: usize = 1 << 20;

/// Finds accounts by keys.
#[async_trait]
pub trait Accounts: Send + Sync + 'static {
    /// The account that a key names; `None` if the key is unknown, expired or revoked, or if its account is gone.
    async fn of_key(&self, key: &str) -> Result<Option<Account>, kube::Error>;
}

/// Whom a request acts for.
#[derive(Clone)]
pub struct Account {
    /// Has the rights of the key's ServiceAccount and no others.
    pub client: kube::Client,
    /// The ServiceAccount's namespace, in which its sandboxes are.
    pub namespace: String,
    /// A pause keeps files only, whatever the client asks for; otherwise it is refused unless the client asks for that.
    pub pauses_without_memory: bool,
    /// The namespace's administrator has said what its sandboxes reach: clients may not allow addresses.
    pub egress_ceiling: bool,
    /// Sends requests to sandboxes with the same rights.
    pub sandboxes: Arc<dyn Fetch>,
}

/// Sends requests to a sandbox on behalf of one account.
#[async_trait]
pub trait Fetch: Send + Sync + 'static {
    /// The body of a successful response to a GET request; the error is a message.
    async fn get(&self, namespace: &str, name: &str, port: u16, path: &str) -> Result<Bytes, String>;
}

/// What a sandbox without limits may use at most.
#[derive(Clone, Copy, Debug)]
pub struct Capacity {
    pub cpus: u32,
    pub memory_mb: u64,
    pub disk_mb: u64,
}

/// What is the same for all accounts.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Tokens of sandboxes are derived from it; the router has the same.
    pub secret: Secret,
    /// Domain of the sandboxes' hosts, with a port where it is not the scheme's own.
    pub domain: String,
    pub capacity: Capacity,
    /// The node enforces egress rules by name.
    pub egress_by_name: bool,
    /// The image of the templates that exist without an object; `None` if there are none.
    pub base_image: Option<String>,
}

/// The API.
pub struct Api {
    pub(crate) settings: Settings,
    accounts: Arc<dyn Accounts>,
}

/// A request after its key was checked.
pub(crate) struct Call<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) account: Account,
    pub(crate) headers: HeaderMap,
    pub(crate) query: String,
    pub(crate) body: Bytes,
}

impl Call<'_> {
    /// A parameter of the query.
    pub(crate) fn parameter(&self, name: &str) -> Option<String> {
        query_pairs(&self.query).find(|(found, _)| found == name).map(|(_, value)| value.into_owned())
    }

    /// The body; an empty one is an empty object.
    pub(crate) fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        let body: &[u8] = if self.body.iter().all(u8::is_ascii_whitespace) { b"{}" } else { &self.body };
        serde_json::from_slice(body).map_err(|error| Error::Invalid(format!("the body is not valid: {error}")))
    }
}

impl Api {
    pub fn new(settings: Settings, accounts: Arc<dyn Accounts>) -> Self {
        Self { settings, accounts }
    }

    /// Handles a request; `path` is the part of its path that follows the API's prefix.
    pub async fn serve<B>(&self, path: &str, request: Request<B>) -> Response<Bytes>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let mut response = if request.method() == Method::OPTIONS {
            preflight()
        } else {
            self.answer(path, request).await.unwrap_or_else(Error::into_response)
        };
        // A page has to know a key to get further than this.
        let headers = response.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("X-Next-Token, Retry-After"));
        response
    }

    async fn answer<B>(&self, path: &str, request: Request<B>) -> Result<Response<Bytes>, Error>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let route = Route::of(request.method(), path);
        if route == Route::Health {
            return Ok(empty(StatusCode::OK));
        }
        let (parts, body) = request.into_parts();
        let key = parts.headers.get(API_KEY).and_then(|value| value.to_str().ok()).ok_or(Error::Key)?;
        let account = self.accounts.of_key(key).await.map_err(Error::from)?.ok_or(Error::Key)?;
        let body = Limited::new(body, MAX_BODY).collect().await;
        let body = body.map_err(|error| Error::Invalid(format!("cannot read the body: {error}")))?.to_bytes();
        let query = parts.uri.query().unwrap_or_default().to_owned();
        let call = Call { settings: &self.settings, account, headers: parts.headers, query, body };
        dispatch(&call, route).await
    }
}

async fn dispatch(call: &Call<'_>, route: Route) -> Result<Response<Bytes>, Error> {
    match route {
        Route::Health => Ok(empty(StatusCode::OK)),
        Route::Create(generation) => Ok(json(StatusCode::CREATED, &call.create(generation).await?)),
        Route::List(generation) => Ok(listed(call.list(generation).await?)),
        Route::Get(id) => Ok(json(StatusCode::OK, &call.get(&id).await?)),
        Route::Kill(id) => call.kill(&id).await.map(|()| empty(StatusCode::NO_CONTENT)),
        Route::Connect(id) => {
            let (resumed, sandbox) = call.connect(&id).await?;
            Ok(json(if resumed { StatusCode::CREATED } else { StatusCode::OK }, &sandbox))
        }
        Route::Pause(id) => call.pause(&id).await.map(|()| empty(StatusCode::NO_CONTENT)),
        Route::Timeout(id) => call.set_timeout(&id).await.map(|()| empty(StatusCode::NO_CONTENT)),
        Route::Refresh(id) => call.refresh(&id).await.map(|()| empty(StatusCode::NO_CONTENT)),
        Route::Metrics(id) => Ok(json(StatusCode::OK, &call.metrics(&id).await?)),
        Route::Logs(generation, id) => Ok(json(StatusCode::OK, &call.logs(generation, &id).await?)),
        Route::Network(id) => call.set_network(&id).await.map(|()| empty(StatusCode::NO_CONTENT)),
        Route::Snapshot(id) => Ok(json(StatusCode::CREATED, &call.take_snapshot(&id).await?)),
        Route::Snapshots => Ok(listed(call.snapshots().await?)),
        Route::Fork(id) => Ok(json(StatusCode::CREATED, &call.fork(&id).await?)),
        Route::DeleteTemplate(name) => match call.delete_snapshot(&name).await? {
            true => Ok(empty(StatusCode::NO_CONTENT)),
            false => {
                // There is a template: clients would take 404 for its absence.
                call.source(without_default_tag(&name)).await?;
                Err(Error::Unsupported(BUILDS.to_owned()))
            }
        },
        Route::Templates => Ok(json(StatusCode::OK, &call.templates().await?)),
        Route::Alias(name) => Ok(json(StatusCode::OK, &call.alias(&name).await?)),
        Route::Unsupported(why) => Err(Error::Unsupported(why.to_owned())),
        Route::Method => Err(Error::Unsupported("this call is not supported".to_owned())),
        Route::Unknown => Err(Error::NotFound("there is no such path in the E2B API".to_owned())),
    }
}

fn empty(status: StatusCode) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = status;
    response
}

/// A page of a list, and in a header where the next one begins.
fn listed(page: Page) -> Response<Bytes> {
    let mut response = json(StatusCode::OK, &page.items);
    if let Some(next) = page.next.and_then(|next| HeaderValue::from_str(&next).ok()) {
        response.headers_mut().insert(NEXT_TOKEN, next);
    }
    response
}

fn json(status: StatusCode, value: &impl Serialize) -> Response<Bytes> {
    let body = serde_json::to_vec(value).expect("answers always serialise to JSON");
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The answer to a browser that asks whether a page may send a request.
fn preflight() -> Response<Bytes> {
    let mut response = empty(StatusCode::NO_CONTENT);
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, PUT, PATCH, DELETE"));
    let names = "X-API-KEY, Content-Type, Idempotency-Key, User-Agent, browser, lang, lang_version, package_version, \
                 publisher, sdk_runtime, system";
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(names));
    response
}
