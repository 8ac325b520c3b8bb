"""After and beside kubernetes-sigs/agent-sandbox: on the CRDs of its release 1.0, and over a release of its Helm chart."""

import json

import pytest
import yaml

import objects
from conftest import CHART, ROOT, SYSTEM, cluster_of, controller_on, free_port

CRDS = sorted((ROOT / "deploy" / "crds").glob("*.yaml"))


def upstreams_crd(path):
    """One of our CRDs in the shape of upstream's 1.0: v1beta1 alone, without conversion and without descriptions."""
    crd = yaml.safe_load(path.read_text())
    crd["spec"]["versions"] = [version for version in crd["spec"]["versions"] if version["name"] == "v1beta1"]
    crd["spec"]["conversion"] = {"strategy": "None"}

    def strip(schema):
        schema.pop("description", None)
        for part in [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]:
            if isinstance(part, dict):
                strip(part)
    strip(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    return crd


def names():
    return [yaml.safe_load(path.read_text())["metadata"]["name"] for path in CRDS]


def served_versions(cluster, name="sandboxes.agents.x-k8s.io"):
    crd = cluster.api.must("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
    return sorted(version["name"] for version in crd["spec"]["versions"])


def put_upstreams_crds(cluster):
    """Replaced, not applied: the webhook that our controller wrote into a CRD must go with the conversion."""
    for path in CRDS:
        crd = upstreams_crd(path)
        exists = cluster.kubectl("get", "crd", crd["metadata"]["name"], check=False).returncode == 0
        cluster.kubectl("replace" if exists else "create", "-f", "-", input=yaml.safe_dump(crd))
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", *(f"crd/{name}" for name in names()))


@pytest.fixture(scope="module")
def cluster():
    with cluster_of("real") as cluster:
        yield cluster


# A chart with the names, selector and CRD folder of upstream's, reduced to what Helm has to take over.
THEIRS = """
apiVersion: v1
kind: ServiceAccount
metadata: {name: agent-sandbox-controller, namespace: {{ .Release.Namespace }}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: agent-sandbox-controller}
rules: [{apiGroups: [agents.x-k8s.io], resources: [sandboxes], verbs: ["*"]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: agent-sandbox-controller}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: agent-sandbox-controller}
subjects: [{kind: ServiceAccount, name: agent-sandbox-controller, namespace: {{ .Release.Namespace }}}]
---
apiVersion: v1
kind: Service
metadata: {name: agent-sandbox-controller, namespace: {{ .Release.Namespace }}}
spec:
  selector: {app.kubernetes.io/name: agent-sandbox, app.kubernetes.io/instance: {{ .Release.Name }}}
  ports: [{name: metrics, port: 8080, targetPort: metrics}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: agent-sandbox-controller, namespace: {{ .Release.Namespace }}}
spec:
  replicas: 1
  selector:
    matchLabels: {app.kubernetes.io/name: agent-sandbox, app.kubernetes.io/instance: {{ .Release.Name }}}
  template:
    metadata:
      labels: {app.kubernetes.io/name: agent-sandbox, app.kubernetes.io/instance: {{ .Release.Name }}}
    spec:
      serviceAccountName: agent-sandbox-controller
      containers: [{name: agent-sandbox-controller, image: "theirs:{{ .Values.image.tag }}"}]
"""


def their_chart(folder):
    (folder / "templates").mkdir(parents=True)
    (folder / "crds").mkdir()
    (folder / "Chart.yaml").write_text("apiVersion: v2\nname: agent-sandbox\nversion: 0.1.1\n")
    (folder / "values.yaml").write_text("image: {tag: v1.0.8}\n")
    (folder / "templates" / "all.yaml").write_text(THEIRS)
    for path in CRDS:
        (folder / "crds" / path.name).write_text(yaml.safe_dump(upstreams_crd(path)))
    return str(folder)


def test_helm_takes_over_a_release_of_upstreams_chart_and_gives_it_back(cluster, tmp_path):
    """`helm upgrade` from their chart to ours and back: the same Deployment, the same objects, no CRD lost."""
    theirs, in_system = their_chart(tmp_path / "theirs"), ("--namespace", SYSTEM)
    deployment = f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/agent-sandbox-controller"

    def image():
        return cluster.api.must("GET", deployment)["spec"]["template"]["spec"]["containers"][0]["image"]
    cluster.helm("install", "agent-sandbox", theirs, *in_system, "--create-namespace")
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", *(f"crd/{name}" for name in names()))
    namespace = cluster.namespace()
    box = objects.sandboxes(namespace, "kept")
    cluster.api.eventually("Sandboxes are served", lambda: cluster.api.get(objects.sandboxes(namespace)).status == 200)
    cluster.api.must("POST", objects.sandboxes(namespace), objects.sandbox("kept"))
    before = cluster.api.must("GET", deployment)["metadata"]["uid"], cluster.api.must("GET", box)["metadata"]["uid"]

    def same():
        return cluster.api.must("GET", deployment)["metadata"]["uid"], cluster.api.must("GET", box)["metadata"]["uid"]
    # With upstream's own CRDs left as they are ...
    ours = ("upgrade", "agent-sandbox", str(CHART), *in_system, "--reset-values", "--take-ownership", "--set", "controller.extensions=true")
    cluster.helm(*ours, "--set", "crds.install=false,webhook.enabled=false")
    assert same() == before and image().startswith("agent-sandbox:")
    assert served_versions(cluster) == ["v1beta1"]
    # ... and with ours, which serve v1alpha1 too.
    cluster.helm(*ours)
    assert same() == before
    assert served_versions(cluster) == ["v1alpha1", "v1beta1"]
    cluster.helm("upgrade", "agent-sandbox", theirs, *in_system, "--reset-values")
    assert same() == before and image() == "theirs:v1.0.8"
    assert all(served_versions(cluster, name) for name in names())
    # Upstream's CRDs over ours: nothing is stored as v1alpha1.
    put_upstreams_crds(cluster)
    assert served_versions(cluster) == ["v1beta1"]
    assert same() == before
    cluster.helm("uninstall", "agent-sandbox", *in_system, "--wait")
    cluster.api.must("DELETE", box)


@pytest.mark.parametrize("webhook", [False, True], ids=["without webhook", "with webhook"])
def test_the_controller_runs_on_upstreams_crds(cluster, webhook):
    """A claim is served warm on CRDs that have v1beta1 alone; a webhook that no CRD asks for does no harm."""
    put_upstreams_crds(cluster)
    assert served_versions(cluster) == ["v1beta1"]
    cluster.kubectl("create", "namespace", SYSTEM, check=False)
    namespace = cluster.namespace()
    cluster.api.eventually("pools are served", lambda: cluster.api.get(objects.extension(namespace, "sandboxwarmpools")).status == 200)
    with controller_on(cluster, election=None, webhook=free_port() if webhook else None):
        cluster.api.must("POST", objects.extension(namespace, "sandboxtemplates"), objects.template("t", service=True))
        cluster.api.must("POST", objects.extension(namespace, "sandboxwarmpools"), objects.pool("p", 1))
        pool = objects.extension(namespace, "sandboxwarmpools", "p")
        cluster.api.eventually("a warm pool", lambda: cluster.api.must("GET", pool).get("status", {}).get("readyReplicas") == 1)
        cluster.api.must("POST", objects.claims(namespace), objects.claim("mine"))
        bound = objects.wait_ready(cluster, objects.claims(namespace, "mine"))["status"]["sandbox"]
        assert bound["name"].startswith("p-")
        assert bound["serviceFQDN"] == f"{bound['name']}.{namespace}.svc.cluster.local"
    assert served_versions(cluster) == ["v1beta1"]


REFUSED_CLAIMS = {
    "a label without a domain": ({"additionalPodMetadata": {"labels": {"team": "a"}}}, "keys need a domain"),
    "a label of another domain": ({"additionalPodMetadata": {"labels": {"example.com/team": "a"}}}, "keys need a domain"),
    "a long label value": ({"additionalPodMetadata": {"labels": {"sandbox.users.io/team": "a" * 64}}}, "at most 63"),
    "a reserved annotation": ({"additionalPodMetadata": {"annotations": {"pod.kubernetes.io/x": "y"}}}, "reserved"),
    "an annotation of ours": ({"additionalPodMetadata": {"annotations": {"agent-sandbox.github.io/snapshot": "other"}}}, "reserved"),
    "two volumes of one name": ({"volumeClaimTemplates": [{"metadata": {"name": "a"}, "spec": {}}] * 2}, "metadata.name of its own"),
    "a variable with an equals sign": ({"env": [{"name": "A=B", "value": "c"}]}, "env: a name"),
}


def test_admission_refuses_what_the_controller_would(cluster, tmp_path):
    """The chart's policy for claims, on a real API server: refused claims are named, allowed ones pass."""
    # Objects of the tests before cannot be read as v1alpha1 while no webhook runs, so that ours would not be served.
    put_upstreams_crds(cluster)
    namespace = cluster.namespace()
    older = objects.claim("older", additionalPodMetadata={"labels": {"team": "a"}})
    older["metadata"]["finalizers"] = ["example.com/wait"]
    cluster.api.eventually("claims are served", lambda: cluster.api.request("POST", objects.claims(namespace), older).status in (201, 409))
    rendered = cluster.helm("template", "agent-sandbox", str(CHART), "--set", "controller.extensions=true,admission.claims.enabled=true",
                            "-s", "templates/controller/admission.yaml").stdout
    cluster.kubectl("apply", "-f", "-", input=rendered)
    first = objects.claim("first", additionalPodMetadata={"labels": {"team": "a"}})

    def refuses():
        answer = cluster.api.request("POST", objects.claims(namespace) + "?dryRun=All", first)
        return answer.status == 422
    cluster.api.eventually("the policy is in force", refuses)
    for name, (spec, message) in REFUSED_CLAIMS.items():
        answer = cluster.api.request("POST", objects.claims(namespace), objects.claim("refused", **spec))
        assert answer.status == 422 and message in answer.json()["message"], (name, answer.json())
    cluster.api.must("POST", objects.claims(namespace), objects.claim(
        "allowed", env=[{"name": "A", "value": "b"}], volumeClaimTemplates=[{"metadata": {"name": "a"}, "spec": {}}],
        additionalPodMetadata={"labels": {"x.sandbox.users.io/team": ""}, "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true", "note": "n"}},
    ))
    cluster.api.must("DELETE", objects.claims(namespace, "allowed"))

    # A claim that is older than the policy: its metadata can be written, its spec only as the policy has it, and it can end.
    def patch(body):
        return cluster.kubectl("patch", "sandboxclaim", "older", "-n", namespace, "--type=merge", "-p", json.dumps(body), check=False)
    assert patch({"metadata": {"annotations": {"note": "n"}}}).returncode == 0
    changed = patch({"spec": {"additionalPodMetadata": {"labels": {"team": "b"}}}})
    assert changed.returncode != 0 and "keys need a domain" in changed.stderr, changed.stderr
    cluster.api.must("DELETE", objects.claims(namespace, "older"))
    assert patch({"metadata": {"finalizers": None}}).returncode == 0
    cluster.api.eventually("the claim is gone", lambda: cluster.api.get(objects.claims(namespace, "older")).status == 404)
    cluster.kubectl("delete", "-f", "-", input=rendered)


def test_a_router_that_wakes_sandboxes_writes_nothing_but_its_annotations(cluster):
    """The chart's policy for the router, on a real API server, with the router's own role and account."""
    put_upstreams_crds(cluster)
    rendered = cluster.helm("template", "agent-sandbox", str(CHART), "--set", "router.enabled=true,router.auth.mode=rbac,router.wakeSandboxes=true",
                            "--set", "router.links.domain=boxes.example.com,router.links.secret=links",
                            "-s", "templates/router/admission.yaml", "-s", "templates/router/rbac.yaml").stdout
    cluster.kubectl("create", "namespace", "agent-sandbox-system", check=False)
    cluster.kubectl("apply", "-f", "-", input=rendered)
    namespace = cluster.namespace()
    manifest = {"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": "box", "namespace": namespace, "annotations": {"kept": "x"}},
                "spec": {"operatingMode": "Suspended", "podTemplate": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}}
    cluster.kubectl("create", "-f", "-", input=json.dumps(manifest))

    def patch(body):
        # Without effect: what passes before the policy is in force must not make the next attempt a change of nothing.
        return cluster.kubectl("patch", "sandbox", "box", "-n", namespace, "--type=merge", "--dry-run=server", "-p", json.dumps(body),
                               "--as=system:serviceaccount:agent-sandbox-system:sandbox-router", check=False)

    def of(**annotations):
        return {"metadata": {"annotations": {f"agent-sandbox.github.io/{key.replace('_', '-')}": value for key, value in annotations.items()}}}
    cluster.api.eventually("the policy is in force", lambda: "may not change the spec" in patch({"spec": {"operatingMode": "Running"}}).stderr)
    for name, body in {
        "the spec": {"spec": {"shutdownTime": "2030-01-01T00:00:00Z"}},
        "a policy": of(wake="Always"),
        "the mark of idleness": of(suspended_by="idle"),
        "an annotation of others": {"metadata": {"annotations": {"kept": "y"}}},
        "its removal": {"metadata": {"annotations": {"kept": None}}},
        "a label": {"metadata": {"labels": {"a": "b"}}},
        "a finalizer": {"metadata": {"finalizers": ["a/b"]}},
    }.items():
        done = patch(body)
        assert done.returncode != 0 and "the router may" in done.stderr, (name, done.stderr)
    done = patch(of(last_activity_at="t", idle_reported_at="t", wake_requested_at="t", links="[]"))
    assert done.returncode == 0, done.stderr
    cluster.kubectl("delete", "sandbox", "box", "-n", namespace)
    cluster.kubectl("delete", "-f", "-", input=rendered)
