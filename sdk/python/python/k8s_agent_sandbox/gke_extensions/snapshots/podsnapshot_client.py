"""A client whose sandboxes can be suspended and resumed."""

from ...sandbox_client import SandboxClient
from .sandbox_with_snapshot_support import SandboxWithSnapshotSupport


class PodSnapshotSandboxClient(SandboxClient[SandboxWithSnapshotSupport]):
    """Suspend and resume keep files and name. Memory is not saved: no snapshot API is used."""

    sandbox_class = SandboxWithSnapshotSupport
