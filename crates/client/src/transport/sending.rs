//! Sending of requests: a deadline over all attempts, and retries where they are safe.

use super::{
    Transport,
    error_response::{client_error_in, error_chain},
};
use crate::{
    Call, ClientError, Payload, Retry,
    call::{Body, full, streamed},
};
use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper_util::client::legacy::Error as HttpError;
use std::time::{Duration, Instant};

/// Delays before the second and later attempts of a request.
const BACKOFF: [Duration; 5] = [
    Duration::from_millis(50),
    Duration::from_millis(300),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
];

impl Transport {
    /// Sends a request. A status from 300 on is an error unless the call accepts it.
    pub async fn send(&self, call: Call) -> Result<Response<Incoming>, ClientError> {
        let limit = call.timeout;
        let (operation, accept, raw) = (call.operation.clone(), call.accept, call.raw);
        let mut failed = None;
        let sending = self.send_with_retries(call, &mut failed);
        let response = match limit {
            Some(limit) => match tokio::time::timeout(limit, sending).await {
                Ok(response) => response?,
                Err(_) => {
                    let (name, after) = (self.inner.name.clone(), limit);
                    // If attempts failed meanwhile, their error is more useful than the timeout.
                    return Err(match failed {
                        Some(message) => ClientError::Disconnected { name, operation, message },
                        None => ClientError::CallTimeout { name, operation, after },
                    });
                }
            },
            None => sending.await?,
        };
        let status = response.status().as_u16();
        if raw || status < 300 || accept.contains(&status) {
            return Ok(response);
        }
        Err(self.error_from_response(response, operation).await)
    }

    /// Sends a request with retries. `failed` is set to the error of the last failed attempt.
    async fn send_with_retries(
        &self,
        call: Call,
        failed: &mut Option<String>,
    ) -> Result<Response<Incoming>, ClientError> {
        let begun = Instant::now();
        let Call { method, path, mut headers, mut payload, timeout, mut retry, operation, trace, port, .. } = call;
        let mut pauses = BACKOFF.iter();
        loop {
            // A stream is consumed by the attempt, whether or not anything of it is sent.
            let one_shot = matches!(payload, Payload::Stream(..));
            let (body, again) = match std::mem::replace(&mut payload, Payload::Empty) {
                Payload::Empty => (full(Bytes::new()), Payload::Empty),
                Payload::Bytes(bytes) => (full(bytes.clone()), Payload::Bytes(bytes)),
                Payload::Stream(stream, length) => {
                    retry = Retry::Never;
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
                // The router refused an outdated Pod IP hint and did not forward the request.
                Ok(response) if response.status() == 403 && !one_shot && self.hint_is_stale(hint).await => continue,
                Ok(response) if retry == Retry::Safe && is_transient(response.status()) => {
                    let Some(pause) = pauses.next() else { return Ok(response) };
                    tokio::time::sleep(*pause).await;
                    continue;
                }
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            let unsent = error.is_connect();
            let message = error_chain(&error);
            let (name, operation) = (self.inner.name.clone(), operation.clone());
            if !unsent && retry == Retry::Never {
                return Err(ClientError::OutcomeUnknown { name, operation, message });
            }
            let pause = if one_shot { None } else { pauses.next() };
            match pause {
                Some(pause) => {
                    *failed = Some(message);
                    tokio::time::sleep(*pause).await;
                }
                None => {
                    return Err(client_error_in(error).unwrap_or(ClientError::Disconnected {
                        name,
                        operation,
                        message,
                    }));
                }
            }
        }
    }

    /// True if the API now returns an address other than the one that was sent.
    async fn hint_is_stale(&self, sent: Option<String>) -> bool {
        sent.is_some() && self.pod_ip().await != sent
    }

    async fn attempt(&self, request: Request<Body>, hinted: bool) -> Result<Response<Incoming>, HttpError> {
        let sent = self.inner.pools.http.request(request).await;
        let stale = match &sent {
            // A router refuses an outdated Pod IP hint with 403.
            Ok(response) => response.status().is_server_error() || (hinted && response.status() == 403),
            Err(_) => true,
        };
        if stale {
            self.clear_addresses();
        }
        sent
    }
}

/// True for status codes with which a router or an overloaded daemon responds temporarily.
fn is_transient(status: StatusCode) -> bool {
    matches!(status.as_u16(), 500 | 502 | 503 | 504)
}
