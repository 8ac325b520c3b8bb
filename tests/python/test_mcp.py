"""`agent-sandbox mcp` with the official MCP client on a real engine: over HTTP with several sessions, and over stdio."""

import asyncio
import base64
import json
import os
import pathlib
import re
import signal
import subprocess
import time

import pytest
from conftest import BINARY
from which_sdk import OURS

if not OURS:
    pytest.skip("this server is ours", allow_module_level=True)
pytest.importorskip("mcp")

from mcp import Client, StdioServerParameters  # noqa: E402
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client  # noqa: E402

SOURCE = "python-sandbox-template"
UPSTREAM = {"create_sandbox", "delete_sandbox", "download_file", "execute_command", "file_exists", "list_files", "upload_file"}
OURS_TOO = {"run_code", "run_python", "start_command", "command_output", "stop_command", "list_ports", "snapshot_sandbox", "fork_sandbox", "rollback_sandbox"}


def command(engine, *words):
    return [BINARY, "--data-dir", str(engine.folder), "mcp", *words]


class Endpoint(str):
    """The server's URL, with the token that it asks for."""

    def __new__(cls, url, token):
        made = super().__new__(cls, url)
        made.token = token
        return made

    def client(self):
        return Client(streamable_http_client(str(self), http_client=create_mcp_http_client(headers=self.headers())))

    def headers(self):
        return {"Authorization": f"Bearer {self.token}"}


def environment():
    return {key: value for key, value in os.environ.items() if key != "KUBECONFIG"}


@pytest.fixture(scope="module")
def url(engine):
    server = subprocess.Popen(
        command(engine, "--listen", "127.0.0.1:0"), env=environment(), stderr=subprocess.PIPE, text=True
    )
    line = server.stderr.readline()
    found = re.search(r"(http://\S+/mcp) \(clients send the bearer token in (.+)\)", line)
    assert found, line + server.stderr.read()
    file = pathlib.Path(found.group(2))
    assert file.stat().st_mode & 0o777 == 0o600
    yield Endpoint(found.group(1), file.read_text())
    server.send_signal(signal.SIGTERM)
    assert server.wait(20) == 0
    server.stderr.close()


class Tools:
    """One MCP session, with results as plain values."""

    def __init__(self, client):
        self.client = client

    async def raw(self, name, **arguments):
        return await self.client.call_tool(name, {"namespace": "default", **arguments})

    async def call(self, name, **arguments):
        result = await self.raw(name, **arguments)
        assert not result.is_error, result.content
        return result.structured_content

    async def fails(self, name, **arguments):
        result = await self.raw(name, **arguments)
        assert result.is_error, result.structured_content
        return result.content[0].text

    async def mine(self):
        read = await self.client.read_resource("sandboxes://default")
        return json.loads(read.contents[0].text)


async def a_session_works(client, *more):
    tools = Tools(client)
    assert {tool.name for tool in (await client.list_tools()).tools} == {*UPSTREAM, *OURS_TOO, *more}
    templates = (await client.list_resource_templates()).resource_templates
    assert [template.uri_template for template in templates] == ["sandboxes://{namespace}"]
    claim = (await tools.call("create_sandbox", warmpool=SOURCE, labels={"who": "test"}))["sandbox_claim_name"]
    of = {"sandbox_claim_name": claim}
    assert await tools.mine() == [claim]
    result = await tools.call("execute_command", **of, command="echo out; echo err >&2; exit 3")
    assert result == {"exit_code": 3, "stdout": "out\n", "stderr": "err\n"}
    assert await tools.call("upload_file", **of, path="a b/ü.txt", content="grüße") == {"bytes_written": 7}
    assert await tools.call("download_file", **of, path="a b/ü.txt") == {"content": "grüße", "bytes_read": 7}
    assert await tools.call("file_exists", **of, path="a b/ü.txt") == {"exists": True}
    assert await tools.call("file_exists", **of, path="none") == {"exists": False}
    listing = await tools.call("list_files", **of, path="a b")
    (entry,) = listing["entries"]
    assert (entry["name"], entry["size"], entry["type"]) == ("ü.txt", 7, "file") and entry["mod_time"] > 0
    assert (listing["total_entries"], listing["truncated"]) == (1, False)
    deleted = await tools.raw("delete_sandbox", **of)
    assert not deleted.is_error
    await gone(tools, claim)


async def gone(tools, claim):
    deadline = time.monotonic() + 30
    while claim in await tools.mine():
        assert time.monotonic() < deadline, "it is still there"
        await asyncio.sleep(0.05)
    assert "not found" in await tools.fails("execute_command", sandbox_claim_name=claim, command="true")


def test_the_seven_tools_and_the_resource_over_http(url):
    """D-250."""

    async def run():
        async with url.client() as client:
            await a_session_works(client)

    asyncio.run(run())


def test_the_seven_tools_and_the_resource_on_standard_input_and_output(engine):
    """D-250: one client, which starts the server itself."""

    async def run():
        program, *words = command(engine)
        async with Client(StdioServerParameters(command=program, args=words, env=environment())) as client:
            await a_session_works(client, "open_port")

    asyncio.run(run())


def test_another_sessions_sandbox_is_not_found(engine, url):
    """D-250: neither used, nor seen, nor deleted; its label cannot be forged."""

    async def run():
        async with url.client() as first, url.client() as second:
            mine, theirs = Tools(first), Tools(second)
            claim = (await mine.call("create_sandbox", warmpool=SOURCE))["sandbox_claim_name"]
            of = {"sandbox_claim_name": claim}
            labels = engine.kubectl("get", "sandboxclaim", claim, "-o", "jsonpath={.metadata.labels}")
            session = json.loads(labels.stdout)["mcp.k8s-agent-sandbox/session-id"]
            assert await theirs.mine() == []
            for name, more in [
                ("execute_command", {"command": "true"}),
                ("upload_file", {"path": "x", "content": "x"}),
                ("download_file", {"path": "x"}),
                ("list_files", {"path": "."}),
                ("file_exists", {"path": "x"}),
                ("delete_sandbox", {}),
            ]:
                assert "not found" in await theirs.fails(name, **of, **more), name
            forged = {"mcp.k8s-agent-sandbox/session-id": session}
            assert "cannot be set" in await theirs.fails("create_sandbox", warmpool=SOURCE, labels=forged)
            assert (await mine.call("execute_command", **of, command="echo mine"))["stdout"] == "mine\n"
            await mine.raw("delete_sandbox", **of)

    asyncio.run(run())


@pytest.mark.skipif(os.geteuid() != 0, reason="without root only some machines can take snapshots")
def test_snapshots_and_forks_belong_to_their_session(engine, url):
    """A fork has the files and is independent; another session finds neither snapshot nor fork."""

    async def run():
        async with url.client() as first, url.client() as second:
            mine, theirs = Tools(first), Tools(second)
            claim = (await mine.call("create_sandbox", warmpool=SOURCE))["sandbox_claim_name"]
            other = (await theirs.call("create_sandbox", warmpool=SOURCE))["sandbox_claim_name"]

            async def state(name, tools=mine):
                return (await tools.call("execute_command", sandbox_claim_name=name, command="cat state"))["stdout"]

            async def write(name, text):
                await mine.call("upload_file", sandbox_claim_name=name, path="state", content=text)

            await write(claim, "good")
            taken = (await mine.call("snapshot_sandbox", sandbox_claim_name=claim))["snapshot_name"]
            await write(claim, "bad")
            fork, twin = (await mine.call("fork_sandbox", sandbox_claim_name=claim, count=2))["sandbox_claim_names"]
            assert [await state(name) for name in (fork, twin)] == ["bad", "bad"]
            await write(fork, "forked")
            assert [await state(name) for name in (claim, fork, twin)] == ["bad", "forked", "bad"]
            (old,) = (await mine.call("fork_sandbox", sandbox_claim_name=fork, snapshot_name=taken))["sandbox_claim_names"]
            assert await state(old) == "good"
            assert sorted(await mine.mine()) == sorted([claim, fork, twin, old]) and await theirs.mine() == [other]
            assert await state(claim) == (await mine.call("execute_command", command="cat state"))["stdout"], "no name: the claim"
            for name in (claim, fork):
                done = await mine.call("rollback_sandbox", sandbox_claim_name=name, snapshot_name=taken)
                assert done == {"snapshot_name": taken} and await state(name) == "good"

            for tool in ("rollback_sandbox", "fork_sandbox"):
                words = await theirs.fails(tool, sandbox_claim_name=other, snapshot_name=taken)
                assert words == f'snapshot "{taken}" not found in namespace "default"', words
            for tool, more in [
                ("execute_command", {"command": "true"}),
                ("snapshot_sandbox", {}),
                ("fork_sandbox", {}),
                ("rollback_sandbox", {"snapshot_name": taken}),
                ("delete_sandbox", {}),
            ]:
                assert "not found" in await theirs.fails(tool, sandbox_claim_name=fork, **more), tool
            assert "not found" in await mine.fails("rollback_sandbox", sandbox_claim_name=claim, snapshot_name="no-such")
            assert "1 to 10" in await mine.fails("fork_sandbox", sandbox_claim_name=claim, count=11)

            found = engine.kubectl("get", "sandbox", twin, "-o", "json")
            found = json.loads(found.stdout)
            assert found["spec"]["shutdownPolicy"] == "Delete" and found["spec"]["shutdownTime"]
            assert found["metadata"]["annotations"]["mcp.k8s-agent-sandbox/idle-seconds"] == "3600"
            left = json.loads(engine.kubectl("get", "sandboxsnapshots", "-o", "json").stdout)["items"]
            session = found["metadata"]["labels"]["mcp.k8s-agent-sandbox/session-id"]
            left = [one for one in left if (one["metadata"].get("labels") or {}).get("mcp.k8s-agent-sandbox/session-id") == session]
            left = [one for one in left if "deletionTimestamp" not in one["metadata"]]
            assert [(one["metadata"]["name"], bool(one["spec"]["expiresAt"])) for one in left] == [(taken, True)]

            for name in (fork, twin, old, claim):
                deleted = await mine.raw("delete_sandbox", sandbox_claim_name=name)
                assert not deleted.is_error, deleted
                await gone(mine, name)
            await theirs.raw("delete_sandbox", sandbox_claim_name=other)

    asyncio.run(run())


def test_bytes_travel_as_base64_and_listings_are_cut(url):
    """D-251: binary round trip, text that is none. D-252: 1000 of 1500 entries. Arguments out of range are refused in words."""

    async def run():
        async with url.client() as client:
            tools = Tools(client)
            claim = (await tools.call("create_sandbox", warmpool=SOURCE))["sandbox_claim_name"]
            of = {"sandbox_claim_name": claim}
            content = bytes(range(256)) * 1000
            encoded = base64.b64encode(content).decode()
            assert await tools.call("upload_file", **of, path="b", content=encoded, binary=True) == {"bytes_written": 256_000}
            assert await tools.call("download_file", **of, path="b", binary=True) == {"content": encoded, "bytes_read": 256_000}
            assert "UTF-8" in await tools.fails("download_file", **of, path="b")
            assert "base64" in await tools.fails("upload_file", **of, path="b", content="%%%", binary=True)
            await tools.call("execute_command", **of, command="mkdir many && cd many && seq 1 1500 | xargs touch")
            listing = await tools.call("list_files", **of, path="many")
            assert (len(listing["entries"]), listing["total_entries"], listing["truncated"]) == (1000, 1500, True)
            listing = await tools.call("list_files", **of, path="many", max_entries=1500)
            assert (len(listing["entries"]), listing["truncated"]) == (1500, False)
            assert "1 to 600" in await tools.fails("execute_command", **of, command="true", timeout=601)
            assert "10000" in await tools.fails("list_files", **of, path=".", max_entries=10_001)
            slow = await tools.call("execute_command", **of, command="sleep 30", timeout=1)
            assert slow["exit_code"] != 0
            assert "no-such" in await tools.fails("create_sandbox", warmpool="no-such", sandbox_ready_timeout=5)
            await tools.raw("delete_sandbox", **of)

    asyncio.run(run())


def test_no_tool_needs_a_sandbox_a_namespace_or_a_pool(engine):
    """The first call creates a sandbox; Python, background commands and ports work in it."""
    import urllib.request

    async def run():
        program, *words = command(engine)
        async with Client(StdioServerParameters(command=program, args=words, env=environment())) as client:
            listed = {tool.name: tool for tool in (await client.list_tools()).tools}
            create = listed["create_sandbox"].input_schema
            assert create["required"] == [] and create["properties"]["warmpool"]["default"] == SOURCE
            assert create["properties"]["namespace"]["default"] == "default"

            async def call(name, **arguments):
                result = await client.call_tool(name, arguments)
                assert not result.is_error, result.content
                return result.structured_content

            first, second = await asyncio.gather(call("run_python", code="print(6 * 7)"), call("execute_command", command="echo hi"))
            assert (first["stdout"], second["stdout"]) == ("42\n", "hi\n")
            claim = {first.get("sandbox_claim_name"), second.get("sandbox_claim_name")} - {None}
            assert len(claim) == 1, "one call created the sandbox, and both used it"
            (claim,) = claim
            assert await Tools(client).mine() == [claim]
            assert (await call("run_python", code="raise SystemExit(3)"))["exit_code"] == 3

            long = await call("execute_command", command="echo begin; head -c 300000 /dev/zero | tr '\\0' x; echo; echo end")
            assert long["stdout"].startswith("begin\n") and long["stdout"].endswith("end\n") and len(long["stdout"]) < 31_000
            size = (await call("execute_command", command=f"wc -c < {long['stdout_file']}"))["stdout"].strip()
            assert size == "300011"
            part = await call("download_file", path=long["stdout_file"], offset=300_007, max_bytes=100)
            assert (part["content"], part["bytes_read"], part["total_bytes"]) == ("end\n", 4, 300_011)

            code = "print('begin', 'y' * 300_000, 'end')\nraise ValueError('z' * 40_000)"
            shown = await call("run_code", code=code)
            assert len(shown["stdout"]) < 31_000 and shown["stdout"].startswith("begin y") and "text" not in shown
            assert (await call("execute_command", command=f"wc -c < {shown['stdout_file']}"))["stdout"].strip() == "300011"
            assert "stderr_file" not in shown and len(shown["error"]["value"]) < 31_000
            assert (await call("execute_command", command=f"wc -c < {shown['error']['value_file']}"))["stdout"].strip() == "40000"
            shown = await call("run_code", code="'w' * 50_000")
            assert (await call("execute_command", command=f"wc -c < {shown['text_file']}"))["stdout"].strip() == "50000"
            whole = {"path": long["stdout_file"]}
            part = await call("download_file", **whole)
            assert (part["bytes_read"], part["total_bytes"]) == (262_144, 300_011)
            assert (await call("download_file", **whole, max_bytes=None))["bytes_read"] == 300_011

            server = (await call("start_command", command="echo up; exec python3 -m http.server 8123"))["command_id"]
            deadline = time.monotonic() + 30
            while 8123 not in [port["port"] for port in (await call("list_ports"))["ports"]]:
                assert time.monotonic() < deadline, await call("command_output", command_id=server)
                await asyncio.sleep(0.05)
            url = (await call("open_port", port=8123))["url"]
            assert url.startswith("http://127.0.0.1:") and (await call("open_port", port=8123))["url"] == url
            page = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=30).read())
            assert b"Directory listing" in page
            output = await call("command_output", command_id=server)
            assert output["running"] and output["output"].startswith("up\n") and not output["more"]
            rest = await call("command_output", command_id=server, offset=output["next_offset"])
            assert rest["output"] == ""
            assert (await call("stop_command", command_id=server))["running"] is False
            ended = await call("command_output", command_id=server, wait_seconds=5)
            assert ended["running"] is False and ended["exit_code"] != 0

            def shutdown_time():
                found = engine.kubectl("get", "sandboxclaim", claim, "-o", "jsonpath={.spec.lifecycle.shutdownTime}")
                return found.stdout

            # A call moves the end of an idle sandbox's life.
            engine.kubectl("annotate", "--overwrite", "sandboxclaim", claim, "mcp.k8s-agent-sandbox/idle-seconds=7")
            before = shutdown_time()
            await call("execute_command", command="true", timeout=5)
            assert shutdown_time() != before
            await call("delete_sandbox", sandbox_claim_name=claim)

    asyncio.run(run())


def test_a_named_session_outlives_its_server(engine):
    async def run(action):
        program, *words = command(engine, "--session", "kept-1")
        async with Client(StdioServerParameters(command=program, args=words, env=environment())) as client:
            return await action(Tools(client))

    async def create(tools):
        claim = (await tools.call("create_sandbox", warmpool=SOURCE))["sandbox_claim_name"]
        await tools.call("upload_file", sandbox_claim_name=claim, path="kept", content="kept")
        return claim

    async def find(tools):
        (claim,) = await tools.mine()
        found = await tools.call("download_file", sandbox_claim_name=claim, path="kept")
        await tools.raw("delete_sandbox", sandbox_claim_name=claim)
        return found["content"]

    asyncio.run(run(create))
    assert asyncio.run(run(find)) == "kept"


def test_the_server_rejects_foreign_origins_hosts_and_sessions(engine, url):
    """Requests with a browser's Origin, another Host or an unknown session are rejected, and so is a non-local address."""
    import urllib.error
    import urllib.request

    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "create_sandbox", "arguments": {}}}
    usual = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    def status(headers):
        request = urllib.request.Request(url, json.dumps(body).encode(), {**usual, **headers})
        with pytest.raises(urllib.error.HTTPError) as raised:
            urllib.request.urlopen(request, timeout=10)
        return raised.value.code

    for headers in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}, {"Mcp-Session-Id": "guessed"}, {}):
        code = status({**url.headers(), **headers})
        assert 400 <= code < 500 and code != 401, headers
    # Another user of this machine has no token.
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {url.token}"}):
        assert status(headers) == 401, headers
    exposed = subprocess.run(command(engine, "--listen", "0.0.0.0:0"), env=environment(), capture_output=True, text=True, timeout=30)
    assert exposed.returncode != 0 and "--allowed-host" in exposed.stderr


def test_only_json_is_read_as_a_message(url):
    """A page can send forms and plain text to another origin without asking first: such a body is no message, with the token neither."""
    import urllib.error
    import urllib.request

    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}}

    def status(*kinds, **more):
        request = urllib.request.Request(url, json.dumps(hello).encode(), {**url.headers(), "Accept": "application/json, text/event-stream", **more})
        for kind in kinds:
            request.add_header("Content-Type", kind)
        try:
            return urllib.request.urlopen(request, timeout=10).status
        except urllib.error.HTTPError as error:
            return error.code

    assert status("application/json") == 200
    assert status("application/json; charset=utf-8") == 200
    # Names below `localhost` are this machine's, in browsers and resolvers.
    assert status("application/json", Host="agent.localhost:8000") == 200
    assert status("application/json", Host="localhost.evil.example") == 421
    for kind in ("text/plain", "text/plain;application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=application/json", "text/plain, application/json"):
        assert status(kind) == 415, kind


def test_idle_connections_do_not_keep_others_out(url):
    """One user opens more connections than there is room for and sends nothing: the oldest ones are closed for new ones."""
    import contextlib
    import socket
    import urllib.request

    host, port = url.split("/")[2].split(":")
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection((host, int(port)), 30)) for _ in range(900)]
        began = time.monotonic()
        assert urllib.request.urlopen(f"http://{host}:{port}/healthz", timeout=10).status == 200
        assert time.monotonic() - began < 5
        assert idle[0].recv(1) == b"", "the oldest one is closed"


def test_an_unfinished_request_does_not_hold_its_connection(url):
    """Connections are limited: a client that never finishes a request must not keep others out."""
    import socket

    host, port = url.split("/")[2].split(":")
    with socket.create_connection((host, int(port)), 30) as connection:
        connection.sendall(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n")
        began = time.monotonic()
        assert connection.recv(1000) == b"" or connection.recv(1000) == b""
        assert time.monotonic() - began < 25
