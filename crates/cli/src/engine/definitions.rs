//! Installs the CRDs that this version of the program carries into its own API.

use agent_sandbox_api::crd;
use anyhow::{Context as _, Result};
use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt as _;
use kube::{Client, core::Status};
use serde_json::{Value, json};
use tokio::task::JoinSet;

const PATH: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Installs the CRDs of this version, over those of an older one. The embedded API serves them from that moment on.
///
/// They are the largest objects there are: each is read and written by a task of its own, and none is changed that is as it should be.
pub(super) async fn install(client: &Client) -> Result<()> {
    let mut tasks = JoinSet::new();
    for definition in crd::crds() {
        let client = client.clone();
        tasks.spawn(async move {
            let name = definition["metadata"]["name"].as_str().unwrap_or_default();
            put(&client, name, &definition).await.with_context(|| format!("cannot install {name}"))
        });
    }
    while let Some(installed) = tasks.join_next().await {
        installed.context("a definition's task ended early")??;
    }
    Ok(())
}

async fn put(client: &Client, name: &str, definition: &Value) -> Result<()> {
    let path = format!("{PATH}/{name}");
    let Some(stored) = send(client, Method::GET, &path, "application/json", Vec::new()).await? else {
        let created = send(client, Method::POST, PATH, "application/json", serde_json::to_vec(definition)?).await?;
        return created.map(drop).context("the API knows no definitions");
    };
    let stored: Value = serde_json::from_slice(&stored).context("the stored definition cannot be read")?;
    if holds(&stored["spec"], &definition["spec"]) {
        return Ok(());
    }
    let patch = serde_json::to_vec(&json!({"spec": definition["spec"]}))?;
    let patched = send(client, Method::PATCH, &path, "application/merge-patch+json", patch).await?;
    patched.map(drop).context("it went in the meantime")
}

/// The answer's bytes, not its object: what was written is known, and reading it again costs as much as the writing. `None` when there is
/// no such thing.
async fn send(client: &Client, method: Method, path: &str, kind: &str, body: Vec<u8>) -> Result<Option<Bytes>> {
    let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, kind).body(body.into())?;
    let response = client.send(request).await?;
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    if status.is_success() || status == StatusCode::NOT_FOUND {
        return Ok(status.is_success().then_some(body));
    }
    Err(match serde_json::from_slice::<Status>(&body) {
        Ok(refusal) => kube::Error::Api(refusal.boxed()).into(),
        Err(_) => anyhow::anyhow!("the API answered {status}"),
    })
}

/// Everything that is wanted is there; the API has filled in more.
fn holds(stored: &Value, wanted: &Value) -> bool {
    match (stored, wanted) {
        (Value::Object(stored), Value::Object(wanted)) => {
            wanted.iter().all(|(key, wanted)| stored.get(key).is_some_and(|stored| holds(stored, wanted)))
        }
        (Value::Array(stored), Value::Array(wanted)) => {
            stored.len() == wanted.len() && stored.iter().zip(wanted).all(|(stored, wanted)| holds(stored, wanted))
        }
        _ => stored == wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_api_filled_in_is_no_change_and_what_differs_or_is_gone_is() {
        let wanted = json!({"group": "g", "versions": [{"name": "v1", "served": true}]});
        let filled = json!({"group": "g", "conversion": {"strategy": "None"}, "versions": [{"name": "v1", "served": true, "storage": true}]});
        assert!(holds(&filled, &wanted));
        assert!(!holds(&json!({"group": "g"}), &wanted), "gone");
        assert!(!holds(&json!({"group": "g", "versions": [{"name": "v1", "served": false}]}), &wanted), "different");
        assert!(!holds(&json!({"group": "g", "versions": []}), &wanted), "shorter");
    }
}
