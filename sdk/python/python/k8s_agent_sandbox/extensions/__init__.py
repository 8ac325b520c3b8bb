"""Sandboxes that can do more."""

from .computer_use import ComputerUseSandboxClient, SandboxWithComputerUseSupport

__all__ = ["ComputerUseSandboxClient", "SandboxWithComputerUseSupport"]
