//! JSON that is stored and forwarded but not interpreted, shared by reference.
//!
//! Thousands of Sandboxes of one pool hold the same Pod spec. Behind an `Arc` a clone only increments a counter, and a
//! cache may intern equal values.

use std::ops::Deref;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Shared, immutable JSON: a Pod spec or a PVC spec exactly as the user wrote it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Opaque(Arc<Value>);

impl Opaque {
    /// The value for editing; copied first when shared.
    pub fn make_mut(&mut self) -> &mut Value {
        Arc::make_mut(&mut self.0)
    }

    /// The value itself, copied only when shared.
    pub fn into_value(self) -> Value {
        Arc::unwrap_or_clone(self.0)
    }

    /// The shared pointer, for interning.
    pub fn as_arc(&self) -> &Arc<Value> {
        &self.0
    }
}

impl Deref for Opaque {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.0
    }
}

impl From<Value> for Opaque {
    fn from(value: Value) -> Self {
        Self(Arc::new(value))
    }
}

impl From<Arc<Value>> for Opaque {
    fn from(value: Arc<Value>) -> Self {
        Self(value)
    }
}
