//! Owner references: writing and checking them.
//!
//! Ownership is the controller reference's uid. Kinds are matched by group and kind only: objects written before an
//! upgrade keep the old version in their references for ever.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::groups;

/// The relation of an object to a possible owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// Its controller reference carries the owner's uid.
    Owned,
    /// It has no controller reference.
    Unowned,
    /// Its controller is another object, possibly an earlier one of the same name.
    Foreign,
}

/// Metadata with owner references; implemented by every form in which a program stores metadata.
pub trait Owned {
    /// All owner references, in the object's order.
    fn owner_references(&self) -> &[OwnerReference];
}

impl Owned for ObjectMeta {
    fn owner_references(&self) -> &[OwnerReference] {
        self.owner_references.as_deref().unwrap_or_default()
    }
}

/// The reference with `controller: true`.
pub fn controller_of<M: Owned>(metadata: &M) -> Option<&OwnerReference> {
    metadata.owner_references().iter().find(|reference| reference.controller == Some(true))
}

/// The relation of the object to the owner with this uid. An empty uid owns nothing.
pub fn ownership<M: Owned>(metadata: &M, owner_uid: &str) -> Ownership {
    match controller_of(metadata) {
        None => Ownership::Unowned,
        Some(reference) if !owner_uid.is_empty() && reference.uid == owner_uid => Ownership::Owned,
        Some(_) => Ownership::Foreign,
    }
}

/// True when the reference names this kind, in any version of its group.
pub fn is_kind(reference: &OwnerReference, group: &str, kind: &str) -> bool {
    reference.kind == kind && groups::group_of(&reference.api_version) == group
}

/// The controller reference, when it is a warm pool.
pub fn owning_pool<M: Owned>(metadata: &M) -> Option<&OwnerReference> {
    controller_of(metadata).filter(|reference| is_kind(reference, groups::EXTENSIONS, groups::SANDBOX_WARM_POOL))
}

/// The controller reference, when it is a claim.
pub fn owning_claim<M: Owned>(metadata: &M) -> Option<&OwnerReference> {
    controller_of(metadata).filter(|reference| is_kind(reference, groups::EXTENSIONS, groups::SANDBOX_CLAIM))
}

/// A controller reference as we write it: the stored version, controlling and blocking.
pub fn controller_reference(group: &str, kind: &str, name: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: format!("{group}/{}", groups::V1BETA1),
        kind: kind.to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned_by(uid: &str, api_version: &str, controller: bool) -> ObjectMeta {
        ObjectMeta {
            owner_references: Some(vec![OwnerReference {
                api_version: api_version.to_owned(),
                kind: groups::SANDBOX_WARM_POOL.to_owned(),
                name: "p".to_owned(),
                uid: uid.to_owned(),
                controller: Some(controller),
                block_owner_deletion: None,
            }]),
            ..ObjectMeta::default()
        }
    }

    #[test]
    fn ownership_is_the_controllers_uid() {
        let owned = owned_by("u", groups::EXTENSIONS_V1BETA1, true);
        assert_eq!(ownership(&owned, "u"), Ownership::Owned);
        assert_eq!(ownership(&owned, "v"), Ownership::Foreign);
        assert_eq!(ownership(&owned_by("", groups::EXTENSIONS_V1BETA1, true), ""), Ownership::Foreign);
        assert_eq!(ownership(&owned_by("u", groups::EXTENSIONS_V1BETA1, false), "u"), Ownership::Unowned);
        assert_eq!(ownership(&ObjectMeta::default(), "u"), Ownership::Unowned);
    }

    /// S-022, X-023: a reference written by an old controller still names a pool.
    #[test]
    fn s_022_x_023_version_of_the_owner_is_ignored() {
        assert!(owning_pool(&owned_by("u", groups::EXTENSIONS_V1ALPHA1, true)).is_some());
        assert!(owning_pool(&owned_by("u", "agents.x-k8s.io/v1beta1", true)).is_none());
        assert!(owning_claim(&owned_by("u", groups::EXTENSIONS_V1ALPHA1, true)).is_none());
    }

    #[test]
    fn references_are_written_in_the_stored_version() {
        let reference = controller_reference(groups::CORE, groups::SANDBOX, "s", "u");
        assert_eq!(reference.api_version, groups::CORE_V1BETA1);
        assert_eq!((reference.controller, reference.block_owner_deletion), (Some(true), Some(true)));
    }
}
