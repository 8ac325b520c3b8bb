//! The content of the cache and its wake-ups, for every order of events, responses, reads and lists.

use serde_json::json;

use super::*;
use crate::cache::Pod;

fn owned_pod(name: &str, uid: &str, version: u64, owner: &str) -> Pod {
    let owner = json!([{ "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": "s", "uid": owner, "controller": true }]);
    let metadata = json!({ "name": name, "namespace": "n", "uid": uid, "resourceVersion": version.to_string(), "ownerReferences": owner });
    serde_json::from_value(json!({ "metadata": metadata })).expect("valid")
}

fn pod(name: &str, uid: &str, version: u64) -> Arc<Pod> {
    Arc::new(owned_pod(name, uid, version, "owner"))
}

fn key(name: &str) -> Key {
    Key::new("n", name)
}

fn shown(cache: &KindCache<Pod>, name: &str) -> Option<(String, u64)> {
    cache.get(&key(name)).map(|pod| (pod.uid().to_owned(), version_of(&**pod)))
}

fn is(uid: &str, version: u64) -> Option<(String, u64)> {
    Some((uid.to_owned(), version))
}

/// A delta as the versions before and after.
fn versions(delta: Option<Delta<Pod>>) -> Option<(Option<u64>, Option<u64>)> {
    delta.map(|delta| (delta.old.as_deref().map(version_of), delta.new.as_deref().map(version_of)))
}

#[test]
fn events_in_order_are_changes() {
    let mut cache = KindCache::default();
    assert!(cache.is_empty());
    assert_eq!(versions(cache.observe_event(pod("a", "u", 3))), Some((None, Some(3))));
    assert_eq!(versions(cache.observe_event(pod("a", "u", 5))), Some((Some(3), Some(5))));
    assert_eq!(versions(cache.observe_event(pod("a", "u", 5))), None, "said before");
    assert_eq!((cache.len(), cache.is_empty(), cache.iter().count()), (1, false, 1));
    assert_eq!(versions(cache.observe_deletion(&pod("a", "u", 6))), Some((Some(5), None)));
    assert_eq!(shown(&cache, "a"), None);
    assert_eq!(versions(cache.observe_event(pod("a", "u", 5))), None, "a late event restores nothing");
    assert_eq!(versions(cache.apply_response(pod("a", "u", 5))), None, "nor does a late answer");
    assert_eq!(versions(cache.observe_read(pod("a", "u", 5))), None, "nor a late read");
    assert_eq!(
        versions(cache.observe_event(pod("a", "v", 9))),
        Some((None, Some(9))),
        "its successor is another object"
    );
}

/// A response is visible at once; its own event causes no wake-up, an event of another client's earlier write does.
#[test]
fn a_response_overlays_until_the_watch_catches_up() {
    let mut cache = KindCache::default();
    cache.observe_event(pod("a", "u", 3));
    assert_eq!(versions(cache.apply_response(pod("a", "u", 8))), Some((Some(3), Some(8))));
    assert_eq!(shown(&cache, "a"), is("u", 8));
    assert_eq!(
        versions(cache.observe_event(pod("a", "u", 6))),
        Some((Some(8), Some(8))),
        "another client's change below ours"
    );
    assert_eq!(shown(&cache, "a"), is("u", 8), "and the overlay stays");
    assert_eq!(versions(cache.observe_event(pod("a", "u", 8))), None, "our own echo");
    assert_eq!(versions(cache.observe_event(pod("a", "u", 9))), Some((Some(8), Some(9))));
}

/// Two responses: the echo of the older one is still an echo.
#[test]
fn echoes_of_superseded_responses_do_not_wake() {
    let mut cache = KindCache::default();
    cache.apply_response(pod("a", "u", 4));
    cache.apply_response(pod("a", "u", 7));
    assert_eq!(versions(cache.observe_event(pod("a", "u", 4))), None);
    assert_eq!(versions(cache.observe_event(pod("a", "u", 4))), Some((Some(7), Some(7))), "an echo is heard once");
    assert_eq!(versions(cache.observe_event(pod("a", "u", 7))), None);
}

#[test]
fn a_late_response_changes_nothing() {
    let mut cache = KindCache::default();
    cache.observe_event(pod("a", "u", 7));
    assert_eq!(versions(cache.apply_response(pod("a", "u", 7))), None);
    assert_eq!(versions(cache.apply_response(pod("a", "u", 5))), None);
    assert_eq!(versions(cache.observe_read(pod("a", "u", 7))), None);
    assert_eq!(versions(cache.observe_read(pod("a", "u", 5))), None);
    assert_eq!(shown(&cache, "a"), is("u", 7));
    assert!(cache.echoes.is_empty(), "an answer that came late has no echo to wait for");
}

/// A read is visible, but its event is not an echo: no reconciler was woken for it.
#[test]
fn a_read_is_shown_and_its_event_is_no_echo() {
    let mut cache = KindCache::default();
    cache.observe_event(pod("a", "u", 3));
    assert_eq!(versions(cache.observe_read(pod("a", "u", 6))), Some((Some(3), Some(6))));
    assert_eq!(versions(cache.observe_event(pod("a", "u", 5))), Some((Some(6), Some(6))));
    assert_eq!(versions(cache.observe_event(pod("a", "u", 6))), None, "it brings nothing new");
}

/// An event of an earlier object of the same name neither replaces the current one nor wakes a reconciler.
#[test]
fn events_of_an_earlier_object_of_the_name_are_ignored() {
    let mut cache = KindCache::default();
    cache.apply_response(pod("a", "second", 9));
    assert_eq!(versions(cache.observe_event(pod("a", "first", 5))), None);
    assert_eq!(versions(cache.observe_deletion(&pod("a", "first", 6))), None);
    assert_eq!(shown(&cache, "a"), is("second", 9));
    assert_eq!(versions(cache.forget(&key("a"), "first")), None);
    assert_eq!(versions(cache.forget(&key("a"), "second")), Some((Some(9), None)));
    assert_eq!(versions(cache.forget(&key("a"), "second")), None);
    assert_eq!(versions(cache.observe_event(pod("a", "second", 9))), None, "forgotten for good");
}

#[test]
fn a_list_removes_what_it_lacks_and_keeps_what_is_newer() {
    let mut cache = KindCache::default();
    assert!(!cache.is_synced());
    cache.observe_event(pod("gone", "g", 3));
    cache.observe_event(pod("old", "o", 4));
    cache.apply_response(pod("ours", "w", 20));
    let deltas = cache.observe_list(vec![owned_pod("old", "o", 8, "owner"), owned_pod("new", "n", 9, "owner")], 10);
    let mut seen: Vec<_> = deltas.into_iter().map(|delta| versions(Some(delta)).expect("some")).collect();
    seen.sort_unstable();
    assert_eq!(seen, [(None, Some(9)), (Some(3), None), (Some(4), Some(8))]);
    assert!(cache.is_synced());
    assert_eq!(shown(&cache, "ours"), is("w", 20), "created after the list was taken");
    assert_eq!(versions(cache.observe_event(pod("gone", "g", 3))), None, "known to be gone");
    assert_eq!(versions(cache.observe_event(pod("absent", "x", 10))), None, "not newer than a list that lacks it");
    assert_eq!(versions(cache.observe_event(pod("absent", "x", 11))), Some((None, Some(11))));
}

/// A list at exactly the version of a response may have skipped earlier changes: one more wake-up.
#[test]
fn a_list_at_the_version_of_a_response_wakes_once() {
    let mut cache = KindCache::default();
    cache.apply_response(pod("a", "u", 5));
    cache.observe_event(pod("b", "v", 6));
    let list = || vec![owned_pod("a", "u", 5, "owner"), owned_pod("b", "v", 6, "owner")];
    let woken: Vec<_> = cache.observe_list(list(), 7).into_iter().map(|delta| delta.key()).collect();
    assert_eq!(woken, [key("a")]);
    assert!(cache.observe_list(list(), 7).is_empty());
    assert!(cache.echoes.is_empty(), "what the list covers is not waited for any more");
}

#[test]
fn a_list_neither_reverts_newer_objects_nor_restores_deleted_ones() {
    let mut cache = KindCache::default();
    cache.apply_response(pod("a", "u", 9));
    cache.observe_event(pod("d", "x", 2));
    cache.observe_deletion(&pod("d", "x", 3));
    let deltas = cache.observe_list(vec![owned_pod("a", "u", 5, "owner"), owned_pod("d", "x", 2, "owner")], 6);
    assert!(deltas.is_empty());
    assert_eq!((shown(&cache, "a"), shown(&cache, "d")), (is("u", 9), None));
    assert_eq!(versions(cache.observe_event(pod("a", "u", 9))), None, "the echo is still ahead of the list");
}

#[test]
fn the_index_follows_changes_of_ownership() {
    let mut cache = KindCache::default();
    let owned = |cache: &KindCache<Pod>, uid: &str| cache.controlled_by(uid).map(|pod| pod.key()).collect::<Vec<_>>();
    for name in ["b", "a"] {
        cache.observe_event(Arc::new(owned_pod(name, name, 1, "first")));
    }
    assert_eq!(owned(&cache, "first"), [key("a"), key("b")], "in order");
    cache.observe_event(Arc::new(owned_pod("a", "a", 2, "second")));
    assert_eq!((owned(&cache, "first"), owned(&cache, "second")), (vec![key("b")], vec![key("a")]));
    cache.observe_deletion(&owned_pod("b", "b", 3, "first"));
    assert_eq!(owned(&cache, "first"), []);
    assert_eq!(cache.index.len(), 1, "no empty entries are kept");
}

#[test]
fn the_number_of_remembered_deletions_is_bounded() {
    let mut cache: KindCache<Pod> = KindCache::default();
    for number in 0..REMEMBERED_DELETIONS + 10 {
        cache.forget(&key("x"), &format!("u-{number}"));
        cache.forget(&key("x"), &format!("u-{number}"));
    }
    cache.forget(&key("x"), "");
    assert_eq!((cache.deleted.len(), cache.deletions.len()), (REMEMBERED_DELETIONS, REMEMBERED_DELETIONS));
    assert!(!cache.deleted.contains("u-9") && cache.deleted.contains("u-10"));
}
