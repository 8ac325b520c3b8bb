//! The service `filesystem.Filesystem`: describe, list, make, move, remove and watch.

use std::ops::ControlFlow;
use std::sync::Arc;

use http::{HeaderMap, Request, Response};
use rustix::fs::renameat;
use rustix::io::Errno;
use serde::Deserialize;
use serde_json::{Value, json};

use super::connect::{self, Code, Messages, RpcError};
use super::entry::{Entry, describe};
use super::{Envd, User};
use crate::core::files::owned::make_directories;
use crate::core::files::tree::{remove, visit_to_depth};
use crate::core::files::{FileError, Follow, Located, blocking};
use crate::core::paths::RelPath;
use crate::core::processes::users::Names;
use crate::http_io::body::Body;

/// Maximum number of entries in one listing.
const MAX_ENTRIES: usize = 100_000;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PathRequest {
    path: String,
    depth: u32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MoveRequest {
    source: String,
    destination: String,
}

impl Envd {
    pub(super) async fn filesystem_call(self: Arc<Self>, name: &str, request: Request<Body>) -> Response<Body> {
        let headers = request.headers().clone();
        let user = User::of_request(&self.sandbox, &self.settings, &headers);
        if name == "WatchDir" {
            return match user {
                Ok(user) => self.watch_dir(Messages::new(request.into_body()), &user, &headers).await,
                Err(error) => RpcError::from(error).into_stream_response(),
            };
        }
        connect::unary(match user {
            Ok(user) => self.answer(name, request, user).await,
            Err(error) => Err(error.into()),
        })
    }

    async fn answer(self: Arc<Self>, name: &str, request: Request<Body>, user: User) -> Result<Value, RpcError> {
        match name {
            "Move" => self.rename(connect::message(request).await?, &user).await,
            "CreateWatcher" => self.create_watcher(request, &user).await,
            "GetWatcherEvents" => self.watcher_events(request).await,
            "RemoveWatcher" => self.remove_watcher(request).await,
            _ => {
                let asked: PathRequest = connect::message(request).await?;
                let path = user.resolve(&self.sandbox, &asked.path)?;
                match name {
                    "Stat" => self.stat(asked.path, path).await,
                    "ListDir" => self.list_dir(asked, path).await,
                    "MakeDir" => self.make_dir(asked.path, path, &user).await,
                    _ => self.remove(asked.path, path).await,
                }
            }
        }
    }

    /// Runs file work on a blocking thread; `given` is the path that its errors name.
    async fn files<T, F>(&self, given: String, work: F) -> Result<T, RpcError>
    where
        T: Send + 'static,
        F: FnOnce(&crate::core::Sandbox) -> Result<T, FileError> + Send + 'static,
    {
        let sandbox = Arc::clone(&self.sandbox);
        blocking(move || work(&sandbox)).await.map_err(|error| RpcError::of_file(&given, &error))
    }

    async fn stat(&self, given: String, path: RelPath) -> Result<Value, RpcError> {
        let entry = self.files(given, move |sandbox| existing(sandbox, &path)).await?;
        Ok(json!({ "entry": entry }))
    }

    async fn list_dir(&self, asked: PathRequest, path: RelPath) -> Result<Value, RpcError> {
        let depth = usize::try_from(asked.depth.max(1)).unwrap_or(usize::MAX);
        let given = asked.path.clone();
        let listed = self
            .files(asked.path, move |sandbox| {
                let located = sandbox.paths.root().locate(&path, Follow::Link)?;
                if located.exists() && !located.is_directory() {
                    return Ok(None);
                }
                let names = Names::read();
                let mut entries: Vec<Entry> = Vec::new();
                visit_to_depth(&located.open_directory()?, depth, |found| {
                    // An entry that vanishes meanwhile is left out.
                    if let Ok(Some(entry)) = describe(sandbox, &path.join(found.path), &names) {
                        entries.push(entry);
                    }
                    let full = entries.len() > MAX_ENTRIES;
                    Ok(if full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
                })?;
                Ok(Some(entries))
            })
            .await?;
        match listed {
            None => Err(RpcError::invalid(format!("{given:?} is not a directory"))),
            Some(entries) if entries.len() > MAX_ENTRIES => {
                let message = format!("{given:?} has more than {MAX_ENTRIES} entries; list with a smaller depth");
                Err(RpcError::new(Code::ResourceExhausted, message))
            }
            Some(entries) => Ok(json!({ "entries": entries })),
        }
    }

    async fn make_dir(&self, given: String, path: RelPath, user: &User) -> Result<Value, RpcError> {
        let owner = user.owner();
        let named = given.clone();
        let made = self
            .files(given, move |sandbox| {
                let root = sandbox.paths.root();
                match make_directories(root, &path, owner) {
                    Ok(true) => existing(sandbox, &path).map(Ok),
                    Ok(false) => Ok(Err(Code::AlreadyExists)),
                    Err(FileError::Os(Errno::NOTDIR)) => Ok(Err(Code::InvalidArgument)),
                    Err(error) => Err(error),
                }
            })
            .await?;
        match made {
            Ok(entry) => Ok(json!({ "entry": entry })),
            Err(Code::AlreadyExists) => {
                Err(RpcError::new(Code::AlreadyExists, format!("{named:?}: the directory exists already")))
            }
            Err(code) => Err(RpcError::new(code, format!("{named:?}: the path, or a part of it, is a file"))),
        }
    }

    async fn rename(&self, asked: MoveRequest, user: &User) -> Result<Value, RpcError> {
        let source = user.resolve(&self.sandbox, &asked.source)?;
        let destination = user.resolve(&self.sandbox, &asked.destination)?;
        let Some((_, parents)) = destination.components().split_last() else {
            return Err(RpcError::invalid("the destination is the root directory"));
        };
        let parent = parents.iter().fold(RelPath::default(), |at, part| at.child(part.clone()));
        let owner = user.owner();
        let given = format!("{} -> {}", asked.source, asked.destination);
        let entry = self
            .files(given, move |sandbox| {
                let root = sandbox.paths.root();
                let from = root.locate(&source, Follow::Never)?;
                let Located::Entry { parent: from_parent, name: from_name, stat: Some(_) } = &from else {
                    return Err(FileError::Os(if from.exists() { Errno::BUSY } else { Errno::NOENT }));
                };
                make_directories(root, &parent, owner)?;
                let Located::Entry { parent, name, .. } = root.locate(&destination, Follow::Never)? else {
                    return Err(FileError::Os(Errno::BUSY));
                };
                renameat(from_parent, from_name, &parent, &name)?;
                existing(sandbox, &destination)
            })
            .await?;
        Ok(json!({ "entry": entry }))
    }

    async fn remove(&self, given: String, path: RelPath) -> Result<Value, RpcError> {
        self.files(given, move |sandbox| match sandbox.paths.root().locate(&path, Follow::Never) {
            Ok(located) if located.exists() => remove(&located, true),
            Ok(_) => Ok(()),
            Err(error) if error.is_missing() => Ok(()),
            Err(error) => Err(error),
        })
        .await?;
        Ok(json!({}))
    }

    async fn watch_dir(&self, messages: Messages, user: &User, headers: &HeaderMap) -> Response<Body> {
        match self.open_watch_stream(messages, user, headers).await {
            Ok(events) => connect::respond(connect::responses(events)),
            Err(error) => error.into_stream_response(),
        }
    }
}

fn existing(sandbox: &crate::core::Sandbox, path: &RelPath) -> Result<Entry, FileError> {
    describe(sandbox, path, &Names::read())?.ok_or(FileError::Os(Errno::NOENT))
}
