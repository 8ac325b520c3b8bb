//! How long a sandbox takes from nothing to its command's exit, beside other tools on the same machine in the same run.
//!
//! `cargo run --release -p agent-sandbox-node --example bench_start -- [rounds]`, as root. Ours makes a whole Pod each
//! time: user, mount, pid, ipc, uts, cgroup and network namespaces, control groups, overlay, seccomp, and its supervisor.
//! Peers run `/bin/true` over the host's `/usr` with the namespaces named in the table, one fresh process per start.

#![expect(clippy::print_stdout, reason = "a benchmark prints its table")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_sandbox_node::kernel::{KernelConfig, KernelRuntime};
use agent_sandbox_node::runtime::{
    ContainerSpec, ImageService, Limits, LogTarget, NetworkMode, PodRuntime, PodSandboxSpec, PullPolicy, ResolvedImage,
    RuntimeEvent, RuntimeHandler, User,
};

fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    agent_sandbox_node::helper_main();
    let rounds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(200);
    tokio::runtime::Runtime::new()?.block_on(run(rounds))
}

async fn run(rounds: usize) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let folder = tempfile::tempdir()?;
    let began = Instant::now();
    let runtime = KernelRuntime::open(KernelConfig::new(folder.path())).await?;
    let opened = began.elapsed();
    let image = runtime.ensure("host", PullPolicy::IfNotPresent, &[], None).await?;
    let bench = Arc::new(Bench { runtime, image, folder: folder.path().to_owned() });
    println!("node opened in {:.1} ms", opened.as_secs_f64() * 1e3);
    println!("| what | concurrency | p50 ms | p99 ms | per second |\n|---|---|---|---|---|");
    for network in [NetworkMode::LoopbackOnly, NetworkMode::Routed] {
        for concurrency in [1, 8] {
            bench.measure(network, concurrency, rounds).await?;
        }
    }
    for peer in peers() {
        for concurrency in [1, 8] {
            measure_peer(&peer, concurrency, rounds.min(100))?;
        }
    }
    Ok(())
}

struct Bench {
    runtime: Arc<KernelRuntime>,
    image: ResolvedImage,
    folder: std::path::PathBuf,
}

/// Durations of one life of a Pod.
#[derive(Default)]
struct Phases {
    to_exec: Vec<Duration>,
    to_exit: Vec<Duration>,
    removed: Vec<Duration>,
}

impl Bench {
    async fn measure(
        self: &Arc<Self>,
        network: NetworkMode,
        concurrency: usize,
        rounds: usize,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let began = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        for worker in 0..concurrency {
            let bench = Arc::clone(self);
            tasks.spawn(async move {
                let mut phases = Phases::default();
                for round in 0..rounds / concurrency {
                    bench.life(&format!("{network:?}-{concurrency}-{worker}-{round}"), network, &mut phases).await?;
                }
                Ok::<_, agent_sandbox_node::runtime::RuntimeError>(phases)
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
        for (name, mut list) in [("to exec", all.to_exec), ("to exit", all.to_exit), ("removed", all.removed)] {
            row(&format!("agent-sandbox {network:?}, {name}"), concurrency, &mut list, rate);
        }
        Ok(())
    }

    async fn life(
        &self,
        uid: &str,
        network: NetworkMode,
        phases: &mut Phases,
    ) -> Result<(), agent_sandbox_node::runtime::RuntimeError> {
        let mut events = self.runtime.events();
        let began = Instant::now();
        self.runtime.create_pod(pod(uid, network)).await?;
        self.runtime.start_container(uid, self.container(uid)).await?;
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
        self.runtime.forget_owner(uid).await?;
        phases.removed.push(began.elapsed());
        Ok(())
    }

    fn container(&self, uid: &str) -> ContainerSpec {
        ContainerSpec {
            name: "c".into(),
            attempt: 0,
            image: self.image.clone(),
            command: vec!["/bin/true".into()],
            env: Vec::new(),
            working_dir: "/".into(),
            user: User { user: "1000".into(), ..User::default() },
            capabilities: Vec::new(),
            read_only_root: false,
            mounts: Vec::new(),
            stdin: false,
            stdin_once: false,
            tty: false,
            limits: Limits::default(),
            oom_score_adj: 500,
            log: LogTarget { path: self.folder.join("logs").join(uid), max_bytes: 1 << 20, max_files: 1 },
        }
    }
}

fn pod(uid: &str, network: NetworkMode) -> PodSandboxSpec {
    PodSandboxSpec {
        uid: uid.into(),
        namespace: "bench".into(),
        name: uid.into(),
        owner: uid.into(),
        hostname: "bench".into(),
        network,
        hosts: String::new(),
        resolv_conf: String::new(),
        limits: Limits::default(),
        handler: RuntimeHandler::BuiltIn,
        share_processes: false,
        memory_volumes: BTreeMap::new(),
        sysctls: BTreeMap::new(),
    }
}

fn row(name: &str, concurrency: usize, list: &mut [Duration], rate: f64) {
    list.sort_unstable();
    let at = |part: f64| list.get(((list.len() as f64 - 1.0) * part) as usize).map_or(0.0, |d| d.as_secs_f64() * 1e3);
    println!("| {name} | {concurrency} | {:.2} | {:.2} | {rate:.0} |", at(0.5), at(0.99));
}

/// A peer: name, what it isolates, command line.
struct Peer {
    name: &'static str,
    command: Vec<String>,
    bundle: Option<tempfile::TempDir>,
}

fn peers() -> Vec<Peer> {
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let mut list = vec![Peer { name: "bare fork and exec", command: words("/bin/true"), bundle: None }];
    if installed("bwrap") {
        let line = "bwrap --unshare-all --ro-bind /usr /usr --symlink usr/lib /lib --symlink usr/lib64 /lib64 --symlink usr/bin /bin --proc /proc --dev /dev --tmpfs /tmp /bin/true";
        list.push(Peer { name: "bwrap (all namespaces, no limits, no seccomp)", command: words(line), bundle: None });
    }
    for program in ["crun", "runc"] {
        if installed(program)
            && let Ok(bundle) = oci_bundle()
        {
            list.push(Peer { name: program, command: vec![program.to_owned()], bundle: Some(bundle) });
        }
    }
    list
}

fn installed(program: &str) -> bool {
    let found =
        ["/usr/bin", "/usr/sbin", "/usr/local/bin"].iter().any(|folder| Path::new(folder).join(program).exists());
    if !found {
        println!("(skipped: {program} is not installed)");
    }
    found
}

/// The smallest bundle that isolates what ours isolates.
fn oci_bundle() -> std::io::Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    for name in ["rootfs/usr", "rootfs/proc", "rootfs/dev", "rootfs/sys", "rootfs/tmp"] {
        std::fs::create_dir_all(folder.path().join(name))?;
    }
    for (name, to) in [("bin", "usr/bin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")] {
        std::os::unix::fs::symlink(to, folder.path().join("rootfs").join(name))?;
    }
    let id_map = serde_json::json!([{ "containerID": 0, "hostID": 1_000_000_000, "size": 65_536 }]);
    let spaces: Vec<_> = ["pid", "network", "ipc", "uts", "mount", "cgroup", "user"]
        .iter()
        .map(|kind| serde_json::json!({ "type": kind }))
        .collect();
    let config = serde_json::json!({
        "ociVersion": "1.0.2",
        "process": { "user": { "uid": 0, "gid": 0 }, "args": ["/bin/true"], "cwd": "/", "env": ["PATH=/usr/bin"], "noNewPrivileges": true },
        "root": { "path": "rootfs", "readonly": false },
        "hostname": "bench",
        "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc" },
            { "destination": "/dev", "type": "tmpfs", "source": "tmpfs" },
            { "destination": "/usr", "type": "bind", "source": "/usr", "options": ["rbind", "ro"] },
        ],
        "linux": { "namespaces": spaces, "uidMappings": id_map, "gidMappings": id_map, "resources": { "pids": { "limit": 1024 } } },
    });
    std::fs::write(folder.path().join("config.json"), serde_json::to_vec(&config)?)?;
    Ok(folder)
}

fn measure_peer(peer: &Peer, concurrency: usize, rounds: usize) -> std::io::Result<()> {
    let began = Instant::now();
    let mut list: Vec<Duration> = Vec::new();
    let failed = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..concurrency)
            .map(|worker| {
                scope.spawn(move || {
                    let mut times = Vec::new();
                    for round in 0..rounds / concurrency {
                        let mut command = Command::new(&peer.command[0]);
                        command
                            .args(&peer.command[1..])
                            .stdin(Stdio::null())
                            .stdout(Stdio::null())
                            .stderr(Stdio::null());
                        if let Some(bundle) = &peer.bundle {
                            command.args(["run", "--bundle"]).arg(bundle.path());
                            command.arg(format!("bench-{}-{worker}-{round}", std::process::id()));
                        }
                        let began = Instant::now();
                        match command.status() {
                            Ok(status) if status.success() => times.push(began.elapsed()),
                            _ => return Err(times),
                        }
                    }
                    Ok(times)
                })
            })
            .collect();
        let mut failed = false;
        for worker in workers {
            match worker.join() {
                Ok(Ok(times)) => list.extend(times),
                _ => failed = true,
            }
        }
        failed
    });
    if failed || list.is_empty() {
        println!("| {} | {concurrency} | does not run here | | |", peer.name);
        return Ok(());
    }
    let rate = list.len() as f64 / began.elapsed().as_secs_f64();
    row(peer.name, concurrency, &mut list, rate);
    Ok(())
}
