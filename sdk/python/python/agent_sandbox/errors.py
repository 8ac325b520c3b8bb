"""Every exception of the SDK. Each says what went wrong, what was tried, and what to do next."""

from __future__ import annotations


class SandboxError(RuntimeError):
    """Base of all exceptions of the SDK."""


class SandboxNotReadyError(SandboxError):
    """The sandbox exists and cannot be talked to: it is starting or suspended."""


class SandboxNotFoundError(SandboxError):
    """No sandbox or claim of that name, or it is gone."""


class SandboxTemplateNotFoundError(SandboxError):
    """No template of that name."""


class SandboxWarmPoolNotFoundError(SandboxError):
    """No warm pool of that name."""


class SandboxSourceNotFoundError(SandboxTemplateNotFoundError, SandboxWarmPoolNotFoundError):
    """The name is neither a warm pool's nor a template's."""


class SandboxNoServiceError(SandboxError):
    """The sandbox has no Service, and the connection asks for one."""


class SandboxMetadataError(SandboxError):
    """The object went away or lacks what it must have while it was being waited for."""


class SandboxClaimFailedError(SandboxError):
    """The claim can never become ready: its condition says why."""


class SandboxAlreadyExistsError(SandboxError):
    """Something of that name exists."""


class SandboxPortForwardError(SandboxError):
    """The tunnel through the cluster's API could not be opened."""


class SnapshotNotFoundError(SandboxError):
    """No snapshot of that name."""


class SandboxNoClusterError(SandboxError):
    """No cluster is named and no engine runs on this machine, or its configuration cannot be read."""


class SandboxApiError(SandboxError):
    """The cluster's API refused, or could not be reached (``status`` is None then)."""

    status: int | None = None

    @property
    def status_code(self) -> int | None:
        return self.status


class SandboxCredentialsError(SandboxApiError):
    """The cluster does not accept the credentials."""


class SandboxTimeoutError(SandboxError, TimeoutError):
    """Something took longer than allowed."""


class SandboxUnsupportedError(SandboxError, NotImplementedError):
    """The sandbox's runtime is not ours and does not know the operation."""


class SandboxTooLargeError(SandboxError):
    """Larger than may be kept in memory; stream it."""


class SandboxRequestError(SandboxError):
    """The sandbox, or the router in front of it, answered with an error, or no answer came (``status_code`` is None then)."""

    def __init__(self, message: str, status_code: int | None = None, response: object = None) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.response = response


class SandboxFileNotFoundError(SandboxRequestError, FileNotFoundError):
    """No such file, directory or process in the sandbox."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class SandboxConnectionError(SandboxRequestError, ConnectionError):
    """The connection broke and could not be taken up again. Nothing that must happen once happened twice."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class SandboxOutcomeUnknownError(SandboxRequestError):
    """The request was sent and no answer came: whether it was carried out is not known. It was not repeated."""


_CLASSES = {
    "not_found": SandboxNotFoundError,
    "no_source": SandboxSourceNotFoundError,
    "no_template": SandboxTemplateNotFoundError,
    "no_pool": SandboxWarmPoolNotFoundError,
    "already_exists": SandboxAlreadyExistsError,
    "timeout": SandboxTimeoutError,
    "claim_failed": SandboxClaimFailedError,
    "deleted": SandboxMetadataError,
    "not_ready": SandboxNotReadyError,
    "no_cluster": SandboxNoClusterError,
    "port_forward": SandboxPortForwardError,
    "no_service": SandboxNoServiceError,
    "too_large": SandboxTooLargeError,
    "unsupported": SandboxUnsupportedError,
    "error": SandboxError,
}
_REQUESTS = {
    "file_not_found": SandboxFileNotFoundError,
    "outcome_unknown": SandboxOutcomeUnknownError,
    "disconnected": SandboxConnectionError,
    "request": SandboxRequestError,
}


def from_native(kind: str, message: str, status: int | None, body: bytes | None) -> SandboxError:
    """The exception for an error of the native module."""
    if kind in _REQUESTS:
        return _REQUESTS[kind](message, status_code=status, response=body)
    if kind in ("api", "credentials"):
        error = SandboxCredentialsError(message) if kind == "credentials" else SandboxApiError(message)
        error.status = status
        return error
    return _CLASSES.get(kind, SandboxError)(message)
