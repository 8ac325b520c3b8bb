//! Claims: building the object, creating it, waiting until it is ready, and deleting it again on failure.

use crate::{
    ClientError, READY_TIMEOUT, SandboxClient,
    cleanup::{DeleteOnDrop, run_to_completion},
    client::from_now,
    error::{is_conflict, is_not_found, may_have_been_applied},
    wait,
};
use agent_sandbox_api::{
    groups, keys,
    v1beta1::{SandboxClaim, SandboxTemplate, SandboxWarmPool},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, PostParams},
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, fmt::Debug, time::Duration};

/// The source of a claimed sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Pool(String),
    Template(String),
    /// A pool of this name, else a template of this name.
    Named(String),
    /// A template of this name, else a pool of this name.
    TemplateOrPool(String),
}

/// All options of a claim.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    pub source: Source,
    pub namespace: String,
    /// `None` generates a name. Such a claim is deleted if it does not become ready.
    pub name: Option<String>,
    /// Use an existing claim of this name if it refers to the same pool.
    pub adopt: bool,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub pod_labels: BTreeMap<String, String>,
    pub pod_annotations: BTreeMap<String, String>,
    /// Any entry means a cold start.
    pub env: Vec<(String, String)>,
    /// In the format of the API; any entry means a cold start.
    pub volume_claim_templates: Vec<Value>,
    /// Time after which the claim is deleted.
    pub expires_after: Option<Duration>,
    /// Time at which the claim is deleted, instead of `expires_after`.
    pub expires_at: Option<Time>,
    /// Delete the claim if it does not become ready, also if its name was given.
    pub delete_on_failure: bool,
    pub ready_timeout: Duration,
    /// Value of the label that names the client.
    pub created_by: &'static str,
}

impl ClaimRequest {
    pub fn new(source: Source, namespace: impl Into<String>) -> Self {
        Self {
            source,
            namespace: namespace.into(),
            name: None,
            adopt: false,
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            pod_labels: BTreeMap::new(),
            pod_annotations: BTreeMap::new(),
            env: Vec::new(),
            volume_claim_templates: Vec::new(),
            expires_after: None,
            expires_at: None,
            delete_on_failure: false,
            ready_timeout: READY_TIMEOUT,
            created_by: "rust-client",
        }
    }

    /// The object to create, in the API version that can express its source.
    fn object(&self, name: &str, source: &ResolvedSource, trace: Option<String>) -> Value {
        let mut labels = self.labels.clone();
        labels.insert(keys::labels::CREATED_BY.to_owned(), self.created_by.to_owned());
        let mut annotations = self.annotations.clone();
        let now = jiff::Timestamp::now().to_string();
        annotations.entry(keys::annotations::CLIENT_FIRST_REQUESTED_AT.to_owned()).or_insert(now);
        if let Some(trace) = trace {
            annotations.entry(keys::annotations::TRACE_CONTEXT.to_owned()).or_insert(trace);
        }
        let (version, mut spec) = match source {
            ResolvedSource::Pool(pool) => (groups::EXTENSIONS_V1BETA1, json!({"warmPoolRef": {"name": pool}})),
            ResolvedSource::Template(template) => (ALPHA, json!({"sandboxTemplateRef": {"name": template}})),
        };
        if let Some(time) = self.expires_at.clone().or_else(|| self.expires_after.map(from_now)) {
            spec["lifecycle"] = json!({"shutdownTime": time, "shutdownPolicy": "Delete"});
        }
        if !self.env.is_empty() {
            spec["env"] = self.env.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
        }
        for (member, map) in [("labels", &self.pod_labels), ("annotations", &self.pod_annotations)] {
            if !map.is_empty() {
                spec["additionalPodMetadata"][member] = json!(map);
            }
        }
        if !self.volume_claim_templates.is_empty() {
            spec["volumeClaimTemplates"] = json!(self.volume_claim_templates);
        }
        let metadata = json!({"name": name, "namespace": self.namespace, "labels": labels, "annotations": annotations});
        json!({"apiVersion": version, "kind": "SandboxClaim", "metadata": metadata, "spec": spec})
    }
}

/// The older API version, the only one that can refer to a template without a pool.
const ALPHA: &str = "extensions.agents.x-k8s.io/v1alpha1";

#[derive(Debug, PartialEq, Eq)]
enum ResolvedSource {
    Pool(String),
    Template(String),
}

/// Creates a claim and waits until it is ready. A claim with a generated name is deleted if that fails or the caller
/// stops waiting.
pub(crate) async fn create(client: &SandboxClient, request: &ClaimRequest) -> Result<SandboxClaim, ClientError> {
    let kube = &client.cluster().client;
    let source = resolve(kube, &request.namespace, &request.source).await?;
    let generated = request.name.is_none() || request.delete_on_failure;
    let name = request.name.clone().unwrap_or_else(generated_name);
    let object = request.object(&name, &source, client.trace().map(crate::TraceContext::to_json));
    let claims: Api<SandboxClaim> = Api::namespaced(kube.clone(), &request.namespace);
    let requested_at = &object["metadata"]["annotations"][keys::annotations::CLIENT_FIRST_REQUESTED_AT];
    let requested_at = requested_at.as_str().unwrap_or_default().to_owned();
    let posting = post(kube.clone(), request.namespace.clone(), object);
    let target = (claims.clone(), name.clone());
    let posted = run_to_completion(async move {
        let (api, name) = target;
        match posting.await {
            Ok(created) => {
                let cleanup = generated.then(|| DeleteOnDrop::new(api, name, created.uid.clone()));
                Ok((created, cleanup))
            }
            Err(error) => {
                if generated && may_have_been_applied(&error) {
                    drop(DeleteOnDrop::without_uid(api, name, requested_at));
                }
                Err(error)
            }
        }
    });
    let (created, cleanup) = match posted.await {
        Ok(done) => done,
        Err(error) if is_conflict(&error) && request.adopt => (adopt(&claims, &name, &source).await?, None),
        Err(error) if is_conflict(&error) => {
            return Err(ClientError::AlreadyExists { namespace: request.namespace.clone(), name });
        }
        Err(error) => {
            let operation = format!("create claim `{name}` in namespace `{}`", request.namespace);
            return Err(ClientError::api(operation)(error));
        }
    };
    let ready = wait::claim_ready_from(kube, &request.namespace, &name, &created, request.ready_timeout).await?;
    if let Some(cleanup) = cleanup {
        cleanup.disarm();
    }
    Ok(ready)
}

/// Creates a claim and returns it as it was stored, without waiting for a sandbox. `adopt` and `ready_timeout` of the
/// request have no meaning here.
pub async fn create_claim(client: &Client, request: &ClaimRequest) -> Result<SandboxClaim, ClientError> {
    let source = resolve(client, &request.namespace, &request.source).await?;
    let name = request.name.clone().unwrap_or_else(generated_name);
    create_object(client, &request.namespace, "sandboxclaims", &request.object(&name, &source, None)).await?;
    // A claim on a template is created in the older API version: read it in the newer one.
    let claims: Api<SandboxClaim> = Api::namespaced(client.clone(), &request.namespace);
    claims.get(&name).await.map_err(ClientError::api(format!("read claim `{name}`")))
}

fn generated_name() -> String {
    format!("sandbox-claim-{:08x}", rand::random::<u32>())
}

/// A claim that was created or adopted.
pub(crate) struct Created {
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    /// Set for adopted claims, which may be ready already.
    pub(crate) object: Option<SandboxClaim>,
}

/// Creates an object in the API version that it contains.
pub async fn create_object(
    client: &Client,
    namespace: &str,
    plural: &str,
    object: &Value,
) -> Result<Value, ClientError> {
    let stored = post_object(client, namespace, plural, object).await;
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let stored = stored.map_err(|error| {
        if is_conflict(&error) {
            return ClientError::AlreadyExists { namespace: namespace.to_owned(), name: name.clone() };
        }
        ClientError::api(format!("create `{name}` in namespace `{namespace}`"))(error)
    })?;
    serde_json::to_value(stored).map_err(|error| ClientError::api("read the answer")(kube::Error::SerdeError(error)))
}

async fn post_object(
    client: &Client,
    namespace: &str,
    plural: &str,
    object: &Value,
) -> Result<DynamicObject, kube::Error> {
    let api_version = object["apiVersion"].as_str().unwrap_or_default();
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let resource = ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: api_version.to_owned(),
        kind: object["kind"].as_str().unwrap_or_default().to_owned(),
        plural: plural.to_owned(),
    };
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let wanted: DynamicObject = serde_json::from_value(object.clone()).map_err(kube::Error::SerdeError)?;
    api.create(&PostParams::default(), &wanted).await
}

async fn post(client: Client, namespace: String, object: Value) -> Result<Created, kube::Error> {
    let stored = post_object(&client, &namespace, "sandboxclaims", &object).await?;
    let resource_version = stored.resource_version().unwrap_or_default();
    Ok(Created { uid: stored.uid().unwrap_or_default(), resource_version, object: None })
}

/// Adopts an existing claim if it refers to the same pool and is not being deleted.
async fn adopt(claims: &Api<SandboxClaim>, name: &str, source: &ResolvedSource) -> Result<Created, ClientError> {
    let found = claims.get(name).await.map_err(ClientError::api(format!("adopt claim `{name}`")))?;
    if found.is_deleting() {
        return Err(ClientError::Invalid(format!("claim `{name}` is being deleted; wait until it is gone")));
    }
    let pool = &found.spec.warm_pool_ref.name;
    let wanted = match source {
        ResolvedSource::Pool(pool) => pool.clone(),
        ResolvedSource::Template(template) => format!("shadow-pool-{template}"),
    };
    if *pool != wanted {
        return Err(ClientError::Invalid(format!("claim `{name}` is on warm pool `{pool}`, not `{wanted}`")));
    }
    let (uid, resource_version) = (found.uid().to_owned(), found.resource_version().to_owned());
    Ok(Created { uid, resource_version, object: Some(found) })
}

async fn resolve(client: &Client, namespace: &str, source: &Source) -> Result<ResolvedSource, ClientError> {
    let name = match source {
        Source::Pool(pool) => return Ok(ResolvedSource::Pool(pool.clone())),
        Source::Template(template) => return Ok(ResolvedSource::Template(template.clone())),
        Source::Named(name) | Source::TemplateOrPool(name) => name,
    };
    let pools: Api<SandboxWarmPool> = Api::namespaced(client.clone(), namespace);
    let templates: Api<SandboxTemplate> = Api::namespaced(client.clone(), namespace);
    let pool_first = matches!(source, Source::Named(_));
    let operation = format!("look for `{name}` in namespace `{namespace}`");
    for look_for_pool in [pool_first, !pool_first] {
        let there = if look_for_pool { exists(&pools, name).await } else { exists(&templates, name).await };
        match there.map_err(ClientError::api(operation.clone()))? {
            true if look_for_pool => return Ok(ResolvedSource::Pool(name.clone())),
            true => return Ok(ResolvedSource::Template(name.clone())),
            false => {}
        }
    }
    Err(ClientError::NoSource { namespace: namespace.to_owned(), name: name.clone() })
}

/// True if an object exists. Without permission to read it, true is assumed; the claim's own status reports the error
/// later.
async fn exists<K>(api: &Api<K>, name: &str) -> Result<bool, kube::Error>
where
    K: Clone + Debug + serde::de::DeserializeOwned,
{
    match api.get_metadata(name).await {
        Ok(_) => Ok(true),
        Err(error) if is_not_found(&error) => Ok(false),
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(true),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d_191_an_expiry_is_whole_seconds_with_a_policy() {
        let mut request = ClaimRequest::new(Source::Pool("p".into()), "default");
        request.expires_after = Some(Duration::from_secs(60));
        let object = request.object("c", &ResolvedSource::Pool("p".into()), None);
        let time = object["spec"]["lifecycle"]["shutdownTime"].as_str().unwrap();
        assert!(time.ends_with('Z') && !time.contains('.'), "{time}");
        assert_eq!(object["spec"]["lifecycle"]["shutdownPolicy"], "Delete");
    }

    #[test]
    fn the_claim_contains_only_requested_fields() {
        let mut request = ClaimRequest::new(Source::Pool("p".into()), "default");
        let plain = request.object("c", &ResolvedSource::Pool("p".into()), None);
        assert_eq!(plain["spec"], json!({"warmPoolRef": {"name": "p"}}));
        request.pod_labels.insert("a".into(), "b".into());
        request.env.push(("K".into(), "V".into()));
        let full = request.object("c", &ResolvedSource::Template("t".into()), Some("{}".into()));
        assert_eq!(full["apiVersion"], ALPHA);
        assert_eq!(full["spec"]["additionalPodMetadata"], json!({"labels": {"a": "b"}}));
        assert_eq!(full["spec"]["env"], json!([{"name": "K", "value": "V"}]));
        assert_eq!(full["metadata"]["annotations"]["opentelemetry.io/trace-context"], "{}");
    }
}
