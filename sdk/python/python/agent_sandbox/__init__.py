"""Sandboxes for AI agents: isolated, stateful computers on Kubernetes or on this machine.

    from agent_sandbox import Sandbox

    with Sandbox() as sandbox:
        print(sandbox.run("echo hello").stdout)
"""

from __future__ import annotations

import atexit
import os
import sys

from . import errors
from ._connections import Connection
from ._results import (
    Change,
    CodeContext,
    CodeError,
    CodeResult,
    CommandError,
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
from ._sync import Changes, Chunks, Client, EventStream, Files, Process, Sandbox
from .errors import SandboxError

# Loading `typing` would cost more than everything else here; checkers know this name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ._async import (
        AsyncChanges,
        AsyncChunks,
        AsyncClient,
        AsyncEventStream,
        AsyncFiles,
        AsyncProcess,
        AsyncSandbox,
    )

__all__ = [
    "AsyncChanges",
    "AsyncChunks",
    "AsyncClient",
    "AsyncEventStream",
    "AsyncFiles",
    "AsyncProcess",
    "AsyncSandbox",
    "Change",
    "Changes",
    "Chunks",
    "Client",
    "CodeContext",
    "CodeError",
    "CodeResult",
    "CommandError",
    "CommandResult",
    "Connection",
    "Event",
    "EventStream",
    "Execution",
    "FileInfo",
    "Files",
    "HistoryEntry",
    "ListeningPort",
    "Match",
    "Process",
    "ProcessInfo",
    "Sandbox",
    "SandboxError",
    "Snapshot",
    "errors",
]



def _use_bundled_program() -> None:
    """Names the engine's program that the wheel of a release installs beside the interpreter, unless the environment names another one."""
    program = os.path.join(os.path.dirname(sys.executable), "agent-sandbox")
    if "AGENT_SANDBOX_BIN" not in os.environ and os.access(program, os.X_OK):
        os.environ["AGENT_SANDBOX_BIN"] = program


_use_bundled_program()


# The native module is loaded at first use, so that importing the package alone costs nothing.
@atexit.register
def _shutdown() -> None:
    """Stops the native threads before the interpreter exits, after undoing creations that did not finish."""
    native = sys.modules.get("agent_sandbox._native")
    if native is not None:
        native.shutdown()


def __getattr__(name: str) -> Any:
    # The asynchronous classes are imported on demand: most programs use only one of the two APIs.
    if name.startswith("Async") and name in __all__:
        from . import _async

        return getattr(_async, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
