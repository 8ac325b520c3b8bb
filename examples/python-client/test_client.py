"""test_client.py: the whole life of a sandbox through the Python client: create, run, write, read, list, delete.

Ends with status 1 and says what differed if a step does not give what it should.
"""

import argparse
import sys

from k8s_agent_sandbox import SandboxClient
from k8s_agent_sandbox import models


def connection(options):
    """How the client reaches sandboxes: through a Gateway, a given URL, or a tunnel that it opens itself."""
    if options.gateway_name:
        return models.SandboxGatewayConnectionConfig(
            gateway_name=options.gateway_name,
            gateway_namespace=options.gateway_namespace,
            server_port=options.server_port,
        )
    if options.api_url:
        return models.SandboxDirectConnectionConfig(api_url=options.api_url, server_port=options.server_port)
    return models.SandboxLocalTunnelConnectionConfig(server_port=options.server_port)


def check(step, found, expected):
    if found != expected:
        sys.exit(f"{step}: expected {expected!r}, found {found!r}")
    print(f"{step}: {found!r}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--template-name", default="python-sandbox-template", help="template or pool to claim from")
    parser.add_argument("--namespace", default="default", help="namespace of the sandbox")
    parser.add_argument("--gateway-name", help="reach sandboxes through this Gateway")
    parser.add_argument("--gateway-namespace", default="default", help="namespace of the Gateway")
    parser.add_argument("--api-url", help="reach sandboxes through a router at this URL")
    parser.add_argument("--server-port", type=int, default=8888, help="port of the runtime in the sandbox")
    options = parser.parse_args()
    client = SandboxClient(connection_config=connection(options))
    sandbox = client.create_sandbox(options.template_name, namespace=options.namespace)
    try:
        check("run", sandbox.commands.run("echo 'Hello from the sandbox'").stdout, "Hello from the sandbox\n")
        check("exit code", sandbox.commands.run("sh -c 'exit 3'").exit_code, 3)
        sandbox.files.write("note.txt", "kept until the sandbox is deleted\n")
        check("read", sandbox.files.read("note.txt").decode(), "kept until the sandbox is deleted\n")
        check("exists", sandbox.files.exists("note.txt"), True)
        check("list", "note.txt" in [entry.name for entry in sandbox.files.list(".")], True)
    finally:
        sandbox.terminate()
    print("done: the sandbox is deleted")


if __name__ == "__main__":
    main()
