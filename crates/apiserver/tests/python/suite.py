"""The published Python `kubernetes` client against a running server: list, watch, patch, streams.

Run by `tests/python_client.rs` with KUBECONFIG set; the first argument is a loopback port that answers in upper case.
Each check is a function; its docstring names the behaviour it shows.
"""

import sys
import threading
import time
import traceback

import kubernetes
from kubernetes import client, config, dynamic, watch
from kubernetes.client.rest import ApiException
from kubernetes.stream import portforward, stream

GROUP, VERSION, NAMESPACE = "extensions.agents.x-k8s.io", "v1beta1", "default"
CLAIMS = (GROUP, VERSION, NAMESPACE, "sandboxclaims")
SANDBOXES = ("agents.x-k8s.io", VERSION, NAMESPACE, "sandboxes")


def claim(name, labels=None):
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "SandboxClaim",
        "metadata": {"name": name, "labels": labels or {}, "annotations": {}},
        "spec": {"warmPoolRef": {"name": "pool"}},
    }


def status_of(call, *arguments, **named):
    try:
        call(*arguments, **named)
    except ApiException as error:
        return error.status
    return 200


def check_claims_are_created_read_and_listed(custom, core):
    """D-192, D-193, D-197, D-198: create (this client sends no Content-Type), conflict, labels."""
    made = custom.create_namespaced_custom_object(*CLAIMS, claim("one", {"a": "b"}))
    assert made["metadata"]["uid"] and made["metadata"]["resourceVersion"], made
    assert made["spec"]["warmPoolRef"] == {"name": "pool"}
    assert status_of(custom.create_namespaced_custom_object, *CLAIMS, claim("one")) == 409
    custom.create_namespaced_custom_object(*CLAIMS, claim("two"))
    listed = custom.list_namespaced_custom_object(*CLAIMS, label_selector="a=b")
    assert listed["kind"] == "SandboxClaimList", listed["kind"]
    assert [item["metadata"]["name"] for item in listed["items"]] == ["one"]
    assert status_of(custom.get_namespaced_custom_object, *CLAIMS, "none") == 404


def check_watch_delivers_what_happened_before_it_began(custom, core):
    """D-183, D-186: from the version of the create response, of that claim only."""
    made = custom.create_namespaced_custom_object(*CLAIMS, claim("watched"))
    status = {"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "DependenciesReady", "message": "", "lastTransitionTime": "2024-01-01T00:00:00Z"}], "sandbox": {"name": "box"}}}
    custom.patch_namespaced_custom_object_status(*CLAIMS, "watched", status)
    custom.create_namespaced_custom_object(*CLAIMS, claim("unrelated"))
    events = watch.Watch().stream(
        custom.list_namespaced_custom_object, *CLAIMS,
        field_selector="metadata.name=watched", resource_version=made["metadata"]["resourceVersion"], timeout_seconds=5,
    )
    first = next(iter(events))
    assert first["type"] == "MODIFIED", first
    assert first["object"]["status"]["sandbox"]["name"] == "box", first


def check_watch_from_nowhere_starts_with_what_there_is(custom, core):
    """D-184: absent version and version 0; the server ends the stream after timeoutSeconds."""
    for named in ({}, {"resource_version": "0"}):
        began = time.monotonic()
        seen = [
            (event["type"], event["object"]["metadata"]["name"])
            for event in watch.Watch().stream(
                custom.list_namespaced_custom_object, *CLAIMS, field_selector="metadata.name=one", timeout_seconds=1, **named
            )
        ]
        assert seen == [("ADDED", "one")], seen
        assert 0.5 < time.monotonic() - began < 5


def check_an_expired_version_is_refused(custom, core):
    """D-185: once the history has moved on, 410; starting over at 0 works."""
    map_ = client.V1ConfigMap(metadata=client.V1ObjectMeta(name="churn"), data={"n": "", "bulk": "x" * 200_000})
    old = core.create_namespaced_config_map(NAMESPACE, map_).metadata.resource_version
    for n in range(150):
        core.patch_namespaced_config_map("churn", NAMESPACE, {"data": {"n": str(n)}})

    def watched(version):
        return watch.Watch().stream(
            core.list_namespaced_config_map, NAMESPACE,
            field_selector="metadata.name=churn", resource_version=version, timeout_seconds=5,
        )

    try:
        next(iter(watched(old)))
        raise AssertionError("the old version was accepted")
    except ApiException as error:
        assert error.status == 410, error.status
    first = next(iter(watched("0")))
    assert first["type"] == "ADDED" and first["object"].data["n"] == "149", first["type"]
    core.delete_namespaced_config_map("churn", NAMESPACE)


def check_patches(custom, core):
    """Merge patch of a custom resource, strategic and JSON patch of a built-in one."""
    custom.patch_namespaced_custom_object(*CLAIMS, "one", {"metadata": {"annotations": {"note": "yes"}}})
    custom.patch_namespaced_custom_object(*CLAIMS, "one", {"metadata": {"annotations": {"other": None}}})
    read = custom.get_namespaced_custom_object(*CLAIMS, "one")
    assert read["metadata"]["annotations"]["note"] == "yes", read["metadata"]
    core.create_namespaced_config_map(NAMESPACE, client.V1ConfigMap(metadata=client.V1ObjectMeta(name="map"), data={"a": "1"}))
    patched = core.patch_namespaced_config_map("map", NAMESPACE, {"data": {"b": "2"}})
    assert patched.data == {"a": "1", "b": "2"}, patched.data
    patched = core.patch_namespaced_config_map("map", NAMESPACE, [{"op": "remove", "path": "/data/a"}])
    assert patched.data == {"b": "2"}, patched.data
    patched.metadata.resource_version = "1"
    assert status_of(core.replace_namespaced_config_map, "map", NAMESPACE, patched) == 409


def check_both_versions_of_a_sandbox(custom, core):
    """D-211 (the API half): v1alpha1 replicas and v1beta1 operatingMode are one thing."""
    sandbox = {
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": "box"},
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "host"}]}}},
    }
    custom.create_namespaced_custom_object(*SANDBOXES, sandbox)
    custom.patch_namespaced_custom_object(*SANDBOXES, "box", {"spec": {"operatingMode": "Suspended"}})
    old = custom.get_namespaced_custom_object("agents.x-k8s.io", "v1alpha1", NAMESPACE, "sandboxes", "box")
    assert old["spec"]["replicas"] == 0, old["spec"]


def check_deletes(custom, core):
    """D-194, D-195: a stale uid is refused, a second delete finds nothing."""
    wrong = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid="not-this-one"))
    assert status_of(custom.delete_namespaced_custom_object, *CLAIMS, "one", body=wrong) == 409
    custom.get_namespaced_custom_object(*CLAIMS, "one")
    custom.delete_namespaced_custom_object(*CLAIMS, "one")
    assert status_of(custom.delete_namespaced_custom_object, *CLAIMS, "one") == 404


def check_typed_lists_and_dynamic_discovery(custom, core):
    names = {item.metadata.name for item in core.list_namespace().items}
    assert {"default", "kube-system"} <= names, names
    resources = dynamic.DynamicClient(core.api_client).resources
    sandboxes = resources.get(api_version="agents.x-k8s.io/v1beta1", kind="Sandbox")
    assert sandboxes.namespaced and "scale" not in sandboxes.name
    assert kubernetes.client.VersionApi().get_code().major == "1"


def check_exec_attach_and_logs(custom, core):
    """D-232, D-233 with this client's WebSockets."""
    answer = stream(
        core.connect_get_namespaced_pod_exec, "p", NAMESPACE, command=["sh", "-c", "echo out; echo err >&2; exit 4"],
        stdout=True, stderr=True, stdin=False, tty=False, _preload_content=False,
    )
    answer.run_forever(timeout=10)
    assert (answer.read_stdout(), answer.read_stderr()) == ("out\n", "err\n")
    assert answer.returncode == 4, answer.returncode
    assert core.read_namespaced_pod_log("p", NAMESPACE, tail_lines=1) == "fourth\n"
    followed = core.read_namespaced_pod_log("p", NAMESPACE, follow=True, tail_lines=0, _preload_content=False)
    assert followed.read() == b"later 0\nlater 1\n"


def check_port_forward(custom, core):
    port = int(sys.argv[1])
    forwarder = portforward(core.connect_get_namespaced_pod_portforward, "p", NAMESPACE, ports=str(port))
    connection = forwarder.socket(port)
    connection.setblocking(True)
    connection.settimeout(10)
    connection.sendall(b"hello")
    assert connection.recv(5) == b"HELLO"
    connection.close()


def check_watch_is_live(custom, core):
    """A change made while the watch runs arrives at once."""
    version = core.list_namespaced_config_map(NAMESPACE).metadata.resource_version
    timer = threading.Timer(0.3, lambda: core.patch_namespaced_config_map("map", NAMESPACE, {"data": {"live": "yes"}}))
    timer.start()
    for event in watch.Watch().stream(core.list_namespaced_config_map, NAMESPACE, resource_version=version, timeout_seconds=10):
        assert event["type"] == "MODIFIED" and event["object"].data["live"] == "yes", event
        break
    timer.join()


def check_a_wrong_token_is_refused(custom, core):
    settings = client.Configuration.get_default_copy()
    settings.refresh_api_key_hook = None
    settings.api_key = {name: "Bearer wrong" for name in settings.api_key}
    outsider = client.CoreV1Api(client.ApiClient(settings))
    assert status_of(outsider.list_namespace) == 401


def main():
    config.load_kube_config()
    custom, core = client.CustomObjectsApi(), client.CoreV1Api()
    failed = 0
    for name, check in list(globals().items()):
        if not name.startswith("check_"):
            continue
        try:
            check(custom, core)
            print("ok", name)
        except Exception:
            failed += 1
            print("FAILED", name)
            traceback.print_exc(file=sys.stdout)
    sys.exit(1 if failed else 0)


main()
