//! Builders for the tests of plan and status: a Pod and its record.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde_json::{Value, json};

use crate::kubelet::backoff::{Backoff, BackoffPolicy};
use crate::kubelet::model::{
    ImageState, ImageStatus, Instance, PodRecord, Run, SandboxInfo, SandboxState, Termination, VolumesState, roles,
};
use crate::kubelet::plan::{Action, Plan, plan};
use crate::kubelet::status::{StatusContext, compute};

/// The current time of all scenarios, in seconds.
pub(super) const NOW: i64 = 1_000_000;

pub(super) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

pub(super) struct Scenario {
    pub(super) pod: Pod,
    pub(super) state: PodRecord,
}

/// A new Pod with one container `main`.
pub(super) fn pod() -> Scenario {
    with_spec(json!({"containers": [{"name": "main", "image": "img"}]}))
}

/// A new Pod with this spec.
pub(super) fn with_spec(spec: Value) -> Scenario {
    let pod = serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u1", "generation": 3}, "spec": spec}))
    .unwrap();
    Scenario { pod, state: PodRecord { started_at: Some(at(NOW - 100)), ..PodRecord::default() } }
}

pub(super) fn exit(code: i32, finished: i64) -> Termination {
    let reason = if code == 0 { "Completed" } else { "Error" };
    Termination {
        id: "agent-sandbox://x".into(),
        exit_code: code,
        signal: None,
        reason: reason.into(),
        message: None,
        started_at: Some(at(finished - 5)),
        finished_at: at(finished),
    }
}

impl Scenario {
    /// Volumes are ready, the sandbox is up and all images are pulled.
    pub(super) fn prepared(mut self) -> Self {
        self.state.volumes = VolumesState::Ready;
        self.state.sandbox = SandboxState::Up(SandboxInfo { pod_ips: vec!["10.1.0.7".into()] });
        let names: Vec<String> = roles(self.pod.spec.as_ref().unwrap()).map(|(c, _)| c.name.clone()).collect();
        for name in names {
            let image = ImageStatus { image: "img".into(), image_id: "img@sha256:1".into() };
            self.state.container_mut(&name).image = ImageState::Ready(image);
        }
        self
    }

    pub(super) fn running(mut self, name: &str) -> Self {
        let run = Run { id: format!("agent-sandbox://{name}"), started_at: at(NOW - 50), stopping: false };
        let record = self.state.container_mut(name);
        record.instance = Instance::Running(run);
        record.started = true;
        record.ready = true;
        self
    }

    pub(super) fn not_started(mut self, name: &str) -> Self {
        self.state.container_mut(name).started = false;
        self.state.container_mut(name).ready = false;
        self
    }

    pub(super) fn unready(mut self, name: &str) -> Self {
        self.state.container_mut(name).ready = false;
        self
    }

    pub(super) fn starting(mut self, name: &str) -> Self {
        self.state.container_mut(name).instance = Instance::Starting;
        self
    }

    pub(super) fn stopping(mut self, name: &str) -> Self {
        if let Instance::Running(run) = &mut self.state.container_mut(name).instance {
            run.stopping = true;
        }
        self
    }

    pub(super) fn exited(mut self, name: &str, code: i32, finished: i64) -> Self {
        let record = self.state.container_mut(name);
        record.instance = Instance::Exited(exit(code, finished));
        record.started = false;
        record.ready = false;
        self
    }

    /// The container was already restarted this many times.
    pub(super) fn restarted(mut self, name: &str, times: u32) -> Self {
        let record = self.state.container_mut(name);
        record.restarts = times;
        record.backoff = (0..times).fold(Backoff::new(), |b, _| b.grown(&BackoffPolicy::default()));
        self
    }

    /// The Pod is being deleted with this many seconds of grace left.
    pub(super) fn deleting(mut self, grace: i64) -> Self {
        self.pod.metadata.deletion_grace_period_seconds = Some(grace);
        let deadline = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(NOW + grace));
        self.pod.metadata.deletion_timestamp = Some(deadline);
        self
    }

    pub(super) fn edit(mut self, change: impl FnOnce(&mut PodRecord)) -> Self {
        change(&mut self.state);
        self
    }

    pub(super) fn plan(&self) -> Plan {
        plan(&self.pod, &self.state, at(NOW))
    }

    pub(super) fn actions(&self) -> Vec<Action> {
        self.plan().actions
    }

    pub(super) fn status(&self) -> PodStatus {
        self.status_after(None)
    }

    pub(super) fn status_after(&self, previous: Option<&PodStatus>) -> PodStatus {
        let context = StatusContext { now: at(NOW), host_ips: &["192.0.2.1".to_owned()], previous };
        compute(&self.pod, &self.state, context)
    }
}
