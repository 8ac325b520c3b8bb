//! Builds the objects that the SDK creates.

use agent_sandbox_api::{
    Opaque, keys,
    template::{ClaimEnvVar, ClaimShutdownPolicy, NameRef, PodTemplate, ShutdownPolicy},
    v1beta1::{ClaimLifecycle, Sandbox, SandboxClaim, SandboxClaimSpec, SandboxSpec, SandboxTemplate, SandboxWarmPool},
};
use k8s_openapi::{
    api::core::v1::Pod,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use serde_json::{Value, json};

/// Name of the only container of a sandbox.
const CONTAINER: &str = "sandbox";
/// Path at which the embedded node mounts sandboxd in a container.
const SANDBOXD: &str = "/.agent-sandbox/sandboxd";
/// Port of sandboxd.
const PORT: u16 = 8888;

/// Options of a sandbox's container.
#[derive(Clone, Debug, Default)]
pub struct ContainerOptions {
    pub image: String,
    pub command: Vec<String>,
    pub env: Vec<(String, String)>,
    pub memory: Option<String>,
    pub cpus: Option<String>,
    /// Disk space of what the container writes.
    pub storage: Option<String>,
    pub runtime_class: Option<String>,
    pub working_dir: Option<String>,
    /// The command runs once: it is not started again, whatever its exit code is.
    pub runs_once: bool,
    /// Host folders to mount: source, target, read-only.
    pub host_paths: Vec<(String, String, bool)>,
    /// Host folders to mount a private copy of, at the same path. Only the embedded node makes copies.
    pub copies: Vec<CopiedFolder>,
}

/// A host folder of which a sandbox gets a private copy.
#[derive(Clone, Debug)]
pub struct CopiedFolder {
    /// Name of the volume.
    pub name: String,
    pub path: String,
    /// Its changes are never shown or applied.
    pub private: bool,
}

/// Options of a claim.
#[derive(Clone, Debug, Default)]
pub struct ClaimOptions {
    /// `None` lets the API generate one.
    pub name: Option<String>,
    pub pool: String,
    pub env: Vec<(String, String)>,
    pub expires_at: Option<Time>,
}

/// A Sandbox with one container.
pub fn sandbox(name: &str, container: &ContainerOptions, expires_at: Option<Time>) -> Sandbox {
    let policy = expires_at.is_some().then_some(ShutdownPolicy::Delete);
    Sandbox {
        metadata: named(name),
        spec: SandboxSpec {
            pod_template: pod_template(container),
            shutdown_time: expires_at,
            shutdown_policy: policy,
            ..SandboxSpec::default()
        },
        status: None,
    }
}

/// A claim on a warm pool.
pub fn claim(options: &ClaimOptions) -> SandboxClaim {
    let env = options.env.iter().map(|(name, value)| ClaimEnvVar {
        name: name.clone(),
        value: value.clone(),
        ..ClaimEnvVar::default()
    });
    let metadata = match &options.name {
        Some(name) => named(name),
        None => ObjectMeta { generate_name: Some("sandbox-claim-".to_owned()), ..ObjectMeta::default() },
    };
    SandboxClaim {
        metadata,
        spec: SandboxClaimSpec {
            warm_pool_ref: NameRef::new(options.pool.clone()),
            lifecycle: options.expires_at.clone().map(|time| ClaimLifecycle {
                shutdown_time: Some(time),
                shutdown_policy: Some(ClaimShutdownPolicy::Delete),
                ..ClaimLifecycle::default()
            }),
            env: (!options.env.is_empty()).then(|| env.collect()),
            ..SandboxClaimSpec::default()
        },
        status: None,
    }
}

/// A Pod without a Sandbox whose only container runs sandboxd, for a single command.
pub fn pod(name: &str, container: &ContainerOptions) -> serde_json::Result<Pod> {
    let mut spec = pod_spec(&ContainerOptions { runs_once: true, ..container.clone() });
    spec["containers"][0]["command"] = json!([SANDBOXD]);
    // The command runs beside the daemon through exec, so nothing waits for the daemon's port.
    if let Some(first) = spec["containers"][0].as_object_mut() {
        first.remove("readinessProbe");
    }
    let mut annotations = json!({keys::annotations::INJECT_SANDBOXD: "true"});
    if let Some(names) = copied_volumes(container) {
        annotations[keys::annotations::COPIED_VOLUMES] = json!(names);
    }
    serde_json::from_value(json!({"metadata": {"name": name, "annotations": annotations}, "spec": spec}))
}

/// A template with one container.
pub fn template(name: &str, container: &ContainerOptions) -> SandboxTemplate {
    let mut template = SandboxTemplate { metadata: named(name), ..SandboxTemplate::default() };
    template.spec.pod_template = pod_template(container);
    template
}

/// A warm pool of sandboxes created from a template.
pub fn pool(name: &str, template: &str, replicas: u32) -> SandboxWarmPool {
    let mut pool = SandboxWarmPool { metadata: named(name), ..SandboxWarmPool::default() };
    pool.spec.replicas = Some(i32::try_from(replicas).unwrap_or(i32::MAX));
    pool.spec.sandbox_template_ref = NameRef::new(template);
    pool
}

/// Adds the annotation that makes supporting nodes inject sandboxd into the Pod, whatever its image.
pub(crate) fn with_daemon(template: PodTemplate) -> PodTemplate {
    let mut value = serde_json::to_value(template).expect("a Pod template is JSON");
    value["metadata"]["annotations"][keys::annotations::INJECT_SANDBOXD] = json!("true");
    serde_json::from_value(value).expect("a Pod template with one annotation more is one")
}

fn named(name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }
}

fn pod_template(container: &ContainerOptions) -> PodTemplate {
    let metadata = copied_volumes(container).map(|names| {
        let annotations = json!({"annotations": {keys::annotations::COPIED_VOLUMES: names}});
        serde_json::from_value(annotations).expect("annotations are metadata")
    });
    PodTemplate { spec: Opaque::from(pod_spec(container)), metadata }
}

fn pod_spec(options: &ContainerOptions) -> Value {
    let mut container = json!({
        "name": CONTAINER,
        "image": options.image,
        "ports": [{"containerPort": PORT}],
        "readinessProbe": {"httpGet": {"path": "/", "port": PORT}, "periodSeconds": 1},
    });
    if !options.command.is_empty() {
        container["command"] = json!(options.command);
    }
    if !options.env.is_empty() {
        let env: Vec<Value> = options.env.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
        container["env"] = Value::Array(env);
    }
    if let Some(folder) = &options.working_dir {
        container["workingDir"] = json!(folder);
    }
    let limits = [("memory", &options.memory), ("cpu", &options.cpus), ("ephemeral-storage", &options.storage)];
    for (resource, limit) in limits {
        if let Some(limit) = limit {
            container["resources"]["limits"][resource] = json!(limit);
        }
    }
    let mut spec = json!({"restartPolicy": if options.runs_once { "Never" } else { "OnFailure" }});
    for (index, (source, target, read_only)) in options.host_paths.iter().enumerate() {
        let name = format!("volume-{index}");
        let mount = json!({"name": name, "mountPath": target, "readOnly": read_only});
        append(&mut container["volumeMounts"], mount);
        append(&mut spec["volumes"], json!({"name": name, "hostPath": {"path": source}}));
    }
    for CopiedFolder { name, path, .. } in &options.copies {
        // Read-only, so that a node that makes no copies never writes to the folder.
        append(&mut container["volumeMounts"], json!({"name": name, "mountPath": path, "readOnly": true}));
        append(&mut spec["volumes"], json!({"name": name, "hostPath": {"path": path, "type": "Directory"}}));
    }
    if let Some(class) = &options.runtime_class {
        spec["runtimeClassName"] = json!(class);
    }
    spec["containers"] = json!([container]);
    spec
}

/// The annotation that makes the node mount copies.
fn copied_volumes(options: &ContainerOptions) -> Option<String> {
    let names = options.copies.iter().map(|copy| match copy.private {
        true => format!("{}=private", copy.name),
        false => copy.name.clone(),
    });
    (!options.copies.is_empty()).then(|| names.collect::<Vec<_>>().join(","))
}

fn append(list: &mut Value, item: Value) {
    match list {
        Value::Array(items) => items.push(item),
        other => *other = Value::Array(vec![item]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pod_contains_only_requested_fields() {
        let plain = pod_spec(&ContainerOptions { image: "host".into(), ..ContainerOptions::default() });
        assert!(plain.get("volumes").is_none() && plain["containers"][0].get("resources").is_none());
        let full = pod_spec(&ContainerOptions {
            image: "host".into(),
            memory: Some("64Mi".into()),
            storage: Some("1Gi".into()),
            host_paths: vec![("/data".into(), "/mnt".into(), true), ("/b".into(), "/c".into(), false)],
            ..ContainerOptions::default()
        });
        assert_eq!(full["containers"][0]["resources"]["limits"], json!({"memory": "64Mi", "ephemeral-storage": "1Gi"}));
        assert_eq!(full["volumes"].as_array().unwrap().len(), 2);
        assert_eq!(full["containers"][0]["volumeMounts"][0]["readOnly"], json!(true));
    }

    #[test]
    fn copies_are_read_only_mounts_that_an_annotation_names() {
        let copy = |name: &str, private| CopiedFolder { name: name.into(), path: format!("/{name}"), private };
        let copies = vec![copy("here", false), copy("with-0", true)];
        let container = ContainerOptions { image: "host".into(), copies, ..ContainerOptions::default() };
        let template = serde_json::to_value(pod_template(&container)).unwrap();
        let annotations = &template["metadata"]["annotations"];
        assert_eq!(annotations[keys::annotations::COPIED_VOLUMES], "here,with-0=private");
        let mount = &template["spec"]["containers"][0]["volumeMounts"][1];
        assert_eq!(*mount, json!({"name": "with-0", "mountPath": "/with-0", "readOnly": true}));
        let pod = serde_json::to_value(pod("p", &container).unwrap()).unwrap();
        assert_eq!(pod["metadata"]["annotations"][keys::annotations::COPIED_VOLUMES], "here,with-0=private");
    }

    #[test]
    fn the_daemon_is_requested_by_an_annotation() {
        let container = ContainerOptions { image: "i".into(), ..ContainerOptions::default() };
        let template = serde_json::to_value(with_daemon(pod_template(&container))).unwrap();
        assert_eq!(template["metadata"]["annotations"], json!({keys::annotations::INJECT_SANDBOXD: "true"}));
        assert_eq!(template["spec"]["containers"][0]["image"], "i");
    }

    #[test]
    fn an_expiring_claim_has_the_delete_policy() {
        let time: Time = serde_json::from_value(json!("2030-01-01T00:00:00Z")).unwrap();
        let claim = claim(&ClaimOptions { pool: "p".into(), expires_at: Some(time), ..ClaimOptions::default() });
        let lifecycle = claim.spec.lifecycle.unwrap();
        assert_eq!(lifecycle.shutdown_policy, Some(ClaimShutdownPolicy::Delete));
        assert_eq!(claim.metadata.generate_name.as_deref(), Some("sandbox-claim-"));
    }
}
