//! The events of a watch: a cursor into a collection's history, filtered, in the version that the client requested.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use rand::RngExt as _;
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

use crate::{
    convert::View,
    registry::Endpoint,
    request::ListOptions,
    selectors::Filter,
    server::Core,
    status::ApiError,
    store::{Collection, Event, EventKind, Stored},
};

/// Maximum number of events that are read from the history at once.
const BATCH: usize = 256;
/// Interval of bookmarks in a watch without events.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);
/// Minimum timeout of a watch without `timeoutSeconds`. A random time up to the same is added (30 to 60 minutes in
/// all), so that clients do not all reconnect at once.
const DEFAULT_TIMEOUT_SECONDS: u64 = 1800;

/// Where a watch starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// At the current objects; with `bookmark`, a bookmark marks the end of these initial events.
    Initial { bookmark: bool },
    /// At the first change after a resourceVersion.
    After(u64),
    /// At the next change.
    Now,
}

/// One event for the client.
pub struct WatchEvent {
    pub kind: &'static str,
    pub object: View,
}

/// The events of a watch, one batch at a time. It ends at its deadline, or with an `ERROR` event.
pub struct WatchEvents {
    core: Arc<Core>,
    pub endpoint: Endpoint,
    filter: Filter,
    collection: Arc<Collection>,
    source: Source,
    /// All events up to this resourceVersion were delivered or filtered out.
    cursor: u64,
    ready: VecDeque<Event>,
    initial: VecDeque<Arc<Stored>>,
    bookmark_initial: bool,
    bookmarks: bool,
    next_bookmark: Instant,
    deadline: Instant,
    /// Ends the watch before its first event.
    failure: Option<Box<ApiError>>,
    ended: bool,
}

enum Source {
    History(watch::Receiver<u64>),
    /// The events of a single object.
    Object(mpsc::Receiver<Event>),
}

impl WatchEvents {
    pub(crate) fn start(
        core: Arc<Core>,
        endpoint: Endpoint,
        filter: Filter,
        start: Start,
        options: &ListOptions,
    ) -> Result<Self, ApiError> {
        let collection = core.store.collection(&endpoint.resource.storage);
        // Subscribe before reading, so that no event between the two is missed.
        let source = match filter.only() {
            Some(key) => Source::Object(collection.subscribe_object(&key)),
            None => Source::History(collection.subscribe()),
        };
        let now = core.store.version().max(collection.version());
        let mut initial = VecDeque::new();
        let cursor = match start {
            Start::Initial { .. } => {
                let (at, objects) = collection.list_with_version(&filter);
                initial = objects.into();
                at
            }
            Start::After(version) => version,
            Start::Now => now,
        };
        let mut ready = VecDeque::new();
        let mut failure = None;
        if let Start::After(version) = start {
            let wanted = if matches!(source, Source::Object(_)) { usize::MAX } else { 0 };
            match collection.since(version, wanted) {
                Ok(events) => ready = events.into(),
                // As in Kubernetes, the watch starts, and its only event says that the version is too old.
                Err(error) => failure = Some(Box::new(expired(version, error.oldest))),
            }
        }
        let timeout = options
            .timeout_seconds
            .filter(|s| *s > 0)
            .unwrap_or_else(|| DEFAULT_TIMEOUT_SECONDS + rand::rng().random_range(0..DEFAULT_TIMEOUT_SECONDS));
        Ok(Self {
            core,
            endpoint,
            filter,
            collection,
            source,
            cursor,
            ready,
            initial,
            bookmark_initial: matches!(start, Start::Initial { bookmark: true }),
            bookmarks: options.bookmarks,
            next_bookmark: Instant::now() + BOOKMARK_INTERVAL,
            deadline: Instant::now() + Duration::from_secs(timeout),
            failure,
            ended: false,
        })
    }

    /// The next events, at least one; `None` when the watch has ended.
    pub async fn next(&mut self) -> Option<Vec<WatchEvent>> {
        while !self.ended {
            let mut out = Vec::new();
            match self.fill(&mut out).await {
                Ok(()) => {}
                Err(error) => {
                    self.ended = true;
                    out.push(WatchEvent { kind: "ERROR", object: View::Value(Arc::new(error.to_value())) });
                }
            }
            if !out.is_empty() {
                return Some(out);
            }
        }
        None
    }

    async fn fill(&mut self, out: &mut Vec<WatchEvent>) -> Result<(), ApiError> {
        if let Some(error) = self.failure.take() {
            return Err(*error);
        }
        while let Some(object) = self.initial.pop_front() {
            let object = self.core.conversions.view(&self.endpoint, &object).await?;
            out.push(WatchEvent { kind: "ADDED", object });
            if out.len() == BATCH {
                return Ok(());
            }
        }
        if std::mem::take(&mut self.bookmark_initial) {
            out.push(self.bookmark(true));
        }
        if self.ready.is_empty() && matches!(self.source, Source::History(_)) {
            self.ready = self.collection.since(self.cursor, BATCH).map_err(|e| expired(self.cursor, e.oldest))?.into();
        }
        while let Some(event) = self.ready.pop_front() {
            self.deliver(event, out).await?;
        }
        if out.is_empty() { self.wait(out).await } else { Ok(()) }
    }

    async fn deliver(&mut self, event: Event, out: &mut Vec<WatchEvent>) -> Result<(), ApiError> {
        if event.version() <= self.cursor {
            return Ok(());
        }
        self.cursor = event.version();
        let now = event.kind != EventKind::Deleted && self.filter.matches(&event.object);
        let before = event.previous.as_ref().is_some_and(|p| self.filter.matches(p));
        let kind = match (before, now) {
            (false, false) => return Ok(()),
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
        };
        // An object that no longer matches is sent in its last matching state, with the resourceVersion of this event.
        let shown = match (&event.previous, kind) {
            (Some(previous), "DELETED") if event.kind != EventKind::Deleted => {
                Arc::new(previous.at_version(event.version()))
            }
            _ => event.object,
        };
        let object = self.core.conversions.view(&self.endpoint, &shown).await?;
        out.push(WatchEvent { kind, object });
        Ok(())
    }

    /// Waits for a change, the next bookmark or the deadline.
    async fn wait(&mut self, out: &mut Vec<WatchEvent>) -> Result<(), ApiError> {
        let bookmark_at = if self.bookmarks { self.next_bookmark } else { self.deadline };
        let until = bookmark_at.min(self.deadline);
        let closed = match &mut self.source {
            Source::History(wake) => tokio::select! {
                changed = wake.changed() => changed.is_err(),
                () = tokio::time::sleep_until(until) => { self.tick(out); false }
            },
            Source::Object(events) => tokio::select! {
                event = events.recv() => match event {
                    Some(event) => { self.ready.push_back(event); false }
                    None => return Err(expired(self.cursor, self.core.store.version())),
                },
                () = tokio::time::sleep_until(until) => { self.tick(out); false }
            },
        };
        self.ended |= closed;
        Ok(())
    }

    fn tick(&mut self, out: &mut Vec<WatchEvent>) {
        let now = Instant::now();
        if self.bookmarks {
            out.push(self.bookmark(false));
            self.next_bookmark = now + BOOKMARK_INTERVAL;
        }
        self.ended = now >= self.deadline;
    }

    fn bookmark(&mut self, initial_end: bool) -> WatchEvent {
        // A watch that waits has processed all events that its collection has published.
        let version = if initial_end { self.cursor } else { self.cursor.max(self.collection.version()) };
        let mut metadata = json!({ "resourceVersion": version.to_string() });
        if initial_end {
            metadata["annotations"] = json!({ "k8s.io/initial-events-end": "true" });
        }
        let object: Value = json!({
            "kind": self.endpoint.resource.kind,
            "apiVersion": self.endpoint.api_version(),
            "metadata": metadata,
        });
        WatchEvent { kind: "BOOKMARK", object: View::Value(Arc::new(object)) }
    }
}

fn expired(wanted: u64, oldest: u64) -> ApiError {
    ApiError::expired(format!("too old resource version: {wanted} ({oldest})"))
}
