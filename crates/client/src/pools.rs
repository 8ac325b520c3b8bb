//! Warm pools together with their templates.

use crate::{
    ClientError, ContainerOptions,
    error::{is_conflict, is_not_found},
    manifest,
};
use agent_sandbox_api::v1beta1::{SandboxTemplate, SandboxWarmPool};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};

/// Creates a template with one container and, if `replicas` is given, a warm pool of the same name.
pub async fn create_pool(
    client: &Client,
    namespace: &str,
    name: &str,
    container: &ContainerOptions,
    replicas: Option<u32>,
) -> Result<(), ClientError> {
    let templates: Api<SandboxTemplate> = Api::namespaced(client.clone(), namespace);
    let pools: Api<SandboxWarmPool> = Api::namespaced(client.clone(), namespace);
    let mut template = manifest::template(name, container);
    template.spec.pod_template = manifest::with_daemon(template.spec.pod_template);
    let failed = |error: kube::Error| {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        if is_conflict(&error) {
            return ClientError::AlreadyExists { namespace, name };
        }
        ClientError::api(format!("create `{name}` in namespace `{namespace}`"))(error)
    };
    templates.create(&PostParams::default(), &template).await.map_err(failed)?;
    if let Some(replicas) = replicas {
        pools.create(&PostParams::default(), &manifest::pool(name, name, replicas)).await.map_err(failed)?;
    }
    Ok(())
}

/// Deletes a warm pool and the template of the same name. Missing objects are not an error.
pub async fn delete_pool(client: &Client, namespace: &str, name: &str) -> Result<(), ClientError> {
    let templates: Api<SandboxTemplate> = Api::namespaced(client.clone(), namespace);
    let pools: Api<SandboxWarmPool> = Api::namespaced(client.clone(), namespace);
    let operation = || format!("delete `{name}` in namespace `{namespace}`");
    for deleted in [
        pools.delete(name, &DeleteParams::default()).await.map(drop),
        templates.delete(name, &DeleteParams::default()).await.map(drop),
    ] {
        match deleted {
            Err(error) if !is_not_found(&error) => return Err(ClientError::api(operation())(error)),
            _ => {}
        }
    }
    Ok(())
}

/// The warm pools of a namespace: name, desired replicas, ready replicas.
pub async fn list_pools(client: &Client, namespace: &str) -> Result<Vec<(String, usize, usize)>, ClientError> {
    let pools: Api<SandboxWarmPool> = Api::namespaced(client.clone(), namespace);
    let list = pools.list(&ListParams::default()).await;
    let list = list.map_err(ClientError::api(format!("list warm pools in `{namespace}`")))?;
    let ready = |pool: &SandboxWarmPool| pool.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0);
    Ok(list
        .items
        .iter()
        .map(|pool| (pool.name_any(), pool.replicas(), usize::try_from(ready(pool)).unwrap_or_default()))
        .collect())
}
