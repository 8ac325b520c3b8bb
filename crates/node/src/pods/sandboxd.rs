//! When and how our daemon is put into a container: bound read-only at a fixed path, started as the first process, with
//! the container's own command as its child.

use std::collections::BTreeMap;
use std::path::Path;

use agent_sandbox_api::keys::annotations::INJECT_SANDBOXD;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

use crate::runtime::{Mount, MountSource};

/// Where the daemon is inside the container.
pub const PATH: &str = "/.agent-sandbox/sandboxd";
/// The port that speaks every dialect.
pub const PORT: u16 = 8888;
/// Ports of single dialects, opened only when the container declares them.
pub const REST_PORT: u16 = 8080;
pub const GRPC_PORT: u16 = 9090;

/// The container that gets the daemon: one per Pod, because all share one network namespace. `brings_daemon` says which
/// containers' images ask for it.
pub fn target<'a>(pod: &Pod, spec: &'a PodSpec, brings_daemon: &BTreeMap<String, bool>) -> Option<&'a Container> {
    let asked = pod.metadata.annotations.as_ref().and_then(|a| a.get(INJECT_SANDBOXD)).map(|v| v.trim());
    match asked {
        Some("false") => None,
        Some("true" | "") => spec.containers.first(),
        Some(name) if spec.containers.iter().any(|c| c.name == name) => spec.containers.iter().find(|c| c.name == name),
        _ => spec.containers.iter().find(|c| brings_daemon.get(&c.name) == Some(&true)),
    }
}

/// The container's command line with the daemon in front. `base` is where its commands start and bare file names live.
pub fn command(container: &Container, base: &str, own: Vec<String>) -> Vec<String> {
    let declares = |port: u16| container.ports.iter().flatten().any(|p| p.container_port == i32::from(port));
    let mut line = vec![PATH.to_owned(), "--listen".to_owned(), format!("0.0.0.0:{PORT}")];
    // A container's log is its own program's. That the daemon listens is nothing to tell, and would cost each start a file.
    line.extend(["--log-level".to_owned(), "warn".to_owned()]);
    for port in [REST_PORT, GRPC_PORT] {
        if declares(port) {
            line.extend(["--listen-if-free".to_owned(), format!("0.0.0.0:{port}")]);
        }
    }
    line.extend(["--base-dir".to_owned(), base.to_owned()]);
    // A command that is the daemon itself asks for the daemon alone.
    if !own.is_empty() && own[0] != PATH {
        // What an image starts by itself is often a shell or an interpreter, which ends at once where nobody types. Only a command that
        // somebody asked for decides about the container's life.
        if container.command.is_none() && container.args.is_none() {
            line.push("--keep-running".to_owned());
        }
        line.push("--".to_owned());
        line.extend(own);
    }
    line
}

/// The read-only mount that brings the program.
pub fn mount(program: &Path) -> Mount {
    Mount { source: MountSource::Host { path: program.to_owned() }, target: PATH.to_owned(), read_only: true }
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
        target(&pod, pod.spec.as_ref().unwrap(), &images).map(|c| c.name.clone())
    }

    #[test]
    fn one_container_at_most_gets_the_daemon() {
        assert_eq!(chosen(None, &[]), None);
        assert_eq!(chosen(None, &[("b", true)]).as_deref(), Some("b"));
        assert_eq!(chosen(None, &[("a", true), ("b", true)]).as_deref(), Some("a"));
        assert_eq!(chosen(Some("true"), &[]).as_deref(), Some("a"));
        assert_eq!(chosen(Some("b"), &[]).as_deref(), Some("b"));
        assert_eq!(chosen(Some("false"), &[("a", true)]), None);
    }

    #[test]
    fn a_command_that_is_the_daemon_means_the_daemon_alone() {
        let container: Container = serde_json::from_value(json!({"name": "a"})).unwrap();
        let line = command(&container, "/w", vec![PATH.to_owned(), "--odd".to_owned()]).join(" ");
        assert_eq!(line, "/.agent-sandbox/sandboxd --listen 0.0.0.0:8888 --log-level warn --base-dir /w");
    }

    #[test]
    fn an_image_whose_own_command_ends_stays() {
        let container: Container = serde_json::from_value(json!({"name": "a"})).unwrap();
        let line = command(&container, "/w", vec!["python3".to_owned()]).join(" ");
        assert_eq!(
            line,
            "/.agent-sandbox/sandboxd --listen 0.0.0.0:8888 --log-level warn --base-dir /w --keep-running -- python3"
        );
    }

    #[test]
    fn the_single_dialect_ports_open_only_when_declared() {
        let container: Container = serde_json::from_value(json!({"name": "a", "command": ["sleep"]})).unwrap();
        let own = vec!["sleep".to_owned(), "9".to_owned()];
        assert_eq!(
            command(&container, "/home/user", own).join(" "),
            "/.agent-sandbox/sandboxd --listen 0.0.0.0:8888 --log-level warn --base-dir /home/user -- sleep 9"
        );
        let declared: Container =
            serde_json::from_value(json!({"name": "a", "ports": [{"containerPort": 9090}, {"containerPort": 8080}]}))
                .unwrap();
        assert_eq!(
            command(&declared, "/w", vec![]).join(" "),
            "/.agent-sandbox/sandboxd --listen 0.0.0.0:8888 --log-level warn --listen-if-free 0.0.0.0:8080 --listen-if-free 0.0.0.0:9090 --base-dir /w"
        );
    }
}
