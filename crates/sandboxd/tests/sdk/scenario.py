"""Drives the published SDK's own command and file classes against one daemon: `scenario.py VERSION HOST PORT SECOND_PORT`.

The classes are unmodified; only the connection is given by hand, because there is no cluster here.
"""

import asyncio
import sys

from k8s_agent_sandbox.commands.command_executor import CommandExecutor
from k8s_agent_sandbox.connector import SandboxConnector
from k8s_agent_sandbox.files.filesystem import Filesystem
from k8s_agent_sandbox.models import SandboxDirectConnectionConfig

VERSION, HOST, PORT, SECOND_PORT = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
NEW_PATHS = VERSION not in ("0.4.3", "0.4.6")


class Tracing:
    """What the decorators look for when tracing is off."""

    tracer = None
    trace_service_name = "test"


def connector():
    config = SandboxDirectConnectionConfig(api_url=f"http://{HOST}:{PORT}")
    return SandboxConnector("sandbox", "default", config, None)


def check(actual, expected, what):
    assert actual == expected, f"{what}: {actual!r} is not {expected!r}"


def runtime():
    """D-013, D-046 to D-050: the documented examples over the runtime dialect."""
    link = connector()
    commands = CommandExecutor(link, None, "test")
    files = Filesystem(link, None, "test")

    result = commands.run("echo hi; echo problem >&2; exit 3")
    check((result.stdout, result.stderr, result.exit_code), ("hi\n", "problem\n", 3), "run")

    files.write("/home/user/hello.txt", "Hello from the SDK!")
    check(files.read("/home/user/hello.txt").decode(), "Hello from the SDK!", "read back")
    check(files.exists("/home/user/hello.txt"), True, "exists")
    check(files.exists("/home/user/missing.txt"), False, "does not exist")
    check([entry.name for entry in files.list("/home/user")], ["hello.txt"], "list")
    check(commands.run("cat /home/user/hello.txt").stdout, "Hello from the SDK!", "cat")

    commands.run("echo 'analysis complete' > /home/user/results.txt")
    check(files.read("/home/user/results.txt"), b"analysis complete\n", "redirection")

    files.write("/home/user/input.csv", b"a,b\n1,2\n")
    files.write(
        "/home/user/process.py",
        "import csv\n"
        "rows = list(csv.reader(open('/home/user/input.csv')))\n"
        "print(f'Processed {len(rows)} rows')\n"
        "csv.writer(open('/home/user/output.csv', 'w')).writerows(rows)\n",
    )
    check(commands.run("python3 /home/user/process.py").stdout, "Processed 2 rows\n", "script")
    check(files.read("/home/user/output.csv"), b"a,b\r\n1,2\r\n", "its output")

    files.write("run.py", "print('ran')")
    check(commands.run("python3 run.py").exit_code, 0, "relative script")

    for name in ("100%20.txt", "with space.txt", "ünï.txt", 'a "q".txt'):
        files.write(name, name)
        check(files.read(name).decode(), name, f"strange name {name}")
        check(files.exists(name), True, f"strange name {name}")
    check("run.py" in [entry.name for entry in files.list(".")], True, "list of .")

    if NEW_PATHS:
        files.write("/tmp/hello.txt", "tmp")
        check(commands.run("cat /tmp/hello.txt").stdout, "tmp", "temporary directory")
        files.write("/home/user/project/deep/x.txt", "x")
        check([entry.name for entry in files.list("/home/user/project")], ["deep"], "directories")
    if VERSION.startswith("1."):
        timed = commands.run("echo first; sleep 30", command_timeout=1)
        check((timed.timed_out, timed.exit_code, timed.stdout), (True, 124, "first\n"), "time limit")
        try:
            commands.run("true", env={"A": "b"})
        except NotImplementedError:
            pass
        else:
            raise AssertionError("env is not for the runtime dialect")


async def runtime_async():
    """E9 and D-043: the asynchronous client on the runtime dialect."""
    from k8s_agent_sandbox.async_connector import AsyncSandboxConnector
    from k8s_agent_sandbox.commands.async_command_executor import AsyncCommandExecutor
    from k8s_agent_sandbox.files.async_filesystem import AsyncFilesystem

    config = SandboxDirectConnectionConfig(api_url=f"http://{HOST}:{PORT}")
    link = AsyncSandboxConnector("sandbox", "default", config, None)
    commands = AsyncCommandExecutor(link, None, "test")
    files = AsyncFilesystem(link, None, "test")
    check((await commands.run("echo hi")).stdout, "hi\n", "async run")
    await files.write("/home/user/async.txt", "async")
    check(await files.read("/home/user/async.txt"), b"async", "async read")
    check("async.txt" in [entry.name for entry in await files.list(".")], True, "async list of .")
    check(await files.exists("."), True, "async exists of .")
    await link.close()


def sandboxd():
    """D-098, D-099, D-100: the sandboxd dialect, REST and gRPC."""
    from k8s_agent_sandbox.models import SandboxdInClusterConnectionConfig

    config = SandboxdInClusterConnectionConfig(mode="in-cluster-pod-ip", rest_port=PORT, grpc_port=SECOND_PORT)
    link = SandboxConnector("sandbox", "default", config, None, get_pod_ip=lambda: HOST)
    commands = CommandExecutor(link, None, "test")
    files = Filesystem(link, None, "test")
    files.write("sub/grpc.txt", b"bytes")
    check(files.read("sub/grpc.txt"), b"bytes", "read")
    check(files.exists("sub/grpc.txt"), True, "exists")
    check(files.exists("missing"), False, "does not exist")
    check("sub" in [entry.name for entry in files.list(".")], True, "list of .")
    result = commands.run("cat grpc.txt; echo $WHO >&2; exit 4", env={"WHO": "me"}, cwd="sub")
    check((result.stdout, result.stderr, result.exit_code), ("bytes", "me\n", 4), "run")
    timed = commands.run("sleep 5", command_timeout=1)
    check((timed.timed_out, timed.exit_code), (True, 124), "time limit")
    seen = commands.run("sleep 1; cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep [5]'")
    check(seen.stdout, "0\n", "the process is gone")
    try:
        commands.run("true", env={"A=B": "x"})
    except ValueError:
        pass
    else:
        raise AssertionError("a bad variable name is the client's error")
    files.delete("sub/grpc.txt")
    check(files.exists("sub/grpc.txt"), False, "deleted")
    files.delete("sub", recursive=True)


async def sandboxd_async():
    """D-100 asynchronously."""
    from k8s_agent_sandbox.async_connector import AsyncSandboxConnector
    from k8s_agent_sandbox.files.async_filesystem import AsyncFilesystem
    from k8s_agent_sandbox.models import SandboxdInClusterConnectionConfig

    async def pod_ip():
        return HOST

    config = SandboxdInClusterConnectionConfig(mode="in-cluster-pod-ip", rest_port=PORT, grpc_port=SECOND_PORT)
    link = AsyncSandboxConnector("sandbox", "default", config, None, get_pod_ip=pod_ip)
    files = AsyncFilesystem(link, None, "test")
    await files.write("async-sandboxd.txt", b"x")
    check("async-sandboxd.txt" in [entry.name for entry in await files.list(".")], True, "async list of .")
    await link.close()


runtime()
asyncio.run(runtime_async())
if VERSION.startswith("1."):
    sandboxd()
    asyncio.run(sandboxd_async())
print("passed")
