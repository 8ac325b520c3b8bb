//! Edge cases of a Sandbox's pass: rejected writes, annotations that name missing Pods, existing owner references.

use super::*;

fn refused(error: ApiError) -> Fault {
    Fault::Refuse(error)
}

fn annotation(fixture: &SandboxFixture, key: &str) -> Option<String> {
    fixture.sandbox().annotation(key).map(str::to_owned)
}

/// A Sandbox that runs, and whose Pod is to get another label.
async fn relabelled() -> SandboxFixture {
    let mut fixture = SandboxFixture::new();
    fixture.create(minimal());
    fixture.converge().await;
    fixture.pod_runs(NAME);
    fixture.converge().await;
    let labels = json!({ "team": "a" });
    fixture.api.edit(Kind::Sandbox, &key(), json!({ "spec": { "podTemplate": { "metadata": { "labels": labels } } } }));
    fixture
}

/// A Pod that the API reports as missing is read live before it is given up: if it exists, clients keep the address.
#[tokio::test]
async fn a_pod_that_seems_gone_is_read_live() {
    let mut fixture = relabelled().await;
    fixture.api.fail(is_patch(Kind::Pod), refused(ApiError::NotFound { message: "gone".into() }));
    fixture.pass().await.expect("no error");
    assert_eq!(fixture.ready().0, "True");
    assert_eq!(label_of(&fixture.pod(), "team").as_deref(), Some("a"), "the patch was sent again");
}

/// A create in a missing namespace is reported as an error; the Pod is not read.
#[tokio::test]
async fn a_missing_namespace_is_reported() {
    let mut fixture = SandboxFixture::new();
    fixture.create(minimal());
    let text = "namespaces \"default\" not found";
    fixture.api.fail(is_create(Kind::Pod), refused(ApiError::NotFound { message: text.into() }));
    fixture.pass().await.expect_err("refused");
    assert_eq!(fixture.ready(), words("False", "ReconcilerError", &format!("Error seen: {text}")));
    assert_eq!(annotation(&fixture, POD_NAME), None, "it would name a Pod that does not exist");
}

/// A patch that the API rejects as invalid is reported with its purpose, and retried.
#[tokio::test]
async fn an_invalid_patch_is_reported_with_its_purpose() {
    let mut fixture = relabelled().await;
    fixture.api.fail(is_patch(Kind::Pod), refused(ApiError::Invalid { message: "no".into() }));
    fixture.pass().await.expect_err("tried again");
    assert_eq!(fixture.ready(), words("False", "ReconcilerError", "Error seen: failed to patch pod: no"));
}

/// Deleting a missing object succeeds.
#[tokio::test]
async fn a_deletion_of_what_is_gone_succeeds() {
    let mut fixture = SandboxFixture::new();
    fixture.create(minimal());
    fixture.converge().await;
    fixture.api.edit(Kind::Sandbox, &key(), json!({ "spec": { "operatingMode": "Suspended" } }));
    fixture.sync();
    fixture.api.remove(Kind::Pod, &key());
    fixture.reconciler.reconcile(&key()).await.expect("no error");
    assert_eq!(fixture.ready().1, "SandboxSuspended");
    assert!(fixture.api.take_writes().iter().filter(|request| is_delete(Kind::Pod)(request)).count() <= 1);
}

/// The annotation names a Pod only once it exists; a name without a Pod is removed.
#[tokio::test]
async fn the_pod_name_follows_what_is_there() {
    for (before, after) in [(None, None), (Some(NAME), Some(NAME)), (Some("nowhere"), None)] {
        let mut fixture = SandboxFixture::new();
        fixture.create(with(json!({ "metadata": { "annotations": { POD_NAME: before } } })));
        fixture.api.fail(is_create(Kind::Pod), broken());
        fixture.pass().await.expect_err("refused");
        assert_eq!(annotation(&fixture, POD_NAME).as_deref(), after, "{before:?}");
        fixture.converge().await;
        assert_eq!(annotation(&fixture, POD_NAME).as_deref(), Some(NAME));
    }
}

/// A Pod whose adoption was refused is not named.
#[tokio::test]
async fn a_refused_adoption_names_nothing() {
    let mut fixture = SandboxFixture::new();
    fixture.api.create(Kind::Pod, unowned_pod(NAME, json!({ TRACKING: HASH })));
    fixture.create(minimal());
    fixture.api.fail(is_patch(Kind::Pod), broken());
    fixture.pass().await.expect_err("refused");
    assert_eq!(annotation(&fixture, POD_NAME), None);
    fixture.converge().await;
    assert_eq!(annotation(&fixture, POD_NAME).as_deref(), Some(NAME));
}

/// Adoption is never postponed, whatever the write-behind window: until then the Pod has no owner.
#[tokio::test]
async fn adoption_is_not_postponed() {
    let settings = Settings { write_behind: Duration::from_millis(500), ..Settings::default() };
    let mut fixture = SandboxFixture::with(settings, Tracing::default());
    fixture.api.create(Kind::Pod, unowned_pod(NAME, json!({ TRACKING: HASH })));
    fixture.create(minimal());
    fixture.pass().await.expect("no error");
    assert!(is_owned(&fixture.pod().metadata, &fixture.sandbox()));
}

/// An adopted Pod keeps the owners it has. A reference to this Sandbox that does not control, or is an earlier one's,
/// is replaced.
#[tokio::test]
async fn adoption_keeps_other_owners_and_one_reference_of_ours() {
    let mut fixture = SandboxFixture::new();
    let mut pod = unowned_pod(NAME, json!({ TRACKING: HASH }));
    let reference = |version: &str, kind: &str, name: &str| json!({ "apiVersion": version, "kind": kind, "name": name, "uid": format!("old-{name}") });
    pod["metadata"]["ownerReferences"] = json!([
        reference("v1", "ConfigMap", "other"),
        reference("agents.x-k8s.io/v1alpha1", "Sandbox", NAME),
        reference("agents.x-k8s.io/v1beta1", "Sandbox", "another"),
        reference("v1", "ConfigMap", NAME),
    ]);
    fixture.api.create(Kind::Pod, pod);
    fixture.create(minimal());
    fixture.converge().await;
    let owners: Vec<(String, String, String)> = fixture
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
            entry("Sandbox", NAME, fixture.sandbox().uid()),
        ]
    );
}

/// A Pod carries records of what the template gave, and nothing where it gave nothing.
#[tokio::test]
async fn a_pod_without_template_metadata_carries_no_annotations() {
    let mut fixture = SandboxFixture::new();
    fixture.create(minimal());
    fixture.converge().await;
    assert_eq!(fixture.api.get(Kind::Pod, &key()).expect("there")["metadata"].get("annotations"), None);
    let mut fixture = SandboxFixture::new();
    fixture.create(with(json!({ "spec": { "podTemplate": { "metadata": { "labels": { "team": "a" } } } } })));
    fixture.converge().await;
    let annotations = fixture.api.get(Kind::Pod, &key()).expect("there")["metadata"]["annotations"].clone();
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
        let mut fixture = SandboxFixture::new();
        fixture.create(sandbox);
        fixture.converge().await;
        assert_eq!(fixture.service().expect("there").spec.ports.len(), ports);
        let stored = fixture.api.get(Kind::Service, &key()).expect("there");
        assert_eq!(stored["spec"].get("ports").is_some(), ports > 0);
    }
}

/// A Service of ours that is not headless cannot be repaired; one whose address is not known yet is fine.
#[tokio::test]
async fn an_owned_service_must_be_headless() {
    for (ip, reason) in
        [("10.0.0.9", "ReconcilerError"), ("", "DependenciesNotReady"), ("None", "DependenciesNotReady")]
    {
        let mut fixture = SandboxFixture::new();
        fixture.create(with_port());
        fixture.converge().await;
        fixture.api.edit(Kind::Service, &key(), json!({ "spec": { "clusterIP": ip } }));
        let _ = fixture.pass().await;
        assert_eq!(fixture.ready().1, reason, "{ip}");
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

/// A Service or PVC that exists but cannot be read is reported; the rest of the Sandbox is reconciled.
#[tokio::test]
async fn unreadable_children_are_reported() {
    let volume = json!({ "spec": { "volumeClaimTemplates": [{ "metadata": { "name": "data" }, "spec": {} }] } });
    for (sandbox, kind, text) in [
        (with_port(), Kind::Service, "service get failed: the API server did not answer properly"),
        (with(volume), Kind::Pvc, "failed to get PVC: the API server did not answer properly"),
    ] {
        let mut fixture = SandboxFixture::new();
        fixture.create(sandbox);
        fixture.api.fail(is_create(kind), refused(ApiError::AlreadyExists { message: "exists".into() }));
        fixture.api.fail_read(ApiError::Unknown { message: "connection refused".into() });
        fixture.pass().await.expect_err("could not be read");
        assert_eq!(fixture.ready(), words("False", "ReconcilerError", &format!("Error seen: {text}")));
    }
}
