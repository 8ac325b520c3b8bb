//! An API server in memory for tests: versions, uids, preconditions, merge patches, garbage collection, and watches
//! that lag as far as the test chooses. It records every write.
//!
//! Each store follows the history with a cursor of its own, so two controllers can observe different states at the same
//! time.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{
    api_client::{ApiClient, ApiError, Lane, Precondition, Propagation, Request, Verb},
    cache::{CacheUpdate, Cached, Key, Kind, KindVisitor, Object, Store},
    clock::Clock,
};

/// A clock that the test advances.
pub(crate) struct FakeClock(AtomicI64);

impl FakeClock {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(AtomicI64::new(1_800_000_000_000)))
    }

    pub(crate) fn advance(&self, by: std::time::Duration) {
        self.0.fetch_add(i64::try_from(by.as_millis()).expect("short"), Ordering::SeqCst);
    }
}

impl Clock for FakeClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millisecond(self.0.load(Ordering::SeqCst)).expect("in range")
    }
}

/// The fault of the next matching request.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// It is rejected without effect.
    Refuse(ApiError),
    /// It is executed, but the response is lost.
    LoseResponse,
}

type Matcher = Box<dyn Fn(&Request) -> bool + Send>;

#[derive(Clone, Debug)]
struct Entry {
    kind: Kind,
    object: Value,
    gone: bool,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<(Kind, Key), Value>,
    history: Vec<Entry>,
    version: u64,
    uids: u64,
    log: Vec<Request>,
    reads: Vec<(Kind, Key)>,
    faults: VecDeque<(Matcher, Fault)>,
    read_faults: VecDeque<ApiError>,
    /// Whether deleted Pods stay terminating until the test removes them.
    graceful_pods: bool,
}

pub(crate) struct FakeApi {
    state: Mutex<State>,
    pub(crate) clock: Arc<FakeClock>,
}

impl FakeApi {
    pub(crate) fn new(clock: Arc<FakeClock>) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), clock })
    }

    /// From now on deleting a Pod only marks it as terminating.
    pub(crate) fn keep_terminating_pods(&self) {
        self.state.lock().graceful_pods = true;
    }

    pub(crate) fn fail(&self, matcher: impl Fn(&Request) -> bool + Send + 'static, fault: Fault) {
        self.state.lock().faults.push_back((Box::new(matcher), fault));
    }

    pub(crate) fn fail_read(&self, error: ApiError) {
        self.state.lock().read_faults.push_back(error);
    }

    /// The writes sent so far, in order.
    pub(crate) fn writes(&self) -> Vec<Request> {
        self.state.lock().log.clone()
    }

    /// The writes since the last call.
    pub(crate) fn take_writes(&self) -> Vec<Request> {
        std::mem::take(&mut self.state.lock().log)
    }

    pub(crate) fn get(&self, kind: Kind, key: &Key) -> Option<Value> {
        self.state.lock().objects.get(&(kind, key.clone())).cloned()
    }

    pub(crate) fn typed<K: Cached>(&self, key: &Key) -> Option<K> {
        self.get(K::KIND_OF, key).map(|object| serde_json::from_value(object).expect("stored objects decode"))
    }

    pub(crate) fn list(&self, kind: Kind) -> Vec<Value> {
        self.state.lock().objects.iter().filter(|((of, _), _)| *of == kind).map(|(_, object)| object.clone()).collect()
    }

    /// A user creates an object.
    pub(crate) fn create(&self, kind: Kind, object: Value) -> Key {
        let key = key_of(&object);
        let now = self.clock.now();
        self.state.lock().create(kind, &key, object, now).expect("created");
        key
    }

    /// An object that is already there, with its uid, generation and status.
    pub(crate) fn restore(&self, kind: Kind, object: Value) -> Key {
        let key = key_of(&object);
        self.state.lock().store(kind, &key, object);
        key
    }

    /// A user, or another controller, changes an object.
    pub(crate) fn edit(&self, kind: Kind, key: &Key, change: Value) {
        let mut state = self.state.lock();
        let mut object = state.objects.get(&(kind, key.clone())).cloned().expect("the object to edit exists");
        merge(&mut object, &change);
        state.store(kind, key, object);
    }

    /// Removes an object at once, as the last finalizer or a kubelet does.
    pub(crate) fn remove(&self, kind: Kind, key: &Key) {
        self.state.lock().remove(kind, key);
    }

    /// A user deletes an object.
    pub(crate) fn delete(&self, kind: Kind, key: &Key, how: Deletion) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let Some(mut object) = state.objects.get(&(kind, key.clone())).cloned() else { return };
        match how {
            Deletion::Background => state.remove(kind, key),
            Deletion::Foreground => {
                if object["metadata"]["deletionTimestamp"].is_null() {
                    object["metadata"]["deletionTimestamp"] = format!("{now:.0}").into();
                    state.store(kind, key, object);
                }
            }
            Deletion::Orphan => {
                let uid = uid_of(&object);
                let dependents: Vec<(Kind, Key)> = state.dependents(&uid);
                for (kind, key) in dependents {
                    let mut dependent = state.objects[&(kind, key.clone())].clone();
                    if let Some(owners) = dependent["metadata"]["ownerReferences"].as_array_mut() {
                        owners.retain(|owner| text(&owner["uid"]) != uid);
                    }
                    state.store(kind, &key, dependent);
                }
                state.remove(kind, key);
            }
        }
    }

    /// The whole history: kind, object, and whether it was a deletion.
    pub(crate) fn history(&self) -> Vec<(Kind, Value, bool)> {
        self.state.lock().history.iter().map(|entry| (entry.kind, entry.object.clone(), entry.gone)).collect()
    }

    /// Length of the history.
    pub(crate) fn position(&self) -> usize {
        self.state.lock().history.len()
    }

    /// The keys of all objects of a kind.
    pub(crate) fn keys(&self, kind: Kind) -> Vec<Key> {
        self.state.lock().objects.keys().filter(|(of, _)| *of == kind).map(|(_, key)| key.clone()).collect()
    }

    /// One round of the garbage collector: deletes objects whose owners are gone, and foreground-deleted objects
    /// without dependents.
    pub(crate) fn collect_garbage(&self) {
        let mut state = self.state.lock();
        let leaving: Vec<(Kind, Key, String)> = state
            .objects
            .iter()
            .filter(|((kind, _), object)| *kind != Kind::Pod && !object["metadata"]["deletionTimestamp"].is_null())
            .map(|((kind, key), object)| (*kind, key.clone(), uid_of(object)))
            .collect();
        for (kind, key, uid) in leaving {
            let dependents = state.dependents(&uid);
            if dependents.is_empty() {
                state.remove(kind, &key);
            }
            for (kind, key) in dependents {
                state.remove(kind, &key);
            }
        }
        let live: Vec<String> = state.objects.values().map(uid_of).collect();
        let orphans: Vec<(Kind, Key)> = state
            .objects
            .iter()
            .filter(|(_, object)| {
                let owners = object["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
                !owners.is_empty() && owners.iter().all(|owner| !live.contains(&text(&owner["uid"])))
            })
            .map(|(place, _)| place.clone())
            .collect();
        for (kind, key) in orphans {
            state.remove(kind, &key);
        }
    }

    /// Delivers the watch events after `cursor` to a store, at most `limit`.
    pub(crate) fn deliver_events(&self, store: &Store, cursor: &mut usize, limit: usize) {
        let history = self.state.lock().history.clone();
        for entry in history.iter().skip(*cursor).take(limit) {
            entry.kind.visit(Deliver(store, entry));
            *cursor += 1;
        }
    }

    fn write(&self, request: &Request) -> Result<Option<Value>, ApiError> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        state.log.push(request.clone());
        let fault =
            state.faults.iter().position(|(matches, _)| matches(request)).and_then(|at| state.faults.remove(at));
        match fault.map(|(_, fault)| fault) {
            Some(Fault::Refuse(error)) => return Err(error),
            Some(Fault::LoseResponse) => {
                let _ = state.execute(request, now);
                return Err(ApiError::Unknown { message: "connection reset".into() });
            }
            None => {}
        }
        state.execute(request, now)
    }
}

/// Delivers one entry of the history to a store, as a watch would.
struct Deliver<'a>(&'a Store, &'a Entry);

impl KindVisitor for Deliver<'_> {
    type Output = ();

    fn visit<K: Cached>(self) {
        let Deliver(store, entry) = self;
        let object: K = serde_json::from_value(entry.object.clone()).expect("stored objects decode");
        store.apply_update(if entry.gone { CacheUpdate::Deleted(object) } else { CacheUpdate::Applied(object) });
    }
}

/// How a user deletes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deletion {
    Background,
    Foreground,
    Orphan,
}

impl State {
    fn dependents(&self, uid: &str) -> Vec<(Kind, Key)> {
        let owned = |object: &Value| {
            object["metadata"]["ownerReferences"]
                .as_array()
                .is_some_and(|owners| owners.iter().any(|owner| text(&owner["uid"]) == uid))
        };
        self.objects.iter().filter(|(_, object)| owned(object)).map(|(place, _)| place.clone()).collect()
    }

    fn execute(&mut self, request: &Request, now: Timestamp) -> Result<Option<Value>, ApiError> {
        let (kind, key) = (request.kind, &request.key);
        match &request.verb {
            Verb::Create { body } => self.create(kind, key, body.clone(), now).map(Some),
            Verb::Patch { precondition, body } => {
                let mut object = self.checked(kind, key, precondition, true)?;
                assert!(body.get("status").is_none(), "a patch of the object must not carry status");
                merge(&mut object, body);
                Ok(Some(self.store(kind, key, object)))
            }
            Verb::PatchStatus { precondition, status } => {
                // The uid has no effect on the status subresource; the version is the precondition.
                let mut object = self.checked(kind, key, precondition, false)?;
                merge(&mut object, &json!({ "status": status }));
                Ok(Some(self.store(kind, key, object)))
            }
            Verb::Delete { precondition, propagation } => {
                let mut object = self.checked(kind, key, precondition, true)?;
                if (kind == Kind::Pod && self.graceful_pods) || *propagation == Some(Propagation::Foreground) {
                    if object["metadata"]["deletionTimestamp"].is_null() {
                        object["metadata"]["deletionTimestamp"] = format!("{now:.0}").into();
                        object = self.store(kind, key, object);
                    }
                    return Ok(Some(object));
                }
                self.remove(kind, key);
                Ok(None)
            }
        }
    }

    fn checked(&self, kind: Kind, key: &Key, precondition: &Precondition, with_uid: bool) -> Result<Value, ApiError> {
        let object =
            self.objects.get(&(kind, key.clone())).cloned().ok_or_else(|| ApiError::NotFound {
                message: format!("{} \"{}\" not found", kind.plural(), key.name),
            })?;
        let wrong_uid = with_uid && uid_of(&object) != precondition.uid;
        let wrong_version = precondition
            .resource_version
            .as_deref()
            .is_some_and(|version| version != text(&object["metadata"]["resourceVersion"]));
        if wrong_uid || wrong_version {
            return Err(ApiError::Conflict { message: format!("Operation cannot be fulfilled on {}", key.name) });
        }
        Ok(object)
    }

    fn create(&mut self, kind: Kind, key: &Key, mut object: Value, now: Timestamp) -> Result<Value, ApiError> {
        if self.objects.contains_key(&(kind, key.clone())) {
            return Err(ApiError::AlreadyExists {
                message: format!("{} \"{}\" already exists", kind.plural(), key.name),
            });
        }
        self.uids += 1;
        let metadata = &mut object["metadata"];
        metadata["uid"] = format!("{}-{}", kind.plural(), self.uids).into();
        metadata["namespace"] = (&*key.namespace).into();
        metadata["name"] = (&*key.name).into();
        metadata["generation"] = 1.into();
        metadata["creationTimestamp"] = format!("{now:.0}").into();
        if kind == Kind::Pod && object["status"].is_null() {
            object["status"] = json!({ "phase": "Pending" });
        }
        Ok(self.store(kind, key, object))
    }

    fn store(&mut self, kind: Kind, key: &Key, mut object: Value) -> Value {
        let place = (kind, key.clone());
        if let Some(old) = self.objects.get(&place) {
            let mut compared = object.clone();
            compared["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"].clone();
            if compared == *old {
                return old.clone();
            }
            if old["spec"] != object["spec"] {
                object["metadata"]["generation"] = (old["metadata"]["generation"].as_i64().unwrap_or(0) + 1).into();
            }
        }
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.objects.insert(place, object.clone());
        self.history.push(Entry { kind, object: object.clone(), gone: false });
        object
    }

    fn remove(&mut self, kind: Kind, key: &Key) {
        if let Some(mut object) = self.objects.remove(&(kind, key.clone())) {
            self.version += 1;
            object["metadata"]["resourceVersion"] = self.version.to_string().into();
            self.history.push(Entry { kind, object, gone: true });
        }
    }
}

#[async_trait]
impl ApiClient for FakeApi {
    async fn send(&self, _: Lane, request: &Request) -> Result<Option<Object>, ApiError> {
        let response = self.write(request)?;
        Ok(response.and_then(|object| decode(request.kind, &object)))
    }

    async fn read(&self, _: Lane, kind: Kind, key: &Key) -> Result<Option<Object>, ApiError> {
        let mut state = self.state.lock();
        state.reads.push((kind, key.clone()));
        if let Some(error) = state.read_faults.pop_front() {
            return Err(error);
        }
        Ok(state.objects.get(&(kind, key.clone())).and_then(|object| decode(kind, object)))
    }
}

fn decode(kind: Kind, object: &Value) -> Option<Object> {
    Object::decode(kind, &serde_json::to_vec(object).expect("encodes")).expect("decodes")
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn uid_of(object: &Value) -> String {
    text(&object["metadata"]["uid"])
}

fn key_of(object: &Value) -> Key {
    let metadata = &object["metadata"];
    Key::new(metadata["namespace"].as_str().unwrap_or("default"), text(&metadata["name"]))
}

/// JSON merge patch.
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let map = target.as_object_mut().expect("made one above");
    for (key, value) in patch {
        if value.is_null() {
            map.remove(key);
        } else {
            merge(map.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}
