//! Corners of a Sandbox's pass: refusals in the middle, names that point nowhere, references that are already there.

use super::*;

fn refused(error: ApiError) -> Fault {
    Fault::Refuse(error)
}

fn annotation(bench: &Bench, key: &str) -> Option<String> {
    bench.sandbox().annotation(key).map(str::to_owned)
}

/// A Sandbox that runs, and whose Pod is to get another label.
async fn relabelled() -> Bench {
    let mut bench = Bench::new();
    bench.create(minimal());
    bench.settle().await;
    bench.pod_runs(NAME);
    bench.settle().await;
    let labels = json!({ "team": "a" });
    bench.model.edit(Kind::Sandbox, &key(), json!({ "spec": { "podTemplate": { "metadata": { "labels": labels } } } }));
    bench
}

/// A Pod that the API does not find any more is looked for, not given up: clients keep the address if it is there.
#[tokio::test]
async fn a_pod_that_seems_gone_is_looked_for() {
    let mut bench = relabelled().await;
    bench.model.fail(is_patch(Kind::Pod), refused(ApiError::NotFound { message: "gone".into() }));
    bench.pass().await.expect("no error");
    assert_eq!(bench.ready().0, "True");
    assert_eq!(label_of(&bench.pod(), "team").as_deref(), Some("a"), "the patch was sent again");
}

/// A create that finds no namespace is an error that is told, not a reason to look for the Pod.
#[tokio::test]
async fn a_missing_namespace_is_told() {
    let mut bench = Bench::new();
    bench.create(minimal());
    let text = "namespaces \"default\" not found";
    bench.model.fail(is_create(Kind::Pod), refused(ApiError::NotFound { message: text.into() }));
    bench.pass().await.expect_err("refused");
    assert_eq!(bench.ready(), words("False", "ReconcilerError", &format!("Error seen: {text}")));
    assert_eq!(annotation(&bench, POD_NAME), None, "it would name a Pod that does not exist");
}

/// A patch that the API refuses for good is told with what was tried, and tried again.
#[tokio::test]
async fn an_invalid_patch_says_what_was_tried() {
    let mut bench = relabelled().await;
    bench.model.fail(is_patch(Kind::Pod), refused(ApiError::Invalid { message: "no".into() }));
    bench.pass().await.expect_err("tried again");
    assert_eq!(bench.ready(), words("False", "ReconcilerError", "Error seen: failed to patch pod: no"));
}

/// What is to be deleted and is gone needs no further thought.
#[tokio::test]
async fn a_deletion_of_what_is_gone_succeeds() {
    let mut bench = Bench::new();
    bench.create(minimal());
    bench.settle().await;
    bench.model.edit(Kind::Sandbox, &key(), json!({ "spec": { "operatingMode": "Suspended" } }));
    bench.sync();
    bench.model.remove(Kind::Pod, &key());
    bench.reconciler.reconcile(&key()).await.expect("no error");
    assert_eq!(bench.ready().1, "SandboxSuspended");
    assert!(bench.model.take_writes().iter().filter(|request| is_delete(Kind::Pod)(request)).count() <= 1);
}

/// The annotation names a Pod only once it is there, and loses a name that points nowhere.
#[tokio::test]
async fn the_pod_name_follows_what_is_there() {
    for (before, after) in [(None, None), (Some(NAME), Some(NAME)), (Some("nowhere"), None)] {
        let mut bench = Bench::new();
        bench.create(with(json!({ "metadata": { "annotations": { POD_NAME: before } } })));
        bench.model.fail(is_create(Kind::Pod), broken());
        bench.pass().await.expect_err("refused");
        assert_eq!(annotation(&bench, POD_NAME).as_deref(), after, "{before:?}");
        bench.settle().await;
        assert_eq!(annotation(&bench, POD_NAME).as_deref(), Some(NAME));
    }
}

/// A Pod whose adoption was refused is not named.
#[tokio::test]
async fn a_refused_adoption_names_nothing() {
    let mut bench = Bench::new();
    bench.model.create(Kind::Pod, unowned_pod(NAME, json!({ TRACKING: HASH })));
    bench.create(minimal());
    bench.model.fail(is_patch(Kind::Pod), broken());
    bench.pass().await.expect_err("refused");
    assert_eq!(annotation(&bench, POD_NAME), None);
    bench.settle().await;
    assert_eq!(annotation(&bench, POD_NAME).as_deref(), Some(NAME));
}

/// Adoption is never put off, whatever the window for metadata: until then the Pod is nobody's.
#[tokio::test]
async fn adoption_is_not_put_off() {
    let settings = Settings { write_behind: Duration::from_millis(500), ..Settings::default() };
    let mut bench = Bench::with(settings, Tracing::default());
    bench.model.create(Kind::Pod, unowned_pod(NAME, json!({ TRACKING: HASH })));
    bench.create(minimal());
    bench.pass().await.expect("no error");
    assert!(is_owned(&bench.pod().metadata, &bench.sandbox()));
}

/// An adopted Pod keeps the owners it has. A reference to this Sandbox that does not control, or is an earlier one's, is replaced.
#[tokio::test]
async fn adoption_keeps_other_owners_and_one_reference_of_ours() {
    let mut bench = Bench::new();
    let mut pod = unowned_pod(NAME, json!({ TRACKING: HASH }));
    let reference = |version: &str, kind: &str, name: &str| json!({ "apiVersion": version, "kind": kind, "name": name, "uid": format!("old-{name}") });
    pod["metadata"]["ownerReferences"] = json!([
        reference("v1", "ConfigMap", "other"),
        reference("agents.x-k8s.io/v1alpha1", "Sandbox", NAME),
        reference("agents.x-k8s.io/v1beta1", "Sandbox", "another"),
        reference("v1", "ConfigMap", NAME),
    ]);
    bench.model.create(Kind::Pod, pod);
    bench.create(minimal());
    bench.settle().await;
    let owners: Vec<(String, String, String)> = bench
        .pod()
        .metadata
        .owner_references
        .iter()
        .map(|owner| (owner.kind.clone(), owner.name.clone(), owner.uid.clone()))
        .collect();
    let entry = |kind: &str, name: &str, uid: &str| (kind.to_owned(), name.to_owned(), uid.to_owned());
    assert_eq!(
        owners,
        [
            entry("ConfigMap", "other", "old-other"),
            entry("Sandbox", "another", "old-another"),
            entry("ConfigMap", NAME, &format!("old-{NAME}")),
            entry("Sandbox", NAME, bench.sandbox().uid()),
        ]
    );
}

/// A Pod carries records of what the template gave, and nothing where it gave nothing.
#[tokio::test]
async fn a_pod_without_template_metadata_carries_no_annotations() {
    let mut bench = Bench::new();
    bench.create(minimal());
    bench.settle().await;
    assert_eq!(bench.model.get(Kind::Pod, &key()).expect("there")["metadata"].get("annotations"), None);
    let mut bench = Bench::new();
    bench.create(with(json!({ "spec": { "podTemplate": { "metadata": { "labels": { "team": "a" } } } } })));
    bench.settle().await;
    let annotations = bench.model.get(Kind::Pod, &key()).expect("there")["metadata"]["annotations"].clone();
    assert_eq!(annotations, json!({ "agents.x-k8s.io/propagated-labels": "team" }));
}

fn with_port() -> Value {
    with(
        json!({ "spec": { "service": true, "podTemplate": { "spec": { "containers": [{ "name": "main", "image": "i", "ports": [{ "containerPort": 80 }] }] } } } }),
    )
}

/// A Service lists ports only where the Pod has some.
#[tokio::test]
async fn a_service_has_the_pods_ports() {
    for (sandbox, ports) in [(with(json!({ "spec": { "service": true } })), 0), (with_port(), 1)] {
        let mut bench = Bench::new();
        bench.create(sandbox);
        bench.settle().await;
        assert_eq!(bench.service().expect("there").spec.ports.len(), ports);
        let stored = bench.model.get(Kind::Service, &key()).expect("there");
        assert_eq!(stored["spec"].get("ports").is_some(), ports > 0);
    }
}

/// A Service of ours that is not headless cannot be repaired; one whose address is not known yet is fine.
#[tokio::test]
async fn an_owned_service_must_be_headless() {
    for (ip, reason) in
        [("10.0.0.9", "ReconcilerError"), ("", "DependenciesNotReady"), ("None", "DependenciesNotReady")]
    {
        let mut bench = Bench::new();
        bench.create(with_port());
        bench.settle().await;
        bench.model.edit(Kind::Service, &key(), json!({ "spec": { "clusterIP": ip } }));
        let _ = bench.pass().await;
        assert_eq!(bench.ready().1, reason, "{ip}");
    }
}

/// Names of ports stay unique however many are taken.
#[test]
fn a_free_port_name_is_found() {
    let ports = json!([
        { "containerPort": 1, "name": "p-80-tcp" }, { "containerPort": 2, "name": "p-80-tcp-2" },
        { "containerPort": 3, "name": "p-80-tcp-3" }, { "containerPort": 80 },
    ]);
    let found = service::service_ports(&json!({ "containers": [{ "ports": ports }] }));
    let names: Vec<&str> = found.iter().map(|port| port.name.as_str()).collect();
    assert_eq!(names, ["p-80-tcp", "p-80-tcp-2", "p-80-tcp-3", "p-80-tcp-4"]);
}

/// A Service or PVC that exists but cannot be read is told as such; the rest of the Sandbox goes on.
#[tokio::test]
async fn what_cannot_be_read_is_told() {
    let volume = json!({ "spec": { "volumeClaimTemplates": [{ "metadata": { "name": "data" }, "spec": {} }] } });
    for (sandbox, kind, text) in [
        (with_port(), Kind::Service, "service get failed: the API server did not answer properly"),
        (with(volume), Kind::Pvc, "failed to get PVC: the API server did not answer properly"),
    ] {
        let mut bench = Bench::new();
        bench.create(sandbox);
        bench.model.fail(is_create(kind), refused(ApiError::AlreadyExists { message: "exists".into() }));
        bench.model.fail_read(ApiError::Unknown { message: "connection refused".into() });
        bench.pass().await.expect_err("could not be read");
        assert_eq!(bench.ready(), words("False", "ReconcilerError", &format!("Error seen: {text}")));
    }
}
