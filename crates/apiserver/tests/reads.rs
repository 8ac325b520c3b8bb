//! Lists and watches: selectors, pages, versions, bookmarks (the semantics of the data-plane contract, section 4.3).

mod raw;

use std::time::Duration;

use agent_sandbox_apiserver::UserInfo;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use raw::{Api, CONFIGS, MERGE, PODS, config, pod};
use serde_json::{Value, json};

/// An open watch, read line by line.
struct Watch {
    body: agent_sandbox_apiserver::render::Body,
    buffer: Vec<u8>,
}

impl Watch {
    async fn open(api: &Api, path: &str) -> Self {
        let request = http::Request::get(path).body(Full::new(Bytes::new())).expect("a request");
        let response = api.server.handle(&UserInfo::administrator(), request).await;
        assert_eq!(response.status(), 200, "{path}");
        Self { body: response.into_body(), buffer: Vec::new() }
    }

    /// The next event, or `None` at the end of the stream.
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).expect("one JSON object per line"));
            }
            let frame =
                tokio::time::timeout(Duration::from_secs(10), self.body.frame()).await.expect("an event in time")?;
            if let Ok(data) = frame.expect("a healthy stream").into_data() {
                self.buffer.extend_from_slice(&data);
            }
        }
    }

    async fn named(&mut self) -> (String, String) {
        let event = self.next().await.expect("an event");
        (
            event["type"].as_str().unwrap_or_default().to_owned(),
            event["object"]["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
        )
    }
}

fn event(kind: &str, name: &str) -> (String, String) {
    (kind.to_owned(), name.to_owned())
}

#[tokio::test]
async fn without_a_version_a_watch_starts_with_the_current_objects() {
    let api = Api::new().await;
    api.post(CONFIGS, &config("a")).await.ok();
    for query in ["watch=true", "watch=True&resourceVersion=0"] {
        let mut watch = Watch::open(&api, &format!("{CONFIGS}?{query}")).await;
        assert_eq!(watch.named().await, event("ADDED", "a"));
    }
    let mut one = Watch::open(&api, &format!("{CONFIGS}?watch=true&fieldSelector=metadata.name%3Db")).await;
    api.post(CONFIGS, &config("c")).await.ok();
    api.post(CONFIGS, &config("b")).await.ok();
    assert_eq!(one.named().await, event("ADDED", "b"), "only the named object is shown");
    api.delete(&format!("{CONFIGS}/b"), &json!({})).await.ok();
    assert_eq!(one.named().await, event("DELETED", "b"));
}

#[tokio::test]
async fn objects_enter_and_leave_a_selection() {
    let api = Api::new().await;
    let mut watch = Watch::open(&api, &format!("{CONFIGS}?watch=true&labelSelector=on%3Dyes")).await;
    api.post(CONFIGS, &config("a")).await.ok();
    let path = format!("{CONFIGS}/a");
    api.patch(&path, MERGE, &json!({"metadata": {"labels": {"on": "yes"}}})).await.ok();
    api.patch(&path, MERGE, &json!({"data": {"k": "2"}})).await.ok();
    api.patch(&path, MERGE, &json!({"metadata": {"labels": {"on": "no"}}})).await.ok();
    for kind in ["ADDED", "MODIFIED", "DELETED"] {
        assert_eq!(watch.named().await, event(kind, "a"));
    }
}

#[tokio::test]
async fn pods_are_selected_by_node_and_address() {
    let api = Api::new().await;
    for name in ["p", "q"] {
        api.post(PODS, &pod(name)).await.ok();
    }
    api.post(&format!("{PODS}/p/binding"), &json!({"target": {"name": "n1"}})).await.ok();
    api.patch(&format!("{PODS}/p/status"), MERGE, &json!({"status": {"podIP": "10.0.0.1"}})).await.ok();
    for (selector, wanted) in [
        ("spec.nodeName%3Dn1", "p"),
        ("spec.nodeName%3D", "q"),
        ("status.podIP!%3D", "p"),
        ("status.phase%3DPending,metadata.name%3Dq", "q"),
    ] {
        let list = api.get(&format!("{PODS}?fieldSelector={selector}")).await.ok();
        let names: Vec<&str> =
            list["items"].as_array().unwrap().iter().filter_map(|i| i["metadata"]["name"].as_str()).collect();
        assert_eq!(names, [wanted], "{selector}");
    }
}

#[tokio::test]
async fn pages_show_one_consistent_state() {
    let api = Api::new().await;
    for name in ["a", "b", "c", "d", "e"] {
        api.post(CONFIGS, &config(name)).await.ok();
    }
    let first = api.get(&format!("{CONFIGS}?limit=2")).await.ok();
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    api.delete(&format!("{CONFIGS}/c"), &json!({})).await.ok();
    api.post(CONFIGS, &config("bb")).await.ok();
    let token = first["metadata"]["continue"].as_str().unwrap();
    let second = api.get(&format!("{CONFIGS}?limit=2&continue={token}")).await.ok();
    let names = |list: &Value| {
        list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|i| i["metadata"]["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&second), ["c", "d"], "as it was when the list began");
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    let token = second["metadata"]["continue"].as_str().unwrap();
    let last = api.get(&format!("{CONFIGS}?limit=2&continue={token}")).await.ok();
    assert_eq!(names(&last), ["e"]);
    assert!(last["metadata"].get("continue").is_none());
    api.get(&format!("{CONFIGS}?continue=nonsense")).await.failed(400, "BadRequest");
}

#[tokio::test]
async fn versions_of_lists_are_honoured() {
    let api = Api::new().await;
    let made = api.post(CONFIGS, &config("a")).await.ok();
    let version = made["metadata"]["resourceVersion"].as_str().unwrap();
    api.patch(&format!("{CONFIGS}/a"), MERGE, &json!({"data": {"k": "new"}})).await.ok();
    let exact = api.get(&format!("{CONFIGS}?resourceVersion={version}&resourceVersionMatch=Exact")).await.ok();
    assert_eq!(exact["items"][0]["data"]["k"], "v");
    let newer = api.get(&format!("{CONFIGS}?resourceVersion={version}&resourceVersionMatch=NotOlderThan")).await.ok();
    assert_eq!(newer["items"][0]["data"]["k"], "new");
    api.get(&format!("{CONFIGS}?resourceVersion=1&resourceVersionMatch=Exact")).await.failed(410, "Expired");
    api.get(&format!("{CONFIGS}?resourceVersionMatch=Exact")).await.failed(422, "Invalid");
    api.get(&format!("{CONFIGS}?resourceVersion=soon")).await.failed(400, "BadRequest");
    let future = api.get(&format!("{CONFIGS}?resourceVersion=99999999")).await;
    assert!(future.failed(504, "Timeout").contains("Too large resource version"));
}

#[tokio::test]
async fn initial_events_end_with_a_marked_bookmark() {
    let api = Api::new().await;
    api.post(CONFIGS, &config("a")).await.ok();
    let options = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = Watch::open(&api, &format!("{CONFIGS}?{options}")).await;
    assert_eq!(watch.named().await, event("ADDED", "a"));
    let mark = watch.next().await.unwrap();
    assert_eq!((&mark["type"], &mark["object"]["kind"]), (&json!("BOOKMARK"), &json!("ConfigMap")));
    assert_eq!(mark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    let version = mark["object"]["metadata"]["resourceVersion"].as_str().unwrap();
    let mut resumed = Watch::open(&api, &format!("{CONFIGS}?watch=true&resourceVersion={version}")).await;
    api.post(CONFIGS, &config("b")).await.ok();
    assert_eq!(watch.named().await, event("ADDED", "b"));
    assert_eq!(resumed.named().await, event("ADDED", "b"), "a bookmark is a place to go on from");
    api.get(&format!("{CONFIGS}?watch=true&sendInitialEvents=true")).await.failed(422, "Invalid");
}

#[tokio::test]
async fn a_watch_ends_after_its_timeout_with_a_last_bookmark() {
    let api = Api::new().await;
    let mut watch = Watch::open(&api, &format!("{CONFIGS}?watch=true&timeoutSeconds=1&allowWatchBookmarks=true")).await;
    assert_eq!(watch.next().await.unwrap()["type"], "BOOKMARK");
    assert!(watch.next().await.is_none());
    let mut quiet =
        Watch::open(&api, &format!("{CONFIGS}?watch=true&timeoutSeconds=1&fieldSelector=metadata.name%3Dx")).await;
    assert!(quiet.next().await.is_none(), "no bookmark without allowWatchBookmarks");
}

#[tokio::test]
async fn history_is_bounded_and_older_versions_get_410() {
    let api = Api::new().await;
    let first = api.post(CONFIGS, &config("a")).await.ok();
    let version = first["metadata"]["resourceVersion"].as_str().unwrap();
    let filler = "x".repeat(200_000);
    let mut named = Watch::open(&api, &format!("{CONFIGS}?watch=true&fieldSelector=metadata.name%3Dquiet")).await;
    for n in 0..100 {
        api.patch(&format!("{CONFIGS}/a"), MERGE, &json!({"data": {"k": format!("{n}{filler}")}})).await.ok();
    }
    let expired = api.get(&format!("{CONFIGS}?watch=true&resourceVersion={version}")).await.ok();
    assert_eq!((&expired["type"], &expired["object"]["code"]), (&json!("ERROR"), &json!(410)));
    let message = expired["object"]["message"].as_str().unwrap();
    assert!(message.starts_with(&format!("too old resource version: {version} (")), "{message}");
    api.post(CONFIGS, &config("quiet")).await.ok();
    assert_eq!(named.named().await, event("ADDED", "quiet"), "a watch of one object outlives the history of others");
}

#[tokio::test]
async fn both_groups_show_the_same_events() {
    let api = Api::new().await;
    let modern = json!({"metadata": {"name": "e"}, "regarding": {"kind": "Pod", "name": "p", "namespace": "default", "uid": "u"},
        "note": "hello", "reason": "Started", "type": "Normal", "action": "Start", "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "c", "reportingInstance": "i"});
    api.post("/apis/events.k8s.io/v1/namespaces/default/events", &modern).await.ok();
    let core = api
        .get("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dp,involvedObject.kind%3DPod")
        .await
        .ok();
    assert_eq!((&core["items"][0]["message"], &core["apiVersion"]), (&json!("hello"), &json!("v1")));
    assert_eq!(core["items"][0].get("kind"), None, "items of built-in kinds do not repeat their type");
    let again = api.get("/apis/events.k8s.io/v1/namespaces/default/events?fieldSelector=regarding.name%3Dp").await.ok();
    assert_eq!((&again["items"][0]["note"], &again["kind"]), (&json!("hello"), &json!("EventList")));
}
