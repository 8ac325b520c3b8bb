//! Equal Pod specs are kept once: the ten thousand Sandboxes of a pool share one.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, LazyLock, Weak},
};

use agent_sandbox_api::Opaque;
use parking_lot::Mutex;
use serde_json::Value;

/// Specs in use, by hash of their text. An entry dies with the last object that uses it.
static SPECS: LazyLock<Mutex<HashMap<u64, Vec<Weak<Value>>>>> = LazyLock::new(Mutex::default);
/// How many entries may pile up before dead ones are swept out.
const SWEEP_ABOVE: usize = 1024;

/// Replaces the value by an equal one that is already in memory, if there is one.
pub(crate) fn intern(spec: &mut Opaque) {
    let mut hasher = DefaultHasher::new();
    spec.to_string().hash(&mut hasher);
    let mut specs = SPECS.lock();
    if specs.len() > SWEEP_ABOVE {
        specs.retain(|_, twins| {
            twins.retain(|twin| twin.strong_count() > 0);
            !twins.is_empty()
        });
    }
    let twins = specs.entry(hasher.finish()).or_default();
    twins.retain(|twin| twin.strong_count() > 0);
    match twins.iter().filter_map(Weak::upgrade).find(|twin| **twin == **spec) {
        Some(twin) => *spec = Opaque::from(twin),
        None => twins.push(Arc::downgrade(spec.as_arc())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn equal_specs_share_memory_and_different_ones_do_not() {
        let spec = |image: &str| Opaque::from(json!({ "containers": [{ "image": image }] }));
        let (mut one, mut two, mut other) = (spec("interned-a"), spec("interned-a"), spec("interned-b"));
        intern(&mut one);
        intern(&mut two);
        intern(&mut other);
        assert!(Arc::ptr_eq(one.as_arc(), two.as_arc()));
        assert!(!Arc::ptr_eq(one.as_arc(), other.as_arc()));
        assert_eq!(two["containers"][0]["image"], "interned-a");
    }
}
