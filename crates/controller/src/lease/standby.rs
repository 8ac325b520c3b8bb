//! Standing by: waiting for the moment at which somebody else's lease can be had.
//!
//! The Lease is watched, so that every renewal is seen when it happens and the end of the lease is known to the moment. Who may not watch
//! it looks at it from time to time instead.

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

/// How long one watch lasts before it is renewed. Servers choose a shorter one if they like.
const WATCH_SECONDS: u32 = 290;
/// How long a refusal of the watch is believed: roles change, and some API servers refuse while they start.
const REFUSED_FOR: Duration = Duration::from_secs(300);

/// Why waiting ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    /// The lease was given up, or ran out: it can be had.
    Free,
    /// Nothing is known any more of what becomes of it.
    Unseen,
}

#[derive(Debug, Default)]
pub(super) struct Standby {
    /// When the API last said that this Lease may not be watched.
    refused: Option<Instant>,
}

impl Standby {
    /// Waits until it is time to look at the Lease and try: at once when it is given up or deleted, when it has run out, or after a
    /// pause when it cannot be followed.
    pub(super) async fn wait(&mut self, api: &Api<Lease>, config: &LeaseConfig, elector: &mut Elector) {
        let may_watch = self.refused.is_none_or(|at| at.elapsed() > REFUSED_FOR);
        let over = if may_watch { follow(api, config, elector).await } else { Ok(Over::Unseen) };
        match over {
            Ok(Over::Free) => return,
            Ok(Over::Unseen) => {}
            Err(kube::Error::Api(status)) if status.code == 403 => {
                self.refused = Some(Instant::now());
                warn!(lease = %config.name, error = %status.message, "May not watch the lease; looking at it from time to time");
            }
            Err(error) => debug!(%error, "Lost sight of the lease"),
        }
        let pause = Instant::now() + config.contender_pause();
        let at = elector.held_until().map_or(pause, |end| end.min(pause));
        tokio::time::sleep_until(at.into()).await;
    }
}

/// Takes in every change of the Lease from the one last seen, until it is nobody's or has run out.
async fn follow(api: &Api<Lease>, config: &LeaseConfig, elector: &mut Elector) -> Result<Over, kube::Error> {
    let (Some(mut end), Some(version)) = (elector.held_until(), elector.version()) else { return Ok(Over::Free) };
    let params = WatchParams {
        field_selector: Some(format!("metadata.name={}", config.name)),
        timeout: Some(WATCH_SECONDS),
        ..WatchParams::default()
    };
    let Ok(events) = tokio::time::timeout_at(end.into(), api.watch(&params, version)).await else {
        return Ok(Over::Free);
    };
    let mut events = pin!(events?);
    while let Ok(event) = tokio::time::timeout_at(end.into(), events.next()).await {
        let Some(event) = event else { return Ok(Over::Unseen) };
        let lease = match event? {
            WatchEvent::Added(lease) | WatchEvent::Modified(lease) => Some(from_lease(&lease)),
            WatchEvent::Deleted(_) => None,
            WatchEvent::Bookmark(_) => continue,
            WatchEvent::Error(status) => return Err(kube::Error::Api(status)),
        };
        elector.observe(lease, Instant::now());
        match elector.held_until() {
            Some(later) => end = later,
            None => return Ok(Over::Free),
        }
    }
    Ok(Over::Free)
}
