//! The tasks that a Pod's actor spawns: each is one call to the runtime or the API, or a short sequence of them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::kubelet::container::env::{self, EnvContext};
use crate::kubelet::container::service_env;
use crate::kubelet::container::{ContainerInputs, assemble};
use crate::kubelet::context::NodeContext;
use crate::kubelet::downward_api::Addresses;
use crate::kubelet::events::Severity;
use crate::kubelet::model::roles;
use crate::kubelet::pod_sandbox::{self, DnsSettings};
use crate::kubelet::probes::check::{Check, CheckTarget};
use crate::kubelet::references;
use crate::kubelet::references::fetch;
use crate::kubelet::volumes;
use crate::kubelet::volumes::mounts::{self, PreparedVolume};
use crate::kubelet::volumes::refresh::Versions;
use crate::runtime::{
    ContainerState, ImageError, LogTarget, PodRules, PodSandbox, PullPolicy, PullProgress, ResolvedImage, RuntimeError,
    SharedRuntime, chain,
};

/// A sandbox that was created, with the network rules it was given.
pub(super) struct CreatedSandbox {
    pub(super) sandbox: PodSandbox,
    pub(super) rules: PodRules,
}

pub(super) async fn create_sandbox(
    node: &NodeContext,
    pod: &Pod,
    rules: PodRules,
) -> Result<CreatedSandbox, RuntimeError> {
    let Some(spec) = pod.spec.as_ref() else { return Err(RuntimeError::Refused("the Pod has no spec".to_owned())) };
    let class = spec.runtime_class_name.as_deref().filter(|c| !c.is_empty());
    let handler_of_class = match class {
        Some(class) => Api::<RuntimeClass>::all(node.client.clone())
            .get_opt(class)
            .await
            .map_err(|error| RuntimeError::Protocol(format!("cannot read runtime class {class}: {error}")))?
            .map(|found| found.handler),
        None => None,
    };
    let handler = pod_sandbox::handler(class, handler_of_class.as_deref(), &node.settings.runtime_handlers);
    let dns_settings = DnsSettings {
        dns: node.runtime.resolver(),
        cluster_domain: &node.settings.cluster_domain,
        host_resolv_conf: &node.settings.host_resolv_conf,
    };
    let assembled = pod_sandbox::assemble(pod, spec, handler, dns_settings)
        .map_err(|error| RuntimeError::Refused(error.to_string()))?;
    let sandbox = node.runtime.create_pod(assembled).await?;
    node.runtime.set_rules(&sandbox.uid, rules.clone()).await?;
    Ok(CreatedSandbox { sandbox, rules })
}

/// The prepared volumes, and the object versions their files were written from.
#[derive(Default)]
pub(super) struct PreparedVolumes {
    pub(super) prepared: BTreeMap<String, PreparedVolume>,
    pub(super) versions: Versions,
}

pub(super) async fn prepare_volumes(
    node: &NodeContext,
    pod: &Pod,
    pod_ips: Vec<String>,
) -> Result<PreparedVolumes, String> {
    let Some(spec) = pod.spec.as_ref() else { return Ok(PreparedVolumes::default()) };
    let sources = fetch::sources(&node.client, pod, spec).await.map_err(|error| chain(&error))?;
    let prepared = volumes::prepare(node, pod, spec, &sources, pod_ips).await.map_err(|error| chain(&error))?;
    Ok(PreparedVolumes { prepared, versions: Versions::of(spec, &sources) })
}

pub(super) async fn ensure_image(node: &NodeContext, pod: &Pod, container: &str) -> Result<ResolvedImage, ImageError> {
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
    let credentials = fetch::credentials(&node.client, pod).await;
    let (sender, progress) = tokio::sync::watch::channel(PullProgress::default());
    let pull = node.images.ensure(reference, policy, &credentials, Some(sender));
    let (image, pulled) = tokio::join!(pull, report_pull_progress(node, pod, reference, progress));
    let image = image?;
    if let Some((started_at, bytes)) = pulled {
        let message = format!(
            "Successfully pulled image {reference:?} in {:?}. Image size: {bytes} bytes.",
            started_at.elapsed()
        );
        node.recorder.pod(pod, Severity::Normal, "Pulled", message);
    }
    Ok(image)
}

/// Interval of the progress events of a running pull.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// Records events for a pull that transfers data, until it ends. Returns when the transfer began and how many bytes it
/// had; `None` when nothing was transferred.
async fn report_pull_progress(
    node: &NodeContext,
    pod: &Pod,
    reference: &str,
    mut progress: tokio::sync::watch::Receiver<PullProgress>,
) -> Option<(Instant, u64)> {
    progress.changed().await.ok()?;
    let started_at = Instant::now();
    node.recorder.pod(pod, Severity::Normal, "Pulling", format!("Pulling image {reference:?}"));
    let mut next = started_at + PROGRESS_INTERVAL;
    loop {
        let PullProgress { done, total } = *progress.borrow_and_update();
        tokio::select! {
            changed = progress.changed() => if changed.is_err() {
                return Some((started_at, total.max(done)));
            },
            () = tokio::time::sleep_until(next) => {
                let message = format!("Pulling image {reference:?}: {done} of {total} bytes");
                node.recorder.pod(pod, Severity::Normal, "PullProgress", message);
                next += PROGRESS_INTERVAL;
            }
        }
    }
}

/// Whether a reference has no tag or the tag `latest`: the default pull policy is then Always.
fn is_latest(reference: &str) -> bool {
    let name = reference.rsplit('/').next().unwrap_or(reference);
    !name.contains('@') && name.split_once(':').is_none_or(|(_, tag)| tag == "latest")
}

/// Why a container did not start.
pub(super) enum StartFailure {
    /// The command cannot be executed or the postStart hook failed: counts as an exit.
    Permanent(String),
    /// Something the container needs is missing; the start is retried.
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
    pub(super) node: Arc<NodeContext>,
    pub(super) pod: Arc<Pod>,
    pub(super) container: String,
    pub(super) attempt: u32,
    pub(super) image: Option<ResolvedImage>,
    pub(super) volumes: Arc<BTreeMap<String, PreparedVolume>>,
    pub(super) pod_ips: Vec<String>,
    pub(super) injects_sandboxd: bool,
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
            // The image is unknown only for containers that were found running when the node started.
            None => ensure_image(&self.node, &pod, &self.container).await.map_err(|e| StartFailure::config(&e))?,
        };
        let sources = if references::referenced_names(spec).is_empty() {
            references::Sources::default()
        } else {
            fetch::sources(&self.node.client, &pod, spec).await.map_err(|e| StartFailure::config(&e))?
        };
        let addresses = Addresses { pod_ips: self.pod_ips.clone(), host_ips: self.node.host_ips.clone() };
        let context =
            EnvContext { pod: &pod, spec, sources: &sources, addresses: &addresses, node: &self.node.allocatable };
        let service_variables = {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            service_env::service_variables(
                &self.node.services.read(),
                namespace,
                spec.enable_service_links != Some(false),
            )
        };
        let environment = env::resolve(container, context, service_variables).map_err(|e| StartFailure::config(&e))?;
        if !environment.skipped.is_empty() {
            let message = format!("keys {:?} of container {} cannot be variables", environment.skipped, self.container);
            self.node.recorder.pod(&pod, Severity::Warning, "InvalidEnvironmentVariableNames", message);
        }
        let mounts = mounts::mounts(container, &self.volumes, &environment).map_err(|e| StartFailure::config(&e))?;
        let inputs = ContainerInputs {
            attempt: self.attempt,
            image,
            environment,
            mounts,
            hostname: pod_sandbox::hostname(&pod),
            sandboxd: self.sandboxd()?,
            log: LogTarget {
                path: self.node.log_path(&uid, &self.container, self.attempt),
                max_bytes: self.node.settings.log_max_bytes,
                max_files: self.node.settings.log_max_files,
            },
        };
        let assembled = assemble(spec, container, inputs).map_err(|e| StartFailure::config(&e))?;
        let state = self.node.runtime.start_container(&uid, assembled).await.map_err(start_failure)?;
        self.post_start(&uid, container).await?;
        Ok(state)
    }

    fn sandboxd(&self) -> Result<Option<std::path::PathBuf>, StartFailure> {
        match (self.injects_sandboxd, &self.node.settings.sandboxd) {
            (false, _) => Ok(None),
            (true, Some(program)) => Ok(Some(program.clone())),
            (true, None) => Err(StartFailure::config_text(
                "this container needs sandboxd, and this node was started without the program; give its path",
            )),
        }
    }

    /// Runs the postStart hook. The container counts as started only after the hook; if the hook fails, it is killed.
    async fn post_start(&self, uid: &str, container: &Container) -> Result<(), StartFailure> {
        let Some(hook) = container.lifecycle.as_ref().and_then(|l| l.post_start.as_ref()) else { return Ok(()) };
        let ip = self.pod_ips.first().and_then(|ip| ip.parse().ok());
        let ip = ip.filter(|_| self.node.runtime.reaches_addresses());
        let target = CheckTarget {
            runtime: self.node.runtime.clone(),
            pod: uid.to_owned(),
            container: container.name.clone(),
            ip,
        };
        let result = match Check::of_hook(hook, container) {
            Ok(check) => check.attempt(&target, HOOK_TIMEOUT).await.map_err(|failure| failure.message),
            Err(message) => Err(message),
        };
        let Err(message) = result else { return Ok(()) };
        let _ = self.node.runtime.kill_container(uid, &container.name).await;
        let message = format!("PostStartHook failed: {message}");
        self.node.recorder.pod(&self.pod, Severity::Warning, "FailedPostStartHook", message.clone());
        Err(StartFailure::Permanent(message))
    }
}

/// Timeout for a postStart hook.
const HOOK_TIMEOUT: Duration = Duration::from_secs(120);

fn start_failure(error: RuntimeError) -> StartFailure {
    match error {
        RuntimeError::CannotRun { .. } => StartFailure::Permanent(chain(&error)),
        other => StartFailure::Retry { reason: other.reason().to_owned(), message: chain(&other) },
    }
}

/// Stops one container: preStop hook, stop signal, and SIGKILL after the grace period. Its exit arrives as an event.
pub(super) struct Stop {
    pub(super) target: CheckTarget,
    pub(super) container: Container,
    pub(super) grace: Duration,
    pub(super) image_signal: Option<String>,
}

impl Stop {
    pub(super) async fn run(self) -> Result<(), RuntimeError> {
        let CheckTarget { runtime, pod, container: name, .. } = &self.target;
        if self.grace.is_zero() {
            return runtime.kill_container(pod, name).await;
        }
        let deadline = Instant::now() + self.grace;
        let lifecycle = self.container.lifecycle.as_ref();
        if let Some(hook) = lifecycle.and_then(|l| l.pre_stop.as_ref())
            && let Ok(check) = Check::of_hook(hook, &self.container)
            && let Err(failure) = check.attempt(&self.target, self.grace).await
        {
            tracing::info!(container = name, message = failure.message, "preStop hook failed");
        }
        let requested = lifecycle.and_then(|l| l.stop_signal.clone()).or(self.image_signal);
        let signal = requested.as_deref().and_then(signal_number).unwrap_or(libc::SIGTERM);
        runtime.signal_container(pod, name, signal).await?;
        tokio::time::sleep_until(deadline).await;
        runtime.kill_container(pod, name).await
    }
}

/// The number of a signal given as `SIGTERM`, `TERM` or `15`.
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

/// Writes a status as a merge patch. The uid in it keeps a newer Pod of the same name unchanged.
pub(super) async fn write_status(client: kube::Client, pod: &Pod, status: Value) -> Result<(), kube::Error> {
    let (namespace, name) = (pod.metadata.namespace.as_deref().unwrap_or("default"), pod.metadata.name.as_deref());
    let api: Api<Pod> = Api::namespaced(client, namespace);
    let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": status});
    api.patch_status(name.unwrap_or_default(), &PatchParams::default(), &Patch::Merge(&patch)).await.map(drop)
}

/// Deletes the Pod object, the last step of a deletion, with its uid as precondition.
pub(super) async fn delete_object(client: kube::Client, pod: &Pod) -> Result<(), kube::Error> {
    let (namespace, name) = (pod.metadata.namespace.as_deref().unwrap_or("default"), pod.metadata.name.as_deref());
    let api: Api<Pod> = Api::namespaced(client, namespace);
    let preconditions = Preconditions { uid: pod.metadata.uid.clone(), resource_version: None };
    let parameters =
        DeleteParams { grace_period_seconds: Some(0), preconditions: Some(preconditions), ..DeleteParams::default() };
    api.delete(name.unwrap_or_default(), &parameters).await.map(drop)
}

/// Maximum size of a termination message in bytes, as in Kubernetes.
const TERMINATION_MESSAGE_BYTES: usize = 4096;
const LOG_TAIL_LINES: usize = 80;
const LOG_TAIL_BYTES: usize = 2048;

/// The termination message of a container: its message file, or with `FallbackToLogsOnError` the end of its log when it
/// failed.
pub(super) async fn termination_message(
    runtime: &SharedRuntime,
    pod: &str,
    container: &Container,
    log: &Path,
    code: i32,
) -> Option<String> {
    let bytes = runtime.termination_message(pod, &container.name, TERMINATION_MESSAGE_BYTES).await;
    if !bytes.is_empty() {
        return Some(String::from_utf8_lossy(&bytes).into_owned());
    }
    let fallback = container.termination_message_policy.as_deref() == Some("FallbackToLogsOnError");
    if !fallback || code == 0 {
        return None;
    }
    let text = crate::kubelet::logs::tail(log, LOG_TAIL_LINES, LOG_TAIL_BYTES).await.ok()?;
    Some(String::from_utf8_lossy(&text).into_owned()).filter(|t| !t.is_empty())
}
