//! Test that an idle node writes nothing but its Lease.

use k8s_openapi::api::coordination::v1::Lease;

use super::*;

/// The resourceVersion of the whole store, and that of the Lease.
async fn revisions(fixture: &Fixture) -> (String, String) {
    let pods = fixture.pods().list(&ListParams::default()).await.unwrap();
    let leases: Api<Lease> = Api::namespaced(fixture.client.clone(), "kube-node-lease");
    let lease = leases.get("n1").await.unwrap().metadata.resource_version.unwrap();
    (pods.metadata.resource_version.unwrap(), lease)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_steady_node_writes_nothing_but_lease_renewals() {
    let fixture = Fixture::open().await;
    for name in ["a", "b", "c"] {
        let mut spec = app();
        spec["containers"][0]["readinessProbe"] = json!({"exec": {"command": ["ok"]}, "periodSeconds": 1});
        fixture.create(name, spec).await;
    }
    for name in ["a", "b", "c"] {
        fixture.until_ready(name).await;
    }
    // Events are written in the background; wait for the last of them.
    let mut before = revisions(&fixture).await;
    let settled = async {
        loop {
            tokio::time::sleep(Duration::from_millis(500)).await;
            let now = revisions(&fixture).await;
            if now == before {
                return;
            }
            before = now;
        }
    };
    tokio::time::timeout(LIMIT, settled).await.expect("the node stops writing");
    let until = tokio::time::Instant::now() + Duration::from_secs(12);
    while tokio::time::Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(250)).await;
        let now = revisions(&fixture).await;
        assert!(now.0 == before.0 || now.0 == now.1, "something but the Lease was written: {before:?} {now:?}");
        if now.0 != before.0 {
            before = now;
        }
    }
}
