//! Probes of the Pod's containers: which run, and what their results mean for the state.

use std::time::Duration;

use tokio::task::AbortHandle;

use super::Actor;
use super::react::Done;
use crate::pods::check::{Check, Target};
use crate::pods::probe::{Change, ProbeKind, Timing};
use crate::pods::prober::{self, ProbeReport, Prober};
use crate::pods::sandboxd;

impl Actor {
    pub(super) fn target(&self, container: &str) -> Target {
        let ip = self.state.sandbox.info().and_then(|i| i.pod_ips.first()).and_then(|ip| ip.parse().ok());
        let ip = ip.filter(|_| self.shared.runtime.reaches_addresses());
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
            self.start_probes(&container, false);
            let record = self.state.record_mut(&container);
            record.started |= started;
            record.ready |= ready;
        }
    }

    /// Begins the probes of a container: the startup probe alone if there is one, else all. `port_open`: its port was opened for it, so that
    /// nobody has to ask whether it answers.
    pub(super) fn start_probes(&mut self, container: &str, port_open: bool) {
        let Some(spec) = self.container_spec(container) else { return };
        let probes = prober::probes_of(&spec, self.implicit_port(container).filter(|_| !port_open));
        let has = |kind: ProbeKind| probes.iter().any(|(k, _, _)| *k == kind);
        let starting = has(ProbeKind::Startup);
        let record = self.state.record_mut(container);
        record.started = !starting;
        record.ready = !starting && !has(ProbeKind::Readiness);
        if port_open && record.ready {
            self.look_for_taken_ports(container);
        }
        let first = probes.into_iter().filter(|(kind, _, _)| !starting || *kind == ProbeKind::Startup).collect();
        self.spawn_probes(container, first);
    }

    /// The port that must answer where our daemon runs and the container says nothing else.
    fn implicit_port(&self, container: &str) -> Option<u16> {
        (self.sandboxd_target().as_deref() == Some(container)).then_some(sandboxd::PORT)
    }

    fn spawn_probes(&mut self, container: &str, probes: Vec<(ProbeKind, Result<Check, String>, Timing)>) {
        let attempt = self.state.record(container).restarts;
        let mut handles: Vec<AbortHandle> = Vec::new();
        for (kind, check, timing) in probes {
            let (target, reports) = (self.target(container), self.probe_sender.clone());
            let prober = Prober { target, attempt, kind, check, timing, reports };
            handles.push(self.tasks.spawn(async move {
                prober.run().await;
                Done::Nothing
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
            (ProbeKind::Readiness, Change::Passed) => {
                self.state.record_mut(&report.container).ready = true;
                self.look_for_taken_ports(&report.container);
            }
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
        let probes = prober::probes_of(&spec, self.implicit_port(container));
        let record = self.state.record_mut(container);
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
        own.map_or_else(|| crate::pods::model::grace_period(&self.pod), Duration::from_secs)
    }
}
