//! The ways out: what reconcilers may ask of the API, and what can come back.
//!
//! A reconciler writes through a [`Writer`], which sends the request on its lane, overlays the answer on the store before anybody else can
//! act on older knowledge, and keeps the writer's own change from waking the writer.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;

use crate::{
    object::{Key, Kind, Object},
    request::{Request, Verb},
    store::{Store, Wake},
};

/// Which connection a request travels on, so that refill never queues in front of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Claims and their Sandboxes: somebody is waiting.
    Claims,
    /// Pods, PVCs, Services and status.
    Core,
    /// Filling and trimming pools.
    Refill,
}

/// Why the API did not do what was asked.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum ApiError {
    #[error("{message}")]
    NotFound { message: String },
    /// The precondition failed, or the object changed meanwhile.
    #[error("{message}")]
    Conflict { message: String },
    #[error("{message}")]
    AlreadyExists { message: String },
    /// The request can never succeed as it is.
    #[error("{message}")]
    Invalid { message: String },
    /// Refused by authorisation, quota or admission.
    #[error("{message}")]
    Forbidden { message: String },
    /// Turned away before it was looked at.
    #[error("the API server is busy: {message}")]
    Busy { message: String, retry_after: Option<Duration> },
    /// The request may or may not have been carried out.
    #[error("the outcome is unknown: {message}")]
    Unknown { message: String },
    /// Not sent: this process does not hold the lease, or cannot be sure that it does.
    #[error("not the leader")]
    NotLeader,
}

impl ApiError {
    /// Whether the API certainly did not carry the request out.
    pub fn is_definite(&self) -> bool {
        !matches!(self, ApiError::Unknown { .. })
    }

    /// The error for an HTTP status that is not a success.
    pub fn from_status(code: u16, reason: &str, message: String, retry_after: Option<Duration>) -> Self {
        match (code, reason) {
            (404, _) => ApiError::NotFound { message },
            (409, "AlreadyExists") => ApiError::AlreadyExists { message },
            (409, _) => ApiError::Conflict { message },
            (422, _) | (400, _) | (413, _) => ApiError::Invalid { message },
            (401 | 403, _) => ApiError::Forbidden { message },
            (429, _) => ApiError::Busy { message, retry_after },
            _ => ApiError::Unknown { message },
        }
    }
}

/// The API, as far as reconcilers need it.
#[async_trait]
pub trait Ports: Send + Sync + 'static {
    /// Sends a write. The answer carries the object as it is now, or nothing when it is gone (or of a kind that is not cached).
    async fn send(&self, lane: Lane, request: &Request) -> Result<Option<Object>, ApiError>;

    /// A live, consistent read.
    async fn read(&self, lane: Lane, kind: Kind, key: &Key) -> Result<Option<Object>, ApiError>;
}

/// One reconcile pass's way to write.
#[derive(Clone)]
pub struct Writer {
    ports: Arc<dyn Ports>,
    store: Arc<Store>,
    lane: Lane,
    origin: Wake,
}

impl Writer {
    pub fn new(ports: Arc<dyn Ports>, store: Arc<Store>, lane: Lane, origin: Wake) -> Self {
        Self { ports, store, lane, origin }
    }

    /// The same writer on another lane.
    pub fn on(&self, lane: Lane) -> Self {
        Self { lane, ..self.clone() }
    }

    /// Sends a request and overlays the answer on the store.
    pub async fn send(&self, request: &Request) -> Result<Option<Object>, ApiError> {
        let answer = self.ports.send(self.lane, request).await;
        match &answer {
            Ok(Some(object)) => self.store.apply_answer(object, &self.origin),
            Ok(None) => {
                if let (Verb::Delete { .. }, Some(uid)) = (&request.verb, request.uid()) {
                    self.store.forget(request.kind, &request.key, uid, &self.origin);
                }
            }
            // The object we meant is gone, whatever the cache says.
            Err(ApiError::NotFound { .. }) => {
                if let Some(uid) = request.uid() {
                    self.store.forget(request.kind, &request.key, uid, &self.origin);
                }
            }
            Err(_) => {}
        }
        answer
    }

    /// Reads an object live and takes it into the store.
    pub async fn read(&self, kind: Kind, key: &Key) -> Result<Option<Object>, ApiError> {
        let answer = self.ports.read(self.lane, kind, key).await;
        if let Ok(Some(object)) = &answer {
            self.store.observe_read(object, &self.origin);
        }
        answer
    }
}
