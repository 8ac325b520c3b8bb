//! What namespaces limit: LimitRanges, ResourceQuotas and Pod Security labels.

mod raw;

use std::sync::Arc;

use agent_sandbox_apiserver::{ApiServer, Config, MutatingAdmission};
use raw::{Api, CONFIGS, CRDS, MERGE, PODS, config, crd, pod};
use serde_json::{Value, json};

const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";
const RANGES: &str = "/api/v1/namespaces/default/limitranges";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const NAMESPACE: &str = "/api/v1/namespaces/default";

fn quota(name: &str, hard: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name}, "spec": {"hard": hard}})
}

fn limit_range(item: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "lr"}, "spec": {"limits": [item]}})
}

fn sized_pod(name: &str, cpu: &str, memory: &str) -> Value {
    let mut pod = pod(name);
    pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": cpu, "memory": memory}});
    pod
}

async fn used(api: &Api, name: &str, wanted: Value) {
    let path = format!("{QUOTAS}/{name}");
    api.until(&path, |response| response.body["status"]["used"] == wanted).await;
}

#[tokio::test]
async fn a_quota_refuses_what_exceeds_it_and_counts_what_exists() {
    let api = Api::new().await;
    let hard = json!({"pods": "2", "requests.cpu": "1", "requests.memory": "1Gi"});
    let made = api.post(QUOTAS, &quota("rq", hard.clone())).await.ok();
    assert_eq!(made["status"], json!({}), "usage is computed after the quota was stored");
    used(&api, "rq", json!({"pods": "0", "requests.cpu": "0", "requests.memory": "0"})).await;
    assert_eq!(
        api.post(PODS, &pod("none")).await.failed(403, "Forbidden"),
        "pods \"none\" is forbidden: failed quota: rq: must specify requests.cpu for: c; requests.memory for: c"
    );
    api.post(PODS, &sized_pod("a", "800m", "64Mi")).await.ok();
    let refused = "pods \"b\" is forbidden: exceeded quota: rq, requested: requests.cpu=800m, used: requests.cpu=800m, limited: requests.cpu=1";
    assert_eq!(api.post(PODS, &sized_pod("b", "800m", "64Mi")).await.failed(403, "Forbidden"), refused);
    let dry = api.post(&format!("{PODS}?dryRun=All"), &sized_pod("b", "800m", "64Mi")).await;
    assert_eq!(dry.failed(403, "Forbidden"), refused, "a dry run is refused as well");
    api.post(&format!("{PODS}?dryRun=All"), &sized_pod("b", "200m", "64Mi")).await.ok();
    api.post(PODS, &sized_pod("b", "200m", "64Mi")).await.ok();
    used(&api, "rq", json!({"pods": "2", "requests.cpu": "1", "requests.memory": "128Mi"})).await;
    let status = api.get(&format!("{QUOTAS}/rq")).await.ok()["status"]["hard"].clone();
    assert_eq!(status, hard);

    api.patch(&format!("{PODS}/b/status"), MERGE, &json!({"status": {"phase": "Succeeded"}})).await.ok();
    used(&api, "rq", json!({"pods": "1", "requests.cpu": "800m", "requests.memory": "64Mi"})).await;
    api.delete(&format!("{PODS}/a"), &json!({"gracePeriodSeconds": 0})).await.ok();
    used(&api, "rq", json!({"pods": "0", "requests.cpu": "0", "requests.memory": "0"})).await;
    api.post(PODS, &sized_pod("c", "1", "1Gi")).await.ok();
}

#[tokio::test]
async fn concurrent_creates_never_exceed_a_quota() {
    let api = Arc::new(Api::new().await);
    api.post(QUOTAS, &quota("rq", json!({"pods": "3", "count/configmaps": "3"}))).await.ok();
    let creates = (0..40).map(|i| {
        let api = api.clone();
        tokio::spawn(async move {
            let (path, object) =
                if i % 2 == 0 { (PODS, pod(&format!("p-{i}"))) } else { (CONFIGS, config(&format!("c-{i}"))) };
            api.post(path, &object).await.code
        })
    });
    let mut created = 0;
    for create in creates.collect::<Vec<_>>() {
        let code = create.await.unwrap();
        assert!(matches!(code, 201 | 403), "{code}");
        created += usize::from(code == 201);
    }
    assert_eq!(created, 6);
    used(&api, "rq", json!({"pods": "3", "count/configmaps": "3"})).await;
}

#[tokio::test]
async fn objects_of_every_kind_are_counted() {
    let api = Api::new().await;
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    api.post(CRDS, &crd("things", "Thing", schema)).await.ok();
    let hard = json!({
        "count/things.example.com": "1", "configmaps": "1", "services": "1", "services.nodeports": "0",
        "persistentvolumeclaims": "2", "requests.storage": "3Gi", "gold.storageclass.storage.k8s.io/requests.storage": "1Gi",
    });
    api.post(QUOTAS, &quota("rq", hard)).await.ok();
    let things = "/apis/example.com/v1/namespaces/default/things";
    let thing = |name: &str| json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": name}});
    api.post(things, &thing("a")).await.ok();
    assert_eq!(
        api.post(things, &thing("b")).await.failed(403, "Forbidden"),
        "things.example.com \"b\" is forbidden: exceeded quota: rq, requested: count/things.example.com=1, used: count/things.example.com=1, limited: count/things.example.com=1"
    );
    api.post(CONFIGS, &config("a")).await.ok();
    api.post(CONFIGS, &config("b")).await.failed(403, "Forbidden");

    let claim = |name: &str, size: &str, class: Value| {
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": class, "resources": {"requests": {"storage": size}}}})
    };
    assert_eq!(
        api.post(CLAIMS, &claim("gold", "2Gi", json!("gold"))).await.failed(403, "Forbidden"),
        "persistentvolumeclaims \"gold\" is forbidden: exceeded quota: rq, requested: gold.storageclass.storage.k8s.io/requests.storage=2Gi, used: gold.storageclass.storage.k8s.io/requests.storage=0, limited: gold.storageclass.storage.k8s.io/requests.storage=1Gi"
    );
    api.post(CLAIMS, &claim("a", "2Gi", json!("silver"))).await.ok();
    let grown = json!({"spec": {"resources": {"requests": {"storage": "4Gi"}}}});
    assert_eq!(
        api.patch(&format!("{CLAIMS}/a"), MERGE, &grown).await.failed(403, "Forbidden"),
        "persistentvolumeclaims \"a\" is forbidden: exceeded quota: rq, requested: requests.storage=2Gi, used: requests.storage=2Gi, limited: requests.storage=3Gi"
    );
    let service = |name: &str, kind: &str| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"type": kind, "ports": [{"port": 80}]}})
    };
    api.post(SERVICES, &service("open", "NodePort")).await.failed(403, "Forbidden");
    api.post(SERVICES, &service("a", "ClusterIP")).await.ok();
    api.patch(&format!("{SERVICES}/a"), MERGE, &json!({"spec": {"type": "NodePort"}})).await.failed(403, "Forbidden");
    let wanted = json!({
        "count/things.example.com": "1", "configmaps": "1", "services": "1", "services.nodeports": "0",
        "persistentvolumeclaims": "1", "requests.storage": "2Gi", "gold.storageclass.storage.k8s.io/requests.storage": "0",
    });
    used(&api, "rq", wanted).await;
}

#[tokio::test]
async fn a_scoped_quota_limits_only_what_it_selects() {
    let api = Api::new().await;
    let mut scoped = quota("best-effort", json!({"pods": "0"}));
    scoped["spec"]["scopes"] = json!(["BestEffort"]);
    api.post(QUOTAS, &scoped).await.ok();
    assert_eq!(
        api.post(PODS, &pod("a")).await.failed(403, "Forbidden"),
        "pods \"a\" is forbidden: exceeded quota: best-effort, requested: pods=1, used: pods=0, limited: pods=0"
    );
    api.post(PODS, &sized_pod("b", "1", "1Gi")).await.ok();
    let message = api.patch(&format!("{QUOTAS}/best-effort"), MERGE, &json!({"spec": {"scopes": []}})).await;
    assert!(message.failed(422, "Invalid").contains("spec.scopes: Invalid value: []: field is immutable"));
    scoped["metadata"]["name"] = "wrong".into();
    scoped["spec"]["hard"] = json!({"requests.cpu": "1", "toasters": "1", "pods": "-1"});
    let message = api.post(QUOTAS, &scoped).await.failed(422, "Invalid");
    for part in
        ["unsupported scope applied to resource", "must be a standard resource for quota", "greater than or equal"]
    {
        assert!(message.contains(part), "{part}: {message}");
    }
}

#[tokio::test]
async fn usage_is_computed_again_at_start() {
    let folder = tempfile::tempdir().unwrap();
    let open = || async {
        let config = Config { data_dir: Some(folder.path().to_owned()), ..Config::default() };
        Api { server: ApiServer::open(config).await.unwrap() }
    };
    let api = open().await;
    api.post(QUOTAS, &quota("rq", json!({"pods": "1"}))).await.ok();
    api.post(PODS, &pod("a")).await.ok();
    used(&api, "rq", json!({"pods": "1"})).await;
    let wrong = json!({"status": {"used": {"pods": "0"}}});
    api.patch(&format!("{QUOTAS}/rq/status"), MERGE, &wrong).await.ok();
    api.server.close();
    let api = open().await;
    used(&api, "rq", json!({"pods": "1"})).await;
    api.post(PODS, &pod("b")).await.failed(403, "Forbidden");
}

#[tokio::test]
async fn a_limit_range_sets_defaults_and_bounds() {
    let api = Api::new().await;
    let item =
        json!({"type": "Container", "max": {"cpu": "800m"}, "min": {"memory": "10Mi"}, "default": {"memory": "64Mi"}});
    let made = api.post(RANGES, &limit_range(item)).await.ok();
    let both = json!({"cpu": "800m", "memory": "64Mi"});
    assert_eq!(made["spec"]["limits"][0]["default"], both);
    assert_eq!(made["spec"]["limits"][0]["defaultRequest"], both);
    let pod = api.post(PODS, &pod("a")).await.ok();
    assert_eq!(pod["spec"]["containers"][0]["resources"], json!({"limits": both, "requests": both}));
    assert_eq!(pod["status"]["qosClass"], "Guaranteed");
    assert_eq!(
        pod["metadata"]["annotations"]["kubernetes.io/limit-ranger"],
        "LimitRanger plugin set: cpu, memory request for container c; cpu, memory limit for container c"
    );
    let message = api.post(PODS, &sized_pod("b", "900m", "1Mi")).await.failed(422, "Invalid");
    assert!(message.contains("must be less than or equal to cpu limit of 800m"), "defaults come first: {message}");
    let message = api.post(PODS, &sized_pod("b", "100m", "1Mi")).await.failed(403, "Forbidden");
    assert_eq!(message, "pods \"b\" is forbidden: minimum memory usage per Container is 10Mi, but request is 1Mi");

    let wrong = json!({"type": "Container", "max": {"cpu": "1"}, "min": {"cpu": "2"}});
    let message = api.post(RANGES, &limit_range(wrong)).await.failed(422, "Invalid");
    assert!(message.contains("spec.limits[0].min[cpu]: Invalid value: \"2\": min value 2 is greater than max value 1"));
}

#[tokio::test]
async fn pod_security_labels_refuse_and_warn() {
    let api = Api::new().await;
    api.post(PODS, &pod("before")).await.ok();
    let label = |mode: &str, level: &str| json!({"metadata": {"labels": {format!("pod-security.kubernetes.io/{mode}"): level}}});
    let message = api.patch(NAMESPACE, MERGE, &label("warn", "bad")).await.failed(422, "Invalid");
    assert_eq!(
        message,
        "Namespace \"default\" is invalid: metadata.labels[pod-security.kubernetes.io/warn]: Invalid value: \"bad\": must be one of privileged, baseline, restricted"
    );
    let changed = api.patch(NAMESPACE, MERGE, &label("enforce", "baseline")).await;
    assert!(changed.warnings.is_empty(), "{:?}", changed.warnings);
    let warned = api.patch(NAMESPACE, MERGE, &label("warn", "restricted")).await;
    assert!(warned.warnings.is_empty(), "only a new enforced level is checked: {:?}", warned.warnings);
    let made = api.post(PODS, &pod("warned")).await;
    assert!(made.warnings[0].contains("would violate PodSecurity"), "{:?}", made.warnings);
    made.ok();
    let mut privileged = pod("p");
    privileged["spec"]["hostPID"] = true.into();
    assert_eq!(
        api.post(PODS, &privileged).await.failed(403, "Forbidden"),
        "pods \"p\" is forbidden: violates PodSecurity \"baseline:latest\": host namespaces (hostPID=true)"
    );
    let stricter = api.patch(NAMESPACE, MERGE, &label("enforce", "restricted")).await;
    assert_eq!(stricter.warnings.len(), 2, "{:?}", stricter.warnings);
    assert!(stricter.warnings[1].contains("before (and 1 other pod): allowPrivilegeEscalation != false"));
    api.post(PODS, &pod("after")).await.failed(403, "Forbidden");
    let image = json!({"spec": {"containers": [{"name": "c", "image": "busybox:2"}]}});
    api.patch(&format!("{PODS}/before"), raw::STRATEGIC, &image).await.failed(403, "Forbidden");
    api.patch(&format!("{PODS}/before"), MERGE, &json!({"metadata": {"labels": {"a": "b"}}})).await.ok();
}

/// Exempts one Pod, as the engine exempts the Pod that stands for its router.
struct Exempting;

impl MutatingAdmission for Exempting {
    fn mutate(&self, _: &str, _: &str, _: &mut Value) {}

    fn is_exempt(&self, _: &str, plural: &str, object: &Value) -> bool {
        plural == "pods" && object["metadata"]["name"] == "system"
    }
}

#[tokio::test]
async fn objects_of_the_engine_are_neither_counted_nor_refused() {
    let config = Config { mutating_admission: Some(Arc::new(Exempting)), ..Config::default() };
    let api = Api { server: ApiServer::open(config).await.unwrap() };
    api.post(QUOTAS, &quota("rq", json!({"pods": "1", "count/pods": "1", "requests.cpu": "1"}))).await.ok();
    let labels = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}});
    api.patch(NAMESPACE, MERGE, &labels).await.ok();
    let mut system = pod("system");
    system["spec"]["hostNetwork"] = true.into();
    api.post(PODS, &system).await.ok();
    api.post(PODS, &sized_pod("a", "1", "1Gi")).await.ok();
    used(&api, "rq", json!({"pods": "1", "count/pods": "1", "requests.cpu": "1"})).await;
    api.post(PODS, &sized_pod("b", "0", "1Gi")).await.failed(403, "Forbidden");
}
