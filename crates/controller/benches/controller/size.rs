//! The controller alone, as the process that a user runs, with very many Sandboxes: memory and idle CPU.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use agent_sandbox_apiserver::ListenerConfig;

use crate::{make_pool, met_or_missed, open, resize, say, until_ready};

/// The program whose `controller` command is measured.
const PROGRAM: &str = "AGENT_SANDBOX_BENCH_PROGRAM";
const SANDBOXES: &str = "AGENT_SANDBOX_BENCH_SANDBOXES";

pub(crate) async fn measure() {
    let Some(program) = std::env::var_os(PROGRAM).map(PathBuf::from) else {
        return say("the controller's memory", format!("skipped: set {PROGRAM} to the program to measure"));
    };
    let count = std::env::var(SANDBOXES).ok().and_then(|count| count.parse().ok()).unwrap_or(10_000);
    let mut bench = open().await;
    bench.start_kubelet();
    let client = bench.cluster.client();
    let folder = tempfile::tempdir().expect("a folder");
    let kubeconfig = folder.path().join("kubeconfig");
    let listening = ListenerConfig { kubeconfig: Some(kubeconfig.clone()), ..ListenerConfig::default() };
    let _listener = bench.cluster.api.listen(listening).await.expect("listens");
    make_pool(&client, 0).await;
    let child = start(&program, &kubeconfig);
    until_ready(&client, 0).await;
    let pid = child.0.id();
    for (sandboxes, limit) in [(0, 12.0), (2000.min(count), 25.0), (count, 80.0)] {
        let start = Instant::now();
        resize(&client, sandboxes).await;
        say(&format!("{sandboxes} Sandboxes Ready after"), format!("{:.1} s", start.elapsed().as_secs_f64()));
        // Free memory is released a while after a burst.
        tokio::time::sleep(Duration::from_secs(8)).await;
        let memory = Memory::of(pid);
        say(
            &format!("controller's memory at {sandboxes} Sandboxes"),
            format!(
                "{:.1} MB resident (target {limit} MB: {}): {:.1} its own, {:.1} code; at most {:.1} so far",
                memory.resident,
                met_or_missed(memory.resident <= limit),
                memory.own,
                memory.code,
                memory.most,
            ),
        );
    }
    let before = cpu_ticks(pid);
    tokio::time::sleep(Duration::from_secs(10)).await;
    say("controller's idle CPU", format!("{:.2} % of one core", (cpu_ticks(pid) - before) / 10.0));
    drop(child);
    let child = start(&program, &kubeconfig);
    tokio::time::sleep(Duration::from_secs(12)).await;
    let memory = Memory::of(child.0.id());
    say(
        &format!("the same, started anew with {count} Sandboxes"),
        format!(
            "{:.1} MB resident: {:.1} its own, {:.1} code; at most {:.1} so far",
            memory.resident, memory.own, memory.code, memory.most
        ),
    );
}

/// Everything that the chart turns on, except the webhook: the embedded API converts by itself.
fn start(program: &std::path::Path, kubeconfig: &std::path::Path) -> Running {
    let child = Command::new(program)
        .arg("controller")
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .args(["--extensions", "--leader-election-namespace=default", "--enable-webhook=false"])
        .args(["--metrics-bind-address=127.0.0.1:0", "--health-probe-bind-address=127.0.0.1:0"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    Running(child.expect("starts"))
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Megabytes, as the kernel counts them.
struct Memory {
    resident: f64,
    /// Private memory: heap and stacks.
    own: f64,
    /// Mapped parts of the program's file.
    code: f64,
    /// Peak resident memory.
    most: f64,
}

impl Memory {
    fn of(pid: u32) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find(|line| line.split(':').next() == Some(name)).unwrap_or_default();
            line.split_whitespace().nth(1).and_then(|kilobytes| kilobytes.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
        };
        Self { resident: field("VmRSS"), own: field("RssAnon"), code: field("RssFile"), most: field("VmHWM") }
    }
}

/// User and system time in hundredths of a second, which is what the kernel counts.
fn cpu_ticks(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    [11, 12].iter().filter_map(|field| fields.get(*field)?.parse::<f64>().ok()).sum()
}
