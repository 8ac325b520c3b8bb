"""The second engine: a real Kubernetes control plane with our controller, and our node as its only node.

As a program it runs a command with that engine around it: `python second_engine.py COMMAND...`. The command finds the cluster by KUBECONFIG, and
AGENT_SANDBOX_TEST_CONNECTION says how sandboxes are reached there: through the API's port-forward to the Pod.
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug"
BINARY = os.environ.get("AGENT_SANDBOX_BIN", str(TARGET / "agent-sandbox"))
CLUSTER = os.environ.get("AGENT_SANDBOX_TEST_CLUSTER", str(TARGET / "test-cluster"))
NODE = "sdk-node"
READY = 120
SOURCE = "python-sandbox-template"
# Name of the provisioner whose volumes our node mounts.
PROVISIONER = "agents.x-k8s.io/node"
# Objects that `agent-sandbox up` creates by itself.
READY_MADE = [
    {
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
        "kind": "SandboxTemplate",
        "metadata": {"name": SOURCE, "namespace": "default"},
        "spec": {
            "networkPolicyManagement": "Unmanaged",
            "podTemplate": {
                "metadata": {"annotations": {"runtime.agents.x-k8s.io/inject-sandboxd": "true"}},
                "spec": {"containers": [{"name": "sandbox", "image": "host"}]},
            },
        },
    },
    {
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
        "kind": "SandboxWarmPool",
        "metadata": {"name": SOURCE, "namespace": "default"},
        "spec": {"replicas": 1, "sandboxTemplateRef": {"name": SOURCE}},
    },
]
# Binds the role from docs/node.md: read access to the objects that network policies need and a kubelet may not read.
NETWORK_READER = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "agent-sandbox-node"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "agent-sandbox-node"},
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": f"system:node:{NODE}"}],
}


def shown_role():
    page = (ROOT / "docs" / "node.md").read_text()
    return re.search(r'```yaml title="node-role.yaml"\n(.*?)```', page, re.S)[1]


def volume(name):
    """A PersistentVolume of the node without a StorageClass, for the next claim that names no class."""
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "",
        "local": {"path": f"/{PROVISIONER}/{name}"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
    }
    metadata = {"name": name, "annotations": {"pv.kubernetes.io/provisioned-by": PROVISIONER}}
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": spec}


def missing():
    """Why this engine cannot run here, if it cannot."""
    if os.geteuid() != 0:
        return "a node needs root"
    if not shutil.which("kubectl"):
        return "kubectl is not installed"
    if not pathlib.Path(CLUSTER).exists():
        return f"{CLUSTER} is not built (cargo build -p agent-sandbox-testkit --bin test-cluster)"
    built = subprocess.run([ROOT / "scripts" / "control-plane", "path"], capture_output=True, text=True, timeout=60)
    return None if built.returncode == 0 else built.stderr.strip() or "the control plane is not built"


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class SecondEngine:
    """A running control plane with our controller and node, as clients see it."""

    connection = "pod"

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.kubeconfig = self.folder / "kubeconfig"
        self.volumes = 0

    def kubectl(self, *words, **options):
        command = ["kubectl", "--kubeconfig", str(self.kubeconfig), "--cache-dir", str(self.folder / "cache"), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=150, **options)

    def must(self, *words, **options):
        done = self.kubectl(*words, **options)
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}\n{self.diagnostics()}"
        return done.stdout

    def provide(self):
        """Creates the template and the pool that every engine starts with, and a volume: no provisioner runs here."""
        self.volumes += 1
        self.must("apply", "-f", "-", input=json.dumps(volume(f"by-hand-{self.volumes}")))
        self.must("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": READY_MADE}))
        self.must("wait", "--for=jsonpath={.status.readyReplicas}=1", f"swp/{SOURCE}", "-n", "default", f"--timeout={READY}s")

    def diagnostics(self):
        """Objects, node conditions, logs and free disk space, for the message of a failed assertion."""
        objects = self.kubectl("get", "sandboxes,pods,events", "--all-namespaces", "-o", "wide").stdout[-3000:]
        nodes = self.kubectl("get", "nodes", "-o", "jsonpath={.items[*].spec.taints}{.items[*].status.conditions}").stdout
        logs = [f"== {log.stem}\n{log.read_text(errors='replace')[-2000:]}" for log in sorted(self.folder.glob("*.log"))]
        return "\n".join([objects, nodes, *logs, f"{shutil.disk_usage(self.folder).free >> 20} MiB of disk are free"])


@contextlib.contextmanager
def process(folder, name, command, **options):
    with open(folder / f"{name}.log", "wb") as log:
        running = subprocess.Popen(command, stdout=log, stderr=log, **{"stdin": subprocess.DEVNULL, **options})
    try:
        yield running
    finally:
        if running.poll() is None:
            running.send_signal(signal.SIGTERM)
            try:
                running.wait(30)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()


def wait_for(what, condition, processes, folder):
    deadline = time.monotonic() + READY
    while not condition():
        ended = [name for name, running in processes.items() if running.poll() is not None]
        if ended or time.monotonic() > deadline:
            logs = "\n".join(f"== {name}\n{(folder / f'{name}.log').read_text()[-2000:]}" for name in processes)
            raise RuntimeError(f"no {what} ({'ended: ' + ', '.join(ended) if ended else 'too late'})\n{logs}")
        time.sleep(0.05)


@contextlib.contextmanager
def second_engine():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="agent-sandbox-second-"))
    engine = SecondEngine(folder)
    try:
        with contextlib.ExitStack() as stack:
            running = {}

            def start(name, command, **options):
                running[name] = stack.enter_context(process(folder, name, command, **options))

            # With --lifeline the cluster ends when its standard input is closed, which happens however this process ends.
            cluster = [CLUSTER, "real", str(folder), "--lifeline", "--no-pods", f"--node={NODE}"]
            start("cluster", cluster, stdin=subprocess.PIPE)
            wait_for("control plane", (folder / "ready").exists, running, folder)
            crds = sorted((ROOT / "deploy" / "crds").glob("*.yaml"))
            engine.must("apply", *(word for crd in crds for word in ("-f", str(crd))))
            engine.must("wait", "--for=condition=Established", "--timeout=60s", *(f"crd/{crd.stem}" for crd in crds))
            engine.must("apply", "-f", "-", input=f"{shown_role()}---\n{json.dumps(NETWORK_READER)}")
            controller = [BINARY, "controller", f"--kubeconfig={engine.kubeconfig}", "--extensions", "--leader-elect=false"]
            controller += ["--enable-webhook=false", f"--metrics-bind-address=127.0.0.1:{free_port()}"]
            start("controller", [*controller, f"--health-probe-bind-address=127.0.0.1:{free_port()}"])
            node = [BINARY, "--data-dir", str(folder / "node"), "--kubeconfig", str(folder / "node.kubeconfig"), "node"]
            node += ["--node-name", NODE, "--node-ip", "127.0.0.1", "--listen", "127.0.0.1:0"]
            node += ["--client-ca-file", str(folder / "callers.pem"), "--tls-cert-file", str(folder / "node.crt")]
            start("node", [*node, "--tls-private-key-file", str(folder / "node.key")])
            stack.callback(empty, engine)
            engine.must("wait", "--for=create", f"node/{NODE}", f"--timeout={READY}s")
            engine.must("wait", "--for=condition=Ready", f"node/{NODE}", f"--timeout={READY}s")
            engine.must("wait", "--for=create", "serviceaccount/default", "-n", "default", "--timeout=60s")
            engine.provide()
            yield engine
    finally:
        purge = [BINARY, "--data-dir", str(folder / "node"), "down", "--purge", "--yes"]
        subprocess.run(purge, capture_output=True, timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


def empty(engine):
    """Deletes everything before the node is stopped, because a stopped node leaves its Pods running."""
    for kind in ("swp", "sandboxclaims", "sandboxes"):
        engine.kubectl("delete", kind, "--all", "--all-namespaces", "--wait=true", "--timeout=60s")
    engine.kubectl("wait", "--for=delete", "pods", "--all", "-n", "default", "--timeout=60s")


def main():
    reason = missing()
    if reason:
        print(f"SKIPPED: the second engine: {reason}", file=sys.stderr)
        sys.exit(1 if os.environ.get("CI") else 0)
    with second_engine() as engine:
        environment = {**os.environ, "KUBECONFIG": str(engine.kubeconfig), "AGENT_SANDBOX_TEST_CONNECTION": engine.connection}
        sys.exit(subprocess.run(sys.argv[1:], env=environment).returncode)


if __name__ == "__main__":
    main()
