"""The synchronous API. `generate_async.py` generates the asynchronous API, `_async.py`, from this file."""

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
from ._waiting import _wait

# Loading `typing` would cost more than everything else here; checkers know this name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO, List, Mapping, Sequence

    from . import _native

_CHUNK = 1 << 20


class Client:
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

    def _open(self) -> _native.Client:  # async
        opened = self._opened
        if opened is None:
            from . import _native

            opened = _wait(_native.Client.open(self._options))
            self._opened = opened
        return opened

    def namespace(self) -> str:  # async
        """The namespace in which names are looked up: the given one, else that of the kubeconfig."""
        opened = self._open()  # await
        return self._namespace or opened.namespace or "default"

    def sandbox(self, image: str | None = None, **options: Any) -> Sandbox:
        """A sandbox that is created at first use. Takes the arguments of :class:`Sandbox`."""
        return Sandbox(image, client=self, **options)

    def get(self, name: str, *, namespace: str | None = None) -> Sandbox:  # async
        """An existing sandbox, by its own name or the name of its claim."""
        opened = self._open()  # await
        where = namespace or self.namespace()  # await
        handle = _wait(opened.find(where, name))
        return Sandbox._attached(self, handle)

    def list(self, *, namespace: str | None = None, selector: str | None = None) -> List[str]:  # async
        """Names of the claims in a namespace."""
        opened = self._open()  # await
        where = namespace or self.namespace()  # await
        return _wait(opened.claims(where, selector))

    def create_pool(
        self,
        name: str,
        image: str,
        *,
        replicas: int | None = 1,
        env: Mapping[str, str] | None = None,
        namespace: str | None = None,
    ) -> None:  # async
        """Creates a template with one container and a warm pool. ``replicas=None`` creates only the template."""
        opened = self._open()  # await
        where = namespace or self.namespace()  # await
        _wait(opened.create_pool(where, name, image, dict(env or {}), replicas))

    def delete_pool(self, name: str, *, namespace: str | None = None) -> None:  # async
        """Deletes a warm pool and the template of the same name."""
        opened = self._open()  # await
        where = namespace or self.namespace()  # await
        _wait(opened.delete_pool(where, name))

    def pools(self, *, namespace: str | None = None) -> List[tuple[str, int, int]]:  # async
        """Warm pools: name, sandboxes wanted, sandboxes ready."""
        opened = self._open()  # await
        where = namespace or self.namespace()  # await
        return _wait(opened.pools(where))

    def snapshots(self, *, namespace: str | None = None) -> List[Snapshot]:  # async
        """The snapshots of a namespace, the oldest first."""
        opened = self._open()  # await
        where = namespace or self.namespace()  # await
        return [Snapshot(raw) for raw in _wait(opened.snapshots(where))]

    def delete_snapshot(self, snapshot: Snapshot | str, *, namespace: str | None = None) -> None:  # async
        """Deletes a snapshot. The sandboxes that were made from it stay."""
        opened = self._open()  # await
        where = namespace or self.namespace()  # await
        _wait(opened.delete_snapshot(where, str(snapshot)))


class Sandbox:
    """An isolated computer, created at first use and deleted at the end of its ``with`` block.

    ``Sandbox("python:3.12")`` is created from an image, ``Sandbox(pool="name")`` is taken from a warm pool,
    ``Sandbox(template="name")`` is created from a template, ``Sandbox(snapshot="name")`` from a snapshot. Without any of them
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
        client: Client | None = None,
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
        self._client = client or Client(connection)
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
        self.files = Files(self)

    @classmethod
    def _attached(cls, client: Client, handle: _native.Handle, keep: bool = True) -> Sandbox:
        sandbox = cls(client=client, keep=keep)
        sandbox._handle = handle
        return sandbox

    def open(self) -> Sandbox:  # async
        """Creates the sandbox now instead of at first use."""
        self._ready()  # await
        return self

    def _ready(self) -> _native.Handle:  # async
        handle = self._handle
        if handle is None:
            opened = self._client._open()  # await
            where = self._namespace or self._client.namespace()  # await
            if self._image is not None:
                handle = _wait(opened.create(create_options(self._image, where, self._make)))
            elif self._snapshot is not None:
                name, options = str(self._make["name"] or new_name("sandbox-")), new_sandbox_options(where, self._make)
                handle = _wait(opened.create_from_snapshot(self._snapshot, name, options))
            else:
                handle = _wait(opened.claim(claim_options(where, self._make)))
            self._handle = handle
        return handle

    def __enter__(self) -> Sandbox:  # async
        self._ready()  # await
        return self

    def __exit__(self, *exception: object) -> None:  # async
        if not self._keep:
            self.delete()  # await

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

    def run(
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
    ) -> CommandResult:  # async
        """Runs a command and waits for its end: a string runs in a shell, a list runs without one.

        With an idempotency key the call survives a lost connection, and the command runs once. Without one a lost
        connection raises :class:`~agent_sandbox.errors.SandboxOutcomeUnknownError`, and the sandbox ends the command.
        """
        options = command_options(
            command, env, cwd, user, timeout, stdin, output_limit=output_limit, key=idempotency_key, boot_id=boot_id
        )
        handle = self._ready()  # await
        return CommandResult(*_wait(handle.run(options)))

    def stream(
        self,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        timeout: float | None = None,
        stdin: str | None = None,
    ) -> EventStream:  # async
        """Runs a command and yields its events as they happen. Closing the stream ends the command."""
        options = command_options(command, env, cwd, user, timeout, stdin)
        handle = self._ready()  # await
        return EventStream(_wait(handle.stream(options)))

    def start(
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
    ) -> Process:  # async
        """Starts a command in the background; ``terminal=(columns, rows)`` gives it a terminal."""
        options = command_options(
            command, env, cwd, user, timeout, None, terminal=terminal, key=idempotency_key, boot_id=boot_id
        )
        handle = self._ready()  # await
        return Process(_wait(handle.start(options)))

    def process(self, id: int) -> Process:  # async
        """A process that was started earlier, by this or another program."""
        handle = self._ready()  # await
        return Process(_wait(handle.process(id)))

    def processes(self) -> List[ProcessInfo]:  # async
        """All running processes, and those that ended recently."""
        handle = self._ready()  # await
        return [ProcessInfo(raw) for raw in _wait(handle.processes())]

    def history(self, limit: int | None = None) -> List[HistoryEntry]:  # async
        """The last commands that ended in the sandbox, oldest first, whichever client ran them; without output."""
        handle = self._ready()  # await
        return [HistoryEntry(raw) for raw in _wait(handle.history(limit))]

    def history_entry(self, id: int) -> HistoryEntry:  # async
        """One command of the history, with its output."""
        handle = self._ready()  # await
        return HistoryEntry(_wait(handle.history_entry(id)))

    def run_code(
        self,
        code: str,
        *,
        context: CodeContext | str | None = None,
        env: dict[str, str] | None = None,
        timeout: float | None = None,
    ) -> Execution:  # async
        """Runs Python code whose variables stay for the next run in the same context.

        Without ``context`` it is the default one. An exception of the code is in ``error`` of the result. After ``timeout``
        seconds the code is interrupted and the call fails; the context stays usable.
        """
        handle = self._ready()  # await
        return Execution(_wait(handle.run_code(code, None if context is None else str(context), env or {}, timeout)))

    def create_code_context(self, cwd: str | None = None) -> CodeContext:  # async
        """Makes a context for :meth:`run_code`, with variables and a working directory of its own."""
        handle = self._ready()  # await
        return CodeContext(_wait(handle.create_code_context(cwd)))

    def code_contexts(self) -> List[CodeContext]:  # async
        """All contexts of the sandbox, with the default one."""
        handle = self._ready()  # await
        return [CodeContext(raw) for raw in _wait(handle.code_contexts())]

    def restart_code_context(self, context: CodeContext | str) -> None:  # async
        """Ends the process of a context: its variables are lost."""
        handle = self._ready()  # await
        _wait(handle.restart_code_context(str(context)))

    def remove_code_context(self, context: CodeContext | str) -> None:  # async
        """Removes a context and ends its process."""
        handle = self._ready()  # await
        _wait(handle.remove_code_context(str(context)))

    def ports(self) -> List[ListeningPort]:  # async
        """The ports on which programs in the sandbox listen, its daemon's included."""
        handle = self._ready()  # await
        return [ListeningPort(raw) for raw in _wait(handle.ports())]

    def info(self) -> dict[str, Any]:  # async
        """Facts about the sandbox's daemon: version, boot id, base directory, user."""
        handle = self._ready()  # await
        return _wait(handle.info())

    def status(self) -> tuple[bool, str]:  # async
        """Whether the sandbox is ready, and the reason if not."""
        handle = self._ready()  # await
        found = _wait(handle.object())
        for condition in (found.get("status") or {}).get("conditions") or []:
            if condition["type"] == "Ready":
                return condition["status"] == "True", f"{condition['reason']}: {condition.get('message', '')}"
        return False, "no controller has looked at it yet"

    def suspend(self, timeout: float = 180) -> None:  # async
        """Stops the sandbox. Its files and its name are kept."""
        handle = self._ready()  # await
        _wait(handle.suspend(timeout))

    def resume(self, timeout: float = 180) -> None:  # async
        """Starts a suspended sandbox again."""
        handle = self._ready()  # await
        _wait(handle.resume(timeout))

    def snapshot(
        self,
        name: str | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        expires_after: float | None = None,
        timeout: float = 180,
    ) -> Snapshot:  # async
        """Keeps the files of the sandbox as they are now, and waits until that is done.

        Without ``name`` one is generated. The snapshot outlives the sandbox; with ``expires_after`` it is deleted after that
        many seconds. If it cannot be taken, :class:`~agent_sandbox.errors.SnapshotFailedError` says why.
        """
        handle = self._ready()  # await
        opened = self._client._open()  # await
        options = snapshot_options(handle.namespace, handle.name, name, labels, expires_after, timeout)
        return Snapshot(_wait(opened.take_snapshot(options)))

    def fork(
        self,
        count: int = 1,
        *,
        labels: Mapping[str, str] | None = None,
        expires_after: float | None = None,
        timeout: float = 180,
    ) -> List[Sandbox]:  # async
        """Makes sandboxes with the files that this one has now, and waits until all of them are ready.

        They have this one's image, command, environment and limits, but names, addresses and processes of their own. Each is
        deleted by its own ``delete`` or at the end of its own ``with`` block.
        """
        if count < 1:
            raise ValueError(f"{count} sandboxes cannot be made; count must be at least 1")
        handle = self._ready()  # await
        opened = self._client._open()  # await
        make = {"labels": labels, "expires_after": expires_after, "ready_timeout": timeout}
        names = [new_name("sandbox-") for _ in range(count)]
        made = _wait(opened.fork(handle.name, names, new_sandbox_options(handle.namespace, make)))
        return [Sandbox._attached(self._client, one, keep=False) for one in made]

    def rollback(self, snapshot: Snapshot | str, timeout: float = 180) -> None:  # async
        """Sets the sandbox back to a snapshot: what was written since is lost, and its processes end.

        It keeps its name and address. A suspended sandbox stays suspended.
        """
        handle = self._ready()  # await
        opened = self._client._open()  # await
        _wait(opened.roll_back(handle.namespace, handle.name, str(snapshot), timeout))

    def expire_after(self, seconds: float) -> None:  # async
        """Schedules the deletion of the sandbox after that time, whether or not this program still runs."""
        handle = self._ready()  # await
        _wait(handle.expire_after(seconds))

    def delete(self) -> None:  # async
        """Deletes the sandbox and everything in it. It may be called again."""
        if self._handle is not None:
            _wait(self._handle.delete())

    def __repr__(self) -> str:
        return f"Sandbox({self.name or 'not made yet'})"


class EventStream:
    """Iterator over the events of a command."""

    def __init__(self, stream: _native.Stream) -> None:
        self._stream = stream

    def __iter__(self) -> EventStream:
        return self

    def __next__(self) -> Event:  # async
        raw = _wait(self._stream.next())
        if raw is None:
            raise StopIteration
        return Event(raw)

    def close(self) -> None:  # async
        """Ends the stream, and a command that was started with it."""
        _wait(self._stream.close())

    def __enter__(self) -> EventStream:  # async
        return self

    def __exit__(self, *exception: object) -> None:  # async
        self.close()  # await


class Process:
    """A background process. It keeps running when this program ends; ``id`` identifies it."""

    def __init__(self, native: _native.Process) -> None:
        self._native = native

    @property
    def id(self) -> int:
        return self._native.id

    @property
    def pid(self) -> int:
        return self._native.pid

    def info(self) -> ProcessInfo:  # async
        return ProcessInfo(_wait(self._native.info()))

    def wait(self) -> ProcessInfo:  # async
        """Waits for the end of the process."""
        return ProcessInfo(_wait(self._native.wait()))

    def events(self, offset: int = 0) -> EventStream:
        """All events from ``offset`` on. After a lost connection the stream resumes at the same position."""
        return EventStream(self._native.events(offset))

    def write(self, data: bytes | str) -> None:  # async
        """Writes to the standard input of the process."""
        _wait(self._native.write(data.encode() if isinstance(data, str) else bytes(data)))

    def end_input(self) -> None:  # async
        _wait(self._native.end_input())

    def resize(self, columns: int, rows: int) -> None:  # async
        _wait(self._native.resize(columns, rows))

    def signal(self, signal: str | int) -> None:  # async
        """Sends a signal: ``TERM``, ``SIGTERM`` or 15."""
        _wait(self._native.signal(str(signal)))

    def kill(self) -> None:  # async
        """Kills the process and all processes that it started."""
        _wait(self._native.kill())


class Chunks:
    """Iterator over the content of a file, in chunks."""

    def __init__(self, stream: _native.Stream, size: int | None) -> None:
        self._stream = stream
        self.size = size

    def __iter__(self) -> Chunks:
        return self

    def __next__(self) -> bytes:  # async
        chunk = _wait(self._stream.next())
        if chunk is None:
            raise StopIteration
        return chunk

    def close(self) -> None:  # async
        _wait(self._stream.close())


class Changes:
    """Iterator over the changes below a watched path."""

    def __init__(self, stream: _native.Stream) -> None:
        self._stream = stream

    def __iter__(self) -> Changes:
        return self

    def __next__(self) -> Change:  # async
        raw = _wait(self._stream.next())
        if raw is None:
            raise StopIteration
        return Change(raw)

    def close(self) -> None:  # async
        _wait(self._stream.close())


class Files:
    """The files of a sandbox. A path without a leading slash is relative to the sandbox's base directory."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def _files(self) -> _native.Files:  # async
        handle = self._sandbox._ready()  # await
        return handle.files()

    def read(self, path: str, *, max_bytes: int | None = None) -> bytes:  # async
        """Reads a whole file. A file larger than ``max_bytes`` (256 MiB) is an error before anything is read."""
        files = self._files()  # await
        return _wait(files.read(path, max_bytes))

    def read_text(self, path: str, encoding: str = "utf-8") -> str:  # async
        """Reads a whole file as text."""
        files = self._files()  # await
        content: bytes = _wait(files.read(path, None))
        return content.decode(encoding)

    def open(self, path: str, *, offset: int = 0, length: int | None = None) -> Chunks:  # async
        """Reads a file, or a part of it, in chunks."""
        files = self._files()  # await
        stream, size = _wait(files.open(path, offset, length))
        return Chunks(stream, size)

    def write(self, path: str, content: bytes | str | BinaryIO, *, mode: str | None = None, append: bool = False) -> None:  # async
        """Writes a file atomically; a binary file object is sent in chunks."""
        files = self._files()  # await
        if isinstance(content, str):
            content = content.encode()
        if isinstance(content, (bytes, bytearray, memoryview)):
            _wait(files.write(path, bytes(content), mode, append))
            return
        upload = files.upload(path, mode, append)
        try:
            while chunk := content.read(_CHUNK):
                if not _wait(upload.send(chunk)):
                    break
        except BaseException:
            _wait(upload.abort())
            raise
        _wait(upload.finish())

    def list(self, path: str = "") -> List[FileInfo]:  # async
        """The entries of a directory, sorted by name."""
        files = self._files()  # await
        return [FileInfo(raw) for raw in _wait(files.list(path))]

    def exists(self, path: str) -> bool:  # async
        files = self._files()  # await
        return _wait(files.exists(path))

    def stat(self, path: str, *, follow: bool = False) -> FileInfo:  # async
        files = self._files()  # await
        return FileInfo(_wait(files.stat(path, follow)))

    def remove(self, path: str, *, recursive: bool = False) -> None:  # async
        files = self._files()  # await
        _wait(files.remove(path, recursive))

    def move(self, source: str, target: str, *, overwrite: bool = False) -> None:  # async
        files = self._files()  # await
        _wait(files.rename(source, target, overwrite))

    def copy(self, source: str, target: str, *, overwrite: bool = False) -> None:  # async
        files = self._files()  # await
        _wait(files.copy(source, target, overwrite))

    def mkdir(self, path: str) -> None:  # async
        """Creates a directory and its missing parents."""
        files = self._files()  # await
        _wait(files.mkdir(path))

    def chmod(self, path: str, mode: str) -> None:  # async
        files = self._files()  # await
        _wait(files.chmod(path, mode))

    def glob(self, pattern: str, path: str = "") -> List[FileInfo]:  # async
        """All entries below ``path`` that match a pattern such as ``**/*.py``."""
        files = self._files()  # await
        return [FileInfo(raw) for raw in _wait(files.glob(path, pattern))]

    def search(self, pattern: str, path: str = "", *, glob: str | None = None) -> List[Match]:  # async
        """Lines below ``path`` that match a regular expression."""
        files = self._files()  # await
        return [Match(raw) for raw in _wait(files.search(path, pattern, glob))]

    def watch(self, path: str = "", *, recursive: bool = False) -> Changes:  # async
        """Watches a path. A lost connection ends the stream with an error, because changes may have been missed."""
        files = self._files()  # await
        return Changes(_wait(files.watch(path, recursive)))

    def upload(self, local: str, path: str) -> None:  # async
        """Copies a local file into the sandbox."""
        files = self._files()  # await
        _wait(files.upload_file(str(local), path))

    def download(self, path: str, local: str) -> None:  # async
        """Copies a file of the sandbox to this machine, atomically."""
        files = self._files()  # await
        _wait(files.download_file(path, str(local)))

    def upload_dir(self, local: str, path: str) -> None:  # async
        """Copies a local directory into the sandbox."""
        files = self._files()  # await
        _wait(files.upload_directory(str(local), path))

    def download_dir(self, path: str, local: str) -> None:  # async
        """Copies a directory of the sandbox to this machine."""
        files = self._files()  # await
        _wait(files.download_directory(path, str(local)))
