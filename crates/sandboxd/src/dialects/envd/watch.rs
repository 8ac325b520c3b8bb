//! Watches on directories: as a stream of events, and as watchers whose events a client fetches.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::Stream;
use http::{HeaderMap, Request};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::connect::{self, Code, Messages, RpcError};
use super::entry::describe;
use super::process::ping_interval;
use super::{Envd, User};
use crate::core::Sandbox;
use crate::core::files::{Follow, blocking};
use crate::core::paths::RelPath;
use crate::core::processes::users::Names;
use crate::core::watches::{ChangeKind, Changed, Watch};
use crate::http_io::body::Body;

/// Maximum number of watchers, and of events that wait in each of them.
const MAX_WATCHERS: usize = 64;
const MAX_WAITING: usize = 16 * 1024;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WatchRequest {
    path: String,
    recursive: bool,
    include_entry: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WatcherRequest {
    watcher_id: String,
}

/// An open watch and what its client wants to see of it.
#[derive(Debug)]
struct Events {
    watch: Watch,
    sandbox: Arc<Sandbox>,
    directory: RelPath,
    include_entry: bool,
}

impl Events {
    async fn open(sandbox: Arc<Sandbox>, asked: WatchRequest, user: &User) -> Result<Self, RpcError> {
        let directory = user.resolve(&sandbox, &asked.path)?;
        let root = Arc::clone(sandbox.paths.root());
        let (checked, at) = (Arc::clone(&root), directory.clone());
        let failed = |error| RpcError::of_file(&asked.path, &error);
        let located = blocking(move || checked.locate(&at, Follow::Link)).await.map_err(failed)?;
        if located.exists() && !located.is_directory() {
            return Err(RpcError::invalid(format!("{:?} is not a directory", asked.path)));
        }
        let watch = Watch::open(root, directory.clone(), asked.recursive).await.map_err(failed)?;
        Ok(Self { watch, sandbox, directory, include_entry: asked.include_entry })
    }

    /// Waits for the next events.
    async fn next(&mut self) -> Result<Vec<Value>, RpcError> {
        let changes = self.watch.next().await.map_err(|error| RpcError::new(Code::Internal, error.to_string()))?;
        let mut events: Vec<Value> = Vec::new();
        for change in changes {
            let Some(event) = self.event(change)? else { continue };
            // One write causes several events of the kernel.
            if events.last() != Some(&event) {
                events.push(event);
            }
        }
        Ok(events)
    }

    fn event(&self, change: Changed) -> Result<Option<Value>, RpcError> {
        let (kind, shows_entry) = match change.kind {
            ChangeKind::Created | ChangeKind::MovedTo => ("EVENT_TYPE_CREATE", true),
            ChangeKind::Modified => ("EVENT_TYPE_WRITE", true),
            ChangeKind::Removed => ("EVENT_TYPE_REMOVE", false),
            ChangeKind::MovedFrom => ("EVENT_TYPE_RENAME", false),
            ChangeKind::Attributes => ("EVENT_TYPE_CHMOD", true),
            ChangeKind::Overflow => {
                let message = "changes came faster than they could be reported, and some are lost";
                return Err(RpcError::new(Code::ResourceExhausted, message));
            }
        };
        let Some(name) = change.path.below(&self.directory) else { return Ok(None) };
        let mut event = json!({ "name": String::from_utf8_lossy(&name.to_bytes()), "type": kind });
        if shows_entry
            && self.include_entry
            && let Ok(Some(entry)) = describe(&self.sandbox, &change.path, &Names::read())
        {
            event["entry"] = json!(entry);
        }
        Ok(Some(event))
    }
}

/// Watchers whose events are fetched.
#[derive(Debug, Default)]
pub(super) struct Watchers {
    table: Mutex<HashMap<String, Watcher>>,
}

#[derive(Debug)]
struct Watcher {
    waiting: Arc<Mutex<Waiting>>,
    task: AbortHandle,
}

#[derive(Debug, Default)]
struct Waiting {
    events: VecDeque<Value>,
    failed: Option<RpcError>,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Envd {
    pub(super) async fn open_watch_stream(
        &self,
        messages: Messages,
        user: &User,
        headers: &HeaderMap,
    ) -> Result<impl Stream<Item = Result<Value, RpcError>> + Send + use<>, RpcError> {
        let asked: WatchRequest = messages.only().await?;
        let stream = WatchStream {
            events: Events::open(Arc::clone(&self.sandbox), asked, user).await?,
            deadline: connect::time_limit(headers)?.map(|limit| Instant::now() + limit),
            ping: ping_interval(headers)?,
            ready: VecDeque::from([json!({ "start": {} })]),
            failed: false,
        };
        Ok(futures::stream::unfold(stream, |mut stream| async move { Some((stream.next().await?, stream)) }))
    }

    pub(super) async fn create_watcher(&self, request: Request<Body>, user: &User) -> Result<Value, RpcError> {
        let asked: WatchRequest = connect::message(request).await?;
        let mut events = Events::open(Arc::clone(&self.sandbox), asked, user).await?;
        let id = format!("{:016x}", crate::core::random::number());
        let waiting = Arc::new(Mutex::new(Waiting::default()));
        let mut table = lock(&self.watchers.table);
        if table.len() >= MAX_WATCHERS {
            let message = format!("there are {MAX_WATCHERS} watchers already; remove one first");
            return Err(RpcError::new(Code::ResourceExhausted, message));
        }
        let shared = Arc::clone(&waiting);
        let task = tokio::spawn(async move {
            loop {
                let next = events.next().await;
                let mut waiting = lock(&shared);
                match next {
                    Ok(new) if waiting.events.len() + new.len() <= MAX_WAITING => waiting.events.extend(new),
                    Ok(_) => {
                        let message = format!("more than {MAX_WAITING} events wait to be fetched, and some are lost");
                        waiting.failed = Some(RpcError::new(Code::ResourceExhausted, message));
                        return;
                    }
                    Err(error) => {
                        waiting.failed = Some(error);
                        return;
                    }
                }
            }
        });
        table.insert(id.clone(), Watcher { waiting, task: task.abort_handle() });
        Ok(json!({ "watcherId": id }))
    }

    /// Hands out the events since the last call.
    pub(super) async fn watcher_events(&self, request: Request<Body>) -> Result<Value, RpcError> {
        let asked: WatcherRequest = connect::message(request).await?;
        let table = lock(&self.watchers.table);
        let watcher = table.get(&asked.watcher_id).ok_or_else(|| unknown(&asked.watcher_id))?;
        let mut waiting = lock(&watcher.waiting);
        let events: Vec<Value> = waiting.events.drain(..).collect();
        match &waiting.failed {
            Some(error) if events.is_empty() => Err(error.clone()),
            _ => Ok(json!({ "events": events })),
        }
    }

    pub(super) async fn remove_watcher(&self, request: Request<Body>) -> Result<Value, RpcError> {
        let asked: WatcherRequest = connect::message(request).await?;
        let removed = lock(&self.watchers.table).remove(&asked.watcher_id);
        removed.map(|_| json!({})).ok_or_else(|| unknown(&asked.watcher_id))
    }
}

fn unknown(id: &str) -> RpcError {
    RpcError::new(Code::NotFound, format!("no watcher {id:?}"))
}

/// The events of one streaming client.
struct WatchStream {
    events: Events,
    deadline: Option<Instant>,
    ping: Duration,
    ready: VecDeque<Value>,
    failed: bool,
}

impl WatchStream {
    async fn next(&mut self) -> Option<Result<Value, RpcError>> {
        loop {
            if self.failed {
                return None;
            }
            if let Some(event) = self.ready.pop_front() {
                return Some(Ok(event));
            }
            let wake = Instant::now() + self.ping;
            let until = self.deadline.map_or(wake, |deadline| deadline.min(wake));
            match tokio::time::timeout_at(until, self.events.next()).await {
                Ok(Ok(events)) => self.ready.extend(events.into_iter().map(|event| json!({ "filesystem": event }))),
                Ok(Err(error)) => {
                    self.failed = true;
                    return Some(Err(error));
                }
                Err(_) if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) => {
                    self.failed = true;
                    return Some(Err(RpcError::new(Code::DeadlineExceeded, "the time limit of this watch is over")));
                }
                Err(_) => return Some(Ok(json!({ "keepalive": {} }))),
            }
        }
    }
}
