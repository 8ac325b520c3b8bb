//! Injection of sandboxd into a container: bind-mounted read-only at a fixed path and started as the first process,
//! with the container's own command as its child. Pure.

use std::collections::BTreeMap;
use std::path::Path;

use agent_sandbox_api::keys::annotations::INJECT_SANDBOXD;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

use crate::runtime::{Mount, MountSource};

/// Path of sandboxd inside the container.
pub const PATH: &str = "/.agent-sandbox/sandboxd";
/// The port that serves all protocols of sandboxd.
pub const PORT: u16 = 8888;
/// Ports of single protocols, opened only when the container declares them.
pub const REST_PORT: u16 = 8080;
pub const GRPC_PORT: u16 = 9090;

/// The history of the sandbox's commands: in its writable layer, which suspend keeps.
const HISTORY: &str = "/var/lib/agent-sandbox/history";

/// The container into which sandboxd is injected: at most one per Pod, because all containers share one network
/// namespace. `inject_by_image` has the containers whose images request it.
pub fn container_for<'a>(
    pod: &Pod,
    spec: &'a PodSpec,
    inject_by_image: &BTreeMap<String, bool>,
) -> Option<&'a Container> {
    let annotation = pod.metadata.annotations.as_ref().and_then(|a| a.get(INJECT_SANDBOXD)).map(|v| v.trim());
    match annotation {
        Some("false") => None,
        Some("true" | "") => spec.containers.first(),
        Some(name) if spec.containers.iter().any(|c| c.name == name) => spec.containers.iter().find(|c| c.name == name),
        _ => spec.containers.iter().find(|c| inject_by_image.get(&c.name) == Some(&true)),
    }
}

/// The container's command line with sandboxd put before it. `base` is the working directory of sandboxd's commands and
/// the base of relative file names.
pub fn command(container: &Container, base: &str, own: Vec<String>) -> Vec<String> {
    let declares = |port: u16| container.ports.iter().flatten().any(|p| p.container_port == i32::from(port));
    let mut line = vec![PATH.to_owned(), "--listen".to_owned(), format!("0.0.0.0:{PORT}")];
    // The container's log belongs to its own program. An info message of sandboxd would also cost each start a log
    // file.
    line.extend(["--log-level".to_owned(), "warn".to_owned()]);
    line.extend(["--history-file".to_owned(), HISTORY.to_owned()]);
    for port in [REST_PORT, GRPC_PORT] {
        if declares(port) {
            line.extend(["--listen-if-free".to_owned(), format!("0.0.0.0:{port}")]);
        }
    }
    line.extend(["--base-dir".to_owned(), base.to_owned()]);
    // A command that is sandboxd itself requests sandboxd without a child.
    if !own.is_empty() && own[0] != PATH {
        // The default command of an image is often a shell or an interpreter, which ends at once without a terminal.
        // Only a command from the Pod's spec decides when the container ends.
        if container.command.is_none() && container.args.is_none() {
            line.push("--keep-running".to_owned());
        }
        line.push("--".to_owned());
        line.extend(own);
    }
    line
}

/// The read-only mount of the sandboxd program.
pub fn mount(program: &Path) -> Mount {
    Mount { source: MountSource::Program { path: program.to_owned() }, target: PATH.to_owned(), read_only: true }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(annotation: Option<&str>) -> Pod {
        let annotations = annotation.map(|v| json!({ INJECT_SANDBOXD: v })).unwrap_or(json!({}));
        serde_json::from_value(json!({"metadata": {"name": "p", "annotations": annotations},
            "spec": {"containers": [{"name": "a"}, {"name": "b"}]}}))
        .unwrap()
    }

    fn chosen(annotation: Option<&str>, images: &[(&str, bool)]) -> Option<String> {
        let pod = pod(annotation);
        let images = images.iter().map(|(n, b)| ((*n).to_owned(), *b)).collect();
        container_for(&pod, pod.spec.as_ref().unwrap(), &images).map(|c| c.name.clone())
    }

    #[test]
    fn sandboxd_is_injected_into_one_container_at_most() {
        assert_eq!(chosen(None, &[]), None);
        assert_eq!(chosen(None, &[("b", true)]).as_deref(), Some("b"));
        assert_eq!(chosen(None, &[("a", true), ("b", true)]).as_deref(), Some("a"));
        assert_eq!(chosen(Some("true"), &[]).as_deref(), Some("a"));
        assert_eq!(chosen(Some("b"), &[]).as_deref(), Some("b"));
        assert_eq!(chosen(Some("false"), &[("a", true)]), None);
    }

    #[test]
    fn a_command_that_is_sandboxd_runs_sandboxd_without_a_child() {
        let container: Container = serde_json::from_value(json!({"name": "a"})).unwrap();
        let line = command(&container, "/w", vec![PATH.to_owned(), "--odd".to_owned()]).join(" ");
        assert_eq!(
            line,
            "/.agent-sandbox/sandboxd --listen 0.0.0.0:8888 --log-level warn --history-file /var/lib/agent-sandbox/history --base-dir /w"
        );
    }

    #[test]
    fn a_container_outlives_the_default_command_of_its_image() {
        let container: Container = serde_json::from_value(json!({"name": "a"})).unwrap();
        let line = command(&container, "/w", vec!["python3".to_owned()]).join(" ");
        assert_eq!(
            line,
            "/.agent-sandbox/sandboxd --listen 0.0.0.0:8888 --log-level warn --history-file /var/lib/agent-sandbox/history --base-dir /w --keep-running -- python3"
        );
    }

    #[test]
    fn single_protocol_ports_are_opened_only_when_declared() {
        let container: Container = serde_json::from_value(json!({"name": "a", "command": ["sleep"]})).unwrap();
        let own = vec!["sleep".to_owned(), "9".to_owned()];
        assert_eq!(
            command(&container, "/home/user", own).join(" "),
            "/.agent-sandbox/sandboxd --listen 0.0.0.0:8888 --log-level warn --history-file /var/lib/agent-sandbox/history --base-dir /home/user -- sleep 9"
        );
        let declared: Container =
            serde_json::from_value(json!({"name": "a", "ports": [{"containerPort": 9090}, {"containerPort": 8080}]}))
                .unwrap();
        assert_eq!(
            command(&declared, "/w", vec![]).join(" "),
            "/.agent-sandbox/sandboxd --listen 0.0.0.0:8888 --log-level warn --history-file /var/lib/agent-sandbox/history --listen-if-free 0.0.0.0:8080 --listen-if-free 0.0.0.0:9090 --base-dir /w"
        );
    }
}
