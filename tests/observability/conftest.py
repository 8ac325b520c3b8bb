"""A running engine that has served some traffic, and a real Prometheus that scrapes it."""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("AGENT_SANDBOX_BIN", ROOT / "target" / "debug" / "agent-sandbox"))
RULES = ROOT / "deploy" / "observability" / "rules.yaml"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def fetch(url, headers=None, seconds=30):
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers or {}), timeout=seconds) as answer:
        return answer.read().decode()


def wait_for(what, attempt, seconds=60):
    deadline = time.monotonic() + seconds
    while True:
        try:
            if (result := attempt()):
                return result
        except OSError:
            pass
        assert time.monotonic() < deadline, f"{what} did not happen in {seconds} s"
        time.sleep(0.1)


class Engine:
    def __init__(self, folder):
        self.folder = folder
        self.metrics = f"127.0.0.1:{free_port()}"
        self.environment = {
            "PATH": os.environ["PATH"], "HOME": str(folder), "AGENT_SANDBOX_DATA_DIR": str(folder / "data"),
        }
        self.cli("up", "--detach", "--api-listen", "127.0.0.1:0", "--router-listen", "127.0.0.1:0", "--router-auth", "none", "--metrics-listen", self.metrics)
        self.router = json.loads((folder / "data" / "up.json").read_text())["router"]

    def cli(self, *words):
        return subprocess.run([BINARY, *words], env=self.environment, check=True, capture_output=True, text=True, timeout=120).stdout

    def traffic(self):
        """Creates a warm claim and a cold one, and sends requests that succeed, are rejected and fail."""
        self.cli("claim", "python-sandbox-template", "--name", "warm")
        self.cli("pool", "create", "empty", "--template", "python-sandbox-template", "--replicas", "0")
        self.cli("claim", "empty", "--name", "cold")
        self.cli("create", "box")
        base = self.router if self.router.startswith("http") else f"http://{self.router}"
        for headers in [{"X-Sandbox-ID": "box"}, {"X-Sandbox-ID": "box", "X-Sandbox-Port": "1"}, {"X-Sandbox-ID": "nobody"}]:
            try:
                fetch(base + "/", headers)
            except urllib.error.HTTPError:
                pass

    def stop(self):
        self.cli("down", "--purge", "--yes")


@pytest.fixture(scope="session")
def engine():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="agent-sandbox-observability-"))
    engine = Engine(folder)
    try:
        engine.traffic()
        yield engine
    finally:
        engine.stop()
        shutil.rmtree(folder, ignore_errors=True)


class Prometheus:
    def __init__(self, folder, target):
        self.address = f"127.0.0.1:{free_port()}"
        settings = folder / "prometheus.yaml"
        settings.write_text(json.dumps({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": [{"job_name": "agent-sandbox", "static_configs": [{"targets": [target]}]}],
        }))
        self.log = open(folder / "prometheus.log", "wb")
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={settings}", f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address={self.address}"],
            stdout=self.log, stderr=self.log,
        )
        wait_for("Prometheus", lambda: "Ready" in fetch(f"http://{self.address}/-/ready"))

    def get(self, path, **parameters):
        return json.loads(fetch(f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"))["data"]

    def query(self, expression):
        return self.get("query", query=expression)["result"]

    def stop(self):
        self.process.terminate()
        self.process.wait(30)
        self.log.close()


@pytest.fixture(scope="session")
def prometheus(engine):
    if shutil.which("prometheus") is None or shutil.which("promtool") is None:
        if os.environ.get("CI"):
            pytest.fail("prometheus and promtool are not installed (Debian package `prometheus`)")
        pytest.skip("prometheus and promtool are not installed (Debian package `prometheus`)")
    prometheus = Prometheus(engine.folder, engine.metrics)
    try:
        wait_for("a scrape", lambda: prometheus.query("up == 1"))
        # Rates need a series that changes between scrapes.
        first = prometheus.query("sum(sandbox_router_requests_total)")
        engine.cli("delete", "warm", "cold")
        engine.cli("claim", "python-sandbox-template", "--name", "warm")
        engine.cli("claim", "empty", "--name", "cold")
        engine.cli("create", "second")
        for _ in range(3):
            fetch((engine.router if engine.router.startswith("http") else f"http://{engine.router}") + "/", {"X-Sandbox-ID": "box"})
        wait_for("the traffic in Prometheus", lambda: prometheus.query("sum(sandbox_router_requests_total)") != first)
        wait_for("a rate of claims", lambda: prometheus.query("sum(rate(agent_sandbox_claim_creation_total[1m])) > 0"))
        yield prometheus
    finally:
        prometheus.stop()
