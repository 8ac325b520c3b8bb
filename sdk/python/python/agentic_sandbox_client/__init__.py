"""A minimal API under the older package name: `SandboxClient().create_sandbox(name=…, image=…)`."""

from __future__ import annotations

from typing import Any, Mapping

from agent_sandbox import Client, CommandResult, Connection
from agent_sandbox import Sandbox as _Sandbox

__all__ = ["Sandbox", "SandboxClient"]


class Sandbox:
    """A sandbox with a name chosen by the caller."""

    def __init__(self, inner: _Sandbox) -> None:
        self._inner = inner

    @property
    def name(self) -> str | None:
        return self._inner.name

    @property
    def files(self) -> Any:
        return self._inner.files

    def execute(self, command: str, timeout: float | None = None) -> CommandResult:
        """Runs a command and waits for its end."""
        return self._inner.run(command, timeout=timeout)

    run = execute

    def delete(self) -> None:
        """Deletes the sandbox. It may be called again."""
        self._inner.delete()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *exception: object) -> None:
        self.delete()


class SandboxClient:
    """Creates sandboxes from images."""

    def __init__(self, connection: Connection | None = None, **options: Any) -> None:
        self._client = Client(connection, **options)

    def create_sandbox(
        self,
        name: str | None = None,
        image: str = "python:3.11",
        *,
        env: Mapping[str, str] | None = None,
        timeout: float = 180,
        **options: Any,
    ) -> Sandbox:
        """Creates a sandbox and waits until it is ready."""
        inner = self._client.sandbox(image, name=name, env=env, ready_timeout=timeout, **options)
        return Sandbox(inner.open())

    def get_sandbox(self, name: str) -> Sandbox:
        """An existing sandbox."""
        return Sandbox(self._client.get(name))
