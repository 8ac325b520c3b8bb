//! Keeps the store up to date: list once, then watch, and list again only when the API server no longer has the
//! history.
//!
//! After an error the reflector retries with bounded backoff; the cache stays as it was meanwhile. An idle watch costs
//! nothing.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt, pin_mut};
use kube::{
    Client,
    api::{ListParams, WatchEvent, WatchParams},
    core::request::Request,
};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::cache::{CacheUpdate, Cached, Store};

/// Page size of list requests, so that no response holds the whole cluster.
const PAGE: u32 = 500;
/// Duration of one watch request in seconds. Servers may choose a shorter one.
const WATCH_SECONDS: u32 = 290;
/// How much longer than its duration a watch may be silent before the connection counts as dead.
const WATCH_GRACE: Duration = Duration::from_secs(10);
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// Which objects of a kind to watch.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// One namespace, or all.
    pub namespace: Option<String>,
    /// Only objects that carry this label.
    pub label: Option<&'static str>,
}

impl Scope {
    fn requests<K: Cached>(&self) -> Request {
        Request::new(match &self.namespace {
            Some(namespace) => K::KIND_OF.path(namespace),
            None => K::KIND_OF.path_everywhere(),
        })
    }
}

/// Keeps the store's cache of `K` up to date until `stop` is cancelled.
pub async fn reflect<K: Cached>(client: Client, scope: Scope, store: Arc<Store>, stop: CancellationToken) {
    let mut failures = 0;
    while !stop.is_cancelled() {
        let outcome = tokio::select! {
            outcome = list_and_watch::<K>(&client, &scope, &store, &mut failures) => outcome,
            () = stop.cancelled() => return,
        };
        if let Err(error) = outcome {
            warn!(kind = K::KIND_OF.name(), %error, "Watch interrupted");
            tokio::select! {
                () = tokio::time::sleep(jittered(pause_after(failures, &error))) => {}
                () = stop.cancelled() => return,
            }
            failures = failures.saturating_add(1);
        }
    }
}

/// Maximum delay before the next attempt: exponential, and not shorter than the API server asked for.
fn pause_after(failures: u32, error: &kube::Error) -> Duration {
    let asked = match error {
        kube::Error::Api(status) => status.details.as_ref().map_or(0, |details| details.retry_after_seconds),
        _ => 0,
    };
    let asked = Duration::from_secs(asked.into());
    FIRST_BACKOFF.saturating_mul(2_u32.saturating_pow(failures)).max(asked * 2).min(MAX_BACKOFF)
}

/// Between half and all of the delay, so that several reflectors do not retry in step.
fn jittered(delay: Duration) -> Duration {
    delay.mul_f64(rand::random_range(0.5..=1.0))
}

/// Lists once, then watches for as long as the API can continue from where the last watch ended.
async fn list_and_watch<K: Cached>(
    client: &Client,
    scope: &Scope,
    store: &Store,
    failures: &mut u32,
) -> Result<(), kube::Error> {
    let (items, mut version) = list::<K>(client, scope).await?;
    store.apply_update(CacheUpdate::Listed(items, version.parse().unwrap_or(0)));
    if std::mem::take(failures) > 0 {
        store.recovered();
    }
    loop {
        let started = Instant::now();
        match watch::<K>(client, scope, store, &mut version).await? {
            // A server that ends watches immediately must not be asked in a tight loop.
            WatchEnd::Renew if started.elapsed() < FIRST_BACKOFF => {
                tokio::time::sleep(jittered(MAX_BACKOFF.min(FIRST_BACKOFF * 10))).await
            }
            WatchEnd::Renew => {}
            WatchEnd::Expired => {
                debug!(kind = K::KIND_OF.name(), "Watch history expired; listing again");
                return Ok(());
            }
        }
    }
}

/// One page of a list response.
#[derive(Deserialize)]
struct Page<K> {
    #[serde(default)]
    metadata: PageMetadata,
    items: Vec<K>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PageMetadata {
    #[serde(rename = "continue")]
    continue_: Option<String>,
    resource_version: Option<String>,
}

/// A complete, consistent list (without a resourceVersion: a quorum read) and its version. Items are compacted page by
/// page, so that no more than one page is in memory at its full size.
pub async fn list<K: Cached>(client: &Client, scope: &Scope) -> Result<(Vec<K>, String), kube::Error> {
    let mut items: Vec<K> = Vec::new();
    let mut params =
        ListParams { label_selector: scope.label.map(str::to_owned), limit: Some(PAGE), ..ListParams::default() };
    loop {
        let request = scope.requests::<K>().list(&params).map_err(kube::Error::BuildRequest)?;
        let page: Page<K> = client.request(request).await?;
        items.extend(page.items.into_iter().map(|mut item| {
            item.compact();
            item
        }));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok((items, page.metadata.resource_version.unwrap_or_default())),
        }
    }
}

enum WatchEnd {
    /// The server closed the watch normally: continue from the last version.
    Renew,
    /// The server no longer has the history.
    Expired,
}

async fn watch<K: Cached>(
    client: &Client,
    scope: &Scope,
    store: &Store,
    version: &mut String,
) -> Result<WatchEnd, kube::Error> {
    let params = WatchParams {
        label_selector: scope.label.map(str::to_owned),
        timeout: Some(WATCH_SECONDS),
        bookmarks: true,
        ..WatchParams::default()
    };
    let request = scope.requests::<K>().watch(&params, version).map_err(kube::Error::BuildRequest)?;
    let events = match client.request_events::<K>(request).await {
        Ok(events) => events,
        Err(kube::Error::Api(status)) if status.code == 410 => return Ok(WatchEnd::Expired),
        Err(error) => return Err(error),
    };
    pin_mut!(events);
    let silence = Duration::from_secs(WATCH_SECONDS.into()) + WATCH_GRACE;
    while let Ok(Some(event)) = tokio::time::timeout(silence, events.next()).await {
        match event? {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                version.clear();
                version.push_str(object.resource_version());
                store.apply_update(CacheUpdate::Applied(object));
            }
            WatchEvent::Deleted(object) => {
                version.clear();
                version.push_str(object.resource_version());
                store.apply_update(CacheUpdate::Deleted(object));
            }
            WatchEvent::Bookmark(bookmark) => *version = bookmark.metadata.resource_version,
            WatchEvent::Error(status) if status.code == 410 => return Ok(WatchEnd::Expired),
            WatchEvent::Error(status) => return Err(kube::Error::Api(status)),
        }
    }
    Ok(WatchEnd::Renew)
}
