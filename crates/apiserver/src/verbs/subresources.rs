//! The subresources scale, binding, eviction and finalize.

use serde_json::{Map, Value, json};

use super::{
    Context, Payload, Reply, body,
    delete::{DeleteOutcome, delete_object},
    metadata::{meta_mut, meta_text, now},
    update::{modify, modify_object},
};
use crate::{
    patch,
    registry::ScaleSubresource,
    request::{DeleteOptions, Verb, WriteOptions},
    status::{ApiError, FieldError},
};

/// The paths of the scale's fields in the resource's objects.
fn scale_paths(context: &Context<'_>) -> ScaleSubresource {
    let path = |text: &str| text.split('.').map(str::to_owned).collect::<Vec<_>>();
    context.endpoint.version().subresources.scale.clone().unwrap_or_else(|| ScaleSubresource {
        spec_replicas: path("spec.replicas"),
        status_replicas: path("status.replicas"),
        label_selector: None,
    })
}

fn read_path<'a>(object: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(object, |at, step| at.get(step))
}

fn write_path(object: &mut Value, path: &[String], value: Value) {
    let Some((last, parents)) = path.split_last() else { return };
    let mut at = object;
    for step in parents {
        if !at[step.as_str()].is_object() {
            at[step.as_str()] = Value::Object(Map::new());
        }
        at = &mut at[step.as_str()];
    }
    at[last.as_str()] = value;
}

/// The `autoscaling/v1` Scale of an object.
fn to_scale(scale: &ScaleSubresource, object: &Value) -> Value {
    let mut metadata = Map::new();
    for key in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = object["metadata"].get(key) {
            metadata.insert(key.into(), value.clone());
        }
    }
    let number = |path: &[String]| read_path(object, path).and_then(Value::as_i64).unwrap_or(0);
    let mut out = json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": metadata,
        "spec": {},
        "status": { "replicas": number(&scale.status_replicas) },
    });
    if let Some(wanted) = read_path(object, &scale.spec_replicas).and_then(Value::as_i64) {
        out["spec"]["replicas"] = wanted.into();
    }
    let selector = match &scale.label_selector {
        Some(path) => read_path(object, path).and_then(Value::as_str).map(str::to_owned),
        None => object["spec"]["selector"]["matchLabels"].as_object().map(|labels| {
            labels.iter().map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default())).collect::<Vec<_>>().join(",")
        }),
    };
    if let Some(selector) = selector.filter(|s| !s.is_empty()) {
        out["status"]["selector"] = selector.into();
    }
    out
}

pub(super) async fn scale(context: &mut Context<'_>, raw: &[u8]) -> Result<Reply, ApiError> {
    let scale = scale_paths(context);
    if context.request.verb == Verb::Get {
        let object = context
            .core
            .store
            .get(&context.endpoint.resource.storage, &context.key())
            .ok_or_else(|| context.not_found())?;
        let value = context.core.conversions.view(&context.endpoint, &object).await?.to_value();
        return Ok(Reply::ok(Payload::Value(to_scale(&scale, &value))));
    }
    let options = WriteOptions::parse(&context.parts.uri, context.user_agent(), context.request.verb)?;
    let edit = ScaleEdit::parse(context, raw)?;
    let paths = scale.clone();
    // Custom kinds validate the number of replicas by their own schema.
    let custom = context.endpoint.resource.is_custom();
    let reply = modify(context, &options, false, move |mut object| {
        let result = edit.apply(to_scale(&paths, &object)).and_then(|edited| {
            let given = edited["metadata"]["resourceVersion"].clone();
            let replicas = edited["spec"].get("replicas").cloned().unwrap_or_else(|| 0.into());
            if replicas.as_i64().is_none_or(|n| n < 0 && !custom) {
                let error = FieldError::invalid("spec.replicas", &replicas, "must be greater than or equal to 0");
                return Err(ApiError::invalid("autoscaling", "Scale", meta_text(&object, "name"), &[error]));
            }
            write_path(&mut object, &paths.spec_replicas, replicas);
            meta_mut(&mut object)?.insert("resourceVersion".into(), given);
            Ok(object)
        });
        std::future::ready(result)
    })
    .await?;
    match &reply.payload {
        Payload::Object(view) => Ok(Reply { payload: Payload::Value(to_scale(&scale, &view.to_value())), ..reply }),
        _ => Ok(reply),
    }
}

/// A write to a Scale: a replacement, or a patch of the current one.
enum ScaleEdit {
    Replace(Value),
    Merge(Value),
    Json(patch::JsonPatch),
}

impl ScaleEdit {
    fn parse(context: &Context<'_>, raw: &[u8]) -> Result<Self, ApiError> {
        if context.request.verb == Verb::Update {
            return body::decode(context.content_type(), raw).map(Self::Replace);
        }
        match context.content_type().split(';').next().unwrap_or_default().trim() {
            "application/json-patch+json" => patch::JsonPatch::parse(raw).map(Self::Json),
            "application/merge-patch+json" | "application/strategic-merge-patch+json" => {
                body::from_json(raw).map(Self::Merge)
            }
            "application/apply-patch+yaml" => body::from_yaml(raw).map(Self::Merge),
            _ => Err(ApiError::unsupported_media_type(&["application/merge-patch+json"])),
        }
    }

    fn apply(&self, scale: Value) -> Result<Value, ApiError> {
        match self {
            Self::Replace(new) => Ok(new.clone()),
            Self::Merge(patch) => patch::merge(scale, patch),
            Self::Json(patch) => patch.apply(scale),
        }
    }
}

/// Binds a Pod to a node, if it has none, and sets its condition PodScheduled in the same write.
pub(super) async fn bind(context: &mut Context<'_>, raw: &[u8]) -> Result<Reply, ApiError> {
    let options = WriteOptions::parse(&context.parts.uri, context.user_agent(), context.request.verb)?;
    let binding = body::decode(context.content_type(), raw)?;
    check_namespace(&binding, &context.request.namespace)?;
    let node = binding["target"]["name"].as_str().unwrap_or_default().to_owned();
    if node.is_empty() {
        let error = FieldError::required("target.name", "");
        return Err(ApiError::invalid("", "Binding", &context.request.name, &[error]));
    }
    let uid = meta_text(&binding, "uid").to_owned();
    let name = context.request.name.clone();
    modify_object(context, &options, |pod| {
        if !uid.is_empty() && meta_text(pod, "uid") != uid {
            let why = format!(
                "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                meta_text(pod, "uid")
            );
            return Err(ApiError::conflict("", "pods/binding", &name, &why));
        }
        if pod["metadata"].get("deletionTimestamp").is_some() {
            let why = format!("pod {name} is being deleted, cannot be assigned to a host");
            return Err(ApiError::conflict("", "pods/binding", &name, &why));
        }
        let current = pod["spec"]["nodeName"].as_str().unwrap_or_default();
        if !current.is_empty() {
            let why = format!("pod {name} is already assigned to node {current:?}");
            return Err(ApiError::conflict("", "pods/binding", &name, &why));
        }
        pod["spec"]["nodeName"] = node.as_str().into();
        for (key, value) in binding["metadata"]["annotations"].as_object().into_iter().flatten() {
            pod["metadata"]["annotations"][key] = value.clone();
        }
        set_scheduled(pod);
        Ok(())
    })
    .await?;
    Ok(Reply::created(Payload::Value(
        json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201 }),
    )))
}

/// Sets the condition PodScheduled of a Pod.
pub(crate) fn set_scheduled(pod: &mut Value) {
    let condition =
        json!({ "type": "PodScheduled", "status": "True", "lastTransitionTime": now(), "lastProbeTime": null });
    let status = &mut pod["status"];
    if !status["conditions"].is_array() {
        status["conditions"] = json!([]);
    }
    if let Some(list) = status["conditions"].as_array_mut() {
        list.retain(|c| c["type"] != "PodScheduled");
        list.push(condition);
    }
}

/// Fails if the body of a subresource names another namespace than the path.
pub(crate) fn check_namespace(body: &Value, namespace: &str) -> Result<(), ApiError> {
    match meta_text(body, "namespace") {
        "" => Ok(()),
        given if given == namespace => Ok(()),
        _ => Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        )),
    }
}

/// Evicts a Pod: a delete with a permission of its own.
pub(super) async fn evict(context: &mut Context<'_>, raw: &[u8]) -> Result<Reply, ApiError> {
    let eviction = body::decode(context.content_type(), raw)?;
    check_namespace(&eviction, &context.request.namespace)?;
    let name = meta_text(&eviction, "name");
    if !name.is_empty() && name != context.request.name {
        return Err(ApiError::bad_request("name in URL does not match name in Eviction object"));
    }
    let options = match eviction.get("deleteOptions") {
        Some(given) => DeleteOptions::parse(&context.parts.uri, given.to_string().as_bytes())?,
        None => DeleteOptions::parse(&context.parts.uri, b"")?,
    };
    let resource = context.endpoint.resource.clone();
    match delete_object(context.core, &resource, &context.key(), &options).await? {
        DeleteOutcome::Removed(_) | DeleteOutcome::Marked(_) => {}
    }
    Ok(Reply::created(Payload::Value(
        json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201 }),
    )))
}

/// Replaces the finalizers in a namespace's spec.
pub(super) async fn finalize(context: &mut Context<'_>, raw: &[u8]) -> Result<Reply, ApiError> {
    let options = WriteOptions::parse(&context.parts.uri, context.user_agent(), context.request.verb)?;
    let given = body::decode(context.content_type(), raw)?;
    let finalizers = given["spec"]["finalizers"].clone();
    modify_object(context, &options, |namespace| {
        if finalizers.as_array().is_none_or(Vec::is_empty) {
            if let Some(spec) = namespace["spec"].as_object_mut() {
                spec.remove("finalizers");
            }
        } else {
            namespace["spec"]["finalizers"] = finalizers.clone();
        }
        Ok(())
    })
    .await
}
