//! What happened: results of the actor's own tasks, messages from outside, and probe reports.

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::{SignedDuration, Timestamp};
use tracing::{debug, info, warn};

use super::work::{SandboxUp, StartFailure};
use super::{Actor, Message};
use crate::pods::check::Target;
use crate::pods::model::{
    ImageStatus, ImageStep, Instance, Role, Run, Sandbox, SandboxInfo, StartError, Termination, Volumes,
    deletion_deadline, roles,
};
use crate::pods::mounts::Prepared;
use crate::pods::probe::{Change, ProbeKind};
use crate::pods::prober::{self, ProbeReport, Prober};
use crate::pods::sandboxd;
use crate::runtime::{ContainerState, Exit, ImageError, ResolvedImage, RuntimeError};

/// The end of one of the actor's tasks.
pub(super) enum Done {
    Volumes(Result<BTreeMap<String, Prepared>, String>),
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
    /// A probe's task, which ends only when it cannot be tried.
    ProbeEnded,
}

/// Pause before a failed preparation is tried again.
const RETRY: SignedDuration = SignedDuration::from_secs(2);

fn later(now: Timestamp, by: SignedDuration) -> Timestamp {
    now.saturating_add(by).unwrap_or(now)
}

impl Actor {
    pub(super) async fn receive(&mut self, message: Message) {
        match message {
            Message::Update(pod) => {
                self.pod = pod;
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
            Done::ProbeEnded => {}
        }
        self.settle_deletion();
    }

    fn volumes_prepared(&mut self, result: Result<BTreeMap<String, Prepared>, String>, now: Timestamp) {
        match result {
            Ok(prepared) => {
                self.volumes = prepared.into();
                self.state.volumes = Volumes::Ready;
            }
            Err(message) => {
                self.warn("FailedMount", message.clone());
                self.state.volumes = Volumes::Failed { message, retry_at: later(now, RETRY) };
            }
        }
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
                self.warn("FailedCreatePodSandBox", message.clone());
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
                self.start_probes(container);
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
        let message = self.last_words(container, attempt, exit.code).await;
        let termination = termination(&run, &exit, message);
        info!(container, exit_code = exit.code, "Container ended");
        let main_restarts = exit.code != 0;
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

    async fn last_words(&self, container: &str, attempt: u32, code: i32) -> Option<String> {
        let spec = self.container_spec(container)?;
        let path = self.shared.termination_path(&self.uid, container, attempt);
        let log = self.shared.log_path(&self.uid, container, attempt);
        super::work::termination_message(&spec, &path, &log, code).await
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
            Ok(()) => self.state.sandbox = Sandbox::Absent,
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

    pub(super) fn target(&self, container: &str) -> Target {
        let ip = self.state.sandbox.info().and_then(|i| i.pod_ips.first()).and_then(|ip| ip.parse().ok());
        Target { runtime: self.shared.runtime.clone(), pod: self.uid.clone(), container: container.to_owned(), ip }
    }

    /// Probes of containers that already ran when the node came back.
    pub(super) fn resume_probes(&mut self) {
        let running: Vec<String> = self
            .state
            .containers
            .iter()
            .filter(|(_, c)| c.instance.run().is_some())
            .map(|(name, _)| name.clone())
            .collect();
        for container in running {
            let (started, ready) = (self.state.record(&container).started, self.state.record(&container).ready);
            self.start_probes(&container);
            let record = self.state.record_mut(&container);
            record.started |= started;
            record.ready |= ready;
        }
    }

    fn start_probes(&mut self, container: &str) {
        let Some(spec) = self.container_spec(container) else { return };
        let attempt = self.state.record(container).restarts;
        let implicit = (self.sandboxd_target().as_deref() == Some(container)).then_some(sandboxd::PORT);
        let probes = prober::probes_of(&spec, implicit);
        let has = |kind: ProbeKind| probes.iter().any(|(k, _, _)| *k == kind);
        let record = self.state.record_mut(container);
        record.started = !has(ProbeKind::Startup);
        record.ready = record.started && !has(ProbeKind::Readiness);
        let mut handles = Vec::new();
        let has_startup = has(ProbeKind::Startup);
        for (kind, check, timing) in probes {
            if has_startup && kind != ProbeKind::Startup {
                continue;
            }
            let prober = Prober {
                target: self.target(container),
                attempt,
                kind,
                check,
                timing,
                reports: self.probe_sender.clone(),
            };
            handles.push(self.tasks.spawn(async move {
                prober.run().await;
                Done::ProbeEnded
            }));
        }
        self.probes.insert(container.to_owned(), handles);
    }

    pub(super) fn probe_reported(&mut self, report: ProbeReport) {
        let record = self.state.record(&report.container);
        if record.restarts != report.attempt || record.instance.run().is_none_or(|r| r.stopping) {
            return;
        }
        match (report.kind, report.change) {
            (_, Change::None) => {}
            (ProbeKind::Readiness, Change::Passed) => self.state.record_mut(&report.container).ready = true,
            (ProbeKind::Readiness, Change::Failed(message)) => {
                self.state.record_mut(&report.container).ready = false;
                self.warn("Unhealthy", format!("Readiness probe failed: {message}"));
            }
            (ProbeKind::Startup, Change::Passed) => self.startup_passed(&report.container),
            (ProbeKind::Liveness, Change::Passed) => {}
            (kind @ (ProbeKind::Liveness | ProbeKind::Startup), Change::Failed(message)) => {
                self.warn("Unhealthy", format!("{} probe failed: {message}", kind.as_str()));
                let grace = self.probe_grace(&report.container, kind);
                self.stop_container(&report.container, grace);
            }
        }
    }

    fn startup_passed(&mut self, container: &str) {
        let Some(mut spec) = self.container_spec(container) else { return };
        spec.startup_probe = None;
        for probe in self.probes.remove(container).into_iter().flatten() {
            probe.abort();
        }
        let implicit = (self.sandboxd_target().as_deref() == Some(container)).then_some(sandboxd::PORT);
        let probes = prober::probes_of(&spec, implicit);
        let record = self.state.record_mut(container);
        record.started = true;
        record.ready = !probes.iter().any(|(kind, _, _)| *kind == ProbeKind::Readiness);
        let attempt = record.restarts;
        let mut handles = Vec::new();
        for (kind, check, timing) in probes {
            let (target, reports) = (self.target(container), self.probe_sender.clone());
            let prober = Prober { target, attempt, kind, check, timing, reports };
            handles.push(self.tasks.spawn(async move {
                prober.run().await;
                Done::ProbeEnded
            }));
        }
        self.probes.insert(container.to_owned(), handles);
    }

    fn probe_grace(&self, container: &str, kind: ProbeKind) -> std::time::Duration {
        let spec = self.container_spec(container);
        let probe = spec.as_ref().and_then(|c| match kind {
            ProbeKind::Liveness => c.liveness_probe.as_ref(),
            ProbeKind::Startup => c.startup_probe.as_ref(),
            ProbeKind::Readiness => None,
        });
        let own = probe.and_then(|p| p.termination_grace_period_seconds).and_then(|s| u64::try_from(s).ok());
        own.map_or_else(|| crate::pods::model::grace_period(&self.pod), std::time::Duration::from_secs)
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

/// An error with its causes, for people.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}
