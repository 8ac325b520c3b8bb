//! Runs one probe of one container for as long as the container runs, and reports changes.

use std::time::Duration;

use k8s_openapi::api::core::v1::Container;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::check::{Check, Target};
use super::probe::{
    Change, EAGER_EXEC_PAUSE, EAGER_FOR, EAGER_PAUSE, FIRST_FOR, FIRST_PAUSE, Outcome, ProbeKind, Standing, Timing,
};

/// Something changed.
#[derive(Debug)]
pub struct ProbeReport {
    pub container: String,
    pub attempt: u32,
    pub kind: ProbeKind,
    pub change: Change,
}

/// One probe.
pub struct Prober {
    pub target: Target,
    pub attempt: u32,
    pub kind: ProbeKind,
    pub check: Result<Check, String>,
    pub timing: Timing,
    pub reports: mpsc::Sender<ProbeReport>,
}

/// The probes of a container. `implicit_port` is one that must answer when the container declares no readiness probe.
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
    /// Tries eagerly until the probe first passes, then by its period. Ends when nobody listens any more.
    pub async fn run(self) {
        let check = match &self.check {
            Ok(check) => check.clone(),
            Err(message) => {
                let _ = self.report(Change::Failed(message.clone())).await;
                return;
            }
        };
        let born = Instant::now();
        let mut standing = Standing::default();
        // Failures count from the end of the initial delay, once per period, as asked.
        let mut next_counted = born + self.timing.initial_delay + self.timing.period;
        loop {
            let result = check.attempt(&self.target, self.timing.timeout).await;
            let refused = result.as_ref().is_err_and(|miss| miss.refused);
            let outcome = match result {
                Ok(()) => Outcome::Success,
                Err(miss) => Outcome::Failure(miss.message),
            };
            let eager = standing.passing != Some(true);
            let counted = !eager || Instant::now() >= next_counted;
            let change = if counted {
                next_counted = Instant::now() + self.timing.period;
                standing.observe(&outcome, &self.timing)
            } else {
                standing.observe_eager(&outcome, &self.timing)
            };
            if change != Change::None && self.report(change).await.is_err() {
                return;
            }
            tokio::time::sleep(self.pause(&check, &standing, &outcome, refused, born)).await;
        }
    }

    fn pause(&self, check: &Check, standing: &Standing, outcome: &Outcome, refused: bool, born: Instant) -> Duration {
        if standing.passing == Some(true) || *outcome == Outcome::Success {
            return self.timing.period;
        }
        let eager = match check {
            Check::Exec { .. } => EAGER_EXEC_PAUSE,
            _ if refused && born.elapsed() < FIRST_FOR => FIRST_PAUSE,
            _ if refused => EAGER_PAUSE,
            _ => EAGER_PAUSE * 8,
        };
        let pause = if born.elapsed() > EAGER_FOR { eager * 20 } else { eager };
        pause.min(self.timing.period)
    }

    async fn report(&self, change: Change) -> Result<(), mpsc::error::SendError<ProbeReport>> {
        let container = self.target.container.clone();
        self.reports.send(ProbeReport { container, attempt: self.attempt, kind: self.kind, change }).await
    }
}
