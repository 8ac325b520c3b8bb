"""Drop-in for programs written for the published `k8s-agent-sandbox` package, versions 0.4 to 1.0.

The page docs/python.md lists where those versions disagree and what happens here.
"""

import os as _os

_folder = _os.path.dirname(_os.path.dirname(__file__))
if any(name.startswith("k8s_agent_sandbox-") and name.endswith(".dist-info") for name in _os.listdir(_folder)):
    raise ImportError(
        "the distributions k8s-agent-sandbox and agent-sandbox-sdk both bring the package k8s_agent_sandbox; "
        "keep one of them: pip uninstall k8s-agent-sandbox, then pip install --force-reinstall agent-sandbox-sdk"
    )
try:
    import pydantic as _pydantic  # noqa: F401
except ImportError as _error:
    raise ImportError(
        "k8s_agent_sandbox needs pydantic: pip install 'agent-sandbox-sdk[compat]' (agent_sandbox needs nothing)"
    ) from _error

from typing import TYPE_CHECKING, Any

from .exceptions import (
    SandboxClaimFailedError,
    SandboxError,
    SandboxNoServiceError,
    SandboxNotFoundError,
    SandboxNotReadyError,
    SandboxOutcomeUnknownError,
    SandboxPortForwardError,
    SandboxRequestError,
    SandboxServiceUnavailableError,
    SandboxTemplateNotFoundError,
    SandboxWarmPoolNotFoundError,
)
from .metrics_utils import get_metrics, print_metrics
from .models import SandboxdInClusterConnectionConfig
from .sandbox_client import SandboxClient

if TYPE_CHECKING:
    from .async_sandbox_client import AsyncSandboxClient

__all__ = [
    "AsyncSandboxClient",
    "SandboxClaimFailedError",
    "SandboxClient",
    "SandboxError",
    "SandboxNoServiceError",
    "SandboxNotFoundError",
    "SandboxNotReadyError",
    "SandboxOutcomeUnknownError",
    "SandboxPortForwardError",
    "SandboxRequestError",
    "SandboxServiceUnavailableError",
    "SandboxTemplateNotFoundError",
    "SandboxWarmPoolNotFoundError",
    "SandboxdInClusterConnectionConfig",
    "get_metrics",
    "print_metrics",
]


def __getattr__(name: str) -> Any:
    if name == "AsyncSandboxClient":
        from .async_sandbox_client import AsyncSandboxClient

        return AsyncSandboxClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
