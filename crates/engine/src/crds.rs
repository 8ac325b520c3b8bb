//! Installs the CRDs of this version of the program in the embedded API.

use crate::EngineError;
use agent_sandbox_api::crd;
use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt as _;
use kube::{Client, Error, core::Status};
use serde_json::{Value, json};
use tokio::task::JoinSet;

const PATH: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Installs the CRDs of this version, over those of an older one. The embedded API serves them from that moment on.
///
/// CRDs are the largest objects in the API: each is read and written by a task of its own, and one that is up to date
/// is not written.
pub(crate) async fn install(client: &Client) -> Result<(), EngineError> {
    let mut tasks = JoinSet::new();
    for definition in crd::crds().into_iter().chain(crd::engine_crds()) {
        let client = client.clone();
        tasks.spawn(async move {
            let name = definition["metadata"]["name"].as_str().unwrap_or_default();
            let installed = create_or_update(&client, name, &definition).await;
            installed.map_err(|source| EngineError::InstallCrd { name: name.to_owned(), source })
        });
    }
    while let Some(installed) = tasks.join_next().await {
        installed??;
    }
    Ok(())
}

async fn create_or_update(client: &Client, name: &str, definition: &Value) -> Result<(), Error> {
    let path = format!("{PATH}/{name}");
    let stored = match send(client, Method::GET, &path, "application/json", Vec::new()).await {
        Err(Error::Api(status)) if status.code == StatusCode::NOT_FOUND.as_u16() => {
            return send(client, Method::POST, PATH, "application/json", to_bytes(definition)?).await.map(drop);
        }
        stored => stored?,
    };
    let stored: Value = serde_json::from_slice(&stored).map_err(Error::SerdeError)?;
    if contains(&stored["spec"], &definition["spec"]) {
        return Ok(());
    }
    let patch = to_bytes(&json!({"spec": definition["spec"]}))?;
    send(client, Method::PATCH, &path, "application/merge-patch+json", patch).await.map(drop)
}

fn to_bytes(value: &Value) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(value).map_err(Error::SerdeError)
}

/// Sends a request and returns the response's bytes instead of an object: what was written is known, and parsing it
/// again would cost as much as writing it.
async fn send(client: &Client, method: Method, path: &str, content_type: &str, body: Vec<u8>) -> Result<Bytes, Error> {
    let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, content_type);
    let response = client.send(request.body(body.into()).map_err(Error::HttpError)?).await?;
    let code = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    if code.is_success() {
        return Ok(body);
    }
    let status = serde_json::from_slice(&body)
        .unwrap_or_else(|_| Status::failure(&format!("the API answered {code}"), "").with_code(code.as_u16()));
    Err(Error::Api(status.boxed()))
}

/// Whether the stored object holds everything that is wanted. The API fills in further fields.
fn contains(stored: &Value, wanted: &Value) -> bool {
    match (stored, wanted) {
        (Value::Object(stored), Value::Object(wanted)) => {
            wanted.iter().all(|(key, wanted)| stored.get(key).is_some_and(|stored| contains(stored, wanted)))
        }
        (Value::Array(stored), Value::Array(wanted)) => {
            stored.len() == wanted.len() && stored.iter().zip(wanted).all(|(stored, wanted)| contains(stored, wanted))
        }
        _ => stored == wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_the_api_filled_in_are_no_change_and_different_or_missing_ones_are() {
        let wanted = json!({"group": "g", "versions": [{"name": "v1", "served": true}]});
        let filled = json!({"group": "g", "conversion": {"strategy": "None"}, "versions": [{"name": "v1", "served": true, "storage": true}]});
        assert!(contains(&filled, &wanted));
        assert!(!contains(&json!({"group": "g"}), &wanted), "gone");
        assert!(!contains(&json!({"group": "g", "versions": [{"name": "v1", "served": false}]}), &wanted), "different");
        assert!(!contains(&json!({"group": "g", "versions": []}), &wanted), "shorter");
    }
}
