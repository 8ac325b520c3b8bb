"""A sandbox that can be suspended and resumed."""

from typing import Any, Optional

from pydantic import BaseModel

from ...exceptions import SandboxUnsupportedError
from ...sandbox import Sandbox


class SuspendResponse(BaseModel):
    """The result of a suspend."""

    success: bool
    snapshot_response: Optional[Any] = None
    error_reason: str = ""
    error_code: int = 0


class ResumeResponse(BaseModel):
    """The result of a resume."""

    success: bool
    restored_from_snapshot: Optional[bool] = None
    snapshot_uid: Optional[str] = None
    error_reason: str = ""
    error_code: int = 0


class SandboxWithSnapshotSupport(Sandbox):
    """Suspend and resume that return failures instead of raising them."""

    @property
    def snapshots(self) -> None:
        """Snapshots of memory need a provider's snapshot API, which is not used here."""
        return None

    def is_suspended(self) -> bool:
        """Whether the sandbox's operating mode is `Suspended`."""
        found = self.k8s_helper.get_sandbox(self.sandbox_id, self.namespace) or {}
        return (found.get("spec") or {}).get("operatingMode") == "Suspended"

    def suspend(self, snapshot_before_suspend: bool = True, wait_timeout: int = 180) -> SuspendResponse:
        """Stops the sandbox. With `snapshot_before_suspend`, the default, it returns a failure: memory cannot be saved."""
        if self.is_suspended():
            return SuspendResponse(success=True)
        if snapshot_before_suspend:
            reason = "no snapshot API: pass snapshot_before_suspend=False to keep files and name only"
            return SuspendResponse(success=False, error_reason=reason, error_code=1)
        try:
            self.suspend_sandbox(wait_timeout)
        except Exception as error:
            return SuspendResponse(success=False, error_reason=str(error), error_code=1)
        return SuspendResponse(success=True)

    def resume(self, wait_timeout: int = 180) -> ResumeResponse:
        """Starts a suspended sandbox again."""
        if not self.is_suspended():
            return ResumeResponse(success=True, restored_from_snapshot=False)
        try:
            self.resume_sandbox(wait_timeout)
        except Exception as error:
            return ResumeResponse(success=False, error_reason=str(error), error_code=1)
        return ResumeResponse(success=True, restored_from_snapshot=False)

    def restore(self, snapshot_uid: str, sandbox_ready_timeout: int = 180) -> Any:
        """Not supported."""
        raise SandboxUnsupportedError("restore needs a snapshot API; files survive suspend and resume without one")
