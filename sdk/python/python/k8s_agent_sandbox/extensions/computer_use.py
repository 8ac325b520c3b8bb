"""Sandboxes that contain a computer-use agent."""

from ..models import ExecutionResult
from ..sandbox import Sandbox
from ..sandbox_client import SandboxClient
from ..trace_manager import trace_span


class SandboxWithComputerUseSupport(Sandbox):
    """A sandbox whose agent answers queries by using the computer."""

    @trace_span("agent_query")
    def agent(self, query: str, timeout: int = 60) -> ExecutionResult:
        """Sends a query to the agent in the sandbox."""
        if not self.is_active:
            raise ConnectionError("Sandbox is not active. Cannot execute agent queries.")
        response = self.connector.send_request("POST", "agent", json={"query": query}, timeout=timeout)
        return ExecutionResult(**(response.json() or {}))


class ComputerUseSandboxClient(SandboxClient[SandboxWithComputerUseSupport]):
    """A client whose sandboxes contain a computer-use agent."""

    sandbox_class = SandboxWithComputerUseSupport
