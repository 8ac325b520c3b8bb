//! Requests to the API as data: a plan holds them, the client sends them, a test counts and inspects them.
//!
//! Every write to an existing object names the uid it was decided for, and, where the decision depends on the whole
//! object (status, adoption, deletion of Sandboxes and claims), the version too. A stale decision then fails instead of
//! doing harm.

use serde_json::{Map, Value, json};

use crate::cache::{Cached, Key, Kind};

/// The object, and optionally its version, that a write was decided for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Precondition {
    pub uid: String,
    pub resource_version: Option<String>,
}

impl Precondition {
    /// The same object in any state.
    pub fn uid<K: Cached>(object: &K) -> Self {
        Self { uid: object.uid().to_owned(), resource_version: None }
    }

    /// The same object in exactly this state.
    pub fn exact<K: Cached>(object: &K) -> Self {
        Self { uid: object.uid().to_owned(), resource_version: Some(object.resource_version().to_owned()) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    Background,
    Foreground,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Verb {
    /// POST. The body lacks apiVersion and kind; [`Request::to_http`] adds them.
    Create { body: Value },
    /// JSON merge patch of the object.
    Patch { precondition: Precondition, body: Value },
    /// JSON merge patch of the status subresource. The body is the content of `status`.
    PatchStatus { precondition: Precondition, status: Value },
    /// DELETE; `None` leaves propagation to the server.
    Delete { precondition: Precondition, propagation: Option<Propagation> },
}

#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    pub kind: Kind,
    pub key: Key,
    pub verb: Verb,
}

impl Request {
    /// Creates an object. `body` must carry `metadata.name` and `metadata.namespace` as in `key`.
    pub fn create(kind: Kind, key: Key, body: Value) -> Self {
        Self { kind, key, verb: Verb::Create { body } }
    }

    /// Patches the object at any version, as long as it has the same uid.
    pub fn patch<K: Cached>(object: &K, body: Value) -> Self {
        Self {
            kind: K::KIND_OF,
            key: object.key(),
            verb: Verb::Patch { precondition: Precondition::uid(object), body },
        }
    }

    /// Patches the object only at the version it was observed at.
    pub fn patch_exact<K: Cached>(object: &K, body: Value) -> Self {
        Self {
            kind: K::KIND_OF,
            key: object.key(),
            verb: Verb::Patch { precondition: Precondition::exact(object), body },
        }
    }

    /// Patches the status only at the version it was computed from.
    pub fn patch_status<K: Cached>(object: &K, status: Value) -> Self {
        Self {
            kind: K::KIND_OF,
            key: object.key(),
            verb: Verb::PatchStatus { precondition: Precondition::exact(object), status },
        }
    }

    /// Deletes the object. Sandboxes and claims must still be at the version they were observed at, because a claim may
    /// have adopted the Sandbox since.
    pub fn delete<K: Cached>(object: &K, propagation: Option<Propagation>) -> Self {
        let precondition = match K::KIND_OF {
            Kind::Sandbox | Kind::Claim => Precondition::exact(object),
            _ => Precondition::uid(object),
        };
        Self { kind: K::KIND_OF, key: object.key(), verb: Verb::Delete { precondition, propagation } }
    }

    /// The uid this request was decided for; none for creates.
    pub fn uid(&self) -> Option<&str> {
        match &self.verb {
            Verb::Create { .. } => None,
            Verb::Patch { precondition, .. }
            | Verb::PatchStatus { precondition, .. }
            | Verb::Delete { precondition, .. } => Some(&precondition.uid),
        }
    }

    /// HTTP method, path with query, content type and body.
    pub fn to_http(&self) -> (http::Method, String, &'static str, Vec<u8>) {
        let collection = self.kind.path(&self.key.namespace);
        let object = || format!("{collection}/{}", self.key.name);
        match &self.verb {
            Verb::Create { body } => {
                let mut body = body.clone();
                if let Value::Object(body) = &mut body {
                    body.insert("apiVersion".into(), self.kind.group_version().into());
                    body.insert("kind".into(), self.kind.name().into());
                }
                (
                    http::Method::POST,
                    format!("{collection}?fieldManager={FIELD_MANAGER}"),
                    "application/json",
                    encode(&body),
                )
            }
            Verb::Patch { precondition, body } => {
                let mut body = body.clone();
                guard(&mut body, precondition);
                (http::Method::PATCH, object(), MERGE_PATCH, encode(&body))
            }
            Verb::PatchStatus { precondition, status } => {
                let mut body = json!({ "status": status });
                guard(&mut body, precondition);
                (http::Method::PATCH, format!("{}/status", object()), MERGE_PATCH, encode(&body))
            }
            Verb::Delete { precondition, propagation } => {
                let mut preconditions = json!({ "uid": precondition.uid });
                if let Some(version) = &precondition.resource_version {
                    preconditions["resourceVersion"] = version.as_str().into();
                }
                let mut body = json!({ "kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions });
                if let Some(propagation) = propagation {
                    body["propagationPolicy"] = format!("{propagation:?}").into();
                }
                (http::Method::DELETE, object(), "application/json", encode(&body))
            }
        }
    }
}

/// Field manager of creates; patches carry none.
const FIELD_MANAGER: &str = "sandbox-controller";
const MERGE_PATCH: &str = "application/merge-patch+json";

fn encode(body: &Value) -> Vec<u8> {
    serde_json::to_vec(body).expect("JSON values always encode")
}

/// Puts the precondition into a merge patch, where the API server checks it.
fn guard(body: &mut Value, precondition: &Precondition) {
    let Value::Object(body) = body else { return };
    let metadata = body.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    if let Value::Object(metadata) = metadata {
        metadata.insert("uid".into(), precondition.uid.as_str().into());
        if let Some(version) = &precondition.resource_version {
            metadata.insert("resourceVersion".into(), version.as_str().into());
        }
    }
}

/// The merge patch that turns `old` into `new`; `None` when they are equal.
pub fn merge_diff(old: &Value, new: &Value) -> Option<Value> {
    if old == new {
        return None;
    }
    let (Value::Object(old), Value::Object(new)) = (old, new) else { return Some(new.clone()) };
    let mut patch = Map::new();
    for (key, value) in new {
        match old.get(key) {
            Some(before) => {
                if let Some(change) = merge_diff(before, value) {
                    patch.insert(key.clone(), change);
                }
            }
            None => {
                patch.insert(key.clone(), value.clone());
            }
        }
    }
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    Some(Value::Object(patch))
}

#[cfg(test)]
mod tests;
