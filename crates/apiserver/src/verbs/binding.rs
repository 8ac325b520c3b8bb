//! `POST pods/NAME/binding`: a scheduler gives a Pod to a node.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Context, Payload, Reply, body, update::modify};
use crate::{request::WriteOptions, status::ApiError};

/// Sets the node, and that the Pod is scheduled, in one write. A Pod that already has a node keeps it.
pub(super) async fn bind(context: &mut Context<'_>, raw: &[u8]) -> Result<Reply, ApiError> {
    let options = WriteOptions::parse(&context.parts.uri, context.agent())?;
    let binding = body::decode(context.content_type(), raw)?;
    let node = binding["target"]["name"].as_str().unwrap_or_default().to_owned();
    if node.is_empty() {
        return Err(ApiError::bad_request("target.name of a binding must name a node"));
    }
    let uid = binding["metadata"]["uid"].clone();
    let (group, resource) = (context.request.group.clone(), context.request.resource.clone());
    let name = context.request.name.clone();
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    modify(context, &options, |pod| {
        let result = match pod["spec"]["nodeName"].as_str() {
            Some(given) if !given.is_empty() => Err(ApiError::conflict(
                &group,
                &resource,
                &name,
                &format!("pod {name} is already assigned to node {given:?}"),
            )),
            _ => Ok(scheduled(pod, &node, &uid, &now)),
        };
        async move { result }
    })
    .await?;
    Ok(Reply::created(Payload::Value(
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}),
    )))
}

fn scheduled(mut pod: Value, node: &str, uid: &Value, now: &str) -> Value {
    if uid.is_string() {
        // Compared with the stored one: a Pod of the same name made since is a conflict.
        pod["metadata"]["uid"] = uid.clone();
    }
    pod["spec"]["nodeName"] = node.into();
    let condition = json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now});
    match pod["status"]["conditions"].as_array_mut() {
        Some(conditions) => {
            conditions.retain(|c| c["type"] != "PodScheduled");
            conditions.push(condition);
        }
        None => pod["status"]["conditions"] = json!([condition]),
    }
    pod
}
