//! Code that keeps its variables from one run to the next, as E2B's code interpreter; the native API uses it too. The
//! kernel is a program for the sandbox's own `python3` and needs nothing but its standard library; it is started with
//! the first run.

mod contexts;
mod kernel;
mod run;

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_sandbox_protocol::code::CodeContext;
use http::{Method, Request, Response, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::core::Sandbox;
use crate::dialects::envd::{Caller, Settings, is_variable};
use crate::http_io::body::{self, Body};
use contexts::Contexts;

/// Maximum size of a request, which carries code.
const MAX_REQUEST: usize = 16 << 20;

/// The only language, by the names that clients use.
const PYTHON: &str = "python";

/// State of the interpreter.
#[derive(Debug)]
pub struct Interpreter {
    sandbox: Arc<Sandbox>,
    settings: Arc<Settings>,
    contexts: Contexts,
    /// Code runs as the daemon's own user, not as the user of E2B's clients.
    as_daemon: bool,
}

/// An error, which clients show as text.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
}

/// Code to run, and where.
pub(crate) struct Run {
    pub(crate) code: String,
    /// Id of the context; without one it is the default one.
    pub(crate) context: Option<String>,
    pub(crate) language: Option<String>,
    /// Variables of the environment, for this run only.
    pub(crate) variables: BTreeMap<String, String>,
}

impl Failure {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    fn unknown_context(id: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("context {id:?} does not exist"))
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Execute {
    code: String,
    context_id: Option<String>,
    language: Option<String>,
    env_vars: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CreateContext {
    language: Option<String>,
    cwd: Option<String>,
}

impl Interpreter {
    pub fn new(sandbox: Arc<Sandbox>, settings: Arc<Settings>) -> Self {
        Self { sandbox, settings, contexts: Contexts::default(), as_daemon: false }
    }

    /// One for the native API.
    pub fn native(sandbox: Arc<Sandbox>) -> Self {
        Self { as_daemon: true, ..Self::new(sandbox, Arc::default()) }
    }

    /// Handles one request.
    pub async fn serve(self: Arc<Self>, request: Request<Body>, caller: Caller) -> Response<Body> {
        let settings = Arc::clone(&self.settings);
        settings.guard(request, |request| self.route(request, caller)).await
    }

    async fn route(self: Arc<Self>, request: Request<Body>, caller: Caller) -> Response<Body> {
        let path = request.uri().path().trim_matches('/').to_owned();
        if path == "health" {
            return body::text(StatusCode::OK, "OK");
        }
        if !self.settings.allows(caller, request.headers()) {
            body::discard(request.into_body()).await;
            let message = "the access token is missing or wrong; send it as X-Access-Token";
            return body::text(StatusCode::UNAUTHORIZED, message);
        }
        let parts: Vec<&str> = path.split('/').collect();
        let outcome = match (request.method(), parts.as_slice()) {
            (&Method::POST, ["execute"]) => self.execute(request).await,
            (&Method::GET, ["contexts"]) => Ok(body::json(StatusCode::OK, &self.contexts())),
            (&Method::POST, ["contexts"]) => self.create_context(request).await,
            (&Method::POST, ["contexts", id, "restart"]) => {
                self.restart(id).await.map(|()| body::empty(StatusCode::NO_CONTENT))
            }
            (&Method::DELETE, ["contexts", id]) => self.remove(id).await.map(|()| body::empty(StatusCode::NO_CONTENT)),
            (method, _) => Err(Failure::new(StatusCode::NOT_FOUND, format!("no such request: {method} /{path}"))),
        };
        outcome.unwrap_or_else(|failure| body::text(failure.status, failure.message))
    }

    async fn execute(&self, request: Request<Body>) -> Result<Response<Body>, Failure> {
        let asked: Execute = parsed(request).await?;
        self.run(Run {
            code: asked.code,
            context: asked.context_id,
            language: asked.language,
            variables: asked.env_vars.unwrap_or_default(),
        })
    }

    /// Runs code and streams its events, one JSON object per line.
    pub(crate) fn run(&self, wanted: Run) -> Result<Response<Body>, Failure> {
        let Run { code, context, language, variables } = wanted;
        if let Some(name) = variables.keys().find(|name| !is_variable(name)) {
            return Err(Failure::new(StatusCode::BAD_REQUEST, format!("env_vars: {name:?} is not a variable's name")));
        }
        let context = match (context, language) {
            (Some(_), Some(_)) => {
                return Err(Failure::new(StatusCode::BAD_REQUEST, "context_id and language exclude each other"));
            }
            (Some(id), None) => self.contexts.get(&id, self).ok_or_else(|| Failure::unknown_context(&id))?,
            (None, language) => {
                check_language(language.as_deref())?;
                self.contexts.of_unnamed_code(self)
            }
        };
        let launch = self.launch(&context.cwd)?;
        Ok(run::respond(context, kernel::Plan::new(launch, &self.sandbox), code, variables))
    }

    async fn create_context(&self, request: Request<Body>) -> Result<Response<Body>, Failure> {
        let asked: CreateContext = parsed(request).await?;
        let made = self.new_context(asked.language.as_deref(), asked.cwd.as_deref())?;
        Ok(body::json(StatusCode::OK, &made))
    }

    /// All contexts, with the default one.
    pub(crate) fn contexts(&self) -> Vec<CodeContext> {
        self.contexts.list(self)
    }

    pub(crate) fn new_context(&self, language: Option<&str>, cwd: Option<&str>) -> Result<CodeContext, Failure> {
        check_language(language)?;
        let cwd = self.directory(cwd.unwrap_or_default())?;
        // Fails now rather than in the first run.
        self.launch(&cwd)?;
        Ok(self.contexts.create(cwd)?.describe())
    }

    /// Ends the process of a context, and with it its variables.
    pub(crate) async fn restart(&self, id: &str) -> Result<(), Failure> {
        let context = self.contexts.get(id, self).ok_or_else(|| Failure::unknown_context(id))?;
        context.stop().await;
        Ok(())
    }

    pub(crate) async fn remove(&self, id: &str) -> Result<(), Failure> {
        let context = self.contexts.remove(id, self).ok_or_else(|| Failure::unknown_context(id))?;
        context.stop().await;
        Ok(())
    }
}

fn check_language(language: Option<&str>) -> Result<(), Failure> {
    match language.map(str::to_ascii_lowercase).as_deref() {
        None | Some("" | PYTHON | "python3" | "py") => Ok(()),
        Some(other) => {
            let message = format!("there is no kernel for {other:?} in this sandbox; only python is available");
            Err(Failure::new(StatusCode::NOT_IMPLEMENTED, message))
        }
    }
}

async fn parsed<T: DeserializeOwned + Default>(request: Request<Body>) -> Result<T, Failure> {
    let invalid = |message: String| Failure::new(StatusCode::BAD_REQUEST, message);
    let bytes = body::collect(request.into_body(), MAX_REQUEST).await.map_err(|error| invalid(error.to_string()))?;
    if bytes.is_empty() {
        return Ok(T::default());
    }
    serde_json::from_slice(&bytes).map_err(|error| invalid(format!("request body: {error}")))
}
