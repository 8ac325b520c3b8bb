//! What happened: results of the actor's own tasks, messages from outside, and probe reports.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use tracing::{debug, info, warn};

use super::work::{MadeVolumes, SandboxUp, StartFailure};
use super::{Actor, Message};
use crate::evict::{self, Limits};
use crate::pods::model::{
    ImageStatus, ImageStep, Instance, Role, Run, Sandbox, SandboxInfo, StartError, Termination, Volumes,
    deletion_deadline, roles,
};
use crate::pods::mounts::{self, Prepared};
use crate::pods::{sandbox, sandboxd};
use crate::runtime::{ContainerState, Exit, ImageError, ResolvedImage, RuntimeError, chain};

/// The end of one of the actor's tasks.
pub(super) enum Done {
    Volumes(Result<MadeVolumes, String>),
    /// What the volumes' files come from changed.
    SourcesChanged,
    /// The files are up to date again.
    Refreshed(Result<MadeVolumes, String>),
    Sandbox(Result<SandboxUp, RuntimeError>),
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
    /// A task whose end changes nothing: a probe that cannot be tried, a clean-up.
    Nothing,
}

/// Pause before a failed preparation is tried again.
const RETRY: SignedDuration = SignedDuration::from_secs(2);

/// Pause before files that could not be brought up to date are tried again.
const REFRESH_AGAIN: std::time::Duration = std::time::Duration::from_secs(10);

/// Whether a volume tells the Pod about itself.
fn has_downward_files(pod: &Pod) -> bool {
    pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()).any(|volume| {
        let projected = volume.projected.iter().flat_map(|p| p.sources.iter().flatten());
        volume.downward_api.is_some() || projected.into_iter().any(|source| source.downward_api.is_some())
    })
}

fn later(now: Timestamp, by: SignedDuration) -> Timestamp {
    now.saturating_add(by).unwrap_or(now)
}

impl Actor {
    pub(super) async fn receive(&mut self, message: Message) {
        match message {
            Message::Update(pod) => {
                let told = |pod: &Pod| (pod.metadata.labels.clone(), pod.metadata.annotations.clone());
                let downward = told(&pod) != told(&self.pod) && has_downward_files(&pod);
                self.pod = pod;
                if downward && self.state.volumes == Volumes::Ready {
                    self.make_volumes(Done::Refreshed);
                }
                self.settle_deletion();
            }
            Message::Gone => {
                self.gone = true;
                let mut pod = (*self.pod).clone();
                let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::now());
                pod.metadata.deletion_timestamp.get_or_insert(now);
                pod.metadata.deletion_grace_period_seconds = Some(0);
                self.pod = pod.into();
                self.hurry();
            }
            Message::Exited { container, attempt, exit } => self.exited(&container, attempt, exit).await,
            Message::SupervisorLost => self.supervisor_lost(),
            Message::End(verdict) => {
                if self.state.verdict.is_none() {
                    self.warn(&verdict.reason, verdict.message.clone());
                    self.state.verdict = Some(verdict);
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
        if let Err(error) = self.shared.runtime.set_rules(&self.uid, self.rules.clone()).await {
            warn!(%error, "Could not set network rules");
            self.warn("NetworkPolicyFailed", format!("network rules could not be set: {error}"));
        }
    }

    /// A shorter grace period than before (forced deletion) overtakes stops under way.
    fn hurry(&mut self) {
        let stopping: Vec<String> = self.stops.keys().cloned().collect();
        for container in stopping {
            if let Some(stop) = self.stops.remove(&container) {
                stop.abort();
            }
            self.stop_container(&container, std::time::Duration::ZERO);
        }
    }

    pub(super) async fn complete(&mut self, done: Done) {
        let now = Timestamp::now();
        match done {
            Done::Volumes(result) => self.volumes_prepared(result, now),
            Done::SourcesChanged => self.make_volumes(Done::Refreshed),
            Done::Refreshed(result) => self.refreshed(result),
            Done::Sandbox(result) => self.sandbox_created(result, now).await,
            Done::Image { container, result } => self.image_here(&container, result, now),
            Done::Started { container, attempt, result } => self.started(&container, attempt, result, now).await,
            Done::StopEnded { container, result } => {
                if let Err(error) = result {
                    debug!(%error, container, "Stop did not go as asked");
                }
            }
            Done::Removed(result) => self.sandbox_removed(result, now),
            Done::StatusWritten(result) => self.status_written(result, now),
            Done::Deleted(result) => self.object_deleted(result).await,
            Done::Nothing => {}
        }
        self.settle_deletion();
    }

    /// An object that went away leaves its files as they are, as with a kubelet; it may come back.
    fn refreshed(&mut self, result: Result<MadeVolumes, String>) {
        match result {
            Ok(made) => self.watch_sources(made.versions),
            Err(message) => {
                self.warn("FailedMount", message);
                self.source_watch = Some(self.tasks.spawn(async {
                    tokio::time::sleep(REFRESH_AGAIN).await;
                    Done::SourcesChanged
                }));
            }
        }
    }

    fn volumes_prepared(&mut self, result: Result<MadeVolumes, String>, now: Timestamp) {
        match result {
            Ok(MadeVolumes { prepared, versions }) => {
                self.watch_sources(versions);
                self.note_storage(&prepared);
                self.volumes = prepared.into();
                self.state.volumes = Volumes::Ready;
            }
            Err(message) => {
                self.warn("FailedMount", message.clone());
                self.state.volumes = Volumes::Failed { message, retry_at: later(now, RETRY) };
            }
        }
    }

    /// Takes note of what bounds the Pod's storage.
    pub(super) fn note_storage(&mut self, prepared: &BTreeMap<String, Prepared>) {
        let Some(spec) = self.pod.spec.as_ref() else { return };
        let volumes = mounts::storage(prepared);
        self.state.storage = evict::holding(&volumes);
        let limits = Limits::of(spec, volumes, &self.shared.settings.storage);
        self.storage = Arc::new(limits);
    }

    /// What an evicted Pod wrote goes with it, or its eviction would free nothing; volumes of claims stay.
    fn free_storage(&mut self) {
        if self.state.verdict.as_ref().is_none_or(|v| v.reason != evict::EVICTED) {
            return;
        }
        let (runtime, owner) = (self.shared.runtime.clone(), sandbox::owner(&self.pod));
        self.tasks.spawn(async move {
            if let Err(error) = runtime.forget_owner(&owner).await {
                warn!(%error, owner, "Could not remove what an evicted Pod wrote");
            }
            Done::Nothing
        });
    }

    async fn sandbox_created(&mut self, result: Result<SandboxUp, RuntimeError>, now: Timestamp) {
        match result {
            Ok(up) => {
                for weakness in &up.sandbox.weaknesses {
                    self.warn(weakness.kind.reason(), weakness.message.clone());
                }
                let pod_ips = up.sandbox.ips.iter().map(IpAddr::to_string).collect();
                self.state.sandbox = Sandbox::Up(SandboxInfo { pod_ips });
                if up.rules != self.rules {
                    self.set_rules(self.rules.clone()).await;
                }
            }
            Err(error) => {
                let message = chain(&error);
                let reason = match error {
                    RuntimeError::MissingProgram { .. } => error.reason(),
                    _ => "FailedCreatePodSandBox",
                };
                self.warn(reason, message.clone());
                if matches!(error, RuntimeError::Refused(_)) {
                    let verdict =
                        crate::pods::model::Verdict { reason: "PodRefused".to_owned(), message: message.clone() };
                    self.state.verdict.get_or_insert(verdict);
                }
                self.state.sandbox = Sandbox::Failed { message, retry_at: later(now, RETRY) };
            }
        }
    }

    fn image_here(&mut self, container: &str, result: Result<ResolvedImage, ImageError>, now: Timestamp) {
        match result {
            Ok(image) => {
                if let Some(alias) = &image.alias_of {
                    let message = format!("image {alias} is run as the built-in image {}", image.reference);
                    self.note("ImageAlias", message);
                }
                let asked = image.alias_of.clone().unwrap_or_else(|| image.reference.clone());
                let status = ImageStatus { image_id: format!("{asked}@{}", image.digest), image: asked };
                self.images.insert(container.to_owned(), image);
                let record = self.state.record_mut(container);
                record.image = ImageStep::Ready(status);
            }
            Err(error) => {
                let message = chain(&error);
                self.warn("Failed", message.clone());
                let policy = self.shared.settings.backoff;
                let reason = error.reason().to_owned();
                // Every failure grows the pause, and the pause starts from its first step.
                let backoff = self.pull_backoff.entry(container.to_owned()).or_default();
                *backoff = backoff.grown(&policy);
                let retry_at = backoff.next_attempt(now);
                self.state.record_mut(container).image =
                    ImageStep::Failed { reason, message, failed_at: now, retry_at };
            }
        }
    }

    async fn started(
        &mut self,
        container: &str,
        attempt: u32,
        result: Result<ContainerState, StartFailure>,
        now: Timestamp,
    ) {
        match result {
            Ok(started) => {
                self.note("Started", format!("Started container {container}"));
                let run = Run { id: id(&started.id), started_at: started.started_at, stopping: false };
                let record = self.state.record_mut(container);
                record.instance = Instance::Running(run);
                record.started = false;
                record.ready = false;
                self.start_probes(container, started.port_open);
                let early = self.early_exits.remove(&(container.to_owned(), attempt)).or(started.exit);
                if let Some(exit) = early {
                    self.exited(container, attempt, exit).await;
                }
            }
            Err(StartFailure::Never(message)) => self.never_ran(container, message, now),
            Err(StartFailure::Retry { reason, message }) => {
                self.warn("Failed", message.clone());
                let record = self.state.record_mut(container);
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
                record.start_error = Some(StartError { reason, message, retry_at: later(now, RETRY) });
            }
        }
    }

    /// The command could not be executed: an exit like any other, so that the restart policy applies.
    fn never_ran(&mut self, container: &str, message: String, now: Timestamp) {
        self.warn("Failed", message.clone());
        self.state.record_mut(container).instance = Instance::Exited(Termination {
            id: String::new(),
            exit_code: 128,
            signal: None,
            reason: "StartError".to_owned(),
            message: Some(message),
            started_at: None,
            finished_at: now,
        });
    }

    pub(super) async fn exited(&mut self, container: &str, attempt: u32, exit: Exit) {
        let policy = self.shared.settings.backoff;
        let record = self.state.record_mut(container);
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
        self.forget_container_tasks(container);
        let message = self.termination_message(container, attempt, exit.code).await;
        let termination = termination(&run, &exit, message);
        info!(container, exit_code = exit.code, "Container ended");
        let main_restarts = exit.code != 0;
        if exit.code != 0 {
            self.look_for_taken_ports(container);
        }
        self.state.record_mut(container).instance = Instance::Exited(termination);
        if main_restarts && self.state.record(container).restarts > 0 && deletion_deadline(&self.pod).is_none() {
            self.warn("BackOff", format!("Back-off restarting failed container {container}"));
        }
    }

    pub(super) fn forget_container_tasks(&mut self, container: &str) {
        if let Some(stop) = self.stops.remove(container) {
            stop.abort();
        }
        for probe in self.probes.remove(container).into_iter().flatten() {
            probe.abort();
        }
    }

    async fn termination_message(&self, container: &str, attempt: u32, code: i32) -> Option<String> {
        let spec = self.container_spec(container)?;
        let log = self.shared.log_path(&self.uid, container, attempt);
        super::work::termination_message(&self.shared.runtime, &self.uid, &spec, &log, code).await
    }

    /// The Pod's processes are gone with its supervisor: every container ended, and the sandbox has to go.
    pub(super) fn supervisor_lost(&mut self) {
        let now = Timestamp::now();
        let alive: Vec<String> =
            self.state.containers.iter().filter(|(_, c)| c.instance.is_alive()).map(|(name, _)| name.clone()).collect();
        self.warn("SupervisorLost", "the Pod's supervisor ended unexpectedly; its containers were killed");
        for container in &alive {
            self.forget_container_tasks(container);
            let record = self.state.record_mut(container);
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
        if matches!(self.state.sandbox, Sandbox::Up(_)) {
            self.begin(crate::pods::plan::Action::RemoveSandbox, now);
        }
    }

    /// A new sandbox starts from the beginning: init containers run again.
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
                self.state.sandbox = Sandbox::Absent;
                self.free_storage();
            }
            Err(error) => {
                let message = chain(&error);
                warn!(%message, "Could not remove a Pod, trying again");
                // The addresses stay on record until it is gone.
                self.state.sandbox = Sandbox::Failed { message, retry_at: later(now, RETRY) };
            }
        }
    }

    fn status_written(&mut self, result: Result<(), kube::Error>, now: Timestamp) {
        match result {
            Ok(()) => self.ledger.written(),
            Err(error) if is_not_found(&error) => {
                // The watch will say so too; until then there is nothing to write.
                self.ledger.written();
            }
            Err(error) => {
                warn!(%error, "Could not write the status of a Pod, trying again");
                self.ledger.failed(now);
            }
        }
    }

    async fn object_deleted(&mut self, result: Result<(), kube::Error>) {
        match result {
            Ok(()) => self.deleted = true,
            Err(error) if is_not_found(&error) || is_conflict(&error) => self.deleted = true,
            Err(error) => {
                warn!(%error, "Could not delete a Pod object, trying again");
                tokio::time::sleep(std::time::Duration::from_millis(200)).await;
                self.deleting = false;
            }
        }
    }

    /// Once nothing runs, the object may go. Its last status is written only for those who hold it back with a finalizer.
    fn settle_deletion(&mut self) {
        if self.gone || self.deleting || deletion_deadline(&self.pod).is_none() {
            return;
        }
        if self.state.any_alive() || !self.sandbox_is_gone() {
            return;
        }
        let held = self.pod.metadata.finalizers.as_ref().is_some_and(|f| !f.is_empty());
        self.state.final_status_written = !held || self.ledger.is_settled(&self.view.borrow().status);
    }

    /// Which container has our daemon, as far as its image is known.
    pub(super) fn sandboxd_target(&self) -> Option<String> {
        let spec = self.pod.spec.as_ref()?;
        let brings = self.images.iter().map(|(name, image)| (name.clone(), image.config.inject_sandboxd)).collect();
        sandboxd::target(&self.pod, spec, &brings).map(|c| c.name.clone())
    }
}

/// The container id as Kubernetes writes it, with the runtime's name in front.
pub(super) fn id(raw: &str) -> String {
    if raw.contains("://") { raw.to_owned() } else { format!("agent-sandbox://{raw}") }
}

/// An exit as the status shows it.
pub(crate) fn termination(run: &Run, exit: &Exit, message: Option<String>) -> Termination {
    let reason = match (exit.oom_killed, exit.code) {
        (true, _) => "OOMKilled",
        (false, 0) => "Completed",
        (false, _) => "Error",
    };
    Termination {
        id: run.id.clone(),
        exit_code: exit.code,
        signal: exit.signal,
        reason: reason.to_owned(),
        message,
        started_at: Some(run.started_at),
        finished_at: exit.finished_at,
    }
}

fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}
