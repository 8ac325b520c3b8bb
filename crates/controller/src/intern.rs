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
#[derive(Default)]
struct Shelf {
    specs: HashMap<u64, Vec<Weak<Value>>>,
    /// At this many entries dead ones are swept out.
    sweep_at: usize,
}

impl Shelf {
    /// Sweeps when the number of entries has doubled since the last time, so that it costs little on average.
    fn sweep(&mut self) {
        if self.specs.len() >= self.sweep_at.max(FIRST_SWEEP) {
            self.specs.retain(|_, twins| {
                twins.retain(|twin| twin.strong_count() > 0);
                !twins.is_empty()
            });
            self.sweep_at = self.specs.len() * 2;
        }
    }

    /// An equal value that is in memory already; otherwise this one is remembered.
    fn twin_of(&mut self, spec: &Arc<Value>) -> Option<Arc<Value>> {
        self.sweep();
        let mut hasher = DefaultHasher::new();
        spec.to_string().hash(&mut hasher);
        let twins = self.specs.entry(hasher.finish()).or_default();
        twins.retain(|twin| twin.strong_count() > 0);
        let twin = twins.iter().filter_map(Weak::upgrade).find(|twin| **twin == **spec);
        if twin.is_none() {
            twins.push(Arc::downgrade(spec));
        }
        twin
    }
}

static SPECS: LazyLock<Mutex<Shelf>> = LazyLock::new(Mutex::default);
const FIRST_SWEEP: usize = 1024;

/// Replaces the value by an equal one that is already in memory, if there is one.
pub(crate) fn intern(spec: &mut Opaque) {
    let twin = SPECS.lock().twin_of(spec.as_arc());
    if let Some(twin) = twin {
        *spec = Opaque::from(twin);
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

    #[test]
    fn the_dead_are_swept_out_and_the_living_stay() {
        let mut shelf = Shelf::default();
        let living: Vec<Arc<Value>> = (0..FIRST_SWEEP / 2).map(|number| Arc::new(json!(number))).collect();
        for spec in &living {
            assert!(shelf.twin_of(spec).is_none());
        }
        for number in 0..3 * FIRST_SWEEP {
            shelf.twin_of(&Arc::new(json!({ "dead": number })));
        }
        assert!(shelf.specs.len() <= 2 * FIRST_SWEEP, "{}", shelf.specs.len());
        for spec in &living {
            assert!(shelf.twin_of(&Arc::new((**spec).clone())).is_some_and(|twin| Arc::ptr_eq(&twin, spec)));
        }
    }
}
