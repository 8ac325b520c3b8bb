//! A client that records every request it sends, for tests that count writes.

use std::sync::{Arc, Mutex, PoisonError};

use kube::{Client, client::Body};

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    pub method: String,
    pub path: String,
    pub status: u16,
}

impl Sent {
    pub fn is_write(&self) -> bool {
        self.method != "GET"
    }
}

/// The requests that a recorded client has sent.
#[derive(Clone, Default)]
pub struct Recorder(Arc<Mutex<Vec<Sent>>>);

impl Recorder {
    /// Wraps `inner`; the returned client's requests are recorded.
    pub fn wrap(inner: Client) -> (Client, Self) {
        let recorder = Self::default();
        let notes = recorder.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (inner, notes) = (inner.clone(), notes.clone());
            async move {
                let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
                let response = inner.send(request).await;
                let status = response.as_ref().map_or(0, |response| response.status().as_u16());
                notes.note(Sent { method, path, status });
                response
            }
        });
        (Client::new(service, "default"), recorder)
    }

    fn note(&self, sent: Sent) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(sent);
    }

    /// The writes so far, oldest first.
    pub fn writes(&self) -> Vec<Sent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().filter(|sent| sent.is_write()).cloned().collect()
    }

    /// Forgets the recorded requests.
    pub fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
