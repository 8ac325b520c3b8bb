"""Drives the published `e2b` and `e2b-code-interpreter` packages, unmodified, through every method they have, against an
engine: `e2b_api.py sync|async AGENT_SANDBOX DATA_DIR`. Only E2B_API_URL, E2B_SANDBOX_URL and E2B_API_KEY are set.

Each case says which methods it shows and how they end: `works`, `differs: how`, or `501`. The table is printed at the end,
as JSON; a method of the packages without a case is an error. With `async` the same cases drive the asynchronous classes,
whose coroutines run on a loop in another thread.
"""

import asyncio
import contextlib
import http.client
import inspect
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

ASYNC, PROGRAM, DATA = sys.argv[1] == "async", sys.argv[2], sys.argv[3]
# A file beside this one must not hide a package.
sys.path.pop(0)

import e2b  # noqa: E402
import e2b_code_interpreter  # noqa: E402
from e2b import (  # noqa: E402
    AuthenticationException,
    CommandExitException,
    FileNotFoundException,
    InvalidArgumentException,
    NotFoundException,
    PtySize,
    RateLimitException,
    SandboxException,
    SandboxNotFoundException,
    SandboxQuery,
    SandboxState,
    default_build_logger,
)

ROWS = {}
LOOP = asyncio.new_event_loop()


class Waiting:
    """An asynchronous object or class as a synchronous one: what it returns is awaited."""

    def __init__(self, target):
        object.__setattr__(self, "_target", target)

    def __getattr__(self, name):
        return wrapped(getattr(self._target, name))

    def __call__(self, *arguments, **named):
        arguments = [getattr(one, "_target", one) if isinstance(one, Waiting) else one for one in arguments]
        named = {key: one._target if isinstance(one, Waiting) else one for key, one in named.items()}
        return wrapped(asyncio.run_coroutine_threadsafe(called(self._target, arguments, named), LOOP).result())


async def called(target, arguments, named):
    found = target(*arguments, **named)
    return await found if inspect.isawaitable(found) else found


def wrapped(value):
    own = type(value).__module__.startswith("e2b")
    if inspect.isroutine(value) or own and any(inspect.iscoroutinefunction(one) for _, one in inspect.getmembers(type(value))):
        return Waiting(value)
    return value


def kind(name, module=e2b):
    return Waiting(getattr(module, f"Async{name}")) if ASYNC else getattr(module, name)


if ASYNC:
    threading.Thread(target=LOOP.run_forever, daemon=True).start()
Sandbox, Template, Volume, Secret = (kind(name) for name in ("Sandbox", "Template", "Volume", "Secret"))
CodeSandbox = kind("Sandbox", e2b_code_interpreter)


def cli(*words):
    done = subprocess.run([PROGRAM, "--data-dir", DATA, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stderr}"
    return done.stdout


def stored(box, kind="sandbox"):
    """The object in the cluster, as kubectl shows it."""
    name, _, namespace = box.sandbox_id.partition("--")
    return json.loads(cli("-n", namespace, "get", name, "-o", "json"))


def shows(result, *methods):
    for method in methods:
        assert method not in ROWS, f"{method} has two cases"
        ROWS[method] = result


def fails(kind, action, *words):
    try:
        found = action()
    except kind as error:
        for word in words:
            assert word in str(error), f"{word!r} is not in {error}"
        return error
    raise AssertionError(f"{kind.__name__} {words} was not raised: {found!r}")


def unsupported(action, *methods):
    """E-126"""
    fails(Exception, action, "501")
    shows("501", *methods)


def until(condition, what):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited in vain: {what}")


def keys():
    """E-001, E-021"""
    fails(AuthenticationException, lambda: Sandbox.create(api_key="e2b_0000"))
    fails(AuthenticationException, lambda: Sandbox.create(api_key="nothing"))


def creation():
    """E-005, E-023, E-024, E-030, E-032, E-037"""
    box = Sandbox.create(timeout=120, metadata={"user": "ann", "a b": "c&d"}, envs={"GREETING": "hello"})
    assert stored(box)["metadata"]["labels"]["metadata.e2b.agent-sandbox.github.io/user"] == "ann"
    assert box.commands.run("echo $GREETING $E2B_SANDBOX_ID $E2B_TEMPLATE_ID").stdout == f"hello {box.sandbox_id} base\n"
    info = box.get_info()
    assert info.sandbox_id == box.sandbox_id and info.template_id == "base", info
    assert info.metadata == {"user": "ann", "a b": "c&d"}, info
    assert info.state == SandboxState.RUNNING and info.envd_version == "0.6.13"
    assert 60 < (info.end_at - info.started_at).total_seconds() < 125, info
    assert Sandbox.get_info(box.sandbox_id).sandbox_id == box.sandbox_id
    fails(SandboxNotFoundException, lambda: Sandbox.get_info("enothing--default"))
    fails(SandboxNotFoundException, lambda: Sandbox.get_info("not an id"))
    fails(SandboxException, lambda: Sandbox.create("no-such-template"), "404", "not found")
    fails(SandboxException, lambda: Sandbox.create(timeout=10**12), "400", "timeout")
    fails(SandboxException, lambda: Sandbox.create(envs={"A=B": "1"}), "400", "envVars")
    fails(SandboxException, lambda: Sandbox.create(network={"allow_out": ["example.com"]}), "501")
    assert [found.sandbox_id for found in Sandbox.list().next_items()] == [box.sandbox_id], "failures leave nothing behind"
    shows("works", "Sandbox.create", "Sandbox.get_info")
    return box


def listing(box):
    """E-035, E-036"""
    others = [Sandbox.create(metadata={"n": str(number)}) for number in range(3)]
    pages = Sandbox.list(limit=2)
    first, second = pages.next_items(), pages.next_items()
    assert not pages.has_next
    ids = [found.sandbox_id for found in first + second]
    assert ids[-1] == box.sandbox_id and set(ids) == {box.sandbox_id, *(other.sandbox_id for other in others)}, ids
    upwards = Sandbox.list(order="asc").next_items()
    assert [found.sandbox_id for found in upwards] == ids[::-1]

    def chosen(**query):
        return [found.sandbox_id for found in Sandbox.list(query=SandboxQuery(**query)).next_items()]

    assert chosen(metadata={"a b": "c&d", "user": "ann"}) == [box.sandbox_id]
    assert chosen(metadata={"user": "bob"}) == []
    assert chosen(state=[SandboxState.PAUSED]) == []
    assert len(chosen(template="base")) == 4 and chosen(template="other") == []
    for other in others:
        assert other.kill() is True
    assert others[0].kill() is False
    until(lambda: others[0].is_running() is False, "a killed sandbox is not running")
    fails(SandboxException, lambda: others[0].commands.run("true"))
    shows("works", "Sandbox.list", "Sandbox.kill", "Sandbox.is_running")


def timeouts(box):
    """E-034, E-040"""
    box.set_timeout(600)
    end = box.get_info().end_at
    assert stored(box)["spec"]["shutdownTime"] == end.strftime("%Y-%m-%dT%H:%M:%SZ")
    Sandbox.connect(box.sandbox_id, timeout=10)
    assert box.get_info().end_at == end, "connect only lengthens"
    Sandbox.connect(box.sandbox_id, timeout=1200)
    assert box.get_info().end_at > end
    short = Sandbox.create(timeout=60)
    short.set_timeout(1)
    until(lambda: not short.is_running(), "the end of its time")
    fails(SandboxNotFoundException, lambda: short.set_timeout(10))
    fails(SandboxNotFoundException, lambda: Sandbox.connect(short.sandbox_id))
    shows("works", "Sandbox.set_timeout")


def pausing(box):
    """E-034, E-038, E-039, E-120, E-123, E-126, E-129"""
    box.files.write("kept.txt", "still here")
    # A pause keeps processes unless its mode says otherwise, and that is not to be had here.
    fails(SandboxException, lambda: box.pause(), "501", "filesystem", "--pause-without-memory")
    fails(SandboxException, lambda: box.pause(mode="full"), "501")
    assert box.is_running() is True
    assert box.pause(mode="filesystem") is True
    assert stored(box)["spec"]["operatingMode"] == "Suspended"
    assert box.pause(mode="filesystem") is False
    assert box.is_running() is False
    fails(SandboxException, lambda: box.commands.run("true"), "not found")
    assert Sandbox.get_info(box.sandbox_id).state == SandboxState.PAUSED
    assert [one.sandbox_id for one in Sandbox.list(query=SandboxQuery(state=[SandboxState.PAUSED])).next_items()] == [
        box.sandbox_id
    ]
    again = Sandbox.connect(box.sandbox_id, timeout=300)
    assert again.files.read("kept.txt") == "still here"
    assert box.files.read("kept.txt") == "still here", "the old handle keeps its token"
    assert again.get_info().metadata == {"user": "ann", "a b": "c&d"}
    assert again.commands.run("echo $GREETING").stdout == "hello\n"
    assert box.beta_pause(mode="filesystem") is True
    Sandbox.connect(box.sandbox_id, timeout=300)
    shows('differs: `mode="filesystem"` works; keeping processes is 501', "Sandbox.pause", "Sandbox.beta_pause")
    shows("works", "Sandbox.connect")
    # Who made the key accepted that processes end.
    files_only = {"api_key": cli("token", "e2b", "--pause-without-memory").strip()}
    assert box.pause(**files_only) is True
    Sandbox.connect(box.sandbox_id, timeout=300)
    for source in ("base", "mine"):
        pauses_in_time(source, files_only)


def snapshots(box):
    """E-044, E-045, E-126, E-129"""
    files_only = {"api_key": cli("token", "e2b", "--pause-without-memory").strip()}
    box.files.write("kept.txt", "first")
    fails(SandboxException, lambda: box.create_snapshot(), "501", "filesystem", "--pause-without-memory")
    fails(SandboxNotFoundException, lambda: Sandbox.create_snapshot("enothing--default", mode="filesystem"))
    fails(SandboxException, lambda: box.create_snapshot(name="team/mine", mode="filesystem"), "400", "letters, digits")
    assert Sandbox.list_snapshots().next_items() == []
    first = box.create_snapshot(name="mine-1", mode="filesystem")
    assert (first.snapshot_id, first.names) == ("mine-1:default", ["mine-1:default"]), first
    plain = box.create_snapshot(**files_only)
    assert plain.names == [] and plain.snapshot_id.endswith(":default"), plain
    assert box.commands.run("cat kept.txt").stdout == "first", "the sandbox goes on"
    in_cluster = cli("snapshot", "list", "-o", "name").split()
    assert len(in_cluster) == 2 and any(plain.snapshot_id.removesuffix(":default") in one for one in in_cluster)
    pages = Sandbox.list_snapshots(limit=1)
    found = pages.next_items()
    assert pages.has_next is True
    found += pages.next_items()
    # Creation times have whole seconds, so that either may come first.
    assert {one.snapshot_id for one in found} == {plain.snapshot_id, first.snapshot_id} and not pages.has_next
    assert [one.snapshot_id for one in box.list_snapshots(name="mine-1").next_items()] == [first.snapshot_id]
    assert Sandbox.list_snapshots(sandbox_id="enothing--default").next_items() == []

    # A further one of the same name takes its place; sandboxes of the old one stay.
    old = Sandbox.create(first.snapshot_id, timeout=300, envs={"GREETING": "again"})
    assert old.files.read("kept.txt") == "first"
    assert old.get_info().template_id == first.snapshot_id
    said = old.commands.run("echo $GREETING $E2B_SANDBOX_ID").stdout
    assert said == f"again {old.sandbox_id}\n", said
    box.files.write("kept.txt", "second")
    assert box.create_snapshot(name="mine-1", mode="filesystem").snapshot_id == first.snapshot_id
    assert len(Sandbox.list_snapshots().next_items()) == 2
    new = Sandbox.create("mine-1", timeout=300)
    assert (new.files.read("kept.txt"), old.files.read("kept.txt")) == ("second", "first")
    new.files.write("kept.txt", "third")
    assert box.files.read("kept.txt") == "second", "copies are independent"
    assert new.kill() is True and old.kill() is True

    fails(SandboxException, lambda: box.fork(), "501", "--pause-without-memory")
    fails(SandboxException, lambda: box.fork(count=21), "count")
    copies = box.fork(timeout=300, count=2, **files_only)
    copies = [wrapped(one) if ASYNC else one for one in copies]
    assert len({box.sandbox_id, *(one.sandbox_id for one in copies)}) == 3
    for copy in copies:
        assert copy.files.read("kept.txt") == "second"
        assert copy.get_info().metadata == box.get_info().metadata
        assert stored(copy)["spec"]["operatingMode"] == "Running"
        assert copy.kill() is True
    fails(SandboxNotFoundException, lambda: Sandbox.fork("enothing--default", **files_only))
    box.pause(mode="filesystem")
    fails(SandboxException, lambda: box.fork(**files_only), "409", "paused")
    Sandbox.connect(box.sandbox_id, timeout=300)

    assert Sandbox.delete_snapshot(plain.snapshot_id) is True
    assert Sandbox.delete_snapshot(plain.snapshot_id) is False
    assert Sandbox.delete_snapshot("mine-1") is True
    until(lambda: cli("snapshot", "list", "-o", "name").split() == [], "nor has a fork left one")
    fails(SandboxException, lambda: Sandbox.create("mine-1"), "not found")
    shows('differs: `mode="filesystem"` works; keeping processes is 501', "Sandbox.create_snapshot")
    shows("works", "Sandbox.list_snapshots", "Sandbox.delete_snapshot")
    shows("differs: copies files, with a key of `token e2b --pause-without-memory`", "Sandbox.fork")


def pauses_in_time(source, files_only):
    """E-030, E-037, E-120, E-122: at the end of its time a sandbox is paused, and requests resume it if that was asked for."""
    only_files = {"on_timeout": {"action": "pause", "mode": "filesystem"}}
    fails(SandboxException, lambda: Sandbox.create(source, lifecycle={"on_timeout": "pause"}), "501", "filesystem")
    fails(SandboxException, lambda: Sandbox.create(source, lifecycle={"on_timeout": "pause", "auto_resume": True}), "501")
    paused = Sandbox.create(source, timeout=300, lifecycle=only_files)
    lifecycle = paused.get_info().lifecycle
    assert (lifecycle["on_timeout"], lifecycle["auto_resume"]) == ("pause", False), lifecycle
    paused.files.write("kept", source)
    paused.set_timeout(1)
    until(lambda: Sandbox.get_info(paused.sandbox_id).state == SandboxState.PAUSED, "its time pauses it")
    until(lambda: stored(paused)["spec"]["operatingMode"] == "Suspended", "kubectl shows it")
    until(lambda: not paused.is_running(), "it is not running")
    fails(SandboxException, lambda: paused.files.read("kept"), "not found")
    resumed = Sandbox.connect(paused.sandbox_id, timeout=60)
    assert resumed.files.read("kept") == source
    assert resumed.kill() is True

    lifecycle = {"on_timeout": "pause", "auto_resume": True}
    waking = Sandbox.create(source, timeout=300, lifecycle=lifecycle, **files_only)
    assert waking.get_info().lifecycle["auto_resume"] is True
    waking.files.write("kept", source)
    waking.set_timeout(1)
    until(lambda: stored(waking)["spec"]["operatingMode"] == "Suspended", "its time pauses it")
    until(lambda: not waking.is_running(), "to ask whether it runs does not resume it")
    assert Sandbox.get_info(waking.sandbox_id).state == SandboxState.PAUSED
    assert waking.files.read("kept") == source, "a request resumes it and is answered"
    left = (waking.get_info().end_at - waking.get_info().started_at).total_seconds()
    assert waking.get_info().state == SandboxState.RUNNING and left > 200, left
    # Who asks for files only resumes it by connect only.
    assert waking.pause(mode="filesystem") is True
    fails(SandboxException, lambda: waking.files.read("kept"), "not found")
    Sandbox.connect(waking.sandbox_id, timeout=300)
    assert waking.pause(**files_only) is True
    assert waking.commands.run("echo up").stdout == "up\n"
    assert waking.kill() is True


def own_template():
    manifest = {
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
        "kind": "SandboxTemplate",
        "metadata": {"name": "mine"},
        "spec": {
            "envVarsInjectionPolicy": "Allowed",
            "podTemplate": {
                "metadata": {"annotations": {"runtime.agents.x-k8s.io/inject-sandboxd": "true"}},
                "spec": {"containers": [{"name": "sandbox", "image": "host"}]},
            },
        },
    }
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(manifest, file)
        file.flush()
        cli("apply", "-f", file.name)


def templates(_):
    """E-030, E-034, E-039: a sandbox from a SandboxTemplate is a claim."""
    cli("template", "create", "strict", "--image", "host")
    fails(SandboxException, lambda: Sandbox.create("strict"), "400", "not allowed by the template policy")
    box = Sandbox.create("mine", timeout=300, metadata={"from": "template"}, envs={"GREETING": "hello"})
    assert box.commands.run("echo $GREETING").stdout == "hello\n"
    assert stored(box)["metadata"]["labels"]["agents.x-k8s.io/launch-type"] == "cold"
    info = box.get_info()
    assert (info.template_id, info.metadata) == ("mine", {"from": "template"}), info
    box.files.write("kept", "1")
    box.set_timeout(600)
    assert box.pause(mode="filesystem") is True
    assert Sandbox.connect(box.sandbox_id).files.read("kept") == "1"
    fails(SandboxException, lambda: Sandbox.create("mine", allow_internet_access=False), "501")
    assert box.kill() is True
    assert Template.exists("mine") is True


def networks(box):
    """E-005, E-010, E-032, E-043"""
    box.commands.run("python3 -m http.server 8000 --directory /tmp", background=True, timeout=0)
    host = box.get_host(8000)

    def fetch(address, **headers):
        request = urllib.request.Request(address, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return response.status
        except urllib.error.HTTPError as error:
            return error.code

    origin = host.partition(".")[2]
    local = f"http://{origin.replace('localhost', '127.0.0.1')}/"
    until(lambda: fetch(local, Host=host) == 200, "the port is reachable without a token")
    assert fetch(local, Host=box.get_host(8001)) == 502
    # The ports of sandboxd itself are not public.
    assert fetch(local, Host=box.get_host(8888)) == 401
    assert fetch(f"{local}files?path=/etc/passwd", Host=box.get_host(49983)) == 401
    assert fetch(f"{local}contexts", Host=box.get_host(49999)) == 403
    private = Sandbox.create(network={"allow_public_traffic": False})
    private.commands.run("python3 -m http.server 8000", background=True, timeout=0)
    token = {"E2B-Traffic-Access-Token": private.traffic_access_token}
    until(lambda: fetch(local, Host=private.get_host(8000), **token) == 200, "the token opens the port")
    assert fetch(local, Host=private.get_host(8000)) == 403
    assert fetch(local, Host=private.get_host(8000), **{"E2B-Traffic-Access-Token": box.traffic_access_token}) == 403
    private.kill()
    shows("works", "Sandbox.get_host")
    fails(SandboxException, lambda: box.update_network({"allow_out": ["example.com"]}), "501")
    reaches(box)
    shows("differs: names only for a sandbox that was created with names", "Sandbox.update_network")


def reaches(box):
    """E-032, E-043: what an update denies is not reached, and what it leaves out is as at first."""
    with another_machine() as address:
        connect = f"import socket; socket.create_connection(('{address}', 8000), 2); print('reached')"

        def reached(expected, network):
            box.update_network(network)
            # As another user than root this machine cannot be given an address to reach.
            found = lambda: box.commands.run(f'python3 -c "{connect}" 2>/dev/null || true').stdout == "reached\n"
            assert address == NOWHERE or until(lambda: found() is expected, f"{network} lets it reach {address}: {expected}")
            name, _, namespace = box.sandbox_id.partition("--")
            return kubectl_policy(namespace, name)["spec"].get("egress")

        everything = reached(True, {})
        assert everything[0]["to"][0]["ipBlock"]["cidr"] == "0.0.0.0/0"
        assert f"{address}/32" in reached(False, {"deny_out": [address]})[0]["to"][0]["ipBlock"]["except"]
        only = reached(True, {"allow_out": [address], "deny_out": ["0.0.0.0/0"]})
        assert only == [{"to": [{"ipBlock": {"cidr": f"{address}/32"}}]}], only
        assert not reached(False, {"allow_internet_access": False})
        assert reached(True, {}) == everything


NOWHERE = "192.0.2.1"


@contextlib.contextmanager
def another_machine():
    """An address that a sandbox reaches unless it is denied: a server in a network namespace."""
    if os.geteuid() != 0:
        yield NOWHERE
        return
    namespace, number = f"e2b-{os.getpid()}", 4 * (os.getpid() % 60)
    near, far = f"198.51.100.{number + 1}", f"198.51.100.{number + 2}"

    def ip(*words):
        subprocess.run(["ip", *words], check=True)

    ip("netns", "add", namespace)
    server = None
    try:
        ip("link", "add", namespace, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        ip("addr", "add", f"{near}/30", "dev", namespace)
        ip("link", "set", namespace, "up")
        ip("-n", namespace, "addr", "add", f"{far}/30", "dev", "eth0")
        ip("-n", namespace, "link", "set", "eth0", "up")
        ip("-n", namespace, "route", "add", "default", "via", near)
        command = ["ip", "netns", "exec", namespace, sys.executable, "-m", "http.server", "8000"]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        yield far
    finally:
        if server:
            server.kill()
            server.wait()
        ip("netns", "del", namespace)


def kubectl_policy(namespace, name):
    kubeconfig = os.path.join(DATA, "kubeconfig")
    words = ["kubectl", "--kubeconfig", kubeconfig, "-n", namespace, "get", "networkpolicy", name, "-o", "json"]
    return json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def metrics(box):
    """E-041"""
    samples = box.get_metrics()
    assert len(samples) == 1 and samples[0].mem_total > 0 and samples[0].cpu_count > 0, samples
    shows("differs: the current sample only", "Sandbox.get_metrics")


def addresses(box):
    """E-006, E-007, E-103"""
    box.files.write("signed.txt", "by address")
    with urllib.request.urlopen(box.download_url("signed.txt"), timeout=10) as response:
        assert response.read() == b"by address"
    form = b'--B\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nuploaded\r\n--B--\r\n'
    request = urllib.request.Request(
        box.upload_url("up.txt"), data=form, headers={"Content-Type": "multipart/form-data; boundary=B"}
    )
    with urllib.request.urlopen(request, timeout=10) as response:
        assert response.status == 200
    assert box.files.read("up.txt") == "uploaded"
    wrong = box.download_url("signed.txt").replace("v1_", "v1_x")
    refused = fails(urllib.error.HTTPError, lambda: urllib.request.urlopen(wrong, timeout=10))
    assert refused.code == 401
    shows("works", "Sandbox.download_url", "Sandbox.upload_url")


def commands(box):
    """E-081 to E-086, through the router"""
    assert box.commands.run("id -un").stdout == "user\n"
    fails(CommandExitException, lambda: box.commands.run("exit 3"))
    cat = box.commands.run("cat", background=True, stdin=True)
    assert any(entry.pid == cat.pid for entry in box.commands.list())
    box.commands.send_stdin(cat.pid, "a\n")
    stream(box.commands, cat.pid, "b\n")
    box.commands.close_stdin(cat.pid)
    assert cat.wait().stdout == "a\nb\n"
    sleeper = box.commands.run("sleep 300", background=True, timeout=0)
    assert box.commands.connect(sleeper.pid).pid == sleeper.pid
    assert box.commands.kill(sleeper.pid) is True
    names = ["run", "list", "send_stdin", "stream_input", "close_stdin", "connect", "kill"]
    shows("works", *(f"Sandbox.commands.{name}" for name in names))
    seen = []
    # The asynchronous client passes output on as it comes, the other one while it is waited for.
    during = {"on_data": lambda data: seen.append(data.decode())} if ASYNC else {}
    waiting = {} if ASYNC else {"on_pty": lambda data: seen.append(data.decode())}
    terminal = box.pty.create(PtySize(rows=24, cols=80), **during)
    box.pty.resize(terminal.pid, PtySize(rows=30, cols=90))
    stream(box.pty, terminal.pid, b"stty size\n")
    box.pty.send_stdin(terminal.pid, b"exit\n")
    terminal.wait(**waiting)
    assert "30 90" in "".join(seen), seen
    second = box.pty.create(PtySize(rows=24, cols=80), timeout=0, **during)
    assert box.pty.connect(second.pid, **during).pid == second.pid
    assert box.pty.kill(second.pid) is True
    shows("works", *(f"Sandbox.pty.{name}" for name in ["create", "resize", "send_stdin", "stream_input", "connect", "kill"]))


def stream(part, pid, data):
    if not ASYNC:
        part.stream_input(pid, [data])
        return
    handle = part.stream_input(pid)
    handle.send(data)
    handle.close()


def files(box):
    """E-090 to E-093, E-100, E-101, through the router"""
    assert box.files.write("d/a", "1").path == "/home/user/d/a"
    assert len(box.files.write_files([{"path": "d/b", "data": "2"}, {"path": "d/c", "data": b"3"}])) == 2
    assert box.files.read("d/a") == "1"
    assert [entry.name for entry in box.files.list("d")] == ["a", "b", "c"]
    assert box.files.exists("d/a") and box.files.get_info("d/a").size == 1
    assert box.files.rename("d/a", "d/z").name == "z"
    assert box.files.make_dir("d/e") is True
    events = []
    watch = box.files.watch_dir("d", on_event=events.append) if ASYNC else box.files.watch_dir("d")
    box.files.remove("d/z")
    new = (lambda: events) if ASYNC else watch.get_new_events
    until(lambda: any(event.name == "z" for event in new()), "the event of a removed file")
    watch.stop()
    large = b"x" * (20 << 20)
    box.files.write("large", large)
    assert box.files.read("large", format="bytes") == large
    names = ["write", "write_files", "read", "list", "exists", "get_info", "rename", "make_dir", "watch_dir", "remove"]
    shows("works", *(f"Sandbox.files.{name}" for name in names))


def repositories(box):
    """E-124: `git` in the sandbox, with a repository of the sandbox as the remote one."""
    git, shell = box.git, lambda command: box.commands.run(command).stdout
    if "git version" not in shell("git --version || true"):
        raise AssertionError("the image host has no git: install it on this machine")
    git.init("remote.git", bare=True, initial_branch="main")
    git.init("repo", initial_branch="main")
    git.configure_user("Ann", "ann@example.com", scope="local", path="repo")
    assert git.get_config("user.name", scope="local", path="repo") == "Ann"
    git.set_config("core.abbrev", "12", scope="local", path="repo")
    assert shell("git -C repo config core.abbrev") == "12\n"
    assert git.get_config("no.such", scope="local", path="repo") is None
    box.files.write("repo/a", "1")
    assert [one.name for one in git.status("repo").file_status] == ["a"]
    git.add("repo")
    git.commit("repo", "first")
    assert not git.status("repo").file_status and shell("git -C repo log --format=%s") == "first\n"
    git.remote_add("repo", "origin", "/home/user/remote.git")
    assert git.remote_get("repo", "origin") == "/home/user/remote.git"
    git.push("repo", remote="origin", branch="main")
    assert shell("git -C remote.git log --format=%s main") == "first\n"
    git.create_branch("repo", "other")
    found = git.branches("repo")
    assert (sorted(found.branches), found.current_branch) == (["main", "other"], "other"), found
    git.checkout_branch("repo", "main")
    git.delete_branch("repo", "other")
    assert git.branches("repo").branches == ["main"]
    git.clone("/home/user/remote.git", path="copy")
    assert box.files.read("copy/a") == "1"
    box.files.write("repo/a", "2")
    git.add("repo", files=["a"])
    git.restore("repo", ["a"], staged=True, worktree=True)
    assert box.files.read("repo/a") == "1"
    box.files.write("repo/b", "b")
    git.add("repo")
    git.commit("repo", "second")
    git.push("repo", remote="origin", branch="main")
    git.pull("copy", remote="origin", branch="main")
    assert box.files.read("copy/b") == "b"
    git.reset("repo", mode="hard", target="HEAD~1")
    assert not box.files.exists("repo/b")
    fails(Exception, lambda: git.clone("/no/such/repository", path="none"))
    git.dangerously_authenticate("ann", "secret")
    assert "ann:secret@github.com" in shell("cat ~/.git-credentials")
    shows("works", *(f"Sandbox.git.{name}" for name in (
        "init", "configure_user", "get_config", "set_config", "status", "add", "commit", "remote_add", "remote_get", "push",
        "create_branch", "branches", "checkout_branch", "delete_branch", "clone", "restore", "pull", "reset",
        "dangerously_authenticate",
    )))


def absent(box):
    """E-126: what is not there says so."""
    shows("501: no MCP servers in a sandbox", "Sandbox.get_mcp_url", "Sandbox.get_mcp_token")
    fails(SandboxException, lambda: Sandbox.create(mcp={"x": {}}), "501")
    template = Template().from_image("host").run_cmd("true")
    unsupported(lambda: Template.build(template, "mine", on_build_logs=default_build_logger()), "Template.build")
    unsupported(lambda: Template.build_in_background(template, "mine"), "Template.build_in_background")
    unsupported(lambda: Template.assign_tags("base", ["a"]), "Template.assign_tags")
    unsupported(lambda: Template.remove_tags("base", ["a"]), "Template.remove_tags")
    unsupported(lambda: Template.get_tags("base"), "Template.get_tags")
    assert Template.exists("base") is True and Template.alias_exists("code-interpreter-v1") is True
    assert Template.exists("no-such-template") is False
    shows("works", "Template.exists", "Template.alias_exists")
    shows("501: there are no builds", "Template.get_build_status")
    assert "RUN true" in Template.to_dockerfile(template) and "true" in Template.to_json(template)
    shows("works: sends nothing", "Template.to_dockerfile", "Template.to_json")
    for name in ("create", "connect", "list", "get_info", "destroy"):
        arguments = () if name == "list" else ("v",)
        unsupported(lambda name=name, arguments=arguments: getattr(Volume, name)(*arguments), f"Volume.{name}")
    contents = ("exists", "make_dir", "read_file", "remove", "update_metadata", "write_file")
    shows("501: there are no volumes", *(f"Volume.{name}" for name in contents))
    shows("501 where it is used", "Secret.fill", "Secret.iam_token")
    for name, arguments in {
        "create": ("n", "v"), "update": ("n", "v"), "list": (), "get_info": ("n",), "destroy": ("n",), "exists": ("n",),
    }.items():
        def call(name=name, arguments=arguments):
            found = getattr(Secret, name)(*arguments)
            return found.next_items() if hasattr(found, "next_items") else found

        unsupported(call, f"Secret.{name}")


def interpreter(_):
    """E-010, E-110 to E-118, through the router"""
    box = CodeSandbox.create(timeout=120)
    try:
        assert box.get_info().template_id == "code-interpreter-v1"
        assert box.run_code("x = 20\nx + 1").text == "21"
        assert box.run_code("x").text == "20"
        assert box.run_code("1/0").error.name == "ZeroDivisionError"
        mine = box.create_code_context(cwd="/tmp")
        assert box.run_code("import os; os.getcwd()", context=mine).text == "/tmp"
        assert mine.id in {context.id for context in box.list_code_contexts()}
        box.restart_code_context(mine)
        box.remove_code_context(mine)
        fails(NotFoundException, lambda: box.run_code("1", context=mine))
        fails(SandboxException, lambda: box.run_code("1", language="r"), "no kernel")
    finally:
        assert box.kill() is True
    if not ASYNC:
        with CodeSandbox.create(timeout=120) as box:
            identity = box.sandbox_id
        assert Sandbox.kill(identity) is False, "the end of the block kills it"
    names = ["run_code", "create_code_context", "list_code_contexts", "restart_code_context", "remove_code_context"]
    shows("works", *(f"code.Sandbox.{name}" for name in names))


def raw(path, body, **headers):
    """What another client than the published ones could send."""
    address = urllib.parse.urlsplit(os.environ["E2B_API_URL"])
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
    headers = {"X-API-KEY": os.environ["E2B_API_KEY"], "Content-Type": "application/json", **headers}
    connection.request("POST", f"{address.path}{path}", json.dumps(body), headers)
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    return response.status, answer


def bodies():
    """E-030, E-031, E-033: what has no effect is refused; a repeated request creates nothing further."""
    new = {"templateID": "base", "timeout": 300}
    for more, code, word in (
        ({"newOption": {"x": 1}}, 501, "newOption"),
        ({"secure": False}, 501, "secure"),
        ({"volumeMounts": [{"name": "v", "path": "/v"}]}, 501, "volumes"),
        ({"autoPauseMemory": False}, 400, "autoPause"),
        ({"autoPause": True, "autoPauseMemory": False, "autoResume": {"enabled": True}}, 400, "autoResume"),
        ({"timeout": 10**9}, 400, "timeout"),
        ({"timeout": "soon"}, 400, "body"),
    ):
        status, answer = raw("/v2/sandboxes", new | more)
        assert status == code == answer["code"] and word in answer["message"], (more, status, answer)
    twice = {"Idempotency-Key": f"try-{'async' if ASYNC else 'sync'}"}
    (first, made), (second, again) = (raw("/v2/sandboxes", new | {"newOption": None}, **twice) for _ in range(2))
    assert (first, second) == (201, 201) and made["sandboxID"] == again["sandboxID"], (made, again)
    status, answer = raw("/v2/sandboxes", new | {"timeout": 60}, **twice)
    assert status == 422 and "another request" in answer["message"], answer
    assert raw("/v2/sandboxes", new, **{"Idempotency-Key": "Not allowed"})[0] == 400
    assert Sandbox.kill(made["sandboxID"]) is True


def mistakes(box):
    """E-020, E-021, E-035, E-073, E-086, E-092, E-115: the exception that a user expects, for every call."""
    bodies()
    missing = "enothing--default"
    assert Sandbox.kill(missing) is False and Sandbox.kill("not an id") is False
    for action in (
        lambda: Sandbox.connect(missing), lambda: Sandbox.get_info(missing), lambda: Sandbox.set_timeout(missing, 10),
        lambda: Sandbox.pause(missing, mode="filesystem"), lambda: Sandbox.get_metrics(missing),
        lambda: Sandbox.update_network(missing, {}), lambda: Sandbox.connect("not an id"),
    ):
        fails(NotFoundException, action)
    for action, word in (
        (lambda: Sandbox.create(timeout=-1), "timeout"),
        (lambda: Sandbox.create(metadata={"k": "v" * 70_000}), "metadata"),
        (lambda: Sandbox.create(network={"deny_out": ["nonsense"]}), "denyOut"),
        (lambda: box.set_timeout(-1), "timeout"),
        (lambda: box.update_network({"deny_out": ["1.1.1.1/40"]}), "denyOut"),
        (lambda: Sandbox.list(limit=1000).next_items(), "limit"),
        (lambda: Sandbox.list(next_token="nonsense").next_items(), "nextToken"),
        (lambda: Sandbox.connect(box.sandbox_id, timeout=10**12), "timeout"),
    ):
        error = fails(SandboxException, action, word)
        assert "400" in str(error) or isinstance(error, InvalidArgumentException), error
    fails(InvalidArgumentException, lambda: box.commands.run("true", cwd="/no/such"), "does not exist")
    fails(AuthenticationException, lambda: box.commands.run("true", user="nobody-here"))
    assert box.commands.kill(4_000_000) is False and box.pty.kill(4_000_000) is False
    on_data = {"on_data": print} if ASYNC else {}
    for action in (
        lambda: box.commands.send_stdin(4_000_000, "x"), lambda: box.commands.connect(4_000_000),
        lambda: box.commands.close_stdin(4_000_000), lambda: box.pty.send_stdin(4_000_000, b"x"),
        lambda: box.pty.resize(4_000_000, PtySize(rows=1, cols=1)), lambda: box.pty.connect(4_000_000, **on_data),
    ):
        fails(NotFoundException, action)
    box.files.write("plain", "x")
    on_event = {"on_event": print} if ASYNC else {}
    for action in (
        lambda: box.files.read("missing"), lambda: box.files.list("missing"), lambda: box.files.get_info("missing"),
        lambda: box.files.rename("missing", "other"), lambda: box.files.watch_dir("missing", **on_event),
    ):
        fails(FileNotFoundException, action)
    for action in (
        lambda: box.files.list("plain"), lambda: box.files.make_dir("plain"), lambda: box.files.read("."),
        lambda: box.files.watch_dir("plain", **on_event),
    ):
        fails(InvalidArgumentException, action)
    assert box.files.make_dir(".") is False and box.files.exists("missing") is False
    box.files.remove("missing")
    fails(AuthenticationException, lambda: box.files.read("plain", user="nobody-here"))
    assert [found.sandbox_id for found in Sandbox.list().next_items()] == [box.sandbox_id], "nothing is left behind"


def interrupted(box):
    """A client that leaves while its sandbox is created leaves nothing."""
    address = urllib.parse.urlsplit(os.environ["E2B_API_URL"])

    def boxes():
        return {item["metadata"]["name"] for item in json.loads(cli("list", "--all", "-o", "json"))["items"]}

    before = boxes()
    finished = 0
    for template in ("base", "mine"):
        for delay in (0, 0.01, 0.03, 0.06, 0.1):
            connection = http.client.HTTPConnection(address.hostname, address.port, timeout=30)
            body = json.dumps({"templateID": template, "timeout": 3600})
            headers = {"X-API-KEY": os.environ["E2B_API_KEY"], "Content-Type": "application/json"}
            connection.request("POST", f"{address.path}/v2/sandboxes", body, headers)
            connection.sock.settimeout(delay or 0.001)
            try:
                finished += bool(connection.sock.recv(1))
            except TimeoutError:
                # What the server sent before it saw the end counts as answered.
                connection.sock.shutdown(socket.SHUT_WR)
                connection.sock.settimeout(30)
                finished += bool(connection.sock.recv(1))
            connection.close()
    until(lambda: len(boxes() - before) <= finished, "only what was answered is left")
    for one in Sandbox.list().next_items():
        if one.sandbox_id != box.sandbox_id:
            Sandbox.kill(one.sandbox_id)
    until(lambda: boxes() == before, "the rest is gone")


def complete():
    """Every public method of the packages has a case."""
    prefix = "Async" if ASYNC else ""
    found, kinds = set(), {name: getattr(e2b, prefix + name) for name in ("Sandbox", "Template", "Volume", "Secret")}
    for name, own in kinds.items():
        for method, _ in inspect.getmembers(own, callable):
            found.add(f"{name}.{method}")
    # The builder of templates only collects steps.
    builder = ("Template.from_", "Template.skip_cache")
    found = {name for name in found if not name.startswith(builder) and not name.split(".")[1].startswith("_")}
    for name, _ in inspect.getmembers(getattr(e2b_code_interpreter, prefix + "Sandbox"), callable):
        if not name.startswith("_") and not hasattr(kinds["Sandbox"], name):
            found.add(f"code.Sandbox.{name}")
    for part in ("commands", "pty", "files", "git"):
        own = inspect.signature(getattr(kinds["Sandbox"], part).fget).return_annotation
        methods = [name for name, _ in inspect.getmembers(own, callable) if not name.startswith("_")]
        assert methods, part
        found |= {f"Sandbox.{part}.{name}" for name in methods}
    missing, unknown = sorted(found - set(ROWS)), sorted(set(ROWS) - found)
    assert not missing and not unknown, f"methods without a case: {missing}; cases without a method: {unknown}"


def main():
    keys()
    own_template()
    box = creation()
    parts = [
        listing, timeouts, pausing, snapshots, commands, files, addresses, networks, metrics, repositories, absent, mistakes,
        interrupted, templates, interpreter,
    ]
    for part in parts:
        began = time.monotonic()
        part(box)
        print(f"{part.__name__} passed in {time.monotonic() - began:.1f} s", file=sys.stderr)
    assert box.kill() is True
    complete()
    assert Sandbox.list().next_items() == []
    print(json.dumps(ROWS))


main()
