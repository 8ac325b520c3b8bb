//! Equal values are kept once: the ten thousand Sandboxes of a pool share one Pod spec, one set of labels, one owner.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, LazyLock, Weak},
};

use agent_sandbox_api::{Opaque, template::PodMetadata};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use parking_lot::Mutex;
use serde_json::Value;

use crate::object::PodCondition;

/// Values in use, by hash. An entry dies with the last object that uses it.
struct Shelf<T: ?Sized> {
    values: HashMap<u64, Vec<Weak<T>>>,
    /// At this many entries dead ones are swept out.
    sweep_at: usize,
}

impl<T: ?Sized> Default for Shelf<T> {
    fn default() -> Self {
        Self { values: HashMap::new(), sweep_at: FIRST_SWEEP }
    }
}

const FIRST_SWEEP: usize = 1024;

impl<T: PartialEq + ?Sized> Shelf<T> {
    /// Sweeps when the number of entries has doubled since the last time, so that it costs little on average.
    fn sweep(&mut self) {
        if self.values.len() >= self.sweep_at {
            self.values.retain(|_, twins| {
                twins.retain(|twin| twin.strong_count() > 0);
                !twins.is_empty()
            });
            self.sweep_at = FIRST_SWEEP.max(self.values.len() * 2);
        }
    }

    /// An equal value that is in memory already, else what `make` makes, which is remembered.
    fn twin_of(&mut self, hash: u64, value: &T, make: impl FnOnce() -> Arc<T>) -> Arc<T> {
        self.sweep();
        let twins = self.values.entry(hash).or_insert_with(|| Vec::with_capacity(1));
        if let Some(twin) = twins.iter().filter_map(Weak::upgrade).find(|twin| **twin == *value) {
            return twin;
        }
        twins.retain(|twin| twin.strong_count() > 0);
        let new = make();
        twins.push(Arc::downgrade(&new));
        new
    }
}

fn hash_of(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

macro_rules! shelf {
    ($name:ident: $type:ty) => {
        static $name: LazyLock<Mutex<Shelf<$type>>> = LazyLock::new(Mutex::default);
    };
}

shelf!(TEXTS: str);
shelf!(SPECS: Value);
shelf!(METADATA: PodMetadata);
shelf!(OWNERS: [OwnerReference]);
shelf!(CONDITIONS: [PodCondition]);

/// A text that many objects have in common, such as a namespace or a node's name.
pub(crate) fn text(value: &str) -> Arc<str> {
    TEXTS.lock().twin_of(hash_of(value), value, || value.into())
}

pub(crate) fn spec(value: &mut Opaque) {
    let arc = value.as_arc();
    let twin = SPECS.lock().twin_of(hash_of(arc), arc, || arc.clone());
    *value = Opaque::from(twin);
}

pub(crate) fn metadata(value: &mut Arc<PodMetadata>) {
    let twin = METADATA.lock().twin_of(hash_of(&*value), value, || value.clone());
    *value = twin;
}

pub(crate) fn owners(value: Vec<OwnerReference>) -> Arc<[OwnerReference]> {
    let hash = hash_of(value.iter().map(|owner| owner.uid.as_str()).collect::<Vec<_>>());
    OWNERS.lock().twin_of(hash, &value, || value.clone().into())
}

pub(crate) fn conditions(value: Vec<PodCondition>) -> Arc<[PodCondition]> {
    CONDITIONS.lock().twin_of(hash_of(&value), &value, || value.clone().into())
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
    fn the_dead_are_swept_out_and_the_living_stay() {
        let mut shelf: Shelf<Value> = Shelf::default();
        let mut twin = |value: Value| {
            let arc = Arc::new(value);
            (shelf.twin_of(hash_of(&arc), &arc, || arc.clone()), shelf.values.len())
        };
        let living: Vec<Arc<Value>> = (0..FIRST_SWEEP / 2).map(|number| twin(json!(number)).0).collect();
        let entries = (0..3 * FIRST_SWEEP).map(|number| twin(json!({ "dead": number })).1).max();
        assert!(entries <= Some(2 * FIRST_SWEEP), "{entries:?}");
        for value in &living {
            assert!(Arc::ptr_eq(&twin((**value).clone()).0, value));
        }
    }
}
