"""Faults in the middle of calls: they succeed after reconnecting or raise the documented exception, and no command runs twice.

Between the SDK and the router stands a relay that a test can cut; the engine itself is restarted by a test that has one of its own.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.parse

import pytest
from which_sdk import OURS, token_headers

if not OURS:
    pytest.skip("these are our SDK's promises", allow_module_level=True)

from agent_sandbox import Client, Connection, errors  # noqa: E402
from conftest import BINARY, start_engine  # noqa: E402


class Relay:
    """A proxy that forwards connections to a server, until it is told to close them or to refuse new ones."""

    def __init__(self, target):
        parts = urllib.parse.urlsplit(target)
        self.target = (parts.hostname, parts.port)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.open = []
        self.refusing = False
        self.lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            if self.refusing:
                near.close()
                continue
            far = socket.create_connection(self.target)
            with self.lock:
                self.open += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    @staticmethod
    def _copy(source, sink):
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def cut(self):
        with self.lock:
            cut, self.open = self.open, []
        for end in cut:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        self.cut()
        self.listener.close()


@pytest.fixture
def relay(engine):
    relay = Relay(engine.router)
    yield relay
    relay.close()


@pytest.fixture
def sandbox(engine, relay):
    client = Client(Connection.direct(relay.url, token_headers(engine)), kubeconfig=str(engine.kubeconfig))
    with client.sandbox() as sandbox:
        sandbox.run("true")
        yield sandbox


def lines(sandbox):
    return sandbox.run("wc -l < count 2>/dev/null || echo 0").stdout.strip()


def later(seconds, action):
    timer = threading.Timer(seconds, action)
    timer.start()
    return timer


def test_a_stream_of_a_process_resumes_after_a_lost_connection(sandbox, relay):
    process = sandbox.start("for i in $(seq 1 40); do echo $i; sleep 0.05; done")
    timers = [later(0.4, relay.cut), later(1.0, relay.cut)]
    seen = b"".join(event.data for event in process.events() if event.kind == "stdout")
    assert seen.decode().split() == [str(number) for number in range(1, 41)], "nothing is lost and nothing comes twice"
    for timer in timers:
        timer.join()


def test_a_command_without_a_key_is_not_repeated(sandbox, relay):
    later(0.5, relay.cut)
    with pytest.raises(errors.SandboxOutcomeUnknownError, match="outcome unknown"):
        sandbox.run("echo x >> count; sleep 3; echo x >> count")
    assert lines(sandbox) == "1"


def test_a_command_with_a_key_survives_and_runs_once(sandbox, relay):
    later(0.5, relay.cut)
    result = sandbox.run("echo x >> count; sleep 2; echo done", idempotency_key="survivor")
    assert result.stdout == "done\n"
    assert lines(sandbox) == "1"


def test_calls_wait_for_a_router_that_is_temporarily_down(sandbox, relay):
    sandbox.files.write("x", "1")
    relay.refusing = True
    relay.cut()

    def back():
        relay.refusing = False

    later(1.0, back)
    assert sandbox.files.read("x") == b"1"
    assert sandbox.run("echo x >> count; echo once", idempotency_key="away").stdout == "once\n"
    assert lines(sandbox) == "1"


def test_a_download_resumes_after_a_lost_connection(sandbox, relay, tmp_path):
    sandbox.run("head -c 30000000 /dev/urandom > big; sha256sum big > sum")
    chunks = sandbox.files.open("big")
    got = bytearray()
    cut = False
    for chunk in chunks:
        got += chunk
        if not cut and len(got) > 1_000_000:
            cut = True
            relay.cut()
    import hashlib

    assert len(got) == 30_000_000
    assert hashlib.sha256(got).hexdigest() == sandbox.files.read_text("sum").split()[0]


def test_an_interrupted_upload_leaves_the_old_file(sandbox, relay):
    sandbox.files.write("file", "old")
    before = {entry.name for entry in sandbox.files.list()}

    class Breaking:
        sent = 0

        def read(self, size):
            self.sent += 1
            if self.sent == 3:
                relay.cut()
                time.sleep(0.3)
            return b"x" * size if self.sent < 40 else b""

    with pytest.raises(errors.SandboxRequestError):
        sandbox.files.write("file", Breaking())
    assert sandbox.files.read("file") == b"old"
    assert {entry.name for entry in sandbox.files.list()} == before, "no part of it is left"


def daemon_of(sandbox):
    """The host's pid of a sandbox's daemon: the parent of its commands, in its process namespace."""
    namespace, parent = sandbox.run("readlink /proc/self/ns/pid; echo $PPID").stdout.split()
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and os.readlink(f"/proc/{entry}/ns/pid") == namespace:
                with open(f"/proc/{entry}/status") as status:
                    if any(line.startswith("NSpid:") and line.split()[-1] == parent for line in status):
                        return int(entry)
        except OSError:
            continue
    raise AssertionError("the daemon is not among the processes that can be seen")


@pytest.mark.skipif(os.geteuid() != 0, reason="looks at and kills a process of another user")
def test_a_daemon_that_is_killed_mid_command_leaves_the_outcome_unknown(engine):
    """The daemon loses its idempotency keys: the command is not run again, and later commands work."""
    client = Client(kubeconfig=str(engine.kubeconfig))
    with client.sandbox("host") as sandbox:
        daemon = daemon_of(sandbox)
        timer = later(0.7, lambda: os.kill(daemon, signal.SIGKILL))
        with pytest.raises(errors.SandboxOutcomeUnknownError):
            sandbox.run("echo x >> count; sleep 20; echo x >> count", idempotency_key="during")
        timer.join()
        deadline = time.monotonic() + 60
        while True:
            try:
                assert int(lines(sandbox)) <= 1
                break
            except errors.SandboxError:
                assert time.monotonic() < deadline
                time.sleep(0.2)


def test_suspended_and_resumed_between_calls(engine):
    client = Client(kubeconfig=str(engine.kubeconfig))
    with client.sandbox() as sandbox:
        sandbox.files.write("kept", "1")
        before = sandbox.info()["bootId"]
        client.get(sandbox.claim).suspend()
        client.get(sandbox.claim).resume()
        assert sandbox.files.read("kept") == b"1"
        assert sandbox.run("echo again").stdout == "again\n"
        assert sandbox.start("true").wait().exit_code == 0
        # An idempotency key from before the suspend is unknown now: the command is not run again.
        with pytest.raises(errors.SandboxOutcomeUnknownError):
            sandbox.run("echo x >> count", idempotency_key="old", boot_id=before)
        assert lines(sandbox) == "0"


def test_the_engine_is_restarted_mid_stream():
    """API and router are restarted; the sandbox keeps running, and the stream of a process continues."""
    folder = tempfile.mkdtemp(prefix="agent-sandbox-test-")
    os.rmdir(folder)
    engine = start_engine(folder, "--router-auth", "none")
    try:
        client = Client(Connection.pod(), kubeconfig=str(engine.kubeconfig))
        sandbox = client.sandbox().open()
        api, router = engine.api.rpartition("/")[2], engine.router.rpartition("/")[2]
        process = sandbox.start("for i in $(seq 1 100); do echo $i; sleep 0.1; done")
        events = process.events()
        seen = []
        restarted = False
        for event in events:
            seen += event.text.split() if event.kind == "stdout" else []
            if len(seen) > 5 and not restarted:
                restarted = True
                engine.process.send_signal(signal.SIGKILL)
                engine.process.wait(30)
                os.unlink(f"{folder}/up.json")
                command = [BINARY, "--data-dir", folder, "up", "--api-listen", api, "--router-listen", router, "--router-auth", "none"]
                log = open(f"{folder}.log", "ab")
                engine.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        assert seen == [str(number) for number in range(1, 101)]
        sandbox.delete()
    finally:
        engine.process.send_signal(signal.SIGINT)
        engine.process.wait(30)
        subprocess.run([BINARY, "--data-dir", folder, "down", "--purge", "--yes"], check=True, timeout=60)
        shutil.rmtree(folder, ignore_errors=True)
        os.unlink(f"{folder}.log")
