"""Drives the published `e2b` client, unmodified, against one daemon: `e2b.py URL ACCESS_TOKEN`.

In its debug mode the client asks no control API for the sandbox, and E2B_SANDBOX_URL is where it finds the sandbox.
"""

import asyncio
import io
import os
import sys
import time
import urllib.error
import urllib.request

URL, TOKEN = sys.argv[1], sys.argv[2]
os.environ.update(E2B_DEBUG="true", E2B_SANDBOX_URL=URL, E2B_API_KEY="any")
# Its own name would hide the package of the same name.
sys.path.pop(0)

from e2b import (  # noqa: E402
    AsyncSandbox,
    AuthenticationException,
    CommandExitException,
    FileNotFoundException,
    InvalidArgumentException,
    NotFoundException,
    Sandbox,
    SandboxException,
    TimeoutException,
)
from e2b.connection_config import ConnectionConfig  # noqa: E402
from e2b.sandbox.filesystem.filesystem import FileType  # noqa: E402
from e2b.sandbox.filesystem.watch_handle import FilesystemEventType  # noqa: E402
from packaging.version import Version  # noqa: E402

DIRECTORY = "/home/user"


def opened(kind, token):
    config = ConnectionConfig(extra_sandbox_headers={"X-Access-Token": token} if token else None)
    return kind(
        sandbox_id="debug_sandbox_id",
        sandbox_domain=None,
        envd_version=Version("0.6.13"),
        envd_access_token=token,
        traffic_access_token=None,
        connection_config=config,
    )


def fails(kind, action, *words):
    try:
        action()
    except kind as error:
        for word in words:
            assert word in str(error), f"{word!r} is not in {error}"
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def until(condition, what):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"waited in vain: {what}")


def commands(box):
    """E-080 to E-086."""
    result = box.commands.run("echo out; echo problem >&2")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "problem\n", 0), result
    failed = fails(CommandExitException, lambda: box.commands.run("echo partly; exit 3"))
    assert (failed.exit_code, failed.stdout, failed.error) == (3, "partly\n", "exit status 3"), failed
    assert box.commands.run("pwd").stdout == DIRECTORY + "\n"
    assert box.commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"
    fails(InvalidArgumentException, lambda: box.commands.run("true", cwd="/missing"), "cwd '/missing' does not exist")
    variables = box.commands.run("echo $GREETING $OWN $E2B_SANDBOX $HOME", envs={"OWN": "2"})
    assert variables.stdout == f"hello 2 true {DIRECTORY}\n", variables
    assert box.commands.run("id -un", user="root").stdout == "root\n"
    fails(AuthenticationException, lambda: box.commands.run("true", user="nobody-knows"))
    seen = []
    box.commands.run("for i in 1 2 3; do echo $i; done", on_stdout=seen.append)
    assert "".join(seen) == "1\n2\n3\n", seen
    # Output of a descendant that outlives the command belongs to it.
    assert box.commands.run("(sleep 1; echo late) & echo soon").stdout == "soon\nlate\n"
    large = box.commands.run("head -c 3000000 /dev/zero | tr '\\0' x").stdout
    assert len(large) == 3_000_000
    # A character that is split between two messages arrives whole.
    assert box.commands.run("printf '\\303'; sleep 0.2; printf '\\244'").stdout == "ä"

    began = time.monotonic()
    fails(TimeoutException, lambda: box.commands.run("echo $$ > /tmp/timed; exec sleep 300", timeout=1))
    assert time.monotonic() - began < 20
    pid = box.files.read("/tmp/timed").strip()
    until(lambda: box.commands.run(f"kill -0 {pid} 2>/dev/null || echo gone").stdout == "gone\n", "the limit ends it")


def background(box):
    """E-081, E-082, E-085, E-086."""
    cat = box.commands.run("cat", background=True, stdin=True)
    assert any(entry.pid == cat.pid and entry.cmd == "/bin/bash" for entry in box.commands.list())
    box.commands.send_stdin(cat.pid, "first\n")
    box.commands.stream_input(cat.pid, ["second\n", b"third\n"])
    box.commands.close_stdin(cat.pid)
    assert cat.wait().stdout == "first\nsecond\nthird\n"
    fails(NotFoundException, lambda: box.commands.send_stdin(cat.pid, "x"))

    sleeper = box.commands.run("echo ready; sleep 300", background=True, timeout=0)
    again = box.commands.connect(sleeper.pid, timeout=0)
    assert box.commands.kill(sleeper.pid) is True
    for handle in (sleeper, again):
        ended = fails(CommandExitException, handle.wait)
        assert (ended.exit_code, ended.error) == (-1, "signal: killed"), ended
    assert box.commands.kill(999_999) is False
    fails(NotFoundException, lambda: box.commands.connect(999_999))
    # Its end can still be asked for, once it is gone.
    done = box.commands.run("exit 4", background=True)
    fails(CommandExitException, done.wait)
    late = fails(CommandExitException, box.commands.connect(done.pid).wait)
    assert late.exit_code == 4

    # Only the started process gets the signal.
    parent = box.commands.run("sleep 299 & echo $! > /tmp/child; wait", background=True, timeout=0)
    child = until(lambda: box.commands.run("cat /tmp/child 2>/dev/null || true").stdout.strip(), "the child")
    box.commands.kill(parent.pid)
    fails(CommandExitException, parent.wait)
    assert box.commands.run(f"kill -0 {child} && kill {child} && echo lives").stdout == "lives\n"

    # A client that goes leaves the command running.
    box.commands.run("sleep 1; echo finished > /tmp/left", background=True, timeout=0).disconnect()
    until(lambda: box.files.exists("/tmp/left"), "the command goes on")


def terminal(box):
    """E-080, E-081, E-086."""
    from e2b import PtySize

    handle = box.pty.create(PtySize(rows=33, cols=101), timeout=60)
    box.pty.send_stdin(handle.pid, b"stty size; echo $TERM; tty\n")
    output = []
    box.pty.resize(handle.pid, PtySize(rows=20, cols=60))
    fails(SandboxException, lambda: box.commands.send_stdin(handle.pid, "x"), "terminal")
    fails(SandboxException, lambda: box.commands.close_stdin(handle.pid), "terminal")
    box.pty.send_stdin(handle.pid, b"stty size; exit\n")
    handle.wait(on_pty=lambda data: output.append(data.decode()))
    text = "".join(output)
    assert "33 101" in text or "20 60" in text, text
    assert "/dev/pts/" in text and "xterm" in text, text


def files(box):
    """E-090 to E-092, E-100 to E-102."""
    written = box.files.write("notes/a.txt", "Hello, ä")
    assert (written.name, written.path, written.type) == ("a.txt", f"{DIRECTORY}/notes/a.txt", FileType.FILE), written
    assert box.files.read("~/notes/a.txt") == "Hello, ä"
    assert box.files.read(f"{DIRECTORY}/notes/a.txt", format="bytes") == "Hello, ä".encode()
    assert b"".join(box.files.read("notes/a.txt", format="stream")) == "Hello, ä".encode()
    box.files.write("notes/empty", b"")
    assert box.files.read("notes/empty") == ""
    several = box.files.write_files([{"path": "m/one", "data": "1"}, {"path": "/tmp/two", "data": io.BytesIO(b"2")}])
    assert [entry.path for entry in several] == [f"{DIRECTORY}/m/one", "/tmp/two"], several
    box.files.write("zipped", "x" * 200_000, gzip=True)
    assert box.files.read("zipped") == "x" * 200_000
    box.files.write("streamed", (part for part in [b"a", b"b"]))
    assert box.files.read("streamed", gzip=True) == "ab"
    box.files.write("a b & ü.txt", "odd name")
    assert box.files.read("a b & ü.txt") == "odd name"
    fails(FileNotFoundException, lambda: box.files.read("missing"))
    fails(InvalidArgumentException, lambda: box.files.read("notes"), "directory")
    fails(AuthenticationException, lambda: box.files.read("zipped", user="nobody-knows"))
    box.files.write("/tmp/owned/by", "x", user="root")
    assert box.files.get_info("/tmp/owned/by").owner == "root"

    tagged = box.files.write("tagged", "x", metadata={"Author": "me", "n": "1"})
    assert tagged.metadata == {"author": "me", "n": "1"}, tagged
    assert box.files.get_info("tagged").metadata == {"author": "me", "n": "1"}
    box.files.write("tagged", "y")
    assert not box.files.get_info("tagged").metadata

    assert box.files.make_dir("d/e/f") is True
    assert box.files.make_dir("d/e/f") is False
    fails(InvalidArgumentException, lambda: box.files.make_dir("tagged/x"))
    box.files.write("d/e/file", "123")
    os_link = box.commands.run("ln -s file d/e/link && ln -s nowhere d/e/dangling && chmod 640 d/e/file")
    assert os_link.exit_code == 0
    listed = box.files.list("d", depth=2)
    assert [entry.path for entry in listed] == [f"{DIRECTORY}/d/{name}" for name in ("e", "e/f", "e/file", "e/link")]
    info = box.files.get_info("d/e/file")
    assert (info.size, info.permissions, info.mode, info.type) == (3, "-rw-r-----", 0o640, FileType.FILE), info
    link = box.files.get_info("d/e/link")
    assert link.symlink_target == f"{DIRECTORY}/d/e/file", link
    fails(InvalidArgumentException, lambda: box.files.list("tagged"))
    fails(FileNotFoundException, lambda: box.files.list("missing"))
    moved = box.files.rename("d/e/file", "new/place/file")
    assert moved.path == f"{DIRECTORY}/new/place/file" and box.files.exists(moved.path)
    fails(FileNotFoundException, lambda: box.files.rename("d/e/file", "other"))
    box.files.remove("d")
    box.files.remove("d")
    assert not box.files.exists("d")


def watched(box):
    """E-093: the synchronous client fetches events."""
    box.files.make_dir("watched")
    handle = box.files.watch_dir("watched", recursive=True, include_entry=True)
    box.files.write("watched/new", "x")
    box.files.make_dir("watched/sub")
    box.files.remove("watched/new")
    seen = []

    def complete():
        seen.extend(handle.get_new_events())
        kinds = {(event.name, event.type) for event in seen}
        return {
            ("new", FilesystemEventType.CREATE),
            ("new", FilesystemEventType.WRITE),
            ("sub", FilesystemEventType.CREATE),
            ("new", FilesystemEventType.REMOVE),
        } <= kinds

    until(complete, f"events: {seen}")
    box.files.write("watched/sub/deep", "x")
    until(lambda: complete() and any(event.name == "sub/deep" for event in seen), "events of new directories")
    handle.stop()
    fails(SandboxException, handle.get_new_events, "stopped")
    fails(FileNotFoundException, lambda: box.files.watch_dir("missing"))


async def streamed(box):
    """E-093: the asynchronous client is sent events; E-082 with callbacks."""
    seen = asyncio.Queue()
    handle = await box.files.watch_dir("watched", on_event=seen.put_nowait)
    await box.files.write("watched/streamed", "x")
    event = await asyncio.wait_for(seen.get(), 30)
    assert (event.name, event.type) == ("streamed", FilesystemEventType.CREATE), event
    await handle.stop()
    result = await box.commands.run("echo async")
    assert result.stdout == "async\n"
    ended = asyncio.Event()
    await box.files.watch_dir("watched", on_event=print, on_exit=lambda error: ended.set(), timeout=1)
    await asyncio.wait_for(ended.wait(), 30)


def addresses(box):
    """E-103: signed addresses, for programs that have no token."""

    def fetch(address, data=None, headers=None):
        request = urllib.request.Request(address, data=data, headers=headers or {})
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, response.read(), response.headers

    box.files.write("a b.txt", "0123456789")
    address = box.download_url("a b.txt", use_signature_expiration=60)
    assert fetch(address)[1] == b"0123456789"
    status, body, headers = fetch(address, headers={"Range": "bytes=2-4"})
    assert (status, body) == (206, b"234") and headers["Content-Disposition"].startswith("inline"), headers
    upload = box.upload_url("uploaded.txt")
    form = b'--B\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nby form\r\n--B--\r\n'
    assert fetch(upload, form, {"Content-Type": "multipart/form-data; boundary=B"})[0] == 200
    assert box.files.read("uploaded.txt") == "by form"
    for bad in (
        address.replace("v1_", "v1_x"),
        box.download_url("a b.txt", use_signature_expiration=-60),
        upload,
        f"{URL}/files?path=a",
    ):
        try:
            fetch(bad)
        except urllib.error.HTTPError as error:
            assert error.code == 401, error
        else:
            raise AssertionError(f"served: {bad}")


def main():
    box = opened(Sandbox, TOKEN)
    assert box.is_running() is True
    for part in (commands, background, terminal, files, watched, addresses):
        part(box)
        print(part.__name__, "passed")
    asyncio.run(streamed(opened(AsyncSandbox, TOKEN)))
    stranger = opened(Sandbox, None)
    fails(AuthenticationException, lambda: stranger.commands.run("true"))
    fails(AuthenticationException, lambda: stranger.files.read("a b.txt"))
    assert stranger.is_running() is True
    print("passed")


main()
