"""Kata Containers by RuntimeClass, as far as no virtual machine is needed: what reaches the Pod, and what a user sees without the class."""

import objects

KATA = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "kata"},
    "handler": "kata",
    "overhead": {"podFixed": {"memory": "160Mi", "cpu": "250m"}},
}
CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
VCPUS = "io.katacontainers.config.hypervisor.default_vcpus"


def create(engine, namespace, name):
    """A Sandbox that asks for Kata; returns the path of its Pod."""
    template = objects.pod_template()
    template["spec"]["runtimeClassName"] = "kata"
    template["metadata"] = {"annotations": {VCPUS: "2"}}
    engine.api.must("POST", objects.sandboxes(namespace), objects.sandbox(name, podTemplate=template))
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def test_class_annotations_and_overhead_reach_the_pod(engine):
    api, namespace = engine.api, engine.namespace()
    early = create(engine, namespace, "early")
    if engine.engine == "real":
        # The admission plugin refuses a Pod whose class does not exist; the Sandbox shows its text.
        def shows_the_reason():
            ready = objects.condition(api.must("GET", objects.sandboxes(namespace, "early")))
            return ready.get("status") == "False" and 'RuntimeClass "kata" not found' in ready["message"]
        api.eventually("the reason in the Ready condition", shows_the_reason)
    else:
        # The embedded node knows `kata` without an object.
        api.eventually("the Pod", lambda: api.get(early).status == 200)
        assert "overhead" not in api.must("GET", early)["spec"]
    api.must("POST", CLASSES, KATA)
    try:
        pod = create(engine, namespace, "box")
        api.eventually("the Pod", lambda: api.get(pod).status == 200)
        found = api.must("GET", pod)
        assert found["spec"]["runtimeClassName"] == "kata"
        assert found["spec"]["overhead"] == KATA["overhead"]["podFixed"]
        assert found["metadata"]["annotations"][VCPUS] == "2"
        # A Sandbox that was refused before the class existed starts without being touched.
        api.eventually("the first Pod", lambda: api.get(early).status == 200)
    finally:
        api.must("DELETE", f"{CLASSES}/kata")
        for name in ("early", "box"):
            api.must("DELETE", objects.sandboxes(namespace, name))
