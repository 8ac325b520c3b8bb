"""A second tenant against another tenant's objects on a real control plane, with the router in mode `rbac`.

The cases are generated from API discovery and from the description of the sandbox's HTTP API: whatever is added there is tried here, and a
verb without a case fails the test. `crates/cli/tests/engine/second_tenant.rs` does the same with the local engine.
"""

import json
import re

import objects
from api import Api
from conftest import ROOT, free_port
from test_rbac import install, router_on

# Requests about the caller itself, which every user may make.
ABOUT_ONESELF = {"selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"}
# Objects that components of the cluster write by themselves.
WRITTEN_BY_COMPONENTS = {"endpoints", "endpointslices", "pods"}
# Objects that components create at any time.
COME_AND_GO = {"events", "leases"}
STREAMS = {"exec", "attach", "portforward"}
# The runtime and workspace APIs of sandboxd, and its gRPC services; the native API describes itself.
ROUTES = [
    ("GET", "/"), ("POST", "/execute"), ("POST", "/upload"), ("GET", "/download/x"), ("GET", "/list/x"), ("GET", "/exists/x"),
    ("GET", "/v1/health"), ("GET", "/v1/metadata"), ("GET", "/v1/files/x"), ("PUT", "/v1/files/x"), ("POST", "/v1/files/x"), ("DELETE", "/v1/files/x"),
    ("POST", "/process.v1.ProcessService/Start"), ("POST", "/process.v1.ProcessService/Execute"),
]


class Resource:
    """A resource as discovery describes it."""

    def __init__(self, prefix, group_version, entry):
        self.prefix, self.group_version = prefix, group_version
        self.plural, _, self.subresource = entry["name"].partition("/")
        self.kind, self.namespaced, self.verbs = entry["kind"], entry["namespaced"], entry["verbs"]

    def collection(self, namespace):
        return f"{self.prefix}/namespaces/{namespace}/{self.plural}" if self.namespaced else f"{self.prefix}/{self.plural}"

    def object(self, namespace, name):
        path = f"{self.collection(namespace)}/{name}"
        return f"{path}/{self.subresource}" if self.subresource else path


def discover(api):
    """Every resource of every served version."""
    prefixes = [("/api/v1", "v1")]
    for group in api.must("GET", "/apis")["groups"]:
        prefixes += [(f"/apis/{version['groupVersion']}", version["groupVersion"]) for version in group["versions"]]
    return [Resource(*prefix, entry) for prefix in prefixes for entry in api.must("GET", prefix[0])["resources"]]


def requests_of(resource, verb, victim):
    """The requests of a verb for the other tenant's objects."""
    name = victim if resource.plural == "namespaces" else "box"
    collection, thing = resource.collection(victim), resource.object(victim, name)
    new = thing if resource.subresource else collection
    if resource.subresource == "proxy":
        method = {"get": "GET", "create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE"}[verb]
        return [(method, thing), (method, f"{thing}/execute")]
    if resource.subresource in STREAMS:
        method = {"get": "GET", "create": "POST"}[verb]
        return [(method, f"{thing}?command=id&stdout=true&ports=8888")]
    cases = {
        "get": [("GET", thing)],
        "list": [("GET", collection), ("GET", f"{resource.prefix}/{resource.plural}")],
        "watch": [("GET", f"{collection}?watch=true&timeoutSeconds=1"), ("GET", f"{resource.prefix}/watch/namespaces/{victim}/{resource.plural}?timeoutSeconds=1")],
        "create": [("POST", new)],
        "update": [("PUT", thing)],
        "patch": [("PATCH", thing)],
        "delete": [("DELETE", thing)],
        "deletecollection": [("DELETE", collection)],
    }
    assert verb in cases, f"no case for the verb {verb} of {resource.plural}"
    return cases[verb]


def may_create(user, resource, namespace):
    group = resource.group_version.rpartition("/")[0]
    attributes = {"namespace": namespace, "verb": "create", "group": group, "resource": resource.plural}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": attributes}}
    return user.must("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)["status"]["allowed"]


def attack_api(user, resources, own, victim):
    """Every verb of every resource is refused. Returns the number of requests."""
    tried = 0
    for resource in resources:
        if resource.plural in ABOUT_ONESELF:
            continue
        for verb in resource.verbs:
            for method, path in requests_of(resource, verb, victim):
                media_type = "application/merge-patch+json" if method == "PATCH" else "application/json"
                answer = user.request(method, path, "{}", {"Content-Type": media_type})
                assert answer.status == 403, f"{method} {path}: {answer}"
                tried += 1
            # The own namespace in the path, the other one in the object.
            if verb == "create" and resource.namespaced and not resource.subresource:
                body = {"apiVersion": resource.group_version, "kind": resource.kind, "metadata": {"name": "intruder", "namespace": victim}}
                answer = user.request("POST", resource.collection(own), body)
                expected = 400 if may_create(user, resource, own) else 403
                assert answer.status == expected, f"{resource.collection(own)}: {answer}"
                tried += 1
    return tried


def attack_router(ask, token, victim):
    """Every route of a sandbox is refused, however the request names the sandbox."""
    described = json.loads((ROOT / "crates/sandboxd/src/dialects/native/openapi.json").read_text())
    routes = list(ROUTES)
    for path, methods in described["paths"].items():
        routes += [(method.upper(), path.replace("{id}", "1")) for method in methods if method != "parameters"]
    assert len(routes) > 40, routes
    forms = [
        lambda path: (path, {"X-Sandbox-ID": "box", "X-Sandbox-Namespace": victim}),
        lambda path: (path, {"X-Sandbox-ID": "box", "X-Sandbox-Namespace": victim, "X-Sandbox-Port": "9999", "X-Sandbox-Pod-IP": "10.9.9.9"}),
        lambda path: (f"/router/{victim}/box/8888{path}", {}),
        lambda path: (path, {"Host": f"8888-box--{victim}.boxes.example"}),
    ]
    for method, path in routes:
        for form in forms:
            target, headers = form(path)
            assert ask(victim, token, method, target, headers) == 403, f"{method} {target} {headers}"
    return len(routes) * len(forms)


def state(api, resources, namespace):
    """The uids of all objects of a namespace, and the versions of those that components do not write."""
    seen = {}
    for resource in resources:
        # Without a conversion webhook our kinds can be read in their stored version only.
        stored = not resource.prefix.endswith("agents.x-k8s.io/v1alpha1")
        listed = resource.namespaced and not resource.subresource and "list" in resource.verbs
        if stored and listed and resource.plural not in COME_AND_GO:
            for thing in api.must("GET", resource.collection(namespace))["items"]:
                written = resource.plural in WRITTEN_BY_COMPONENTS
                version = None if written else thing["metadata"]["resourceVersion"]
                seen[resource.object(namespace, thing["metadata"]["name"])] = (thing["metadata"]["uid"], version)
    return seen


def test_a_second_tenant_is_refused_by_every_verb_and_changes_nothing(real, tmp_path):
    path = install(real, free_port(), "--set", "router.auth.mode=rbac")
    try:
        own, victim = real.namespace(), real.namespace()
        for namespace in (own, victim):
            real.kubectl("-n", namespace, "create", "serviceaccount", "tenant")
            real.kubectl("-n", namespace, "create", "rolebinding", "tenant", "--clusterrole=edit", f"--serviceaccount={namespace}:tenant")
        for collection, thing in [
            (objects.sandboxes(victim), objects.sandbox("box")), (objects.extension(victim, "sandboxtemplates"), objects.template("box")),
            (objects.extension(victim, "sandboxwarmpools"), objects.pool("box", 0)), (objects.claims(victim), objects.claim("box")),
        ]:
            real.api.must("POST", collection, thing)
        for words in (("configmap", "box"), ("secret", "generic", "box"), ("service", "clusterip", "box", "--tcp=80"), ("deployment", "box", "--image=i", "--replicas=0")):
            real.kubectl("-n", victim, "create", *words)
        real.api.must("POST", f"/api/v1/namespaces/{victim}/pods", {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "box", "labels": {"agents.x-k8s.io/sandbox-name-hash": "x"}}, "spec": objects.pod_template()["spec"],
        })
        deployment = f"/apis/apps/v1/namespaces/{victim}/deployments/box"
        real.api.eventually("the deployment is observed", lambda: real.api.must("GET", deployment).get("status", {}).get("observedGeneration"))
        resources = discover(real.api)
        before = state(real.api, resources, victim)
        assert len(before) > 8, before

        user = Api(real.account_kubeconfig(own, "tenant"))
        tried = attack_api(user, resources, own, victim)
        assert tried > 400, f"discovery listed only {tried} requests"
        log = tmp_path / "audit.jsonl"
        flags = ("--authz-mode=rbac", "--path-routing-prefix=/router", "--host-routing-domain=boxes.example", f"--audit-log={log}")
        with router_on(real, *flags) as ask:
            attacks = attack_router(ask, user.token, victim)
            assert attacks > 150
            # The owner is let through, and learns that the sandbox does not run.
            owner = Api(real.account_kubeconfig(victim, "tenant"))
            assert ask(victim, owner.token) not in (200, 401, 403)
        denied = [record for record in map(json.loads, log.read_text().splitlines()) if record["decision"] == "deny"]
        assert len(denied) == attacks, "the router records every refusal"
        named = ("source", "status", "user", "namespace", "name")
        who = {tuple(record[member] for member in named) for record in denied}
        assert who == {("router", 403, f"system:serviceaccount:{own}:tenant", victim, "box")}, who
        assert state(real.api, resources, victim) == before, "nothing of the other tenant has changed"
        assert not [name for name in state(real.api, resources, own) if re.search("/intruder$", name)]
    finally:
        real.kubectl("delete", "--ignore-not-found", "--timeout=90s", "-f", str(path))
