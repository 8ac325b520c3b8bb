//! Handlers of an actor's inputs: messages from the node and results of the actor's own tasks.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use tracing::{debug, info, warn};

use super::tasks::{CreatedSandbox, PreparedVolumes, StartFailure};
use super::termination::{container_id, termination};
use super::{Actor, Message};
use crate::kubelet::container::sandboxd;
use crate::kubelet::events::OOM_KILLED;
use crate::kubelet::eviction::{self, StorageLimits};
use crate::kubelet::model::{
    ImageState, ImageStatus, Instance, PodFailure, Role, Run, SandboxInfo, SandboxState, StartError, Termination,
    VolumesState, deletion_deadline, roles,
};
use crate::kubelet::node::exec_oom;
use crate::kubelet::plan::Action;
use crate::kubelet::pod_sandbox;
use crate::kubelet::volumes::mounts::{self, PreparedVolume};
use crate::runtime::{ContainerState, Exit, ImageError, ResolvedImage, RuntimeError, chain};

/// Result of one of the actor's tasks.
pub(super) enum TaskResult {
    Volumes(Result<PreparedVolumes, String>),
    /// An object changed from which files of the volumes were written, or a token is due for renewal.
    SourcesChanged,
    /// The volumes' files were written again.
    Refreshed(Result<PreparedVolumes, String>),
    Sandbox(Result<CreatedSandbox, RuntimeError>),
    Image {
        container: String,
        result: Result<ResolvedImage, ImageError>,
    },
    Started {
        container: String,
        attempt: u32,
        result: Result<ContainerState, StartFailure>,
    },
    StopEnded {
        container: String,
        result: Result<(), RuntimeError>,
    },
    Removed(Result<(), RuntimeError>),
    StatusWritten(Result<(), kube::Error>),
    Deleted(Result<(), kube::Error>),
    /// A task whose end changes nothing: a probe that cannot be run, a clean-up.
    Nothing,
}

/// Delay before a failed preparation or start is retried.
const RETRY_DELAY: SignedDuration = SignedDuration::from_secs(2);

/// Delay before a failed refresh of the volumes' files is retried.
const REFRESH_RETRY_DELAY: Duration = Duration::from_secs(10);

/// Whether a volume contains files of the downward API.
fn has_downward_api_files(pod: &Pod) -> bool {
    pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()).any(|volume| {
        let projected = volume.projected.iter().flat_map(|p| p.sources.iter().flatten());
        volume.downward_api.is_some() || projected.into_iter().any(|source| source.downward_api.is_some())
    })
}

/// The time `by` after `now`.
fn later(now: Timestamp, by: SignedDuration) -> Timestamp {
    now.saturating_add(by).unwrap_or(now)
}

impl Actor {
    pub(super) async fn handle_message(&mut self, message: Message) {
        match message {
            Message::Update(pod) => {
                let metadata = |pod: &Pod| (pod.metadata.labels.clone(), pod.metadata.annotations.clone());
                let outdated = metadata(&pod) != metadata(&self.pod) && has_downward_api_files(&pod);
                self.pod = pod;
                if outdated && self.state.volumes == VolumesState::Ready {
                    self.make_volumes(TaskResult::Refreshed);
                }
                self.update_final_status_written();
            }
            Message::Gone => {
                self.gone = true;
                let mut pod = (*self.pod).clone();
                let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::now());
                pod.metadata.deletion_timestamp.get_or_insert(now);
                pod.metadata.deletion_grace_period_seconds = Some(0);
                self.pod = pod.into();
                self.kill_stopping_containers();
            }
            Message::Exited { container, attempt, exit } => self.container_exited(&container, attempt, exit).await,
            Message::SupervisorLost => self.supervisor_lost(),
            Message::Fail(failure) => {
                if self.state.failure.is_none() {
                    self.record_warning(&failure.reason, failure.message.clone());
                    self.state.failure = Some(failure);
                }
            }
            Message::Rules(rules) => self.set_rules(rules).await,
        }
    }

    async fn set_rules(&mut self, rules: crate::runtime::PodRules) {
        self.rules = rules;
        if self.state.sandbox.info().is_none() {
            return;
        }
        if let Err(error) = self.node.runtime.set_rules(&self.uid, self.rules.clone()).await {
            warn!(%error, "Could not set network rules");
            self.record_warning("NetworkPolicyFailed", format!("network rules could not be set: {error}"));
        }
    }

    /// Replaces stops in progress by immediate kills, after a forced deletion.
    fn kill_stopping_containers(&mut self) {
        let stopping: Vec<String> = self.stops.keys().cloned().collect();
        for container in stopping {
            if let Some(stop) = self.stops.remove(&container) {
                stop.abort();
            }
            self.stop_container(&container, Duration::ZERO);
        }
    }

    pub(super) async fn handle_result(&mut self, result: TaskResult) {
        let now = Timestamp::now();
        match result {
            TaskResult::Volumes(result) => self.volumes_prepared(result, now),
            TaskResult::SourcesChanged => self.make_volumes(TaskResult::Refreshed),
            TaskResult::Refreshed(result) => self.volumes_refreshed(result),
            TaskResult::Sandbox(result) => self.sandbox_created(result, now).await,
            TaskResult::Image { container, result } => self.image_pulled(&container, result, now),
            TaskResult::Started { container, attempt, result } => {
                self.container_started(&container, attempt, result, now).await
            }
            TaskResult::StopEnded { container, result } => {
                if let Err(error) = result {
                    debug!(%error, container, "Could not stop a container as requested");
                }
            }
            TaskResult::Removed(result) => self.sandbox_removed(result, now),
            TaskResult::StatusWritten(result) => self.status_written(result, now),
            TaskResult::Deleted(result) => self.object_deleted(result).await,
            TaskResult::Nothing => {}
        }
        self.update_final_status_written();
    }

    /// Handles the result of a refresh. When a source object has been deleted, its files stay as they are, as with a
    /// kubelet; the refresh is retried because the object may be created again.
    fn volumes_refreshed(&mut self, result: Result<PreparedVolumes, String>) {
        match result {
            Ok(prepared) => self.watch_sources(prepared.versions),
            Err(message) => {
                self.record_warning("FailedMount", message);
                self.source_watch = Some(self.tasks.spawn(async {
                    tokio::time::sleep(REFRESH_RETRY_DELAY).await;
                    TaskResult::SourcesChanged
                }));
            }
        }
    }

    fn volumes_prepared(&mut self, result: Result<PreparedVolumes, String>, now: Timestamp) {
        match result {
            Ok(PreparedVolumes { prepared, versions }) => {
                self.watch_sources(versions);
                self.set_storage_limits(&prepared);
                self.volumes = prepared.into();
                self.state.volumes = VolumesState::Ready;
            }
            Err(message) => {
                self.record_warning("FailedMount", message.clone());
                self.state.volumes = VolumesState::Failed { message, retry_at: later(now, RETRY_DELAY) };
            }
        }
    }

    /// Computes the Pod's storage limits from its spec and the volumes that were prepared.
    pub(super) fn set_storage_limits(&mut self, prepared: &BTreeMap<String, PreparedVolume>) {
        let Some(spec) = self.pod.spec.as_ref() else { return };
        let volumes = mounts::storage(prepared);
        self.state.storage = eviction::limit_enforcement(&volumes);
        let limits = StorageLimits::of(spec, volumes, &self.node.settings.storage);
        self.storage = Arc::new(limits);
    }

    /// Removes the writable layers of an evicted Pod; its eviction would free nothing otherwise. Persistent volumes
    /// stay.
    fn free_evicted_storage(&mut self) {
        if self.state.failure.as_ref().is_none_or(|v| v.reason != eviction::EVICTED) {
            return;
        }
        let (runtime, owner) = (self.node.runtime.clone(), pod_sandbox::owner(&self.pod));
        self.tasks.spawn(async move {
            if let Err(error) = runtime.delete_owner_storage(&owner).await {
                warn!(%error, owner, "Could not remove the writable layers of an evicted Pod");
            }
            TaskResult::Nothing
        });
    }

    async fn sandbox_created(&mut self, result: Result<CreatedSandbox, RuntimeError>, now: Timestamp) {
        match result {
            Ok(created) => {
                // Those of every Pod are reported once, about the node.
                let of_host = self.node.runtime.weaknesses();
                for weakness in created.sandbox.weaknesses.iter().filter(|weakness| !of_host.contains(weakness)) {
                    self.record_warning(weakness.kind.reason(), weakness.message.clone());
                }
                let pod_ips = created.sandbox.ips.iter().map(IpAddr::to_string).collect();
                self.state.sandbox = SandboxState::Up(SandboxInfo { pod_ips });
                if created.rules != self.rules {
                    self.set_rules(self.rules.clone()).await;
                }
            }
            Err(error) => {
                let message = chain(&error);
                let reason = match error {
                    RuntimeError::MissingProgram { .. } => error.reason(),
                    _ => "FailedCreatePodSandBox",
                };
                self.record_warning(reason, message.clone());
                if matches!(error, RuntimeError::Refused(_)) {
                    let failure = PodFailure { reason: "PodRefused".to_owned(), message: message.clone() };
                    self.state.failure.get_or_insert(failure);
                }
                self.state.sandbox = SandboxState::Failed { message, retry_at: later(now, RETRY_DELAY) };
            }
        }
    }

    fn image_pulled(&mut self, container: &str, result: Result<ResolvedImage, ImageError>, now: Timestamp) {
        match result {
            Ok(image) => {
                if let Some(alias) = &image.alias_of {
                    let message = format!("image {alias} is run as the built-in image {}", image.reference);
                    self.record_event("ImageAlias", message);
                }
                let requested = image.alias_of.clone().unwrap_or_else(|| image.reference.clone());
                let status = ImageStatus { image_id: format!("{requested}@{}", image.digest), image: requested };
                self.images.insert(container.to_owned(), image);
                let record = self.state.container_mut(container);
                record.image = ImageState::Ready(status);
            }
            Err(error) => {
                let message = chain(&error);
                self.record_warning("Failed", message.clone());
                let policy = self.node.settings.backoff;
                let reason = error.reason().to_owned();
                // The back-off grows before it is used: even the first retry of a pull waits the initial delay.
                let backoff = self.pull_backoff.entry(container.to_owned()).or_default();
                *backoff = backoff.grown(&policy);
                let retry_at = backoff.next_attempt(now);
                self.state.container_mut(container).image =
                    ImageState::Failed { reason, message, failed_at: now, retry_at };
            }
        }
    }

    async fn container_started(
        &mut self,
        container: &str,
        attempt: u32,
        result: Result<ContainerState, StartFailure>,
        now: Timestamp,
    ) {
        match result {
            Ok(started) => {
                self.record_event("Started", format!("Started container {container}"));
                let run = Run { id: container_id(&started.id), started_at: started.started_at, stopping: false };
                let record = self.state.container_mut(container);
                record.instance = Instance::Running(run);
                record.started = false;
                record.ready = false;
                self.start_probes(container, started.port_open);
                let early = self.early_exits.remove(&(container.to_owned(), attempt)).or(started.exit);
                if let Some(exit) = early {
                    self.container_exited(container, attempt, exit).await;
                }
            }
            Err(StartFailure::Permanent(message)) => self.start_failed_permanently(container, message, now),
            Err(StartFailure::Retry { reason, message }) => {
                self.record_warning("Failed", message.clone());
                let record = self.state.container_mut(container);
                record.instance = match record.last.take() {
                    Some(last) if attempt > 0 => {
                        record.restarts = attempt - 1;
                        Instance::Exited(last)
                    }
                    last => {
                        record.last = last;
                        Instance::None
                    }
                };
                record.start_error = Some(StartError { reason, message, retry_at: later(now, RETRY_DELAY) });
            }
        }
    }

    /// Records a start that cannot succeed (the command cannot be executed, the postStart hook failed) as an exit, so
    /// that the restart policy applies.
    fn start_failed_permanently(&mut self, container: &str, message: String, now: Timestamp) {
        self.record_warning("Failed", message.clone());
        self.state.container_mut(container).instance = Instance::Exited(Termination {
            id: String::new(),
            exit_code: 128,
            signal: None,
            reason: "StartError".to_owned(),
            message: Some(message),
            started_at: None,
            finished_at: now,
        });
    }

    pub(super) async fn container_exited(&mut self, container: &str, attempt: u32, exit: Exit) {
        let policy = self.node.settings.backoff;
        let record = self.state.container_mut(container);
        if record.restarts != attempt {
            return;
        }
        let run = match &record.instance {
            Instance::Running(run) => run.clone(),
            Instance::Starting => {
                self.early_exits.insert((container.to_owned(), attempt), exit);
                return;
            }
            Instance::None | Instance::Exited(_) => return,
        };
        let ran = exit.finished_at.duration_since(run.started_at);
        record.backoff = record.backoff.after_run(ran.try_into().unwrap_or_default(), &policy);
        record.started = false;
        record.ready = false;
        self.abort_container_tasks(container);
        let mut message = self.read_termination_message(container, attempt, exit.code).await;
        if exit.oom_killed {
            let reason = exec_oom::reason(self.node.runtime.memory_limit(&self.uid, container));
            self.record_warning(OOM_KILLED, format!("Container {container} was killed: {reason}"));
            message = message.or(Some(reason));
        }
        let termination = termination(&run, &exit, message);
        info!(container, exit_code = exit.code, "Container ended");
        let failed = exit.code != 0;
        if failed {
            self.report_port_conflicts(container);
        }
        self.state.container_mut(container).instance = Instance::Exited(termination);
        if failed && self.state.container(container).restarts > 0 && deletion_deadline(&self.pod).is_none() {
            self.record_warning("BackOff", format!("Back-off restarting failed container {container}"));
        }
    }

    pub(super) fn abort_container_tasks(&mut self, container: &str) {
        if let Some(stop) = self.stops.remove(container) {
            stop.abort();
        }
        for probe in self.probes.remove(container).into_iter().flatten() {
            probe.abort();
        }
    }

    async fn read_termination_message(&self, container: &str, attempt: u32, code: i32) -> Option<String> {
        let spec = self.container_spec(container)?;
        let log = self.node.log_path(&self.uid, container, attempt);
        super::tasks::termination_message(&self.node.runtime, &self.uid, &spec, &log, code).await
    }

    /// Handles the death of the Pod's supervisor, which takes all processes with it: every container has ended, and the
    /// sandbox is removed.
    pub(super) fn supervisor_lost(&mut self) {
        let now = Timestamp::now();
        let alive: Vec<String> =
            self.state.containers.iter().filter(|(_, c)| c.instance.is_alive()).map(|(name, _)| name.clone()).collect();
        self.record_warning("SupervisorLost", "the Pod's supervisor ended unexpectedly; its containers were killed");
        for container in &alive {
            self.abort_container_tasks(container);
            let record = self.state.container_mut(container);
            let (id, started_at) = match &record.instance {
                Instance::Running(run) => (run.id.clone(), Some(run.started_at)),
                _ => (String::new(), None),
            };
            record.started = false;
            record.ready = false;
            record.instance = Instance::Exited(Termination {
                id,
                exit_code: 137,
                signal: None,
                reason: "ContainerStatusUnknown".to_owned(),
                message: Some("The container could not be located: its Pod's supervisor ended".to_owned()),
                started_at,
                finished_at: now,
            });
        }
        self.reset_init_containers();
        if matches!(self.state.sandbox, SandboxState::Up(_)) {
            self.start_action(Action::RemoveSandbox);
        }
    }

    /// Resets finished init containers: they run again in a new sandbox.
    fn reset_init_containers(&mut self) {
        let Some(spec) = self.pod.spec.clone() else { return };
        for (container, role) in roles(&spec) {
            if role == Role::Init
                && let Some(record) = self.state.containers.get_mut(&container.name)
                && record.instance.termination().is_some_and(|t| t.exit_code == 0)
            {
                record.last = record.instance.termination().cloned();
                record.instance = Instance::None;
                record.restarts += 1;
            }
        }
    }

    fn sandbox_removed(&mut self, result: Result<(), RuntimeError>, now: Timestamp) {
        match result {
            Ok(()) => {
                self.state.sandbox = SandboxState::Absent;
                self.free_evicted_storage();
            }
            Err(error) => {
                let message = chain(&error);
                warn!(%message, "Could not remove a Pod, retrying");
                self.state.sandbox = SandboxState::RemovalFailed { retry_at: later(now, RETRY_DELAY) };
            }
        }
    }

    fn status_written(&mut self, result: Result<(), kube::Error>, now: Timestamp) {
        match result {
            Ok(()) => self.status_tracker.written(),
            Err(error) if is_not_found(&error) => {
                // The watch will report the deletion; until then there is nothing to write.
                self.status_tracker.written();
            }
            Err(error) => {
                warn!(%error, "Could not write the status of a Pod, retrying");
                self.status_tracker.failed(now);
            }
        }
    }

    async fn object_deleted(&mut self, result: Result<(), kube::Error>) {
        match result {
            Ok(()) => self.deleted = true,
            Err(error) if is_not_found(&error) || is_conflict(&error) => self.deleted = true,
            Err(error) => {
                warn!(%error, "Could not delete a Pod object, retrying");
                tokio::time::sleep(Duration::from_millis(200)).await;
                self.deleting = false;
            }
        }
    }

    /// Sets `final_status_written` once no container runs and the object may be deleted. Only an object that a
    /// finalizer holds back waits for its last status to be written.
    fn update_final_status_written(&mut self) {
        if self.gone || self.deleting || deletion_deadline(&self.pod).is_none() {
            return;
        }
        if self.state.any_alive() || !self.sandbox_is_gone() {
            return;
        }
        let has_finalizer = self.pod.metadata.finalizers.as_ref().is_some_and(|f| !f.is_empty());
        self.state.final_status_written =
            !has_finalizer || self.status_tracker.is_up_to_date(&self.view.borrow().status);
    }

    /// The container that runs sandboxd, as far as the images are known.
    pub(super) fn sandboxd_container(&self) -> Option<String> {
        let spec = self.pod.spec.as_ref()?;
        let inject_by_image =
            self.images.iter().map(|(name, image)| (name.clone(), image.config.inject_sandboxd)).collect();
        sandboxd::container_for(&self.pod, spec, &inject_by_image).map(|c| c.name.clone())
    }
}

fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}
