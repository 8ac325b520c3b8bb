"""What programs written for a cluster find around them there, made for one machine: names of Services, and a Gateway with an address.

Nothing of the SDK is touched: names are answered where the C library would ask a name server.
"""

import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import threading
import time

import pytest

ROUTER = re.compile(r"sandbox-router-svc\.([a-z0-9-]+)\.svc\.cluster\.local")
SANDBOX = re.compile(r"([a-z0-9-]+)\.([a-z0-9-]+)\.svc\.cluster\.local")
READY = 20
ROUTER_PORT = 8080
# Every process has a loopback address of its own, so that tests may run beside each other on ports that clients prescribe.
OWN_ADDRESS = f"127.66.{os.getpid() >> 8 & 255}.{os.getpid() & 255 or 1}"
GATEWAY_API = "sigs.k8s.io/gateway-api@v1.5.1"
GATEWAY_CRD = "gateways.gateway.networking.k8s.io"


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
    """Answers for `*.svc.cluster.local`: the router through kubectl's port-forward, a sandbox by its Pod's address."""

    def __init__(self, engine):
        self.engine = engine
        self.asked = []
        self.forwards = {}
        self.real = socket.getaddrinfo

    def __enter__(self):
        socket.getaddrinfo = self.answer
        return self

    def __exit__(self, *_):
        socket.getaddrinfo = self.real
        self.stop()

    def stop(self):
        for process in self.forwards.values():
            process.terminate()
            process.wait(10)
        self.forwards.clear()

    def answer(self, host, port, *rest, **options):
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
    """A Gateway object whose address leads to the router's Service: connections to it are passed on byte by byte."""

    def __init__(self, engine, name):
        self.engine, self.name, self.address = engine, name, OWN_ADDRESS
        self.cluster = ClusterNames(engine)
        self.connections = 0

    def __enter__(self):
        definition = gateway_definition()
        if definition is None:
            assert not os.environ.get("CI"), f"{GATEWAY_API} cannot be fetched"
            pytest.skip(f"{GATEWAY_API} cannot be fetched: Go and its module proxy are needed")
        self.listener = socket.create_server((self.address, 80))
        self.cluster.forward("default")
        threading.Thread(target=self.accept, args=((OWN_ADDRESS, ROUTER_PORT),), daemon=True).start()
        self.apply(definition)
        self.apply(json.dumps({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "Gateway",
            "metadata": {"name": self.name, "namespace": "default"},
            "spec": {"gatewayClassName": "test", "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]},
        }))
        status = {"status": {"addresses": [{"type": "IPAddress", "value": self.address}]}}
        words = ["patch", "gateway", self.name, "--subresource=status", "--type=merge", "-p", json.dumps(status)]
        patched = self.engine.kubectl(*words)
        assert patched.returncode == 0, patched.stderr
        return self

    def __exit__(self, *_):
        self.listener.close()
        self.cluster.stop()
        self.engine.kubectl("delete", "crd", GATEWAY_CRD)

    def apply(self, manifest):
        deadline = time.monotonic() + READY
        while True:
            applied = self.engine.kubectl("apply", "-f", "-", input=manifest)
            if applied.returncode == 0:
                return
            assert time.monotonic() < deadline, applied.stderr

    def accept(self, service):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            far = socket.create_connection(service)
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=pass_on, args=(source, sink), daemon=True).start()


def pass_on(source, sink):
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass
