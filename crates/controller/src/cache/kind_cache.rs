//! The cache of one kind: what the watch showed, overlaid with the responses to this controller's own writes until the
//! watch catches up.
//!
//! Versions are compared as numbers, which the API guarantees within one kind. A response stays visible until the watch
//! shows that version or a newer one, the uid changes, or a relist is newer. An event is an echo, and wakes no
//! reconciler, only when its uid and version are those of a response that was applied here. An event older than the
//! overlay that is *not* an echo is a change by another client on top of which this controller wrote, and must still
//! wake the reconciler.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    sync::Arc,
};

use super::IndexKey;
use crate::cache::{Cached, Key};

/// Maximum number of deleted uids that are remembered, to recognise responses and events that arrive after the
/// deletion. Such a late one is at most a request timeout old.
const REMEMBERED_DELETIONS: usize = 8192;

/// An object before and after a change. Both sides are equal when only a wake-up is due.
#[derive(Debug)]
pub struct Delta<K> {
    pub old: Option<Arc<K>>,
    pub new: Option<Arc<K>>,
}

impl<K> Clone for Delta<K> {
    fn clone(&self) -> Self {
        Self { old: self.old.clone(), new: self.new.clone() }
    }
}

impl<K: Cached> Delta<K> {
    /// The newest known state of the object.
    pub fn latest(&self) -> &Arc<K> {
        self.new.as_ref().or(self.old.as_ref()).expect("a delta has at least one side")
    }

    pub fn key(&self) -> Key {
        self.latest().key()
    }

    fn same(object: &Arc<K>) -> Self {
        Self { old: Some(object.clone()), new: Some(object.clone()) }
    }
}

struct Entry<K> {
    object: Arc<K>,
    version: u64,
    /// The watch has shown this version, so no overlay is pending.
    watched: bool,
}

/// The keys under an index entry. Most entries hold one key, and a tree for one key takes ten times its size.
enum Entries {
    One(Key),
    Many(BTreeSet<Key>),
}

impl Entries {
    fn insert(&mut self, key: Key) {
        match self {
            Self::One(only) if *only == key => {}
            Self::One(only) => *self = Self::Many(BTreeSet::from([only.clone(), key])),
            Self::Many(keys) => {
                keys.insert(key);
            }
        }
    }

    /// Removes a key; true when none is left.
    fn remove(&mut self, key: &Key) -> bool {
        match self {
            Self::One(only) => only == key,
            Self::Many(keys) => {
                keys.remove(key);
                keys.is_empty()
            }
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Key> {
        let (one, many) = match self {
            Self::One(only) => (Some(only), None),
            Self::Many(keys) => (None, Some(keys.iter())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

pub struct KindCache<K> {
    objects: HashMap<Key, Entry<K>>,
    index: HashMap<IndexKey, Entries>,
    echoes: HashSet<(String, u64)>,
    deleted: HashSet<String>,
    deletions: VecDeque<String>,
    /// Version of the newest complete list: an object that is absent here and not newer than this version does not
    /// exist.
    floor: u64,
    synced: bool,
}

impl<K> Default for KindCache<K> {
    fn default() -> Self {
        Self {
            objects: HashMap::new(),
            index: HashMap::new(),
            echoes: HashSet::new(),
            deleted: HashSet::new(),
            deletions: VecDeque::new(),
            floor: 0,
            synced: false,
        }
    }
}

fn version_of<K: Cached>(object: &K) -> u64 {
    object.resource_version().parse().unwrap_or(0)
}

impl<K: Cached> KindCache<K> {
    pub fn get(&self, key: &Key) -> Option<&Arc<K>> {
        self.objects.get(key).map(|entry| &entry.object)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<K>> {
        self.objects.values().map(|entry| &entry.object)
    }

    pub fn len(&self) -> usize {
        self.objects.len()
    }

    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Whether a complete list was applied at least once.
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// Whether an object of this uid is known to have been deleted. The oldest are forgotten.
    pub fn is_deleted(&self, uid: &str) -> bool {
        self.deleted.contains(uid)
    }

    /// The objects under an index entry, ordered by key.
    pub fn find<'a>(&'a self, index: &IndexKey) -> impl Iterator<Item = &'a Arc<K>> + use<'a, K> {
        self.index.get(index).into_iter().flat_map(Entries::iter).filter_map(|key| self.get(key))
    }

    /// The objects whose controller reference carries this uid, ordered by name.
    pub fn controlled_by<'a>(&'a self, uid: &str) -> impl Iterator<Item = &'a Arc<K>> + use<'a, K> {
        self.find(&IndexKey::Controller(uid.to_owned()))
    }

    /// Applies a watch event that carries an object. Returns `None` when no reconciler needs to be woken.
    pub fn observe_event(&mut self, object: Arc<K>) -> Option<Delta<K>> {
        let version = version_of(&*object);
        let echo = self.echoes.remove(&(object.uid().to_owned(), version));
        if self.deleted.contains(object.uid()) {
            return None;
        }
        match self.objects.get_mut(&object.key()) {
            Some(entry) if version == entry.version => {
                entry.watched = true;
                None
            }
            Some(entry) if version < entry.version => {
                (!echo && entry.object.uid() == object.uid()).then(|| Delta::same(&entry.object))
            }
            None if version <= self.floor => None,
            _ => Some(self.put(object, version, true)),
        }
    }

    /// Applies a watch event that reports a deletion.
    pub fn observe_deletion(&mut self, object: &K) -> Option<Delta<K>> {
        self.remember_deletion(object.uid());
        self.echoes.remove(&(object.uid().to_owned(), version_of(object)));
        let key = object.key();
        (self.get(&key)?.uid() == object.uid()).then(|| self.remove(&key)).flatten()
    }

    /// Applies the response to one of this controller's writes: it is visible at once, and its watch event will count
    /// as an echo.
    pub fn apply_response(&mut self, object: Arc<K>) -> Option<Delta<K>> {
        let version = version_of(&*object);
        if self.deleted.contains(object.uid()) {
            return None;
        }
        match self.objects.get(&object.key()) {
            // The watch event arrived before the response and has woken the reconcilers concerned.
            Some(entry) if version <= entry.version => None,
            _ => {
                self.echoes.insert((object.uid().to_owned(), version));
                Some(self.put(object, version, false))
            }
        }
    }

    /// Applies a live read. Its watch event, if one follows, brings nothing new.
    pub fn observe_read(&mut self, object: Arc<K>) -> Option<Delta<K>> {
        let version = version_of(&*object);
        if self.deleted.contains(object.uid()) {
            return None;
        }
        match self.objects.get(&object.key()) {
            Some(entry) if version <= entry.version => None,
            _ => Some(self.put(object, version, false)),
        }
    }

    /// Applies the API server's statement that no object with this uid exists.
    pub fn forget(&mut self, key: &Key, uid: &str) -> Option<Delta<K>> {
        self.remember_deletion(uid);
        (self.get(key)?.uid() == uid).then(|| self.remove(key)).flatten()
    }

    /// Applies a complete list, taken at `version`.
    pub fn observe_list(&mut self, items: Vec<K>, version: u64) -> Vec<Delta<K>> {
        let mut deltas = Vec::new();
        let mut listed = HashSet::with_capacity(items.len());
        for item in items {
            listed.insert(item.key());
            let item = Arc::new(item);
            let item_version = version_of(&*item);
            match self.objects.get_mut(&item.key()) {
                Some(entry) if item_version == entry.version => {
                    // This list may have skipped changes that preceded our own write: wake the reconcilers once more.
                    if !entry.watched {
                        entry.watched = true;
                        deltas.push(Delta::same(&entry.object));
                    }
                }
                Some(entry) if item_version < entry.version => {}
                _ if self.deleted.contains(item.uid()) => {}
                _ => deltas.push(self.put(item, item_version, true)),
            }
        }
        let absent: Vec<Key> = self
            .objects
            .iter()
            .filter(|(key, entry)| entry.version <= version && !listed.contains(*key))
            .map(|(key, _)| key.clone())
            .collect();
        for key in absent {
            if let Some(delta) = self.remove(&key) {
                self.remember_deletion(delta.latest().uid());
                deltas.push(delta);
            }
        }
        self.echoes.retain(|(_, echo)| *echo > version);
        self.floor = self.floor.max(version);
        self.synced = true;
        deltas
    }

    fn put(&mut self, object: Arc<K>, version: u64, watched: bool) -> Delta<K> {
        let key = object.key();
        let old = self
            .objects
            .insert(key.clone(), Entry { object: object.clone(), version, watched })
            .map(|entry| entry.object);
        let before = old.as_ref().map(|old| old.index()).unwrap_or_default();
        let after = object.index();
        for gone in before.iter().filter(|index| !after.contains(index)) {
            self.unindex(gone, &key);
        }
        for new in after.into_iter().filter(|index| !before.contains(index)) {
            self.index
                .entry(new)
                .and_modify(|keys| keys.insert(key.clone()))
                .or_insert_with(|| Entries::One(key.clone()));
        }
        Delta { old, new: Some(object) }
    }

    fn remove(&mut self, key: &Key) -> Option<Delta<K>> {
        let old = self.objects.remove(key)?.object;
        for index in old.index() {
            self.unindex(&index, key);
        }
        Some(Delta { old: Some(old), new: None })
    }

    fn unindex(&mut self, index: &IndexKey, key: &Key) {
        if self.index.get_mut(index).is_some_and(|keys| keys.remove(key)) {
            self.index.remove(index);
        }
    }

    fn remember_deletion(&mut self, uid: &str) {
        if !uid.is_empty() && self.deleted.insert(uid.to_owned()) {
            self.deletions.push_back(uid.to_owned());
            if self.deletions.len() > REMEMBERED_DELETIONS
                && let Some(oldest) = self.deletions.pop_front()
            {
                self.deleted.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests;
