"""The engine's cgroup, from which alone this machine reaches Pods. Tests of programs that run inside a cluster, and connect
to Pods by their addresses, join it."""

import os
import pathlib


def _folder(pid):
    """The unified cgroup of a process; None where there is none."""
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        if " - cgroup2 " in line:
            top = line.split(" ")[4]
            own = next(text for text in pathlib.Path(f"/proc/{pid}/cgroup").read_text().splitlines() if text.startswith("0::"))
            return pathlib.Path(top + own[len("0::"):])
    return None


def join(engine_pid):
    """Moves this process to the engine's cgroup; returns where it was."""
    before, group = _folder("self"), _folder(engine_pid)
    if os.geteuid() != 0 or group is None:
        return None
    (group / "cgroup.procs").write_text("0")
    return before


def leave(before):
    """Moves this process back."""
    if before is not None:
        (before / "cgroup.procs").write_text("0")
