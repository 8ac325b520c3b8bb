//! Interning: equal values are kept in memory once. The ten thousand Sandboxes of a pool share one Pod spec, one set of
//! labels and one owner.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, LazyLock, Weak},
};

use agent_sandbox_api::{Opaque, template::PodMetadata};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use parking_lot::Mutex;
use serde_json::Value;

use crate::cache::PodCondition;

/// Values in use, by hash. An entry is dropped with the last object that uses it.
struct Interner<T: ?Sized> {
    values: HashMap<u64, Vec<Weak<T>>>,
    /// Number of entries at which unused ones are removed.
    sweep_at: usize,
}

impl<T: ?Sized> Default for Interner<T> {
    fn default() -> Self {
        Self { values: HashMap::new(), sweep_at: FIRST_SWEEP }
    }
}

const FIRST_SWEEP: usize = 1024;

impl<T: PartialEq + ?Sized> Interner<T> {
    /// Removes unused entries when the number of entries has doubled since the last time, so that the average cost is
    /// small.
    fn sweep(&mut self) {
        if self.values.len() >= self.sweep_at {
            self.values.retain(|_, values| {
                values.retain(|shared| shared.strong_count() > 0);
                !values.is_empty()
            });
            self.sweep_at = FIRST_SWEEP.max(self.values.len() * 2);
        }
    }

    /// An equal value that is in memory already, else the result of `make`, which is remembered.
    fn intern(&mut self, hash: u64, value: &T, make: impl FnOnce() -> Arc<T>) -> Arc<T> {
        self.sweep();
        let values = self.values.entry(hash).or_insert_with(|| Vec::with_capacity(1));
        if let Some(shared) = values.iter().filter_map(Weak::upgrade).find(|shared| **shared == *value) {
            return shared;
        }
        values.retain(|shared| shared.strong_count() > 0);
        let new = make();
        values.push(Arc::downgrade(&new));
        new
    }
}

fn hash_of(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

macro_rules! interner {
    ($name:ident: $type:ty) => {
        static $name: LazyLock<Mutex<Interner<$type>>> = LazyLock::new(Mutex::default);
    };
}

interner!(TEXTS: str);
interner!(SPECS: Value);
interner!(METADATA: PodMetadata);
interner!(OWNERS: [OwnerReference]);
interner!(CONDITIONS: [PodCondition]);

/// Interns a string that many objects have in common, such as a namespace or a node name.
pub(crate) fn text(value: &str) -> Arc<str> {
    TEXTS.lock().intern(hash_of(value), value, || value.into())
}

pub(crate) fn spec(value: &mut Opaque) {
    let arc = value.as_arc();
    let shared = SPECS.lock().intern(hash_of(arc), arc, || arc.clone());
    *value = Opaque::from(shared);
}

pub(crate) fn metadata(value: &mut Arc<PodMetadata>) {
    let shared = METADATA.lock().intern(hash_of(&*value), value, || value.clone());
    *value = shared;
}

pub(crate) fn owners(value: Vec<OwnerReference>) -> Arc<[OwnerReference]> {
    let hash = hash_of(value.iter().map(|owner| owner.uid.as_str()).collect::<Vec<_>>());
    OWNERS.lock().intern(hash, &value, || value.clone().into())
}

pub(crate) fn conditions(value: Vec<PodCondition>) -> Arc<[PodCondition]> {
    CONDITIONS.lock().intern(hash_of(&value), &value, || value.clone().into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn equal_specs_share_memory_and_different_ones_do_not() {
        let make = |image: &str| Opaque::from(json!({ "containers": [{ "image": image }] }));
        let (mut one, mut two, mut other) = (make("interned-a"), make("interned-a"), make("interned-b"));
        spec(&mut one);
        spec(&mut two);
        spec(&mut other);
        assert!(Arc::ptr_eq(one.as_arc(), two.as_arc()));
        assert!(!Arc::ptr_eq(one.as_arc(), other.as_arc()));
        assert_eq!(two["containers"][0]["image"], "interned-a");
    }

    #[test]
    fn owners_that_differ_in_more_than_the_uid_are_kept_apart() {
        let owner = |name: &str| OwnerReference { uid: "u".into(), name: name.into(), ..OwnerReference::default() };
        let (one, two, other) = (owners(vec![owner("a")]), owners(vec![owner("a")]), owners(vec![owner("b")]));
        assert!(Arc::ptr_eq(&one, &two));
        assert_eq!(other[0].name, "b");
    }

    #[test]
    fn unused_entries_are_removed_and_used_ones_stay() {
        let mut interner: Interner<Value> = Interner::default();
        let mut shared = |value: Value| {
            let arc = Arc::new(value);
            (interner.intern(hash_of(&arc), &arc, || arc.clone()), interner.values.len())
        };
        let living: Vec<Arc<Value>> = (0..FIRST_SWEEP / 2).map(|number| shared(json!(number)).0).collect();
        let entries = (0..3 * FIRST_SWEEP).map(|number| shared(json!({ "dead": number })).1).max();
        assert!(entries <= Some(2 * FIRST_SWEEP), "{entries:?}");
        for value in &living {
            assert!(Arc::ptr_eq(&shared((**value).clone()).0, value));
        }
    }
}
