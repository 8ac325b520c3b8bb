//! Beginning an action: marks it as under way in the state and starts its task.

use std::sync::Arc;

use jiff::Timestamp;

use super::react::Done;
use super::{Actor, work};
use crate::pods::model::{ImageStep, Instance, Sandbox, Volumes, roles};
use crate::pods::plan::Action;
use crate::pods::recorder::Severity;
use crate::pods::refresh::{self, Versions};

impl Actor {
    /// Begins an action. True when the state changed in a way that calls for another plan at once.
    pub(super) fn begin(&mut self, action: Action, now: Timestamp) -> bool {
        match action {
            Action::PrepareVolumes => return self.prepare_volumes(),
            Action::CreateSandbox => self.create_sandbox(),
            Action::PullImage { container } => self.pull_image(container),
            Action::StartContainer { container, attempt } => self.start_container(container, attempt, now),
            Action::StopContainer { container, grace } => self.stop_container(&container, grace),
            Action::RemoveSandbox => self.remove_sandbox(),
            Action::Fail(verdict) => {
                self.warn(&verdict.reason, verdict.message.clone());
                self.state.verdict = Some(verdict);
                return true;
            }
            Action::DeleteObject => self.delete_object(),
        }
        false
    }

    /// A Pod without volumes needs no task.
    fn prepare_volumes(&mut self) -> bool {
        let none = self.pod.spec.as_ref().is_none_or(|s| s.volumes.as_ref().is_none_or(Vec::is_empty));
        if none {
            self.note_storage(&Default::default());
            self.state.volumes = Volumes::Ready;
            return true;
        }
        self.state.volumes = Volumes::Preparing;
        self.make_volumes(Done::Volumes);
        false
    }

    /// Makes the volumes, or brings their files up to date.
    pub(super) fn make_volumes(&mut self, done: fn(Result<work::MadeVolumes, String>) -> Done) {
        let (shared, pod) = (Arc::clone(&self.shared), Arc::clone(&self.pod));
        let pod_ips = self.state.sandbox.info().map(|i| i.pod_ips.clone()).unwrap_or_default();
        self.tasks.spawn(async move { done(work::prepare_volumes(&shared, &pod, pod_ips).await) });
    }

    /// Watches what the volumes' files come from.
    pub(super) fn watch_sources(&mut self, versions: Versions) {
        if let Some(watch) = self.source_watch.take() {
            watch.abort();
        }
        if versions.is_empty() {
            return;
        }
        let client = self.shared.client.clone();
        let namespace = self.pod.metadata.namespace.clone().unwrap_or_else(|| "default".to_owned());
        self.source_watch = Some(self.tasks.spawn(async move {
            refresh::outdated(client, namespace, versions).await;
            Done::SourcesChanged
        }));
    }

    fn create_sandbox(&mut self) {
        self.state.sandbox = Sandbox::Creating;
        let (shared, pod, rules) = (Arc::clone(&self.shared), Arc::clone(&self.pod), self.rules.clone());
        self.tasks.spawn(async move { Done::Sandbox(work::create_sandbox(&shared, &pod, rules).await) });
    }

    fn pull_image(&mut self, container: String) {
        self.state.record_mut(&container).image = ImageStep::Pulling;
        let (shared, pod) = (Arc::clone(&self.shared), Arc::clone(&self.pod));
        self.tasks.spawn(async move {
            let result = work::ensure_image(&shared, &pod, &container).await;
            Done::Image { container, result }
        });
    }

    fn start_container(&mut self, container: String, attempt: u32, _now: Timestamp) {
        let policy = self.shared.settings.backoff;
        let record = self.state.record_mut(&container);
        if let Instance::Exited(termination) = std::mem::take(&mut record.instance) {
            record.last = Some(termination);
            record.backoff = record.backoff.grown(&policy);
        }
        record.instance = Instance::Starting;
        record.restarts = attempt;
        record.start_error = None;
        let work = work::Start {
            shared: Arc::clone(&self.shared),
            pod: Arc::clone(&self.pod),
            container: container.clone(),
            attempt,
            image: self.images.get(&container).cloned(),
            volumes: Arc::clone(&self.volumes),
            pod_ips: self.state.sandbox.info().map(|i| i.pod_ips.clone()).unwrap_or_default(),
            gets_sandboxd: self.sandboxd_target().as_deref() == Some(&container),
        };
        self.tasks.spawn(async move {
            let result = work.run().await;
            Done::Started { container, attempt, result }
        });
    }

    /// Stops a container: hook, signal, and after the grace period the end.
    pub(super) fn stop_container(&mut self, container: &str, grace: std::time::Duration) {
        let Instance::Running(run) = &mut self.state.record_mut(container).instance else { return };
        run.stopping = true;
        for probe in self.probes.remove(container).into_iter().flatten() {
            probe.abort();
        }
        self.note("Killing", format!("Stopping container {container}"));
        let Some(spec) = self.container_spec(container) else { return };
        let stop = work::Stop {
            target: self.target(container),
            container: spec,
            grace,
            image_signal: self.images.get(container).and_then(|i| i.config.stop_signal.clone()),
        };
        let name = container.to_owned();
        let handle = self.tasks.spawn(async move {
            let result = stop.run().await;
            Done::StopEnded { container: name, result }
        });
        self.stops.insert(container.to_owned(), handle);
    }

    fn remove_sandbox(&mut self) {
        self.state.sandbox = Sandbox::Removing;
        let (shared, uid) = (Arc::clone(&self.shared), self.uid.clone());
        self.tasks.spawn(async move { Done::Removed(shared.runtime.remove_pod(&uid).await) });
    }

    fn delete_object(&mut self) {
        // Marks the deletion as under way: `final_status_written` is what calls for it.
        self.state.final_status_written = false;
        self.deleting = true;
        let (client, pod) = (self.shared.client.clone(), Arc::clone(&self.pod));
        self.tasks.spawn(async move { Done::Deleted(work::delete_object(client, &pod).await) });
    }

    pub(super) fn warn(&self, reason: &str, message: impl Into<String>) {
        self.shared.recorder.pod(&self.pod, Severity::Warning, reason, message);
    }

    pub(super) fn note(&self, reason: &str, message: impl Into<String>) {
        self.shared.recorder.pod(&self.pod, Severity::Normal, reason, message);
    }

    pub(super) fn container_spec(&self, name: &str) -> Option<k8s_openapi::api::core::v1::Container> {
        let spec = self.pod.spec.as_ref()?;
        roles(spec).find(|(c, _)| c.name == name).map(|(c, _)| c.clone())
    }
}
