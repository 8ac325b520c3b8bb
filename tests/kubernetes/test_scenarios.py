"""What users do, unchanged on both engines: the embedded API and a real control plane."""

import concurrent.futures

import objects


def setup_pool(engine, namespace, replicas):
    engine.api.must("POST", objects.extension(namespace, "sandboxtemplates"), objects.template("t"))
    engine.api.must("POST", objects.extension(namespace, "sandboxwarmpools"), objects.pool("p", replicas))
    wait_pool(engine, namespace, replicas)


def wait_pool(engine, namespace, ready):
    path = objects.extension(namespace, "sandboxwarmpools", "p")
    return engine.api.eventually(
        f"{ready} warm", lambda: engine.api.must("GET", path).get("status", {}).get("readyReplicas", 0) == ready
    )


def pods(engine, namespace):
    return engine.api.must("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]


def test_a_sandbox_from_start_to_end(engine):
    namespace = engine.namespace()
    path = objects.sandboxes(namespace, "box")
    engine.api.must("POST", objects.sandboxes(namespace), objects.sandbox("box", service=True))
    ready = objects.wait_ready(engine, path)
    assert ready["status"]["podIPs"]
    assert ready["status"]["serviceFQDN"] == f"box.{namespace}.svc.cluster.local"
    [pod] = pods(engine, namespace)
    [owner] = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("Sandbox", ready["metadata"]["uid"], True)
    objects.merge(engine, path, {"spec": {"operatingMode": "Suspended"}})
    engine.api.eventually("its Pod goes", lambda: not pods(engine, namespace))
    # The status follows the Pod.
    engine.api.eventually("it says so", lambda: objects.condition(engine.api.must("GET", path))["status"] == "False")
    objects.merge(engine, path, {"spec": {"operatingMode": "Running"}})
    objects.wait_ready(engine, path)
    [again] = pods(engine, namespace)
    assert again["metadata"]["name"] == pod["metadata"]["name"] and again["metadata"]["uid"] != pod["metadata"]["uid"]
    engine.api.must("DELETE", path)
    objects.wait_gone(engine, path)
    engine.api.eventually("everything goes with it", lambda: not pods(engine, namespace))
    services = f"/api/v1/namespaces/{namespace}/services"
    engine.api.eventually("its Service too", lambda: not engine.api.must("GET", services)["items"])


def test_a_deleted_pod_is_recreated(engine):
    namespace = engine.namespace()
    engine.api.must("POST", objects.sandboxes(namespace), objects.sandbox("box"))
    objects.wait_ready(engine, objects.sandboxes(namespace, "box"))
    [lost] = pods(engine, namespace)
    engine.api.must("DELETE", f"/api/v1/namespaces/{namespace}/pods/box", {"gracePeriodSeconds": 0})

    def replaced():
        now = pods(engine, namespace)
        return now and now[0]["metadata"]["uid"] != lost["metadata"]["uid"]
    engine.api.eventually("a new Pod", replaced)
    objects.wait_ready(engine, objects.sandboxes(namespace, "box"))


def test_a_warm_claim_adopts_and_the_pool_refills(engine):
    namespace = engine.namespace()
    setup_pool(engine, namespace, 3)
    warm = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods(engine, namespace)}
    engine.api.must("POST", objects.claims(namespace), objects.claim("mine"))
    claim = objects.wait_ready(engine, objects.claims(namespace, "mine"))
    adopted = claim["status"]["sandbox"]["name"]
    assert adopted in warm, "a Sandbox of the pool"
    sandbox = engine.api.must("GET", objects.sandboxes(namespace, adopted))
    [owner] = sandbox["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("SandboxClaim", "mine", claim["metadata"]["uid"])
    pod = engine.api.must("GET", f"/api/v1/namespaces/{namespace}/pods/{adopted}")
    assert pod["metadata"]["uid"] == warm[adopted], "the Pod was not restarted"
    wait_pool(engine, namespace, 3)
    engine.api.must("DELETE", objects.claims(namespace, "mine"))
    objects.wait_gone(engine, objects.sandboxes(namespace, adopted))


def test_a_burst_never_shares_a_sandbox(engine):
    """More concurrent claims than warm Sandboxes: each claim gets its own Sandbox, warm or cold."""
    namespace = engine.namespace()
    setup_pool(engine, namespace, 10)
    names = [f"claim-{i}" for i in range(25)]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda name: engine.api.must("POST", objects.claims(namespace), objects.claim(name)), names))
    claims = [objects.wait_ready(engine, objects.claims(namespace, name)) for name in names]
    bound = [claim["status"]["sandbox"]["name"] for claim in claims]
    assert len(set(bound)) == len(names)
    owners = {
        sandbox["metadata"]["name"]: sandbox["metadata"]["ownerReferences"][0]["uid"]
        for sandbox in engine.api.must("GET", objects.sandboxes(namespace))["items"]
    }
    assert all(owners[claim["status"]["sandbox"]["name"]] == claim["metadata"]["uid"] for claim in claims)
    wait_pool(engine, namespace, 10)


def test_scaling_a_pool(engine):
    namespace = engine.namespace()
    setup_pool(engine, namespace, 2)
    engine.kubectl("-n", namespace, "scale", "swp", "p", "--replicas=5")
    wait_pool(engine, namespace, 5)
    engine.kubectl("-n", namespace, "scale", "swp", "p", "--replicas=0")
    engine.api.eventually("the pool is empty", lambda: not pods(engine, namespace))


def test_missing_references_are_reported_and_resolved_later(engine):
    namespace = engine.namespace()
    path = objects.claims(namespace, "early")
    engine.api.must("POST", objects.claims(namespace), objects.claim("early"))
    reason = lambda: objects.condition(engine.api.must("GET", path)).get("reason")
    engine.api.eventually("no pool", lambda: reason() == "WarmPoolNotFound")
    engine.api.must("POST", objects.extension(namespace, "sandboxwarmpools"), objects.pool("p", 0))
    engine.api.eventually("no template", lambda: reason() == "TemplateNotFound")
    engine.api.must("POST", objects.extension(namespace, "sandboxtemplates"), objects.template("t"))
    objects.wait_ready(engine, path)


def test_an_expired_claim_is_deleted(engine):
    namespace = engine.namespace()
    setup_pool(engine, namespace, 1)
    past = {"shutdownTime": "2020-01-01T00:00:00Z", "shutdownPolicy": "Delete"}
    engine.api.must("POST", objects.claims(namespace), objects.claim("late", lifecycle=past))
    objects.wait_gone(engine, objects.claims(namespace, "late"))
    keep = {"shutdownTime": "2020-01-01T00:00:00Z"}
    engine.api.must("POST", objects.claims(namespace), objects.claim("kept", lifecycle=keep))
    kept = objects.claims(namespace, "kept")
    engine.api.eventually("it says so", lambda: objects.condition(engine.api.must("GET", kept)).get("reason") == "ClaimExpired")


def test_deleting_a_namespace_deletes_everything_in_it(engine):
    namespace = engine.namespace()
    setup_pool(engine, namespace, 2)
    engine.api.must("POST", objects.claims(namespace), objects.claim("mine"))
    objects.wait_ready(engine, objects.claims(namespace, "mine"))
    engine.api.must("DELETE", f"/api/v1/namespaces/{namespace}")
    objects.wait_gone(engine, f"/api/v1/namespaces/{namespace}", within=90)


def test_kubectl_shows_the_columns(engine):
    namespace = engine.namespace()
    setup_pool(engine, namespace, 1)
    engine.api.must("POST", objects.claims(namespace), objects.claim("mine"))
    objects.wait_ready(engine, objects.claims(namespace, "mine"))
    shown = engine.kubectl("-n", namespace, "get", "sandboxclaims,swp,sandboxes", "--no-headers").stdout
    assert "sandboxclaim.extensions.agents.x-k8s.io/mine" in shown and "True" in shown
    engine.kubectl("-n", namespace, "wait", "--for=condition=Ready", "sandboxclaim/mine", "--timeout=20s")
    # The adopted Sandbox's conditions get the new observedGeneration soon, which `kubectl wait` checks.
    adopted = engine.api.must("GET", objects.claims(namespace, "mine"))["status"]["sandbox"]["name"]
    engine.kubectl("-n", namespace, "wait", "--for=condition=Ready", f"sandbox/{adopted}", "--timeout=5s")
    described = engine.kubectl("-n", namespace, "describe", "sandboxclaim", "mine").stdout
    assert "Events:" in described
