"""The Helm chart and the plain manifests rendered from it, on a real API server."""

import json
import shutil

import pytest
import yaml

import objects
from conftest import CHART, ROOT, SYSTEM, controller_on

# What platform engineers set; each must render and be accepted.
VALUE_SETS = {
    "defaults": {},
    "extensions": {"controller": {"extensions": True}},
    "everything": {
        "replicaCount": 3,
        "controller": {"extensions": True, "allowedLabelDomains": "example.com\nexample.org"},
        "admission": {"claims": {"enabled": True}},
        "podDisruptionBudget": {"enabled": True},
        "networkPolicy": {"enabled": True, "metricsFrom": [{"namespaceSelector": {}}], "apiServer": {"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}},
        "metrics": {"serviceMonitor": {"enabled": True, "scrapeTimeout": "10s", "additionalLabels": {"a": "b"}},
                    "prometheusRule": {"enabled": True, "additionalGroups": [{"name": "mine", "rules": []}]}},
        "router": {"enabled": True, "auth": {"mode": "tokenreview"}, "networkPolicy": {"enabled": True}, "serviceMonitor": {"enabled": True}},
    },
    "placement": {
        "image": {"repository": "example/agent", "tag": "v9", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "pull"}],
        "nodeSelector": {"disk": "fast"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
        "priorityClassName": "system-cluster-critical",
        "podAnnotations": {"a": "b"}, "podLabels": {"c": "d", "app": "not-mine"},
        "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
    },
    "flags": {
        "controller": {
            "extensions": True, "clusterDomain": "example.local", "kubeApiQps": 50, "kubeApiBurst": 200, "enableTracing": False,
            "sandboxConcurrentWorkers": 10, "sandboxWarmPoolMaxRefillRate": 2.5, "sandboxWarmPoolReadinessGracePeriod": "2m",
            "enableWarmPoolEviction": False, "logLevel": "debug", "extraArgs": ["--sandbox-write-behind-window=100ms"],
            "leaderElectionNamespace": "kube-system",
        },
    },
    "one replica without election": {"controller": {"leaderElect": False}},
    "namespaced": {"rbac": {"scope": "namespace"}, "controller": {"extensions": True, "watchNamespace": "default"},
                   "router": {"enabled": True, "auth": {"mode": "tokenreview"}}},
    "router with TLS": {
        "router": {"enabled": True, "auth": {"mode": "scoped-token,static-token", "scopedTokenSecret": "scoped", "scopedTokenKeys": ["new", "old"],
                                             "staticTokenSecret": "static"},
                   "sandboxTokens": {"keySecret": "signing"},
                   "tls": {"secret": "tls", "only": True, "clientCertificates": "required", "clientCASecret": "ca"}},
    },
    "router that wakes sandboxes": {"router": {"enabled": True, "auth": {"mode": "rbac"}, "wakeSandboxes": True}},
    "router with links": {"router": {"enabled": True, "auth": {"mode": "rbac"},
                                     "links": {"domain": "boxes.example.com", "publicURL": "https://boxes.example.com:8443", "secret": "links"}}},
    "own certificate": {"webhook": {"manageCertificates": False, "certificateSecret": "mine"},
                        "crds": {"annotations": {"cert-manager.io/inject-ca-from": "a/b"}}},
    "no webhook, no CRDs": {"webhook": {"enabled": False}, "crds": {"install": False}, "namespace": {"create": False}},
    "own names": {"webhookServiceName": "my-hook", "namespace": {"name": "my-system"}, "service": {"name": "my-metrics"},
                  "serviceAccount": {"create": False, "name": "mine"}},
    "router without authorisation": {"router": {"enabled": True, "replicaCount": 1, "auth": {"mode": "allow-all"}, "podDisruptionBudget": {"enabled": False}}},
}

REFUSED = {
    "router without an auth mode": ({"router": {"enabled": True}}, "router.auth.mode must be said"),
    "unknown auth mode": ({"router": {"enabled": True, "auth": {"mode": "none"}}}, "router.auth.mode|/router/auth/mode"),
    "scoped tokens without a secret": ({"router": {"enabled": True, "auth": {"mode": "scoped-token"}}}, "scopedTokenSecret"),
    "links without a domain": ({"router": {"enabled": True, "auth": {"mode": "rbac"}, "links": {"secret": "links"}}}, "router.links.domain"),
    "two leaders": ({"replicaCount": 2, "controller": {"leaderElect": False}}, "leaderElect"),
    "a misspelt value": ({"replicas": 2}, "additional properties"),
    "a misspelt nested value": ({"controller": {"extension": True}}, "additional properties"),
    "a wrong type": ({"replicaCount": "two"}, "replicaCount"),
    "a namespace without its scope": ({"controller": {"watchNamespace": "a"}}, "rbac.scope=namespace"),
}


def helm_with(cluster, tmp_path, values, *words, check=True):
    path = tmp_path / "values.yaml"
    path.write_text(json.dumps(values))
    return cluster.helm(*words, str(CHART), "-f", str(path), check=check)


def render(cluster, tmp_path, values):
    return helm_with(cluster, tmp_path, values, "template", "agent-sandbox").stdout


def documents(text):
    return [document for document in yaml.safe_load_all(text) if document]


def by_kind(text, kind, name=None):
    return [d for d in documents(text) if d["kind"] == kind and (name is None or d["metadata"]["name"] == name)]


def container(text, deployment="agent-sandbox-controller"):
    [found] = by_kind(text, "Deployment", deployment)
    return found["spec"]["template"]["spec"]["containers"][0]


@pytest.mark.parametrize("name", VALUE_SETS)
def test_values_render_cleanly_and_are_accepted(real, tmp_path, name):
    values = VALUE_SETS[name]
    lint = helm_with(real, tmp_path, values, "lint", "--strict")
    done = helm_with(real, tmp_path, values, "template", "agent-sandbox")
    assert "0 chart(s) failed" in lint.stdout and "[WARNING]" not in lint.stdout + lint.stderr
    assert "WARNING" not in done.stderr.upper(), done.stderr
    rendered = documents(done.stdout)
    # Dry run of each object against the API server, which does not have Prometheus' kinds.
    namespaces = {d["metadata"]["namespace"] for d in rendered if "namespace" in d["metadata"]}
    for namespace in namespaces:
        real.kubectl("create", "namespace", namespace, check=False)
    asked = [d for d in rendered if not d["apiVersion"].startswith("monitoring.coreos.com")]
    text = "\n---\n".join(yaml.safe_dump(d) for d in asked)
    real.kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", input=text)
    for deployment in (d for d in rendered if d["kind"] == "Deployment"):
        pod = deployment["spec"]["template"]
        selector = deployment["spec"]["selector"]["matchLabels"]
        assert selector.items() <= pod["metadata"]["labels"].items()
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        for each in pod["spec"]["containers"]:
            assert each["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert each["securityContext"]["readOnlyRootFilesystem"] is True
            assert each["securityContext"]["allowPrivilegeEscalation"] is False


@pytest.mark.parametrize("name", REFUSED)
def test_mistakes_are_refused_and_named(real, tmp_path, name):
    values, message = REFUSED[name]
    done = helm_with(real, tmp_path, values, "template", "agent-sandbox", check=False)
    assert done.returncode != 0
    assert any(part in done.stderr for part in message.split("|")), done.stderr


def test_s_222_custom_webhook_service_name(real, tmp_path):
    """S-222: the names reach the flags, the Service and the CRDs."""
    text = render(real, tmp_path, VALUE_SETS["own names"])
    arguments = container(text)["args"]
    assert "--webhook-service-name=my-hook" in arguments and "--webhook-namespace=my-system" in arguments
    assert by_kind(text, "Service", "my-hook")
    for crd in by_kind(text, "CustomResourceDefinition"):
        service = crd["spec"]["conversion"]["webhook"]["clientConfig"]["service"]
        assert (service["name"], service["namespace"]) == ("my-hook", "my-system")


def test_flags_are_rendered_only_when_set(real, tmp_path):
    arguments = container(render(real, tmp_path, VALUE_SETS["flags"]))["args"]
    for wanted in ["--kube-api-qps=50", "--sandbox-warm-pool-max-refill-rate=2.5", "--enable-tracing=false",
                   "--enable-warm-pool-eviction=false", "--cluster-domain=example.local", "--sandbox-write-behind-window=100ms"]:
        assert wanted in arguments
    plain = container(render(real, tmp_path, {}))["args"]
    assert not [argument for argument in plain if "qps" in argument or "workers" in argument]


def test_names_are_upstreams(real, tmp_path):
    values = {"controller": {"extensions": True}, "router": {"enabled": True, "auth": {"mode": "tokenreview"}}}
    text = render(real, tmp_path, values)
    assert {d["metadata"]["namespace"] for d in documents(text) if "namespace" in d["metadata"]} == {SYSTEM}
    assert container(text)["name"] == "agent-sandbox-controller"
    assert by_kind(text, "Service", "sandbox-router-svc")[0]["spec"]["ports"][0]["port"] == 8080
    assert by_kind(text, "Service", "agent-sandbox-webhook-service")
    router = container(text, "sandbox-router")["args"]
    assert "--drain-delay=10s" in router and "--authz-mode=tokenreview" in router


@pytest.mark.parametrize("files", [["sandbox"], ["manifest", "extensions", "router"], ["sandbox-with-extensions"]], ids="+".join)
def test_manifests_apply(real, files):
    """Plain `kubectl apply`, twice: the second time changes nothing. Pods become Ready under Pod security "restricted"."""
    paths = [str(ROOT / "deploy" / "manifests" / f"{file}.yaml") for file in files]
    try:
        for path in paths:
            real.kubectl("apply", "-f", path)
        deployment = f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/agent-sandbox-controller"
        generation = real.api.must("GET", deployment)["metadata"]["generation"]
        real.kubectl("apply", "-f", paths[-1])
        assert real.api.must("GET", deployment)["metadata"]["generation"] == generation
        real.kubectl("-n", SYSTEM, "rollout", "status", "deployment/agent-sandbox-controller", "--timeout=90s")
    finally:
        for path in reversed(paths):
            real.kubectl("delete", "--ignore-not-found", "--timeout=90s", "-f", path)


def test_applying_extensions_on_top_is_applying_both(real):
    folder = ROOT / "deploy" / "manifests"
    both = {(d["kind"], d["metadata"]["name"]): d for d in documents((folder / "sandbox-with-extensions.yaml").read_text())}
    layered = {(d["kind"], d["metadata"]["name"]): d for file in ("manifest", "extensions")
               for d in documents((folder / f"{file}.yaml").read_text())}
    assert layered == both


def test_install_upgrade_and_uninstall(real, tmp_path):
    """Install, upgrade (with the CRDs), uninstall, reinstall, and uninstall with everything. Sandboxes run on throughout."""
    release = ("agent-sandbox", str(CHART), "--set", "controller.extensions=true")
    real.helm("install", *release)
    real.kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd/sandboxes.agents.x-k8s.io",
                 "crd/sandboxclaims.extensions.agents.x-k8s.io", "crd/sandboxwarmpools.extensions.agents.x-k8s.io",
                 "crd/sandboxtemplates.extensions.agents.x-k8s.io")
    namespace = real.namespace()
    pods = f"/api/v1/namespaces/{namespace}/pods"
    with controller_on(real):
        real.api.must("POST", objects.sandboxes(namespace), objects.sandbox("kept"))
        real.api.must("POST", objects.extension(namespace, "sandboxtemplates"), objects.template("t"))
        real.api.must("POST", objects.extension(namespace, "sandboxwarmpools"), objects.pool("p", 1))
        real.api.must("POST", objects.claims(namespace), objects.claim("mine"))
        objects.wait_ready(real, objects.sandboxes(namespace, "kept"))
        claimed = objects.wait_ready(real, objects.claims(namespace, "mine"))["status"]["sandbox"]["name"]
    before = {name: real.api.must("GET", f"{pods}/{name}")["metadata"]["uid"] for name in ("kept", claimed)}

    # An upgrade of the chart upgrades the CRDs, and leaves alone what the controller wrote into them.
    newer = tmp_path / "chart"
    shutil.copytree(CHART, newer)
    crd = newer / "files" / "crds" / "sandboxes.agents.x-k8s.io.yaml"
    crd.write_text(crd.read_text().replace("  - additionalPrinterColumns:\n", "  - additionalPrinterColumns:\n    - {jsonPath: .spec.operatingMode, name: Newer, type: string}\n", 1))
    assert "Newer" in crd.read_text()
    real.helm("upgrade", "agent-sandbox", str(newer), "--set", "controller.extensions=true,replicaCount=2")
    shown = real.api.must("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/sandboxes.agents.x-k8s.io")
    assert "Newer" in [column["name"] for column in shown["spec"]["versions"][0]["additionalPrinterColumns"]]
    assert real.api.must("GET", f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/agent-sandbox-controller")["spec"]["replicas"] == 2

    # Uninstall removes everything of the release except the CRDs and the users' objects.
    real.helm("uninstall", "agent-sandbox", "--wait")
    objects.wait_gone(real, f"/api/v1/namespaces/{SYSTEM}")
    left = [line for kind in ("clusterroles", "clusterrolebindings") for line in real.kubectl("get", kind, "-o", "name").stdout.splitlines() if "sandbox" in line]
    assert left == []
    assert len([c for c in real.kubectl("get", "crds", "-o", "name").stdout.splitlines() if "agents.x-k8s.io" in c]) == 4
    after = {name: real.api.must("GET", f"{pods}/{name}")["metadata"]["uid"] for name in before}
    assert after == before, "Pods ran on"

    # Reinstall adopts the remaining CRDs; the same Pods keep running, and new ones are created.
    real.helm("install", *release)
    with controller_on(real):
        real.api.must("POST", objects.sandboxes(namespace), objects.sandbox("later"))
        objects.wait_ready(real, objects.sandboxes(namespace, "later"))
        assert objects.is_ready(real.api.must("GET", objects.sandboxes(namespace, "kept")))
        assert {name: real.api.must("GET", f"{pods}/{name}")["metadata"]["uid"] for name in before} == before

    # Uninstall with the option that removes everything.
    real.helm("upgrade", *release, "--set", "crds.keep=false")
    real.helm("uninstall", "agent-sandbox", "--wait")
    real.api.eventually("no CRD is left", lambda: "agents.x-k8s.io" not in real.kubectl("get", "crds", "-o", "name").stdout)
    # Kubernetes garbage-collects the Pods, and may miss them when the CRD of their owner is removed at the same time.
