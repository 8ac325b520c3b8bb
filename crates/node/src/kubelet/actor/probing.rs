//! Starts the probes of the Pod's containers and applies their results to the Pod's record.

use std::time::Duration;

use tokio::task::AbortHandle;

use super::Actor;
use super::handlers::TaskResult;
use crate::kubelet::container::sandboxd;
use crate::kubelet::probes::check::{Check, CheckTarget};
use crate::kubelet::probes::prober::{self, ProbeReport, Prober};
use crate::kubelet::probes::{Change, ProbeKind, Timing};

impl Actor {
    pub(super) fn check_target(&self, container: &str) -> CheckTarget {
        let ip = self.state.sandbox.info().and_then(|i| i.pod_ips.first()).and_then(|ip| ip.parse().ok());
        let ip = ip.filter(|_| self.node.runtime.reaches_addresses());
        CheckTarget { runtime: self.node.runtime.clone(), pod: self.uid.clone(), container: container.to_owned(), ip }
    }

    /// Starts the probes of containers that were already running when the node started.
    pub(super) fn resume_probes(&mut self) {
        let running: Vec<String> = self
            .state
            .containers
            .iter()
            .filter(|(_, c)| c.instance.run().is_some())
            .map(|(name, _)| name.clone())
            .collect();
        for container in running {
            let (started, ready) = (self.state.container(&container).started, self.state.container(&container).ready);
            self.start_probes(&container, false);
            let record = self.state.container_mut(&container);
            record.started |= started;
            record.ready |= ready;
        }
    }

    /// Starts the probes of a container: only the startup probe if there is one, otherwise all. With `port_open` the
    /// supervisor has already opened sandboxd's port, so the implicit readiness probe of that port is not needed.
    pub(super) fn start_probes(&mut self, container: &str, port_open: bool) {
        let Some(spec) = self.container_spec(container) else { return };
        let probes = prober::probes_of(&spec, self.implicit_port(container).filter(|_| !port_open));
        let has = |kind: ProbeKind| probes.iter().any(|(k, _, _)| *k == kind);
        let starting = has(ProbeKind::Startup);
        let record = self.state.container_mut(container);
        record.started = !starting;
        record.ready = !starting && !has(ProbeKind::Readiness);
        if port_open && record.ready {
            self.report_port_conflicts(container);
        }
        let first = probes.into_iter().filter(|(kind, _, _)| !starting || *kind == ProbeKind::Startup).collect();
        self.spawn_probes(container, first);
    }

    /// The port of the implicit readiness probe: sandboxd's port in the container that runs it.
    fn implicit_port(&self, container: &str) -> Option<u16> {
        (self.sandboxd_container().as_deref() == Some(container)).then_some(sandboxd::PORT)
    }

    fn spawn_probes(&mut self, container: &str, probes: Vec<(ProbeKind, Result<Check, String>, Timing)>) {
        let attempt = self.state.container(container).restarts;
        let mut handles: Vec<AbortHandle> = Vec::new();
        for (kind, check, timing) in probes {
            let (target, reports) = (self.check_target(container), self.probe_sender.clone());
            let prober = Prober { target, attempt, kind, check, timing, reports };
            handles.push(self.tasks.spawn(async move {
                prober.run().await;
                TaskResult::Nothing
            }));
        }
        self.probes.insert(container.to_owned(), handles);
    }

    pub(super) fn probe_reported(&mut self, report: ProbeReport) {
        let record = self.state.container(&report.container);
        if record.restarts != report.attempt || record.instance.run().is_none_or(|r| r.stopping) {
            return;
        }
        match (report.kind, report.change) {
            (_, Change::None) => {}
            (ProbeKind::Readiness, Change::Passed) => {
                self.state.container_mut(&report.container).ready = true;
                self.report_port_conflicts(&report.container);
            }
            (ProbeKind::Readiness, Change::Failed(message)) => {
                self.state.container_mut(&report.container).ready = false;
                self.record_warning("Unhealthy", format!("Readiness probe failed: {message}"));
            }
            (ProbeKind::Startup, Change::Passed) => self.startup_passed(&report.container),
            (ProbeKind::Liveness, Change::Passed) => {}
            (kind @ (ProbeKind::Liveness | ProbeKind::Startup), Change::Failed(message)) => {
                self.record_warning("Unhealthy", format!("{} probe failed: {message}", kind.as_str()));
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
        let probes = prober::probes_of(&spec, self.implicit_port(container));
        let record = self.state.container_mut(container);
        record.started = true;
        record.ready = !probes.iter().any(|(kind, _, _)| *kind == ProbeKind::Readiness);
        self.spawn_probes(container, probes);
    }

    fn probe_grace(&self, container: &str, kind: ProbeKind) -> Duration {
        let spec = self.container_spec(container);
        let probe = spec.as_ref().and_then(|c| match kind {
            ProbeKind::Liveness => c.liveness_probe.as_ref(),
            ProbeKind::Startup => c.startup_probe.as_ref(),
            ProbeKind::Readiness => None,
        });
        let own = probe.and_then(|p| p.termination_grace_period_seconds).and_then(|s| u64::try_from(s).ok());
        own.map_or_else(|| crate::kubelet::model::grace_period(&self.pod), Duration::from_secs)
    }
}
