//! Ports that stop every request until the script says what becomes of it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::invariants;
use crate::{
    model::Model,
    object::{Key, Kind, Object},
    ports::{ApiError, Lane, Ports},
    request::Request,
};

pub(super) enum Asked {
    Write(Request),
    Read(Kind, Key),
}

pub(super) struct Waiting {
    pub(super) asked: Asked,
    answer: oneshot::Sender<Result<Option<Object>, ApiError>>,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Answered,
    /// Carried out, but the answer never arrives.
    AnswerLost,
    /// Never arrived at all, which looks the same.
    RequestLost,
}

/// One process's connection to the API.
pub(super) struct Turnstile {
    model: Arc<Model>,
    open: AtomicBool,
    waiting: Mutex<Vec<Waiting>>,
}

impl Turnstile {
    pub(super) fn new(model: Arc<Model>) -> Arc<Self> {
        Arc::new(Self { model, open: AtomicBool::new(false), waiting: Mutex::default() })
    }

    /// From now on every request is answered at once.
    pub(super) fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.lock().len()
    }

    /// Decides the fate of one waiting request.
    pub(super) async fn decide(&self, which: usize, fate: Fate) {
        let waiting = {
            let mut all = self.waiting.lock();
            if all.is_empty() {
                return;
            }
            let which = which % all.len();
            all.remove(which)
        };
        let lost = || Err(ApiError::Unknown { message: "connection reset".into() });
        let answer = match fate {
            Fate::RequestLost => lost(),
            Fate::Answered => self.carry_out(&waiting.asked).await,
            Fate::AnswerLost => {
                let _ = self.carry_out(&waiting.asked).await;
                lost()
            }
        };
        let _ = waiting.answer.send(answer);
    }

    /// The process dies: what it had sent may still arrive.
    pub(super) fn abandon(&self) -> Vec<Request> {
        let left = std::mem::take(&mut *self.waiting.lock());
        left.into_iter()
            .filter_map(|waiting| match waiting.asked {
                Asked::Write(request) => Some(request),
                Asked::Read(..) => None,
            })
            .collect()
    }

    async fn carry_out(&self, asked: &Asked) -> Result<Option<Object>, ApiError> {
        match asked {
            Asked::Write(request) => {
                invariants::check_request(&self.model, request);
                self.model.send(Lane::Core, request).await
            }
            Asked::Read(kind, key) => self.model.read(Lane::Core, *kind, key).await,
        }
    }

    async fn ask(&self, asked: Asked) -> Result<Option<Object>, ApiError> {
        if self.open.load(Ordering::SeqCst) {
            return self.carry_out(&asked).await;
        }
        let (answer, answered) = oneshot::channel();
        self.waiting.lock().push(Waiting { asked, answer });
        match answered.await {
            Ok(answer) => answer,
            // The process is gone; its passes are being dropped.
            Err(_) => std::future::pending().await,
        }
    }
}

#[async_trait]
impl Ports for Turnstile {
    async fn send(&self, _: Lane, request: &Request) -> Result<Option<Object>, ApiError> {
        self.ask(Asked::Write(request.clone())).await
    }

    async fn read(&self, _: Lane, kind: Kind, key: &Key) -> Result<Option<Object>, ApiError> {
        self.ask(Asked::Read(kind, key.clone())).await
    }
}
