//! Which Sandboxes a change concerns.

use std::sync::Arc;

use agent_sandbox_api::{groups, names, owners};

use crate::cache::{Cached, Change, ClusterCache, IndexKey, Kind, ReconcilerKind, WorkItem};

/// Adds the Sandboxes that a change concerns.
pub fn route(world: &ClusterCache, change: &Change, items: &mut Vec<WorkItem>) {
    fn owners_of<K: Cached>(object: Option<&Arc<K>>, items: &mut Vec<WorkItem>) {
        let Some(object) = object else { return };
        if let Some(owner) = object.controller().filter(|owner| owners::is_kind(owner, groups::CORE, groups::SANDBOX)) {
            items.push(WorkItem::new(ReconcilerKind::Sandbox, object.key().sibling(owner.name.as_str())));
        }
    }
    /// Both the old and the new state count: an object that loses its owner, or is deleted, concerns the owner it had.
    /// An object that the Sandbox does not own but that has its name concerns the Sandbox of that name.
    fn child<K: Cached>(world: &ClusterCache, old: Option<&Arc<K>>, new: Option<&Arc<K>>, items: &mut Vec<WorkItem>) {
        owners_of(old, items);
        owners_of(new, items);
        if let Some(object) = new.or(old) {
            let key = object.key();
            if K::KIND_OF != Kind::Pvc && world.sandboxes.get(&key).is_some() {
                items.push(WorkItem::new(ReconcilerKind::Sandbox, key));
            }
        }
        items.dedup();
    }
    match change {
        Change::Sandbox(delta) => {
            items.push(WorkItem::new(ReconcilerKind::Sandbox, delta.key()));
            if delta.new.is_none() {
                let gone = delta.latest();
                let index =
                    IndexKey::NameHash { namespace: gone.namespace().to_owned(), hash: names::name_hash(gone.name()) };
                items.extend(
                    world
                        .sandboxes
                        .find(&index)
                        .map(|other| WorkItem::new(ReconcilerKind::Sandbox, Cached::key(&**other))),
                );
            }
        }
        Change::Pod(delta) => child(world, delta.old.as_ref(), delta.new.as_ref(), items),
        Change::Service(delta) => child(world, delta.old.as_ref(), delta.new.as_ref(), items),
        Change::Pvc(delta) => child(world, delta.old.as_ref(), delta.new.as_ref(), items),
        Change::Claim(_) | Change::Pool(_) | Change::Template(_) | Change::NetworkPolicy(_) => {}
    }
}
