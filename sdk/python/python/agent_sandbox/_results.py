"""Result types of the public API."""

from __future__ import annotations

# Loading `typing` would cost more than everything else here; checkers know this name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class CommandError(RuntimeError):
    """A command ended with an exit code other than 0; raised by :meth:`CommandResult.check`."""

    def __init__(self, result: CommandResult) -> None:
        last = result.stderr.strip().splitlines()[-1:] or [""]
        super().__init__(f"command ended with {result.exit_code}: {last[0]}")
        self.result = result


class CommandResult:
    """A finished command."""

    __slots__ = ("exit_code", "signal", "stdout_bytes", "stderr_bytes", "timed_out")

    exit_code: int
    signal: int | None
    stdout_bytes: bytes
    stderr_bytes: bytes
    timed_out: bool

    def __init__(self, exit_code: int, signal: int | None, stdout: bytes, stderr: bytes, timed_out: bool) -> None:
        self.exit_code = exit_code
        self.signal = signal
        self.stdout_bytes = stdout
        self.stderr_bytes = stderr
        self.timed_out = timed_out

    @property
    def stdout(self) -> str:
        """Standard output as text; invalid UTF-8 is replaced (``stdout_bytes`` has the original bytes)."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Standard error as text."""
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    def check(self) -> CommandResult:
        """Returns this result, or raises :class:`CommandError` when the command failed."""
        if self.exit_code != 0:
            raise CommandError(self)
        return self

    def __repr__(self) -> str:
        return f"CommandResult(exit_code={self.exit_code}, stdout={self.stdout!r}, stderr={self.stderr!r})"


class Event:
    """One event of a command: ``kind`` is started, stdout, stderr, skipped or exit."""

    __slots__ = ("kind", "data", "offset", "exit_code", "signal", "timed_out", "id", "pid", "skipped")

    def __init__(self, raw: tuple[Any, ...]) -> None:
        self.kind: str = raw[0]
        self.data: bytes = b""
        self.offset: int | None = None
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.timed_out = False
        self.id: int | None = None
        self.pid: int | None = None
        self.skipped = 0
        if self.kind in ("stdout", "stderr"):
            self.offset, self.data = raw[1], raw[2]
        elif self.kind == "exit":
            self.exit_code, self.signal, self.timed_out = raw[1], raw[2], raw[3]
        elif self.kind == "started":
            self.id, self.pid = raw[1], raw[2]
        else:
            self.offset, self.skipped = raw[1], raw[2]

    @property
    def text(self) -> str:
        """The output as text; invalid UTF-8 is replaced."""
        return self.data.decode("utf-8", "replace")

    def __repr__(self) -> str:
        return f"Event({self.kind}, {self.exit_code if self.kind == 'exit' else self.data!r})"


class FileInfo:
    """A file, directory, link or other directory entry."""

    __slots__ = ("path", "name", "type", "size", "mode", "uid", "gid", "modified_at", "link_target")

    def __init__(self, raw: dict[str, Any]) -> None:
        self.path: str = raw["path"]
        self.name: str = raw["name"]
        self.type: str = raw["type"]
        self.size: int = raw["size"]
        self.mode: str = raw["mode"]
        self.uid: int = raw["uid"]
        self.gid: int = raw["gid"]
        self.modified_at: str = raw["modifiedAt"]
        self.link_target: str | None = raw.get("linkTarget")

    @property
    def is_dir(self) -> bool:
        return self.type == "directory"

    @property
    def is_file(self) -> bool:
        return self.type == "file"

    def __repr__(self) -> str:
        return f"FileInfo({self.path!r}, {self.type}, {self.size} bytes)"


class Change:
    """One change below a watched path.

    ``kind`` is created, modified, removed, movedFrom, movedTo, attributes or overflow.
    """

    __slots__ = ("path", "kind")

    def __init__(self, raw: dict[str, Any]) -> None:
        self.path: str = raw["path"]
        self.kind: str = raw["change"]

    def __repr__(self) -> str:
        return f"Change({self.kind}, {self.path!r})"


class Match:
    """One matching line of a content search."""

    __slots__ = ("path", "line", "text")

    def __init__(self, raw: dict[str, Any]) -> None:
        self.path: str = raw["path"]
        self.line: int = raw["line"]
        self.text: str = raw["text"]

    def __repr__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


class ProcessInfo:
    """The state of a process when it was read."""

    __slots__ = ("id", "pid", "argv", "running", "exit_code", "signal", "timed_out", "terminal")

    def __init__(self, raw: dict[str, Any]) -> None:
        self.id: int = raw["id"]
        self.pid: int = raw["pid"]
        self.argv: list[str] = raw["argv"]
        self.running: bool = raw["running"]
        self.exit_code: int | None = raw.get("exitCode")
        self.signal: int | None = raw.get("signal")
        self.timed_out: bool = raw.get("timedOut", False)
        self.terminal: bool = raw.get("terminal", False)

    def __repr__(self) -> str:
        state = "running" if self.running else f"ended with {self.exit_code}"
        return f"ProcessInfo({self.id}, {state})"


class ListeningPort:
    """A port on which a program listens; on ``127.0.0.1`` and ``::1`` it is reached from inside the sandbox only."""

    __slots__ = ("port", "address", "protocol")

    def __init__(self, raw: dict[str, Any]) -> None:
        self.port: int = raw["port"]
        self.address: str = raw["address"]
        self.protocol: str = raw["protocol"]

    def __repr__(self) -> str:
        return f"ListeningPort({self.port}, {self.address!r})"


class HistoryEntry:
    """A command that has ended. ``stdout`` and ``stderr`` are ``None`` in lists; long output keeps its two ends."""

    __slots__ = ("id", "argv", "exit_code", "timed_out", "started_at", "duration_ms", "stdout", "stderr")

    def __init__(self, raw: dict[str, Any]) -> None:
        self.id: int = raw["id"]
        self.argv: list[str] = raw["argv"]
        self.exit_code: int = raw["exitCode"]
        self.timed_out: bool = raw.get("timedOut", False)
        self.started_at: str = raw["startedAt"]
        self.duration_ms: int = raw["durationMs"]
        self.stdout: str | None = raw.get("stdout")
        self.stderr: str | None = raw.get("stderr")

    def __repr__(self) -> str:
        return f"HistoryEntry({self.id}, {self.argv!r}, exit_code={self.exit_code})"


class Snapshot:
    """The files of a sandbox as they were at one moment.

    ``ready`` tells whether sandboxes can be made from it, ``message`` why not. ``size_bytes`` counts the layers that it shares
    with other snapshots, too. ``frozen_ms`` says for how long the sandbox was frozen; it is None for a suspended sandbox.
    """

    __slots__ = ("name", "namespace", "sandbox", "labels", "ready", "message", "size_bytes", "frozen_ms", "parent", "taken_at", "expires_at")

    def __init__(self, raw: dict[str, Any]) -> None:
        metadata, spec, status = raw["metadata"], raw["spec"], raw.get("status") or {}
        ready: dict[str, Any] = next((one for one in status.get("conditions") or [] if one["type"] == "Ready"), {})
        self.name: str = metadata["name"]
        self.namespace: str = metadata["namespace"]
        self.sandbox: str = spec["sandboxName"]
        self.labels: dict[str, str] = metadata.get("labels") or {}
        self.ready: bool = ready.get("status") == "True"
        self.message: str = ready.get("message", "")
        self.size_bytes: int | None = status.get("sizeBytes")
        self.frozen_ms: int | None = status.get("frozenMilliseconds")
        self.parent: str | None = status.get("parent")
        self.taken_at: str | None = status.get("takenAt")
        self.expires_at: str | None = spec.get("expiresAt")

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Snapshot({self.name!r}, sandbox={self.sandbox!r}, ready={self.ready})"


class CodeContext:
    """Variables and a working directory for code."""

    __slots__ = ("id", "language", "cwd")

    def __init__(self, raw: dict[str, Any]) -> None:
        self.id: str = raw["id"]
        self.language: str = raw["language"]
        self.cwd: str = raw["cwd"]

    def __str__(self) -> str:
        return self.id

    def __repr__(self) -> str:
        return f"CodeContext({self.id!r}, cwd={self.cwd!r})"


class CodeError:
    """The exception that ended code."""

    __slots__ = ("name", "value", "traceback")

    def __init__(self, raw: dict[str, Any]) -> None:
        self.name: str = raw["name"]
        self.value: str = raw["value"]
        self.traceback: str = raw["traceback"]

    def __repr__(self) -> str:
        return f"CodeError({self.name}: {self.value})"


class CodeResult:
    """What code showed, in several formats: ``formats["html"]``, ``formats["png"]`` (base64), …

    ``is_main_result`` tells the value of the last expression from what was displayed before.
    """

    __slots__ = ("is_main_result", "formats")

    def __init__(self, raw: dict[str, Any]) -> None:
        self.is_main_result: bool = raw.get("is_main_result", False)
        self.formats: dict[str, Any] = {key: raw[key] for key in raw if key != "is_main_result"}

    @property
    def text(self) -> str | None:
        return self.formats.get("text")

    def __repr__(self) -> str:
        return f"CodeResult({self.text!r}, {sorted(self.formats)})"


class Execution:
    """What code printed and showed, and the exception that ended it."""

    __slots__ = ("stdout", "stderr", "results", "error", "execution_count")

    def __init__(self, raw: dict[str, Any]) -> None:
        self.stdout: str = raw["stdout"]
        self.stderr: str = raw["stderr"]
        self.results: list[CodeResult] = [CodeResult(one) for one in raw["results"]]
        self.error: CodeError | None = CodeError(raw["error"]) if raw["error"] else None
        self.execution_count: int | None = raw["execution_count"]

    @property
    def text(self) -> str | None:
        """The value of the last expression as text."""
        return next((result.text for result in self.results if result.is_main_result), None)

    def __repr__(self) -> str:
        return f"Execution(text={self.text!r}, stdout={self.stdout!r}, error={self.error!r})"
