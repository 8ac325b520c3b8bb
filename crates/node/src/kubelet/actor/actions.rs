//! Starts the actions of a plan: marks each as in progress in the Pod's record and spawns its task.

use std::sync::Arc;

use super::handlers::TaskResult;
use super::{Actor, tasks};
use crate::kubelet::events::Severity;
use crate::kubelet::model::{ImageState, Instance, SandboxState, VolumesState, roles};
use crate::kubelet::plan::Action;
use crate::kubelet::volumes::refresh::{self, Versions};

impl Actor {
    /// Starts an action. Returns true when the record changed such that the Pod must be planned again at once.
    pub(super) fn start_action(&mut self, action: Action) -> bool {
        match action {
            Action::PrepareVolumes => return self.prepare_volumes(),
            Action::CreateSandbox => self.create_sandbox(),
            Action::PullImage { container } => self.pull_image(container),
            Action::StartContainer { container, attempt } => self.start_container(container, attempt),
            Action::StopContainer { container, grace } => self.stop_container(&container, grace),
            Action::RemoveSandbox => self.remove_sandbox(),
            Action::Fail(failure) => {
                self.record_warning(&failure.reason, failure.message.clone());
                self.state.failure = Some(failure);
                return true;
            }
            Action::DeleteObject => self.delete_object(),
        }
        false
    }

    /// Prepares the volumes. A Pod without volumes is done at once and needs no task.
    fn prepare_volumes(&mut self) -> bool {
        let no_volumes = self.pod.spec.as_ref().is_none_or(|s| s.volumes.as_ref().is_none_or(Vec::is_empty));
        if no_volumes {
            self.set_storage_limits(&Default::default());
            self.state.volumes = VolumesState::Ready;
            return true;
        }
        self.state.volumes = VolumesState::Preparing;
        self.make_volumes(TaskResult::Volumes);
        false
    }

    /// Creates the volumes or rewrites their files; `to_result` wraps the outcome.
    pub(super) fn make_volumes(&mut self, to_result: fn(Result<tasks::PreparedVolumes, String>) -> TaskResult) {
        let (node, pod) = (Arc::clone(&self.node), Arc::clone(&self.pod));
        let pod_ips = self.state.sandbox.info().map(|i| i.pod_ips.clone()).unwrap_or_default();
        self.tasks.spawn(async move { to_result(tasks::prepare_volumes(&node, &pod, pod_ips).await) });
    }

    /// Watches the objects from which the volumes' files are written.
    pub(super) fn watch_sources(&mut self, versions: Versions) {
        if let Some(watch) = self.source_watch.take() {
            watch.abort();
        }
        if versions.is_empty() {
            return;
        }
        let client = self.node.client.clone();
        let namespace = self.pod.metadata.namespace.clone().unwrap_or_else(|| "default".to_owned());
        self.source_watch = Some(self.tasks.spawn(async move {
            refresh::wait_until_outdated(client, namespace, versions).await;
            TaskResult::SourcesChanged
        }));
    }

    fn create_sandbox(&mut self) {
        self.state.sandbox = SandboxState::Creating;
        let (node, pod, rules) = (Arc::clone(&self.node), Arc::clone(&self.pod), self.rules.clone());
        self.tasks.spawn(async move { TaskResult::Sandbox(tasks::create_sandbox(&node, &pod, rules).await) });
    }

    fn pull_image(&mut self, container: String) {
        self.state.container_mut(&container).image = ImageState::Pulling;
        let (node, pod) = (Arc::clone(&self.node), Arc::clone(&self.pod));
        self.tasks.spawn(async move {
            let result = tasks::ensure_image(&node, &pod, &container).await;
            TaskResult::Image { container, result }
        });
    }

    fn start_container(&mut self, container: String, attempt: u32) {
        let policy = self.node.settings.backoff;
        let record = self.state.container_mut(&container);
        if let Instance::Exited(termination) = std::mem::take(&mut record.instance) {
            record.last = Some(termination);
            record.backoff = record.backoff.grown(&policy);
        }
        record.instance = Instance::Starting;
        record.restarts = attempt;
        record.start_error = None;
        let start = tasks::Start {
            node: Arc::clone(&self.node),
            pod: Arc::clone(&self.pod),
            container: container.clone(),
            attempt,
            image: self.images.get(&container).cloned(),
            volumes: Arc::clone(&self.volumes),
            pod_ips: self.state.sandbox.info().map(|i| i.pod_ips.clone()).unwrap_or_default(),
            injects_sandboxd: self.sandboxd_container().as_deref() == Some(&container),
        };
        self.tasks.spawn(async move {
            let result = start.run().await;
            TaskResult::Started { container, attempt, result }
        });
    }

    /// Stops a container: preStop hook, stop signal, and SIGKILL after the grace period.
    pub(super) fn stop_container(&mut self, container: &str, grace: std::time::Duration) {
        let Instance::Running(run) = &mut self.state.container_mut(container).instance else { return };
        run.stopping = true;
        for probe in self.probes.remove(container).into_iter().flatten() {
            probe.abort();
        }
        self.record_event("Killing", format!("Stopping container {container}"));
        let Some(spec) = self.container_spec(container) else { return };
        let stop = tasks::Stop {
            target: self.check_target(container),
            container: spec,
            grace,
            image_signal: self.images.get(container).and_then(|i| i.config.stop_signal.clone()),
        };
        let name = container.to_owned();
        let handle = self.tasks.spawn(async move {
            let result = stop.run().await;
            TaskResult::StopEnded { container: name, result }
        });
        self.stops.insert(container.to_owned(), handle);
    }

    fn remove_sandbox(&mut self) {
        self.state.sandbox = SandboxState::Removing;
        let (node, uid) = (Arc::clone(&self.node), self.uid.clone());
        self.tasks.spawn(async move { TaskResult::Removed(node.runtime.remove_pod(&uid).await) });
    }

    fn delete_object(&mut self) {
        // `plan` asks for a deletion while `final_status_written` is set, so clearing it marks the deletion as in
        // progress.
        self.state.final_status_written = false;
        self.deleting = true;
        let (client, pod) = (self.node.client.clone(), Arc::clone(&self.pod));
        self.tasks.spawn(async move { TaskResult::Deleted(tasks::delete_object(client, &pod).await) });
    }

    pub(super) fn record_warning(&self, reason: &str, message: impl Into<String>) {
        self.node.recorder.pod(&self.pod, Severity::Warning, reason, message);
    }

    pub(super) fn record_event(&self, reason: &str, message: impl Into<String>) {
        self.node.recorder.pod(&self.pod, Severity::Normal, reason, message);
    }

    pub(super) fn container_spec(&self, name: &str) -> Option<k8s_openapi::api::core::v1::Container> {
        let spec = self.pod.spec.as_ref()?;
        roles(spec).find(|(c, _)| c.name == name).map(|(c, _)| c.clone())
    }
}
