"""Suspend and resume."""

from .podsnapshot_client import PodSnapshotSandboxClient

__all__ = ["PodSnapshotSandboxClient"]
