//! Which templates a change concerns.

use agent_sandbox_api::{groups, owners};

use crate::cache::{Cached, Change, ClusterCache, ReconcilerKind, WorkItem};

/// Adds the templates that a change concerns.
pub fn route(_: &ClusterCache, change: &Change, items: &mut Vec<WorkItem>) {
    match change {
        Change::Template(delta) => items.push(WorkItem::new(ReconcilerKind::Template, delta.key())),
        Change::NetworkPolicy(delta) => {
            for policy in delta.old.iter().chain(&delta.new) {
                if let Some(owner) = policy
                    .controller()
                    .filter(|owner| owners::is_kind(owner, groups::EXTENSIONS, groups::SANDBOX_TEMPLATE))
                {
                    items.push(WorkItem::new(ReconcilerKind::Template, policy.key().sibling(owner.name.as_str())));
                }
            }
        }
        _ => {}
    }
}
