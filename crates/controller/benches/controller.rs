//! Measures the controller on the embedded API with a durable store and a simulated kubelet. Everything is a ratio against the same
//! run's own disk: how long one durable write takes, and how many the API commits per second.
//!
//! `claims` or `size` as an argument runs that part alone. `AGENT_SANDBOX_BENCH_SANDBOXES` sets the number of Sandboxes for the memory part (10000).

use std::{
    collections::HashMap,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use agent_sandbox_api::{
    conditions::{ConditionType, is_true},
    v1beta1::{SandboxClaim, SandboxTemplate, SandboxWarmPool},
};
use agent_sandbox_apiserver::{Config as ApiConfig, serve::ListenerConfig};
use agent_sandbox_controller::{Config, Controller, Flags, run_process};
use agent_sandbox_testkit::{Cluster, Kubelet, KubeletConfig, Recorder};
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

/// As in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const CHILD: &str = "AGENT_SANDBOX_BENCH_KUBECONFIG";
const NAMESPACE: &str = "default";

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    if let Ok(kubeconfig) = std::env::var(CHILD) {
        return runtime.block_on(be_the_controller(&kubeconfig));
    }
    let asked: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let wanted = |part: &str| asked.is_empty() || asked.iter().any(|word| word == part);
    runtime.block_on(async {
        if wanted("claims") {
            let disk = measure_disk().await;
            measure_claims(&disk).await;
        }
        if wanted("size") {
            measure_size().await;
        }
    });
}

fn say(name: &str, value: String) {
    let mut out = std::io::stdout().lock();
    let _ = std::io::Write::write_fmt(&mut out, format_args!("{name:<58} {value}\n"));
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() - 1) * percent / 100]
}

struct Disk {
    write: Duration,
    writes_per_second: f64,
}

struct Bench {
    cluster: Cluster,
    _kubelet: Kubelet,
    _folder: tempfile::TempDir,
}

async fn open() -> Bench {
    let folder = tempfile::tempdir().expect("a folder");
    let config = ApiConfig { data_dir: Some(folder.path().join("data")), ..ApiConfig::default() };
    let cluster = Cluster::open(config).await.expect("a cluster");
    let kubelet = Kubelet::start(cluster.client(), KubeletConfig::default());
    Bench { cluster, _kubelet: kubelet, _folder: folder }
}

fn api<K>(client: &Client) -> Api<K>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
{
    Api::namespaced(client.clone(), NAMESPACE)
}

/// One durable write alone, and as many as the API commits side by side.
async fn measure_disk() -> Disk {
    let bench = open().await;
    let client = bench.cluster.client();
    let maps: Api<ConfigMap> = api(&client);
    let write = |number: usize| {
        let maps = maps.clone();
        async move {
            let map =
                serde_json::from_value(json!({ "metadata": { "name": format!("m-{number}") }, "data": { "a": "b" } }))
                    .expect("valid");
            maps.create(&PostParams::default(), &map).await.expect("written");
        }
    };
    let mut alone = Vec::new();
    for number in 0..300 {
        let start = Instant::now();
        write(number).await;
        alone.push(start.elapsed());
    }
    alone.sort_unstable();
    let claims: Api<SandboxClaim> = api(&client);
    let mut ours = Vec::new();
    for number in 0..300 {
        let claim =
            json!({ "metadata": { "name": format!("c-{number}") }, "spec": { "warmPoolRef": { "name": "none" } } });
        let claim = serde_json::from_value(claim).expect("valid");
        let start = Instant::now();
        claims.create(&PostParams::default(), &claim).await.expect("written");
        ours.push(start.elapsed());
    }
    ours.sort_unstable();
    let start = Instant::now();
    let many = 6000;
    stream::iter(1000..1000 + many).for_each_concurrent(64, write).await;
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let writes_per_second = many as f64 / start.elapsed().as_secs_f64();
    let disk = Disk { write: percentile(&alone, 50), writes_per_second };
    say("one durable write, median: ConfigMap", format!("{:.2} ms", milliseconds(disk.write)));
    say("one durable write, median: SandboxClaim", format!("{:.2} ms", milliseconds(percentile(&ours, 50))));
    say("durable writes per second, 64 in flight", format!("{:.0}", disk.writes_per_second));
    disk
}

/// Tells when claims become Ready, from one watch.
#[derive(Clone, Default)]
struct Arrivals(Arc<Mutex<HashMap<String, oneshot::Sender<Instant>>>>);

impl Arrivals {
    fn follow(client: &Client) -> Self {
        let arrivals = Self::default();
        let seen = arrivals.clone();
        let claims: Api<SandboxClaim> = api(client);
        tokio::spawn(async move {
            let params = WatchParams { timeout: Some(290), ..WatchParams::default() };
            let events = claims.watch(&params, "0").await.expect("watches");
            futures::pin_mut!(events);
            while let Some(Ok(event)) = events.next().await {
                if let WatchEvent::Added(claim) | WatchEvent::Modified(claim) = event
                    && is_true(claim.condition(ConditionType::Ready))
                    && let Some(waiter) = seen.0.lock().remove(claim.name())
                {
                    let _ = waiter.send(Instant::now());
                }
            }
        });
        arrivals
    }

    /// From the POST to the event that says Ready.
    async fn claim(&self, claims: &Api<SandboxClaim>, name: String) -> Duration {
        let (sender, ready) = oneshot::channel();
        self.0.lock().insert(name.clone(), sender);
        let claim =
            serde_json::from_value(json!({ "metadata": { "name": name }, "spec": { "warmPoolRef": { "name": "p" } } }))
                .expect("valid");
        let start = Instant::now();
        claims.create(&PostParams::default(), &claim).await.expect("created");
        ready.await.expect("becomes Ready") - start
    }
}

async fn make_pool(client: &Client, replicas: usize) {
    let pod = json!({ "containers": [{ "name": "main", "image": "busybox", "command": ["sleep", "infinity"], "ports": [{ "containerPort": 8888 }] }] });
    let template = json!({ "metadata": { "name": "t" }, "spec": { "podTemplate": { "spec": pod } } });
    api::<SandboxTemplate>(client)
        .create(&PostParams::default(), &serde_json::from_value(template).expect("valid"))
        .await
        .expect("created");
    let pool =
        json!({ "metadata": { "name": "p" }, "spec": { "sandboxTemplateRef": { "name": "t" }, "replicas": replicas } });
    api::<SandboxWarmPool>(client)
        .create(&PostParams::default(), &serde_json::from_value(pool).expect("valid"))
        .await
        .expect("created");
}

async fn resize(client: &Client, replicas: usize) {
    let change = Patch::Merge(json!({ "spec": { "replicas": replicas } }));
    api::<SandboxWarmPool>(client).patch("p", &PatchParams::default(), &change).await.expect("resized");
    until_ready(client, replicas).await;
}

async fn until_ready(client: &Client, replicas: usize) {
    loop {
        let pool = api::<SandboxWarmPool>(client).get("p").await.expect("there");
        let ready = pool.status.and_then(|status| status.ready_replicas).unwrap_or(0);
        if usize::try_from(ready) == Ok(replicas) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn measure_claims(disk: &Disk) {
    let bench = open().await;
    let client = bench.cluster.client();
    let (controllers, writes) = bench.cluster.recorded_client();
    let shutdown = CancellationToken::new();
    let controller = Controller::start(controllers, Config::default(), shutdown.clone());
    make_pool(&client, 0).await;
    let start = Instant::now();
    resize(&client, 300).await;
    say(
        "refill 0 to 300 Ready",
        format!("{:.2} s ({:.0}/s)", start.elapsed().as_secs_f64(), 300.0 / start.elapsed().as_secs_f64()),
    );
    let arrivals = Arrivals::follow(&client);
    let claims: Api<SandboxClaim> = api(&client);
    for (in_flight, total) in [(1, 100), (20, 200), (300, 300)] {
        until_ready(&client, 300).await;
        let names = (0..total).map(|number| format!("c{in_flight}-{number}"));
        let mut took: Vec<Duration> =
            stream::iter(names).map(|name| arrivals.claim(&claims, name)).buffer_unordered(in_flight).collect().await;
        took.sort_unstable();
        let (half, most) = (percentile(&took, 50), percentile(&took, 99));
        say(
            &format!("warm claim, {in_flight} in flight: p50 / p99"),
            format!("{:.2} ms / {:.2} ms", milliseconds(half), milliseconds(most)),
        );
        if in_flight == 1 {
            let target = disk.write * 3 + Duration::from_millis(1);
            say(
                "  target: three durable writes and 1 ms",
                format!("{:.2} ms ({})", milliseconds(target), verdict(half <= target)),
            );
        }
    }
    until_ready(&client, 300).await;
    sustain(disk, &client, &arrivals, &writes).await;
    idle(&writes).await;
    shutdown.cancel();
    let _ = controller.wait().await;
}

fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "missed" }
}

/// The newest version the API has handed out: one per write, whoever made it.
async fn newest_version(client: &Client) -> f64 {
    let one = ListParams::default().limit(1);
    let list = api::<SandboxClaim>(client).list(&one).await.expect("lists");
    list.metadata.resource_version.and_then(|version| version.parse().ok()).expect("a number")
}

/// Claims come and go for ten seconds while the pool refills.
async fn sustain(disk: &Disk, client: &Client, arrivals: &Arrivals, writes: &Recorder) {
    let claims: Api<SandboxClaim> = api(client);
    writes.clear();
    let before = newest_version(client).await;
    let until = Instant::now() + Duration::from_secs(10);
    let start = Instant::now();
    let workers = (0..20).map(|worker| {
        let (arrivals, claims) = (arrivals.clone(), claims.clone());
        async move {
            let mut took = Vec::new();
            while Instant::now() < until {
                let name = format!("s{worker}-{}", took.len());
                let claim = arrivals.claim(&claims, name.clone()).await;
                let start = Instant::now();
                claims.delete(&name, &DeleteParams::background()).await.expect("deleted");
                took.push((claim, start.elapsed()));
            }
            took
        }
    });
    let took: Vec<(Duration, Duration)> = futures::future::join_all(workers).await.into_iter().flatten().collect();
    let done = u32::try_from(took.len()).unwrap_or(u32::MAX);
    let rate = f64::from(done) / start.elapsed().as_secs_f64();
    let (mut claimed, mut deleted): (Vec<Duration>, Vec<Duration>) = took.into_iter().unzip();
    claimed.sort_unstable();
    deleted.sort_unstable();
    for (what, sorted) in [("a claim", &claimed), ("its deletion", &deleted)] {
        let (half, most) = (percentile(sorted, 50), percentile(sorted, 99));
        say(&format!("  {what}: p50 / p99"), format!("{:.2} ms / {:.2} ms", milliseconds(half), milliseconds(most)));
    }
    let per_claim = (newest_version(client).await - before) / f64::from(done);
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let ours = writes.writes().len() as f64 / f64::from(done);
    say("claims per second with refill, 20 in flight", format!("{rate:.0}"));
    say("writes per claim, refill included: everyone's / ours", format!("{per_claim:.1} / {ours:.1}"));
    let mut refused: HashMap<String, usize> = HashMap::new();
    for write in writes.writes().iter().filter(|write| write.status >= 300) {
        let kind = write.path.split('/').find(|part| part.ends_with('s') && !["", "apis", "namespaces"].contains(part));
        let status = if write.path.ends_with("/status") { "/status" } else { "" };
        *refused
            .entry(format!("{} {} {}{status}", write.status, write.method, kind.unwrap_or_default()))
            .or_default() += 1;
    }
    say("  of ours refused", format!("{refused:?}"));
    let possible = disk.writes_per_second / per_claim;
    say(
        "  of what the disk allows",
        format!("{:.0} % (target 60 %: {})", rate / possible * 100.0, verdict(rate >= 0.6 * possible)),
    );
}

async fn idle(writes: &Recorder) {
    tokio::time::sleep(Duration::from_secs(5)).await;
    writes.clear();
    tokio::time::sleep(Duration::from_secs(10)).await;
    say("writes in 10 idle seconds", writes.writes().len().to_string());
}

/// The controller alone, in a process of its own, with very many Sandboxes.
async fn measure_size() {
    let count =
        std::env::var("AGENT_SANDBOX_BENCH_SANDBOXES").ok().and_then(|count| count.parse().ok()).unwrap_or(10_000);
    let bench = open().await;
    let client = bench.cluster.client();
    let folder = tempfile::tempdir().expect("a folder");
    let kubeconfig = folder.path().join("kubeconfig");
    let listening = ListenerConfig { kubeconfig: Some(kubeconfig.clone()), ..ListenerConfig::default() };
    let _listener = bench.cluster.api.listen(listening).await.expect("listens");
    let child = Running(
        Command::new(std::env::current_exe().expect("known"))
            .env(CHILD, &kubeconfig)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("starts"),
    );
    make_pool(&client, 0).await;
    until_ready(&client, 0).await;
    let pid = child.0.id();
    for (sandboxes, limit) in [(0, 12.0), (2000.min(count), 25.0), (count, 80.0)] {
        let start = Instant::now();
        resize(&client, sandboxes).await;
        say(&format!("{sandboxes} Sandboxes Ready after"), format!("{:.1} s", start.elapsed().as_secs_f64()));
        // Free memory is given back a while after a burst.
        tokio::time::sleep(Duration::from_secs(8)).await;
        let resident = resident_megabytes(pid);
        say(
            &format!("controller's memory at {sandboxes} Sandboxes"),
            format!("{resident:.1} MB resident (target {limit} MB: {})", verdict(resident <= limit)),
        );
    }
    let before = cpu_ticks(pid);
    tokio::time::sleep(Duration::from_secs(10)).await;
    say("controller's idle CPU", format!("{:.2} % of one core", (cpu_ticks(pid) - before) / 10.0));
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn resident_megabytes(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kilobytes| kilobytes.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
}

/// User and system time in hundredths of a second, which is what the kernel counts.
fn cpu_ticks(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    [11, 12].iter().filter_map(|field| fields.get(*field)?.parse::<f64>().ok()).sum()
}

async fn be_the_controller(kubeconfig: &str) {
    let arguments = [
        "controller".to_owned(),
        format!("--kubeconfig={kubeconfig}"),
        "--leader-elect=false".to_owned(),
        "--extensions".to_owned(),
        "--enable-webhook=false".to_owned(),
        "--metrics-bind-address=0".to_owned(),
        "--health-probe-bind-address=0".to_owned(),
    ];
    let flags = Flags::parse_from_go(arguments).expect("parses");
    run_process(flags, CancellationToken::new()).await.expect("runs until killed");
}
