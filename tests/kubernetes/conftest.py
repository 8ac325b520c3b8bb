"""Clusters for the tests of this folder, and our own processes on them.

Two engines: `real` is etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kwok; `embedded` is our own API with a simulated
kubelet. Both are started by the same program and look the same from here.
"""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid

import pytest

from api import Api

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug"
BINARY = os.environ.get("AGENT_SANDBOX_BIN", str(TARGET / "agent-sandbox"))
CLUSTER = os.environ.get("AGENT_SANDBOX_TEST_CLUSTER", str(TARGET / "test-cluster"))
CHART = ROOT / "deploy" / "helm" / "agent-sandbox"
SYSTEM = "agent-sandbox-system"
READY = 120
SOAK = os.environ.get("AGENT_SANDBOX_SOAK") == "1"


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def stop(process, within=20):
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(within)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise


class Cluster:
    """A running cluster, with all permissions."""

    def __init__(self, engine, folder, process):
        self.engine = engine
        self.folder = pathlib.Path(folder)
        self.process = process
        self.kubeconfig = self.folder / "kubeconfig"
        self.api = Api(self.kubeconfig)

    def kubectl(self, *words, check=True, **options):
        done = subprocess.run(
            ["kubectl", "--kubeconfig", str(self.kubeconfig), "--cache-dir", str(self.folder / "cache"), *words],
            capture_output=True, text=True, timeout=120, **options,
        )
        assert not check or done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}"
        return done

    def helm(self, *words, check=True):
        homes = {f"HELM_{home}_HOME": str(self.folder / "helm" / home.lower()) for home in ("CACHE", "CONFIG", "DATA")}
        environment = {**os.environ, **homes, "KUBECONFIG": str(self.kubeconfig)}
        done = subprocess.run([helm_program(), *words], capture_output=True, text=True, timeout=180, env=environment)
        assert not check or done.returncode == 0, f"helm {' '.join(words)}: {done.stderr}"
        return done

    def apply_crds(self):
        """Applies the CRDs without conversion, because no webhook runs unless a test starts one."""
        self.helm_free_apply(["sandboxes.agents.x-k8s.io", "sandboxclaims.extensions.agents.x-k8s.io",
                              "sandboxtemplates.extensions.agents.x-k8s.io", "sandboxwarmpools.extensions.agents.x-k8s.io"])
        # An Established CRD may not be served yet: for a moment requests still get 429.
        for group, plural in [("", "sandboxes"), *(("extensions.", f"sandbox{kind}") for kind in ("claims", "templates", "warmpools"))]:
            for version in ("v1beta1", "v1alpha1"):
                path = f"/apis/{group}agents.x-k8s.io/{version}/{plural}"
                self.api.eventually(f"{path} is served", lambda: self.api.get(path).status == 200)

    def helm_free_apply(self, names):
        for name in names:
            self.kubectl("apply", "-f", str(ROOT / "deploy" / "crds" / f"{name}.yaml"))
        self.kubectl("wait", "--for=condition=Established", "--timeout=60s", *(f"crd/{name}" for name in names))

    def namespace(self):
        """Creates a namespace for the calling test."""
        name = f"t-{uuid.uuid4().hex[:8]}"
        self.api.must("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        self.api.eventually(
            "the default ServiceAccount", lambda: self.api.get(f"/api/v1/namespaces/{name}/serviceaccounts/default").status == 200
        )
        return name

    def account_kubeconfig(self, namespace, name):
        """A kubeconfig with exactly the permissions of a ServiceAccount."""
        token = self.api.must(
            "POST", f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 7200}},
        )["status"]["token"]
        shown = self.kubectl("config", "view", "--raw", "-o", "json").stdout
        config = json.loads(shown)
        config["users"][0]["user"] = {"token": token}
        path = self.folder / f"{namespace}-{name}.kubeconfig"
        path.write_text(json.dumps(config))
        path.chmod(0o600)
        return path


class Controller:
    """`agent-sandbox controller` as a process."""

    def __init__(self, cluster, *flags, kubeconfig=None, election="default", webhook=None):
        self.cluster = cluster
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="controller-", dir=cluster.folder))
        self.metrics_port, self.health_port = free_port(), free_port()
        self.log = self.folder / "log"
        command = [
            BINARY, "controller",
            f"--kubeconfig={kubeconfig or cluster.kubeconfig}",
            f"--metrics-bind-address=127.0.0.1:{self.metrics_port}",
            f"--health-probe-bind-address=127.0.0.1:{self.health_port}",
            "--extensions",
        ]
        command.append(f"--leader-election-namespace={election}" if election else "--leader-elect=false")
        command += [f"--webhook-port={webhook}", f"--webhook-cert-dir={self.folder}"] if webhook else ["--enable-webhook=false"]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([*command, *flags], stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def lines(self):
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def leads(self):
        return any(line["fields"].get("message") == "Controller is running" for line in self.lines())

    def wait_until_it_leads(self):
        self.cluster.api.eventually("the controller leads", lambda: self.leads() or self._check_running())
        return self

    def _check_running(self):
        assert self.process.poll() is None, f"the controller ended: {self.log.read_text()}"
        return False

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            stop(self.process)


@contextlib.contextmanager
def cluster_of(engine, *flags):
    folder = tempfile.mkdtemp(prefix=f"test-cluster-{engine}-")
    log = pathlib.Path(folder) / "log"
    with open(log, "wb") as output:
        process = subprocess.Popen(
            # With --lifeline the cluster ends when its standard input is closed, which happens however this process ends.
            [CLUSTER, engine, folder, "--lifeline", *flags], stdout=output, stderr=output, stdin=subprocess.PIPE
        )
    try:
        deadline = time.monotonic() + READY
        while not (pathlib.Path(folder) / "ready").exists():
            assert process.poll() is None and time.monotonic() < deadline, f"no cluster: {log.read_text()[-3000:]}"
            time.sleep(0.02)
        yield Cluster(engine, folder, process)
    finally:
        if process.poll() is None:
            stop(process)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def controller_on(cluster, *flags, wait=True, **options):
    controller = Controller(cluster, *flags, **options)
    try:
        yield controller.wait_until_it_leads() if wait else controller
    finally:
        controller.close()


def helm_program():
    done = subprocess.run([ROOT / "scripts" / "control-plane", "helm"], capture_output=True, text=True, check=True, timeout=600)
    return done.stdout.strip()


@pytest.fixture(scope="session")
def real():
    """A real control plane without any of our objects, with an audit log of every request."""
    with cluster_of("real", "--audit", "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement") as cluster:
        yield cluster


@pytest.fixture(scope="session", params=["embedded", "real"])
def engine(request):
    """Each engine in turn, with our CRDs and our controller."""
    with cluster_of(request.param) as cluster:
        if request.param == "real":
            cluster.apply_crds()
        with controller_on(cluster):
            yield cluster


REPORTS = pytest.StashKey()


@pytest.fixture
def report_text(request):
    """Shows a text at the end of the run, whether its test passes or not."""
    return lambda title, text: request.config.stash.setdefault(REPORTS, []).append((title, text))


def pytest_terminal_summary(terminalreporter, config):
    for title, text in config.stash.get(REPORTS, []):
        terminalreporter.section(title)
        terminalreporter.write_line(text)
