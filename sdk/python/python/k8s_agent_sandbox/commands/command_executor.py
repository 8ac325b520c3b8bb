"""Running commands. `generate_async.py` generates `async_command_executor.py` from this file."""

from typing import Any, Dict, Optional

from ..connector import SandboxConnector
from ..exceptions import SandboxTimeoutError
from ..models import ExecutionResult
from ..trace_manager import note, trace_span

# Extra seconds for the response to arrive after the command's own timeout.
_MARGIN_SECONDS = 10


def _executable(command: str) -> str:
    """The program name of a command, for traces: its arguments may contain secrets."""
    for word in command.split():
        if "=" not in word:
            return word.rsplit("/", 1)[-1]
    return ""


class CommandExecutor:
    """Runs commands in a sandbox."""

    def __init__(self, connector: SandboxConnector, tracer: Any, trace_service_name: str) -> None:
        self.connector = connector
        self.tracer = tracer
        self.trace_service_name = trace_service_name

    @trace_span("run")
    def run(
        self,
        command: str,
        timeout: int = 60,
        command_timeout: Optional[float] = None,
        *,
        env: Optional[Dict[str, str]] = None,
        cwd: Optional[str] = None,
    ) -> ExecutionResult:  # async
        """Runs a shell command and waits for its end.

        `timeout` limits the wait for the response, `command_timeout` the run time of the command. `env` and `cwd` need the
        sandboxd dialect. The command is sent once, even if the connection is lost.
        """
        for key in env or {}:
            if not key or "=" in key:
                raise ValueError(f"invalid env key {key!r}: must be non-empty and contain no '='")
        note(self, command_executable=_executable(command))
        if self.connector.is_sandboxd():
            result = self._run_sandboxd(command, timeout, command_timeout, env, cwd)  # await
        else:
            if env or cwd:
                raise NotImplementedError("env and cwd are only supported by the sandboxd runtime")
            result = self._run_runtime(command, timeout, command_timeout)  # await
        note(self, exit_code=result.exit_code)
        return result

    def _run_runtime(self, command: str, timeout: float, command_timeout: Optional[float]) -> ExecutionResult:  # async
        payload: Dict[str, Any] = {"command": command}
        if command_timeout is not None:
            payload["timeout_seconds"] = command_timeout
            timeout = max(timeout, command_timeout + _MARGIN_SECONDS)
        response = self.connector.send_request("POST", "execute", json=payload, timeout=timeout)  # await
        try:
            answer = response.json()
        except ValueError as error:
            raise RuntimeError(f"Failed to decode JSON response from sandbox: {response.text}") from error
        try:
            return ExecutionResult(**answer)
        except Exception as error:
            raise RuntimeError(f"Server returned invalid execution result format: {answer}") from error

    def _run_sandboxd(
        self,
        command: str,
        timeout: float,
        command_timeout: Optional[float],
        env: Optional[Dict[str, str]],
        cwd: Optional[str],
    ) -> ExecutionResult:  # async
        limit = timeout if command_timeout is None else command_timeout
        try:
            code, stdout, stderr = self.connector.run_process(command, float(limit), env, cwd)  # await
        except SandboxTimeoutError:
            if command_timeout is None:
                raise
            words = f"Command timed out after {limit:g} seconds"
            return ExecutionResult(stderr=words, exit_code=124, timed_out=True)
        return ExecutionResult(
            stdout=stdout.decode("utf-8", "replace"), stderr=stderr.decode("utf-8", "replace"), exit_code=code
        )
