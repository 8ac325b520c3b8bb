//! Abandoned creations against a scripted API.

use super::*;
use crate::{ClaimRequest, ClientError, Cluster, Connection, SandboxClient, Source};
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use kube::client::Body;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;

/// How the API handles the POST of a claim.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PostBehaviour {
    Answer,
    /// Stores the claim and breaks the connection.
    Lose,
    /// Stores a claim of the same name by another client, and breaks the connection.
    LoseBesideAnother,
}

#[derive(Default)]
struct Recorded {
    stored: Mutex<Option<Value>>,
    deleted: Mutex<Vec<Value>>,
    refuse_deletes: Mutex<u32>,
    posted: Notify,
}

fn client(post: PostBehaviour, recorded: Arc<Recorded>) -> SandboxClient {
    let service = tower::service_fn(move |request: Request<Body>| {
        let recorded = Arc::clone(&recorded);
        async move { respond(post, &recorded, request).await }
    });
    SandboxClient::new(Cluster::of(kube::Client::new(service, "default")), Connection::default())
}

async fn respond(
    post: PostBehaviour,
    recorded: &Recorded,
    request: Request<Body>,
) -> Result<Response<Full<Bytes>>, Box<dyn std::error::Error + Send + Sync>> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let object: Value = serde_json::from_slice(&body).unwrap_or_default();
    match parts.method {
        Method::POST => {
            let mut claim = object;
            claim["metadata"]["uid"] = "u-1".into();
            claim["metadata"]["resourceVersion"] = "1".into();
            if post == PostBehaviour::LoseBesideAnother {
                claim["metadata"]["annotations"][CLIENT_FIRST_REQUESTED_AT] = "another moment".into();
            }
            *recorded.stored.lock().unwrap() = Some(claim.clone());
            recorded.posted.notify_one();
            if post == PostBehaviour::Answer { Ok(json(201, &claim)) } else { Err("connection reset".into()) }
        }
        Method::DELETE => {
            let mut left = recorded.refuse_deletes.lock().unwrap();
            if *left > 0 {
                *left -= 1;
                return Ok(json(
                    503,
                    &json!({"kind": "Status", "status": "Failure", "message": "later", "reason": "", "code": 503}),
                ));
            }
            recorded.deleted.lock().unwrap().push(object);
            Ok(json(200, &json!({"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 200})))
        }
        // A watch of the claim never sends an event.
        _ if parts.uri.query().is_some_and(|query| query.contains("watch")) => {
            std::future::pending::<()>().await;
            Err("unreachable".into())
        }
        _ => match recorded.stored.lock().unwrap().clone() {
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

fn deleted_uids(recorded: &Recorded) -> Vec<Value> {
    recorded.deleted.lock().unwrap().iter().map(|options| options["preconditions"]["uid"].clone()).collect()
}

async fn eventually(condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), waiting).await.expect("the condition becomes true in time");
}

/// Drops the future after each possible number of polls, from before the request to the watch.
#[tokio::test]
async fn a_claim_whose_creation_is_dropped_at_any_point_is_deleted() {
    for polls in 0..40 {
        let recorded = Arc::new(Recorded::default());
        let client = client(PostBehaviour::Answer, Arc::clone(&recorded));
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
        // Nothing is sent before the first poll; a sent request completes and its claim is deleted.
        let expected = usize::from(polls > 0);
        eventually(|| deleted_uids(&recorded).len() == expected).await;
        assert_eq!(deleted_uids(&recorded), vec![Value::from("u-1"); expected], "after {polls} polls");
    }
}

#[tokio::test]
async fn a_pending_creation_is_waited_for_until_its_claim_is_deleted() {
    let recorded = Arc::new(Recorded::default());
    *recorded.refuse_deletes.lock().unwrap() = 2;
    let client = client(PostBehaviour::Answer, Arc::clone(&recorded));
    let creating = tokio::spawn(async move { client.claim(&request()).await.map(drop) });
    recorded.posted.notified().await;
    // As in a program that exits: the task is aborted and not awaited.
    creating.abort();
    wait_for_cleanup(Duration::from_secs(60)).await;
    assert_eq!(deleted_uids(&recorded), ["u-1"], "deleted after two failed attempts");
}

#[tokio::test]
async fn a_claim_whose_creation_had_no_response_is_found_and_deleted() {
    let recorded = Arc::new(Recorded::default());
    let failed = client(PostBehaviour::Lose, Arc::clone(&recorded)).claim(&request()).await;
    assert!(matches!(failed, Err(ClientError::Api { .. })));
    eventually(|| !recorded.deleted.lock().unwrap().is_empty()).await;
    assert_eq!(deleted_uids(&recorded), ["u-1"]);
}

#[tokio::test]
async fn an_object_of_the_same_name_by_another_client_is_not_deleted() {
    let recorded = Arc::new(Recorded::default());
    let failed = client(PostBehaviour::LoseBesideAnother, Arc::clone(&recorded)).claim(&request()).await;
    assert!(failed.is_err());
    wait_for_cleanup(Duration::from_secs(60)).await;
    assert!(recorded.deleted.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_failed_connection_means_that_nothing_was_created() {
    let unreachable = kube::Client::try_from(kube::Config::new("http://127.0.0.1:9".parse().unwrap())).unwrap();
    let error = unreachable.request_text(Request::new(Vec::new())).await.unwrap_err();
    assert!(!crate::error::may_have_been_applied(&error), "{error:?}");
}
