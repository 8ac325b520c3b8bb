"""Our SDK inside a Pod, with the cluster's DNS and a NetworkPolicy that allows its connections. D-206."""

import importlib.util
import pathlib
import re
import urllib.parse

import namespaces
import pytest
import seeds
from which_sdk import OURS

if not OURS:
    pytest.skip("our wheel is what runs in the Pod", allow_module_level=True)
if why := namespaces.missing():
    pytest.skip(why, allow_module_level=True)

from agent_sandbox import Client  # noqa: E402

API_PORT = 6443
# Modules that the wheel needs in addition to Python itself.
PACKAGES = ["agent_sandbox", "k8s_agent_sandbox", "pydantic", "pydantic_core", "annotated_types", "typing_inspection"]
MODULES = ["typing_extensions"]
SETUP = """
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxTemplate
metadata: {name: agent, namespace: default}
spec:
  networkPolicy:
    egress:
    - {to: [{ipBlock: {cidr: API/32}}], ports: [{port: 6443}]}
    - {to: [{podSelector: {}}], ports: [{port: 8888}]}
  podTemplate:
    metadata:
      labels: {role: agent}
      annotations: {runtime.agents.x-k8s.io/inject-sandboxd: "true"}
    spec: {containers: [{name: main, image: host}]}
---
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxTemplate
metadata: {name: with-a-name, namespace: default}
spec:
  service: true
  networkPolicyManagement: Unmanaged
  podTemplate:
    metadata: {annotations: {runtime.agents.x-k8s.io/inject-sandboxd: "true"}}
    spec: {containers: [{name: main, image: host}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: from-agents, namespace: default}
spec:
  podSelector: {}
  policyTypes: [Ingress]
  ingress: [{from: [{podSelector: {matchLabels: {role: agent}}}], ports: [{port: 8888}]}]
"""
BY_ADDRESS = """
from k8s_agent_sandbox import SandboxClient
from k8s_agent_sandbox.models import SandboxInClusterConnectionConfig

sandbox = SandboxClient(connection_config=SandboxInClusterConnectionConfig()).create_sandbox(template="python-sandbox-template")
try:
    print(sandbox.commands.run("echo 'Hello from in-cluster!'").stdout)
finally:
    sandbox.terminate()
"""
BY_NAME = """
import socket
from agent_sandbox import Client, Connection

for kind in ("dns", "service"):
    with Client(Connection.in_cluster(kind)).sandbox(template="with-a-name") as sandbox:
        address = socket.gethostbyname(f"{sandbox.name}.default.svc.cluster.local")
        print(kind, sandbox.run("hostname -I || hostname -i").stdout.split()[0] == address)
"""


@pytest.fixture(scope="module")
def agent(engine):
    """A sandbox with our wheel in it, whose NetworkPolicy allows connections only to the API and to other sandboxes."""
    with namespaces.Namespace() as place:
        api = urllib.parse.urlsplit(engine.api)
        place.forward((place.address, API_PORT), (api.hostname, api.port))
        applied = engine.kubectl("apply", "-f", "-", input=SETUP.replace("API", place.address))
        assert applied.returncode == 0, applied.stderr
        with Client(kubeconfig=str(engine.kubeconfig)).sandbox(template="agent") as sandbox:
            for name in PACKAGES:
                folder = importlib.util.find_spec(name).submodule_search_locations[0]
                sandbox.files.upload_dir(folder, f"lib/{name}")
            for name in MODULES:
                sandbox.files.write(f"lib/{name}.py", pathlib.Path(importlib.util.find_spec(name).origin).read_bytes())
            inside = f"\\1server: https://{place.address}:{API_PORT}\n\\1tls-server-name: localhost"
            sandbox.files.write("kubeconfig", re.sub(r"( *)server: .*", inside, engine.kubeconfig.read_text()))
            sandbox.api_address = place.address
            yield sandbox
        names = ["sandboxtemplate/agent", "sandboxtemplate/with-a-name", "networkpolicy/from-agents"]
        engine.kubectl("delete", *names)


def program(agent, code):
    agent.files.write("program.py", code)
    command = 'PYTHONPATH="$PWD/lib" KUBECONFIG="$PWD/kubeconfig" python3 program.py'
    done = agent.run(command, timeout=60)
    assert done.exit_code == 0, done.stderr
    return done.stdout


def published():
    text = seeds.document("003")
    programs = seeds.modes(text) if text else []
    return [code for code in programs if "SandboxInClusterConnectionConfig" in code]


@pytest.mark.parametrize("index", [0, 1], ids=["one after the other", "asynchronous"])
def test_the_published_program_runs_in_a_pod(agent, index):
    """D-206."""
    found = published()
    if not found and index:
        pytest.skip("../shared/seeds is not here")
    assert re.search(r"Hello from (in-cluster|async)!", program(agent, found[index] if found else BY_ADDRESS))


def test_names_come_from_the_clusters_dns(agent):
    """D-206: by DNS name without using the address, and by the Service's name."""
    assert program(agent, BY_NAME).splitlines() == ["dns True", "service True"]


def test_the_policy_allows_no_other_destination(agent):
    """A connection to the API's address on another port gets no response."""
    code = f"import socket; socket.create_connection(({agent.api_address!r}, {API_PORT + 1}), 0.5)"
    assert "imed out" in agent.run(f'python3 -c "{code}"').stderr
