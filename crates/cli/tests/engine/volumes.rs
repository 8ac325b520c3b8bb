//! Volumes of existing claims, added to and removed from a sandbox that exists: they change at the next resume, and the
//! files in them stay.

use crate::fixture::{Engine, eventually};
use crate::tenants::config;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

/// A claim of ten megabytes.
fn claim(name: &str) -> PersistentVolumeClaim {
    let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Mi"}}});
    serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
}

pub(crate) fn sandboxes(client: &Client) -> Api<DynamicObject> {
    let kind = ApiResource {
        group: "agents.x-k8s.io".into(),
        version: "v1beta1".into(),
        api_version: "agents.x-k8s.io/v1beta1".into(),
        kind: "Sandbox".into(),
        plural: "sandboxes".into(),
    };
    Api::namespaced_with(client.clone(), "default", &kind)
}

#[test]
fn volumes_are_attached_and_detached_at_the_next_resume() {
    let Some(engine) = Engine::start() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let admin = runtime.block_on(async { Client::try_from(config(&engine, None).await).unwrap() });
    runtime.block_on(async {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(admin.clone(), "default");
        claims.create(&PostParams::default(), &claim("data")).await.unwrap();
    });
    engine.ok(&["create", "box"]);
    let sandboxes = sandboxes(&admin);
    let read = || runtime.block_on(sandboxes.get("box")).unwrap().data;
    // Puts the claim into the template, or removes it.
    let edit = |mounted: bool| {
        let mut container = read()["spec"]["podTemplate"]["spec"]["containers"][0].clone();
        let volumes = match mounted {
            true => json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]),
            false => Value::Null,
        };
        container["volumeMounts"] = if mounted { json!([{"name": "data", "mountPath": "/data"}]) } else { json!([]) };
        let spec = json!({"podTemplate": {"spec": {"containers": [container], "volumes": volumes}}});
        let patch = Patch::Merge(json!({ "spec": spec }));
        runtime.block_on(sandboxes.patch("box", &PatchParams::default(), &patch)).unwrap();
    };
    let pending = || -> Option<Value> {
        let conditions = read()["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|one| one["type"] == "VolumesPending").map(|one| one["reason"].clone())
    };
    let resume = || {
        engine.ok(&["suspend", "box"]);
        engine.ok(&["resume", "box"]);
        eventually("nothing is pending", || pending().is_none());
    };
    edit(true);
    eventually("the volume waits", || pending() == Some(json!("AttachedAtResume")));
    resume();
    engine.ok(&["exec", "box", "--", "sh", "-c", "echo kept > /data/note"]);
    edit(false);
    eventually("the volume is to be detached", || pending() == Some(json!("DetachedAtResume")));
    assert_eq!(engine.ok(&["exec", "box", "--", "cat", "/data/note"]), "kept\n", "the running Pod keeps it");
    resume();
    engine.fails(&["exec", "box", "--", "cat", "/data/note"]);
    edit(true);
    eventually("the volume waits again", || pending() == Some(json!("AttachedAtResume")));
    resume();
    assert_eq!(engine.ok(&["exec", "box", "--", "cat", "/data/note"]), "kept\n", "its files are there after resume");
}

/// A claim that names the volume of another tenant's claim, even one whose status says that it is bound: its Pod does not
/// start, and says why.
#[test]
fn a_pod_does_not_get_the_volume_of_a_foreign_claim() {
    let Some(engine) = Engine::start() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let admin = runtime.block_on(async { Client::try_from(config(&engine, None).await).unwrap() });
    let create = PostParams::default();
    let claims = |namespace: &str| Api::<PersistentVolumeClaim>::namespaced(admin.clone(), namespace);
    let pod = |claim: &str| -> Pod {
        let spec = json!({
            "containers": [{"name": "c", "image": "host", "command": ["sh", "-c", "cat /data/*; exec sleep 1000"],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
        });
        serde_json::from_value(json!({"metadata": {"name": claim}, "spec": spec})).unwrap()
    };
    let volume = runtime.block_on(async {
        for namespace in ["team-a", "team-b"] {
            crate::tenants::tenant(&admin, namespace).await;
        }
        claims("team-a").create(&create, &claim("data")).await.unwrap();
        Api::namespaced(admin.clone(), "team-a").create(&create, &pod("data")).await.unwrap();
        loop {
            let bound = claims("team-a").get("data").await.unwrap().spec.and_then(|spec| spec.volume_name);
            if let Some(volume) = bound {
                return volume;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    });
    runtime.block_on(async {
        let mut stolen = claim("stolen");
        stolen.spec.as_mut().unwrap().volume_name = Some(volume);
        claims("team-b").create(&create, &stolen).await.unwrap();
        let bound = Patch::Merge(json!({"status": {"phase": "Bound"}}));
        claims("team-b").patch_status("stolen", &PatchParams::default(), &bound).await.unwrap();
        Api::namespaced(admin.clone(), "team-b").create(&create, &pod("stolen")).await.unwrap();
    });
    let events: Api<k8s_openapi::api::core::v1::Event> = Api::namespaced(admin.clone(), "team-b");
    eventually("the Pod says why it does not start", || {
        let list = runtime.block_on(events.list(&kube::api::ListParams::default())).unwrap();
        list.items.iter().any(|event| {
            event.reason.as_deref() == Some("FailedMount")
                && event.message.as_ref().is_some_and(|text| text.contains("belongs to another claim"))
        })
    });
    let started = runtime.block_on(Api::<Pod>::namespaced(admin, "team-b").get("stolen")).unwrap();
    assert_eq!(started.status.and_then(|status| status.phase).as_deref(), Some("Pending"));
}
