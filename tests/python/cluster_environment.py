"""The parts of a cluster's environment that SDK programs rely on, provided on one machine: DNS names of Services, and a
Gateway with an address.

The SDK itself is not patched: names are resolved in `socket.getaddrinfo`, where Python would ask a name server.
"""

import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import time
import urllib.parse

import engine_group
import namespaces
import pytest

ROUTER = re.compile(r"sandbox-router-svc\.([a-z0-9-]+)\.svc\.cluster\.local")
SANDBOX = re.compile(r"([a-z0-9-]+)\.([a-z0-9-]+)\.svc\.cluster\.local")
READY = 20
ROUTER_PORT = 8080
# Every process has a loopback address of its own, so that tests may run concurrently on ports that clients prescribe.
OWN_ADDRESS = f"127.66.{os.getpid() >> 8 & 255}.{os.getpid() & 255 or 1}"
GATEWAY_API = "sigs.k8s.io/gateway-api@v1.5.1"
GATEWAY_CRD = "gateways.gateway.networking.k8s.io"
GATEWAY_POLICY = "gateway-to-sandboxes"


def gateway_definition():
    """The Gateway API's own definition, from its Go module; None where Go is missing."""
    if not shutil.which("go"):
        return None
    asked = subprocess.run(["go", "mod", "download", "-json", GATEWAY_API], cwd="/", capture_output=True, text=True, timeout=300)
    if asked.returncode != 0:
        return None
    path = pathlib.Path(json.loads(asked.stdout)["Dir"]) / "config/crd/standard/gateway.networking.k8s.io_gateways.yaml"
    return path.read_text()


class ClusterNames:
    """Resolves `*.svc.cluster.local`: the router through kubectl's port-forward, a sandbox by its Pod's address."""

    def __init__(self, engine):
        self.engine = engine
        self.asked = []
        self.forwards = {}
        self.real = socket.getaddrinfo

    def __enter__(self):
        self.before = engine_group.join(self.engine.process.pid)
        socket.getaddrinfo = self.resolve
        return self

    def __exit__(self, *_):
        socket.getaddrinfo = self.real
        engine_group.leave(self.before)
        self.stop()

    def stop(self):
        for process in self.forwards.values():
            process.terminate()
            process.wait(10)
        self.forwards.clear()

    def resolve(self, host, port, *rest, **options):
        name = host.decode() if isinstance(host, bytes) else host
        if not isinstance(name, str) or not name.endswith(".svc.cluster.local"):
            return self.real(host, port, *rest, **options)
        self.asked.append(name)
        router = ROUTER.fullmatch(name)
        if router:
            self.forward(router.group(1))
            return self.real(OWN_ADDRESS, port, *rest, **options)
        pod, namespace = SANDBOX.fullmatch(name).groups()
        found = self.engine.kubectl("get", "pod", pod, "-n", namespace, "-o", "json")
        if found.returncode != 0:
            raise socket.gaierror(socket.EAI_NONAME, f"no sandbox {pod}: {found.stderr}")
        return self.real(json.loads(found.stdout)["status"]["podIP"], port, *rest, **options)

    def forward(self, namespace):
        if namespace not in self.forwards:
            command = ["kubectl", "--kubeconfig", str(self.engine.kubeconfig), "port-forward", "-n", namespace]
            command += ["--address", OWN_ADDRESS, "svc/sandbox-router-svc", f"{ROUTER_PORT}:{ROUTER_PORT}"]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            line = process.stdout.readline()
            assert line.startswith("Forwarding from"), f"kubectl port-forward said: {line}"
            self.forwards[namespace] = process


class Gateway:
    """A Gateway object whose address is that of a router process in a network namespace, which connects to the
    sandboxes' Pods directly."""

    def __init__(self, engine, name):
        self.engine, self.name, self.netns = engine, name, namespaces.Namespace()
        self.log = pathlib.Path(f"{engine.folder}.gateway.log")

    def __enter__(self):
        definition = gateway_definition()
        if definition is None:
            assert not os.environ.get("CI"), f"{GATEWAY_API} cannot be fetched"
            pytest.skip(f"{GATEWAY_API} cannot be fetched: Go and its module proxy are needed")
        if why := namespaces.missing():
            pytest.skip(why)
        self.netns.__enter__()
        try:
            self.start_router(self.engine.router_program())
            self.apply(definition)
            self.create_gateway()
        except BaseException:
            self.__exit__()
            raise
        return self

    def start_router(self, program):
        """Starts the router. The API has the kubeconfig's address inside the namespace too, and a NetworkPolicy lets the
        router reach the sandboxes."""
        api = urllib.parse.urlsplit(self.engine.api)
        self.netns.forward((api.hostname, api.port), (api.hostname, api.port))
        self.apply(json.dumps(ingress_policy(self.netns.address)))
        with open(self.log, "wb") as log:
            self.netns.start(program, stdout=log, stderr=log)
        deadline = time.monotonic() + READY
        while True:
            try:
                socket.create_connection((self.netns.address, 80), 1).close()
                return
            except OSError:
                assert time.monotonic() < deadline, f"no router: {self.log.read_text()}"
                time.sleep(0.05)

    def create_gateway(self):
        self.apply(json.dumps({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "Gateway",
            "metadata": {"name": self.name, "namespace": "default"},
            "spec": {"gatewayClassName": "test", "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]},
        }))
        status = {"status": {"addresses": [{"type": "IPAddress", "value": self.netns.address}]}}
        words = ["patch", "gateway", self.name, "--subresource=status", "--type=merge", "-p", json.dumps(status)]
        patched = self.engine.kubectl(*words)
        assert patched.returncode == 0, patched.stderr

    def statuses(self):
        """Statuses of the requests that the router forwarded. The router writes its log with a delay, so this waits."""
        deadline = time.monotonic() + READY
        while not (found := re.findall(r'"msg":"request".*?"status":(\d+)', self.log.read_text())):
            assert time.monotonic() < deadline, f"the router logged no request: {self.log.read_text()}"
            time.sleep(0.05)
        return found

    def __exit__(self, *_):
        self.netns.__exit__()
        self.engine.kubectl("delete", "crd", GATEWAY_CRD)
        self.engine.kubectl("delete", "networkpolicy", GATEWAY_POLICY)
        self.log.unlink(missing_ok=True)

    def apply(self, manifest):
        deadline = time.monotonic() + READY
        while True:
            applied = self.engine.kubectl("apply", "-f", "-", input=manifest)
            if applied.returncode == 0:
                return
            assert time.monotonic() < deadline, applied.stderr


def ingress_policy(address):
    """A NetworkPolicy that opens the daemon's port of all sandboxes to one address."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": GATEWAY_POLICY, "namespace": "default"},
        "spec": {
            "podSelector": {},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"ipBlock": {"cidr": f"{address}/32"}}], "ports": [{"port": 8888}]}],
        },
    }
