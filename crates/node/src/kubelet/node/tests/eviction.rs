//! Tests of eviction: storage limits of one Pod, and disk pressure of the machine.

use super::*;
use crate::kubelet::eviction::StoragePolicy;
use crate::runtime::StorageUsage;

fn quick() -> StoragePolicy {
    // The free-space limits are off, so that no machine that runs the tests is short of space.
    StoragePolicy {
        check_every: Duration::from_millis(20),
        // The usage reported by the fake runtime does not change the usage of the real disk.
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
async fn a_pod_past_its_limit_is_evicted_and_its_layer_removed() {
    let fixture = Fixture::open_with(quick()).await;
    let limited = json!({"containers": [{"name": "main", "image": "app:1",
        "resources": {"limits": {"ephemeral-storage": "1Mi"}}}]});
    let pod = fixture.create("limited", limited).await;
    let free = fixture.create("free", app()).await;
    fixture.until_ready("limited").await;
    fixture.until_ready("free").await;
    fixture.runtime.uses(&uid(&pod), usage(2 << 20));
    fixture.runtime.uses(&uid(&free), usage(2 << 20));
    let evicted = fixture.until_phase("limited", "Failed").await;
    let status = evicted.status.unwrap();
    assert_eq!(status.reason.as_deref(), Some("Evicted"));
    assert!(status.message.as_deref().unwrap().contains("container main"), "{:?}", status.message);
    assert_eq!(condition(&status, "DisruptionTarget").unwrap().reason.as_deref(), Some("TerminationByKubelet"));
    assert!(fixture.until_event("Evicted").await.contains("container main"));
    fixture.until_called("remove limited").await;
    fixture.until_called(&format!("forget {}", crate::kubelet::pod_sandbox::owner(&pod))).await;
    assert!(is_ready(&fixture.pods().get("free").await.unwrap()), "what asked for no limit may use 10 GiB");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_with_too_many_files_is_evicted_while_it_runs() {
    let fixture = Fixture::open_with(StoragePolicy { default_inodes: 1_000, ..quick() }).await;
    let many = fixture.create("many", app()).await;
    let few = fixture.create("few", app()).await;
    fixture.until_ready("many").await;
    fixture.until_ready("few").await;
    fixture.runtime.uses(&uid(&few), StorageUsage { inodes: 1_000, ..usage(1) });
    fixture.runtime.uses(&uid(&many), StorageUsage { inodes: 1_001, ..usage(1) });
    let evicted = fixture.until_phase("many", "Failed").await.status.unwrap();
    assert_eq!(evicted.reason.as_deref(), Some("Evicted"));
    assert!(evicted.message.as_deref().unwrap().contains("1001 files and folders of 1000"), "{:?}", evicted.message);
    assert!(is_ready(&fixture.pods().get("few").await.unwrap()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_machine_reports_disk_pressure_and_evicts_the_largest_writer() {
    let policy = StoragePolicy { min_free_percent: 101, max_free_bytes: u64::MAX, ..quick() };
    let mut fixture = Fixture::open_with(StoragePolicy { check_every: Duration::from_secs(3600), ..policy }).await;
    let small = fixture.create("small", app()).await;
    let large = fixture.create("large", app()).await;
    fixture.until_ready("small").await;
    fixture.until_ready("large").await;
    fixture.runtime.uses(&uid(&large), usage(2 << 20));
    fixture.runtime.uses(&uid(&small), usage(0));
    fixture.storage = policy;
    fixture.restart().await;
    let evicted = fixture.until_phase("large", "Failed").await;
    assert_eq!(evicted.status.unwrap().reason.as_deref(), Some("Evicted"));
    let nodes: Api<NodeObject> = Api::all(fixture.client.clone());
    let pressed = await_condition(nodes, "n1", |n: Option<&NodeObject>| {
        let conditions = n.and_then(|n| n.status.as_ref()).and_then(|s| s.conditions.as_ref());
        conditions.is_some_and(|c| c.iter().any(|c| c.type_ == "DiskPressure" && c.status == "True"))
    });
    tokio::time::timeout(LIMIT, pressed).await.expect("the node says so").unwrap();
    assert!(is_ready(&fixture.pods().get("small").await.unwrap()), "a Pod that wrote nothing has nothing to give");
}
