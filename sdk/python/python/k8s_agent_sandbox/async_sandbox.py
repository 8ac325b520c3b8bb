"""Generated from the synchronous module by `generate_async.py`; do not edit."""

import logging
import time
from typing import Any, Optional, Tuple

from . import metrics
from .commands.async_command_executor import AsyncCommandExecutor
from .async_connector import AsyncSandboxConnector
from .constants import POD_NAME_ANNOTATION
from .files.async_filesystem import AsyncFilesystem
from .async_k8s_helper import AsyncK8sHelper
from .models import SandboxConnectionConfig, SandboxLocalTunnelConnectionConfig, SandboxTracerConfig
from .trace_manager import create_tracer_manager
from .utils import extract_sandbox_name_hash, select_pod_ip

logger = logging.getLogger(__name__)


class AsyncSandbox:
    """One sandbox: `commands`, `files`, suspend, resume and delete."""

    def __init__(
        self,
        claim_name: str,
        sandbox_id: str,
        namespace: str = "default",
        connection_config: Optional[SandboxConnectionConfig] = None,
        tracer_config: Optional[SandboxTracerConfig] = None,
        k8s_helper: Optional[AsyncK8sHelper] = None,
    ) -> None:
        self.claim_name: Optional[str] = claim_name
        self.sandbox_id = sandbox_id
        self.namespace = namespace
        self.connection_config = connection_config or SandboxLocalTunnelConnectionConfig()
        self.k8s_helper = k8s_helper or AsyncK8sHelper()
        self.connector = AsyncSandboxConnector(
            sandbox_id=self.sandbox_id,
            namespace=self.namespace,
            connection_config=self.connection_config,
            k8s_helper=self.k8s_helper,
            get_pod_ip=self.get_pod_ip,
            get_pod_name=self.get_pod_name,
            get_service_fqdn=self.get_service_fqdn,
        )
        self.tracer_config = tracer_config or SandboxTracerConfig()
        self.trace_service_name = self.tracer_config.trace_service_name
        self.tracing_manager, self.tracer = create_tracer_manager(self.tracer_config)
        self._commands: Optional[AsyncCommandExecutor] = AsyncCommandExecutor(self.connector, self.tracer, self.trace_service_name)
        self._files: Optional[AsyncFilesystem] = AsyncFilesystem(self.connector, self.tracer, self.trace_service_name)
        self._is_closed = False
        self._pod_name: Optional[str] = None
        self._sandbox_name_hash: Optional[str] = None

    async def _object(self) -> Any:
        found = await self.k8s_helper.get_sandbox(self.sandbox_id, self.namespace)
        return found or {}

    async def get_pod_name(self) -> str:
        """The Pod's name, cached until the connection is closed."""
        name = self._pod_name
        if name is None:
            found = await self._object()
            notes = (found.get("metadata") or {}).get("annotations") or {}
            name = notes.get(POD_NAME_ANNOTATION) or self.sandbox_id
            self._pod_name = name
        return name

    async def get_sandbox_name_hash(self) -> Optional[str]:
        """The name hash that selects the sandbox's Pods; cached."""
        if self._sandbox_name_hash is None:
            found = await self._object()
            self._sandbox_name_hash = extract_sandbox_name_hash(found)
        return self._sandbox_name_hash

    async def get_pod_ip(self) -> Optional[str]:
        """The Pod's current address, IPv4 if it has one."""
        found = await self._object()
        return select_pod_ip((found.get("status") or {}).get("podIPs"))

    async def get_service_fqdn(self) -> Optional[str]:
        """The Service's name, if there is one."""
        found = await self._object()
        name = (found.get("status") or {}).get("serviceFQDN")
        return name if isinstance(name, str) and name else None

    async def status(self) -> Tuple[str, str]:
        """`SandboxReady`, `SandboxNotReady` or `SandboxNotFound`, and the reason."""
        found = await self._object()
        if not found:
            return "SandboxNotFound", "Sandbox object not found in Kubernetes."
        for condition in (found.get("status") or {}).get("conditions") or []:
            if condition.get("type") == "Ready":
                ready = condition.get("status") == "True"
                return ("SandboxReady" if ready else "SandboxNotReady"), condition.get("message", "")
        return "SandboxNotReady", "Unknown message"

    @property
    def commands(self) -> Optional[AsyncCommandExecutor]:
        return self._commands

    @property
    def files(self) -> Optional[AsyncFilesystem]:
        return self._files

    @property
    def is_active(self) -> bool:
        """Whether the handle can still be used."""
        return not self._is_closed and self._commands is not None and self._files is not None

    async def suspend_sandbox(self, wait_timeout: int = 180) -> None:
        """Stops the sandbox and waits for it; its files and its name are kept."""
        begun = time.monotonic()
        handle = await self.connector._native()
        await self._live(handle.suspend(float(wait_timeout)))
        self._pod_name = None
        metrics.observe("sandbox_client_suspend_latency_ms", time.monotonic() - begun, status="success")

    async def resume_sandbox(self, wait_timeout: int = 180) -> None:
        """Starts a suspended sandbox again and waits until it is ready."""
        begun = time.monotonic()
        handle = await self.connector._native()
        await self._live(handle.resume(float(wait_timeout)))
        metrics.observe("sandbox_client_resume_latency_ms", time.monotonic() - begun, status="success")

    async def _live(self, pending: Any) -> Any:
        from agent_sandbox._waiting import _aio

        return await _aio(pending)

    async def close_connection(self) -> None:
        """Closes the handle; the sandbox keeps running."""
        if self._is_closed:
            return
        self._pod_name = None
        await self.connector.close()
        self._commands = None
        self._files = None
        if self.tracing_manager:
            self.tracing_manager.end_lifecycle_span()
        self._is_closed = True
        logger.info("Connection to sandbox claim '%s' has been closed.", self.claim_name)

    async def terminate(self) -> None:
        """Closes the handle and deletes the sandbox. It may be called again."""
        await self.close_connection()
        if not self.claim_name:
            return
        await self.k8s_helper.delete_sandbox_claim(self.claim_name, self.namespace)
        # Cleared only after success, so that a failed delete can be retried.
        self.claim_name = None
