//! PVCs and Services: created, adopted, repaired, refused.

use super::*;

fn with_volume() -> Value {
    with(json!({ "spec": { "volumeClaimTemplates": [{
        "metadata": { "name": "data", "labels": { "tier": "gold", TRACKING: "forged", "agents.x-k8s.io/adoptable": "true" }, "annotations": { "note": "n" } },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1024Mi" } } },
    }] } }))
}

/// S-032, S-170, S-171, S-177: a missing PVC is created from its template; an owned one is left unchanged.
#[tokio::test]
async fn s_032_s_170_s_171_s_177_a_volume_is_made() {
    let mut fixture = SandboxFixture::new();
    fixture.create(with_volume());
    fixture.converge().await;
    let pvc = fixture.pvc("data-my-sandbox").expect("made");
    assert!(is_owned(&pvc.metadata, &fixture.sandbox()));
    assert_eq!((Cached::label(&pvc, "tier"), Cached::label(&pvc, TRACKING)), (Some("gold"), Some(HASH)));
    assert_eq!(Cached::label(&pvc, "agents.x-k8s.io/adoptable"), None, "reserved keys are not for users");
    assert_eq!(Cached::annotation(&pvc, "note"), Some("n"));
    let stored = fixture.api.get(Kind::Pvc, &key().sibling("data-my-sandbox")).expect("there");
    assert_eq!(stored["spec"]["resources"]["requests"]["storage"], "1024Mi", "word for word");
    let volumes = fixture.api.get(Kind::Pod, &key()).expect("there")["spec"]["volumes"].clone();
    assert_eq!(volumes, json!([{ "name": "data", "persistentVolumeClaim": { "claimName": "data-my-sandbox" } }]));
    fixture.api.edit(
        Kind::Pvc,
        &key().sibling("data-my-sandbox"),
        json!({ "metadata": { "labels": { "tier": "silver" } } }),
    );
    fixture.pass().await.expect("passes");
    assert_eq!(fixture.pvc("data-my-sandbox").expect("there").metadata.labels.get("tier"), Some("silver"));
}

/// S-172, S-175: a foreign volume is refused, left unchanged, and not mounted.
#[tokio::test]
async fn s_172_s_175_a_volume_in_the_way() {
    let foreign = "Error seen: PVC \"data-my-sandbox\" is owned by ReplicaSet/other (UID: other-uid), not by sandbox \"my-sandbox\"";
    let unowned = "Error seen: cannot adopt unowned PVC \"data-my-sandbox\": missing required pool authorization label (\"agents.x-k8s.io/adoptable\") or sandbox tracking label (\"agents.x-k8s.io/sandbox-name-hash\")";
    for (owners, message) in [(foreign_owner(), foreign), (json!([]), unowned)] {
        let mut fixture = SandboxFixture::new();
        fixture.api.create(
            Kind::Pvc,
            json!({ "metadata": { "name": "data-my-sandbox", "ownerReferences": owners }, "spec": {} }),
        );
        fixture.create(with(json!({ "spec": { "service": true, "volumeClaimTemplates": [{ "metadata": { "name": "data" }, "spec": {} }] } })));
        fixture.pass().await.expect_err("refused");
        assert_eq!(fixture.ready(), words("False", "ReconcilerError", message));
        assert_eq!(fixture.count(Kind::Pod), 0, "no Pod mounts foreign data");
        assert!(fixture.service().is_some(), "the Service does not depend on it");
        assert_eq!(&*fixture.pvc("data-my-sandbox").expect("there").metadata.resource_version, "1", "untouched");
        // The Sandbox recovers when the foreign volume is deleted.
        fixture.api.remove(Kind::Pvc, &key().sibling("data-my-sandbox"));
        fixture.converge().await;
        assert_eq!(fixture.count(Kind::Pod), 1);
    }
}

/// S-173, S-174: volumes with the adoption or tracking label are adopted.
#[tokio::test]
async fn s_173_s_174_a_volume_is_adopted() {
    for labels in [json!({ "agents.x-k8s.io/adoptable": "true" }), json!({ TRACKING: HASH })] {
        let mut fixture = SandboxFixture::new();
        fixture.api.create(
            Kind::Pvc,
            json!({ "metadata": { "name": "data-my-sandbox", "labels": labels.clone() }, "spec": {} }),
        );
        fixture.create(with_volume());
        fixture.converge().await;
        let pvc = fixture.pvc("data-my-sandbox").expect("there");
        assert!(is_owned(&pvc.metadata, &fixture.sandbox()));
        assert_eq!(json!(pvc.metadata.labels), labels, "only the owner reference is added");
        assert_eq!(fixture.count(Kind::Pod), 1);
    }
}

/// The first refusal stops the list; earlier ones are made.
#[tokio::test]
async fn volumes_are_made_in_order() {
    let mut fixture = SandboxFixture::new();
    fixture.api.create(Kind::Pvc, json!({ "metadata": { "name": "b-my-sandbox" }, "spec": {} }));
    let templates: Vec<Value> =
        ["a", "b", "c"].iter().map(|name| json!({ "metadata": { "name": name }, "spec": {} })).collect();
    fixture.create(with(json!({ "spec": { "volumeClaimTemplates": templates } })));
    fixture.pass().await.expect_err("refused");
    assert!(fixture.pvc("a-my-sandbox").is_some());
    assert!(fixture.pvc("c-my-sandbox").is_none());
}

/// S-176: claim volumes come last and win over a volume of the same name.
#[tokio::test]
async fn s_176_volumes_are_merged() {
    let mut fixture = SandboxFixture::new();
    let mut sandbox = with_volume();
    sandbox["spec"]["podTemplate"]["spec"]["volumes"] = json!([{ "name": "data", "emptyDir": {} }, { "name": "first", "emptyDir": {} }, { "name": "second", "emptyDir": {} }]);
    fixture.create(sandbox);
    fixture.converge().await;
    let volumes = fixture.api.get(Kind::Pod, &key()).expect("there")["spec"]["volumes"].clone();
    let names: Vec<_> = volumes.as_array().expect("a list").iter().map(|volume| volume["name"].clone()).collect();
    assert_eq!(names, ["first", "second", "data"]);
    assert!(volumes[2]["persistentVolumeClaim"].is_object());

    let mut plain = SandboxFixture::new();
    plain.create(with(
        json!({ "spec": { "podTemplate": { "spec": { "volumes": [{ "name": "only", "emptyDir": {} }] } } } }),
    ));
    plain.converge().await;
    assert_eq!(
        plain.api.get(Kind::Pod, &key()).expect("there")["spec"]["volumes"],
        json!([{ "name": "only", "emptyDir": {} }])
    );
}

fn ports_of(containers: Value, init: Value) -> Vec<(String, String, i32)> {
    service_ports(&json!({ "containers": containers, "initContainers": init }))
        .into_iter()
        .map(|port| {
            assert_eq!(port.target_port, json!(port.port));
            (port.name, port.protocol, port.port)
        })
        .collect()
}

fn port(name: &str, protocol: &str, port: i32) -> (String, String, i32) {
    (name.to_owned(), protocol.to_owned(), port)
}

/// S-140, S-141, S-142, S-143, S-144, S-145: which ports the Service gets, and what they are called.
#[test]
fn s_140_to_s_145_service_ports() {
    assert_eq!(ports_of(json!([{ "name": "c" }]), json!([])), []);
    assert_eq!(
        ports_of(json!([{ "ports": [{ "containerPort": 8080 }] }]), json!([])),
        [port("p-8080-tcp", "TCP", 8080)]
    );
    let init = json!([
        { "ports": [{ "containerPort": 1 }] },
        { "restartPolicy": "Always", "ports": [{ "containerPort": 15020, "name": "metrics" }] },
    ]);
    assert_eq!(ports_of(json!([]), init), [port("metrics", "TCP", 15020)]);
    let mixed = json!([{ "ports": [
        { "containerPort": 9090, "protocol": "UDP" }, { "containerPort": 8080 }, { "containerPort": 8080, "name": "http" },
        { "containerPort": 9090 }, { "containerPort": 0 },
    ] }]);
    assert_eq!(
        ports_of(mixed, json!([])),
        [port("http", "TCP", 8080), port("p-9090-tcp", "TCP", 9090), port("p-9090-udp", "UDP", 9090)]
    );
    let taken = json!([{ "ports": [{ "containerPort": 9090, "name": "http" }] }, { "ports": [{ "containerPort": 8080, "name": "http" }] }]);
    assert_eq!(ports_of(taken, json!([])), [port("p-8080-tcp", "TCP", 8080), port("http", "TCP", 9090)]);
    let clash = json!([{ "ports": [{ "containerPort": 9090, "name": "p-8080-tcp" }, { "containerPort": 8080 }] }]);
    assert_eq!(ports_of(clash, json!([])), [port("p-8080-tcp-2", "TCP", 8080), port("p-8080-tcp", "TCP", 9090)]);
}

/// A Sandbox with one container port and the given `service` field.
fn serving(service: Value) -> Value {
    with(
        json!({ "spec": { "service": service, "podTemplate": { "spec": { "containers": [{ "name": "main", "image": "i", "ports": [{ "containerPort": 80, "name": "web" }] }] } } } }),
    )
}

fn existing(fixture: &SandboxFixture, owned: bool, change: Value) {
    let mut service = json!({
        "metadata": { "name": NAME, "labels": { "mine": "kept" } },
        "spec": { "clusterIP": "None", "selector": { "app": "old" }, "ports": [{ "name": "old", "protocol": "TCP", "port": 1, "targetPort": 1 }] },
    });
    if owned {
        service["metadata"]["ownerReferences"] = json!([fixture.sandbox().controller_reference()]);
    }
    crate::testing::fake_api::merge(&mut service, &change);
    fixture.api.create(Kind::Service, service);
}

/// S-140, S-146, S-147, S-148: an owned Service is repaired, ports included, when it is asked for.
#[tokio::test]
async fn s_146_to_s_148_an_owned_service_is_repaired() {
    let mut fixture = SandboxFixture::new();
    fixture.create(serving(json!(true)));
    existing(&fixture, true, json!({}));
    fixture.converge().await;
    let service = fixture.service().expect("there");
    assert_eq!(service.spec.selector, [(TRACKING.to_owned(), HASH.to_owned())].into());
    assert_eq!((Cached::label(&service, TRACKING), Cached::label(&service, "mine")), (Some(HASH), Some("kept")));
    assert_eq!(
        (service.spec.ports.len(), service.spec.ports[0].name.as_str(), service.spec.ports[0].port),
        (1, "web", 80)
    );
    assert_eq!(fixture.status().service.as_deref(), Some(NAME));

    let mut bare = SandboxFixture::new();
    bare.create(with(json!({ "spec": { "service": true } })));
    existing(&bare, true, json!({}));
    bare.converge().await;
    assert!(bare.service().expect("there").spec.ports.is_empty());
}

/// S-149: ports that are equal in the compared fields are not changed.
#[tokio::test]
async fn s_149_extra_port_fields_stay() {
    let mut fixture = SandboxFixture::new();
    fixture.create(serving(json!(true)));
    let ports = json!([{ "name": "web", "protocol": "TCP", "port": 80, "targetPort": 80, "appProtocol": "h2c" }]);
    existing(
        &fixture,
        true,
        json!({ "metadata": { "labels": { TRACKING: HASH } }, "spec": { "selector": { "app": null, TRACKING: HASH }, "ports": ports.clone() } }),
    );
    fixture.pass().await.expect("passes");
    assert!(!fixture.api.writes().iter().any(|request| request.kind == Kind::Service));
    assert_eq!(fixture.api.get(Kind::Service, &key()).expect("there")["spec"]["ports"], ports);
}

/// S-150: a foreign Service is an error, also when none is asked for.
#[tokio::test]
async fn s_150_a_foreign_service() {
    for wish in [json!(true), Value::Null] {
        let mut fixture = SandboxFixture::new();
        fixture.create(serving(wish));
        existing(&fixture, false, json!({ "metadata": { "ownerReferences": foreign_owner() } }));
        fixture.pass().await.expect_err("refused");
        let text = "Error seen: service \"my-sandbox\" is owned by ReplicaSet/other (UID: other-uid), not by sandbox \"my-sandbox\"";
        assert_eq!(fixture.ready(), words("False", "ReconcilerError", text));
        assert_eq!(fixture.status().service, None);
    }
}

/// S-151, S-152, S-154, S-155: a Service with the adoption or tracking label is adopted.
#[tokio::test]
async fn s_151_s_152_s_154_s_155_a_service_is_adopted() {
    for labels in [json!({ "agents.x-k8s.io/adoptable": "true" }), json!({ TRACKING: HASH })] {
        for (sandbox, ports) in [(serving(json!(true)), 1), (with(json!({ "spec": { "service": true } })), 0)] {
            let mut fixture = SandboxFixture::new();
            fixture.create(sandbox);
            existing(&fixture, false, json!({ "metadata": { "labels": labels } }));
            fixture.converge().await;
            let service = fixture.service().expect("there");
            assert!(is_owned(&service.metadata, &fixture.sandbox()));
            assert_eq!(Cached::label(&service, TRACKING), Some(HASH));
            assert_eq!(service.spec.selector, [(TRACKING.to_owned(), HASH.to_owned())].into());
            assert_eq!(service.spec.ports.len(), ports);
        }
    }
}

/// S-153: one with an address of its own cannot become headless.
#[tokio::test]
async fn s_153_a_service_with_a_cluster_ip_is_refused() {
    for (spec, ip) in [
        (json!({ "clusterIP": "10.96.0.100" }), "10.96.0.100"),
        (json!({ "clusterIP": "", "type": "ExternalName" }), ""),
    ] {
        let mut fixture = SandboxFixture::new();
        fixture.create(serving(json!(true)));
        existing(
            &fixture,
            false,
            json!({ "metadata": { "labels": { "agents.x-k8s.io/adoptable": "true" } }, "spec": spec }),
        );
        fixture.pass().await.expect_err("refused");
        let text = format!(
            "Error seen: cannot adopt service \"my-sandbox\": ClusterIP is \"{ip}\" (expected \"None\", field is immutable)"
        );
        assert_eq!(fixture.ready(), words("False", "ReconcilerError", &text));
        assert!(fixture.service().expect("there").metadata.owner_references.is_empty());
    }
}

/// S-156: neither the adoption nor the tracking label.
#[tokio::test]
async fn s_156_an_unrelated_service_is_refused() {
    let mut fixture = SandboxFixture::new();
    fixture.create(serving(json!(true)));
    existing(&fixture, false, json!({}));
    fixture.pass().await.expect_err("refused");
    assert!(
        fixture.ready().2.starts_with("Error seen: cannot adopt unowned service \"my-sandbox\": missing required pool")
    );
    assert_eq!(&*fixture.service().expect("there").metadata.resource_version, "2", "untouched");
}

/// S-157, S-159: not requested: none is created, and one without an owner is ignored.
#[tokio::test]
async fn s_157_s_159_not_asked_for() {
    for present in [false, true] {
        let mut fixture = SandboxFixture::new();
        fixture.create(serving(Value::Null));
        if present {
            existing(&fixture, false, json!({ "metadata": { "labels": { TRACKING: HASH } } }));
        }
        fixture.converge().await;
        assert_eq!(fixture.count(Kind::Service), usize::from(present));
        assert_eq!((fixture.status().service, fixture.status().service_fqdn), (None, None));
        assert_eq!(fixture.ready().2, "Pod exists with phase: Pending");
    }
}

/// S-158: not requested, but owned: kept, its ports unchanged.
#[tokio::test]
async fn s_158_an_owned_service_is_kept_without_being_asked_for() {
    let mut fixture = SandboxFixture::new();
    fixture.create(serving(Value::Null));
    existing(&fixture, true, json!({}));
    fixture.converge().await;
    let service = fixture.service().expect("kept");
    assert_eq!((service.spec.ports.len(), service.spec.ports[0].port), (1, 1));
    assert_eq!(service.spec.selector, [(TRACKING.to_owned(), HASH.to_owned())].into());
    assert_eq!(fixture.status().service.as_deref(), Some(NAME));
}

/// S-160, S-161: turned off by the user: an owned Service is deleted, others stay.
#[tokio::test]
async fn s_160_s_161_no_service() {
    for owned in [true, false] {
        let mut fixture = SandboxFixture::new();
        fixture.create(serving(json!(false)));
        existing(&fixture, owned, json!({}));
        fixture.converge().await;
        assert_eq!(fixture.service().is_none(), owned);
        assert_eq!(fixture.status().service, None);
    }
}

/// A volume of an existing claim that is added to a running Sandbox waits for the next resume, and a condition says so
/// until then. Claim templates stay immutable, which the schema enforces.
#[tokio::test]
async fn an_added_volume_is_attached_at_the_next_resume() {
    let volumes = |names: &[&str]| -> Value {
        names.iter().map(|name| json!({ "name": name, "persistentVolumeClaim": { "claimName": name } })).collect()
    };
    let edit = |fixture: &SandboxFixture, spec: Value| fixture.api.edit(Kind::Sandbox, &key(), json!({ "spec": spec }));
    let mut fixture = SandboxFixture::new();
    fixture.create(with(json!({ "spec": { "podTemplate": { "spec": { "volumes": volumes(&["old"]) } } } })));
    fixture.converge().await;
    fixture.pod_runs(NAME);
    fixture.converge().await;
    assert_eq!(fixture.condition(ConditionType::VolumesPending), None, "what the Pod has is not pending");
    let uid = fixture.pod().metadata.uid;

    edit(&fixture, json!({ "podTemplate": { "spec": { "volumes": volumes(&["old", "new"]) } } }));
    fixture.converge().await;
    let text = "A running Pod keeps its volumes. Attached when the Sandbox is resumed: new";
    assert_eq!(
        fixture.condition(ConditionType::VolumesPending),
        Some(words("True", "AttachedAtResume", text)),
        "the running Pod keeps its volumes"
    );
    assert_eq!(fixture.pod().metadata.uid, uid);
    assert_eq!(fixture.ready().0, "True");

    edit(&fixture, json!({ "operatingMode": "Suspended" }));
    fixture.converge().await;
    assert_eq!(fixture.condition(ConditionType::VolumesPending), None);
    edit(&fixture, json!({ "operatingMode": "Running" }));
    fixture.converge().await;
    assert_eq!(fixture.condition(ConditionType::VolumesPending), None);
    let mounted = fixture.api.get(Kind::Pod, &key()).expect("there")["spec"]["volumes"].clone();
    assert_eq!(mounted, volumes(&["old", "new"]));
}

/// The same for a volume that is removed from a running Sandbox, and for one that another one replaces. A volume of a
/// claim template stays.
#[tokio::test]
async fn a_removed_volume_is_detached_at_the_next_resume() {
    let volume = |name: &str| json!({ "name": name, "persistentVolumeClaim": { "claimName": name } });
    let edit = |fixture: &SandboxFixture, volumes: Value| {
        let spec = json!({ "podTemplate": { "spec": { "volumes": volumes } } });
        fixture.api.edit(Kind::Sandbox, &key(), json!({ "spec": spec }));
    };
    let mut fixture = SandboxFixture::new();
    fixture.create(with(json!({ "spec": {
        "podTemplate": { "spec": { "volumes": [volume("a"), volume("b")] } },
        "volumeClaimTemplates": [{ "metadata": { "name": "own" }, "spec": { "accessModes": ["ReadWriteOnce"] } }],
    } })));
    fixture.converge().await;
    fixture.pod_runs(NAME);
    fixture.converge().await;
    assert_eq!(fixture.condition(ConditionType::VolumesPending), None);
    let keeps = |text: &str| format!("A running Pod keeps its volumes. {text}");
    for (volumes, reason, text) in [
        (json!([volume("a")]), "DetachedAtResume", "Detached when the Sandbox is resumed: b"),
        (json!([volume("c"), volume("b")]), "ChangedAtResume", "When the Sandbox is resumed, attached: c; detached: a"),
        (Value::Null, "DetachedAtResume", "Detached when the Sandbox is resumed: a, b"),
    ] {
        edit(&fixture, volumes);
        fixture.converge().await;
        assert_eq!(fixture.condition(ConditionType::VolumesPending), Some(words("True", reason, &keeps(text))));
    }
    fixture.api.edit(Kind::Sandbox, &key(), json!({ "spec": { "operatingMode": "Suspended" } }));
    fixture.converge().await;
    fixture.api.edit(Kind::Sandbox, &key(), json!({ "spec": { "operatingMode": "Running" } }));
    fixture.converge().await;
    assert_eq!(fixture.condition(ConditionType::VolumesPending), None);
    let mounted = fixture.api.get(Kind::Pod, &key()).expect("there")["spec"]["volumes"].clone();
    assert_eq!(
        mounted.as_array().map(|volumes| volumes.iter().map(|one| one["name"].clone()).collect()),
        Some(vec![json!("own")])
    );
}
