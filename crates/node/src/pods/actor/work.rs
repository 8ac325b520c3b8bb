//! The work of a Pod's actor: each piece is one call to the runtime or the API, or a short sequence of them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::pods::check::{Check, Target};
use crate::pods::container::{Assembly, assemble};
use crate::pods::downward::Addresses;
use crate::pods::env::{self, EnvContext};
use crate::pods::fetch;
use crate::pods::links;
use crate::pods::model::roles;
use crate::pods::mounts::{self, Prepared};
use crate::pods::recorder::Severity;
use crate::pods::refresh::Versions;
use crate::pods::sandbox::{self, Naming};
use crate::pods::shared::Shared;
use crate::pods::sources;
use crate::pods::volumes;
use crate::runtime::{
    ContainerState, ImageError, LogTarget, PodRules, PodSandbox, PullPolicy, PullProgress, ResolvedImage, RuntimeError,
    SharedRuntime, chain,
};

/// A sandbox that came up, with the rules it was given.
pub(super) struct SandboxUp {
    pub(super) sandbox: PodSandbox,
    pub(super) rules: PodRules,
}

pub(super) async fn create_sandbox(shared: &Shared, pod: &Pod, rules: PodRules) -> Result<SandboxUp, RuntimeError> {
    let Some(spec) = pod.spec.as_ref() else { return Err(RuntimeError::Refused("the Pod has no spec".to_owned())) };
    let class = spec.runtime_class_name.as_deref().filter(|c| !c.is_empty());
    let handler_of_class = match class {
        Some(class) => Api::<RuntimeClass>::all(shared.client.clone())
            .get_opt(class)
            .await
            .map_err(|error| RuntimeError::Protocol(format!("cannot read runtime class {class}: {error}")))?
            .map(|found| found.handler),
        None => None,
    };
    let handler = sandbox::handler(class, handler_of_class.as_deref(), &shared.settings.runtime_handlers);
    let naming = Naming {
        dns: shared.runtime.resolver(),
        cluster_domain: &shared.settings.cluster_domain,
        host_resolv_conf: &shared.settings.host_resolv_conf,
    };
    let assembled =
        sandbox::assemble(pod, spec, handler, naming).map_err(|error| RuntimeError::Refused(error.to_string()))?;
    let sandbox = shared.runtime.create_pod(assembled).await?;
    shared.runtime.set_rules(&sandbox.uid, rules.clone()).await?;
    Ok(SandboxUp { sandbox, rules })
}

/// Volumes as they were made, and what their files were made from.
#[derive(Default)]
pub(super) struct MadeVolumes {
    pub(super) prepared: BTreeMap<String, Prepared>,
    pub(super) versions: Versions,
}

pub(super) async fn prepare_volumes(shared: &Shared, pod: &Pod, pod_ips: Vec<String>) -> Result<MadeVolumes, String> {
    let Some(spec) = pod.spec.as_ref() else { return Ok(MadeVolumes::default()) };
    let sources = fetch::sources(&shared.client, pod, spec).await.map_err(|error| chain(&error))?;
    let prepared = volumes::prepare(shared, pod, spec, &sources, pod_ips).await.map_err(|error| chain(&error))?;
    Ok(MadeVolumes { prepared, versions: Versions::of(spec, &sources) })
}

pub(super) async fn ensure_image(shared: &Shared, pod: &Pod, container: &str) -> Result<ResolvedImage, ImageError> {
    let found = pod.spec.as_ref().and_then(|spec| roles(spec).find(|(c, _)| c.name == container));
    let container = found.map(|(c, _)| c).ok_or_else(|| ImageError::InvalidReference(container.to_owned()))?;
    let reference = container.image.as_deref().unwrap_or_default();
    let policy = match container.image_pull_policy.as_deref() {
        Some("Always") => PullPolicy::Always,
        Some("Never") => PullPolicy::Never,
        Some(_) => PullPolicy::IfNotPresent,
        None if is_latest(reference) => PullPolicy::Always,
        None => PullPolicy::IfNotPresent,
    };
    let credentials = fetch::credentials(&shared.client, pod).await;
    let (sender, progress) = tokio::sync::watch::channel(PullProgress::default());
    let pull = shared.images.ensure(reference, policy, &credentials, Some(sender));
    let (image, told) = tokio::join!(pull, tell_progress(shared, pod, reference, progress));
    let image = image?;
    if let Some((asked_at, bytes)) = told {
        let message =
            format!("Successfully pulled image {reference:?} in {:?}. Image size: {bytes} bytes.", asked_at.elapsed());
        shared.recorder.pod(pod, Severity::Normal, "Pulled", message);
    }
    Ok(image)
}

/// How often a pull that goes on is reported.
const PROGRESS_EVERY: Duration = Duration::from_secs(10);

/// Reports a pull that really moves bytes; ends with it. Gives when it began and how much it moved.
async fn tell_progress(
    shared: &Shared,
    pod: &Pod,
    reference: &str,
    mut progress: tokio::sync::watch::Receiver<PullProgress>,
) -> Option<(Instant, u64)> {
    progress.changed().await.ok()?;
    let begun = Instant::now();
    shared.recorder.pod(pod, Severity::Normal, "Pulling", format!("Pulling image {reference:?}"));
    let mut next = begun + PROGRESS_EVERY;
    loop {
        let PullProgress { done, total } = *progress.borrow_and_update();
        tokio::select! {
            changed = progress.changed() => if changed.is_err() {
                return Some((begun, total.max(done)));
            },
            () = tokio::time::sleep_until(next) => {
                let message = format!("Pulling image {reference:?}: {done} of {total} bytes");
                shared.recorder.pod(pod, Severity::Normal, "PullProgress", message);
                next += PROGRESS_EVERY;
            }
        }
    }
}

/// No tag, or the tag `latest`: the default policy is then Always.
fn is_latest(reference: &str) -> bool {
    let name = reference.rsplit('/').next().unwrap_or(reference);
    !name.contains('@') && name.split_once(':').is_none_or(|(_, tag)| tag == "latest")
}

/// Why a container did not start.
pub(super) enum StartFailure {
    /// The command cannot be executed: counts as an exit.
    Never(String),
    /// Something it needs is missing; worth another try.
    Retry { reason: String, message: String },
}

impl StartFailure {
    fn config(error: &dyn std::error::Error) -> Self {
        Self::Retry { reason: "CreateContainerConfigError".to_owned(), message: chain(error) }
    }

    fn config_text(message: impl Into<String>) -> Self {
        Self::Retry { reason: "CreateContainerConfigError".to_owned(), message: message.into() }
    }
}

/// One start of one container.
pub(super) struct Start {
    pub(super) shared: Arc<Shared>,
    pub(super) pod: Arc<Pod>,
    pub(super) container: String,
    pub(super) attempt: u32,
    pub(super) image: Option<ResolvedImage>,
    pub(super) volumes: Arc<BTreeMap<String, Prepared>>,
    pub(super) pod_ips: Vec<String>,
    pub(super) gets_sandboxd: bool,
}

impl Start {
    pub(super) async fn run(mut self) -> Result<ContainerState, StartFailure> {
        let pod = Arc::clone(&self.pod);
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let found =
            pod.spec.as_ref().and_then(|s| roles(s).find(|(c, _)| c.name == self.container).map(|(c, _)| (s, c)));
        let Some((spec, container)) = found else {
            return Err(StartFailure::config_text(format!("container {:?} is not in the spec", self.container)));
        };
        let image = match self.image.take() {
            Some(image) => image,
            // Only after a restart of the node, when the container itself was found running.
            None => ensure_image(&self.shared, &pod, &self.container).await.map_err(|e| StartFailure::config(&e))?,
        };
        let sources = if sources::wanted(spec).is_empty() {
            sources::Sources::default()
        } else {
            fetch::sources(&self.shared.client, &pod, spec).await.map_err(|e| StartFailure::config(&e))?
        };
        let addresses = Addresses { pod_ips: self.pod_ips.clone(), host_ips: self.shared.host_ips.clone() };
        let context =
            EnvContext { pod: &pod, spec, sources: &sources, addresses: &addresses, node: &self.shared.allocatable };
        let links = {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            links::variables(&self.shared.services.read(), namespace, spec.enable_service_links != Some(false))
        };
        let environment = env::resolve(container, context, links).map_err(|e| StartFailure::config(&e))?;
        if !environment.skipped.is_empty() {
            let message = format!("keys {:?} of container {} cannot be variables", environment.skipped, self.container);
            self.shared.recorder.pod(&pod, Severity::Warning, "InvalidEnvironmentVariableNames", message);
        }
        let mounts = mounts::mounts(container, &self.volumes, &environment).map_err(|e| StartFailure::config(&e))?;
        let given = Assembly {
            attempt: self.attempt,
            image,
            environment,
            mounts,
            hostname: sandbox::hostname(&pod),
            sandboxd: self.sandboxd()?,
            log: LogTarget {
                path: self.shared.log_path(&uid, &self.container, self.attempt),
                max_bytes: self.shared.settings.log_max_bytes,
                max_files: self.shared.settings.log_max_files,
            },
        };
        let assembled = assemble(spec, container, given).map_err(|e| StartFailure::config(&e))?;
        let state = self.shared.runtime.start_container(&uid, assembled).await.map_err(start_failure)?;
        self.post_start(&uid, container).await?;
        Ok(state)
    }

    fn sandboxd(&self) -> Result<Option<std::path::PathBuf>, StartFailure> {
        match (self.gets_sandboxd, &self.shared.settings.sandboxd) {
            (false, _) => Ok(None),
            (true, Some(program)) => Ok(Some(program.clone())),
            (true, None) => Err(StartFailure::config_text(
                "this container needs sandboxd, and this node was started without the program; give its path",
            )),
        }
    }

    /// The container does not count as started before its hook is done; when the hook fails, it is killed.
    async fn post_start(&self, uid: &str, container: &Container) -> Result<(), StartFailure> {
        let Some(hook) = container.lifecycle.as_ref().and_then(|l| l.post_start.as_ref()) else { return Ok(()) };
        let ip = self.pod_ips.first().and_then(|ip| ip.parse().ok());
        let ip = ip.filter(|_| self.shared.runtime.reaches_addresses());
        let target =
            Target { runtime: self.shared.runtime.clone(), pod: uid.to_owned(), container: container.name.clone(), ip };
        let result = match Check::of_hook(hook, container) {
            Ok(check) => check.attempt(&target, HOOK_LIMIT).await.map_err(|miss| miss.message),
            Err(message) => Err(message),
        };
        let Err(message) = result else { return Ok(()) };
        let _ = self.shared.runtime.kill_container(uid, &container.name).await;
        let message = format!("PostStartHook failed: {message}");
        self.shared.recorder.pod(&self.pod, Severity::Warning, "FailedPostStartHook", message.clone());
        Err(StartFailure::Never(message))
    }
}

/// Hooks may not hold a container for ever.
const HOOK_LIMIT: Duration = Duration::from_secs(120);

fn start_failure(error: RuntimeError) -> StartFailure {
    match error {
        RuntimeError::CannotRun { .. } => StartFailure::Never(chain(&error)),
        other => StartFailure::Retry { reason: other.reason().to_owned(), message: chain(&other) },
    }
}

/// The end of one container: hook, signal, and the kill when its time is over. Its exit arrives as an event.
pub(super) struct Stop {
    pub(super) target: Target,
    pub(super) container: Container,
    pub(super) grace: Duration,
    pub(super) image_signal: Option<String>,
}

impl Stop {
    pub(super) async fn run(self) -> Result<(), RuntimeError> {
        let Target { runtime, pod, container: name, .. } = &self.target;
        if self.grace.is_zero() {
            return runtime.kill_container(pod, name).await;
        }
        let deadline = Instant::now() + self.grace;
        let lifecycle = self.container.lifecycle.as_ref();
        if let Some(hook) = lifecycle.and_then(|l| l.pre_stop.as_ref())
            && let Ok(check) = Check::of_hook(hook, &self.container)
            && let Err(miss) = check.attempt(&self.target, self.grace).await
        {
            tracing::info!(container = name, message = miss.message, "preStop hook failed");
        }
        let asked = lifecycle.and_then(|l| l.stop_signal.clone()).or(self.image_signal);
        let signal = asked.as_deref().and_then(signal_number).unwrap_or(libc::SIGTERM);
        runtime.signal_container(pod, name, signal).await?;
        tokio::time::sleep_until(deadline).await;
        runtime.kill_container(pod, name).await
    }
}

/// `SIGTERM`, `TERM` or `15`.
fn signal_number(name: &str) -> Option<i32> {
    let upper = name.to_ascii_uppercase();
    let bare = upper.strip_prefix("SIG").unwrap_or(&upper);
    let known = [
        ("HUP", libc::SIGHUP),
        ("INT", libc::SIGINT),
        ("QUIT", libc::SIGQUIT),
        ("KILL", libc::SIGKILL),
        ("USR1", libc::SIGUSR1),
        ("USR2", libc::SIGUSR2),
        ("TERM", libc::SIGTERM),
        ("WINCH", libc::SIGWINCH),
        ("RTMIN+3", 37),
    ];
    let named = known.iter().find(|(n, _)| *n == bare).map(|(_, number)| *number);
    named.or_else(|| bare.parse().ok().filter(|n| (1..=64).contains(n)))
}

/// Writes a status as a merge patch. The uid makes sure that a Pod of the same name made since is left alone.
pub(super) async fn write_status(client: kube::Client, pod: &Pod, status: Value) -> Result<(), kube::Error> {
    let (namespace, name) = (pod.metadata.namespace.as_deref().unwrap_or("default"), pod.metadata.name.as_deref());
    let api: Api<Pod> = Api::namespaced(client, namespace);
    let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": status});
    api.patch_status(name.unwrap_or_default(), &PatchParams::default(), &Patch::Merge(&patch)).await.map(drop)
}

/// The last step of a deletion: the object goes, if it is still the same one.
pub(super) async fn delete_object(client: kube::Client, pod: &Pod) -> Result<(), kube::Error> {
    let (namespace, name) = (pod.metadata.namespace.as_deref().unwrap_or("default"), pod.metadata.name.as_deref());
    let api: Api<Pod> = Api::namespaced(client, namespace);
    let preconditions = Preconditions { uid: pod.metadata.uid.clone(), resource_version: None };
    let parameters =
        DeleteParams { grace_period_seconds: Some(0), preconditions: Some(preconditions), ..DeleteParams::default() };
    api.delete(name.unwrap_or_default(), &parameters).await.map(drop)
}

/// Bytes of a termination message, as in Kubernetes.
const MESSAGE_BYTES: usize = 4096;
const LOG_TAIL_LINES: usize = 80;
const LOG_TAIL_BYTES: usize = 2048;

/// The termination message of a container; for a failure, if asked for, the end of its log.
pub(super) async fn termination_message(
    runtime: &SharedRuntime,
    pod: &str,
    container: &Container,
    log: &Path,
    code: i32,
) -> Option<String> {
    let bytes = runtime.termination_message(pod, &container.name, MESSAGE_BYTES).await;
    if !bytes.is_empty() {
        return Some(String::from_utf8_lossy(&bytes).into_owned());
    }
    let fallback = container.termination_message_policy.as_deref() == Some("FallbackToLogsOnError");
    if !fallback || code == 0 {
        return None;
    }
    let text = crate::logs::tail(log, LOG_TAIL_LINES).await.ok()?;
    let start = text.len().saturating_sub(LOG_TAIL_BYTES);
    Some(String::from_utf8_lossy(&text[start..]).into_owned()).filter(|t| !t.is_empty())
}
