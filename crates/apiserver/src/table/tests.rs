//! Cells of built-in and custom kinds.

use super::*;

fn now() -> Timestamp {
    "2024-01-01T01:00:00Z".parse().unwrap()
}

fn cells(group: &str, plural: &str, object: Value) -> Vec<Value> {
    let (columns, cells) = columns::builtin(group, plural);
    let cells = cells(&object, now());
    assert_eq!(columns.len(), cells.len(), "as many cells as columns");
    cells
}

fn pod(status: Value) -> Vec<Value> {
    let object = json!({
        "metadata": {"name": "p", "creationTimestamp": "2024-01-01T00:00:00Z"},
        "spec": {"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}], "nodeName": "n"},
        "status": status,
    });
    cells("", "pods", object)
}

#[test]
fn a_running_pod_shows_ready_containers_and_restarts() {
    let cells = pod(json!({
        "phase": "Running", "podIP": "10.0.0.5",
        "conditions": [{"type": "Ready", "status": "True"}, {"type": "Initialized", "status": "True"}],
        "initContainerStatuses": [{"name": "i", "restartCount": 4, "state": {"terminated": {"exitCode": 0}}}],
        "containerStatuses": [
            {"name": "a", "ready": true, "restartCount": 0, "state": {"running": {}}},
            {"name": "b", "ready": true, "restartCount": 2, "state": {"running": {}},
                "lastState": {"terminated": {"finishedAt": "2024-01-01T00:30:00Z"}}},
        ],
    }));
    assert_eq!(json!(cells), json!(["p", "2/2", "Running", "2 (30m ago)", "60m", "10.0.0.5", "n", "<none>", "<none>"]));
}

#[test]
fn the_status_of_a_pod_names_what_is_wrong() {
    let reason = |status: Value| pod(status)[2].clone();
    let waiting = |why: &str| json!({"waiting": {"reason": why}});
    assert_eq!(reason(json!({"phase": "Pending"})), "Pending");
    assert_eq!(
        reason(
            json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": waiting("ImagePullBackOff")}]})
        ),
        "Init:ImagePullBackOff"
    );
    assert_eq!(
        reason(
            json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": waiting("PodInitializing")}]})
        ),
        "Init:0/1"
    );
    assert_eq!(
        reason(json!({"phase": "Running", "containerStatuses": [{"name": "a", "state": waiting("CrashLoopBackOff")}]})),
        "CrashLoopBackOff"
    );
    let ended =
        |code: i64| json!({"terminated": {"exitCode": code, "reason": if code == 0 { "Completed" } else { "Error" }}});
    assert_eq!(
        reason(
            json!({"phase": "Failed", "containerStatuses": [{"name": "a", "state": ended(0)}, {"name": "b", "state": ended(1)}]})
        ),
        "Error"
    );
    assert_eq!(
        reason(json!({"phase": "Running", "containerStatuses": [
            {"name": "a", "state": ended(0)}, {"name": "b", "ready": true, "state": {"running": {}}}]})),
        "NotReady"
    );
    assert_eq!(
        cells(
            "",
            "pods",
            json!({"metadata": {"name": "p", "deletionTimestamp": "2024-01-01T00:00:00Z"}, "status": {"phase": "Running"}})
        )[2],
        "Terminating"
    );
}

#[test]
fn services_claims_nodes_and_events_have_kubernetes_cells() {
    let created = json!("2024-01-01T00:59:00Z");
    let service = json!({"metadata": {"name": "s", "creationTimestamp": created}, "spec": {"type": "ClusterIP", "clusterIP": "10.1.0.1",
        "ports": [{"port": 80, "protocol": "TCP"}, {"port": 443, "nodePort": 30443}], "selector": {"app": "x"}}});
    assert_eq!(
        json!(cells("", "services", service)),
        json!(["s", "ClusterIP", "10.1.0.1", "<none>", "80/TCP,443:30443/TCP", "60s", "app=x"])
    );
    let claim = json!({"metadata": {"name": "c", "creationTimestamp": created},
        "spec": {"volumeName": "v", "storageClassName": "local", "volumeMode": "Filesystem"},
        "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}});
    assert_eq!(
        json!(cells("", "persistentvolumeclaims", claim)),
        json!(["c", "Bound", "v", "1Gi", "RWO", "local", "<unset>", "60s", "Filesystem"])
    );
    let node = json!({"metadata": {"name": "n", "creationTimestamp": created, "labels": {"node-role.kubernetes.io/control-plane": ""}},
        "spec": {"unschedulable": true}, "status": {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"kubeletVersion": "v1"}}});
    assert_eq!(
        json!(cells("", "nodes", node)[1..5]),
        json!(["Ready,SchedulingDisabled", "control-plane", "60s", "v1"])
    );
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "name": "p"}, "lastTimestamp": "2024-01-01T00:59:30Z",
        "type": "Warning", "reason": "Failed", "message": " no \n", "count": 3, "source": {"component": "kubelet", "host": "n"}});
    assert_eq!(
        json!(cells("", "events", event)),
        json!(["30s", "Warning", "Failed", "pod/p", "", "kubelet, n", "no", "<unknown>", "3", "e"])
    );
}

#[test]
fn every_built_in_kind_prints_an_empty_object() {
    for (group, plural) in [
        ("", "configmaps"),
        ("", "secrets"),
        ("", "serviceaccounts"),
        ("", "namespaces"),
        ("", "endpoints"),
        ("", "persistentvolumes"),
        ("", "resourcequotas"),
        ("", "limitranges"),
        ("apps", "deployments"),
        ("apps", "replicasets"),
        ("apps", "statefulsets"),
        ("apps", "daemonsets"),
        ("coordination.k8s.io", "leases"),
        ("discovery.k8s.io", "endpointslices"),
        ("networking.k8s.io", "networkpolicies"),
        ("node.k8s.io", "runtimeclasses"),
        ("policy", "poddisruptionbudgets"),
        ("rbac.authorization.k8s.io", "rolebindings"),
        ("rbac.authorization.k8s.io", "roles"),
        ("scheduling.k8s.io", "priorityclasses"),
        ("storage.k8s.io", "storageclasses"),
        ("events.k8s.io", "events"),
    ] {
        cells(group, plural, json!({"metadata": {"name": "x"}}));
    }
}

#[test]
fn custom_columns_follow_their_paths_and_types() {
    let printed = |name: &str, kind: &str, path: &str| PrinterColumn {
        name: name.into(),
        kind: kind.into(),
        json_path: path.into(),
        ..PrinterColumn::default()
    };
    let (definitions, cells) = custom(&[
        printed("Ready", "string", r#".status.conditions[?(@.type=="Ready")].status"#),
        printed("Count", "integer", ".spec.count"),
        printed("On", "boolean", ".spec.on"),
        printed("Age", "date", ".metadata.creationTimestamp"),
        printed("Missing", "string", ".spec.nothing"),
        printed("Wrong", "integer", ".spec.on"),
    ]);
    let object = json!({"metadata": {"name": "x", "creationTimestamp": "2024-01-01T00:59:50Z"}, "spec": {"count": 2.0, "on": true},
        "status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    assert_eq!(json!(cells(&object, now())), json!(["x", "False", 2, true, "10s", null, null]));
    assert_eq!(definitions.len(), 7);
    let (plain, cells) = custom(&[]);
    assert_eq!((plain[1].name.as_str(), json!(cells(&object, now()))), ("Age", json!(["x", "10s"])));
}
