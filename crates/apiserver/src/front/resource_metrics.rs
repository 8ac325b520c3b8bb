//! The resource metrics API (`metrics.k8s.io`): CPU and memory of Pods and nodes, which `kubectl top` shows.
//!
//! Counters are read only when a request needs them, at most once a second for all clients together: the CPU usage of a
//! container is the difference between two samples.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::registry::{Endpoint, Resource};
use crate::request::{ListOptions, ResourceRequest, Verb};
use crate::selectors::Filter;
use crate::server::Core;
use crate::status::ApiError;
use crate::store::Stored;
use crate::verbs::{Payload, Reply, check_scope};

pub(crate) const GROUP: &str = "metrics.k8s.io";

/// Minimum time between two samples.
const MIN_WINDOW: Duration = Duration::from_secs(1);
/// An older sample says nothing about the present: a new one is taken.
const MAX_WINDOW: Duration = Duration::from_secs(60);

/// Reads the counters of nodes and containers.
pub trait UsageSource: Send + Sync + 'static {
    /// Blocks for as long as reading the counters takes.
    fn sample(&self) -> UsageSample;
}

/// All counters at one moment.
#[derive(Debug, Clone, Default)]
pub struct UsageSample {
    pub nodes: Vec<(String, Counters)>,
    pub containers: Vec<ContainerCounters>,
}

/// The counters of one running container.
#[derive(Debug, Clone)]
pub struct ContainerCounters {
    pub namespace: String,
    pub pod: String,
    pub container: String,
    pub counters: Counters,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counters {
    /// CPU time used since the start.
    pub cpu_micros: u64,
    /// Memory in use, without what the kernel could reclaim at once.
    pub memory_bytes: u64,
}

/// Takes samples from the source, if there is one.
#[derive(Default)]
pub(super) struct Sampler {
    source: std::sync::OnceLock<Arc<dyn UsageSource>>,
    latest: Mutex<Option<Arc<Window>>>,
}

/// Usage between two samples.
struct Window {
    before: UsageSample,
    now: UsageSample,
    length: Duration,
    taken: Instant,
    timestamp: Timestamp,
}

impl Sampler {
    pub(super) fn attach(&self, source: Arc<dyn UsageSource>) {
        // An engine has one node, attached once.
        let _ = self.source.set(source);
    }

    /// Usage in the last second or, if clients ask regularly, since the previous request.
    async fn window(&self) -> Result<Arc<Window>, ApiError> {
        let source = self.source.get().ok_or_else(|| ApiError::unavailable("no node reports its resource usage"))?;
        let mut latest = self.latest.lock().await;
        let mut earlier = None;
        if let Some(window) = &*latest {
            match window.taken.elapsed() {
                age if age < MIN_WINDOW => return Ok(window.clone()),
                age if age <= MAX_WINDOW => earlier = Some((window.now.clone(), window.taken)),
                _ => {}
            }
        }
        let (before, since) = match earlier {
            Some(earlier) => earlier,
            None => {
                let first = (sample(source).await?, Instant::now());
                tokio::time::sleep(MIN_WINDOW).await;
                first
            }
        };
        let (now, taken) = (sample(source).await?, Instant::now());
        let window = Window { before, now, length: taken - since, taken, timestamp: Timestamp::now() };
        Ok(latest.insert(Arc::new(window)).clone())
    }
}

async fn sample(source: &Arc<dyn UsageSource>) -> Result<UsageSample, ApiError> {
    let source = source.clone();
    tokio::task::spawn_blocking(move || source.sample()).await.map_err(ApiError::internal)
}

impl Window {
    /// CPU and memory as quantities, or `None` for what did not run at the first sample.
    fn usage(&self, before: Option<&Counters>, now: &Counters) -> Option<Value> {
        let nanos = u128::from(now.cpu_micros.checked_sub(before?.cpu_micros)?) * 1_000;
        let cores = nanos * 1_000_000_000 / self.length.as_nanos().max(1);
        Some(json!({"cpu": format!("{cores}n"), "memory": format!("{}Ki", now.memory_bytes / 1024)}))
    }

    /// Usage of the containers, by namespace and name of their Pod.
    fn containers(&self) -> HashMap<(&str, &str), Vec<Value>> {
        let key = |container: &ContainerCounters| {
            (container.namespace.clone(), container.pod.clone(), container.container.clone())
        };
        let before: HashMap<_, _> = self.before.containers.iter().map(|c| (key(c), c.counters)).collect();
        let mut found: HashMap<(&str, &str), Vec<Value>> = HashMap::new();
        for container in &self.now.containers {
            if let Some(usage) = self.usage(before.get(&key(container)), &container.counters) {
                let pod = found.entry((&container.namespace, &container.pod)).or_default();
                pod.push(json!({"name": container.container, "usage": usage}));
            }
        }
        found
    }

    fn node(&self, name: &str) -> Option<Value> {
        let of = |sample: &UsageSample| sample.nodes.iter().find(|(node, _)| node == name).map(|(_, used)| *used);
        self.usage(of(&self.before).as_ref(), &of(&self.now)?)
    }

    /// The metrics object of a Pod or Node; `None` if its usage is unknown.
    fn object(&self, kind: &str, containers: &HashMap<(&str, &str), Vec<Value>>, of: &Stored) -> Option<Value> {
        let mut object = json!({
            "kind": kind,
            "apiVersion": format!("{GROUP}/v1beta1"),
            "metadata": {"name": of.key.name, "creationTimestamp": self.timestamp.strftime("%FT%TZ").to_string()},
            "timestamp": self.timestamp.strftime("%FT%TZ").to_string(),
            "window": format!("{:.3}s", self.length.as_secs_f64()),
        });
        if let Some(labels) = of.parse()["metadata"].get_mut("labels") {
            object["metadata"]["labels"] = labels.take();
        }
        if of.key.namespace.is_empty() {
            object["usage"] = self.node(&of.key.name)?;
        } else {
            object["metadata"]["namespace"] = of.key.namespace.to_string().into();
            object["containers"] = containers.get(&(&*of.key.namespace, &*of.key.name))?.clone().into();
        }
        Some(object)
    }
}

/// Handles a request for metrics.
pub(super) async fn respond(
    sampler: &Sampler,
    core: &Core,
    endpoint: &Endpoint,
    request: &ResourceRequest,
    uri: &http::Uri,
) -> Result<Reply, ApiError> {
    check_scope(endpoint, request)?;
    let (kind, list_kind) = (&endpoint.resource.kind, &endpoint.resource.list_kind);
    let measured = core.registry.snapshot().resource("", &request.resource).cloned();
    let measured = measured.ok_or_else(ApiError::no_such_path)?;
    match request.verb {
        Verb::Get => {
            let name = match request.namespace.as_str() {
                "" => request.name.clone(),
                namespace => format!("{namespace}/{}", request.name),
            };
            let missing = || ApiError::not_found(GROUP, &endpoint.resource.singular, &name);
            let of = selected(core, &measured, request, "", &format!("metadata.name={}", request.name))?;
            let window = sampler.window().await?;
            let object = of.first().and_then(|of| window.object(kind, &window.containers(), of));
            object.map(|object| Reply::ok(Payload::Value(object))).ok_or_else(missing)
        }
        Verb::List => {
            let options = ListOptions::parse(uri)?;
            let of = selected(core, &measured, request, &options.label_selector, &options.field_selector)?;
            let window = sampler.window().await?;
            let containers = window.containers();
            let items: Vec<Value> = of.iter().filter_map(|of| window.object(kind, &containers, of)).collect();
            let list = json!({
                "kind": list_kind,
                "apiVersion": endpoint.api_version(),
                "metadata": {},
                "items": items,
            });
            Ok(Reply::ok(Payload::Value(list)))
        }
        _ => Err(ApiError::method_not_allowed()),
    }
}

/// The stored Pods or Nodes that a request is for.
fn selected(
    core: &Core,
    measured: &Resource,
    request: &ResourceRequest,
    labels: &str,
    fields: &str,
) -> Result<Vec<Arc<Stored>>, ApiError> {
    let filter = Filter::parse(measured, &request.namespace, labels, fields)?;
    Ok(core.store.collection(&measured.storage).list_with_version(&filter).1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Each sample adds 500,000 µs.
    #[derive(Default)]
    struct HalfBusy(AtomicU64);

    impl UsageSource for HalfBusy {
        fn sample(&self) -> UsageSample {
            let counters =
                Counters { cpu_micros: self.0.fetch_add(1, Ordering::Relaxed) * 500_000, memory_bytes: 3 << 20 };
            let container =
                ContainerCounters { namespace: "default".into(), pod: "p".into(), container: "main".into(), counters };
            UsageSample { nodes: vec![("local".into(), counters)], containers: vec![container] }
        }
    }

    #[tokio::test]
    async fn usage_is_the_difference_of_two_samples_and_read_at_most_once_a_second() {
        let sampler = Sampler::default();
        assert_eq!(sampler.window().await.err().map(|error| error.code.as_u16()), Some(503), "no source");
        let source = Arc::new(HalfBusy::default());
        sampler.attach(source.clone());
        let window = sampler.window().await.unwrap();
        let cores = 500_000_000.0 / window.length.as_secs_f64();
        let found = window.node("local").unwrap();
        let cpu: f64 = found["cpu"].as_str().unwrap().trim_end_matches('n').parse().unwrap();
        assert!((cpu / cores - 1.0).abs() < 0.001, "{found} in {:?}", window.length);
        assert_eq!((&found["memory"], window.node("other")), (&json!("3072Ki"), None));
        assert_eq!(window.containers()[&("default", "p")], [json!({"name": "main", "usage": found})]);
        let again = sampler.window().await.unwrap();
        assert_eq!((again.taken, source.0.load(Ordering::Relaxed)), (window.taken, 2), "within a second");
        // A later request compares with the sample before it, and does not wait for another.
        let five = Duration::from_secs(5);
        let earlier =
            Window { taken: window.taken - five, now: window.now.clone(), before: UsageSample::default(), ..*window };
        *sampler.latest.lock().await = Some(Arc::new(earlier));
        let later = sampler.window().await.unwrap();
        assert!(later.length >= five && source.0.load(Ordering::Relaxed) == 3);
    }

    #[test]
    fn what_started_after_the_first_sample_has_no_usage_yet() {
        let used = |cpu_micros| Counters { cpu_micros, memory_bytes: 0 };
        let empty = UsageSample::default;
        let window = Window {
            before: empty(),
            now: empty(),
            length: Duration::from_secs(1),
            taken: Instant::now(),
            timestamp: Timestamp::now(),
        };
        assert_eq!(window.usage(None, &used(1)), None);
        assert_eq!(window.usage(Some(&used(5)), &used(1)), None, "a container that was started again");
    }
}
