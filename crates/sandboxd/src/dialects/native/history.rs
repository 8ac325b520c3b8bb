//! Commands that have ended: list, read the output of one, add one that ran beside the daemon (`kubectl exec`).

use agent_sandbox_protocol::history::{Entry, History, OUTPUT_LIMIT};
use agent_sandbox_protocol::native::ErrorCode;
use http::{Request, Response, StatusCode};

use super::error::ApiError;
use super::routes::Query;
use super::{Native, json_body};
use crate::http_io::body::{self, Body};

/// Maximum size of an entry: both streams, with every character escaped.
const MAX_REQUEST: usize = 1 << 20;

impl Native {
    /// The last `limit` commands.
    pub(super) fn list_history(&self, query: &Query) -> Result<Response<Body>, ApiError> {
        let limit = query.number("limit", usize::MAX)?;
        Ok(body::json(StatusCode::OK, &History { entries: self.sandbox.history.list(limit) }))
    }

    pub(super) fn history_entry(&self, id: i32) -> Result<Response<Body>, ApiError> {
        let unknown = || ApiError::new(ErrorCode::NotFound, format!("no command {id} in the history"));
        self.sandbox.history.get(id).map(|entry| body::json(StatusCode::OK, &entry)).ok_or_else(unknown)
    }

    /// Adds a command. What it may hold is limited as for other commands.
    pub(super) async fn add_history(&self, request: Request<Body>) -> Result<Response<Body>, ApiError> {
        let given: Entry = json_body::read(request, MAX_REQUEST).await?;
        if [&given.stdout, &given.stderr].into_iter().flatten().any(|text| text.len() > MAX_TEXT) {
            return Err(ApiError::invalid(format!("stdout and stderr may have {MAX_TEXT} bytes each")));
        }
        if given.started_at.len() > MAX_TIME {
            return Err(ApiError::invalid("startedAt is not a time of RFC 3339"));
        }
        let argv = Entry::started(&given.argv, String::new()).argv;
        self.sandbox.history.add(Entry { argv, ..given });
        Ok(body::empty(StatusCode::NO_CONTENT))
    }
}

/// Length of a time with nanoseconds.
const MAX_TIME: usize = 35;

/// Bytes that are not UTF-8 take three bytes each, and a line tells how many were left out.
const MAX_TEXT: usize = 3 * OUTPUT_LIMIT + 128;
