"""Sandboxes with an agent inside that uses a computer."""

from ..models import ExecutionResult
from ..sandbox import Sandbox
from ..sandbox_client import SandboxClient
from ..trace_manager import trace_span


class SandboxWithComputerUseSupport(Sandbox):
    """A sandbox that answers questions by using its computer."""

    @trace_span("agent_query")
    def agent(self, query: str, timeout: int = 60) -> ExecutionResult:
        """Asks the agent inside."""
        if not self.is_active:
            raise ConnectionError("Sandbox is not active. Cannot execute agent queries.")
        response = self.connector.send_request("POST", "agent", json={"query": query}, timeout=timeout)
        return ExecutionResult(**(response.json() or {}))


class ComputerUseSandboxClient(SandboxClient[SandboxWithComputerUseSupport]):
    """A client whose sandboxes have an agent inside."""

    sandbox_class = SandboxWithComputerUseSupport
