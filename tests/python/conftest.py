"""One engine for all tests of a run: `agent-sandbox up` with its own folder and ports."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time

import pytest
from which_sdk import VERSION

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("AGENT_SANDBOX_BIN", str(ROOT / "target" / "debug" / "agent-sandbox"))
READY = 60
# Set by `second_engine.py` when an engine already runs: how its sandboxes are reached. KUBECONFIG refers to it.
GIVEN = os.environ.get("AGENT_SANDBOX_TEST_CONNECTION")
FOLDER = tempfile.mkdtemp(prefix="agent-sandbox-test-")
if not GIVEN:
    # The Kubernetes client reads the variable once, when it is imported, so it must be set before test modules load.
    os.environ["KUBECONFIG"] = str(pathlib.Path(FOLDER) / "kubeconfig")


class GivenEngine:
    """An engine that was started outside of this test run."""

    def __init__(self, kubeconfig, connection):
        self.kubeconfig = pathlib.Path(kubeconfig)
        self.connection = connection


class Engine:
    # Clients choose the connection themselves.
    connection = None

    def __init__(self, folder, process):
        self.folder = pathlib.Path(folder)
        self.process = process
        self.kubeconfig = self.folder / "kubeconfig"
        state = json.loads((self.folder / "up.json").read_text())
        self.api = state["api"]
        self.router = state["router"]

    def cli(self, *words, **options):
        """Runs the CLI against this engine and returns the finished process."""
        command = [BINARY, "--data-dir", str(self.folder), *words]
        environment = {key: value for key, value in os.environ.items() if key != "KUBECONFIG"}
        return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, **options)

    def token(self):
        """The bearer token for the router and the API."""
        return re.search(r"token: \"?([^\"\s]+)", self.kubeconfig.read_text()).group(1)

    def router_program(self):
        """The command line of a separate router, on the port that Gateways listen on."""
        flags = ["--http-bind-address", ":80", "--metrics-bind-address", "", "--health-probe-bind-address", ""]
        return [BINARY, "router", "--kubeconfig", str(self.kubeconfig), *flags]

    def kubectl(self, *words, **options):
        command = ["kubectl", "--kubeconfig", str(self.kubeconfig), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


def purge(folder):
    """Stops everything that still runs, also after a killed engine, and removes its data."""
    subprocess.run([BINARY, "--data-dir", str(folder), "down", "--purge", "--yes"], check=True, timeout=120)


def start_engine(folder, *extra):
    command = [BINARY, "--data-dir", str(folder), "up", "--api-listen", "127.0.0.1:0", "--router-listen", "127.0.0.1:0", *extra]
    log_path = pathlib.Path(f"{folder}.log")
    log = open(log_path, "ab")
    process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    deadline = time.monotonic() + READY
    while not (pathlib.Path(folder) / "up.json").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            process.wait()
            purge(folder)
            raise RuntimeError(f"`agent-sandbox up` did not become ready:\n{log_path.read_text()}")
        time.sleep(0.02)
    return Engine(folder, process)


def router_flags():
    """Published clients before 1.0 cannot send a token to the router."""
    return ["--router-auth", "none"] if VERSION.startswith("0.") else []


@pytest.fixture(scope="session")
def engine():
    if GIVEN:
        os.rmdir(FOLDER)
        yield GivenEngine(os.environ["KUBECONFIG"], GIVEN)
        return
    engine = start_engine(FOLDER, *router_flags())
    yield engine
    engine.process.send_signal(signal.SIGINT)
    try:
        engine.process.wait(30)
    finally:
        if engine.process.poll() is None:
            engine.process.kill()
            engine.process.wait()
        purge(FOLDER)
    shutil.rmtree(FOLDER, ignore_errors=True)
    os.unlink(f"{FOLDER}.log")


@pytest.fixture
def no_claims(engine):
    """Deletes all claims before and after the test, because examples count and list claims."""
    delete = ("delete", "sandboxclaims", "--all", "-n", "default", "--wait=true", "--timeout=60s")
    assert engine.kubectl(*delete).returncode == 0
    yield
    assert engine.kubectl(*delete).returncode == 0


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder with the local files that the snippets read."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "local_data.csv").write_text("a,b\n1,2\n")
    (tmp_path / "input.csv").write_text("x,y\n3,4\n5,6\n")
    (tmp_path / "my_project").mkdir()
    (tmp_path / "my_project" / "main.py").write_text("print('hi')\n")
    return tmp_path
