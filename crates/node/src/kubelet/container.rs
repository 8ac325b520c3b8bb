//! Builds the runtime's specification of a container, with command, user, environment and mounts resolved. Pure.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::{Container, PodSpec};
use thiserror::Error;

use crate::kubelet::container::env::Environment;
use crate::kubelet::container::expand::expand;
use crate::kubelet::resources::quantity::{Milli, QuantityError};
use crate::kubelet::resources::{self, QosClass, qos_class};
use crate::runtime::{Capability, ContainerSpec, ImageConfig, Limits, LogTarget, Mount, ResolvedImage, User};

pub mod env;
pub mod expand;
pub mod sandboxd;
pub mod service_env;

/// What the node adds to a container's spec.
#[derive(Clone, Debug)]
pub struct ContainerInputs {
    pub attempt: u32,
    pub image: ResolvedImage,
    pub environment: Environment,
    pub mounts: Vec<Mount>,
    pub hostname: String,
    /// Path of sandboxd on this machine, if it is injected into this container.
    pub sandboxd: Option<PathBuf>,
    pub log: LogTarget,
}

/// Why a container cannot be configured.
#[derive(Debug, Error, Eq, PartialEq)]
pub enum ContainerSpecError {
    #[error("container {0:?} has no command: neither the Pod nor the image gives one")]
    NoCommand(String),
    #[error("container has runAsNonRoot and image will run as root (container {0:?})")]
    Root(String),
    #[error(
        "container has runAsNonRoot and image has non-numeric user ({user:?}), cannot verify user is non-root (container {container:?})"
    )]
    UnknownUser { container: String, user: String },
    #[error("{field} {value} of container {container:?} is not an id")]
    BadId { container: String, field: &'static str, value: i64 },
    #[error(transparent)]
    Quantity(#[from] QuantityError),
}

/// Builds the runtime's specification of a container.
pub fn assemble(
    spec: &PodSpec,
    container: &Container,
    inputs: ContainerInputs,
) -> Result<ContainerSpec, ContainerSpecError> {
    let security = container.security_context.as_ref();
    let env = environment(&inputs);
    let user = user(spec, container, &inputs.image.config)?;
    let working_dir = container
        .working_dir
        .clone()
        .or_else(|| inputs.image.config.working_dir.clone())
        .filter(|dir| !dir.is_empty())
        .unwrap_or_else(|| "/".to_owned());
    let mut command = command(container, &inputs.image.config, &inputs.environment);
    let mut mounts = inputs.mounts;
    match &inputs.sandboxd {
        Some(program) => {
            let root = if working_dir == "/" { home(&env).unwrap_or("/").to_owned() } else { working_dir.clone() };
            command = sandboxd::command(container, &root, command);
            mounts.push(sandboxd::mount(program));
        }
        None if command.is_empty() => return Err(ContainerSpecError::NoCommand(container.name.clone())),
        None => {}
    }
    let limits = resources::limits(container.resources.as_ref())?;
    let message_path = container.termination_message_path.clone().filter(|path| !path.is_empty());
    Ok(ContainerSpec {
        name: container.name.clone(),
        attempt: inputs.attempt,
        command,
        env,
        working_dir,
        open_port: inputs.sandboxd.is_some().then_some(sandboxd::PORT),
        user,
        capabilities: capabilities(container),
        read_only_root: security.and_then(|s| s.read_only_root_filesystem) == Some(true),
        mounts,
        termination_message_path: Some(message_path.unwrap_or_else(|| DEFAULT_MESSAGE_PATH.to_owned())),
        stdin: container.stdin == Some(true),
        stdin_once: container.stdin_once == Some(true),
        tty: container.tty == Some(true),
        limits: runtime_limits(&limits),
        oom_score_adj: oom_score(spec),
        log: inputs.log,
        image: inputs.image,
    })
}

/// Where Kubernetes lets a container leave its termination message when the Pod names no other path.
const DEFAULT_MESSAGE_PATH: &str = "/dev/termination-log";

/// Limits in the runtime's units.
pub fn runtime_limits(limits: &resources::ResourceLimits) -> Limits {
    let millis = |m: Milli| u64::try_from(m.0.max(0)).unwrap_or(u64::MAX);
    Limits {
        memory_bytes: limits.memory.map(|m| m.units_u64()),
        cpu_millis: limits.cpu.map(millis),
        memory_asked_bytes: limits.memory_asked.units_u64(),
        cpu_asked_millis: millis(limits.cpu_asked),
        cpu_request_millis: limits.cpu_request.map(millis),
        pids: None,
        layer_bytes: limits.ephemeral_storage.map(|m| m.units_u64()),
    }
}

/// The `oom_score_adj` of a Pod's processes: they are killed before the host's own programs, and Pods with weaker
/// guarantees before others.
fn oom_score(spec: &PodSpec) -> i32 {
    match qos_class(spec) {
        QosClass::Guaranteed => 200,
        QosClass::Burstable => 600,
        QosClass::BestEffort => 1000,
    }
}

fn home(env: &[(String, String)]) -> Option<&str> {
    env.iter().find(|(name, _)| name == "HOME").map(|(_, value)| value.as_str())
}

/// The environment: defaults of the image, overridden by what the Pod declares, and `HOSTNAME` as container runtimes
/// set it.
fn environment(inputs: &ContainerInputs) -> Vec<(String, String)> {
    let mut env: Vec<(String, String)> = vec![("HOSTNAME".to_owned(), inputs.hostname.clone())];
    for (name, value) in inputs.image.config.env.iter().chain(&inputs.environment.variables) {
        match env.iter_mut().find(|(n, _)| n == name) {
            Some(slot) => slot.1.clone_from(value),
            None => env.push((name.clone(), value.clone())),
        }
    }
    if !env.iter().any(|(name, _)| name == "PATH") {
        let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        env.push(("PATH".to_owned(), path.to_owned()));
    }
    env
}

/// The command line. `command` replaces the image's entrypoint and drops its arguments; `args` replaces only the
/// arguments.
fn command(container: &Container, image: &ImageConfig, environment: &Environment) -> Vec<String> {
    let filled = |words: &Option<Vec<String>>| words.clone().filter(|w| !w.is_empty());
    let expanded = |words: Vec<String>| -> Vec<String> {
        words.iter().map(|word| expand(word, |name| environment.get(name))).collect()
    };
    let (entrypoint, arguments) = match (filled(&container.command), filled(&container.args)) {
        (Some(command), args) => (expanded(command), expanded(args.unwrap_or_default())),
        (None, Some(args)) => (image.entrypoint.clone(), expanded(args)),
        (None, None) => (image.entrypoint.clone(), image.command.clone()),
    };
    entrypoint.into_iter().chain(arguments).collect()
}

fn capabilities(container: &Container) -> Vec<Capability> {
    let requested = container.security_context.as_ref().and_then(|s| s.capabilities.as_ref());
    let mut list: Vec<Capability> =
        requested.iter().flat_map(|c| c.add.iter().flatten()).filter_map(|name| Capability::parse(name)).collect();
    list.sort_unstable();
    list.dedup();
    list
}

/// The user of the container: the container's setting overrides the Pod's, which overrides the image's.
fn user(spec: &PodSpec, container: &Container, image: &ImageConfig) -> Result<User, ContainerSpecError> {
    let own = container.security_context.as_ref();
    let pod = spec.security_context.as_ref();
    let id = |field: &'static str, value: i64| {
        u32::try_from(value).map_err(|_| ContainerSpecError::BadId { container: container.name.clone(), field, value })
    };
    let uid = own.and_then(|s| s.run_as_user).or_else(|| pod.and_then(|s| s.run_as_user));
    let gid = own.and_then(|s| s.run_as_group).or_else(|| pod.and_then(|s| s.run_as_group));
    let non_root = own.and_then(|s| s.run_as_non_root).or_else(|| pod.and_then(|s| s.run_as_non_root)) == Some(true);
    let user = match uid {
        Some(uid) => id("runAsUser", uid)?.to_string(),
        None => image.user.clone().unwrap_or_default(),
    };
    if non_root {
        let name = user.split(':').next().unwrap_or_default();
        match name.parse::<u32>() {
            Ok(0) => return Err(ContainerSpecError::Root(container.name.clone())),
            Ok(_) => {}
            Err(_) if name.is_empty() || name == "root" => {
                return Err(ContainerSpecError::Root(container.name.clone()));
            }
            Err(_) => {
                return Err(ContainerSpecError::UnknownUser {
                    container: container.name.clone(),
                    user: name.to_owned(),
                });
            }
        }
    }
    let groups = pod.iter().flat_map(|s| s.supplemental_groups.iter().flatten().copied().chain(s.fs_group));
    let supplementary_groups = groups.map(|g| id("group", g)).collect::<Result<Vec<u32>, _>>()?;
    Ok(User { user, gid: gid.map(|g| id("runAsGroup", g)).transpose()?, supplementary_groups })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::ImageContent;
    use serde_json::{Value, json};

    fn build(
        container: Value,
        pod: Value,
        image: ImageConfig,
        daemon: bool,
    ) -> Result<ContainerSpec, ContainerSpecError> {
        let mut spec = pod;
        spec["containers"] = json!([container]);
        let spec: PodSpec = serde_json::from_value(spec).unwrap();
        let inputs = ContainerInputs {
            attempt: 2,
            image: ResolvedImage {
                reference: "img".into(),
                digest: "sha256:1".into(),
                content: ImageContent::Layers { layers: vec![] },
                config: image,
                alias_of: None,
            },
            environment: Environment {
                variables: vec![("A".into(), "1".into()), ("PATH".into(), "/p".into())],
                skipped: vec![],
            },
            mounts: vec![],
            hostname: "h".into(),
            sandboxd: daemon.then(|| "/opt/sandboxd".into()),
            log: LogTarget { path: "/l".into(), max_bytes: 1, max_files: 1 },
        };
        assemble(&spec, &spec.containers[0], inputs)
    }

    fn image() -> ImageConfig {
        ImageConfig {
            entrypoint: vec!["/entry".into()],
            command: vec!["arg".into()],
            env: vec![("PATH".into(), "/image".into()), ("B".into(), "2".into())],
            working_dir: Some("/app".into()),
            user: Some("1000".into()),
            ..ImageConfig::default()
        }
    }

    #[test]
    fn command_and_args_override_the_image_as_in_kubernetes() {
        let line = |container: Value| build(container, json!({}), image(), false).unwrap().command.join(" ");
        assert_eq!(line(json!({"name": "a"})), "/entry arg");
        assert_eq!(line(json!({"name": "a", "args": ["x", "$(A)"]})), "/entry x 1");
        assert_eq!(line(json!({"name": "a", "command": ["sh"]})), "sh");
        assert_eq!(
            line(json!({"name": "a", "command": ["sh"], "args": ["-c", "echo $(NOPE) $$(A)"]})),
            "sh -c echo $(NOPE) $(A)"
        );
        let nothing = build(json!({"name": "a"}), json!({}), ImageConfig::default(), false);
        assert_eq!(nothing, Err(ContainerSpecError::NoCommand("a".into())));
    }

    #[test]
    fn environment_is_the_images_then_the_pods_and_nothing_else() {
        let env = build(json!({"name": "a"}), json!({}), image(), false).unwrap().env;
        let pairs: Vec<(&str, &str)> = env.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        assert_eq!(pairs, [("HOSTNAME", "h"), ("PATH", "/p"), ("B", "2"), ("A", "1")]);
    }

    #[test]
    fn the_most_specific_user_setting_wins() {
        let user = |container: Value, pod: Value| build(container, pod, image(), false).map(|s| s.user);
        assert_eq!(user(json!({"name": "a"}), json!({})).unwrap().user, "1000");
        let full = user(
            json!({"name": "a", "securityContext": {"runAsUser": 7, "runAsGroup": 8}}),
            json!({"securityContext": {"runAsUser": 5, "fsGroup": 9, "supplementalGroups": [3]}}),
        );
        assert_eq!(full.unwrap(), User { user: "7".into(), gid: Some(8), supplementary_groups: vec![3, 9] });
        let root = user(json!({"name": "a", "securityContext": {"runAsUser": 0, "runAsNonRoot": true}}), json!({}));
        assert_eq!(root, Err(ContainerSpecError::Root("a".into())));
        let negative = user(json!({"name": "a", "securityContext": {"runAsUser": -1}}), json!({}));
        assert!(matches!(negative, Err(ContainerSpecError::BadId { .. })));
        let named = build(
            json!({"name": "a"}),
            json!({"securityContext": {"runAsNonRoot": true}}),
            ImageConfig { user: Some("app".into()), ..image() },
            false,
        );
        assert!(matches!(named, Err(ContainerSpecError::UnknownUser { .. })));
    }

    #[test]
    fn sandboxd_is_put_before_the_command_and_makes_it_optional() {
        let with = build(json!({"name": "a", "command": ["sleep", "1"]}), json!({}), image(), true).unwrap();
        assert_eq!(with.command[0], sandboxd::PATH);
        assert_eq!(with.command[with.command.len() - 3..], ["--", "sleep", "1"]);
        assert!(with.mounts.iter().any(|m| m.target == sandboxd::PATH && m.read_only));
        assert!(build(json!({"name": "a"}), json!({}), ImageConfig::default(), true).is_ok());
    }

    #[test]
    fn limits_capabilities_and_read_only_root_are_passed_on() {
        let built = build(
            json!({"name": "a", "resources": {"limits": {"cpu": "1500m", "memory": "1Mi", "ephemeral-storage": "2Ki"}},
                "securityContext": {"readOnlyRootFilesystem": true,
                    "capabilities": {"add": ["CAP_NET_RAW", "chown", "NET_RAW"], "drop": ["ALL"]}}}),
            json!({}),
            image(),
            false,
        )
        .unwrap();
        assert_eq!(built.limits.cpu_millis, Some(1500));
        assert_eq!(built.limits.memory_bytes, Some(1 << 20));
        assert_eq!(built.limits.layer_bytes, Some(2048));
        assert_eq!(built.capabilities, [Capability::Chown, Capability::NetRaw]);
        assert!(built.read_only_root);
        assert_eq!(built.attempt, 2);
    }
}
