"""Drives the published `e2b` and `e2b-code-interpreter` packages, unmodified, through every method they have, against an
engine: `e2b_api.py AGENT_SANDBOX DATA_DIR`. Only E2B_API_URL, E2B_SANDBOX_URL and E2B_API_KEY are set.

Each case says which methods it shows and how they end: `works`, `differs: how`, or `501`. The table is printed at the end,
as JSON; a method of the packages without a case is an error.
"""

import asyncio
import inspect
import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

PROGRAM, DATA = sys.argv[1], sys.argv[2]
# A file beside this one must not hide a package.
sys.path.pop(0)

import e2b_code_interpreter as code  # noqa: E402
from e2b import (  # noqa: E402
    AsyncSandbox,
    AsyncTemplate,
    AuthenticationException,
    CommandExitException,
    Sandbox,
    SandboxException,
    SandboxNotFoundException,
    SandboxQuery,
    SandboxState,
    Secret,
    Template,
    Volume,
    default_build_logger,
)

ROWS = {}


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
        action()
    except kind as error:
        for word in words:
            assert word in str(error), f"{word!r} is not in {error}"
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


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
    fails(SandboxException, lambda: Sandbox.create(lifecycle={"on_timeout": "pause", "auto_resume": True}), "501")
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
    """E-034, E-038, E-039, E-120, E-123"""
    box.files.write("kept.txt", "still here")
    token = box._envd_access_token if hasattr(box, "_envd_access_token") else None
    assert box.pause() is True
    assert stored(box)["spec"]["operatingMode"] == "Suspended"
    assert box.pause() is False
    assert box.is_running() is False
    assert Sandbox.get_info(box.sandbox_id).state == SandboxState.PAUSED
    assert [one.sandbox_id for one in Sandbox.list(query=SandboxQuery(state=[SandboxState.PAUSED])).next_items()] == [
        box.sandbox_id
    ]
    again = Sandbox.connect(box.sandbox_id, timeout=300)
    assert again.files.read("kept.txt") == "still here"
    assert box.files.read("kept.txt") == "still here", "the old handle keeps its token"
    assert token is None or again._envd_access_token == token
    assert again.get_info().metadata == {"user": "ann", "a b": "c&d"}
    assert again.commands.run("echo $GREETING").stdout == "hello\n"
    fails(SandboxException, lambda: box.pause(mode="full"), "501")
    assert box.beta_pause() is True
    Sandbox.connect(box.sandbox_id, timeout=300)
    shows("differs: files stay, processes end", "Sandbox.pause", "Sandbox.beta_pause")
    shows("works", "Sandbox.connect")
    paused = Sandbox.create(timeout=1, lifecycle={"on_timeout": "pause"})
    until(lambda: Sandbox.get_info(paused.sandbox_id).state == SandboxState.PAUSED, "its time pauses it")
    resumed = Sandbox.connect(paused.sandbox_id, timeout=60)
    assert resumed.commands.run("echo up").stdout == "up\n"
    assert resumed.kill() is True


def templates():
    """E-030, E-034, E-039: a sandbox from a SandboxTemplate is a claim."""
    cli("template", "create", "strict", "--image", "host")
    fails(SandboxException, lambda: Sandbox.create("strict"), "400", "not allowed by the template policy")
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
    box = Sandbox.create("mine", timeout=300, metadata={"from": "template"}, envs={"GREETING": "hello"})
    assert box.commands.run("echo $GREETING").stdout == "hello\n"
    assert stored(box)["metadata"]["labels"]["agents.x-k8s.io/launch-type"] == "cold"
    info = box.get_info()
    assert (info.template_id, info.metadata) == ("mine", {"from": "template"}), info
    box.files.write("kept", "1")
    box.set_timeout(600)
    assert box.pause() is True
    assert Sandbox.connect(box.sandbox_id).files.read("kept") == "1"
    fails(SandboxException, lambda: Sandbox.create("mine", lifecycle={"on_timeout": "pause"}), "501")
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
    box.update_network({"allow_out": ["192.0.2.1"], "deny_out": ["0.0.0.0/0"]})
    fails(SandboxException, lambda: box.update_network({"allow_out": ["example.com"]}), "501")
    shows("differs: addresses only, no rules by name", "Sandbox.update_network")


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
    box.commands.stream_input(cat.pid, ["b\n"])
    box.commands.close_stdin(cat.pid)
    assert cat.wait().stdout == "a\nb\n"
    sleeper = box.commands.run("sleep 300", background=True, timeout=0)
    assert box.commands.connect(sleeper.pid).pid == sleeper.pid
    assert box.commands.kill(sleeper.pid) is True
    names = ["run", "list", "send_stdin", "stream_input", "close_stdin", "connect", "kill"]
    shows("works", *(f"Sandbox.commands.{name}" for name in names))
    from e2b import PtySize

    terminal = box.pty.create(PtySize(rows=24, cols=80))
    box.pty.resize(terminal.pid, PtySize(rows=30, cols=90))
    box.pty.stream_input(terminal.pid, [b"stty size\n"])
    box.pty.send_stdin(terminal.pid, b"exit\n")
    seen = []
    terminal.wait(on_pty=lambda data: seen.append(data.decode()))
    assert "30 90" in "".join(seen), seen
    second = box.pty.create(PtySize(rows=24, cols=80), timeout=0)
    assert box.pty.connect(second.pid).pid == second.pid
    assert box.pty.kill(second.pid) is True
    shows("works", *(f"Sandbox.pty.{name}" for name in ["create", "resize", "send_stdin", "stream_input", "connect", "kill"]))


def files(box):
    """E-090 to E-093, E-100, E-101, through the router"""
    assert box.files.write("d/a", "1").path == "/home/user/d/a"
    assert len(box.files.write_files([{"path": "d/b", "data": "2"}, {"path": "d/c", "data": b"3"}])) == 2
    assert box.files.read("d/a") == "1"
    assert [entry.name for entry in box.files.list("d")] == ["a", "b", "c"]
    assert box.files.exists("d/a") and box.files.get_info("d/a").size == 1
    assert box.files.rename("d/a", "d/z").name == "z"
    assert box.files.make_dir("d/e") is True
    watch = box.files.watch_dir("d")
    box.files.remove("d/z")
    until(lambda: any(event.name == "z" for event in watch.get_new_events()), "the event of a removed file")
    watch.stop()
    large = b"x" * (20 << 20)
    box.files.write("large", large)
    assert box.files.read("large", format="bytes") == large
    names = ["write", "write_files", "read", "list", "exists", "get_info", "rename", "make_dir", "watch_dir", "remove"]
    shows("works", *(f"Sandbox.files.{name}" for name in names))


def repositories(box):
    """E-124"""
    methods = [name for name, _ in inspect.getmembers(box.git, inspect.ismethod) if not name.startswith("_")]
    if "git version" not in box.commands.run("git --version || true").stdout:
        shows("not tried: this machine has no git", *(f"Sandbox.git.{name}" for name in methods))
        return
    box.git.init("repo")
    box.git.configure_user("Ann", "ann@example.com", scope="local", path="repo")
    box.files.write("repo/a", "1")
    box.git.add("repo")
    box.git.commit("repo", "first")
    assert not box.git.status("repo").file_status
    box.git.create_branch("repo", "other")
    assert "other" in box.git.branches("repo").branches
    shown = ["init", "configure_user", "add", "commit", "status", "create_branch", "branches"]
    shows("works", *(f"Sandbox.git.{name}" for name in shown))
    rest = [name for name in methods if name not in shown]
    shows("not tried: `git` in the sandbox, like the others", *(f"Sandbox.git.{name}" for name in rest))


def absent(box):
    """E-126: what is not there says so."""
    unsupported(lambda: box.fork(), "Sandbox.fork")
    unsupported(lambda: box.create_snapshot(), "Sandbox.create_snapshot")
    unsupported(lambda: Sandbox.list_snapshots().next_items(), "Sandbox.list_snapshots")
    unsupported(lambda: Sandbox.delete_snapshot("x"), "Sandbox.delete_snapshot")
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


def interpreter():
    """E-010, E-110 to E-118, through the router"""
    with code.Sandbox.create(timeout=120) as box:
        assert box.get_info().template_id == "code-interpreter-v1"
        assert box.run_code("x = 20\nx + 1").text == "21"
        assert box.run_code("x").text == "20"
        assert box.run_code("1/0").error.name == "ZeroDivisionError"
        mine = box.create_code_context(cwd="/tmp")
        assert box.run_code("import os; os.getcwd()", context=mine).text == "/tmp"
        assert mine.id in {context.id for context in box.list_code_contexts()}
        box.restart_code_context(mine)
        box.remove_code_context(mine)
        identity = box.sandbox_id
    assert Sandbox.kill(identity) is False, "the end of the block kills it"
    names = ["run_code", "create_code_context", "list_code_contexts", "restart_code_context", "remove_code_context"]
    shows("works", *(f"code.Sandbox.{name}" for name in names))


async def asynchronous():
    """The asynchronous classes: the same calls, and events that are sent."""
    box = await AsyncSandbox.create(timeout=120, metadata={"kind": "async"})
    try:
        assert (await box.commands.run("echo async")).stdout == "async\n"
        await box.files.write("a", "1")
        assert await box.files.read("a") == "1"
        await box.files.make_dir("w")
        seen = asyncio.Queue()
        watch = await box.files.watch_dir("w", on_event=seen.put_nowait)
        await box.files.write("w/new", "x")
        assert (await asyncio.wait_for(seen.get(), 30)).name == "new"
        await watch.stop()
        assert (await box.get_info()).metadata == {"kind": "async"}
        await box.set_timeout(60)
        found = await AsyncSandbox.list(query=SandboxQuery(metadata={"kind": "async"})).next_items()
        assert [one.sandbox_id for one in found] == [box.sandbox_id]
        assert await box.pause() is True
        again = await AsyncSandbox.connect(box.sandbox_id)
        assert await again.files.read("a") == "1"
        assert len(await again.get_metrics()) == 1
        assert await AsyncTemplate.exists("base") is True
    finally:
        assert await box.kill() is True
    async with asyncio.timeout(30):
        while await box.is_running():
            await asyncio.sleep(0.05)
    boxes = await asyncio.gather(*(code.AsyncSandbox.create() for _ in range(3)))
    results = await asyncio.gather(*(box.run_code("6 * 7") for box in boxes))
    assert [result.text for result in results] == ["42"] * 3
    await asyncio.gather(*(box.kill() for box in boxes))


def complete():
    """Every public method of the packages has a case."""
    found = set()
    for name, kind in (("Sandbox", Sandbox), ("Template", Template), ("Volume", Volume), ("Secret", Secret)):
        for method, _ in inspect.getmembers(kind, callable):
            found.add(f"{name}.{method}")
    # The builder of templates only collects steps.
    builder = ("Template.from_", "Template.skip_cache")
    found = {name for name in found if not name.startswith(builder) and not name.split(".")[1].startswith("_")}
    for name in inspect.getmembers(code.Sandbox, callable):
        if not name[0].startswith("_") and not hasattr(Sandbox, name[0]):
            found.add(f"code.Sandbox.{name[0]}")
    for part in ("commands", "pty", "files", "git"):
        kind = getattr(Sandbox, part).fget if isinstance(getattr(Sandbox, part, None), property) else None
        kind = inspect.signature(kind).return_annotation if kind else None
        if inspect.isclass(kind):
            methods = (name for name, _ in inspect.getmembers(kind, callable) if not name.startswith("_"))
            found |= {f"Sandbox.{part}.{name}" for name in methods}
    missing = sorted(found - set(ROWS))
    assert not missing, f"methods without a case: {missing}"


def main():
    keys()
    box = creation()
    for part in (listing, timeouts, pausing, commands, files, addresses, networks, metrics, repositories, absent):
        part(box)
        print(part.__name__, "passed", file=sys.stderr)
    assert box.kill() is True
    templates()
    interpreter()
    asyncio.run(asynchronous())
    complete()
    assert Sandbox.list().next_items() == []
    print(json.dumps(ROWS))


main()
