"""Requests to one sandbox. `generate_async.py` generates `async_connector.py` from this file."""

import json as _json
import logging
import math
import os
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from agent_sandbox._waiting import _wait

from . import metrics
from ._response import Response
from .exceptions import SandboxRequestError
from .k8s_helper import K8sHelper
from .models import (
    SandboxConnectionConfig,
    SandboxDirectConnectionConfig,
    SandboxGatewayConnectionConfig,
    SandboxInClusterConnectionConfig,
    SandboxLocalTunnelConnectionConfig,
    SandboxdInClusterConnectionConfig,
    SandboxdPodTunnelConnectionConfig,
)

logger = logging.getLogger(__name__)

ROUTER_SERVICE_NAME = "svc/sandbox-router-svc"
# Methods of idempotent requests, which may be repeated when their outcome is unknown. Commands are sent with POST.
RETRYABLE_METHODS = frozenset({"GET", "HEAD", "PUT", "DELETE"})
_MODES = {"tunnel": "port_forward", "gateway": "gateway", "pod": "sandboxd_pod_tunnel"}


def connection_options(config: SandboxConnectionConfig) -> Tuple[Dict[str, Any], int]:
    """The options of the native module for a configuration, and the daemon's port."""
    from agent_sandbox import Connection

    if isinstance(config, SandboxDirectConnectionConfig):
        made = Connection.direct(config.api_url, config.extra_headers, config.ca_cert, config.client_cert)
        return made._options, config.server_port
    if isinstance(config, SandboxGatewayConnectionConfig):
        made = Connection.gateway(config.gateway_name, config.gateway_namespace, config.gateway_ready_timeout)
        return made._options, config.server_port
    if isinstance(config, SandboxLocalTunnelConnectionConfig):
        return Connection.tunnel(config.router_namespace)._options, config.server_port
    if isinstance(config, SandboxInClusterConnectionConfig):
        dns_only = "use_pod_ip" in config.model_fields_set and not config.use_pod_ip
        return Connection.in_cluster("dns" if dns_only else "pod-ip-then-dns")._options, config.server_port
    if isinstance(config, SandboxdPodTunnelConnectionConfig):
        return Connection.pod()._options, config.rest_port
    if isinstance(config, SandboxdInClusterConnectionConfig):
        address = "service" if config.mode == "in-cluster-service" else "pod-ip"
        return Connection.in_cluster(address)._options, config.rest_port
    raise ValueError("Unknown connection configuration type")


def _seconds(timeout: Any) -> Optional[float]:
    """The timeout for a response: a number, or the last element of a tuple."""
    if isinstance(timeout, tuple):
        timeout = timeout[-1] if timeout else None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        return None
    return float(timeout) if math.isfinite(timeout) and timeout > 0 else None


def _body(options: Dict[str, Any], headers: Dict[str, str]) -> List[bytes]:
    """The parts of a request's body: `json`, one file of `files`, or `data`."""
    if options.get("json") is not None:
        headers.setdefault("Content-Type", "application/json")
        return [_json.dumps(options["json"]).encode()]
    if options.get("files"):
        (field, (name, content)), *more = options["files"].items()
        if more:
            raise ValueError("one file per request")
        boundary = os.urandom(16).hex()
        quoted = name.replace("\\", "\\\\").replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{field}"; filename="{quoted}"\r\n\r\n'
        headers["Content-Type"] = f"multipart/form-data; boundary={boundary}"
        content = content.encode() if isinstance(content, str) else bytes(content)
        return [head.encode(), content, f"\r\n--{boundary}--\r\n".encode()]
    data = options.get("data")
    if data is None:
        return []
    return [data.encode() if isinstance(data, str) else bytes(data)]


class SandboxConnector:
    """Sends requests to a sandbox: connects, adds the router's headers, repeats idempotent requests."""

    def __init__(
        self,
        sandbox_id: str,
        namespace: str,
        connection_config: SandboxConnectionConfig,
        k8s_helper: K8sHelper,
        get_pod_ip: Optional[Callable[[], Any]] = None,
        get_pod_name: Optional[Callable[[], Any]] = None,
        get_service_fqdn: Optional[Callable[[], Any]] = None,
    ) -> None:
        self.id = sandbox_id
        self.namespace = namespace
        self.connection_config = connection_config
        self.k8s_helper = k8s_helper
        self._connection, self._port = connection_options(connection_config)
        self._handle: Any = None
        self._measured = False

    def is_sandboxd(self) -> bool:
        """Whether the sandboxd dialect is used instead of the runtime's."""
        return isinstance(
            self.connection_config, (SandboxdPodTunnelConnectionConfig, SandboxdInClusterConnectionConfig)
        )

    def should_inject_router_headers(self) -> bool:
        """Whether requests go through a router."""
        return self._connection["kind"] in ("tunnel", "gateway", "direct")

    def get_conn_strategy(self) -> str:
        """The kind of connection, for metrics and traces."""
        return str(self._connection["kind"])

    def connect(self) -> str:  # async
        """Prepares the connection, which the first request opens. Returns a description of where requests go."""
        self._native()  # await
        return str(self._connection["url"] or f"{self._connection['kind']}://{self.id}.{self.namespace}")

    def close(self) -> None:  # async
        """Closes the connections. A later request opens new ones."""
        self._handle = None

    def _native(self) -> Any:  # async
        if self._handle is None:
            client = self.k8s_helper._client(self._connection, self._port)  # await
            self._handle = client.handle(self.namespace, self.id, None)
        return self._handle

    def send_request(self, method: str, endpoint: str, **kwargs: Any) -> Response:  # async
        """Sends one request: `json`, `files`, `data`, `headers`, `timeout`, `stream`, `allowed_statuses`.

        A status of 400 or above, or a redirect, raises :class:`SandboxRequestError` unless the status is allowed. Redirects
        are never followed.
        """
        headers = dict(kwargs.get("headers") or {})
        parts = _body(kwargs, headers)
        path = "/" + endpoint.lstrip("/")
        repeat = method.upper() in RETRYABLE_METHODS and not kwargs.get("_disable_retries")
        stream = bool(kwargs.get("stream"))
        begun = time.monotonic()
        status = "failure"
        try:
            handle = self._native()  # await
            pending = handle.request(
                method.upper(), path, list(headers.items()), parts, _seconds(kwargs.get("timeout")), repeat, stream
            )
            code, pairs, body = _wait(pending)
            status = "success"
        finally:
            self._measure(time.monotonic() - begun, status)
        content, body_stream = (b"", body) if stream else (body, None)
        response = Response(path, code, pairs, content, body_stream)
        allowed = kwargs.get("allowed_statuses") or ()
        if response.is_redirect or (code >= 400 and code not in allowed):
            if stream:
                response.content = _wait(body.next()) or b""
                _wait(body.close())
            raise self._refused(response, method, path)
        return response

    def _refused(self, response: Response, method: str, path: str) -> SandboxRequestError:
        words = "Redirection is not allowed" if response.is_redirect else response.text.strip()[:512]
        message = (
            f"Failed to communicate with the sandbox at {path}: {method} was answered with {response.status_code}: {words}"
        )
        return SandboxRequestError(message, status_code=response.status_code, response=response)

    def _measure(self, seconds: float, status: str) -> None:
        mode = _MODES.get(self._connection["kind"])
        if mode and not self._measured:
            self._measured = True
            metrics.observe("sandbox_client_discovery_latency_ms", seconds, mode=mode, status=status)

    def run_process(
        self, command: str, timeout: float, env: Optional[Dict[str, str]] = None, cwd: Optional[str] = None
    ) -> Tuple[int, bytes, bytes]:  # async
        """Runs one command through sandboxd's process service: exit code, stdout, stderr."""
        handle = self._native()  # await
        port = self.connection_config.grpc_port  # type: ignore[union-attr]
        return _wait(handle.grpc_execute(command, timeout, port, env, cwd))

    def open_upload(self, method: str, endpoint: str, headers: Dict[str, str]) -> Any:  # async
        """A request whose body is sent in chunks. It is never repeated."""
        handle = self._native()  # await
        return handle.upload(method, "/" + endpoint, list(headers.items()))
