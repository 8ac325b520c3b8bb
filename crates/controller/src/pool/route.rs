//! Which pools a change concerns.

use std::sync::Arc;

use agent_sandbox_api::{groups, owners};

use super::plan::is_unschedulable;
use crate::cache::{Cached, Change, ClusterCache, IndexKey, Pod, ReconcilerKind, WorkItem};

/// Adds the pools that a change concerns.
pub fn route(world: &ClusterCache, change: &Change, items: &mut Vec<WorkItem>) {
    match change {
        Change::Pool(delta) => items.push(WorkItem::new(ReconcilerKind::Pool, delta.key())),
        Change::Sandbox(delta) => {
            for sandbox in delta.old.iter().chain(&delta.new) {
                if let Some(owner) = owners::owning_pool(&sandbox.metadata) {
                    items.push(WorkItem::new(
                        ReconcilerKind::Pool,
                        Cached::key(&**sandbox).sibling(owner.name.as_str()),
                    ));
                }
            }
            items.dedup();
        }
        Change::Template(delta) => {
            let template = delta.latest();
            let index = IndexKey::TemplateRef {
                namespace: template.namespace().to_owned(),
                template: template.name().to_owned(),
            };
            items
                .extend(world.pools.find(&index).map(|pool| WorkItem::new(ReconcilerKind::Pool, Cached::key(&**pool))));
        }
        // Only the Pod says whether a member waits for the scheduler.
        Change::Pod(delta) => {
            let pod = delta.latest();
            let sandbox = pod
                .controller()
                .filter(|owner| owners::is_kind(owner, groups::CORE, groups::SANDBOX))
                .and_then(|owner| world.sandboxes.get(&pod.key().sibling(owner.name.as_str())));
            let unschedulable = |pod: &Option<Arc<Pod>>| pod.as_deref().is_some_and(is_unschedulable);
            if let Some(owner) = sandbox.and_then(|sandbox| owners::owning_pool(&sandbox.metadata))
                && unschedulable(&delta.old) != unschedulable(&delta.new)
            {
                items.push(WorkItem::new(ReconcilerKind::Pool, pod.key().sibling(owner.name.as_str())));
            }
        }
        Change::Claim(_) | Change::Pvc(_) | Change::Service(_) | Change::NetworkPolicy(_) => {}
    }
}
