"""A real deep agent's backend on a real engine: `deepagents` drives, the sandbox obeys."""

import pytest
from which_sdk import OURS

if not OURS:
    pytest.skip("this integration is ours", allow_module_level=True)
pytest.importorskip("deepagents")

from k8s_agent_sandbox import SandboxClient  # noqa: E402
from k8s_agent_sandbox.deepagents import LABEL_PREFIX, SandboxBackend  # noqa: E402

# The directory of upstream's runtime, in an image of ours.
TEMPLATE = """
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxTemplate
metadata: {name: deep-agents, namespace: default}
spec:
  networkPolicyManagement: Unmanaged
  podTemplate:
    metadata: {annotations: {runtime.agents.x-k8s.io/inject-sandboxd: "true"}}
    spec:
      containers:
      - name: sandbox
        image: host
        workingDir: /app
        volumeMounts: [{name: app, mountPath: /app}]
        readinessProbe: {httpGet: {path: /, port: 8888}, periodSeconds: 1}
      volumes: [{name: app, emptyDir: {}}]
"""


@pytest.fixture(scope="module")
def client(engine):
    applied = engine.kubectl("apply", "-f", "-", input=TEMPLATE)
    assert applied.returncode == 0, applied.stderr
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(engine.kubeconfig))
        yield SandboxClient()


@pytest.fixture(scope="module")
def backend(client):
    backend = SandboxBackend.find_or_create(client, "deep-agents", {"thread": "paths"}, root="/app/work")
    yield backend
    backend.sandbox.terminate()


def test_commands_uploads_and_downloads_agree_on_paths(backend):
    """D-253: relative or absolute, below the root, beside it, and outside the runtime's base directory."""
    assert backend.execute("pwd").output == "/app/work\n"
    cases = ["a.txt", "deep/er/b.txt", "/app/work/c.txt", "/app/beside.txt", "/tmp/outside/d.txt", "a b \"q\" 'r'.txt"]
    uploaded = backend.upload_files([(path, path.encode()) for path in cases])
    assert [answer.error for answer in uploaded] == [None] * len(cases)
    for path, answer in zip(cases, backend.download_files(cases)):
        assert (answer.path, answer.content, answer.error) == (path, path.encode(), None)
    from shlex import quote

    for path in cases:
        assert backend.execute(f"cat {quote(path)}").output == path
    backend.execute("mkdir -p made && printf made > made/file && printf out > /tmp/made")
    contents = [answer.content for answer in backend.download_files(["made/file", "/app/work/made/file", "/tmp/made"])]
    assert contents == [b"made", b"made", b"out"]
    assert backend.execute("ls -A /app").output.split() == ["beside.txt", "work"], "nothing is left over"


def test_failures_use_the_error_names_of_deep_agents(backend):
    backend.execute("mkdir -p folder")
    errors = [answer.error for answer in backend.download_files(["missing", "folder", "/tmp/missing", ""])]
    assert errors == ["file_not_found", "is_directory", "file_not_found", "invalid_path"]
    mixed = backend.upload_files([("folder", b""), ("/proc/x", b""), ("good", b"x")])
    assert mixed[0].error == "is_directory" and mixed[1].error == "permission_denied" and mixed[2].error is None
    failed = backend.execute("echo out; echo err >&2; exit 3")
    assert (failed.exit_code, sorted(failed.output.split())) == (3, ["err", "out"])
    assert backend.execute("sleep 30", timeout=1).exit_code != 0


def test_the_tools_of_a_deep_agent_work(backend):
    """The operations that `deepagents` builds from commands and transfers."""
    assert backend.write("/app/work/tool.py", "print('one')\nprint('two')\n").error is None
    read = backend.read("/app/work/tool.py")
    assert read.error is None and "print('two')" in str(read.file_data)
    assert backend.edit("/app/work/tool.py", "'two'", "'three'").error is None
    assert backend.execute("cat tool.py").output == "print('one')\nprint('three')\n"
    listed = backend.ls("/app/work")
    assert listed.error is None and any("tool.py" in entry["path"] for entry in listed.entries)
    found = backend.grep("three", "/app/work")
    assert found.error is None and any("tool.py" in match["path"] for match in found.matches)


def test_a_conversation_finds_its_sandbox_again(client, backend):
    again = SandboxBackend.find_or_create(client, "deep-agents", {"thread": "paths"}, root="/app/work")
    assert again.id == backend.id
    claims = client.list_all_sandboxes(label_selector=f"{LABEL_PREFIX}thread=paths")
    assert claims == [backend.id]
    with pytest.raises(ValueError, match="labels"):
        SandboxBackend.find_or_create(client, "deep-agents", {})
