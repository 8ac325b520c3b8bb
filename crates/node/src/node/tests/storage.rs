//! Storage that runs out: of one Pod, and of the machine.

use super::*;
use crate::evict::StoragePolicy;
use crate::runtime::StorageUsage;

fn quick() -> StoragePolicy {
    // No shortage on any machine the tests run on.
    StoragePolicy {
        check_every: Duration::from_millis(20),
        // What the fake runtime says it uses does not grow the real disk.
        sweep_every: Duration::ZERO,
        min_free_percent: 0,
        min_free_bytes: 0,
        ..StoragePolicy::default()
    }
}

fn usage(bytes: u64) -> StorageUsage {
    StorageUsage { layers: vec![("main".into(), bytes)], ..StorageUsage::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_past_its_limit_is_evicted_and_its_layer_goes() {
    let bench = Bench::open_with(quick()).await;
    let limited = json!({"containers": [{"name": "main", "image": "app:1",
        "resources": {"limits": {"ephemeral-storage": "1Mi"}}}]});
    let pod = bench.create("limited", limited).await;
    let free = bench.create("free", app()).await;
    bench.until_ready("limited").await;
    bench.until_ready("free").await;
    bench.runtime.uses(&uid(&pod), usage(2 << 20));
    bench.runtime.uses(&uid(&free), usage(2 << 20));
    let evicted = bench.until_phase("limited", "Failed").await;
    let status = evicted.status.unwrap();
    assert_eq!(status.reason.as_deref(), Some("Evicted"));
    assert!(status.message.as_deref().unwrap().contains("container main"), "{:?}", status.message);
    assert_eq!(condition(&status, "DisruptionTarget").unwrap().reason.as_deref(), Some("TerminationByKubelet"));
    assert!(bench.until_event("Evicted").await.contains("container main"));
    bench.until_called("remove limited").await;
    bench.until_called(&format!("forget {}", crate::pods::sandbox::owner(&pod))).await;
    assert!(is_ready(&bench.pods().get("free").await.unwrap()), "what asked for no limit may use 10 GiB");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_machine_says_so_and_evicts_its_largest_writer() {
    let policy = StoragePolicy { min_free_percent: 101, max_free_bytes: u64::MAX, ..quick() };
    let mut bench = Bench::open_with(StoragePolicy { check_every: Duration::from_secs(3600), ..policy }).await;
    let small = bench.create("small", app()).await;
    let large = bench.create("large", app()).await;
    bench.until_ready("small").await;
    bench.until_ready("large").await;
    bench.runtime.uses(&uid(&large), usage(2 << 20));
    bench.runtime.uses(&uid(&small), usage(0));
    bench.storage = policy;
    bench.restart().await;
    let evicted = bench.until_phase("large", "Failed").await;
    assert_eq!(evicted.status.unwrap().reason.as_deref(), Some("Evicted"));
    let nodes: Api<NodeObject> = Api::all(bench.client.clone());
    let pressed = await_condition(nodes, "n1", |n: Option<&NodeObject>| {
        let conditions = n.and_then(|n| n.status.as_ref()).and_then(|s| s.conditions.as_ref());
        conditions.is_some_and(|c| c.iter().any(|c| c.type_ == "DiskPressure" && c.status == "True"))
    });
    tokio::time::timeout(LIMIT, pressed).await.expect("the node says so").unwrap();
    assert!(is_ready(&bench.pods().get("small").await.unwrap()), "a Pod that wrote nothing has nothing to give");
}
