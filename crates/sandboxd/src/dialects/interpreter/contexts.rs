//! Contexts: each has variables and a working directory of its own, and runs one piece of code at a time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agent_sandbox_protocol::code::CodeContext;
use http::StatusCode;
use tokio_util::sync::CancellationToken;

use super::kernel::Kernel;
use super::{Failure, Interpreter, PYTHON};
use crate::dialects::envd::User;

/// Maximum number of contexts: each has a process of its own.
const MAX_CONTEXTS: usize = 64;

/// A context. Its kernel runs from the first use on, until the context is stopped.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) id: String,
    pub(super) cwd: String,
    /// Held for the time of a run.
    pub(super) kernel: Arc<tokio::sync::Mutex<Option<Kernel>>>,
    /// Cancelled to end the run that holds the kernel.
    stopping: Mutex<CancellationToken>,
}

impl Context {
    fn new(cwd: String) -> Arc<Self> {
        let id = format!("{:016x}{:016x}", crate::core::random::number(), crate::core::random::number());
        Arc::new(Self { id, cwd, kernel: Arc::default(), stopping: Mutex::default() })
    }

    pub(super) fn describe(&self) -> CodeContext {
        CodeContext { id: self.id.clone(), language: PYTHON.to_owned(), cwd: self.cwd.clone() }
    }

    /// Cancelled when the context is restarted or removed.
    pub(super) fn stopping(&self) -> CancellationToken {
        lock(&self.stopping).clone()
    }

    /// Ends the kernel, and the run that it may be busy with. The next run starts another.
    pub(super) async fn stop(&self) {
        std::mem::take(&mut *lock(&self.stopping)).cancel();
        *self.kernel.lock().await = None;
    }
}

/// The contexts of a sandbox.
#[derive(Debug, Default)]
pub(super) struct Contexts {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    contexts: BTreeMap<String, Arc<Context>>,
    /// The context of code that names none.
    default: Option<Arc<Context>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Contexts {
    pub(super) fn of_unnamed_code(&self, interpreter: &Interpreter) -> Arc<Context> {
        let mut table = lock(&self.table);
        if let Some(context) = &table.default {
            return Arc::clone(context);
        }
        let context = Context::new(interpreter.default_directory());
        table.contexts.insert(context.id.clone(), Arc::clone(&context));
        table.default = Some(Arc::clone(&context));
        context
    }

    pub(super) fn create(&self, cwd: String) -> Result<Arc<Context>, Failure> {
        let mut table = lock(&self.table);
        if table.contexts.len() >= MAX_CONTEXTS {
            let message = format!("there are {MAX_CONTEXTS} contexts already; remove one first");
            return Err(Failure::new(StatusCode::TOO_MANY_REQUESTS, message));
        }
        let context = Context::new(cwd);
        table.contexts.insert(context.id.clone(), Arc::clone(&context));
        Ok(context)
    }

    /// All contexts, the default one first.
    pub(super) fn list(&self, interpreter: &Interpreter) -> Vec<CodeContext> {
        let default = self.of_unnamed_code(interpreter);
        let table = lock(&self.table);
        let others = table.contexts.values().filter(|context| context.id != default.id);
        std::iter::once(&default).chain(others).map(|context| context.describe()).collect()
    }

    pub(super) fn get(&self, id: &str, interpreter: &Interpreter) -> Option<Arc<Context>> {
        self.of_unnamed_code(interpreter);
        lock(&self.table).contexts.get(id).cloned()
    }

    pub(super) fn remove(&self, id: &str, interpreter: &Interpreter) -> Option<Arc<Context>> {
        self.of_unnamed_code(interpreter);
        let mut table = lock(&self.table);
        table.default.take_if(|default| default.id == id);
        table.contexts.remove(id)
    }
}

impl Interpreter {
    pub(super) fn user(&self) -> Result<User, Failure> {
        if self.as_daemon {
            return Ok(User::daemons_own(&self.sandbox));
        }
        User::named(&self.sandbox, &self.settings, None)
            .map_err(|error| Failure::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
    }

    fn default_directory(&self) -> String {
        self.user().map_or_else(|_| "/".into(), |user| user.directory.display().to_string())
    }

    /// The absolute path of a context's directory, which a client may write in other ways.
    pub(super) fn directory(&self, given: &str) -> Result<String, Failure> {
        let path = self.user()?.resolve(&self.sandbox, given);
        let path = path.map_err(|error| Failure::new(StatusCode::BAD_REQUEST, error.to_string()))?;
        Ok(self.sandbox.paths.absolute(&path).display().to_string())
    }
}
