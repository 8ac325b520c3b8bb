"""Guarantees that only our Python SDK makes, on a real engine: interrupts, forks, threads, expiry, dialects, helpful errors."""

import asyncio
import os
import pathlib
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from conftest import BINARY, purge
from which_sdk import OURS, token_headers

if not OURS:
    pytest.skip("these are our SDK's promises", allow_module_level=True)

from agent_sandbox import AsyncClient, Client, Connection, Sandbox, SandboxError, errors  # noqa: E402
from k8s_agent_sandbox import SandboxClient  # noqa: E402

SOURCE = "python-sandbox-template"


@pytest.fixture
def client(engine):
    return Client(kubeconfig=str(engine.kubeconfig))


def program(engine, code, **options):
    """Starts a Python program of its own against the engine."""
    environment = {**os.environ, "KUBECONFIG": str(engine.kubeconfig)}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    # A shell starts background jobs with SIGINT ignored, and Python leaves it ignored.
    heard = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heard, **options
    )


def wait_until(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


@pytest.mark.parametrize("connection", [Connection.tunnel(), Connection.pod(), None], ids=["tunnel", "pod", "direct"])
def test_every_way_to_connect(engine, connection):
    connection = connection or Connection.direct(engine.router, token_headers(engine))
    client = Client(connection, kubeconfig=str(engine.kubeconfig))
    with client.sandbox() as sandbox:
        assert sandbox.run("echo hi").stdout == "hi\n"
        sandbox.files.write("x", b"\0\xff")
        assert sandbox.files.read("x") == b"\0\xff"


def test_the_local_engine_is_found_without_a_kubeconfig(engine):
    with Client(data_dir=str(engine.folder)).sandbox() as sandbox:
        assert sandbox.run("echo found").stdout == "found\n"


def test_a_sandbox_from_an_image(client):
    with client.sandbox("host", env={"WORD": "x"}, memory="256Mi") as sandbox:
        assert sandbox.run("echo $WORD").stdout == "x\n" and sandbox.claim is None
        name = sandbox.name
    with pytest.raises(errors.SandboxNotFoundError, match=name):
        wait_until(lambda: client.get(name) is None)


def test_the_history_has_the_commands_of_every_client(engine, client):
    with client.sandbox("host") as sandbox:
        sandbox.run("echo words; exit 3")
        engine.cli("exec", sandbox.name, "--", "echo", "from the command line")
        past = sandbox.history()
        assert [(entry.id, entry.exit_code) for entry in past] == [(1, 3), (2, 0)]
        assert past[1].argv == ["echo", "from the command line"] and past[1].stdout is None
        assert sandbox.history(1)[0].id == 2
        assert sandbox.history_entry(1).stdout == "words\n"


def test_code_keeps_its_variables(client):
    with client.sandbox("host") as sandbox:
        first = sandbox.run_code("import os\nx = 20\nprint('out')\nx + 1")
        assert (first.text, first.stdout, first.error) == ("21", "out\n", None), first
        assert sandbox.run_code("x * 2, os.environ['ONE_RUN']", env={"ONE_RUN": "1"}).text == "(40, '1')"
        failed = sandbox.run_code("1/0")
        assert failed.error is not None and failed.error.name == "ZeroDivisionError" and failed.text is None
        shown = sandbox.run_code("class A:\n    def _repr_html_(self): return '<b>'\ndisplay(A())")
        assert [result.formats["html"] for result in shown.results] == ["<b>"] and not shown.results[0].is_main_result
        context = sandbox.create_code_context("/tmp")
        assert sandbox.run_code("y = 1\nos = __import__('os')\nos.getcwd()", context=context).text == "/tmp"
        assert sandbox.run_code("y").error is not None, "contexts share no variables"
        assert {one.id for one in sandbox.code_contexts()} >= {context.id}
        sandbox.restart_code_context(context)
        assert sandbox.run_code("y", context=context.id).error is not None
        sandbox.remove_code_context(context)
        with pytest.raises(SandboxError, match="does not exist"):
            sandbox.run_code("1", context=context)
        with pytest.raises(errors.SandboxTimeoutError):
            sandbox.run_code("import time; time.sleep(300)", timeout=1)
        assert sandbox.run_code("x").text == "20", "it was interrupted, not ended"


def test_code_runs_asynchronously(engine):
    async def run():
        async with AsyncClient(kubeconfig=str(engine.kubeconfig)).sandbox("host") as sandbox:
            assert (await sandbox.run_code("x = 6 * 7\nx")).text == "42"
            assert (await sandbox.run_code("x")).text == "42"

    asyncio.run(run())


def test_the_older_minimal_api(engine, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(engine.kubeconfig))
    from agentic_sandbox_client import SandboxClient as Older

    sandbox = Older().create_sandbox(name="older-one-liner", image="host")
    try:
        assert sandbox.execute("echo Hello").stdout == "Hello\n"
    finally:
        sandbox.delete()
        sandbox.delete()


def test_a_claim_is_deleted_when_it_expires(engine, monkeypatch):
    """D-191."""
    monkeypatch.setenv("KUBECONFIG", str(engine.kubeconfig))
    client = SandboxClient()
    name = client.create_sandbox(SOURCE, shutdown_after_seconds=3).claim_name
    assert name in client.list_all_sandboxes()
    wait_until(lambda: name not in client.list_all_sandboxes())


def test_suspend_and_resume_through_the_snapshot_client(engine, monkeypatch):
    """D-211: files and name stay."""
    monkeypatch.setenv("KUBECONFIG", str(engine.kubeconfig))
    from k8s_agent_sandbox.gke_extensions.snapshots import PodSnapshotSandboxClient

    client = PodSnapshotSandboxClient()
    sandbox = client.create_sandbox(SOURCE)
    try:
        sandbox.files.write("kept.txt", "kept")
        assert not sandbox.suspend().success, "memory cannot be saved, and that is said"
        assert sandbox.suspend(snapshot_before_suspend=False).success and sandbox.is_suspended()
        assert sandbox.resume().success and not sandbox.is_suspended()
        assert sandbox.files.read("kept.txt") == b"kept"
    finally:
        sandbox.terminate()


SANDBOXD_TEMPLATE = """
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxTemplate
metadata: {name: sandboxd-ports, namespace: default}
spec:
  networkPolicyManagement: Unmanaged
  podTemplate:
    metadata: {annotations: {runtime.agents.x-k8s.io/inject-sandboxd: "true"}}
    spec:
      containers:
      - name: sandbox
        image: host
        command: [/bin/sh, -c, "exec /.agent-sandbox/sandboxd --listen 0.0.0.0:8080 --listen 0.0.0.0:9090 --root-dir /tmp"]
        readinessProbe: {httpGet: {path: /v1/health, port: 8080}, periodSeconds: 1}
"""


def test_the_sandboxd_dialect_through_one_tunnel(engine, monkeypatch):
    """D-207: files over REST and commands over gRPC, on two ports of the Pod; the asynchronous client as well."""
    monkeypatch.setenv("KUBECONFIG", str(engine.kubeconfig))
    from k8s_agent_sandbox import AsyncSandboxClient
    from k8s_agent_sandbox.models import SandboxdPodTunnelConnectionConfig

    applied = engine.kubectl("apply", "-f", "-", input=SANDBOXD_TEMPLATE)
    assert applied.returncode == 0, applied.stderr
    config = SandboxdPodTunnelConnectionConfig()
    sandbox = SandboxClient(connection_config=config).create_sandbox(template="sandboxd-ports")
    try:
        result = sandbox.commands.run("echo $WORD; pwd; exit 3", env={"WORD": "w"}, cwd="/tmp")
        assert (result.stdout.splitlines()[0], result.exit_code) == ("w", 3)
        sandbox.files.write("dir/x.txt", "abc")
        assert sandbox.files.read("dir/x.txt") == b"abc" and sandbox.files.exists("dir/x.txt")
        entry = sandbox.files.list("dir")[0]
        assert (entry.name, entry.size, entry.type) == ("x.txt", 3, "file") and entry.mode and entry.mod_time > 0
        sandbox.files.delete("dir", recursive=True)
        assert not sandbox.files.exists("dir")
        assert sandbox.commands.run("sleep 30", command_timeout=0.5).timed_out

        async def again():
            client = AsyncSandboxClient(connection_config=config, cleanup=False)
            found = await client.get_sandbox(sandbox.claim_name)
            assert (await found.commands.run("echo async")).stdout == "async\n"

        asyncio.run(again())
    finally:
        sandbox.terminate()


def test_an_interrupt_ends_a_call_at_once_and_the_command_with_it(engine, client):
    """Ctrl-C: the call raises, and nothing keeps running in the sandbox."""
    with client.sandbox() as sandbox:
        code = f"""
            from agent_sandbox import Client
            sandbox = Client().get({sandbox.claim!r})
            sandbox.run("true")
            print("waiting", flush=True)
            try:
                sandbox.run("echo $$ > pid; exec sleep 600")
            except KeyboardInterrupt:
                print("interrupted", flush=True)
        """
        started = program(engine, code)
        assert started.stdout.readline() == "waiting\n"
        wait_until(lambda: sandbox.files.exists("pid"))
        begun = time.monotonic()
        started.send_signal(signal.SIGINT)
        assert started.stdout.readline() == "interrupted\n", started.stderr.read()
        assert time.monotonic() - begun < 5
        assert started.wait(20) == 0
        wait_until(lambda: sandbox.run("kill -0 $(cat pid)").exit_code != 0)


def test_an_interrupted_creation_leaves_nothing(engine, client):
    before = set(client.list())
    # No node can run this image, so the claim never becomes ready.
    code = """
        from agent_sandbox import Client
        client = Client()
        client.create_pool("never-ready", "registry.invalid/no/such:image", replicas=0)
        print("creating", flush=True)
        client.sandbox(pool="never-ready").open()
    """
    started = program(engine, code)
    try:
        assert started.stdout.readline() == "creating\n", started.stderr.read()
        wait_until(lambda: set(client.list()) - before)
        created = set(client.list()) - before
        started.send_signal(signal.SIGINT)
        assert started.wait(20) != 0 and "KeyboardInterrupt" in started.stderr.read()
        wait_until(lambda: not created & set(client.list()))
    finally:
        client.delete_pool("never-ready")


def test_no_thread_is_left_at_exit_and_cleanup_deletes(engine, client):
    code = """
        import atexit, os
        atexit.register(lambda: print("threads", len(os.listdir("/proc/self/task")), flush=True))
        from k8s_agent_sandbox import SandboxClient
        sandbox = SandboxClient(cleanup=True).create_sandbox("python-sandbox-template")
        print(sandbox.claim_name, sandbox.commands.run("true").exit_code, flush=True)
    """
    finished = program(engine, code)
    out, err = finished.communicate(timeout=60)
    name, code, *_ = out.split()
    assert finished.returncode == 0 and code == "0", err
    # Handlers run in the reverse order of their registration: this one last, when the runtime's threads have ended.
    assert out.split()[-2:] == ["threads", "1"], out
    wait_until(lambda: name not in client.list())


def test_a_forked_child_gets_a_clear_error_and_can_start_anew(engine, client):
    with client.sandbox() as sandbox:
        code = f"""
            import os
            from agent_sandbox import Client
            sandbox = Client().get({sandbox.claim!r})
            sandbox.run("true")
            if os.fork() == 0:
                try:
                    sandbox.run("true")
                except RuntimeError as error:
                    assert "fork" in str(error), error
                print(Client().get({sandbox.claim!r}).run("echo child").stdout, end="", flush=True)
                os._exit(0)
            assert os.wait()[1] == 0
            print(sandbox.run("echo parent").stdout, end="", flush=True)
        """
        out, err = program(engine, code).communicate(timeout=60)
        assert out == "child\nparent\n", err


def test_other_threads_run_while_one_waits(client):
    with client.sandbox() as sandbox:
        ticks = []
        done = threading.Event()

        def count():
            while not done.is_set():
                ticks.append(1)
                time.sleep(0.005)

        counter = threading.Thread(target=count)
        counter.start()
        sandbox.run("sleep 0.5", timeout=10)
        done.set()
        counter.join()
        assert len(ticks) > 20


def test_many_calls_at_once(engine):
    async def run():
        client = AsyncClient(kubeconfig=str(engine.kubeconfig))
        async with client.sandbox() as sandbox:
            results = await asyncio.gather(*(sandbox.run(f"echo {number}", timeout=60) for number in range(40)))
            assert [result.stdout for result in results] == [f"{number}\n" for number in range(40)]

    asyncio.run(run())


def test_cancelling_a_task_ends_the_command(engine, client):
    with client.sandbox() as watcher:

        async def run():
            sandbox = await AsyncClient(kubeconfig=str(engine.kubeconfig)).get(watcher.claim)
            task = asyncio.create_task(sandbox.run("echo $$ > pid; exec sleep 600"))
            while not await sandbox.files.exists("pid"):
                await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(run())
        wait_until(lambda: watcher.run("kill -0 $(cat pid)").exit_code != 0)


def test_errors_say_what_to_do(engine, client, tmp_path, monkeypatch):
    """Unknown template, wrong namespace, no cluster, expired credentials, deleted sandbox, too large, timeout, invalid UTF-8."""
    with pytest.raises(errors.SandboxTemplateNotFoundError, match="no-such"):
        client.sandbox(template="no-such", ready_timeout=20).open()
    with pytest.raises(errors.SandboxError, match="nowhere"):
        client.sandbox(namespace="nowhere", ready_timeout=20).open()
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AGENT_SANDBOX_DATA_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("AGENT_SANDBOX_BIN", str(tmp_path / "no-program"))
    with pytest.raises(errors.SandboxNoClusterError, match="no-program up"):
        Sandbox().open()
    text = engine.kubeconfig.read_text()
    dead = tmp_path / "dead"
    dead.write_text(text.replace(engine.api, "https://127.0.0.1:9"))
    with pytest.raises(errors.SandboxApiError, match="no answer from the Kubernetes API at https://127.0.0.1:9/ .chosen by .*dead.*Is the cluster running"):
        Client(kubeconfig=str(dead)).list()
    import re

    expired = tmp_path / "expired"
    expired.write_text(re.sub(r"token: .*", "token: expired", text))
    if "token: expired" in expired.read_text():
        with pytest.raises(errors.SandboxCredentialsError, match="renew them"):
            Client(kubeconfig=str(expired)).list()
    with client.sandbox() as sandbox:
        sandbox.run("head -c 2000000 /dev/zero > big; printf '\\377' > bytes")
        with pytest.raises(errors.SandboxTooLargeError, match="stream it"):
            sandbox.files.read("big", max_bytes=1000)
        with pytest.raises(errors.SandboxTooLargeError, match="stream it"):
            sandbox.run("head -c 2000000 /dev/zero", output_limit=1000)
        assert sandbox.run("cat bytes").stdout == "\ufffd" and sandbox.run("cat bytes").stdout_bytes == b"\xff"
        assert sandbox.run("sleep 30", timeout=0.3).timed_out
        with pytest.raises(FileNotFoundError):
            sandbox.files.read("missing")
        gone = client.get(sandbox.claim)
    wait_until(lambda: raises(errors.SandboxError, lambda: gone.run("true", timeout=5)))


def test_a_response_larger_than_memory_is_too_large(engine, monkeypatch):
    """Detected by its Content-Length, before the body is read."""
    from k8s_agent_sandbox.models import SandboxDirectConnectionConfig

    monkeypatch.setenv("KUBECONFIG", str(engine.kubeconfig))

    def answer(listener):
        connection, _ = listener.accept()
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4611686018427387904\r\n\r\nx")
        connection.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer, args=(listener,), daemon=True).start()
        config = SandboxDirectConnectionConfig(api_url=f"http://127.0.0.1:{listener.getsockname()[1]}")
        sandbox = SandboxClient(connection_config=config).create_sandbox(SOURCE)
        try:
            with pytest.raises(errors.SandboxTooLargeError, match="do not fit into memory; stream it instead"):
                sandbox.files.read("endless")
        finally:
            sandbox.terminate()


def test_sparse_files_arrive_complete(client, tmp_path):
    folder = tmp_path / "up"
    folder.mkdir()
    with open(folder / "holes", "wb") as file:
        file.write(b"begin")
        file.seek(5_000_000)
        file.write(b"end")
    with client.sandbox() as sandbox:
        sandbox.files.upload_dir(str(folder), "there")
        sandbox.files.download_dir("there", str(tmp_path / "down"))
        assert sandbox.files.read("there/holes") == (folder / "holes").read_bytes()
    assert (tmp_path / "down" / "holes").read_bytes() == (folder / "holes").read_bytes()


def test_a_large_file_round_trips(client):
    """Through the tunnel, larger than every buffer in between; it is read into memory with huge pages."""
    content = os.urandom(1 << 20) * 9 + b"tail"
    with client.sandbox() as sandbox:
        sandbox.files.write("large", content)
        assert sandbox.files.read("large") == content
        assert b"".join(sandbox.files.open("large")) == content


def raises(kind, action):
    try:
        action()
    except kind:
        return True
    return False


def test_upstreams_distribution_beside_ours_is_a_clear_error(tmp_path):
    import k8s_agent_sandbox

    package = pathlib.Path(k8s_agent_sandbox.__file__).parent
    (tmp_path / "k8s_agent_sandbox").symlink_to(package)
    (tmp_path / "k8s_agent_sandbox-1.0.8.dist-info").mkdir()
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import k8s_agent_sandbox"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert finished.returncode != 0 and "pip uninstall k8s-agent-sandbox" in finished.stderr


def test_the_wheel_alone_is_enough_for_the_first_example(engine, tmp_path):
    """No other package, no kubectl, nothing on PATH."""
    wheel = os.environ.get("AGENT_SANDBOX_WHEEL")
    if not wheel:
        pytest.skip("AGENT_SANDBOX_WHEEL does not name a wheel")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(tmp_path / "packages"), wheel]
    subprocess.run(install, check=True, timeout=120)
    example = """
        import sys
        sys.path.insert(0, "packages")
        from agent_sandbox import Sandbox
        with Sandbox() as sandbox:
            print(sandbox.run("echo hello").stdout)
    """
    environment = {"KUBECONFIG": str(engine.kubeconfig), "PATH": str(tmp_path), "HOME": str(tmp_path)}
    # -S leaves the packages of this environment out.
    command = [sys.executable, "-S", "-c", textwrap.dedent(example)]
    finished = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert finished.stdout == "hello\n\n", finished.stderr


def test_the_stubs_and_types_hold(tmp_path):
    pytest.importorskip("mypy")
    packages = [word for name in ("agent_sandbox", "agentic_sandbox_client", "k8s_agent_sandbox") for word in ("-p", name)]
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path), *packages]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stdout


def test_a_permanent_failure_ends_the_wait_with_its_reason(client):
    started = time.monotonic()
    missing = "127.0.0.1:9/missing:v1"
    with pytest.raises(errors.SandboxClaimFailedError, match="missing"):
        client.sandbox(missing, ready_timeout=170).open()
    with pytest.raises(errors.SandboxClaimFailedError, match="no-such-runtime"):
        client.sandbox("host", runtime_class="no-such-runtime", ready_timeout=170).open()
    with pytest.raises(errors.SandboxClaimFailedError, match="ended with exit code 3"):
        client.sandbox("host", command=["sh", "-c", "exit 3"], ready_timeout=170).open()
    client.create_pool("broken-py", missing, replicas=None)
    try:
        with pytest.raises(errors.SandboxClaimFailedError, match="missing"):
            client.sandbox(template="broken-py", ready_timeout=170).open()
    finally:
        client.delete_pool("broken-py")
    assert time.monotonic() - started < 120, "it waited"


def test_a_started_engine_is_announced_once(tmp_path):
    folder = tmp_path / "data"
    code = f"from agent_sandbox import Client; Client(local=True, data_dir={str(folder)!r}).list()"
    environment = {**os.environ, "AGENT_SANDBOX_BIN": str(BINARY)}
    environment.pop("KUBECONFIG")
    try:
        said = ""
        for _ in range(2):
            output = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
            assert output.returncode == 0, output.stderr
            said += output.stderr
        note = "note: started the engine on this machine; it ends when it is not used any more, or with `agent-sandbox down`\n"
        assert said == note
    finally:
        purge(folder)
