"""Behaviour of SDKs in situations that a scripted cluster and router create: ours, and the published ones where possible.

`fake_cluster.py` plays both, so that every answer and every moment is the test's choice.
"""

import asyncio
import io
import time

import pytest
from fake_cluster import FakeCluster, FakeRouter
from which_sdk import NEWEST, OLD, OURS

from k8s_agent_sandbox import SandboxClient, exceptions
from k8s_agent_sandbox.models import SandboxDirectConnectionConfig


def needs(condition, why):
    return pytest.mark.skipif(not condition, reason=f"not in this SDK: {why}")


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    fake = FakeCluster()
    fake.write_kubeconfig(tmp_path / "config")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    if not OURS:
        # The Kubernetes client reads the variable when it is imported.
        import kubernetes.config.kube_config as kube_config

        monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config"))
    with fake.server:
        yield fake


@pytest.fixture
def router():
    fake = FakeRouter()
    with fake.server:
        yield fake


@pytest.fixture
def client(cluster, router):
    return SandboxClient(connection_config=SandboxDirectConnectionConfig(api_url=router.server.url))


@pytest.fixture
def sandbox(client):
    return client.create_sandbox("pool")


@needs(not OLD, "0.4 knows no terminal reasons")
def test_a_terminal_reason_ends_the_wait_at_once(cluster, client):
    """D-188: a permanent failure is an error well before the timeout, and the claim is deleted."""
    cluster.becomes = [cluster.not_ready("InvalidMetadata")]
    begun = time.monotonic()
    with pytest.raises(exceptions.SandboxClaimFailedError, match="InvalidMetadata"):
        client.create_sandbox("pool", sandbox_ready_timeout=60)
    assert time.monotonic() - begun < 30
    wait_until(lambda: cluster.deleted == [cluster.created[0]["metadata"]["name"]])


def test_a_temporary_reason_is_waited_out(cluster, client):
    """D-188: a temporary reason is not an error, because the controller retries."""
    cluster.becomes = [cluster.not_ready("AdoptionPending"), cluster.not_ready("SandboxNotReady"), cluster.ready("box")]
    assert client.create_sandbox("pool", sandbox_ready_timeout=60).sandbox_id == "box"


def test_a_claim_that_is_deleted_meanwhile_is_an_error(cluster, client):
    """D-189."""
    cluster.becomes = [cluster.not_ready("AdoptionPending"), "DELETED"]
    with pytest.raises(exceptions.SandboxMetadataError):
        client.create_sandbox("pool", sandbox_ready_timeout=60)


def test_the_deadline_deletes_the_claim(cluster, client):
    """D-190: TimeoutError, and the claim with the generated name is deleted."""
    cluster.becomes = [cluster.not_ready("SandboxNotReady")]
    with pytest.raises(TimeoutError):
        client.create_sandbox("pool", sandbox_ready_timeout=1)
    wait_until(lambda: cluster.created[0]["metadata"]["name"] in cluster.deleted)


def test_an_expiry_is_sent_as_time_and_policy(cluster, client):
    """D-191: whole seconds in UTC, deleted then. The engine's test shows that it disappears."""
    client.create_sandbox("pool", shutdown_after_seconds=60)
    lifecycle = cluster.created[0]["spec"]["lifecycle"]
    assert lifecycle["shutdownPolicy"] == "Delete"
    assert lifecycle["shutdownTime"].endswith("Z") and "." not in lifecycle["shutdownTime"]


@pytest.mark.parametrize("seconds", [0, -1, 1.5, True])
def test_an_impossible_expiry_is_refused_before_anything_is_sent(cluster, client, seconds):
    with pytest.raises(ValueError):
        client.create_sandbox("pool", shutdown_after_seconds=seconds)
    assert cluster.created == []


def test_an_existing_claim_is_found_and_a_missing_one_is_an_error(cluster, client, sandbox):
    """D-196."""
    name = sandbox.claim_name
    assert client.get_sandbox(name) is sandbox
    sandbox.close_connection()
    again = client.get_sandbox(name)
    assert again is not sandbox and again.is_active
    client.delete_sandbox(name)
    with pytest.raises(exceptions.SandboxNotFoundError, match="not found"):
        client.get_sandbox(name, resolve_timeout=2)


@needs(not OLD, "0.4 takes the first address")
def test_the_router_is_told_an_ipv4_address(cluster, router, sandbox):
    """D-199."""
    cluster.sandbox["status"]["podIPs"] = ["fd00::5", "10.0.0.5"]
    sandbox.commands.run("true")
    assert router.headers()["x-sandbox-pod-ip"] == "10.0.0.5"
    assert router.headers()["x-sandbox-id"] == "box"
    assert router.headers()["x-sandbox-port"] == "8888"


@pytest.mark.parametrize("status", [401, 403])
def test_a_client_without_permission_to_read_sandboxes_can_use_them(cluster, router, sandbox, status):
    """D-200."""
    reason = {401: "Unauthorized", 403: "Forbidden"}[status]
    failure = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status, "reason": reason, "message": reason}
    cluster.sandbox_answer = (status, failure)
    assert sandbox.commands.run("true").stdout == "ok\n"
    assert "x-sandbox-pod-ip" not in router.headers()


def test_a_missing_file_is_a_response_not_a_lost_connection(router, sandbox):
    """D-201."""
    router.script = [(404, {"message": "File not found"})]
    with pytest.raises(exceptions.SandboxRequestError) as caught:
        sandbox.files.read("missing")
    assert caught.value.status_code == 404
    assert sandbox.commands.run("true").exit_code == 0


@needs(not OLD, "0.4 follows redirects")
def test_redirects_are_refused(router, sandbox):
    """D-202."""
    router.script = [(307, b"", [("Location", "http://127.0.0.1:9/")])]
    with pytest.raises(exceptions.SandboxRequestError):
        sandbox.files.exists("x")


def test_a_read_is_repeated_after_a_temporary_error(router, sandbox):
    """D-203."""
    router.script = [(503, b"busy")]
    assert sandbox.files.read("x") == b"content"
    assert [seen[1] for seen in router.seen] == ["/download/x", "/download/x"]


@needs(NEWEST, "before 1.0 commands are repeated")
def test_a_command_is_never_repeated(router, sandbox):
    """D-204."""
    router.script = [(502, b"bad gateway")]
    with pytest.raises(exceptions.SandboxRequestError) as caught:
        sandbox.commands.run("true")
    assert caught.value.status_code == 502
    assert len(router.seen) == 1


def test_a_gateways_address_is_used_with_router_headers(cluster, router, monkeypatch):
    """D-205: the first address of the status; port 80, on which the router listens here."""
    from k8s_agent_sandbox.models import SandboxGatewayConnectionConfig

    metadata = {"name": "gw", "namespace": "default", "uid": "g", "resourceVersion": "1"}
    # A loopback address of its own, so that port 80 does not collide with another listener.
    address = "127.77.5.1"
    cluster.gateway = {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": metadata,
        "spec": {},
        "status": {"addresses": [{"type": "IPAddress", "value": address}]},
    }
    from fake_cluster import _Handler, _Server

    try:
        front = _Server((address, 80), _Handler)
    except PermissionError:
        pytest.skip("port 80 needs privileges")
    front.cluster = router
    with front:
        client = SandboxClient(connection_config=SandboxGatewayConnectionConfig(gateway_name="gw"))
        assert client.create_sandbox("pool").commands.run("true").stdout == "ok\n"
    assert router.headers()["x-sandbox-id"] == "box" and router.headers()["host"] == address


@needs(not OLD, "0.4 asks for the address with use_pod_ip")
def test_in_cluster_requests_go_straight_to_the_pod(cluster, router):
    """D-206: the address of the status, no router headers."""
    from k8s_agent_sandbox.models import SandboxInClusterConnectionConfig

    cluster.sandbox["status"]["podIPs"] = ["127.0.0.1"]
    port = router.server.server_address[1]
    client = SandboxClient(connection_config=SandboxInClusterConnectionConfig(server_port=port))
    assert client.create_sandbox("pool").commands.run("true").stdout == "ok\n"
    assert "x-sandbox-id" not in router.headers()


@needs(OURS, "which host is dialled cannot be seen from outside")
def test_in_cluster_falls_back_to_dns(cluster):
    """D-206: without an address the sandbox's name is looked up."""
    from k8s_agent_sandbox.models import SandboxInClusterConnectionConfig

    cluster.sandbox["status"]["podIPs"] = []
    client = SandboxClient(connection_config=SandboxInClusterConnectionConfig())
    with pytest.raises(exceptions.SandboxRequestError) as caught:
        client.create_sandbox("pool").commands.run("true", timeout=5)
    assert "dns" in str(caught.value).lower()


@needs(NEWEST, "sandboxd came with 1.0")
def test_service_mode_needs_a_service(cluster):
    """D-208."""
    from k8s_agent_sandbox.models import SandboxdInClusterConnectionConfig

    client = SandboxClient(connection_config=SandboxdInClusterConnectionConfig(mode="in-cluster-service"))
    with pytest.raises(exceptions.SandboxNoServiceError):
        client.create_sandbox("pool").files.read("x")


@needs(NEWEST, "read_to came with 1.0")
def test_a_file_that_is_too_large_is_refused_before_it_is_read(router, sandbox):
    """D-210."""
    target = io.BytesIO()
    router.script = [(200, b"x" * 1000)]
    with pytest.raises(RuntimeError, match="exceeds limit of 10 bytes"):
        sandbox.files.read_to("x", target, max_bytes=10)
    assert target.getvalue() == b""


def test_a_query_reaches_the_agent_in_the_sandbox(cluster, router):
    """D-213."""
    from k8s_agent_sandbox.extensions.computer_use import ComputerUseSandboxClient

    client = ComputerUseSandboxClient(connection_config=SandboxDirectConnectionConfig(api_url=router.server.url))
    router.script = [(200, {"stdout": "seen", "stderr": "e", "exit_code": 3})]
    answer = client.create_sandbox("pool").agent("what is on the screen?")
    assert (answer.stdout, answer.stderr, answer.exit_code) == ("seen", "e", 3)
    method, path, _, body = router.seen[-1]
    assert (method, path) == ("POST", "/agent") and b"what is on the screen?" in body


@needs(OURS, "OpenTelemetry is not installed with the published SDKs here")
def test_a_traced_claim_carries_its_context(cluster, router):
    """D-214, and the same trace goes to the router."""
    pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry import trace

    from k8s_agent_sandbox.models import SandboxTracerConfig

    config = SandboxTracerConfig(enable_tracing=True)
    direct = SandboxDirectConnectionConfig(api_url=router.server.url)
    client = SandboxClient(connection_config=direct, tracer_config=config)
    with trace.get_tracer("test").start_as_current_span("outer") as span:
        client.create_sandbox("pool")
        trace_id = f"{span.get_span_context().trace_id:032x}"
    assert trace_id in cluster.created[0]["metadata"]["annotations"]["opentelemetry.io/trace-context"]


@needs(OURS, "the published async client has no tunnel and its extras are not installed here")
def test_the_async_client_does_the_same(cluster, router):
    """D-209: and `.` can be listed and tested."""
    from k8s_agent_sandbox import AsyncSandboxClient

    async def use():
        config = SandboxDirectConnectionConfig(api_url=router.server.url)
        async with AsyncSandboxClient(connection_config=config) as client:
            sandbox = await client.create_sandbox("pool")
            assert (await sandbox.commands.run("true")).stdout == "ok\n"
            assert await sandbox.files.list(".") == [] and await sandbox.files.exists(".")
            return sandbox.claim_name

    name = asyncio.run(use())
    assert cluster.deleted == [name], "the end of the block deletes what was created"


@needs(OURS, "an answer of ours")
def test_an_unknown_name_gives_an_error_that_names_both_kinds(cluster, client, monkeypatch):
    """D-187: the pool is looked up first, then the template; the error may be either's."""
    monkeypatch.setattr(FakeCluster, "handle", lambda self, request: request.answer(404, {"code": 404, "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "message": "not found"}))
    with pytest.raises(exceptions.SandboxWarmPoolNotFoundError, match="neither a warm pool nor a template"):
        client.create_sandbox("nothing")
    with pytest.raises(exceptions.SandboxTemplateNotFoundError):
        client.create_sandbox(template="nothing")


def wait_until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
