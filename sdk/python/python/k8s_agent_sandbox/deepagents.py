"""A sandbox as the backend of a deep agent (LangChain's `deepagents` package).

    from deepagents import create_deep_agent
    from k8s_agent_sandbox import SandboxClient
    from k8s_agent_sandbox.deepagents import SandboxBackend

    backend = SandboxBackend.find_or_create(SandboxClient(), "python-pool", {"thread": "42"}, root="/app/work")
    agent = create_deep_agent(backend=backend)

A path refers to the same file in commands, uploads and downloads: relative paths are below `root`, absolute paths are those of the
sandbox.
"""

import posixpath
import shlex
import threading
import uuid
from typing import Any, Dict, List, Optional, Tuple

try:
    from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
    from deepagents.backends.sandbox import BaseSandbox
except ImportError as _error:
    raise ImportError(
        "k8s_agent_sandbox.deepagents needs deepagents: pip install 'agent-sandbox-sdk[deepagents]'"
    ) from _error

from .exceptions import SandboxError
from .sandbox import Sandbox
from .sandbox_client import SandboxClient

LABEL_PREFIX = "deepagents.agents.x-k8s.io/"
DEFAULT_TIMEOUT = 120
# Timeout for a command without a limit of the agent; the sandbox's own limit still applies.
_UNLIMITED = 3600
# Error names of deep agents for failures that a model can handle, by the status of the sandbox's response.
_KNOWN = {400: "invalid_path", 403: "permission_denied", 404: "file_not_found"}


def _label_selector(labels: Dict[str, str]) -> str:
    return ",".join(f"{LABEL_PREFIX}{key}={value}" for key, value in sorted(labels.items()))


class SandboxBackend(BaseSandbox):
    """Gives a deep agent one sandbox. Works with our daemon and with upstream's runtime."""

    def __init__(self, sandbox: Sandbox, root: Optional[str] = None, timeout: int = DEFAULT_TIMEOUT) -> None:
        """root: the directory for commands and relative paths; the sandbox's working directory when not given."""
        if root is not None and not root.startswith("/"):
            raise ValueError(f"root must be an absolute path, not {root!r}")
        self.sandbox = sandbox
        self.timeout = timeout
        self._wanted = root
        self._lock = threading.Lock()
        self._places: Optional[Tuple[str, str]] = None

    @classmethod
    def find_or_create(
        cls,
        client: SandboxClient[Any],
        warmpool: str,
        labels: Dict[str, str],
        *,
        namespace: str = "default",
        root: Optional[str] = None,
        timeout: int = DEFAULT_TIMEOUT,
        **options: Any,
    ) -> "SandboxBackend":
        """Returns the sandbox with these labels, so that a conversation finds its files again, or creates one.

        `labels` have no prefix: `{"thread": "42"}` is the label `deepagents.agents.x-k8s.io/thread=42`. `options` are passed to
        `create_sandbox`.
        """
        if not labels:
            raise ValueError("labels must name at least one: they say whose sandbox it is")
        found = client.list_all_sandboxes(namespace, label_selector=_label_selector(labels))
        if found:
            sandbox = client.get_sandbox(min(found), namespace)
        else:
            full = {**options.pop("labels", {}), **{LABEL_PREFIX + key: value for key, value in labels.items()}}
            sandbox = client.create_sandbox(warmpool, namespace, labels=full, **options)
        return cls(sandbox, root, timeout)

    @property
    def id(self) -> str:
        return self.sandbox.claim_name or self.sandbox.sandbox_id

    def execute(self, command: str, *, timeout: Optional[int] = None) -> ExecuteResponse:
        """Runs a shell command in `root`; the exit code is 124 when it timed out."""
        root, _ = self._where()
        result = self._run(f"cd {shlex.quote(root)} && {command}", self.timeout if timeout is None else timeout)
        return ExecuteResponse(output=result.stdout + result.stderr, exit_code=result.exit_code)

    def upload_files(self, files: List[Tuple[str, bytes]]) -> List[FileUploadResponse]:
        """Writes files; a failure concerns its own file only."""
        return [FileUploadResponse(path=path, error=self._attempt(self._upload, path, content)[1]) for path, content in files]

    def download_files(self, paths: List[str]) -> List[FileDownloadResponse]:
        """Reads files; a failure concerns its own file only."""
        answers = []
        for path in paths:
            content, error = self._attempt(self._download, path)
            answers.append(FileDownloadResponse(path=path, content=content, error=error))
        return answers

    def _attempt(self, action: Any, path: str, *rest: Any) -> Tuple[Optional[bytes], Optional[str]]:
        try:
            return action(path, *rest), None
        except IsADirectoryError:
            return None, "is_directory"
        except FileNotFoundError:
            return None, "file_not_found"
        except PermissionError:
            return None, "permission_denied"
        except ValueError:
            return None, "invalid_path"
        except SandboxError as error:
            return None, _KNOWN.get(getattr(error, "status_code", None) or 0, str(error))

    def _upload(self, path: str, content: bytes) -> None:
        target, inside = self._resolve(path)
        if self._test(f"-d {shlex.quote(target)}"):
            raise IsADirectoryError(target)
        if inside is not None:
            self._files().write(inside, content, allow_unsafe_paths=True)
            return
        # The runtime writes only below its base directory; a command then moves the file to its destination.
        passing = f".upload-{uuid.uuid4().hex}"
        self._files().write(passing, content, allow_unsafe_paths=True)
        quoted, folder = shlex.quote(target), shlex.quote(posixpath.dirname(target))
        self._move(f"mkdir -p {folder} && mv -f {self._passing(passing)} {quoted} || {{ rm -f {self._passing(passing)}; exit 1; }}")

    def _download(self, path: str) -> bytes:
        source, inside = self._resolve(path)
        if self._test(f"-d {shlex.quote(source)}"):
            raise IsADirectoryError(source)
        if inside is not None:
            return bytes(self._files().read(inside, allow_unsafe_paths=True))
        if not self._test(f"-e {shlex.quote(source)}"):
            raise FileNotFoundError(source)
        passing = f".download-{uuid.uuid4().hex}"
        try:
            self._move(f"cp {shlex.quote(source)} {self._passing(passing)}")
            return bytes(self._files().read(passing, allow_unsafe_paths=True))
        finally:
            self._run(f"rm -f {self._passing(passing)}", self.timeout)

    def _resolve(self, path: str) -> Tuple[str, Optional[str]]:
        """The absolute path, and the path below the runtime's base directory if it is there."""
        if not path or "\0" in path:
            raise ValueError(path)
        root, base = self._where()
        absolute = posixpath.normpath(posixpath.join(root, path))
        # Two leading slashes are equivalent to one.
        absolute = "/" + absolute.lstrip("/")
        if absolute == base:
            raise IsADirectoryError(absolute)
        below = base.rstrip("/") + "/"
        return absolute, absolute[len(below) :] if absolute.startswith(below) else None

    def _where(self) -> Tuple[str, str]:
        """`root`, which is created when it is missing, and the runtime's base directory, in which its commands start."""
        with self._lock:
            if self._places is None:
                base = self._run("pwd", self.timeout).stdout.strip() or "/"
                root = posixpath.normpath(self._wanted or base)
                made = self._run(f"mkdir -p {shlex.quote(root)}", self.timeout)
                if made.exit_code != 0:
                    raise SandboxError(f"cannot make {root!r} in the sandbox: {made.stderr.strip()}")
                self._places = (root, base)
            return self._places

    def _passing(self, name: str) -> str:
        assert self._places is not None, "asked for only after the paths are known"
        return shlex.quote(posixpath.join(self._places[1], name))

    def _test(self, condition: str) -> bool:
        return bool(self._run(f"test {condition}", self.timeout).exit_code == 0)

    def _move(self, command: str) -> None:
        done = self._run(command, self.timeout)
        if done.exit_code != 0:
            raise PermissionError(done.stderr.strip())

    def _run(self, command: str, timeout: int) -> Any:
        if self.sandbox.commands is None:
            raise SandboxError("the sandbox's connection is closed; get it again from its client")
        # Upstream's runtime starts the first word without a shell.
        line = f"sh -c {shlex.quote(command)}"
        if timeout <= 0:
            return self.sandbox.commands.run(line, timeout=_UNLIMITED)
        return self.sandbox.commands.run(line, timeout=timeout + 10, command_timeout=timeout)

    def _files(self) -> Any:
        if self.sandbox.files is None:
            raise SandboxError("the sandbox's connection is closed; get it again from its client")
        return self.sandbox.files
