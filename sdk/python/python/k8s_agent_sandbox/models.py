"""Models for the configuration of connections and tracing, and for results."""

import re
import warnings
from datetime import datetime, timezone
from typing import Any, Dict, Literal, Optional, Tuple, Union

from pydantic import BaseModel, Field, computed_field, field_validator, model_validator

_ENV_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_RESERVED = "x-sandbox-"
_OLD_MODES = {"service-dns": "in-cluster-service", "pod-ip": "in-cluster-pod-ip"}


def _check_port(value: int) -> int:
    if not 1 <= value <= 65535:
        raise ValueError("port must be between 1 and 65535")
    return value


class ExecutionResult(BaseModel):
    """A finished command."""

    stdout: str = ""
    stderr: str = ""
    exit_code: int = -1
    timed_out: bool = False


class LegacyExecuteRequest(BaseModel):
    """Body of the runtime's `/execute`."""

    command: str
    timeout_seconds: Optional[float] = None


class FileEntry(BaseModel):
    """A file or directory. The time is `modified` in 1.x and `mod_time` in 0.x; both are set."""

    name: str
    size: int
    type: Literal["file", "directory"]
    modified: datetime
    mode: Optional[str] = None

    @model_validator(mode="before")
    @classmethod
    def _either_time(cls, values: Any) -> Any:
        if isinstance(values, dict) and "modified" not in values and "mod_time" in values:
            values = dict(values)
            values["modified"] = datetime.fromtimestamp(values.pop("mod_time"), tz=timezone.utc)
        return values

    @computed_field  # type: ignore[prop-decorator]
    @property
    def mod_time(self) -> float:
        """Seconds since the epoch."""
        return self.modified.timestamp()

    @classmethod
    def from_legacy(cls, entry: Dict[str, Any]) -> "FileEntry":
        """From an entry of the runtime's `/list`."""
        modified = datetime.fromtimestamp(entry.get("mod_time", 0), tz=timezone.utc)
        return cls(name=entry["name"], size=entry["size"], type=entry["type"], modified=modified)

    @classmethod
    def from_sandboxd(cls, entry: Dict[str, Any]) -> "FileEntry":
        """From an entry of sandboxd's `/v1/files`."""
        modified = datetime.fromisoformat(_python_fraction(entry["modified_at"]))
        return cls(
            name=entry["name"], size=entry["size"], type=entry["type"], modified=modified, mode=entry.get("mode")
        )


def _python_fraction(text: str) -> str:
    """RFC 3339 in the form that Python before 3.11 parses: an offset instead of Z, three or six fractional digits."""
    text = text.replace("Z", "+00:00")
    return re.sub(r"\.(\d+)", lambda found: "." + (found.group(1) + "000000")[:6], text)


class SandboxClaimEnvVar(BaseModel):
    """An environment variable of a claim."""

    name: str
    value: str
    container_name: Optional[str] = Field(default=None, serialization_alias="containerName")

    @field_validator("name")
    @classmethod
    def validate_name(cls, value: str) -> str:
        if not _ENV_NAME.fullmatch(value) or value == "." or value.startswith(".."):
            raise ValueError(
                f"Invalid environment variable name {value!r}: letters, digits, '_', '-' and '.', not starting with a digit or '..'"
            )
        return value


class SandboxDirectConnectionConfig(BaseModel):
    """A router at a known address."""

    api_url: str
    server_port: int = 8888
    extra_headers: Dict[str, str] = Field(default_factory=dict, repr=False)
    client_cert: Optional[Tuple[str, str]] = None
    ca_cert: Optional[str] = None

    @field_validator("extra_headers")
    @classmethod
    def validate_extra_headers(cls, value: Dict[str, str]) -> Dict[str, str]:
        for name in value:
            if name.lower().startswith(_RESERVED):
                raise ValueError(f"header {name!r} is reserved: the SDK sets {_RESERVED}* headers itself")
        return value

    @model_validator(mode="after")
    def validate_tls_requires_https(self) -> "SandboxDirectConnectionConfig":
        if (self.client_cert or self.ca_cert) and not self.api_url.lower().startswith("https://"):
            raise ValueError("client_cert and ca_cert require an https:// api_url")
        return self


class SandboxGatewayConnectionConfig(BaseModel):
    """A Gateway (Gateway API) in front of the router."""

    gateway_name: str
    gateway_namespace: str = "default"
    gateway_ready_timeout: int = 180
    server_port: int = 8888


class SandboxLocalTunnelConnectionConfig(BaseModel):
    """A tunnel through the cluster's API to the router. No kubectl is needed.

    The router is looked for in `router_namespace`, then in the sandbox's own namespace.
    """

    port_forward_ready_timeout: int = 30
    server_port: int = 8888
    router_namespace: str = "agent-sandbox-system"

    @field_validator("router_namespace")
    @classmethod
    def validate_namespace(cls, value: str) -> str:
        if not _NAMESPACE.fullmatch(value):
            raise ValueError("Invalid Kubernetes namespace name format")
        return value


class SandboxdPodTunnelConnectionConfig(BaseModel):
    """A tunnel through the cluster's API directly to the sandbox's Pod, for the sandboxd dialect."""

    rest_port: int = 8080
    grpc_port: int = 9090
    port_forward_ready_timeout: int = 30

    @field_validator("rest_port", "grpc_port")
    @classmethod
    def validate_port(cls, value: int) -> int:
        return _check_port(value)


class SandboxdInClusterConnectionConfig(BaseModel):
    """Directly to sandboxd from inside the cluster, by Service or by Pod address."""

    mode: Literal["in-cluster-service", "in-cluster-pod-ip"]
    rest_port: int = 8080
    grpc_port: int = 9090

    @field_validator("mode", mode="before")
    @classmethod
    def map_deprecated_mode(cls, value: object) -> object:
        if isinstance(value, str) and value in _OLD_MODES:
            warnings.warn(
                f"SandboxdInClusterConnectionConfig mode {value!r} is deprecated; use {_OLD_MODES[value]!r}",
                DeprecationWarning,
                stacklevel=3,
            )
            return _OLD_MODES[value]
        return value

    @field_validator("rest_port", "grpc_port")
    @classmethod
    def validate_port(cls, value: int) -> int:
        return _check_port(value)

    @model_validator(mode="after")
    def validate_distinct_ports(self) -> "SandboxdInClusterConnectionConfig":
        if self.rest_port == self.grpc_port:
            raise ValueError("REST and gRPC ports must be different")
        return self


class SandboxInClusterConnectionConfig(BaseModel):
    """Directly to the Pod from inside the cluster.

    Without `use_pod_ip`: by the Pod's address, and by DNS where the status has no address. `use_pod_ip=False`, as in 0.x: by
    DNS only.
    """

    server_port: int = 8888
    use_pod_ip: bool = False


SandboxConnectionConfig = Union[
    SandboxDirectConnectionConfig,
    SandboxGatewayConnectionConfig,
    SandboxLocalTunnelConnectionConfig,
    SandboxInClusterConnectionConfig,
    SandboxdPodTunnelConnectionConfig,
    SandboxdInClusterConnectionConfig,
]


class AdditionalPodMetadata(BaseModel):
    """Labels and annotations for the running Pod."""

    labels: Optional[Dict[str, str]] = None
    annotations: Optional[Dict[str, str]] = None


class SandboxTracerConfig(BaseModel):
    """Tracing with OpenTelemetry."""

    enable_tracing: bool = False
    trace_service_name: str = "sandbox-client"
