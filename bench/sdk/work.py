"""One measurement of one SDK in a separate process: `python work.py WHAT [ARGUMENT]` prints a number or a JSON object."""

import json
import os
import statistics
import sys
import threading
import time

ROUTER = os.environ.get("BENCH_ROUTER", "")
SOURCE = os.environ.get("BENCH_SOURCE", "python-sandbox-template")
SIZE = 100_000_000


def drop_in(mode):
    from k8s_agent_sandbox import SandboxClient
    from k8s_agent_sandbox.models import SandboxDirectConnectionConfig

    return SandboxClient(connection_config=SandboxDirectConnectionConfig(api_url=ROUTER) if mode == "direct" else None)


def peak():
    """Peak memory in megabytes. getrusage is not used, because its value starts with the size of the parent process."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) / 1024


def imported(package):
    begun = time.perf_counter()
    if package != "nothing":
        __import__(package)
    return {"seconds": time.perf_counter() - begun, "megabytes": peak()}


def first(mode):
    """Time from the call to the first result of a command; the SDK is already loaded."""
    client = drop_in(mode)
    times = []
    for _ in range(6):
        begun = time.perf_counter()
        sandbox = client.create_sandbox(SOURCE)
        sandbox.commands.run("true")
        times.append(time.perf_counter() - begun)
        sandbox.terminate()
    return {"seconds": statistics.median(times[1:])}


def commands(mode):
    sandbox = drop_in(mode).create_sandbox(SOURCE)
    try:
        for _ in range(50):
            sandbox.commands.run("true")
        begun, used = time.perf_counter(), time.process_time()
        for _ in range(1000):
            sandbox.commands.run("true")
        return {"seconds": (time.perf_counter() - begun) / 1000, "cpu": (time.process_time() - used) / 1000}
    finally:
        sandbox.terminate()


def native_commands(mode):
    from agent_sandbox import Client, Connection

    client = Client(Connection.direct(ROUTER) if mode == "direct" else None)
    with client.sandbox() as sandbox:
        for _ in range(50):
            sandbox.run("true", timeout=60)
        begun, used = time.perf_counter(), time.process_time()
        for _ in range(1000):
            sandbox.run("true", timeout=60)
        return {"seconds": (time.perf_counter() - begun) / 1000, "cpu": (time.process_time() - used) / 1000}


def floor(mode):
    """The same thousand commands over one connection with prepared requests: the lower bound for any client."""
    import socket
    import urllib.parse

    sandbox = drop_in(mode).create_sandbox(SOURCE)
    try:
        parts = urllib.parse.urlsplit(ROUTER)
        body = b'{"command": "true"}'
        head = (
            f"POST /execute HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            f"X-Sandbox-ID: {sandbox.sandbox_id}\r\n\r\n"
        )
        request = head.encode() + body
        with socket.create_connection((parts.hostname, parts.port), timeout=30) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for index in range(1050):
                if index == 50:
                    begun, used = time.perf_counter(), time.process_time()
                connection.sendall(request)
                answer = b""
                while b"}" not in answer.partition(b'"exit_code"')[2]:
                    answer += connection.recv(65536)
        return {"seconds": (time.perf_counter() - begun) / 1000, "cpu": (time.process_time() - used) / 1000}
    finally:
        sandbox.terminate()


def transfer(mode):
    content = os.urandom(1_000_000) * (SIZE // 1_000_000)
    sandbox = drop_in(mode).create_sandbox(SOURCE)
    try:
        sandbox.files.write("warm", b"x")
        before = peak()
        begun = time.perf_counter()
        sandbox.files.write("big", content, timeout=300)
        up = time.perf_counter() - begun
        begun = time.perf_counter()
        got = sandbox.files.read("big", timeout=300)
        down = time.perf_counter() - begun
        assert got == content
        return {"up": SIZE / up / 1e6, "down": SIZE / down / 1e6, "extra": peak() - before}
    finally:
        sandbox.terminate()


def bare_download(mode):
    """The same download with one prepared request into preallocated memory: only the server and the kernel remain."""
    import socket
    import urllib.parse

    content = os.urandom(1_000_000) * (SIZE // 1_000_000)
    sandbox = drop_in(mode).create_sandbox(SOURCE)
    try:
        sandbox.files.write("big", content, timeout=300)
        parts = urllib.parse.urlsplit(ROUTER)
        request = f"GET /download/big HTTP/1.1\r\nHost: {parts.netloc}\r\nX-Sandbox-ID: {sandbox.sandbox_id}\r\n\r\n".encode()
        memory = bytearray(SIZE + 65536)
        memory[:] = bytes(len(memory))
        with socket.create_connection((parts.hostname, parts.port), timeout=30) as connection:
            view, got, begun = memoryview(memory), 0, time.perf_counter()
            connection.sendall(request)
            # The response header is negligible: a few hundred bytes of a hundred million.
            while got < SIZE:
                got += connection.recv_into(view[got : got + (1 << 20)])
            return {"down": SIZE / (time.perf_counter() - begun) / 1e6}
    finally:
        sandbox.terminate()


def sandbox_for_curl():
    """Keeps a sandbox with a file for a client that is not an SDK, until its input ends."""
    sandbox = drop_in("direct").create_sandbox(SOURCE)
    sandbox.files.write("big", os.urandom(1_000_000) * (SIZE // 1_000_000), timeout=300)
    print(sandbox.sandbox_id, flush=True)
    sys.stdin.read()
    sandbox.terminate()
    sys.exit(0)


def parallel(mode):
    client = drop_in(mode)
    failed = []

    def one():
        try:
            sandbox = client.create_sandbox(SOURCE)
            assert sandbox.commands.run("echo hi").stdout == "hi\n"
            sandbox.terminate()
        except Exception as error:
            failed.append(repr(error))

    threads = [threading.Thread(target=one) for _ in range(50)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"seconds": time.perf_counter() - begun, "megabytes": peak(), "failed": len(failed), "why": failed[:1]}


if __name__ == "__main__":
    what = globals()[sys.argv[1]]
    print(json.dumps(what(*sys.argv[2:])))
