//! A fake runtime for tests: it runs nothing, records calls, and ends containers when a test says so.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::{broadcast, watch};

use crate::runtime::{
    AttachRequest, ContainerSpec, ContainerState, ExecRequest, ExecSession, Exit, ImageConfig, ImageContent,
    ImageError, ImageService, PodRules, PodRuntime, PodSandbox, PodSandboxSpec, PodState, PullPolicy, PullProgress,
    RegistryCredentials, ResolvedImage, RuntimeError, RuntimeEvent, StorageMechanism, StorageUsage, Volume, VolumeKey,
    VolumeRequest, VolumeUsage, Weakness,
};

/// How a container of the fake runtime behaves; set by the first word of its command.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Behaviour {
    /// Runs until it is signalled.
    #[default]
    Runs,
    /// Ends at once with this code.
    Exits(i32),
    /// Runs and ignores SIGTERM.
    Stubborn,
    /// Cannot be executed.
    CannotRun,
}

#[derive(Default)]
struct Inner {
    calls: Vec<String>,
    pods: BTreeMap<String, PodState>,
    specs: HashMap<(String, String), ContainerSpec>,
    behaviours: HashMap<String, Behaviour>,
    exec_codes: HashMap<String, i32>,
    images: HashMap<String, ImageConfig>,
    rules: HashMap<String, PodRules>,
    owners: Vec<String>,
    usage: HashMap<String, StorageUsage>,
    next_ip: u8,
}

pub(crate) struct FakeRuntime {
    inner: Mutex<Inner>,
    events: broadcast::Sender<RuntimeEvent>,
    folder: tempfile::TempDir,
    changed: watch::Sender<u64>,
}

impl FakeRuntime {
    pub(crate) fn new() -> Arc<Self> {
        let folder = tempfile::tempdir().unwrap();
        let (events, _) = broadcast::channel(64);
        Arc::new(Self { inner: Mutex::default(), events, folder, changed: watch::channel(0).0 })
    }

    pub(crate) fn behave(&self, command: &str, behaviour: Behaviour) {
        self.inner.lock().behaviours.insert(command.to_owned(), behaviour);
    }

    pub(crate) fn exec_code(&self, command: &str, code: i32) {
        self.inner.lock().exec_codes.insert(command.to_owned(), code);
    }

    /// Adds an image; images that were not added cannot be pulled.
    pub(crate) fn image(&self, name: &str, config: ImageConfig) {
        self.inner.lock().images.insert(name.to_owned(), config);
    }

    pub(crate) fn calls(&self) -> Vec<String> {
        self.inner.lock().calls.clone()
    }

    pub(crate) fn spec(&self, pod: &str, container: &str) -> Option<ContainerSpec> {
        self.inner.lock().specs.get(&(pod.to_owned(), container.to_owned())).cloned()
    }

    pub(crate) fn rules(&self, pod: &str) -> Option<PodRules> {
        self.inner.lock().rules.get(pod).cloned()
    }

    /// Sets the storage usage of a Pod.
    pub(crate) fn uses(&self, pod: &str, usage: StorageUsage) {
        self.inner.lock().usage.insert(pod.to_owned(), usage);
    }

    pub(crate) fn folder(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    fn log(&self, call: String) {
        self.inner.lock().calls.push(call);
        self.changed.send_modify(|n| *n += 1);
    }

    /// Ends a running container.
    pub(crate) fn end(&self, pod: &str, container: &str, code: i32) {
        let exit = Exit { code, signal: None, oom_killed: false, finished_at: Timestamp::now() };
        let attempt = {
            let mut inner = self.inner.lock();
            let Some(state) = inner.pods.get_mut(pod) else { return };
            let Some(found) = state.containers.iter_mut().find(|c| c.name == container && c.exit.is_none()) else {
                return;
            };
            found.exit = Some(exit);
            found.attempt
        };
        let event =
            RuntimeEvent::ContainerExited { pod: pod.to_owned(), container: container.to_owned(), attempt, exit };
        let _ = self.events.send(event);
    }

    /// Simulates the death of a Pod's supervisor.
    pub(crate) fn lose(&self, pod: &str) {
        if let Some(state) = self.inner.lock().pods.get_mut(pod) {
            state.alive = false;
        }
        let _ = self.events.send(RuntimeEvent::SupervisorLost { pod: pod.to_owned() });
    }

    fn behaviour(&self, spec: &ContainerSpec) -> Behaviour {
        self.inner.lock().behaviours.get(&spec.command[0]).copied().unwrap_or_default()
    }
}

#[async_trait]
impl PodRuntime for FakeRuntime {
    async fn create_pod(&self, spec: PodSandboxSpec) -> Result<PodSandbox, RuntimeError> {
        self.log(format!("create {}", spec.name));
        let mut inner = self.inner.lock();
        inner.next_ip += 1;
        let ip = IpAddr::from([127, 0, 0, inner.next_ip]);
        if !inner.owners.contains(&spec.owner) {
            inner.owners.push(spec.owner.clone());
        }
        let sandbox = PodSandbox {
            uid: spec.uid.clone(),
            ips: vec![ip],
            first_host_id: 100_000,
            id_count: 65536,
            supervisor_pid: 1,
            weaknesses: vec![],
        };
        let state = PodState {
            sandbox: sandbox.clone(),
            namespace: spec.namespace,
            name: spec.name,
            alive: true,
            containers: vec![],
        };
        Ok(inner.pods.entry(spec.uid).or_insert(state).sandbox.clone())
    }

    async fn start_container(&self, pod: &str, spec: ContainerSpec) -> Result<ContainerState, RuntimeError> {
        self.log(format!("start {}#{}", spec.name, spec.attempt));
        let behaviour = self.behaviour(&spec);
        if behaviour == Behaviour::CannotRun {
            let command = spec.command[0].clone();
            return Err(RuntimeError::CannotRun { command, message: "no such file".into(), missing: true });
        }
        let state = ContainerState {
            name: spec.name.clone(),
            attempt: spec.attempt,
            id: format!("{}-{}", spec.name, spec.attempt),
            pid: 1,
            started_at: Timestamp::now(),
            exit: None,
            port_open: false,
            previous: None,
        };
        {
            let mut inner = self.inner.lock();
            inner.specs.insert((pod.to_owned(), spec.name.clone()), spec.clone());
            let found = inner.pods.get_mut(pod).ok_or_else(|| RuntimeError::UnknownPod(pod.to_owned()))?;
            found.containers.retain(|c| c.name != spec.name);
            found.containers.push(state.clone());
        }
        if let Behaviour::Exits(code) = behaviour {
            self.end(pod, &spec.name, code);
        }
        Ok(state)
    }

    async fn signal_container(&self, pod: &str, container: &str, signal: i32) -> Result<(), RuntimeError> {
        self.log(format!("signal {container} {signal}"));
        let spec = self.spec(pod, container);
        if spec.is_some_and(|s| self.behaviour(&s) != Behaviour::Stubborn) {
            self.end(pod, container, 128 + signal);
        }
        Ok(())
    }

    async fn kill_container(&self, pod: &str, container: &str) -> Result<(), RuntimeError> {
        self.log(format!("kill {container}"));
        self.end(pod, container, 137);
        Ok(())
    }

    async fn remove_pod(&self, pod: &str) -> Result<(), RuntimeError> {
        let known = self.inner.lock().pods.remove(pod);
        if let Some(known) = known {
            self.log(format!("remove {}", known.name));
        }
        Ok(())
    }

    async fn delete_owner_storage(&self, owner: &str) -> Result<(), RuntimeError> {
        self.inner.lock().owners.retain(|o| o != owner);
        self.log(format!("forget {owner}"));
        Ok(())
    }

    async fn kept_owners(&self) -> Result<Vec<String>, RuntimeError> {
        Ok(self.inner.lock().owners.clone())
    }

    async fn exec(&self, _: &str, _: &str, request: ExecRequest) -> Result<ExecSession, RuntimeError> {
        self.log(format!("exec {}", request.command.join(" ")));
        let code = self.inner.lock().exec_codes.get(&request.command[0]).copied().unwrap_or(0);
        let exit = Exit { code, signal: None, oom_killed: false, finished_at: Timestamp::now() };
        Ok(ExecSession {
            stdin: None,
            stdout: Some(Box::new(tokio::io::empty())),
            stderr: None,
            resize: None,
            exit: Box::pin(async move { Ok(exit) }),
        })
    }

    async fn attach(&self, pod: &str, container: &str, _: AttachRequest) -> Result<ExecSession, RuntimeError> {
        Err(RuntimeError::NotRunning { pod: pod.to_owned(), container: container.to_owned() })
    }

    async fn dial(&self, pod: &str, port: u16) -> Result<TcpStream, RuntimeError> {
        let connected = TcpStream::connect(("127.0.0.1", port)).await;
        connected.map_err(|source| RuntimeError::Kernel { step: format!("dial {pod}"), source })
    }

    async fn set_rules(&self, pod: &str, rules: PodRules) -> Result<(), RuntimeError> {
        self.inner.lock().rules.insert(pod.to_owned(), rules);
        self.changed.send_modify(|n| *n += 1);
        Ok(())
    }

    async fn ensure_volume(&self, request: VolumeRequest) -> Result<Volume, RuntimeError> {
        let path = match &request.key {
            VolumeKey::PodEphemeral { pod, name } => self.folder.path().join("pods").join(pod).join(name),
            VolumeKey::Persistent { name } => self.folder.path().join("volumes").join(name),
        };
        std::fs::create_dir_all(&path).unwrap();
        Ok(Volume { path, mechanism: StorageMechanism::Measured })
    }

    async fn remove_volume(&self, key: &VolumeKey) -> Result<(), RuntimeError> {
        self.log(format!("remove volume {key:?}"));
        Ok(())
    }

    async fn storage_usage(&self, pod: &str) -> Result<StorageUsage, RuntimeError> {
        Ok(self.inner.lock().usage.get(pod).cloned().unwrap_or_default())
    }

    async fn volume_usage(&self, _: &VolumeKey) -> Result<VolumeUsage, RuntimeError> {
        Ok(VolumeUsage::default())
    }

    async fn termination_message(&self, _: &str, _: &str, _: usize) -> Vec<u8> {
        Vec::new()
    }

    async fn list(&self) -> Result<Vec<PodState>, RuntimeError> {
        Ok(self.inner.lock().pods.values().cloned().collect())
    }

    async fn state(&self, pod: &str) -> Result<Option<PodState>, RuntimeError> {
        Ok(self.inner.lock().pods.get(pod).cloned())
    }

    fn events(&self) -> broadcast::Receiver<RuntimeEvent> {
        self.events.subscribe()
    }

    fn weaknesses(&self) -> Vec<Weakness> {
        vec![]
    }

    fn dns_address(&self) -> Option<IpAddr> {
        None
    }

    fn pod_dir(&self, pod: &str) -> PathBuf {
        self.folder.path().join("pods").join(pod)
    }
}

#[async_trait]
impl ImageService for FakeRuntime {
    async fn ensure(
        &self,
        reference: &str,
        _: PullPolicy,
        _: &[RegistryCredentials],
        _: Option<watch::Sender<PullProgress>>,
    ) -> Result<ResolvedImage, ImageError> {
        let config = self.inner.lock().images.get(reference).cloned();
        let config =
            config.ok_or_else(|| ImageError::Pull { reference: reference.to_owned(), message: "unknown".into() })?;
        Ok(ResolvedImage {
            reference: reference.to_owned(),
            digest: "sha256:fake".into(),
            content: ImageContent::Layers { layers: vec![] },
            config,
            alias_of: None,
        })
    }
}
