//! Sending: deadlines over all attempts, and repetition where it is safe.

use super::{
    Transport,
    refusal::{chain, typed},
};
use crate::{
    Call, ClientError, Payload, Repeat,
    call::{Body, full, streamed},
};
use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper_util::client::legacy::Error as HttpError;
use std::time::{Duration, Instant};

/// Waits before the second and later attempts of a request that may be repeated.
const PAUSES: [Duration; 5] = [
    Duration::from_millis(50),
    Duration::from_millis(300),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
];

impl Transport {
    /// Sends a request. An answer from 400 on is an error unless the call accepts its status.
    pub async fn send(&self, call: Call) -> Result<Response<Incoming>, ClientError> {
        let limit = call.timeout;
        let (operation, accept, raw) = (call.operation.clone(), call.accept, call.raw);
        let mut failed = None;
        let sending = self.send_with_repeats(call, &mut failed);
        let answer = match limit {
            Some(limit) => match tokio::time::timeout(limit, sending).await {
                Ok(answer) => answer?,
                Err(_) => {
                    let (name, after) = (self.inner.name.clone(), limit);
                    // Time that went into attempts that failed: their reason says more than the time.
                    return Err(match failed {
                        Some(message) => ClientError::Disconnected { name, operation, message },
                        None => ClientError::CallTimeout { name, operation, after },
                    });
                }
            },
            None => sending.await?,
        };
        let status = answer.status().as_u16();
        if raw || status < 300 || accept.contains(&status) {
            return Ok(answer);
        }
        Err(self.refused(answer, operation).await)
    }

    /// `failed` holds the reason of the last attempt while the next one has not been sent.
    async fn send_with_repeats(
        &self,
        call: Call,
        failed: &mut Option<String>,
    ) -> Result<Response<Incoming>, ClientError> {
        let begun = Instant::now();
        let Call { method, path, mut headers, mut payload, timeout, mut repeat, operation, trace, port, .. } = call;
        let mut pauses = PAUSES.iter();
        loop {
            // A stream is taken apart for the attempt, whether or not anything of it is sent.
            let one_shot = matches!(payload, Payload::Stream(..));
            let (body, again) = match std::mem::replace(&mut payload, Payload::Empty) {
                Payload::Empty => (full(Bytes::new()), Payload::Empty),
                Payload::Bytes(bytes) => (full(bytes.clone()), Payload::Bytes(bytes)),
                Payload::Stream(stream, length) => {
                    repeat = Repeat::Never;
                    if let Some(length) = length {
                        headers.insert(http::header::CONTENT_LENGTH, HeaderValue::from(length));
                    }
                    (streamed(stream), Payload::Empty)
                }
            };
            payload = again;
            let left = timeout.map(|limit| limit.saturating_sub(begun.elapsed()));
            let request = self.request(&method, &path, headers.clone(), left, trace.as_ref(), port, body).await;
            let (request, hint) = request?;
            let outcome = self.attempt(request, hint.is_some()).await;
            let error = match outcome {
                // The router refused an address that is not the sandbox's any more: nothing was passed on.
                Ok(answer) if answer.status() == 403 && !one_shot && self.hint_is_stale(hint).await => continue,
                Ok(answer) if repeat == Repeat::Harmless && is_passing(answer.status()) => {
                    let Some(pause) = pauses.next() else { return Ok(answer) };
                    tokio::time::sleep(*pause).await;
                    continue;
                }
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let unsent = error.is_connect();
            let message = chain(&error);
            let (name, operation) = (self.inner.name.clone(), operation.clone());
            if !unsent && repeat == Repeat::Never {
                return Err(ClientError::OutcomeUnknown { name, operation, message });
            }
            let pause = if one_shot { None } else { pauses.next() };
            match pause {
                Some(pause) => {
                    *failed = Some(message);
                    tokio::time::sleep(*pause).await;
                }
                None => return Err(typed(error).unwrap_or(ClientError::Disconnected { name, operation, message })),
            }
        }
    }

    /// Whether the API now names another address than the one that was sent.
    async fn hint_is_stale(&self, sent: Option<String>) -> bool {
        sent.is_some() && self.pod_ip().await != sent
    }

    async fn attempt(&self, request: Request<Body>, hinted: bool) -> Result<Response<Incoming>, HttpError> {
        let sent = self.inner.links.http.request(request).await;
        let stale = match &sent {
            // A router refuses an address that is not the sandbox's own any more.
            Ok(answer) => answer.status().is_server_error() || (hinted && answer.status() == 403),
            Err(_) => true,
        };
        if stale {
            self.forget();
        }
        sent
    }
}

/// Statuses that a router or an overloaded daemon answers with for a while.
fn is_passing(status: StatusCode) -> bool {
    matches!(status.as_u16(), 500 | 502 | 503 | 504)
}
