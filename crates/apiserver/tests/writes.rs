//! Creates, updates and patches: what is refused, and with which message.

mod raw;

use raw::{APPLY, Api, CONFIGS, CRDS, MERGE, PODS, STRATEGIC, config, crd, pod};
use serde_json::json;
use std::sync::Arc;

const THINGS: &str = "/apis/example.com/v1/namespaces/default/things";

async fn with_things() -> Api {
    let api = Api::new().await;
    let spec = json!({"type": "object", "required": ["size"], "properties": {
        "size": {"type": "integer", "minimum": 1}, "replicas": {"type": "integer", "default": 1},
        "list": {"type": "array", "items": {"type": "string"}}},
        "x-kubernetes-validations": [{"rule": "has(self.list) == has(oldSelf.list)", "message": "list is immutable"}]});
    let made = api.post(CRDS, &crd("things", "Thing", spec)).await.ok();
    assert_eq!(made["status"]["conditions"][1]["type"], "Established");
    assert_eq!(made["spec"]["names"]["listKind"], "ThingList");
    api
}

#[tokio::test]
async fn a_bad_pod_is_refused_with_every_cause() {
    let api = Api::new().await;
    let bad = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "Bad_Name"}, "spec": {"restartPolicy": "Maybe", "containers": [
        {"name": "c"}, {"name": "c", "image": "x", "volumeMounts": [{"name": "nope", "mountPath": "/m"}], "ports": [{"containerPort": 70000}]}]}});
    let response = api.post(PODS, &bad).await;
    let causes: Vec<(String, String)> = response.body["details"]["causes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| (c["field"].as_str().unwrap().to_owned(), c["reason"].as_str().unwrap().to_owned()))
        .collect();
    let fields: Vec<&str> = causes.iter().map(|(f, _)| f.as_str()).collect();
    assert_eq!(
        fields,
        [
            "metadata.name",
            "spec.containers[0].image",
            "spec.containers[1].ports[0].containerPort",
            "spec.containers[1].volumeMounts[0].name",
            "spec.containers[1].name",
            "spec.restartPolicy"
        ]
    );
    let message = response.failed(422, "Invalid");
    assert!(
        message.starts_with(
            "Pod \"Bad_Name\" is invalid: [metadata.name: Invalid value: \"Bad_Name\": a lowercase RFC 1123 subdomain"
        ),
        "{message}"
    );
    api.get(&format!("{PODS}/Bad_Name")).await.failed(404, "NotFound");
}

#[tokio::test]
async fn pods_get_their_defaults_and_keep_their_spec() {
    let api = Api::new().await;
    let made = api.post(PODS, &pod("p")).await.ok();
    assert_eq!(made["spec"]["restartPolicy"], "Always");
    assert_eq!(made["spec"]["terminationGracePeriodSeconds"], 30);
    assert_eq!(made["spec"]["serviceAccountName"], "default");
    assert_eq!(made["spec"]["containers"][0]["imagePullPolicy"], "IfNotPresent");
    assert_eq!(made["status"], json!({"phase": "Pending", "qosClass": "BestEffort"}));
    let image = json!({"spec": {"containers": [{"name": "c", "image": "busybox:2"}]}});
    let changed = api.patch(&format!("{PODS}/p"), STRATEGIC, &image).await.ok();
    assert_eq!(changed["spec"]["containers"][0]["image"], "busybox:2");
    assert_eq!(changed["metadata"]["generation"], 2);
    let message =
        api.patch(&format!("{PODS}/p"), MERGE, &json!({"spec": {"hostNetwork": true}})).await.failed(422, "Invalid");
    assert!(
        message.starts_with("Pod \"p\" is invalid: spec: Forbidden: pod updates may not change fields other than"),
        "{message}"
    );
    let uid = api
        .patch(
            &format!("{PODS}/p/status"),
            MERGE,
            &json!({"metadata": {"uid": "other"}, "status": {"phase": "Running"}}),
        )
        .await
        .failed(422, "Invalid");
    assert!(uid.contains("metadata.uid: Invalid value: \"other\": field is immutable"), "{uid}");
}

#[tokio::test]
async fn custom_resources_are_defaulted_validated_and_versioned() {
    let api = with_things().await;
    let made =
        api.post(THINGS, &json!({"metadata": {"name": "t"}, "spec": {"size": 1}, "status": {"x": 1}})).await.ok();
    assert_eq!(made["spec"], json!({"size": 1, "replicas": 1}));
    assert!(made.get("status").is_none(), "a create does not set a separate status");
    assert_eq!(made["metadata"]["generation"], 1);
    let path = format!("{THINGS}/t");
    let status =
        api.patch(&format!("{path}/status"), MERGE, &json!({"spec": {"size": 9}, "status": {"ok": true}})).await.ok();
    assert_eq!(
        (&status["spec"]["size"], &status["status"], &status["metadata"]["generation"]),
        (&json!(1), &json!({"ok": true}), &json!(1))
    );
    let spec = api.patch(&path, MERGE, &json!({"spec": {"size": 2}, "status": {"ok": false}})).await.ok();
    assert_eq!((&spec["status"]["ok"], &spec["metadata"]["generation"]), (&json!(true), &json!(2)));
    let same = api.patch(&path, MERGE, &json!({"spec": {"size": 2}})).await.ok();
    assert_eq!(
        same["metadata"]["resourceVersion"], spec["metadata"]["resourceVersion"],
        "nothing changed, nothing written"
    );
    let message = api.patch(&path, MERGE, &json!({"spec": {"list": []}})).await.failed(422, "Invalid");
    assert_eq!(message, "Thing.example.com \"t\" is invalid: spec: Invalid value: list is immutable");
    let message =
        api.post(THINGS, &json!({"metadata": {"name": "u"}, "spec": {"size": 0}})).await.failed(422, "Invalid");
    assert_eq!(
        message,
        "Thing.example.com \"u\" is invalid: spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1"
    );
    let message = api.put(&path, &json!({"metadata": {"name": "t"}, "spec": {"size": 1}})).await.failed(422, "Invalid");
    assert_eq!(
        message,
        "Thing.example.com \"t\" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update"
    );
}

#[tokio::test]
async fn unknown_fields_are_refused_warned_about_or_dropped_d_226() {
    let api = with_things().await;
    let thing = |name: &str| json!({"metadata": {"name": name}, "spec": {"size": 1, "colour": "red"}});
    let message = api.post(&format!("{THINGS}?fieldValidation=Strict"), &thing("a")).await.failed(400, "BadRequest");
    assert_eq!(
        message,
        "Thing in version \"v1\" cannot be handled as a Thing: strict decoding error: unknown field \"spec.colour\""
    );
    let warned = api.post(&format!("{THINGS}?fieldValidation=Warn"), &thing("b")).await;
    assert_eq!(warned.warnings, ["299 - \"unknown field \\\"spec.colour\\\"\""]);
    assert!(warned.ok()["spec"].get("colour").is_none());
    let ignored = api.post(&format!("{THINGS}?fieldValidation=Ignore"), &thing("c")).await;
    assert_eq!(ignored.warnings, [""; 0]);
    let twice = r#"{"metadata": {"name": "d"}, "spec": {"size": 1, "size": 2}}"#;
    let strict = api.send("POST", &format!("{THINGS}?fieldValidation=Strict"), "application/json", twice).await;
    assert!(strict.failed(400, "BadRequest").ends_with("strict decoding error: duplicate field \"spec.size\""));
    let mut p = pod("x");
    p["spec"]["container"] = json!([]);
    let message = api.post(&format!("{PODS}?fieldValidation=Strict"), &p).await.failed(400, "BadRequest");
    assert!(message.ends_with("unknown field \"spec.container\""), "{message}");
}

#[tokio::test]
async fn a_crd_whose_rule_does_not_compile_is_refused() {
    let api = Api::new().await;
    let bad = crd(
        "bads",
        "Bad",
        json!({"type": "object", "properties": {"a": {"type": "string"}}, "x-kubernetes-validations": [{"rule": "self.b == 'x'"}]}),
    );
    let message = api.post(CRDS, &bad).await.failed(422, "Invalid");
    assert!(message.contains("spec.versions[0].schema.openAPIV3Schema.properties[spec].x-kubernetes-validations[0].rule: Invalid value: \"self.b == 'x'\": compilation failed: undefined field 'b'"), "{message}");
    // A path of no group is answered as text, without a Status, as kube-apiserver does.
    api.get("/apis/example.com/v1/namespaces/default/bads").await.failed(404, "");
}

#[tokio::test]
async fn scale_reads_and_writes_the_declared_paths_x_002() {
    let api = with_things().await;
    api.post(THINGS, &json!({"metadata": {"name": "t"}, "spec": {"size": 1}})).await.ok();
    api.patch(&format!("{THINGS}/t/status"), MERGE, &json!({"status": {"replicas": 1, "selector": "a=b"}})).await.ok();
    let scale = api.get(&format!("{THINGS}/t/scale")).await.ok();
    assert_eq!(
        (&scale["kind"], &scale["spec"], &scale["status"]),
        (&json!("Scale"), &json!({"replicas": 1}), &json!({"replicas": 1, "selector": "a=b"}))
    );
    let scaled = api.patch(&format!("{THINGS}/t/scale"), MERGE, &json!({"spec": {"replicas": 3}})).await.ok();
    assert_eq!(scaled["spec"]["replicas"], 3);
    assert_eq!(api.get(&format!("{THINGS}/t")).await.ok()["spec"]["replicas"], 3);
    let mut put = api.get(&format!("{THINGS}/t/scale")).await.ok();
    put["spec"]["replicas"] = json!(-1);
    api.put(&format!("{THINGS}/t/scale"), &put).await.failed(422, "Invalid");
}

#[tokio::test]
async fn apply_creates_merges_and_conflicts_d_227() {
    let api = with_things().await;
    let thing = |size: i64| json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t"}, "spec": {"size": size}});
    let path = |manager: &str, force: bool| format!("{THINGS}/t?fieldManager={manager}&force={force}");
    let made = api.patch(&path("one", false), APPLY, &thing(1)).await;
    assert_eq!(made.code, 201);
    let entry = &made.body["metadata"]["managedFields"][0];
    assert_eq!(
        (&entry["manager"], &entry["operation"], &entry["fieldsV1"]),
        (&json!("one"), &json!("Apply"), &json!({"f:spec": {"f:size": {}}}))
    );
    let again = api.patch(&path("one", false), APPLY, &thing(1)).await.ok();
    assert_eq!(
        again["metadata"]["resourceVersion"], made.body["metadata"]["resourceVersion"],
        "applying the same writes nothing"
    );
    let message = api.patch(&path("two", false), APPLY, &thing(2)).await.failed(409, "Conflict");
    assert_eq!(message, "Apply failed with 1 conflict: conflict with \"one\": .spec.size");
    assert_eq!(api.patch(&path("two", true), APPLY, &thing(2)).await.ok()["spec"]["size"], 2);
    let message = api.patch(&format!("{THINGS}/t"), APPLY, &thing(1)).await.failed(422, "Invalid");
    assert!(message.contains("fieldManager: Required value"), "{message}");
}

#[tokio::test]
async fn malformed_requests_get_the_status_kubernetes_sends() {
    let api = Api::new().await;
    api.send("POST", CONFIGS, "application/json", "{nope").await.failed(400, "BadRequest");
    api.send("POST", CONFIGS, "application/json", "[]").await.failed(400, "BadRequest");
    api.send("POST", CONFIGS, "text/html", "{}").await.failed(415, "UnsupportedMediaType");
    api.send("PATCH", &format!("{CONFIGS}/a"), "application/json", "{}").await.failed(415, "UnsupportedMediaType");
    api.send("POST", CONFIGS, "application/json", vec![b' '; (3 << 20) + 1]).await.failed(413, "RequestEntityTooLarge");
    api.get("/apis/nobody.example/v1/things").await.failed(404, "");
    api.get(&format!("{CONFIGS}?labelSelector=a%3D%3D%3Db")).await.failed(400, "BadRequest");
    api.get(&format!("{CONFIGS}?fieldSelector=spec.x%3D1")).await.failed(400, "BadRequest");
    api.get(&format!("{CONFIGS}?limit=many")).await.failed(400, "BadRequest");
    let mut wrong = config("a");
    wrong["data"] = json!("text");
    api.post(CONFIGS, &wrong).await.failed(400, "BadRequest");
    let mut elsewhere = config("a");
    elsewhere["metadata"]["namespace"] = json!("other");
    let message = api.post(CONFIGS, &elsewhere).await.failed(400, "BadRequest");
    assert_eq!(message, "the namespace of the provided object does not match the namespace sent on the request");
    let mut versioned = config("a");
    versioned["metadata"]["resourceVersion"] = json!("5");
    api.post(CONFIGS, &versioned).await.failed(500, "");
    api.send("PUT", CONFIGS, "application/json", "{}").await.failed(405, "MethodNotAllowed");
    assert_eq!(api.get(CONFIGS).await.ok()["items"], json!([]), "nothing was stored");
}

#[tokio::test]
async fn yaml_and_untyped_bodies_are_read() {
    let api = Api::new().await;
    api.send("POST", CONFIGS, "application/yaml", "metadata:\n  name: yam\ndata:\n  k: v\n").await.ok();
    api.send("POST", CONFIGS, "", config("untyped").to_string()).await.ok();
    assert_eq!(api.get(&format!("{CONFIGS}/yam")).await.ok()["data"]["k"], "v");
}

#[tokio::test]
async fn dry_runs_store_nothing() {
    let api = Api::new().await;
    let made = api.post(&format!("{CONFIGS}?dryRun=All"), &config("a")).await;
    assert_eq!(made.code, 201);
    assert!(made.body["metadata"]["uid"].is_string());
    api.get(&format!("{CONFIGS}/a")).await.failed(404, "NotFound");
    api.post(CONFIGS, &config("a")).await.ok();
    let path = format!("{CONFIGS}/a");
    assert_eq!(
        api.patch(&format!("{path}?dryRun=All"), MERGE, &json!({"data": {"k": "2"}})).await.ok()["data"]["k"],
        "2"
    );
    assert_eq!(api.get(&path).await.ok()["data"]["k"], "v");
    api.delete(&format!("{path}?dryRun=All"), &json!({})).await.ok();
    api.get(&path).await.ok();
    api.post(&format!("{CONFIGS}?dryRun=Some"), &config("b")).await.failed(422, "Invalid");
}

#[tokio::test]
async fn services_and_claims_are_checked() {
    let api = Api::new().await;
    let services = "/api/v1/namespaces/default/services";
    let message = api.post(services, &json!({"metadata": {"name": "s"}, "spec": {}})).await.failed(422, "Invalid");
    assert_eq!(message, "Service \"s\" is invalid: spec.ports: Required value");
    let made = api
        .post(services, &json!({"metadata": {"name": "h"}, "spec": {"clusterIP": "None", "selector": {"a": "b"}}}))
        .await
        .ok();
    assert_eq!(made["spec"]["clusterIPs"], json!(["None"]));
    let message = api
        .patch(&format!("{services}/h"), MERGE, &json!({"spec": {"clusterIP": "10.0.0.1"}}))
        .await
        .failed(422, "Invalid");
    assert!(message.contains("may not change once set"), "{message}");
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let message = api.post(claims, &json!({"metadata": {"name": "c"}, "spec": {}})).await.failed(422, "Invalid");
    assert!(
        message.contains("spec.accessModes: Required value: at least 1 access mode is required")
            && message.contains("spec.resources[storage]: Required value"),
        "{message}"
    );
    let claim = json!({"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    assert_eq!(api.post(claims, &claim).await.ok()["status"]["phase"], "Pending");
    let message = api
        .patch(&format!("{claims}/c"), MERGE, &json!({"spec": {"accessModes": ["ReadOnlyMany"]}}))
        .await
        .failed(422, "Invalid");
    assert!(message.contains("spec is immutable after creation"), "{message}");
}

#[tokio::test]
async fn an_address_belongs_to_one_service() {
    let api = Api::new().await;
    let services = "/api/v1/namespaces/default/services";
    let service = |name: &str, address: Option<&str>| {
        let mut object = json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}});
        if let Some(address) = address {
            object["spec"]["clusterIP"] = address.into();
        }
        object
    };
    let given = api.post(services, &service("a", None)).await.ok()["spec"]["clusterIP"].as_str().unwrap().to_owned();
    let message = api.post(services, &service("b", Some(&given))).await.failed(422, "Invalid");
    assert!(message.contains(&format!("failed to allocate IP {given}: provided IP is already allocated")), "{message}");
    // Of two concurrent creates with the same address, one succeeds.
    let (one, other) = (service("c", Some("10.96.0.7")), service("d", Some("10.96.0.7")));
    let (one, other) = tokio::join!(api.post(services, &one), api.post(services, &other));
    let mut codes = [one.code, other.code];
    codes.sort_unstable();
    assert_eq!(codes, [201, 422]);
    // The address of a deleted Service is free again.
    api.delete(&format!("{services}/a"), &json!({})).await.ok();
    assert_eq!(api.post(services, &service("b", Some(&given))).await.ok()["spec"]["clusterIP"], given);
    assert_eq!(
        api.get(&format!("{services}?fieldSelector=spec.clusterIP%3D{given}")).await.ok()["items"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    // So is that of a Service that gives it up.
    let elsewhere =
        json!({"spec": {"type": "ExternalName", "externalName": "example.com", "clusterIP": null, "clusterIPs": null}});
    let changed = api.patch(&format!("{services}/b"), MERGE, &elsewhere).await.ok();
    assert!(changed["spec"]["clusterIP"].as_str().unwrap_or_default().is_empty(), "{changed}");
    assert_eq!(api.post(services, &service("e", Some(&given))).await.ok()["spec"]["clusterIP"], given);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_patch_without_a_version_is_applied_again_after_a_concurrent_write() {
    let api = Arc::new(with_things().await);
    api.post(THINGS, &json!({"metadata": {"name": "t"}, "spec": {"size": 1}})).await.ok();
    let object = format!("{THINGS}/t");
    let writers = (0..4).map(|writer| {
        let (api, object) = (Arc::clone(&api), object.clone());
        tokio::spawn(async move {
            for number in 0..50 {
                let key = format!("w-{writer}");
                let merge = json!({"metadata": {"annotations": {key: number.to_string()}}});
                api.patch(&object, MERGE, &merge).await.ok();
                let size = json!([{"op": "replace", "path": "/spec/size", "value": number + 1}]);
                api.patch(&object, "application/json-patch+json", &size).await.ok();
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    let left = api.get(&object).await.ok();
    let expected = json!({"w-0": "49", "w-1": "49", "w-2": "49", "w-3": "49"});
    assert_eq!(left["metadata"]["annotations"], expected);
    // One that names the version it is for is not.
    let old = json!({"metadata": {"resourceVersion": left["metadata"]["resourceVersion"], "annotations": {"a": "1"}}});
    api.patch(&object, MERGE, &old).await.ok();
    api.patch(&object, MERGE, &old).await.failed(409, "Conflict");
}

#[tokio::test]
async fn no_objects_can_be_created_while_their_crd_is_deleted() {
    let api = with_things().await;
    let held = json!({"metadata": {"name": "held", "finalizers": ["example.com/hold"]}, "spec": {"size": 1}});
    api.post(THINGS, &held).await.ok();
    let definition = format!("{CRDS}/things.example.com");
    api.delete(&definition, &json!({})).await.ok();
    assert!(api.get(&definition).await.ok()["metadata"]["deletionTimestamp"].is_string());
    let late = json!({"metadata": {"name": "late"}, "spec": {"size": 1}});
    let message = api.post(THINGS, &late).await.failed(405, "MethodNotAllowed");
    assert_eq!(message, "create not allowed while custom resource definition is terminating");
    api.patch(&format!("{THINGS}/held"), MERGE, &json!({"metadata": {"finalizers": null}})).await.ok();
    api.wait_until_deleted(&definition).await;
}

#[tokio::test]
async fn objects_stored_with_an_older_schema_are_read_with_the_current_one() {
    let api = with_things().await;
    let old = json!({"metadata": {"name": "old"}, "spec": {"size": 1, "list": ["a"]}});
    let version = api.post(THINGS, &old).await.ok()["metadata"]["resourceVersion"].clone();
    let spec = json!({"type": "object", "properties": {
        "size": {"type": "integer"}, "replicas": {"type": "integer", "default": 1}, "colour": {"type": "string", "default": "blue"}}});
    let changed = crd("things", "Thing", spec);
    api.patch(&format!("{CRDS}/things.example.com"), MERGE, &json!({"spec": changed["spec"]})).await.ok();
    let wanted = json!({"size": 1, "replicas": 1, "colour": "blue"});
    let read = api.get(&format!("{THINGS}/old")).await.ok();
    assert_eq!((&read["spec"], &read["metadata"]["resourceVersion"]), (&wanted, &version), "nothing was written");
    assert_eq!(api.get(THINGS).await.ok()["items"][0]["spec"], wanted);
    let watched = api.get(&format!("{THINGS}?watch=1&resourceVersion=0&timeoutSeconds=1")).await;
    let line = watched
        .body
        .as_str()
        .map_or_else(|| watched.body.clone(), |text| serde_json::from_str(text.lines().next().unwrap()).unwrap());
    assert_eq!(line["object"]["spec"], wanted);
    let patched = api.patch(&format!("{THINGS}/old"), MERGE, &json!({"spec": {"size": 2}})).await.ok();
    assert_eq!(patched["spec"], json!({"size": 2, "replicas": 1, "colour": "blue"}));
}

/// Sets the node of every Pod, and adds the name to the data of ConfigMaps.
struct TestAdmission;

impl agent_sandbox_apiserver::MutatingAdmission for TestAdmission {
    fn mutate(&self, group: &str, plural: &str, object: &mut serde_json::Value) {
        match (group, plural) {
            ("", "pods") => object["spec"]["nodeName"] = "n1".into(),
            ("", "configmaps") => object["data"]["name"] = object["metadata"]["name"].clone(),
            _ => {}
        }
    }
}

#[tokio::test]
async fn changes_by_mutating_admission_are_part_of_the_first_write() {
    let options = agent_sandbox_apiserver::Config {
        mutating_admission: Some(std::sync::Arc::new(TestAdmission)),
        ..agent_sandbox_apiserver::Config::default()
    };
    let api = Api { server: agent_sandbox_apiserver::ApiServer::open(options).await.unwrap() };
    let tried = api.post(&format!("{PODS}?dryRun=All"), &pod("p")).await.ok();
    assert_eq!(tried["spec"].get("nodeName"), None, "a dry run shows the object without mutating admission");
    let posted = api.post(PODS, &pod("p")).await.ok();
    let applied = api.patch(&format!("{PODS}/q?fieldManager=m"), APPLY, &pod("q")).await.ok();
    for made in [posted, applied] {
        assert_eq!(made["spec"]["nodeName"], "n1");
        let scheduled = &made["status"]["conditions"][0];
        assert_eq!((&scheduled["type"], &scheduled["status"]), (&json!("PodScheduled"), &json!("True")));
        assert!(!made["metadata"]["managedFields"].to_string().contains("f:nodeName"), "the field has no manager");
    }
    let binding = json!({"target": {"name": "n2"}});
    api.post(&format!("{PODS}/p/binding"), &binding).await.failed(409, "Conflict");
    assert_eq!(api.post(CONFIGS, &config("c")).await.ok()["data"]["name"], "c");
}
