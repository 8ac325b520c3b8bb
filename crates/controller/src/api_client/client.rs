//! The API as reconcilers see it: what they may send and read, and which errors can come back.
//!
//! A reconciler writes through a [`Writer`], which sends the request on its lane, overlays the response on the store
//! before another pass can act on older data, and keeps the writer's own change from waking the writer.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;

use crate::{
    api_client::{Request, Verb},
    cache::{Key, Kind, Object, Store, WorkItem},
};

/// The connections that a request uses, so that refill never queues in front of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Claims and their Sandboxes: a user is waiting.
    Claims,
    /// Pods, PVCs, Services and status.
    Core,
    /// Filling and trimming pools.
    Refill,
}

/// Why a request failed.
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
    /// Rejected before processing (429).
    #[error("the API server is busy: {message}")]
    Busy { message: String, retry_after: Option<Duration> },
    /// The request may or may not have been executed.
    #[error("the outcome is unknown: {message}")]
    Unknown { message: String },
    /// Not sent: this process does not hold the lease, or cannot be sure that it does.
    #[error("not the leader")]
    NotLeader,
}

impl ApiError {
    /// Whether the API server certainly did not execute the request.
    pub fn is_definite(&self) -> bool {
        !matches!(self, ApiError::Unknown { .. })
    }

    /// The error text without the parts that differ from attempt to attempt: every new text in a condition would cause
    /// a status write, an event and a new attempt.
    pub fn stable_text(&self) -> String {
        match self {
            ApiError::Unknown { .. } => "the API server did not answer properly".to_owned(),
            ApiError::Busy { .. } => "the API server is busy".to_owned(),
            other => other.to_string(),
        }
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
pub trait ApiClient: Send + Sync + 'static {
    /// Sends a write. Returns the object as it is now, or `None` when it was deleted or is of a kind that is not
    /// cached.
    async fn send(&self, lane: Lane, request: &Request) -> Result<Option<Object>, ApiError>;

    /// A live, consistent read.
    async fn read(&self, lane: Lane, kind: Kind, key: &Key) -> Result<Option<Object>, ApiError>;
}

/// Sends the writes of one reconcile pass.
#[derive(Clone)]
pub struct Writer {
    api: Arc<dyn ApiClient>,
    store: Arc<Store>,
    lane: Lane,
    origin: WorkItem,
}

impl Writer {
    pub fn new(api: Arc<dyn ApiClient>, store: Arc<Store>, lane: Lane, origin: WorkItem) -> Self {
        Self { api, store, lane, origin }
    }

    /// The same writer on another lane.
    pub fn on(&self, lane: Lane) -> Self {
        Self { lane, ..self.clone() }
    }

    /// Sends a request and overlays the response on the store.
    pub async fn send(&self, request: &Request) -> Result<Option<Object>, ApiError> {
        let response = self.api.send(self.lane, request).await;
        match &response {
            Ok(Some(object)) => self.store.apply_response(object, &self.origin),
            Ok(None) => {
                if let (Verb::Delete { .. }, Some(uid)) = (&request.verb, request.uid()) {
                    self.store.forget(request.kind, &request.key, uid, &self.origin);
                }
            }
            // The object with this uid is gone, whatever the cache says.
            Err(ApiError::NotFound { .. }) => {
                if let Some(uid) = request.uid() {
                    self.store.forget(request.kind, &request.key, uid, &self.origin);
                }
            }
            Err(_) => {}
        }
        response
    }

    /// Reads an object live and applies it to the store.
    pub async fn read(&self, kind: Kind, key: &Key) -> Result<Option<Object>, ApiError> {
        let response = self.api.read(self.lane, kind, key).await;
        if let Ok(Some(object)) = &response {
            self.store.observe_read(object, &self.origin);
        }
        response
    }
}
