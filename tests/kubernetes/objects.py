"""Objects of ours, as the API wants them."""

CORE = "/apis/agents.x-k8s.io/v1beta1"
EXTENSIONS = "/apis/extensions.agents.x-k8s.io/v1beta1"


def sandboxes(namespace, name=""):
    return f"{CORE}/namespaces/{namespace}/sandboxes" + (f"/{name}" if name else "")


def extension(namespace, plural, name=""):
    return f"{EXTENSIONS}/namespaces/{namespace}/{plural}" + (f"/{name}" if name else "")


def claims(namespace, name=""):
    return extension(namespace, "sandboxclaims", name)


def pod_template():
    return {"spec": {"containers": [{"name": "c", "image": "i"}]}}


def sandbox(name, **spec):
    return {
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": name},
        "spec": {"podTemplate": pod_template(), **spec},
    }


def template(name, **spec):
    return {
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxTemplate", "metadata": {"name": name},
        "spec": {"podTemplate": pod_template(), **spec},
    }


def pool(name, replicas, template_name="t", **spec):
    return {
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool", "metadata": {"name": name},
        "spec": {"replicas": replicas, "sandboxTemplateRef": {"name": template_name}, **spec},
    }


def claim(name, pool_name="p", **spec):
    return {
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim", "metadata": {"name": name},
        "spec": {"warmPoolRef": {"name": pool_name}, **spec},
    }


def condition(thing, type_="Ready"):
    found = [c for c in thing.get("status", {}).get("conditions", []) if c["type"] == type_]
    return found[0] if found else {}


def is_ready(thing):
    return condition(thing).get("status") == "True"


def merge(cluster, path, body):
    return cluster.api.must("PATCH", path, body, {"Content-Type": "application/merge-patch+json"})


def wait_ready(cluster, path, within=60):
    """The object at `path` once it is Ready."""
    def look():
        answer = cluster.api.get(path)
        return answer.json() if answer.status == 200 and is_ready(answer.json()) else None
    return cluster.api.eventually(f"{path} is Ready", look, within)


def wait_gone(cluster, path, within=60):
    cluster.api.eventually(f"{path} is gone", lambda: cluster.api.get(path).status == 404, within)
