//! The standby: waits until another replica's lease can be acquired.
//!
//! The standby watches the Lease, so that it sees every renewal when it happens and knows exactly when the lease
//! expires. Without permission to watch, it reads the Lease from time to time.

use std::{
    pin::pin,
    time::{Duration, Instant},
};

use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api,
    api::{WatchEvent, WatchParams},
};
use tracing::{debug, warn};

use super::{Elector, LeaseConfig, from_lease};

/// Duration of one watch request in seconds. Servers may choose a shorter one.
const WATCH_SECONDS: u32 = 290;
/// Time before a refused watch is tried again: roles change, and some API servers refuse while they start.
const WATCH_RETRY_AFTER_REFUSAL: Duration = Duration::from_secs(300);

/// Why waiting ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitEnd {
    /// The lease was released or has expired: it can be acquired.
    Free,
    /// The watch ended: the state of the lease is not known any more.
    Unknown,
}

#[derive(Debug, Default)]
pub(super) struct Standby {
    /// When the API last refused to let this process watch the Lease.
    refused: Option<Instant>,
}

impl Standby {
    /// Waits until it is time to read the Lease and try to acquire it: at once when it is released or deleted, when it
    /// has expired, or after a pause when it cannot be watched.
    pub(super) async fn wait(&mut self, api: &Api<Lease>, config: &LeaseConfig, elector: &mut Elector) {
        let may_watch = self.refused.is_none_or(|at| at.elapsed() > WATCH_RETRY_AFTER_REFUSAL);
        let end_of_wait = if may_watch { watch_until_free(api, config, elector).await } else { Ok(WaitEnd::Unknown) };
        match end_of_wait {
            Ok(WaitEnd::Free) => return,
            Ok(WaitEnd::Unknown) => {}
            Err(kube::Error::Api(status)) if status.code == 403 => {
                self.refused = Some(Instant::now());
                warn!(lease = %config.name, error = %status.message, "No permission to watch the lease; polling it instead");
            }
            Err(error) => debug!(%error, "The watch of the lease failed"),
        }
        let pause = Instant::now() + config.contender_pause();
        let at = elector.held_until().map_or(pause, |end| end.min(pause));
        tokio::time::sleep_until(at.into()).await;
    }
}

/// Observes every change of the Lease from the last version seen, until it has no holder or has expired.
async fn watch_until_free(
    api: &Api<Lease>,
    config: &LeaseConfig,
    elector: &mut Elector,
) -> Result<WaitEnd, kube::Error> {
    let (Some(mut end), Some(version)) = (elector.held_until(), elector.version()) else { return Ok(WaitEnd::Free) };
    let params = WatchParams {
        field_selector: Some(format!("metadata.name={}", config.name)),
        timeout: Some(WATCH_SECONDS),
        ..WatchParams::default()
    };
    let Ok(events) = tokio::time::timeout_at(end.into(), api.watch(&params, version)).await else {
        return Ok(WaitEnd::Free);
    };
    let mut events = pin!(events?);
    while let Ok(event) = tokio::time::timeout_at(end.into(), events.next()).await {
        let Some(event) = event else { return Ok(WaitEnd::Unknown) };
        let lease = match event? {
            WatchEvent::Added(lease) | WatchEvent::Modified(lease) => Some(from_lease(&lease)),
            WatchEvent::Deleted(_) => None,
            WatchEvent::Bookmark(_) => continue,
            WatchEvent::Error(status) => return Err(kube::Error::Api(status)),
        };
        elector.observe(lease, Instant::now());
        match elector.held_until() {
            Some(later) => end = later,
            None => return Ok(WaitEnd::Free),
        }
    }
    Ok(WaitEnd::Free)
}
