"""The scenarios that all our SDKs run, here with `agent_sandbox`, synchronous and asynchronous."""

import asyncio
import base64
import pathlib

import pytest
from which_sdk import OURS

if not OURS:
    pytest.skip("these are our SDK's scenarios", allow_module_level=True)
yaml = pytest.importorskip("yaml")

from agent_sandbox import AsyncClient, Client, Connection, errors  # noqa: E402

SCENARIOS = yaml.safe_load((pathlib.Path(__file__).parents[1] / "scenarios" / "sdk.yaml").read_text())
ERRORS = {
    "not_found": (errors.SandboxFileNotFoundError, errors.SandboxNotFoundError),
    "no_source": errors.SandboxWarmPoolNotFoundError,
    "too_large": errors.SandboxTooLargeError,
}
SOURCE = "python-sandbox-template"


def content(step):
    return base64.b64decode(step["base64"]) if "base64" in step else step["text"].encode()


def about(data):
    return {"text": data.decode("utf-8", "replace"), "base64": base64.b64encode(data).decode()}


def result(command):
    kind = {"stdout": command.stdout, "stderr": command.stderr, "exit_code": command.exit_code, "timed_out": command.timed_out}
    return {**kind, "signal": command.signal, "stdout_base64": base64.b64encode(command.stdout_bytes).decode()}


class Runner:
    """Performs steps with the asynchronous client; the synchronous one is driven through the same code by `Sync`."""

    def __init__(self, client, sandbox, folder):
        self.client, self.sandbox, self.folder = client, sandbox, folder
        self.processes = {}

    async def perform(self, step):
        return await getattr(self, "do_" + step["do"])(step)

    async def do_run(self, step):
        command = step.get("command") or step["argv"]
        options = {name: step[name] for name in ("env", "cwd", "stdin", "timeout") if name in step}
        return result(await self.sandbox.run(command, idempotency_key=step.get("key"), **options))

    async def gather(self, events):
        seen = {"stdout": b"", "stderr": b"", "exit_code": None}
        async for event in events:
            if event.kind in ("stdout", "stderr"):
                seen[event.kind] += event.data
            elif event.kind == "exit":
                seen["exit_code"] = event.exit_code
        return {**seen, "stdout": seen["stdout"].decode(), "stderr": seen["stderr"].decode()}

    async def do_stream(self, step):
        return await self.gather(await self.sandbox.stream(step["command"]))

    async def do_start(self, step):
        terminal = tuple(step["terminal"]) if "terminal" in step else None
        self.processes[step["keep"]] = await self.sandbox.start(step["command"], terminal=terminal)

    async def do_input(self, step):
        await self.processes[step["process"]].write(step["text"])

    async def do_end_input(self, step):
        await self.processes[step["process"]].end_input()

    async def do_wait(self, step):
        info = await self.processes[step["process"]].wait()
        return {"exit_code": info.exit_code, "signal": info.signal}

    async def do_output(self, step):
        return await self.gather(self.processes[step["process"]].events())

    async def do_reattach(self, step):
        again = await self.sandbox.process(self.processes[step["process"]].id)
        return await self.gather(again.events())

    async def do_signal(self, step):
        await self.processes[step["process"]].signal(step["signal"])

    async def do_kill(self, step):
        await self.processes[step["process"]].kill()

    async def do_ports(self, step):
        return {"addresses": [found.address for found in await self.sandbox.ports() if found.port == step["port"]]}

    async def do_write(self, step):
        await self.sandbox.files.write(step["path"], content(step), mode=step.get("mode"))

    async def do_append(self, step):
        await self.sandbox.files.write(step["path"], content(step), append=True)

    async def do_read(self, step):
        if "offset" in step:
            parts = [part async for part in await self.sandbox.files.open(step["path"], offset=step["offset"], length=step["length"])]
            return about(b"".join(parts))
        return about(await self.sandbox.files.read(step["path"], max_bytes=step.get("max_bytes")))

    async def do_stat(self, step):
        info = await self.sandbox.files.stat(step["path"])
        return {"type": info.type, "size": info.size, "name": info.name, "mode": info.mode}

    async def do_exists(self, step):
        return {"exists": await self.sandbox.files.exists(step["path"])}

    async def do_list(self, step):
        return {"names": [info.name for info in await self.sandbox.files.list(step["path"])]}

    async def do_glob(self, step):
        return {"names": sorted(info.name for info in await self.sandbox.files.glob(step["pattern"], step["path"]))}

    async def do_search(self, step):
        return {"lines": [match.line for match in await self.sandbox.files.search(step["pattern"], step["path"])]}

    async def do_mkdir(self, step):
        await self.sandbox.files.mkdir(step["path"])

    async def do_move(self, step):
        await self.sandbox.files.move(step["from"], step["to"])

    async def do_copy(self, step):
        await self.sandbox.files.copy(step["from"], step["to"])

    async def do_remove(self, step):
        await self.sandbox.files.remove(step["path"], recursive=step.get("recursive", False))

    async def do_directory_round_trip(self, step):
        up, down = self.folder / "up", self.folder / "down"
        for name, text in step["files"].items():
            (up / name).parent.mkdir(parents=True, exist_ok=True)
            (up / name).write_text(text)
        await self.sandbox.files.upload_dir(up, step["path"])
        await self.sandbox.files.download_dir(step["path"], down)
        assert {name: (down / name).read_text() for name in step["files"]} == step["files"]

    async def do_watch_one(self, step):
        await self.sandbox.files.mkdir(step["path"])
        changes = await self.sandbox.files.watch(step["path"])
        await self.sandbox.run(f"echo 1 > {step['path']}/{step['write']}")
        change = await changes.__anext__()
        await changes.close()
        return {"kinds": [change.kind]}

    async def do_suspend(self, step):
        await self.sandbox.suspend()

    async def do_resume(self, step):
        await self.sandbox.resume()

    async def do_find(self, step):
        await self.client.get(step["name"])

    async def do_claim(self, step):
        made = await settled(self.client.sandbox(pool=step["source"], ready_timeout=20))
        await settled(made.open())


def way(engine):
    """How sandboxes of this engine are reached, where it is not the default."""
    return getattr(Connection, engine.connection)() if engine.connection else None


async def settled(value):
    return await value if hasattr(value, "__await__") else value


async def play(scenario, client, sandbox, folder):
    runner = Runner(client, sandbox, folder)
    for step in scenario["steps"]:
        if "error" in step:
            with pytest.raises(ERRORS[step["error"]]):
                await runner.perform(step)
            continue
        came = await runner.perform(step)
        for name, value in step.get("expect", {}).items():
            assert came[name] == value, f"{step}: {name} is {came[name]!r}"


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[scenario["name"] for scenario in SCENARIOS])
def test_asynchronous(engine, tmp_path, scenario):
    async def run():
        client = AsyncClient(way(engine), kubeconfig=str(engine.kubeconfig))
        async with client.sandbox() as sandbox:
            await play(scenario, client, sandbox, tmp_path)

    asyncio.run(run())


class Wrapped:
    """A synchronous object whose methods, called by the runner, can be awaited."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        value = getattr(self._inner, name)
        if name == "files":
            return Wrapped(value)
        if not callable(value):
            return value

        async def call(*arguments, **options):
            return wrap(value(*arguments, **options))

        return (lambda *arguments: wrap(value(*arguments))) if name == "events" else call

    def __aiter__(self):
        return self

    async def __anext__(self):
        try:
            return next(self._inner)
        except StopIteration:
            raise StopAsyncIteration from None


def wrap(value):
    plain = (bytes, str, int, list, tuple, dict, type(None))
    return value if isinstance(value, plain) or not hasattr(value, "close") and not hasattr(value, "wait") else Wrapped(value)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[scenario["name"] for scenario in SCENARIOS])
def test_synchronous(engine, tmp_path, scenario):
    client = Client(way(engine), kubeconfig=str(engine.kubeconfig))
    with client.sandbox() as sandbox:
        asyncio.run(play(scenario, Wrapped(client), Wrapped(sandbox), tmp_path))
