//! The index updated by a real `kube::Client`, whose API is a few lines of HTTP.

use std::convert::Infallible;
use std::sync::Arc;

use agent_sandbox_router::{Deps, KubeTokenReview, Router, TokenReview};
use bytes::Bytes;
use futures::StreamExt;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::StreamBody;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use parking_lot::Mutex;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::support::*;

fn pod_object(name: &str, version: u64, ready: bool) -> serde_json::Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "default", "uid": format!("pod-{name}"), "resourceVersion": version.to_string(),
            "labels": {"agents.x-k8s.io/sandbox-name-hash": "h"},
            "ownerReferences": [{
                "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": name, "uid": format!("uid-{name}"),
                "controller": true
            }],
        },
        "spec": {"containers": [{"name": "c"}]},
        "status": {"podIP": "10.0.0.7", "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]},
    })
}

/// An API with one kind and two verbs. Watch events come from the test.
struct Api {
    listed: serde_json::Value,
    events: Mutex<Option<mpsc::UnboundedReceiver<serde_json::Value>>>,
    queries: Mutex<Vec<String>>,
}

impl Api {
    fn answer(&self, query: &str) -> Response<UnsyncBoxBody<Bytes, Infallible>> {
        self.queries.lock().push(query.to_owned());
        if !query.contains("watch=true") {
            return Response::new(Full::from(self.listed.to_string()).boxed_unsync());
        }
        let events = self.events.lock().take();
        let lines = futures::stream::unfold(events, |events| async move {
            let Some(mut receiver) = events else { return std::future::pending().await };
            let event = receiver.recv().await?;
            Some((Ok(Frame::data(Bytes::from(format!("{event}\n")))), Some(receiver)))
        });
        Response::new(StreamBody::new(lines.boxed()).boxed_unsync())
    }
}

/// D-146, D-148: the requests that the API receives.
#[tokio::test]
async fn tokens_are_reviewed_by_the_api() {
    let asked = Arc::<Mutex<Vec<serde_json::Value>>>::default();
    let theirs = Arc::clone(&asked);
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let asked = Arc::clone(&theirs);
        async move {
            assert_eq!(request.uri().path(), "/apis/authentication.k8s.io/v1/tokenreviews");
            let mut review: serde_json::Value =
                serde_json::from_slice(&request.into_body().collect().await?.to_bytes()).unwrap();
            let good = review["spec"]["token"] == "good";
            asked.lock().push(review["spec"].clone());
            review["status"] = json!({"authenticated": good, "audiences": review["spec"]["audiences"]});
            Ok::<_, kube::Error>(Response::new(Full::from(review.to_string())))
        }
    });
    let api = KubeTokenReview(kube::Client::new(service, "default"));
    let audiences = ["a".to_owned(), "b".to_owned()];
    let outcome = api.review("good", &audiences).await.unwrap();
    assert!(outcome.authenticated && outcome.audiences == audiences);
    assert!(!api.review("bad", &[]).await.unwrap().authenticated);
    assert_eq!(*asked.lock(), [json!({"token": "good", "audiences": ["a", "b"]}), json!({"token": "bad"})]);
}

/// D-157, D-158: through the watch.
#[tokio::test]
async fn the_index_follows_the_api() {
    let (events, receiver) = mpsc::unbounded_channel();
    let api = Arc::new(Api {
        listed: json!({
            "apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": "10"},
            "items": [pod_object("first", 5, true), pod_object("unready", 6, false)],
        }),
        events: Mutex::new(Some(receiver)),
        queries: Mutex::default(),
    });
    let theirs = Arc::clone(&api);
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let response = theirs.answer(request.uri().query().unwrap_or_default());
        std::future::ready(Ok::<_, Infallible>(response))
    });
    let router = Arc::new(Router::new(quiet(), Deps::watching(kube::Client::new(service, "default"))).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (serving, stop) = (Arc::clone(&router), CancellationToken::new());
    let _stop = stop.clone().drop_guard();
    tokio::spawn(async move { serving.serve(listener, stop).await });

    tokio::time::timeout(TIMEOUT, router.wait_synced()).await.expect("the first list arrives");
    let index = router.index();
    assert!(index.by_name("default", "first").is_some() && index.by_name("default", "unready").is_none());
    let ready = send(addr, Request::get("/readyz").body(Full::default()).unwrap()).await;
    assert_eq!(ready.status, 200);
    {
        let queries = api.queries.lock();
        assert!(queries[0].contains("labelSelector=agents.x-k8s.io%2Fsandbox-name-hash"), "{queries:?}");
        assert!(queries[0].contains("fieldSelector=status.podIP%21%3D"), "{queries:?}");
    }
    let send_event =
        |kind: &str, object: serde_json::Value| events.send(json!({"type": kind, "object": object})).unwrap();
    send_event("ADDED", pod_object("second", 11, true));
    eventually("a new Pod is found", || index.by_name("default", "second").is_some()).await;
    send_event("MODIFIED", pod_object("second", 12, false));
    eventually("an unready Pod is forgotten", || index.by_name("default", "second").is_none()).await;
    send_event("DELETED", pod_object("first", 13, true));
    eventually("a deleted Pod is forgotten", || index.is_empty()).await;
}
