"""All exceptions of the SDK. Each message says what went wrong, what was tried, and what to do next."""

from __future__ import annotations


class SandboxError(RuntimeError):
    """Base of all exceptions of the SDK."""


class SandboxNotReadyError(SandboxError):
    """The sandbox exists but does not accept requests: it is starting or suspended."""


class SandboxNotFoundError(SandboxError):
    """No sandbox or claim has that name, or it was deleted."""


class SandboxTemplateNotFoundError(SandboxError):
    """No template has that name."""


class SandboxWarmPoolNotFoundError(SandboxError):
    """No warm pool has that name."""


class SandboxSourceNotFoundError(SandboxTemplateNotFoundError, SandboxWarmPoolNotFoundError):
    """Neither a warm pool nor a template has that name."""


class SandboxNoServiceError(SandboxError):
    """The sandbox has no Service, but the connection needs one."""


class SandboxMetadataError(SandboxError):
    """The object was deleted, or lacks a required field, while waiting for it."""


class SandboxClaimFailedError(SandboxError):
    """The claim can never become ready; the message contains the reason of its condition."""


class SandboxAlreadyExistsError(SandboxError):
    """An object of that name already exists."""


class SandboxPortForwardError(SandboxError):
    """The tunnel through the cluster's API could not be opened."""


class SnapshotNotFoundError(SandboxError):
    """No snapshot has that name."""


class SnapshotFailedError(SandboxError):
    """The snapshot cannot be taken; the message contains the reason."""


class SandboxNoClusterError(SandboxError):
    """No cluster is configured and no engine runs on this machine, or its configuration cannot be read."""


class SandboxApiError(SandboxError):
    """The cluster's API rejected the request, or could not be reached (then ``status`` is None)."""

    status: int | None = None

    @property
    def status_code(self) -> int | None:
        return self.status


class SandboxCredentialsError(SandboxApiError):
    """The cluster does not accept the credentials."""


class SandboxTimeoutError(SandboxError, TimeoutError):
    """An operation exceeded its timeout."""


class SandboxUnsupportedError(SandboxError, NotImplementedError):
    """The sandbox runs another runtime, which does not support the operation."""


class SandboxTooLargeError(SandboxError):
    """The content is larger than the limit for reading it into memory; stream it instead."""


class SandboxRequestError(SandboxError):
    """The sandbox, or the router in front of it, returned an error, or no response (then ``status_code`` is None)."""

    def __init__(self, message: str, status_code: int | None = None, response: object = None) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.response = response


class SandboxFileNotFoundError(SandboxRequestError, FileNotFoundError):
    """No such file, directory or process in the sandbox."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class SandboxConnectionError(SandboxRequestError, ConnectionError):
    """The connection was lost and could not be resumed. No operation that must run only once was repeated."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class SandboxOutcomeUnknownError(SandboxRequestError):
    """The request was sent but no response arrived: whether it was executed is unknown. It was not repeated."""


_CLASSES = {
    "not_found": SandboxNotFoundError,
    "no_source": SandboxSourceNotFoundError,
    "no_template": SandboxTemplateNotFoundError,
    "no_pool": SandboxWarmPoolNotFoundError,
    "no_snapshot": SnapshotNotFoundError,
    "snapshot_failed": SnapshotFailedError,
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
