//! Start times of our own sandboxes: in a running node, and with a new process and node for each.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_sandbox_node::kernel::{KernelConfig, KernelRuntime};
use agent_sandbox_node::runtime::{
    ContainerSpec, ImageService, Limits, LogTarget, NetworkMode, PodRuntime, PodSandboxSpec, PullPolicy, ResolvedImage,
    RuntimeError, RuntimeEvent, RuntimeHandler, User,
};

use super::{Outcome, on_threads, row};

pub(crate) struct Bench {
    pub(crate) runtime: Arc<KernelRuntime>,
    image: ResolvedImage,
    folder: PathBuf,
}

/// Durations of the phases of Pods.
#[derive(Default)]
struct Phases {
    to_exec: Vec<Duration>,
    to_exit: Vec<Duration>,
    removed: Vec<Duration>,
}

pub(crate) async fn measure(at_once: &[usize], rounds: usize) -> Outcome<()> {
    let folder = super::folder()?;
    let began = Instant::now();
    let bench = Arc::new(Bench::open(folder.path(), |_| {}).await?);
    eprintln!("node opened in {:.1} ms", began.elapsed().as_secs_f64() * 1e3);
    for concurrency in at_once.iter().copied() {
        // Gives the node time to prepare its spare supervisors, as a node that has been running for a while has.
        tokio::time::sleep(Duration::from_millis(500)).await;
        bench.measure(concurrency, rounds).await?;
    }
    bench.runtime.close();
    Ok(())
}

/// A new process each time; each worker reuses a data folder of its own, as a user does.
pub(crate) fn measure_fresh(rounds: usize) -> Outcome<()> {
    let program = std::env::current_exe()?;
    for concurrency in [1, 8] {
        let folder = super::folder()?;
        let start = |worker: usize, _| {
            let data = folder.path().join(worker.to_string());
            let mut command = Command::new(&program);
            command.arg("one").arg(data).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command.status().map(|status| status.success())
        };
        match on_threads(concurrency, rounds, start) {
            Some((mut list, rate)) => row("agent-sandbox, a fresh process and node each", concurrency, &mut list, rate),
            None => return Err("a fresh node failed".into()),
        }
    }
    Ok(())
}

/// What one new process does: open a node, run one Pod, remove everything.
pub(crate) async fn run_once(folder: &Path) -> Outcome<()> {
    let change = |config: &mut KernelConfig| {
        config.pods_end_with_node = true;
        config.ready_pods = 0;
    };
    let bench = Bench::open(folder, change).await?;
    bench.run_pod("one", &mut Phases::default()).await?;
    bench.runtime.close();
    Ok(())
}

impl Bench {
    pub(crate) async fn open(folder: &Path, change: impl FnOnce(&mut KernelConfig)) -> Outcome<Self> {
        let mut config = KernelConfig::new(folder);
        change(&mut config);
        let runtime = KernelRuntime::open(config).await?;
        let image = runtime.ensure("host", PullPolicy::IfNotPresent, &[], None).await?;
        Ok(Self { runtime, image, folder: folder.to_owned() })
    }

    async fn measure(self: &Arc<Self>, concurrency: usize, rounds: usize) -> Outcome<()> {
        let began = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        for worker in 0..concurrency {
            let bench = Arc::clone(self);
            tasks.spawn(async move {
                let mut phases = Phases::default();
                for round in 0..rounds / concurrency {
                    bench.run_pod(&format!("{concurrency}-{worker}-{round}"), &mut phases).await?;
                }
                Ok::<_, RuntimeError>(phases)
            });
        }
        let mut all = Phases::default();
        while let Some(done) = tasks.join_next().await {
            let mut phases = done??;
            all.to_exec.append(&mut phases.to_exec);
            all.to_exit.append(&mut phases.to_exit);
            all.removed.append(&mut phases.removed);
        }
        let rate = all.to_exit.len() as f64 / began.elapsed().as_secs_f64();
        for (name, mut list) in [("to exec", all.to_exec), ("to exit", all.to_exit), ("removal after it", all.removed)]
        {
            row(&format!("agent-sandbox, a node that runs, {name}"), concurrency, &mut list, rate);
        }
        Ok(())
    }

    async fn run_pod(&self, uid: &str, phases: &mut Phases) -> Result<(), RuntimeError> {
        let mut events = self.runtime.events();
        let began = Instant::now();
        self.runtime.create_pod(pod(uid)).await?;
        self.runtime.start_container(uid, self.container(uid, vec!["/bin/true".into()])).await?;
        phases.to_exec.push(began.elapsed());
        loop {
            match events.recv().await {
                Ok(RuntimeEvent::ContainerExited { pod, .. }) if pod == uid => break,
                Ok(_) => {}
                Err(_) => break,
            }
        }
        phases.to_exit.push(began.elapsed());
        let began = Instant::now();
        self.runtime.remove_pod(uid).await?;
        self.runtime.delete_owner_storage(uid).await?;
        phases.removed.push(began.elapsed());
        Ok(())
    }

    pub(crate) fn container(&self, uid: &str, command: Vec<String>) -> ContainerSpec {
        ContainerSpec {
            open_port: None,
            name: "c".into(),
            attempt: 0,
            image: self.image.clone(),
            command,
            env: Vec::new(),
            working_dir: "/".into(),
            user: User { user: "1000".into(), ..User::default() },
            capabilities: Vec::new(),
            read_only_root: false,
            mounts: Vec::new(),
            termination_message_path: None,
            stdin: false,
            stdin_once: false,
            tty: false,
            limits: Limits::default(),
            oom_score_adj: 500,
            log: LogTarget { path: self.folder.join("logs").join(uid), max_bytes: 1 << 20, max_files: 1 },
        }
    }
}

pub(crate) fn pod(uid: &str) -> PodSandboxSpec {
    PodSandboxSpec {
        uid: uid.into(),
        namespace: "bench".into(),
        name: uid.into(),
        owner: uid.into(),
        hostname: "bench".into(),
        network: NetworkMode::Routed,
        hosts: String::new(),
        resolv_conf: String::new(),
        limits: Limits::default(),
        handler: RuntimeHandler::BuiltIn,
        share_processes: false,
        memory_volumes: BTreeMap::new(),
        sysctls: BTreeMap::new(),
        writes_host_paths: false,
        snapshot: None,
    }
}
