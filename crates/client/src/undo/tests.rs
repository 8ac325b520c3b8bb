//! Creations that are given up, against an API whose every answer is the test's.

use super::*;
use crate::{ClaimRequest, ClientError, Cluster, Connection, SandboxClient, Source};
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use kube::client::Body;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;

/// What the API does with the first claim that it is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Post {
    Answer,
    /// Stores it and breaks the connection.
    Lose,
    /// Has one of that name from somebody else, and breaks the connection.
    LoseBesideAnother,
}

#[derive(Default)]
struct Seen {
    stored: Mutex<Option<Value>>,
    deleted: Mutex<Vec<Value>>,
    refuse_deletes: Mutex<u32>,
    posted: Notify,
}

fn client(post: Post, seen: Arc<Seen>) -> SandboxClient {
    let service = tower::service_fn(move |request: Request<Body>| {
        let seen = Arc::clone(&seen);
        async move { answer(post, &seen, request).await }
    });
    SandboxClient::new(Cluster::of(kube::Client::new(service, "default")), Connection::default())
}

async fn answer(
    post: Post,
    seen: &Seen,
    request: Request<Body>,
) -> Result<Response<Full<Bytes>>, Box<dyn std::error::Error + Send + Sync>> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let said: Value = serde_json::from_slice(&body).unwrap_or_default();
    match parts.method {
        Method::POST => {
            let mut claim = said;
            claim["metadata"]["uid"] = "u-1".into();
            claim["metadata"]["resourceVersion"] = "1".into();
            if post == Post::LoseBesideAnother {
                claim["metadata"]["annotations"][CLIENT_FIRST_REQUESTED_AT] = "another moment".into();
            }
            *seen.stored.lock().unwrap() = Some(claim.clone());
            seen.posted.notify_one();
            if post == Post::Answer { Ok(json(201, &claim)) } else { Err("connection reset".into()) }
        }
        Method::DELETE => {
            let mut left = seen.refuse_deletes.lock().unwrap();
            if *left > 0 {
                *left -= 1;
                return Ok(json(
                    503,
                    &json!({"kind": "Status", "status": "Failure", "message": "later", "reason": "", "code": 503}),
                ));
            }
            seen.deleted.lock().unwrap().push(said);
            Ok(json(200, &json!({"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 200})))
        }
        // A watch of the claim never says anything.
        _ if parts.uri.query().is_some_and(|query| query.contains("watch")) => {
            std::future::pending::<()>().await;
            Err("unreachable".into())
        }
        _ => match seen.stored.lock().unwrap().clone() {
            Some(claim) => Ok(json(200, &claim)),
            None => Ok(json(
                404,
                &json!({"kind": "Status", "status": "Failure", "message": "none", "reason": "NotFound", "code": 404}),
            )),
        },
    }
}

fn json(status: u16, value: &Value) -> Response<Full<Bytes>> {
    let body = Full::new(Bytes::from(value.to_string()));
    Response::builder().status(status).header("content-type", "application/json").body(body).unwrap()
}

fn request() -> ClaimRequest {
    ClaimRequest::new(Source::Pool("pool".into()), "default")
}

fn deleted_uids(seen: &Seen) -> Vec<Value> {
    seen.deleted.lock().unwrap().iter().map(|options| options["preconditions"]["uid"].clone()).collect()
}

async fn eventually(condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), waiting).await.expect("it happens in time");
}

/// Every moment between the request and the watch: whatever the number of polls after which the caller lets go.
#[tokio::test]
async fn a_creation_given_up_at_any_moment_is_undone() {
    for polls in 0..40 {
        let seen = Arc::new(Seen::default());
        let client = client(Post::Answer, Arc::clone(&seen));
        let wanted = request();
        {
            let creating = client.claim(&wanted);
            tokio::pin!(creating);
            for _ in 0..polls {
                let polled = futures::poll!(creating.as_mut());
                assert!(polled.is_pending(), "the claim never becomes ready");
                tokio::task::yield_now().await;
            }
        }
        // Nothing was sent before the first poll; what was sent comes to its end and is undone.
        let expected = usize::from(polls > 0);
        eventually(|| deleted_uids(&seen).len() == expected).await;
        assert_eq!(deleted_uids(&seen), vec![Value::from("u-1"); expected], "after {polls} polls");
    }
}

#[tokio::test]
async fn an_open_creation_counts_until_it_is_undone() {
    let seen = Arc::new(Seen::default());
    *seen.refuse_deletes.lock().unwrap() = 2;
    let client = client(Post::Answer, Arc::clone(&seen));
    let creating = tokio::spawn(async move { client.claim(&request()).await.map(drop) });
    seen.posted.notified().await;
    // As a program that ends: the task is told to stop, and nobody waits for that.
    creating.abort();
    settle(Duration::from_secs(60)).await;
    assert_eq!(deleted_uids(&seen), ["u-1"], "settled, and refused twice before");
}

#[tokio::test]
async fn a_creation_without_an_answer_is_found_and_undone() {
    let seen = Arc::new(Seen::default());
    let failed = client(Post::Lose, Arc::clone(&seen)).claim(&request()).await;
    assert!(matches!(failed, Err(ClientError::Api { .. })));
    eventually(|| !seen.deleted.lock().unwrap().is_empty()).await;
    assert_eq!(deleted_uids(&seen), ["u-1"]);
}

#[tokio::test]
async fn somebody_elses_object_of_that_name_stays() {
    let seen = Arc::new(Seen::default());
    let failed = client(Post::LoseBesideAnother, Arc::clone(&seen)).claim(&request()).await;
    assert!(failed.is_err());
    settle(Duration::from_secs(60)).await;
    assert!(seen.deleted.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_connection_that_never_was_leaves_nothing_to_look_for() {
    let nobody = kube::Client::try_from(kube::Config::new("http://127.0.0.1:9".parse().unwrap())).unwrap();
    let error = nobody.request_text(Request::new(Vec::new())).await.unwrap_err();
    assert!(!crate::error::may_have_happened(&error), "{error:?}");
}
