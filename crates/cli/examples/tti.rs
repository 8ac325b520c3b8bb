//! Measures time to interactive as a client sees it: from the API call that creates or claims a sandbox to the end of
//! `/bin/true` in it, run by argv through the router. Needs a running engine; prints a line of JSON per measurement.
//!
//! `tti KUBECONFIG ROUTER cold|warm CONCURRENCY COUNT`

#![expect(clippy::print_stdout, reason = "a benchmark prints its table")]

use agent_sandbox_api::v1beta1::{Sandbox, SandboxClaim};
use agent_sandbox_client::{self as sdk, ClaimOptions, ContainerOptions};
use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::{Request, header};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use kube::{
    Api, Client, Config, ResourceExt as _,
    api::{DeleteParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
    runtime::{WatchStreamExt as _, watcher},
};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{net::TcpStream, sync::oneshot};

const POOL: &str = "bench";
/// Timeout for a sandbox to become ready.
const READY_TIMEOUT: Duration = Duration::from_secs(120);

/// A sandbox that is ready: its name, and its address if the claim's status has it.
struct ReadySandbox {
    sandbox: String,
    address: Option<String>,
}

/// Tasks that wait for a name to be ready, and names that were ready before a task waited for them.
#[derive(Default)]
struct Waiters {
    waiting: HashMap<String, oneshot::Sender<ReadySandbox>>,
    ready: HashMap<String, ReadySandbox>,
}

type SharedWaiters = Arc<Mutex<Waiters>>;

/// Passes a ready sandbox to the task that waits for it. One watch serves all tasks, as in a client that manages many
/// sandboxes.
fn notify(waiters: &SharedWaiters, name: String, found: ReadySandbox) {
    let mut waiters = waiters.lock().expect("no task panics while it holds the lock");
    match waiters.waiting.remove(&name) {
        Some(waiter) => drop(waiter.send(found)),
        None => drop(waiters.ready.insert(name, found)),
    }
}

async fn wait_for(waiters: &SharedWaiters, name: &str) -> Result<ReadySandbox> {
    let waiter = {
        let mut waiters = waiters.lock().expect("no task panics while it holds the lock");
        if let Some(found) = waiters.ready.remove(name) {
            return Ok(found);
        }
        let (waiter, receiver) = oneshot::channel();
        waiters.waiting.insert(name.to_owned(), waiter);
        receiver
    };
    tokio::time::timeout(READY_TIMEOUT, waiter)
        .await
        .with_context(|| format!("{name} was never ready"))?
        .context("watch ended")
}

struct Bench {
    client: Client,
    router: String,
    token: String,
    waiters: SharedWaiters,
}

impl Bench {
    async fn open(kubeconfig: &str, router: &str) -> Result<Self> {
        let file = Kubeconfig::read_from(kubeconfig)?;
        let text: serde_json::Value = serde_saphyr::from_str(&std::fs::read_to_string(kubeconfig)?)?;
        let token = text["users"][0]["user"]["token"].as_str().context("the kubeconfig holds a token")?.to_owned();
        let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
        let router = router.trim_start_matches("http://").to_owned();
        Ok(Self { client: Client::try_from(config)?, router, token, waiters: SharedWaiters::default() })
    }

    fn sandboxes(&self) -> Api<Sandbox> {
        Api::namespaced(self.client.clone(), "default")
    }

    fn claims(&self) -> Api<SandboxClaim> {
        Api::namespaced(self.client.clone(), "default")
    }

    /// Starts the watch and returns when it is under way.
    async fn watch(&self, warm: bool) -> Result<()> {
        let waiters = self.waiters.clone();
        let is_ready = |conditions: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition]| {
            conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
        };
        let config = watcher::Config::default();
        if warm {
            let mut stream = watcher(self.claims(), config).default_backoff().applied_objects().boxed();
            tokio::spawn(async move {
                while let Ok(Some(claim)) = stream.try_next().await {
                    if let (true, Some(sandbox)) = (is_ready(claim.conditions()), claim.bound_sandbox()) {
                        let status = claim.status.as_ref().and_then(|status| status.sandbox.as_ref());
                        let address = status.and_then(|status| sdk::select_pod_ip(status.pod_ips.as_deref()?));
                        notify(&waiters, claim.name_any(), ReadySandbox { sandbox: sandbox.to_owned(), address });
                    }
                }
            });
        } else {
            let mut stream = watcher(self.sandboxes(), config).default_backoff().applied_objects().boxed();
            tokio::spawn(async move {
                while let Ok(Some(sandbox)) = stream.try_next().await {
                    if is_ready(sandbox.conditions()) {
                        notify(
                            &waiters,
                            sandbox.name_any(),
                            ReadySandbox { sandbox: sandbox.name_any(), address: None },
                        );
                    }
                }
            });
        }
        // The first list of an empty namespace yields no event that could be waited for.
        tokio::time::sleep(Duration::from_millis(200)).await;
        Ok(())
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>> {
        let stream = TcpStream::connect(&self.router).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(sender)
    }

    async fn execute(&self, connection: &mut SendRequest<Full<Bytes>>, found: &ReadySandbox) -> Result<()> {
        let mut request = Request::post("/sandbox/v1/exec")
            .header(header::HOST, &self.router)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::AUTHORIZATION, format!("Bearer {}", self.token))
            .header("X-Sandbox-ID", &found.sandbox)
            .header("X-Sandbox-Namespace", "default");
        if let Some(address) = &found.address {
            // As the published SDKs do: the router may not have seen the adoption yet.
            request = request.header("X-Sandbox-Pod-IP", address);
        }
        let request = request.body(Full::new(Bytes::from_static(br#"{"argv":["/bin/true"]}"#)))?;
        connection.ready().await?;
        let response = connection.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        ensure!(status.is_success(), "{status}: {}", String::from_utf8_lossy(&body));
        let answer: serde_json::Value = serde_json::from_slice(&body)?;
        let code = answer["exit_code"].as_i64().or_else(|| answer["exitCode"].as_i64());
        ensure!(code == Some(0), "true ended with {answer}");
        Ok(())
    }

    /// Creates or claims one sandbox, waits until it is ready and runs the command. Returns the milliseconds until each
    /// step was done.
    async fn once(&self, warm: bool, number: usize, connection: &mut SendRequest<Full<Bytes>>) -> Result<[f64; 3]> {
        let name = format!("tti-{number}");
        let start = Instant::now();
        if warm {
            let options = ClaimOptions { name: Some(name.clone()), pool: POOL.to_owned(), ..ClaimOptions::default() };
            self.claims().create(&PostParams::default(), &sdk::claim(&options)).await?;
        } else {
            let container = ContainerOptions { image: "host".to_owned(), ..ContainerOptions::default() };
            self.sandboxes().create(&PostParams::default(), &sdk::sandbox(&name, &container, None)).await?;
        }
        let created = start.elapsed();
        let found = wait_for(&self.waiters, &name).await?;
        let ready = start.elapsed();
        self.execute(connection, &found).await?;
        Ok([created, ready, start.elapsed()].map(|time| time.as_secs_f64() * 1000.0))
    }

    async fn delete(&self, warm: bool, number: usize) -> Result<()> {
        let name = format!("tti-{number}");
        match warm {
            true => drop(self.claims().delete(&name, &DeleteParams::background()).await?),
            false => drop(self.sandboxes().delete(&name, &DeleteParams::background()).await?),
        }
        Ok(())
    }
}

fn quantile(sorted: &[f64], part: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * part).round() as usize).copied().unwrap_or_default()
}

#[tokio::main]
async fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [kubeconfig, router, mode, concurrency, count] = words.as_slice() else {
        bail!("tti KUBECONFIG ROUTER cold|warm CONCURRENCY COUNT");
    };
    let (warm, concurrency, count): (bool, usize, usize) = (mode == "warm", concurrency.parse()?, count.parse()?);
    let bench = Bench::open(kubeconfig, router).await?;
    bench.watch(warm).await?;
    let begun = Instant::now();
    // Each worker takes the next number when it is done with the last, so that CONCURRENCY sandboxes are under way
    // until all have begun.
    let next = AtomicUsize::new(0);
    let workers = (0..concurrency).map(|_| {
        let (bench, next) = (&bench, &next);
        async move {
            let mut connection = bench.connect().await?;
            let mut times = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    break;
                }
                times.push(bench.once(warm, number, &mut connection).await?);
                if concurrency == 1 {
                    // One sandbox at a time: deleting the last one must not slow down the next one.
                    bench.delete(warm, number).await?;
                    tokio::time::sleep(Duration::from_millis(60)).await;
                }
            }
            Ok::<_, anyhow::Error>(times)
        }
    });
    let times: Vec<Vec<[f64; 3]>> = futures::future::try_join_all(workers).await?;
    let whole = begun.elapsed().as_secs_f64();
    let times: Vec<[f64; 3]> = times.into_iter().flatten().collect();
    let column = |index: usize| {
        let mut list: Vec<f64> = times.iter().map(|time| time[index]).collect();
        list.sort_by(f64::total_cmp);
        list
    };
    let [created, ready, done] = [column(0), column(1), column(2)];
    println!(
        "{}",
        serde_json::json!({
            "mode": mode, "concurrency": concurrency, "count": times.len(), "perSecond": times.len() as f64 / whole,
            "createdP50": quantile(&created, 0.5), "readyP50": quantile(&ready, 0.5),
            "p50": quantile(&done, 0.5), "readyP99": quantile(&ready, 0.99), "p99": quantile(&done, 0.99),
        })
    );
    if concurrency > 1 {
        let deletions = stream::iter(0..count).map(|number| bench.delete(warm, number));
        deletions.buffer_unordered(16).try_collect::<Vec<()>>().await?;
    }
    Ok(())
}
