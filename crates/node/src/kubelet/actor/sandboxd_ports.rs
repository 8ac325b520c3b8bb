//! Reports ports on which sandboxd could not listen because another container of the Pod had taken them.

use std::sync::Arc;
use std::time::Duration;

use super::Actor;
use super::handlers::TaskResult;
use crate::kubelet::container::sandboxd;
use crate::kubelet::events::Severity;

/// Number of log lines that are searched: sandboxd logs port conflicts before it starts any process.
const LOG_LINES: usize = 200;
/// Maximum number of bytes of these lines.
const LOG_BYTES: usize = 64 * 1024;

/// Delay before the log is read: sandboxd accepts connections on its first port before it has tried the other ports.
const LISTEN_DELAY: Duration = Duration::from_secs(1);

impl Actor {
    /// Reads sandboxd's log and records an event for each port on which it could not listen.
    pub(super) fn report_port_conflicts(&mut self, container: &str) {
        if self.sandboxd_container().as_deref() != Some(container) {
            return;
        }
        let log = self.node.log_path(&self.uid, container, self.state.container(container).restarts);
        let (node, pod, container) = (Arc::clone(&self.node), Arc::clone(&self.pod), container.to_owned());
        self.tasks.spawn(async move {
            tokio::time::sleep(LISTEN_DELAY).await;
            let text = crate::kubelet::logs::tail(&log, LOG_LINES, LOG_BYTES).await.unwrap_or_default();
            for port in conflicting_ports(&String::from_utf8_lossy(&text)) {
                let message = format!(
                    "port {port} is taken by another container of this Pod, so sandboxd in container {container} does not listen on it"
                );
                node.recorder.pod(&pod, Severity::Warning, "PortTaken", message);
            }
            TaskResult::Nothing
        });
    }
}

/// The sandboxd ports that log messages report as taken.
fn conflicting_ports(log: &str) -> Vec<u16> {
    let messages = log.lines().filter(|l| l.contains("Port is taken") || l.contains("cannot listen on"));
    let ports = messages.filter_map(|line| {
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
    fn only_messages_about_the_ports_of_sandboxd_count() {
        let log = "2026 WARN sandboxd: Port is taken address=0.0.0.0:8080 error=Address in use\n\
            Error: cannot listen on 0.0.0.0:8888: Address already in use\n\
            my server: Port is taken 0.0.0.0:1234\nlistening on 0.0.0.0:9090\n";
        assert_eq!(conflicting_ports(log), [8080, 8888]);
        assert_eq!(conflicting_ports(""), Vec::<u16>::new());
    }
}
