"""With exactly the chart's roles, on an API server that enforces them, everything works and nothing is denied."""

import contextlib
import http.client
import json
import os
import subprocess

import yaml

import objects
from api import Api
from conftest import BINARY, CHART, SYSTEM, controller_on, free_port, stop

ACCOUNTS = {
    f"system:serviceaccount:{SYSTEM}:agent-sandbox-controller": "controller",
    f"system:serviceaccount:{SYSTEM}:sandbox-router": "router",
}


def audited(cluster):
    """All audited requests of our two accounts."""
    with open(cluster.folder / "audit.log") as log:
        entries = [json.loads(line) for line in log if line.endswith("}\n")]
    return [entry for entry in entries if entry["user"].get("username") in ACCOUNTS]


def is_denied(entry):
    return entry.get("responseStatus", {}).get("code") in (401, 403)


def install(cluster, webhook_port, *extra):
    """Installs the unchanged chart, but the webhook's Service resolves to this machine, because nothing routes to Services."""
    rendered = cluster.helm(
        "template", "agent-sandbox", str(CHART),
        "--set", f"controller.extensions=true,webhookServicePort={webhook_port},router.enabled=true,router.auth.mode=tokenreview", *extra,
    ).stdout
    documents = [document for document in yaml.safe_load_all(rendered) if document]
    for document in documents:
        if document["kind"] == "Service" and document["metadata"]["name"] == "agent-sandbox-webhook-service":
            document["spec"] = {"type": "ExternalName", "externalName": "localhost"}
    path = cluster.folder / "rbac.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(path))
    crds = [f"crd/{d['metadata']['name']}" for d in documents if d["kind"] == "CustomResourceDefinition"]
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", *crds)
    return path


def wait_for_owner_checks(cluster, account, namespace):
    """The API server's owner check learns about new kinds only every 30 seconds; until then it rejects them all."""
    api = Api(account)

    def owned_by(api_version, kind):
        owner = {"apiVersion": api_version, "kind": kind, "name": "x", "uid": "x", "controller": True, "blockOwnerDeletion": True}
        probe = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe", "ownerReferences": [owner]},
                 "spec": objects.pod_template()["spec"]}
        return api.request("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", probe).status == 201
    kinds = [("agents.x-k8s.io/v1beta1", "Sandbox")]
    kinds += [("extensions.agents.x-k8s.io/v1beta1", kind) for kind in ("SandboxClaim", "SandboxTemplate", "SandboxWarmPool")]
    cluster.api.eventually("owners of our kinds are known", lambda: all(owned_by(*kind) for kind in kinds), 90)


def exercise_all_writes(cluster, namespace):
    """Causes every kind of write that the controller makes."""
    api = cluster.api
    volumes = [{"metadata": {"name": "d"}, "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "none", "resources": {"requests": {"storage": "1Gi"}}}}]
    api.must("POST", objects.sandboxes(namespace), objects.sandbox("plain", service=True))
    api.must("POST", objects.sandboxes(namespace), objects.sandbox("stored", volumeClaimTemplates=volumes))
    api.must("POST", objects.extension(namespace, "sandboxtemplates"), objects.template("t"))
    api.must("POST", objects.extension(namespace, "sandboxwarmpools"), objects.pool("p", 2))
    plain = objects.sandboxes(namespace, "plain")
    objects.wait_ready(cluster, plain)
    api.eventually("the volume claim", lambda: api.get(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/d-stored").status == 200)
    pool = objects.extension(namespace, "sandboxwarmpools", "p")
    api.eventually("a warm pool", lambda: api.must("GET", pool).get("status", {}).get("readyReplicas") == 2)
    api.must("POST", objects.claims(namespace), objects.claim("warm", additionalPodMetadata={"annotations": {"example.com/mine": "yes"}}))
    adopted = objects.wait_ready(cluster, objects.claims(namespace, "warm"))["status"]["sandbox"]["name"]
    objects.merge(cluster, pool, {"spec": {"replicas": 0}})
    api.eventually("an empty pool", lambda: api.must("GET", pool).get("status", {}).get("replicas", 0) == 0)
    api.must("POST", objects.claims(namespace), objects.claim("cold"))
    objects.wait_ready(cluster, objects.claims(namespace, "cold"))
    # Suspend and resume, a Service that is removed, and a Sandbox that expires.
    objects.merge(cluster, plain, {"spec": {"operatingMode": "Suspended", "service": False}})
    api.eventually("suspended", lambda: not api.must("GET", f"/api/v1/namespaces/{namespace}/pods?fieldSelector=metadata.name%3Dplain")["items"])
    objects.merge(cluster, plain, {"spec": {"operatingMode": "Running"}})
    objects.wait_ready(cluster, plain)
    api.must("POST", objects.claims(namespace), objects.claim("short", lifecycle={"shutdownTime": "2020-01-01T00:00:00Z", "shutdownPolicy": "Delete"}))
    objects.wait_gone(cluster, objects.claims(namespace, "short"))
    api.must("POST", objects.sandboxes(namespace), objects.sandbox("over", shutdownTime="2020-01-01T00:00:00Z", shutdownPolicy="Delete"))
    objects.wait_gone(cluster, objects.sandboxes(namespace, "over"))
    # The template stops managing its network policy.
    template = objects.extension(namespace, "sandboxtemplates", "t")
    objects.merge(cluster, template, {"spec": {"networkPolicyManagement": "Unmanaged"}})
    policy = f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies/t-network-policy"
    api.eventually("the network policy goes", lambda: api.get(policy).status == 404)
    # The other version, through the webhook.
    old = f"/apis/agents.x-k8s.io/v1alpha1/namespaces/{namespace}/sandboxes/plain"
    assert api.must("GET", old)["spec"]["replicas"] == 1
    for path in (objects.claims(namespace, "warm"), objects.claims(namespace, "cold"), plain):
        api.must("DELETE", path)
        objects.wait_gone(cluster, path)
    return adopted


def test_nothing_is_denied(real):
    port = free_port()
    path = install(real, port)
    try:
        namespace = real.namespace()
        account = real.account_kubeconfig(SYSTEM, "agent-sandbox-controller")
        wait_for_owner_checks(real, account, namespace)
        before = len(audited(real))
        with controller_on(real, kubeconfig=account, election=SYSTEM, webhook=port) as controller:
            # A second controller is on standby, watching the lease, and takes over when the first stops.
            with controller_on(real, kubeconfig=account, election=SYSTEM, webhook=free_port(), wait=False) as standby:
                exercise_all_writes(real, namespace)
                serve_a_request(real)
                controller.close()
                standby.wait_until_it_leads()
            warned = [line for each in (controller, standby) for line in each.lines() if line["level"] in ("WARN", "ERROR")]
        assert warned == []
        asked = audited(real)[before:]
        assert {ACCOUNTS[entry["user"]["username"]] for entry in asked} == {"controller", "router"}
        denied = [(entry["verb"], entry["requestURI"]) for entry in asked if is_denied(entry)]
        assert denied == []
        assert unused_grants(path, asked) == set()
    finally:
        real.kubectl("delete", "--ignore-not-found", "--timeout=90s", "-f", str(path))


# Permissions for cases that this test does not cause: adopting existing children, volumes of adopted Sandboxes, live
# reads after an unclear response, and the rotation of the certificate.
FOR_REPAIRS = {
    ("", "persistentvolumeclaims", "get"), ("", "persistentvolumeclaims", "patch"), ("", "pods", "get"), ("", "services", "get"),
    ("", "services", "patch"), ("", "secrets", "update"), ("agents.x-k8s.io", "sandboxes", "get"),
    ("coordination.k8s.io", "leases", "patch"),
    ("extensions.agents.x-k8s.io", "sandboxclaims", "get"), ("extensions.agents.x-k8s.io", "sandboxtemplates", "get"),
    ("extensions.agents.x-k8s.io", "sandboxwarmpools", "get"), ("networking.k8s.io", "networkpolicies", "get"),
    ("networking.k8s.io", "networkpolicies", "patch"), ("apiextensions.k8s.io", "customresourcedefinitions", "patch"),
}


def unused_grants(manifest, asked):
    """Permissions of the controller's roles that were never used."""
    granted = set()
    for document in yaml.safe_load_all(manifest.read_text()):
        if document["kind"] in ("Role", "ClusterRole") and document["metadata"]["name"].startswith("agent-sandbox-controller"):
            for rule in document["rules"]:
                granted |= {(group, resource, verb) for group in rule["apiGroups"] for resource in rule["resources"] for verb in rule["verbs"]}
    used = set()
    for entry in asked:
        target = entry.get("objectRef", {})
        resource = "/".join(filter(None, [target.get("resource"), target.get("subresource")]))
        used.add((target.get("apiGroup", ""), resource, entry["verb"]))
    return {grant for grant in granted - used - FOR_REPAIRS if not grant[1].endswith("/finalizers")}


@contextlib.contextmanager
def router_on(cluster, *flags):
    """The router, as its account. Yields a function that asks for a sandbox, by default one that does not exist, and returns the status."""
    http_port, health = free_port(), free_port()
    account = cluster.account_kubeconfig(SYSTEM, "sandbox-router")
    command = [
        BINARY, "router", "--http-bind-address", f"127.0.0.1:{http_port}", "--metrics-bind-address", "",
        "--health-probe-bind-address", f"127.0.0.1:{health}", *flags,
    ]
    environment = {**os.environ, "KUBECONFIG": str(account)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)

    def send(port, method, path, headers):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        try:
            connection.request(method, path, headers=headers)
            return connection.getresponse().status
        except OSError:
            return None
        finally:
            connection.close()

    def ask(namespace, token, method="GET", path="/", headers=None):
        credentials = {"Authorization": f"Bearer {token}"} if token else {}
        named = {"X-Sandbox-ID": "missing", "X-Sandbox-Namespace": namespace} if headers is None else headers
        return send(http_port, method, path, {**named, **credentials})

    def is_ready():
        assert process.poll() is None, "the router ended"
        return send(health, "GET", "/readyz", {}) == 200
    try:
        cluster.api.eventually("the router is ready", is_ready)
        yield ask
    finally:
        stop(process, 40)


def serve_a_request(cluster):
    """The router watches Pods and asks the API server whose token it got."""
    with router_on(cluster, "--authz-mode=tokenreview", "--authz-tokenreview-require-token=true") as ask:
        assert ask("default", None) == 401
        token = Api(cluster.account_kubeconfig(SYSTEM, "sandbox-router")).token
        assert ask("default", token) not in (200, 401, 403)


def test_mode_rbac_keeps_tenants_apart(real):
    """Two namespaces, each with an account that may edit it: in mode rbac the router serves each account its own namespace only."""
    path = install(real, free_port(), "--set", "router.auth.mode=rbac")
    try:
        tenants = [real.namespace(), real.namespace()]
        tokens = []
        for namespace in tenants:
            real.kubectl("-n", namespace, "create", "serviceaccount", "tenant")
            real.kubectl("-n", namespace, "create", "rolebinding", "tenant", "--clusterrole=edit", f"--serviceaccount={namespace}:tenant")
            tokens.append(real.kubectl("-n", namespace, "create", "token", "tenant").stdout.strip())
        before = len(audited(real))
        with router_on(real, "--authz-mode=rbac") as ask:
            for token, own, foreign in ((tokens[0], *tenants), (tokens[1], *reversed(tenants))):
                # The sandbox does not exist: a caller that is let through learns that, another one does not.
                assert ask(own, token) not in (200, 401, 403)
                assert ask(foreign, token) == 403
            assert ask(tenants[0], None) == 401
            assert ask(tenants[0], "wrong") == 401
        assert [entry for entry in audited(real)[before:] if is_denied(entry)] == []
    finally:
        real.kubectl("delete", "--ignore-not-found", "--timeout=90s", "-f", str(path))


def test_namespaced_mode_stays_in_its_namespace(real):
    """Roles instead of ClusterRoles: the controller works in one namespace, and could not work in another."""
    port = free_port()
    namespace, elsewhere = real.namespace(), real.namespace()
    path = install(real, port, "--set", f"rbac.scope=namespace,controller.watchNamespace={namespace}")
    try:
        roles = [d for d in yaml.safe_load_all(path.read_text()) if d["kind"] == "ClusterRole"]
        # CRDs and token reviews belong to no namespace.
        assert {rule["resources"][0] for role in roles for rule in role["rules"]} == {"customresourcedefinitions", "tokenreviews"}
        account = real.account_kubeconfig(SYSTEM, "agent-sandbox-controller")
        wait_for_owner_checks(real, account, namespace)
        before = len(audited(real))
        with controller_on(real, f"--watch-namespace={namespace}", kubeconfig=account, election=SYSTEM, webhook=port):
            real.api.must("POST", objects.sandboxes(elsewhere), objects.sandbox("not-mine"))
            exercise_all_writes(real, namespace)
        assert "status" not in real.api.must("GET", objects.sandboxes(elsewhere, "not-mine"))
        assert [entry for entry in audited(real)[before:] if is_denied(entry)] == []
        other = Api(account).get(objects.sandboxes(elsewhere))
        assert other.status == 403
    finally:
        real.kubectl("delete", "--ignore-not-found", "--timeout=90s", "-f", str(path))
