//! Keeps the status of ResourceQuotas: the limits in force and what the namespace uses of them.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{Task, gc};
use crate::{limits::ledger::QUOTAS, server::Core, status::ApiError};

/// Updates the status of every quota of a namespace.
pub(super) async fn reconcile(core: &Arc<Core>, namespace: &str) -> Result<(), ApiError> {
    let registry = core.registry.snapshot();
    let Some(resource) = registry.by_storage(QUOTAS).cloned() else { return Ok(()) };
    let mut changes_at: Option<Timestamp> = None;
    for quota in core.store.collection(&resource.storage).list(namespace) {
        let key = quota.key.clone();
        let mut next = None;
        gc::update_object(
            core,
            &resource,
            &key,
            quota.uid(),
            |value| {
                let usage = core.store.inspect(|latest| core.ledger.usage(latest, &registry, &key));
                let Some(usage) = usage else { return };
                let used: Map<String, Value> =
                    usage.used.iter().map(|(name, amount)| (name.clone(), amount.to_string().into())).collect();
                value["status"] = json!({ "hard": value["spec"]["hard"].clone(), "used": used });
                next = usage.changes_at;
            },
            |_| Ok(()),
        )
        .await?;
        changes_at = [changes_at, next].into_iter().flatten().min();
    }
    if let Some(time) = changes_at {
        reconcile_at(core, namespace, time);
    }
    Ok(())
}

/// Enqueues the namespace again when a Pod's grace period ends. A namespace has one timer, for the earliest time.
fn reconcile_at(core: &Arc<Core>, namespace: &str, time: Timestamp) {
    let mut timers = core.controllers.quota_timers.lock();
    if timers.get(namespace).is_some_and(|earlier| *earlier <= time) {
        return;
    }
    timers.insert(namespace.into(), time);
    drop(timers);
    let wait = Duration::try_from(time.duration_since(Timestamp::now())).unwrap_or_default();
    let (core, namespace) = (Arc::downgrade(core), Box::<str>::from(namespace));
    tokio::spawn(async move {
        // One more millisecond: the Pod counts until `time`, inclusively.
        tokio::time::sleep(wait + Duration::from_millis(1)).await;
        if let Some(core) = core.upgrade() {
            core.controllers.quota_timers.lock().retain(|name, of| *name != namespace || *of != time);
            core.controllers.enqueue(Task::Quotas(namespace));
        }
    });
}
