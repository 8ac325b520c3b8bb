//! Runs one probe of one container while the container runs, and reports changes.

use std::time::Duration;

use k8s_openapi::api::core::v1::Container;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::kubelet::probes::check::{Check, CheckTarget};
use crate::kubelet::probes::{
    Change, EAGER_EXEC_PAUSE, EAGER_PAUSE, EAGER_PHASE, FIRST_PAUSE, FIRST_PHASE, Outcome, ProbeKind, ProbeState,
    Timing,
};

/// A change in the state of a probe.
#[derive(Debug)]
pub struct ProbeReport {
    pub container: String,
    pub attempt: u32,
    pub kind: ProbeKind,
    pub change: Change,
}

/// One probe of one attempt of a container.
pub struct Prober {
    pub target: CheckTarget,
    pub attempt: u32,
    pub kind: ProbeKind,
    pub check: Result<Check, String>,
    pub timing: Timing,
    pub reports: mpsc::Sender<ProbeReport>,
}

/// The probes of a container. `implicit_port` gets a TCP readiness probe when the container declares no readiness
/// probe.
pub fn probes_of(container: &Container, implicit_port: Option<u16>) -> Vec<(ProbeKind, Result<Check, String>, Timing)> {
    let declared = [
        (ProbeKind::Startup, &container.startup_probe),
        (ProbeKind::Liveness, &container.liveness_probe),
        (ProbeKind::Readiness, &container.readiness_probe),
    ];
    let mut probes: Vec<_> = declared
        .into_iter()
        .filter_map(|(kind, probe)| {
            let probe = probe.as_ref()?;
            Some((kind, Check::of_probe(probe, container), Timing::of(probe)))
        })
        .collect();
    if let Some(port) = implicit_port.filter(|_| container.readiness_probe.is_none()) {
        let timing = Timing::of(&k8s_openapi::api::core::v1::Probe::default());
        probes.push((ProbeKind::Readiness, Ok(Check::Tcp { port }), timing));
    }
    probes
}

impl Prober {
    /// Makes frequent attempts until the probe passes for the first time, then one per period. Ends when the receiver
    /// is dropped.
    pub async fn run(self) {
        let check = match &self.check {
            Ok(check) => check.clone(),
            Err(message) => {
                let _ = self.report(Change::Failed(message.clone())).await;
                return;
            }
        };
        let started_at = Instant::now();
        let mut state = ProbeState::default();
        // Failures are counted once per period after the initial delay, as the probe specifies.
        let mut next_counted = started_at + self.timing.initial_delay + self.timing.period;
        loop {
            let result = check.attempt(&self.target, self.timing.timeout).await;
            let refused = result.as_ref().is_err_and(|failure| failure.refused);
            let outcome = match result {
                Ok(()) => Outcome::Success,
                Err(failure) => Outcome::Failure(failure.message),
            };
            let eager = state.passing != Some(true);
            let counted = !eager || Instant::now() >= next_counted;
            let change = if counted {
                next_counted = Instant::now() + self.timing.period;
                state.observe(&outcome, &self.timing)
            } else {
                state.observe_eager(&outcome, &self.timing)
            };
            if change != Change::None && self.report(change).await.is_err() {
                return;
            }
            tokio::time::sleep(self.pause(&check, &state, &outcome, refused, started_at)).await;
        }
    }

    fn pause(
        &self,
        check: &Check,
        state: &ProbeState,
        outcome: &Outcome,
        refused: bool,
        started_at: Instant,
    ) -> Duration {
        if state.passing == Some(true) || *outcome == Outcome::Success {
            return self.timing.period;
        }
        let eager = match check {
            Check::Exec { .. } => EAGER_EXEC_PAUSE,
            _ if refused && started_at.elapsed() < FIRST_PHASE => FIRST_PAUSE,
            _ if refused => EAGER_PAUSE,
            _ => EAGER_PAUSE * 8,
        };
        let pause = if started_at.elapsed() > EAGER_PHASE { eager * 20 } else { eager };
        pause.min(self.timing.period)
    }

    async fn report(&self, change: Change) -> Result<(), mpsc::error::SendError<ProbeReport>> {
        let container = self.target.container.clone();
        self.reports.send(ProbeReport { container, attempt: self.attempt, kind: self.kind, change }).await
    }
}
