//! Tests of what Pods depend on: configuration, claims, policies, probes, owners, and the Node object.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn the_node_registers_and_holds_a_lease() {
    let fixture = Fixture::open().await;
    let nodes: Api<NodeObject> = Api::all(fixture.client.clone());
    let ready = await_condition(nodes, "n1", |n: Option<&NodeObject>| {
        let conditions = n.and_then(|n| n.status.as_ref()).and_then(|s| s.conditions.as_ref());
        conditions.is_some_and(|c| c.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
    });
    tokio::time::timeout(LIMIT, ready).await.expect("the node is ready").unwrap();
    let leases: Api<k8s_openapi::api::coordination::v1::Lease> =
        Api::namespaced(fixture.client.clone(), "kube-node-lease");
    let held = await_condition(leases, "n1", |l: Option<&_>| l.is_some());
    tokio::time::timeout(LIMIT, held).await.expect("the lease is there").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_config_map_holds_the_container_until_it_appears() {
    let fixture = Fixture::open().await;
    let spec = json!({"containers": [{"name": "main", "image": "app:1", "env": [
        {"name": "X", "valueFrom": {"configMapKeyRef": {"name": "late", "key": "k"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]}]});
    let pod = fixture.create("p", spec).await;
    fixture.until_waiting("p", "CreateContainerConfigError").await;
    let maps: Api<ConfigMap> = Api::namespaced(fixture.client.clone(), "default");
    let map = serde_json::from_value(json!({"metadata": {"name": "late"}, "data": {"k": "v"}})).unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();
    let ready = fixture.until_ready("p").await;
    let env = fixture.runtime.spec(&uid(&pod), "main").unwrap().env;
    let get = |name: &str| env.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone());
    assert_eq!(get("X").as_deref(), Some("v"));
    assert_eq!(get("IP"), ready.status.unwrap().pod_ip);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_bound_mounted_and_removed_with_its_claim() {
    let fixture = Fixture::open().await;
    let spec = json!({"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}],
        "containers": [{"name": "main", "image": "app:1", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]});
    let pod = fixture.create("p", spec).await;
    assert!(fixture.until_event("FailedMount").await.contains("\"c\" not found"));
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(fixture.client.clone(), "default");
    let claim = serde_json::from_value(json!({"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}}))
    .unwrap();
    let claim: PersistentVolumeClaim = claims.create(&PostParams::default(), &claim).await.unwrap();
    fixture.until_ready("p").await;
    let volume = format!("pvc-{}", claim.metadata.uid.unwrap());
    let mounts = fixture.runtime.spec(&uid(&pod), "main").unwrap().mounts;
    let mount = mounts.iter().find(|m| m.target == "/data").expect("mounted");
    assert!(format!("{:?}", mount.source).contains(&volume), "{mount:?}");
    fixture.pods().delete("p", &DeleteParams::default()).await.unwrap();
    fixture.until_gone("p").await;
    claims.delete("c", &DeleteParams::default()).await.unwrap();
    fixture.until_called(&format!("remove volume Persistent {{ name: {volume:?} }}")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_reach_running_pods_and_unselected_pods_stay_closed() {
    let fixture = Fixture::open().await;
    let pod = fixture.create_with("p", json!({"labels": {"app": "x"}}), app()).await;
    fixture.until_ready("p").await;
    assert_eq!(fixture.runtime.rules(&uid(&pod)), Some(Default::default()), "closed both ways");
    let policies: Api<NetworkPolicy> = Api::namespaced(fixture.client.clone(), "default");
    let policy = serde_json::from_value(json!({"metadata": {"name": "np"}, "spec": {
        "podSelector": {"matchLabels": {"app": "x"}}, "policyTypes": ["Egress"],
        "egress": [{"to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]}]}}))
    .unwrap();
    policies.create(&PostParams::default(), &policy).await.unwrap();
    let opened = async {
        while fixture.runtime.rules(&uid(&pod)).is_none_or(|r| r.egress.len() != 1) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, opened).await.expect("the policy is enforced");
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_follows_its_probe_and_liveness_restarts() {
    let fixture = Fixture::open().await;
    fixture.runtime.exec_code("alive", 0);
    fixture.runtime.exec_code("ready", 1);
    let spec = json!({"containers": [{"name": "main", "image": "app:1",
        "readinessProbe": {"exec": {"command": ["ready"]}, "periodSeconds": 1},
        "livenessProbe": {"exec": {"command": ["alive"]}, "periodSeconds": 1, "failureThreshold": 1}}]});
    fixture.create("p", spec).await;
    let running = fixture.until_phase("p", "Running").await;
    assert!(!is_ready(&running));
    fixture.runtime.exec_code("ready", 0);
    fixture.until_ready("p").await;
    fixture.runtime.exec_code("alive", 1);
    fixture.until("p", "restarted", |p| restarts(p) >= 1).await;
    assert!(fixture.until_event("Unhealthy").await.contains("probe failed"));
    fixture.runtime.exec_code("alive", 0);
    fixture.until_ready("p").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxd_is_injected_on_request_and_its_port_decides_readiness() {
    let fixture = Fixture::open().await;
    let annotations = json!({"annotations": {"runtime.agents.x-k8s.io/inject-sandboxd": "true"}});
    let pod = fixture.create_with("p", annotations, app()).await;
    fixture.until_phase("p", "Running").await;
    let spec = fixture.runtime.spec(&uid(&pod), "main").unwrap();
    assert_eq!(spec.command[0], "/.agent-sandbox/sandboxd");
    assert_eq!(spec.command[spec.command.len() - 2..], ["--", "serve"]);
    let seen = fixture.pods().get("p").await.unwrap();
    assert!(!is_ready(&seen), "nothing listens on its port yet");
    let ip = seen.status.unwrap().pod_ip.unwrap();
    let listener = tokio::net::TcpListener::bind((ip.as_str(), 8888)).await.unwrap();
    fixture.until_ready("p").await;
    drop(listener);
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_are_kept_for_the_owner_and_removed_with_it() {
    let mut fixture = Fixture::open().await;
    let maps: Api<ConfigMap> = Api::namespaced(fixture.client.clone(), "default");
    let owner: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "owner"}})).unwrap();
    let owner = maps.create(&PostParams::default(), &owner).await.unwrap();
    let owner_uid = owner.metadata.uid.unwrap();
    let owned = json!({"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner",
        "uid": owner_uid, "controller": true}]});
    fixture.create_with("p", owned, app()).await;
    fixture.until_ready("p").await;
    fixture.pods().delete("p", &DeleteParams::default()).await.unwrap();
    fixture.until_gone("p").await;
    fixture.until_called("remove p").await;
    fixture.restart().await;
    assert!(!fixture.runtime.calls().iter().any(|c| c.starts_with("forget")), "kept while the owner lives");
    maps.delete("owner", &DeleteParams::default()).await.unwrap();
    fixture.until_called(&format!("forget default.{owner_uid}")).await;
}

/// Metadata of a Pod with this controlling owner.
fn owned_by(api_version: &str, kind: &str, uid: &str) -> Value {
    json!({"ownerReferences": [{"apiVersion": api_version, "kind": kind, "name": "owner", "uid": uid,
        "controller": true}]})
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_of_an_owner_of_an_unknown_kind_are_removed_with_its_pod() {
    let fixture = Fixture::open().await;
    for (name, api_version, uid) in [("p", "x.y/v1", "u1"), ("q", "v1", "u2"), ("r", "apps/v1", "u3")] {
        fixture.create_with(name, owned_by(api_version, "Unknown", uid), app()).await;
        fixture.until_ready(name).await;
        fixture.pods().delete(name, &DeleteParams::default()).await.unwrap();
        fixture.until_called(&format!("forget default.{uid}")).await;
    }
}

/// Waits until the node's file of grants names only these owners.
async fn until_granted(fixture: &Fixture, owners: &[&str]) {
    let file = fixture.runtime.folder().join("copy-grants.json");
    let read = || {
        let grants: Vec<Value> = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        grants.iter().filter_map(|grant| grant["owner"].as_str().map(str::to_owned)).collect::<Vec<_>>()
    };
    let granted = async {
        while read() != owners {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, granted).await.unwrap_or_else(|_| panic!("granted to {:?}", read()));
}

#[tokio::test(flavor = "multi_thread")]
async fn folders_are_granted_until_the_owner_is_deleted() {
    let mut fixture = Fixture::open().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(fixture.client.clone(), "default");
    let mut spec = app();
    spec["volumes"] = json!([{"name": "v", "hostPath": {"path": path}}]);
    let folders = [GrantedFolder { path, access: crate::FolderAccess::Write }];
    for away in [false, true] {
        let owner: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "owner"}})).unwrap();
        let uid = maps.create(&PostParams::default(), &owner).await.unwrap().metadata.uid.unwrap();
        fixture.node.allow_folders("default", "p", &folders).unwrap();
        fixture.create_with("p", owned_by("v1", "ConfigMap", &uid), spec.clone()).await;
        fixture.until_ready("p").await;
        fixture.pods().delete("p", &DeleteParams::default()).await.unwrap();
        fixture.until_gone("p").await;
        until_granted(&fixture, &[&format!("default.{uid}")]).await;
        if away {
            fixture.node.shutdown().await;
        }
        maps.delete("owner", &DeleteParams::default()).await.unwrap();
        if away {
            fixture.restart().await;
        }
        until_granted(&fixture, &[]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_granted_to_a_pod_without_owner_ends_with_the_pod() {
    let mut fixture = Fixture::open().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap();
    let mut spec = app();
    spec["volumes"] = json!([{"name": "v", "hostPath": {"path": path}}]);
    let folders = [GrantedFolder { path, access: crate::FolderAccess::Write }];
    fixture.node.allow_folders("default", "p", &folders).unwrap();
    let pod = fixture.create("p", spec).await;
    fixture.until_ready("p").await;
    fixture.node.shutdown().await;
    // The grant of an owner of which the node has no record ends when the node starts; that of the Pod does not.
    let file = fixture.runtime.folder().join("copy-grants.json");
    let mut grants: Vec<Value> = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    grants.push(json!({"namespace": "default", "name": "q", "path": "/repo", "owner": "default.u"}));
    std::fs::write(&file, Value::from(grants).to_string()).unwrap();
    fixture.restart().await;
    until_granted(&fixture, &[&format!("pod-{}", uid(&pod))]).await;
    fixture.pods().delete("p", &DeleteParams::default()).await.unwrap();
    until_granted(&fixture, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_is_found_under_a_version_that_is_not_served() {
    let mut fixture = Fixture::open().await;
    let maps: Api<ConfigMap> = Api::namespaced(fixture.client.clone(), "default");
    let owner: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "owner"}})).unwrap();
    let uid = maps.create(&PostParams::default(), &owner).await.unwrap().metadata.uid.unwrap();
    fixture.create_with("p", owned_by("v9", "ConfigMap", &uid), app()).await;
    fixture.until_ready("p").await;
    fixture.pods().delete("p", &DeleteParams::default()).await.unwrap();
    fixture.until_called("remove p").await;
    fixture.restart().await;
    assert!(!fixture.runtime.calls().iter().any(|c| c.starts_with("forget")), "kept while the owner lives");
    maps.delete("owner", &DeleteParams::default()).await.unwrap();
    fixture.until_called(&format!("forget default.{uid}")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_does_not_match_the_node_is_unschedulable() {
    let fixture = Fixture::open().await;
    let mut spec = app();
    spec["nodeSelector"] = json!({"gpu": "yes"});
    fixture.create("p", spec).await;
    let pod = fixture
        .until("p", "unschedulable", |p| p.status.as_ref().and_then(|s| condition(s, "PodScheduled")).is_some())
        .await;
    let status = pod.status.unwrap();
    let scheduled = condition(&status, "PodScheduled").unwrap();
    assert_eq!((scheduled.status.as_str(), scheduled.reason.as_deref()), ("False", Some("Unschedulable")));
    assert!(fixture.until_event("FailedScheduling").await.contains("gpu=yes"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_field_without_effect_is_an_event() {
    let fixture = Fixture::open().await;
    let spec =
        json!({"containers": [{"name": "main", "image": "app:1", "ports": [{"containerPort": 80, "hostPort": 80}]}]});
    fixture.create("p", spec).await;
    fixture.until_ready("p").await;
    assert!(fixture.until_event("UnsupportedField").await.contains("hostPort"));
}

#[tokio::test(flavor = "multi_thread")]
async fn hooks_run_after_the_start_and_before_the_signal() {
    let fixture = Fixture::open().await;
    let spec = json!({"containers": [{"name": "main", "image": "app:1", "lifecycle": {
        "postStart": {"exec": {"command": ["hello"]}}, "preStop": {"exec": {"command": ["goodbye"]}}}}]});
    fixture.create("p", spec).await;
    fixture.until_ready("p").await;
    fixture.pods().delete("p", &DeleteParams::default()).await.unwrap();
    fixture.until_gone("p").await;
    let calls = fixture.runtime.calls();
    let order: Vec<&str> = calls.iter().map(String::as_str).filter(|c| !c.starts_with("forget")).collect();
    assert_eq!(order, ["create p", "start main#0", "exec hello", "exec goodbye", "signal main 15", "remove p"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_start_hook_ends_the_container() {
    let fixture = Fixture::open().await;
    fixture.runtime.exec_code("hello", 1);
    let spec = json!({"restartPolicy": "Never", "containers": [{"name": "main", "image": "app:1",
        "lifecycle": {"postStart": {"exec": {"command": ["hello"]}}}}]});
    fixture.create("p", spec).await;
    fixture.until_phase("p", "Failed").await;
    fixture.until_called("kill main").await;
    assert!(fixture.until_event("FailedPostStartHook").await.contains("PostStartHook"));
}

#[tokio::test(flavor = "multi_thread")]
async fn other_probes_wait_for_the_startup_probe() {
    let fixture = Fixture::open().await;
    fixture.runtime.exec_code("up", 1);
    fixture.runtime.exec_code("alive", 1);
    let probe = |command: &str| json!({"exec": {"command": [command]}, "periodSeconds": 1, "failureThreshold": 60});
    let mut liveness = probe("alive");
    liveness["failureThreshold"] = 1.into();
    let spec = json!({"containers": [{"name": "main", "image": "app:1", "startupProbe": probe("up"),
        "livenessProbe": liveness, "readinessProbe": probe("ready")}]});
    fixture.create("p", spec).await;
    fixture.until_called("exec up").await;
    let calls = fixture.runtime.calls();
    assert!(!calls.iter().any(|c| c == "exec alive" || c == "exec ready"), "{calls:?}");
    let started = |p: &Pod| p.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0].started;
    let running = fixture.until_phase("p", "Running").await;
    assert_eq!((started(&running), is_ready(&running)), (Some(false), false));
    fixture.runtime.exec_code("alive", 0);
    fixture.runtime.exec_code("up", 0);
    let ready = fixture.until_ready("p").await;
    assert_eq!((started(&ready), restarts(&ready)), (Some(true), 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn files_follow_their_objects_and_variables_do_not() {
    let fixture = Fixture::open().await;
    let maps: Api<ConfigMap> = Api::namespaced(fixture.client.clone(), "default");
    let map = |value: &str| serde_json::from_value(json!({"metadata": {"name": "c"}, "data": {"key": value}})).unwrap();
    maps.create(&PostParams::default(), &map("one")).await.unwrap();
    let spec = json!({"containers": [{"name": "main", "image": "app:1",
            "env": [{"name": "KEY", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "key"}}}],
            "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
        "volumes": [{"name": "v", "projected": {"sources": [{"configMap": {"name": "c"}},
            {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}}]}}]});
    let pod = fixture.create_with("p", json!({"labels": {"a": "1"}}), spec).await;
    fixture.until_ready("p").await;
    let folder = fixture.runtime.pod_dir(&uid(&pod)).join("files/v");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
    assert_eq!((read("key"), read("labels")), ("one".to_owned(), "a=\"1\"".to_owned()));
    maps.replace("c", &PostParams::default(), &map("two")).await.unwrap();
    let labels = kube::api::Patch::Merge(json!({"metadata": {"labels": {"a": "2"}}}));
    fixture.pods().patch("p", &Default::default(), &labels).await.unwrap();
    let followed = async {
        while (read("key"), read("labels")) != ("two".to_owned(), "a=\"2\"".to_owned()) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LIMIT, followed).await.expect("the files follow");
    let env = fixture.runtime.spec(&uid(&pod), "main").unwrap().env;
    assert!(env.contains(&("KEY".to_owned(), "one".to_owned())), "{env:?}");
}
