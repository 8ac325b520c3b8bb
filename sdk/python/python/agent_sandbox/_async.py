"""Generated from the synchronous module by `generate_async.py`; do not edit."""

from __future__ import annotations

from ._connections import Connection
from ._options import claim_options, command_options, create_options, new_name, new_sandbox_options, open_options, snapshot_options
from ._results import (
    Change,
    CodeContext,
    CommandResult,
    Event,
    Execution,
    FileInfo,
    HistoryEntry,
    ListeningPort,
    Match,
    ProcessInfo,
    Snapshot,
)
from ._waiting import _aio

# Loading `typing` would cost more than everything else here; checkers know this name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO, List, Mapping, Sequence

    from . import _native

_CHUNK = 1 << 20


class AsyncClient:
    """A cluster, and the connection to the sandboxes in it.

    Without arguments: the cluster of the environment (a Pod's own, `KUBECONFIG`), else the engine on this machine
    if it runs or has run before, else `~/.kube/config`, else that engine. It is started when it does not run. ``local=True`` uses
    only that engine.
    """

    def __init__(
        self,
        connection: Connection | None = None,
        *,
        namespace: str | None = None,
        kubeconfig: str | None = None,
        kubeconfig_text: str | None = None,
        context: str | None = None,
        local: bool = False,
        data_dir: str | None = None,
        port: int = 8888,
        traceparent: str | None = None,
    ) -> None:
        self._options = open_options(
            connection or Connection(), kubeconfig, kubeconfig_text, context, local, data_dir, port, traceparent
        )
        self._namespace = namespace
        self._opened: _native.Client | None = None

    async def _open(self) -> _native.Client:
        opened = self._opened
        if opened is None:
            from . import _native

            opened = await _aio(_native.Client.open(self._options))
            self._opened = opened
        return opened

    async def namespace(self) -> str:
        """The namespace in which names are looked up: the given one, else that of the kubeconfig."""
        opened = await self._open()
        return self._namespace or opened.namespace or "default"

    def sandbox(self, image: str | None = None, **options: Any) -> AsyncSandbox:
        """A sandbox that is created at first use. Takes the arguments of :class:`AsyncSandbox`."""
        return AsyncSandbox(image, client=self, **options)

    async def get(self, name: str, *, namespace: str | None = None) -> AsyncSandbox:
        """An existing sandbox, by its own name or the name of its claim."""
        opened = await self._open()
        where = namespace or await self.namespace()
        handle = await _aio(opened.find(where, name))
        return AsyncSandbox._attached(self, handle)

    async def list(self, *, namespace: str | None = None, selector: str | None = None) -> List[str]:
        """Names of the claims in a namespace."""
        opened = await self._open()
        where = namespace or await self.namespace()
        return await _aio(opened.claims(where, selector))

    async def create_pool(
        self,
        name: str,
        image: str,
        *,
        replicas: int | None = 1,
        env: Mapping[str, str] | None = None,
        namespace: str | None = None,
    ) -> None:
        """Creates a template with one container and a warm pool. ``replicas=None`` creates only the template."""
        opened = await self._open()
        where = namespace or await self.namespace()
        await _aio(opened.create_pool(where, name, image, dict(env or {}), replicas))

    async def delete_pool(self, name: str, *, namespace: str | None = None) -> None:
        """Deletes a warm pool and the template of the same name."""
        opened = await self._open()
        where = namespace or await self.namespace()
        await _aio(opened.delete_pool(where, name))

    async def pools(self, *, namespace: str | None = None) -> List[tuple[str, int, int]]:
        """Warm pools: name, sandboxes wanted, sandboxes ready."""
        opened = await self._open()
        where = namespace or await self.namespace()
        return await _aio(opened.pools(where))

    async def snapshots(self, *, namespace: str | None = None) -> List[Snapshot]:
        """The snapshots of a namespace, the oldest first."""
        opened = await self._open()
        where = namespace or await self.namespace()
        return [Snapshot(raw) for raw in await _aio(opened.snapshots(where))]

    async def delete_snapshot(self, snapshot: Snapshot | str, *, namespace: str | None = None) -> None:
        """Deletes a snapshot. The sandboxes that were made from it stay."""
        opened = await self._open()
        where = namespace or await self.namespace()
        await _aio(opened.delete_snapshot(where, str(snapshot)))


class AsyncSandbox:
    """An isolated computer, created at first use and deleted at the end of its ``with`` block.

    ``AsyncSandbox("python:3.12")`` is created from an image, ``AsyncSandbox(pool="name")`` is taken from a warm pool,
    ``AsyncSandbox(template="name")`` is created from a template, ``AsyncSandbox(snapshot="name")`` from a snapshot. Without any of them
    the ready-made pool `python-sandbox-template` is used.
    """

    def __init__(
        self,
        image: str | None = None,
        *,
        pool: str | None = None,
        template: str | None = None,
        snapshot: Snapshot | str | None = None,
        name: str | None = None,
        namespace: str | None = None,
        client: AsyncClient | None = None,
        connection: Connection | None = None,
        env: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        command: Sequence[str] | None = None,
        memory: str | None = None,
        cpus: str | None = None,
        runtime_class: str | None = None,
        expires_after: float | None = None,
        ready_timeout: float = 180,
        keep: bool = False,
    ) -> None:
        if sum(source is not None for source in (image, pool, template, snapshot)) > 1:
            raise ValueError("give one of image, pool, template and snapshot")
        if client is not None and connection is not None:
            raise ValueError("a client has its connection already; give one of client and connection")
        self._client = client or AsyncClient(connection)
        self._handle: _native.Handle | None = None
        self._keep = keep
        self._namespace = namespace
        self._image = image
        self._snapshot = None if snapshot is None else str(snapshot)
        self._make = {
            "pool": pool,
            "template": template,
            "name": name,
            "env": env,
            "labels": labels,
            "annotations": annotations,
            "command": command,
            "memory": memory,
            "cpus": cpus,
            "runtime_class": runtime_class,
            "expires_after": expires_after,
            "ready_timeout": ready_timeout,
        }
        self.files = AsyncFiles(self)

    @classmethod
    def _attached(cls, client: AsyncClient, handle: _native.Handle, keep: bool = True) -> AsyncSandbox:
        sandbox = cls(client=client, keep=keep)
        sandbox._handle = handle
        return sandbox

    async def open(self) -> AsyncSandbox:
        """Creates the sandbox now instead of at first use."""
        await self._ready()
        return self

    async def _ready(self) -> _native.Handle:
        handle = self._handle
        if handle is None:
            opened = await self._client._open()
            where = self._namespace or await self._client.namespace()
            if self._image is not None:
                handle = await _aio(opened.create(create_options(self._image, where, self._make)))
            elif self._snapshot is not None:
                name, options = str(self._make["name"] or new_name("sandbox-")), new_sandbox_options(where, self._make)
                handle = await _aio(opened.create_from_snapshot(self._snapshot, name, options))
            else:
                handle = await _aio(opened.claim(claim_options(where, self._make)))
            self._handle = handle
        return handle

    async def __aenter__(self) -> AsyncSandbox:
        await self._ready()
        return self

    async def __aexit__(self, *exception: object) -> None:
        if not self._keep:
            await self.delete()

    @property
    def name(self) -> str | None:
        """The sandbox's own name, once it is created."""
        return self._handle.name if self._handle else None

    @property
    def claim(self) -> str | None:
        """The name of the sandbox's claim, if it has one."""
        return self._handle.claim if self._handle else None

    @property
    def namespace(self) -> str | None:
        return self._handle.namespace if self._handle else self._namespace

    async def run(
        self,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        timeout: float | None = None,
        stdin: str | None = None,
        output_limit: int | None = None,
        idempotency_key: str | None = None,
        boot_id: str | None = None,
    ) -> CommandResult:
        """Runs a command and waits for its end: a string runs in a shell, a list runs without one.

        With an idempotency key the call survives a lost connection, and the command runs once. Without one a lost
        connection raises :class:`~agent_sandbox.errors.SandboxOutcomeUnknownError`, and the sandbox ends the command.
        """
        options = command_options(
            command, env, cwd, user, timeout, stdin, output_limit=output_limit, key=idempotency_key, boot_id=boot_id
        )
        handle = await self._ready()
        return CommandResult(*await _aio(handle.run(options)))

    async def stream(
        self,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        timeout: float | None = None,
        stdin: str | None = None,
    ) -> AsyncEventStream:
        """Runs a command and yields its events as they happen. Closing the stream ends the command."""
        options = command_options(command, env, cwd, user, timeout, stdin)
        handle = await self._ready()
        return AsyncEventStream(await _aio(handle.stream(options)))

    async def start(
        self,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        timeout: float | None = None,
        terminal: tuple[int, int] | None = None,
        idempotency_key: str | None = None,
        boot_id: str | None = None,
    ) -> AsyncProcess:
        """Starts a command in the background; ``terminal=(columns, rows)`` gives it a terminal."""
        options = command_options(
            command, env, cwd, user, timeout, None, terminal=terminal, key=idempotency_key, boot_id=boot_id
        )
        handle = await self._ready()
        return AsyncProcess(await _aio(handle.start(options)))

    async def process(self, id: int) -> AsyncProcess:
        """A process that was started earlier, by this or another program."""
        handle = await self._ready()
        return AsyncProcess(await _aio(handle.process(id)))

    async def processes(self) -> List[ProcessInfo]:
        """All running processes, and those that ended recently."""
        handle = await self._ready()
        return [ProcessInfo(raw) for raw in await _aio(handle.processes())]

    async def history(self, limit: int | None = None) -> List[HistoryEntry]:
        """The last commands that ended in the sandbox, oldest first, whichever client ran them; without output."""
        handle = await self._ready()
        return [HistoryEntry(raw) for raw in await _aio(handle.history(limit))]

    async def history_entry(self, id: int) -> HistoryEntry:
        """One command of the history, with its output."""
        handle = await self._ready()
        return HistoryEntry(await _aio(handle.history_entry(id)))

    async def run_code(
        self,
        code: str,
        *,
        context: CodeContext | str | None = None,
        env: dict[str, str] | None = None,
        timeout: float | None = None,
    ) -> Execution:
        """Runs Python code whose variables stay for the next run in the same context.

        Without ``context`` it is the default one. An exception of the code is in ``error`` of the result. After ``timeout``
        seconds the code is interrupted and the call fails; the context stays usable.
        """
        handle = await self._ready()
        return Execution(await _aio(handle.run_code(code, None if context is None else str(context), env or {}, timeout)))

    async def create_code_context(self, cwd: str | None = None) -> CodeContext:
        """Makes a context for :meth:`run_code`, with variables and a working directory of its own."""
        handle = await self._ready()
        return CodeContext(await _aio(handle.create_code_context(cwd)))

    async def code_contexts(self) -> List[CodeContext]:
        """All contexts of the sandbox, with the default one."""
        handle = await self._ready()
        return [CodeContext(raw) for raw in await _aio(handle.code_contexts())]

    async def restart_code_context(self, context: CodeContext | str) -> None:
        """Ends the process of a context: its variables are lost."""
        handle = await self._ready()
        await _aio(handle.restart_code_context(str(context)))

    async def remove_code_context(self, context: CodeContext | str) -> None:
        """Removes a context and ends its process."""
        handle = await self._ready()
        await _aio(handle.remove_code_context(str(context)))

    async def ports(self) -> List[ListeningPort]:
        """The ports on which programs in the sandbox listen, its daemon's included."""
        handle = await self._ready()
        return [ListeningPort(raw) for raw in await _aio(handle.ports())]

    async def info(self) -> dict[str, Any]:
        """Facts about the sandbox's daemon: version, boot id, base directory, user."""
        handle = await self._ready()
        return await _aio(handle.info())

    async def status(self) -> tuple[bool, str]:
        """Whether the sandbox is ready, and the reason if not."""
        handle = await self._ready()
        found = await _aio(handle.object())
        for condition in (found.get("status") or {}).get("conditions") or []:
            if condition["type"] == "Ready":
                return condition["status"] == "True", f"{condition['reason']}: {condition.get('message', '')}"
        return False, "no controller has looked at it yet"

    async def suspend(self, timeout: float = 180) -> None:
        """Stops the sandbox. Its files and its name are kept."""
        handle = await self._ready()
        await _aio(handle.suspend(timeout))

    async def resume(self, timeout: float = 180) -> None:
        """Starts a suspended sandbox again."""
        handle = await self._ready()
        await _aio(handle.resume(timeout))

    async def snapshot(
        self,
        name: str | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        expires_after: float | None = None,
        timeout: float = 180,
    ) -> Snapshot:
        """Keeps the files of the sandbox as they are now, and waits until that is done.

        Without ``name`` one is generated. The snapshot outlives the sandbox; with ``expires_after`` it is deleted after that
        many seconds. If it cannot be taken, :class:`~agent_sandbox.errors.SnapshotFailedError` says why.
        """
        handle = await self._ready()
        opened = await self._client._open()
        options = snapshot_options(handle.namespace, handle.name, name, labels, expires_after, timeout)
        return Snapshot(await _aio(opened.take_snapshot(options)))

    async def fork(
        self,
        count: int = 1,
        *,
        labels: Mapping[str, str] | None = None,
        expires_after: float | None = None,
        timeout: float = 180,
    ) -> List[AsyncSandbox]:
        """Makes sandboxes with the files that this one has now, and waits until all of them are ready.

        They have this one's image, command, environment and limits, but names, addresses and processes of their own. Each is
        deleted by its own ``delete`` or at the end of its own ``with`` block.
        """
        if count < 1:
            raise ValueError(f"{count} sandboxes cannot be made; count must be at least 1")
        handle = await self._ready()
        opened = await self._client._open()
        make = {"labels": labels, "expires_after": expires_after, "ready_timeout": timeout}
        names = [new_name("sandbox-") for _ in range(count)]
        made = await _aio(opened.fork(handle.name, names, new_sandbox_options(handle.namespace, make)))
        return [AsyncSandbox._attached(self._client, one, keep=False) for one in made]

    async def rollback(self, snapshot: Snapshot | str, timeout: float = 180) -> None:
        """Sets the sandbox back to a snapshot: what was written since is lost, and its processes end.

        It keeps its name and address. A suspended sandbox stays suspended.
        """
        handle = await self._ready()
        opened = await self._client._open()
        await _aio(opened.roll_back(handle.namespace, handle.name, str(snapshot), timeout))

    async def expire_after(self, seconds: float) -> None:
        """Schedules the deletion of the sandbox after that time, whether or not this program still runs."""
        handle = await self._ready()
        await _aio(handle.expire_after(seconds))

    async def delete(self) -> None:
        """Deletes the sandbox and everything in it. It may be called again."""
        if self._handle is not None:
            await _aio(self._handle.delete())

    def __repr__(self) -> str:
        return f"AsyncSandbox({self.name or 'not made yet'})"


class AsyncEventStream:
    """Iterator over the events of a command."""

    def __init__(self, stream: _native.Stream) -> None:
        self._stream = stream

    def __aiter__(self) -> AsyncEventStream:
        return self

    async def __anext__(self) -> Event:
        raw = await _aio(self._stream.next())
        if raw is None:
            raise StopAsyncIteration
        return Event(raw)

    async def close(self) -> None:
        """Ends the stream, and a command that was started with it."""
        await _aio(self._stream.close())

    async def __aenter__(self) -> AsyncEventStream:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


class AsyncProcess:
    """A background process. It keeps running when this program ends; ``id`` identifies it."""

    def __init__(self, native: _native.Process) -> None:
        self._native = native

    @property
    def id(self) -> int:
        return self._native.id

    @property
    def pid(self) -> int:
        return self._native.pid

    async def info(self) -> ProcessInfo:
        return ProcessInfo(await _aio(self._native.info()))

    async def wait(self) -> ProcessInfo:
        """Waits for the end of the process."""
        return ProcessInfo(await _aio(self._native.wait()))

    def events(self, offset: int = 0) -> AsyncEventStream:
        """All events from ``offset`` on. After a lost connection the stream resumes at the same position."""
        return AsyncEventStream(self._native.events(offset))

    async def write(self, data: bytes | str) -> None:
        """Writes to the standard input of the process."""
        await _aio(self._native.write(data.encode() if isinstance(data, str) else bytes(data)))

    async def end_input(self) -> None:
        await _aio(self._native.end_input())

    async def resize(self, columns: int, rows: int) -> None:
        await _aio(self._native.resize(columns, rows))

    async def signal(self, signal: str | int) -> None:
        """Sends a signal: ``TERM``, ``SIGTERM`` or 15."""
        await _aio(self._native.signal(str(signal)))

    async def kill(self) -> None:
        """Kills the process and all processes that it started."""
        await _aio(self._native.kill())


class AsyncChunks:
    """Iterator over the content of a file, in chunks."""

    def __init__(self, stream: _native.Stream, size: int | None) -> None:
        self._stream = stream
        self.size = size

    def __aiter__(self) -> AsyncChunks:
        return self

    async def __anext__(self) -> bytes:
        chunk = await _aio(self._stream.next())
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    async def close(self) -> None:
        await _aio(self._stream.close())


class AsyncChanges:
    """Iterator over the changes below a watched path."""

    def __init__(self, stream: _native.Stream) -> None:
        self._stream = stream

    def __aiter__(self) -> AsyncChanges:
        return self

    async def __anext__(self) -> Change:
        raw = await _aio(self._stream.next())
        if raw is None:
            raise StopAsyncIteration
        return Change(raw)

    async def close(self) -> None:
        await _aio(self._stream.close())


class AsyncFiles:
    """The files of a sandbox. A path without a leading slash is relative to the sandbox's base directory."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    async def _files(self) -> _native.Files:
        handle = await self._sandbox._ready()
        return handle.files()

    async def read(self, path: str, *, max_bytes: int | None = None) -> bytes:
        """Reads a whole file. A file larger than ``max_bytes`` (256 MiB) is an error before anything is read."""
        files = await self._files()
        return await _aio(files.read(path, max_bytes))

    async def read_text(self, path: str, encoding: str = "utf-8") -> str:
        """Reads a whole file as text."""
        files = await self._files()
        content: bytes = await _aio(files.read(path, None))
        return content.decode(encoding)

    async def open(self, path: str, *, offset: int = 0, length: int | None = None) -> AsyncChunks:
        """Reads a file, or a part of it, in chunks."""
        files = await self._files()
        stream, size = await _aio(files.open(path, offset, length))
        return AsyncChunks(stream, size)

    async def write(self, path: str, content: bytes | str | BinaryIO, *, mode: str | None = None, append: bool = False) -> None:
        """Writes a file atomically; a binary file object is sent in chunks."""
        files = await self._files()
        if isinstance(content, str):
            content = content.encode()
        if isinstance(content, (bytes, bytearray, memoryview)):
            await _aio(files.write(path, bytes(content), mode, append))
            return
        upload = files.upload(path, mode, append)
        try:
            while chunk := content.read(_CHUNK):
                if not await _aio(upload.send(chunk)):
                    break
        except BaseException:
            await _aio(upload.abort())
            raise
        await _aio(upload.finish())

    async def list(self, path: str = "") -> List[FileInfo]:
        """The entries of a directory, sorted by name."""
        files = await self._files()
        return [FileInfo(raw) for raw in await _aio(files.list(path))]

    async def exists(self, path: str) -> bool:
        files = await self._files()
        return await _aio(files.exists(path))

    async def stat(self, path: str, *, follow: bool = False) -> FileInfo:
        files = await self._files()
        return FileInfo(await _aio(files.stat(path, follow)))

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        files = await self._files()
        await _aio(files.remove(path, recursive))

    async def move(self, source: str, target: str, *, overwrite: bool = False) -> None:
        files = await self._files()
        await _aio(files.rename(source, target, overwrite))

    async def copy(self, source: str, target: str, *, overwrite: bool = False) -> None:
        files = await self._files()
        await _aio(files.copy(source, target, overwrite))

    async def mkdir(self, path: str) -> None:
        """Creates a directory and its missing parents."""
        files = await self._files()
        await _aio(files.mkdir(path))

    async def chmod(self, path: str, mode: str) -> None:
        files = await self._files()
        await _aio(files.chmod(path, mode))

    async def glob(self, pattern: str, path: str = "") -> List[FileInfo]:
        """All entries below ``path`` that match a pattern such as ``**/*.py``."""
        files = await self._files()
        return [FileInfo(raw) for raw in await _aio(files.glob(path, pattern))]

    async def search(self, pattern: str, path: str = "", *, glob: str | None = None) -> List[Match]:
        """Lines below ``path`` that match a regular expression."""
        files = await self._files()
        return [Match(raw) for raw in await _aio(files.search(path, pattern, glob))]

    async def watch(self, path: str = "", *, recursive: bool = False) -> AsyncChanges:
        """Watches a path. A lost connection ends the stream with an error, because changes may have been missed."""
        files = await self._files()
        return AsyncChanges(await _aio(files.watch(path, recursive)))

    async def upload(self, local: str, path: str) -> None:
        """Copies a local file into the sandbox."""
        files = await self._files()
        await _aio(files.upload_file(str(local), path))

    async def download(self, path: str, local: str) -> None:
        """Copies a file of the sandbox to this machine, atomically."""
        files = await self._files()
        await _aio(files.download_file(path, str(local)))

    async def upload_dir(self, local: str, path: str) -> None:
        """Copies a local directory into the sandbox."""
        files = await self._files()
        await _aio(files.upload_directory(str(local), path))

    async def download_dir(self, path: str, local: str) -> None:
        """Copies a directory of the sandbox to this machine."""
        files = await self._files()
        await _aio(files.download_directory(path, str(local)))
