"""The first published SDKs (0.1 to 0.3), unmodified, and Google's Agent Development Kit, which is written for their interface.

0.1 and 0.2 have one class that is a context manager and watches for a Sandbox with the claim's name, which only a cold start has: the tests use
a template without a pool.
"""

import atexit
import json
import uuid

import pytest
from which_sdk import EARLY, VERSION

pytestmark = pytest.mark.skipif(not EARLY, reason="for versions 0.1 to 0.3")

TEMPLATE = {
    "apiVersion": "extensions.agents.x-k8s.io/v1alpha1",
    "kind": "SandboxTemplate",
    "spec": {"podTemplate": {"spec": {"containers": [{
        "name": "python-runtime",
        "image": "python-runtime-sandbox",
        "ports": [{"containerPort": 8888}],
        "readinessProbe": {"httpGet": {"path": "/", "port": 8888}, "periodSeconds": 1},
    }]}}},
}


@pytest.fixture
def template(engine):
    name = f"early-{uuid.uuid4().hex[:8]}"
    manifest = json.dumps({**TEMPLATE, "metadata": {"name": name, "namespace": "default"}})
    applied = engine.kubectl("apply", "-f", "-", input=manifest)
    assert applied.returncode == 0, applied.stderr
    yield name
    engine.kubectl("delete", "sandboxtemplate", name, "-n", "default")


def claims(engine):
    return engine.kubectl("get", "sandboxclaims", "-n", "default", "-o", "name").stdout.split()


@pytest.mark.skipif(not VERSION.startswith(("0.1.", "0.2.")), reason="0.3 has another interface")
def test_the_client_as_a_context_manager(engine, template):
    from k8s_agent_sandbox import SandboxClient

    with SandboxClient(template_name=template, namespace="default") as sandbox:
        assert sandbox.run("echo hello").stdout == "hello\n"
        sandbox.write("note.txt", "kept")
        assert sandbox.read("note.txt") == b"kept"
        assert [entry.name for entry in sandbox.list(".") if entry.type == "file"] == ["note.txt"]
        assert (sandbox.exists("note.txt"), sandbox.exists("other")) == (True, False)
        failed = sandbox.run("sh -c 'echo broken >&2; exit 4'")
        assert (failed.exit_code, failed.stderr) == (4, "broken\n")
        assert claims(engine) == [f"sandboxclaim.extensions.agents.x-k8s.io/{sandbox.claim_name}"]
    assert claims(engine) == []


@pytest.mark.skipif(not VERSION.startswith("0.3."), reason="from 0.3 on")
def test_the_client_as_a_registry(engine, template):
    from k8s_agent_sandbox import SandboxClient

    client = SandboxClient()
    sandbox = client.create_sandbox(template=template, namespace="default")
    assert sandbox.commands.run("echo hello").stdout == "hello\n"
    sandbox.files.write("note.txt", "kept")
    assert sandbox.files.read("note.txt") == b"kept"
    same = client.get_sandbox(sandbox.claim_name)
    assert same.files.exists("note.txt")
    sandbox.terminate()
    assert claims(engine) == []
    # Otherwise it would look for the sandbox again when Python exits, after the engine.
    atexit.unregister(client.delete_all)


@pytest.mark.skipif(not VERSION.startswith("0.1."), reason="installed beside 0.1 only")
def test_the_agent_development_kit_runs_code_in_a_sandbox(engine, template):
    """`GkeCodeExecutor(executor_type="sandbox")` of google-adk calls SandboxClient(template_name=…), write and run."""
    from google.adk.code_executors.code_execution_utils import CodeExecutionInput
    from google.adk.code_executors.gke_code_executor import GkeCodeExecutor

    executor = GkeCodeExecutor(
        kubeconfig_path=str(engine.kubeconfig), executor_type="sandbox", sandbox_template=template, namespace="default"
    )
    result = executor.execute_code(None, CodeExecutionInput(code="import sys\nprint(6 * 7)\nprint('warned', file=sys.stderr)\n"))
    assert (result.stdout, result.stderr) == ("42\n", "warned\n")
    failed = executor.execute_code(None, CodeExecutionInput(code="1 / 0"))
    assert "ZeroDivisionError" in failed.stderr
    assert claims(engine) == []
