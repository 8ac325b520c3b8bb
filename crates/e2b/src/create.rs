//! Creates sandboxes: a Sandbox for an image, a claim for a template or a pool.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent_sandbox_api::keys::{self, annotations, labels};
use agent_sandbox_api::sleep;
use agent_sandbox_api::snapshot::SandboxSnapshot;
use agent_sandbox_api::template::ShutdownPolicy;
use agent_sandbox_api::v1beta1::Sandbox;
use agent_sandbox_client as sdk;
use agent_sandbox_protocol::e2b::{derive, sandbox_id};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Patch, PatchParams};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::error::Error;
use crate::lifecycle::{Lifecycle, WAIT, end_after};
use crate::metadata::{self, Metadata};
use crate::network::{Network, Rules};
use crate::record::Record;
use crate::routes::Generation;
use crate::server::Call;
use crate::source::Source;

/// Length of a sandbox's name: 15 letters and digits are more than anyone can guess.
const NAME_LENGTH: usize = 16;
/// Longest label of a host; it holds a port, the name and the namespace.
const MAX_HOST_LABEL: usize = 63;
/// Digits of the largest port, and the dash after it.
const PORT_LENGTH: usize = 6;
/// Default time of a sandbox in seconds, by generation.
const DEFAULT_TIMEOUT: [(Generation, i64); 2] = [(Generation::V1, 15), (Generation::V2, 300)];

/// Shortest time in seconds that a sandbox runs after a request has resumed it.
const RESUMED_FOR: i64 = 300;

/// The body of create, in both generations.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct New {
    #[serde(rename = "templateID")]
    template: String,
    timeout: Option<i64>,
    auto_pause: Option<bool>,
    auto_pause_memory: Option<bool>,
    auto_resume: Option<AutoResume>,
    #[serde(rename = "allow_internet_access")]
    allow_internet_access: Option<bool>,
    network: Option<Network>,
    metadata: Option<Metadata>,
    env_vars: Option<BTreeMap<String, String>>,
    mcp: Value,
    iam: Value,
    volume_mounts: Option<Vec<Value>>,
    /// Only the first generation has it. Sandboxes always require their tokens.
    secure: Option<bool>,
    /// Options that this API does not know.
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AutoResume {
    enabled: bool,
}

/// A request that was checked.
pub(crate) struct Plan {
    name: String,
    template: String,
    end: Timestamp,
    lifecycle: Lifecycle,
    /// Time after which a sandbox that a request has resumed is paused again.
    awake_for: Duration,
    network: Network,
    metadata: Metadata,
    env: BTreeMap<String, String>,
    digest: String,
}

impl Call<'_> {
    pub(crate) async fn create(&self, generation: Generation) -> Result<Value, Error> {
        let plan = self.plan(generation)?;
        let source = self.source(&plan.template).await?;
        let created = match &source {
            Source::Image(image) => {
                self.create_sandbox(&plan, image).await.map_err(|error| explain_image(error, image))
            }
            Source::Snapshot(name) => {
                let (client, namespace) = (&self.account.client, &self.account.namespace);
                let snapshot = sdk::find_snapshot(client, namespace, name).await?;
                plan.network.check_of_snapshot(&snapshot)?;
                self.create_from(&plan, &snapshot).await
            }
            Source::Template(_) | Source::Pool(_) => self.create_claim(&plan, &source).await,
        };
        match created {
            Err(Error::Conflict(_)) if self.headers.contains_key("idempotency-key") => {}
            other => other?,
        }
        let gone = || Error::Internal(format!("sandbox {:?} was deleted while it was created", plan.name));
        let record = self.record(&plan.name).await?.ok_or_else(gone)?;
        let stored = record.meta().annotations.as_ref().and_then(|all| all.get(annotations::E2B_REQUEST));
        if stored != Some(&plan.digest) {
            return Err(Error::OtherRequest);
        }
        sdk::sandbox_ready(&self.account.client, &self.account.namespace, &plan.name, WAIT).await?;
        Ok(record.connection(self.settings))
    }

    fn plan(&self, generation: Generation) -> Result<Plan, Error> {
        let new: New = self.json()?;
        let unsupported = |why: &str| Err(Error::Unsupported(why.to_owned()));
        if new.template.is_empty() {
            return Err(Error::Invalid("templateID is empty".to_owned()));
        }
        if !new.mcp.is_null() {
            return unsupported(
                "MCP servers in a sandbox are not supported; `agent-sandbox mcp` serves sandboxes by MCP",
            );
        }
        if !new.iam.is_null() {
            return unsupported("workload identity tokens are not supported");
        }
        if new.secure == Some(false) {
            return unsupported("secure=false is not supported: every sandbox requires its access token");
        }
        // An option without effect would look like one that works.
        if let Some((name, _)) = new.others.iter().find(|(_, value)| !value.is_null()) {
            return unsupported(&format!("the option {name:?} is not supported"));
        }
        if new.volume_mounts.is_some_and(|mounts| !mounts.is_empty()) {
            return unsupported("volumes are not supported; give a SandboxTemplate a PersistentVolumeClaim");
        }
        let pauses = new.auto_pause.unwrap_or(false);
        let resumes = new.auto_resume.is_some_and(|resume| resume.enabled);
        match new.auto_pause_memory {
            Some(false) if !pauses => {
                return Err(Error::Invalid("autoPauseMemory=false needs autoPause".to_owned()));
            }
            Some(false) if resumes => {
                return Err(Error::Invalid("autoPauseMemory=false excludes autoResume".to_owned()));
            }
            memory if pauses || resumes => self.check_memory(memory)?,
            _ => {}
        }
        let lifecycle = Lifecycle { pauses, resumes };
        let env = new.env_vars.unwrap_or_default();
        let is_name = |name: &String| !name.is_empty() && !name.contains(['=', '\0']) && name.is_ascii();
        if let Some((name, _)) = env.iter().find(|(name, value)| !is_name(name) || value.contains('\0')) {
            return Err(Error::Invalid(format!(
                "envVars: {name:?} is not a variable's name, or its value has a NUL byte"
            )));
        }
        let mut network = new.network.unwrap_or_default();
        network.allow_internet_access = new.allow_internet_access;
        self.check_network(&network)?;
        let default =
            DEFAULT_TIMEOUT.iter().find(|(known, _)| *known == generation).map_or(300, |(_, seconds)| *seconds);
        let name = self.new_name()?;
        let longest = PORT_LENGTH + sandbox_id(&self.account.namespace, &name).len();
        if longest > MAX_HOST_LABEL {
            return Err(Error::Invalid(format!(
                "the namespace {:?} is too long for the hosts of its sandboxes: use one with at most {} letters",
                self.account.namespace,
                MAX_HOST_LABEL - PORT_LENGTH - NAME_LENGTH - 2
            )));
        }
        let timeout = new.timeout.unwrap_or(default);
        Ok(Plan {
            name,
            template: new.template,
            end: end_after(timeout)?,
            lifecycle,
            awake_for: Duration::from_secs(timeout.max(RESUMED_FOR).unsigned_abs()),
            network,
            metadata: new.metadata.unwrap_or_default(),
            env,
            digest: hex(&Sha256::digest(&self.body)),
        })
    }

    /// For a copy of a sandbox: everything as it is, except for the name and the end. What clients may open can have
    /// changed since the sandbox was created.
    pub(crate) fn plan_like(&self, record: &Record, end: Timestamp) -> Result<Plan, Error> {
        let network = record.network().map(serde_json::from_value).transpose();
        let network = network.map_err(|error| Error::Internal(format!("the stored network is not readable: {error}")));
        let network = network?.unwrap_or_default();
        self.check_network(&network)?;
        let awake_for = end.duration_since(Timestamp::now()).as_secs().max(RESUMED_FOR);
        Ok(Plan {
            name: random_name(),
            template: record.template().to_owned(),
            end,
            lifecycle: record.lifecycle(),
            awake_for: Duration::from_secs(awake_for.unsigned_abs()),
            network,
            metadata: record.metadata(),
            env: BTreeMap::new(),
            digest: String::new(),
        })
    }

    /// A random name, or, with an idempotency key, always the same: a repetition then finds what the first created.
    fn new_name(&self) -> Result<String, Error> {
        let Some(key) = self.headers.get("idempotency-key") else {
            return Ok(random_name());
        };
        let plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-';
        let key = key.to_str().ok().filter(|key| (1..=255).contains(&key.len()) && key.as_bytes().iter().all(plain));
        let key =
            key.ok_or_else(|| Error::Invalid("Idempotency-Key has other characters than a-z, 0-9 and -".into()))?;
        Ok(name_of(&derive(&self.settings.secret, "idempotency", &self.account.namespace, key)))
    }

    /// Labels and annotations of the object, which hold what has no field.
    fn meta(&self, plan: &Plan) -> Result<ObjectMeta, Error> {
        let mut meta = ObjectMeta { name: Some(plan.name.clone()), ..ObjectMeta::default() };
        meta.labels = Some(BTreeMap::from([(labels::E2B_SANDBOX.to_owned(), "true".to_owned())]));
        let mut own = BTreeMap::from([
            (annotations::E2B_TEMPLATE.to_owned(), plan.template.clone()),
            (annotations::E2B_REQUEST.to_owned(), plan.digest.clone()),
            (annotations::CLIENT_FIRST_REQUESTED_AT.to_owned(), Timestamp::now().to_string()),
        ]);
        if let Some(text) = plan.lifecycle.annotation() {
            own.insert(annotations::E2B_LIFECYCLE.to_owned(), text);
        }
        if let Some(text) = plan.network.annotation() {
            own.insert(annotations::E2B_NETWORK.to_owned(), text);
        }
        meta.annotations = Some(own);
        metadata::store(&plan.metadata, &mut meta)?;
        Ok(meta)
    }

    /// The variables of the sandbox, which every command gets.
    fn environment(&self, plan: &Plan) -> Vec<(String, String)> {
        let mut env = plan.env.clone();
        let id = sandbox_id(&self.account.namespace, &plan.name);
        for (name, value) in
            [("SANDBOX_E2B", "true"), ("E2B_SANDBOX_ID", id.as_str()), ("E2B_TEMPLATE_ID", plan.template.as_str())]
        {
            env.insert(name.to_owned(), value.to_owned());
        }
        env.into_iter().collect()
    }

    async fn create_sandbox(&self, plan: &Plan, image: &str) -> Result<(), Error> {
        let env = self.environment(plan);
        let container = sdk::ContainerOptions { image: image.to_owned(), env, ..sdk::ContainerOptions::default() };
        let wanted = sdk::sandbox(&plan.name, &container, None);
        self.create_object(plan, wanted, &Rules::Client(&plan.network)).await
    }

    /// Creates a sandbox with the files and the Pod template of a snapshot.
    pub(crate) async fn create_from(&self, plan: &Plan, snapshot: &SandboxSnapshot) -> Result<(), Error> {
        let rules = self.rules_for(&plan.network, snapshot).await?;
        let mut wanted = sdk::sandbox_from(snapshot, &plan.name)?;
        let env = &mut wanted.spec.pod_template.spec.make_mut()["containers"][0]["env"];
        let mut kept: Vec<Value> = env.as_array().cloned().unwrap_or_default();
        let own = self.environment(plan);
        kept.retain(|kept| !own.iter().any(|(name, _)| kept["name"] == **name));
        kept.extend(own.into_iter().map(|(name, value)| json!({ "name": name, "value": value })));
        *env = kept.into();
        self.create_object(plan, wanted, &rules).await
    }

    /// Creates a Sandbox with the settings of the plan, and waits until it is ready.
    async fn create_object(&self, plan: &Plan, mut wanted: Sandbox, rules: &Rules<'_>) -> Result<(), Error> {
        if !plan.lifecycle.pauses {
            wanted.spec.shutdown_time = Some(Time(plan.end));
            wanted.spec.shutdown_policy = Some(ShutdownPolicy::Delete);
        }
        rules.prepare(&mut wanted);
        let given = wanted.metadata.annotations.take().unwrap_or_default();
        wanted.metadata = self.meta(plan)?;
        let own = wanted.metadata.annotations.get_or_insert_default();
        own.extend(given.into_iter().chain(plan.sleep_annotations()));
        let mut pod = wanted.spec.pod_template.metadata();
        pod.annotations.get_or_insert_default().extend([
            (annotations::INJECT_SANDBOXD.to_owned(), "true".to_owned()),
            (annotations::E2B_TRAFFIC.to_owned(), plan.network.traffic().to_owned()),
        ]);
        wanted.spec.pod_template.metadata = Some(Arc::new(pod));
        let client = sdk::SandboxClient::new(sdk::Cluster::of(self.account.client.clone()), sdk::Connection::default());
        let complete = async |sandbox: Sandbox| self.write_policy(&sandbox, rules).await;
        client.create_sandbox(&self.account.namespace, wanted, WAIT, complete).await
    }

    async fn create_claim(&self, plan: &Plan, source: &Source) -> Result<(), Error> {
        plan.network.check_of_template()?;
        let meta = self.meta(plan)?;
        let source = match source {
            Source::Pool(name) => sdk::Source::Pool(name.clone()),
            Source::Template(name) | Source::Image(name) | Source::Snapshot(name) => {
                sdk::Source::Template(name.clone())
            }
        };
        // The template or its image brings the daemon: a claim may not ask for it.
        let pod_annotations =
            BTreeMap::from([(annotations::E2B_TRAFFIC.to_owned(), plan.network.traffic().to_owned())]);
        let request = sdk::ClaimRequest {
            name: Some(plan.name.clone()),
            delete_on_failure: true,
            labels: meta.labels.unwrap_or_default(),
            annotations: meta.annotations.unwrap_or_default(),
            pod_annotations,
            // Variables make it a cold start: its own Pod, with E2B's ports.
            env: self.environment(plan),
            // If this API ends before it has replaced the end by a pause, the claim still ends.
            expires_at: Some(Time(if plan.lifecycle.pauses { plan.end + WAIT } else { plan.end })),
            ready_timeout: WAIT,
            created_by: "e2b",
            ..sdk::ClaimRequest::new(source, &self.account.namespace)
        };
        let client = sdk::SandboxClient::new(sdk::Cluster::of(self.account.client.clone()), sdk::Connection::default());
        client.claim(&request).await?;
        let sleep = plan.sleep_annotations();
        if sleep.is_empty() {
            return Ok(());
        }
        let set = self.let_sleep(plan, sleep).await;
        if set.is_err() {
            sdk::delete(&self.account.client, &self.account.namespace, &plan.name).await?;
        }
        set
    }

    /// Gives a claim's Sandbox its times, and takes the claim's own end away if the Sandbox is paused instead.
    async fn let_sleep(&self, plan: &Plan, sleep: BTreeMap<String, String>) -> Result<(), Error> {
        let gone = || Error::Internal(format!("sandbox {:?} was deleted while it was created", plan.name));
        let record = self.record(&plan.name).await?.ok_or_else(gone)?;
        let patch = json!({ "metadata": { "uid": record.sandbox.metadata.uid, "annotations": sleep } });
        let params = PatchParams::default();
        self.sandboxes().patch(record.name(), &params, &Patch::Merge(patch)).await?;
        if plan.lifecycle.pauses {
            let uid = record.claim.and_then(|claim| claim.metadata.uid);
            let patch = json!({ "metadata": { "uid": uid }, "spec": { "lifecycle": null } });
            self.claims().patch(&plan.name, &params, &Patch::Merge(patch)).await?;
        }
        Ok(())
    }
}

impl Plan {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Annotations of the Sandbox that say when it is paused and what resumes it.
    fn sleep_annotations(&self) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        if self.lifecycle.pauses {
            found.insert(annotations::SUSPEND_AT.to_owned(), self.end.to_string());
        }
        if self.lifecycle.resumes {
            found.insert(annotations::WAKE.to_owned(), "Always".to_owned());
        }
        // A paused sandbox has no other end: without this time it would run for ever after a request has resumed it.
        if self.lifecycle != Lifecycle::default() {
            found.insert(annotations::AWAKE_FOR.to_owned(), sleep::format_duration(self.awake_for));
        }
        found
    }
}

impl Network {
    /// The value of the annotation that tells the router who reaches the sandbox's programs.
    pub(crate) fn traffic(&self) -> &'static str {
        if self.allow_public_traffic.unwrap_or(true) { keys::E2B_PUBLIC } else { keys::E2B_PRIVATE }
    }
}

impl Record {
    /// Whether programs of the sandbox are reached by everyone who knows its id.
    pub(crate) fn is_public(&self) -> bool {
        let metadata = self.sandbox.spec.pod_template.metadata();
        metadata
            .annotations
            .is_some_and(|all| all.get(annotations::E2B_TRAFFIC).map(String::as_str) == Some(keys::E2B_PUBLIC))
    }
}

/// Tells a client whose sandbox did not start in time what to do if that is because of its image.
fn explain_image(error: Error, image: &str) -> Error {
    match error {
        Error::Timeout(message) => Error::Timeout(format!(
            "{message}. If the image {image:?} is still being pulled: layers that are complete are kept, so that \
             another attempt needs less time; `agent-sandbox image pull {image}` pulls it beforehand"
        )),
        other => other,
    }
}

fn random_name() -> String {
    name_of(&hex(&rand::random::<[u8; 16]>()))
}

/// A name from hexadecimal digits; it begins with a letter, as names of Services must.
fn name_of(digits: &str) -> String {
    format!("e{}", &digits[..NAME_LENGTH - 1])
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_names_the_image() {
        let explained = explain_image(Error::Timeout("not ready after 50s".to_owned()), "python:3.12").to_string();
        assert!(explained.starts_with("not ready after 50s. If the image \"python:3.12\""), "{explained}");
        assert!(matches!(explain_image(Error::Key, "python:3.12"), Error::Key));
    }

    /// E-030, E-122
    #[test]
    fn what_a_request_resumes_is_paused_again() {
        let kept = |pauses, resumes| {
            let plan = Plan {
                name: random_name(),
                template: "base".to_owned(),
                end: "2026-01-01T00:00:00Z".parse().unwrap(),
                lifecycle: Lifecycle { pauses, resumes },
                awake_for: Duration::from_secs(600),
                network: Network::default(),
                metadata: Metadata::default(),
                env: BTreeMap::new(),
                digest: String::new(),
            };
            let all = plan.sleep_annotations();
            [annotations::SUSPEND_AT, annotations::WAKE, annotations::AWAKE_FOR].map(|key| all.get(key).cloned())
        };
        let [end, wake, awake] = ["2026-01-01T00:00:00Z", "Always", "10m"].map(|text| Some(text.to_owned()));
        assert_eq!(kept(false, false), [None, None, None]);
        assert_eq!(kept(true, false), [end.clone(), None, awake.clone()]);
        assert_eq!(kept(true, true), [end, wake.clone(), awake.clone()]);
        assert_eq!(kept(false, true), [None, wake, awake], "it can be paused by a call, too");
    }
}
