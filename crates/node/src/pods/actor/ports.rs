//! Ports that our daemon could not have, because another container of the Pod was faster.

use std::sync::Arc;
use std::time::Duration;

use super::Actor;
use super::react::Done;
use crate::pods::recorder::Severity;
use crate::pods::sandboxd;

/// Lines of the daemon's log that are looked at: it speaks of its ports before it starts anything.
const LINES: usize = 200;

const MOMENT: Duration = Duration::from_secs(1);

impl Actor {
    /// Looks at what the daemon said about its ports, and passes it on as events.
    pub(super) fn look_for_taken_ports(&mut self, container: &str) {
        if self.sandboxd_target().as_deref() != Some(container) {
            return;
        }
        let log = self.shared.log_path(&self.uid, container, self.state.record(container).restarts);
        let (shared, pod, container) = (Arc::clone(&self.shared), Arc::clone(&self.pod), container.to_owned());
        self.tasks.spawn(async move {
            // It answers on its first port before it has tried the others.
            tokio::time::sleep(MOMENT).await;
            let text = crate::logs::tail(&log, LINES).await.unwrap_or_default();
            for port in taken_ports(&String::from_utf8_lossy(&text)) {
                let message = format!(
                    "port {port} is taken by another container of this Pod, so the daemon in container {container} does not answer there"
                );
                shared.recorder.pod(&pod, Severity::Warning, "PortTaken", message);
            }
            Done::Nothing
        });
    }
}

/// The ports a daemon's log complains about.
fn taken_ports(log: &str) -> Vec<u16> {
    let complaints = log.lines().filter(|l| l.contains("Port is taken") || l.contains("cannot listen on"));
    let ports = complaints.filter_map(|line| {
        let digits: String = line.split("0.0.0.0:").nth(1)?.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    });
    let mut ports: Vec<u16> =
        ports.filter(|p| [sandboxd::PORT, sandboxd::REST_PORT, sandboxd::GRPC_PORT].contains(p)).collect();
    ports.dedup();
    ports
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_complaints_about_the_daemons_own_ports_count() {
        let log = "2026 WARN sandboxd: Port is taken address=0.0.0.0:8080 error=Address in use\n\
            Error: cannot listen on 0.0.0.0:8888: Address already in use\n\
            my server: Port is taken 0.0.0.0:1234\nlistening on 0.0.0.0:9090\n";
        assert_eq!(taken_ports(log), [8080, 8888]);
        assert_eq!(taken_ports(""), Vec::<u16>::new());
    }
}
