//! When a Sandbox may adopt an object without an owner, and the error messages when it may not.

use agent_sandbox_api::{keys::labels, names};

use crate::cache::{Cached, Sandbox};

/// A kind of child, with its name in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Child {
    Pod,
    Pvc,
    Service,
}

impl Child {
    fn word(self) -> &'static str {
        match self {
            Child::Pod => "pod",
            Child::Pvc => "PVC",
            Child::Service => "service",
        }
    }
}

/// Checks whether an unowned object may be adopted: it carries the adoption label, or this Sandbox's tracking label.
pub(super) fn check_adoptable<K: Cached>(child: Child, object: &K, sandbox: &Sandbox) -> Result<(), String> {
    let invited = object.label(labels::ADOPTABLE) == Some("true");
    let tracked = object.label(labels::SANDBOX_NAME_HASH) == Some(&names::name_hash(sandbox.name()));
    if invited || tracked {
        return Ok(());
    }
    Err(format!(
        "cannot adopt unowned {} \"{}\": missing required pool authorization label (\"{}\") or sandbox tracking label (\"{}\")",
        child.word(),
        object.key().name,
        labels::ADOPTABLE,
        labels::SANDBOX_NAME_HASH,
    ))
}

/// The error message for an object that another owner controls.
pub(super) fn foreign_owner_error<K: Cached>(child: Child, object: &K, sandbox: &Sandbox) -> String {
    let (kind, name, uid) = object
        .controller()
        .map(|owner| (owner.kind.as_str(), owner.name.as_str(), owner.uid.as_str()))
        .unwrap_or_default();
    format!(
        "{} \"{}\" is owned by {kind}/{name} (UID: {uid}), not by sandbox \"{}\"",
        child.word(),
        object.key().name,
        sandbox.name()
    )
}
