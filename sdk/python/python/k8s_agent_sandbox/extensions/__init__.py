"""Sandboxes with additional capabilities."""

from .computer_use import ComputerUseSandboxClient, SandboxWithComputerUseSupport

__all__ = ["ComputerUseSandboxClient", "SandboxWithComputerUseSupport"]
