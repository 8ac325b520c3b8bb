"""Converts arguments of the public API to the options of the native module."""

from __future__ import annotations

import os

from ._connections import Connection

# Loading `typing` would cost more than everything else here; checkers know this name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, Sequence

READY_MADE = "python-sandbox-template"


def traceparent() -> str | None:
    """The `traceparent` of the current OpenTelemetry span, if the program uses OpenTelemetry."""
    import sys

    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def new_name(prefix: str) -> str:
    return f"{prefix}{os.urandom(4).hex()}"


def open_options(
    connection: Connection,
    kubeconfig: str | None,
    kubeconfig_text: str | None,
    context: str | None,
    local: bool,
    data_dir: str | None,
    port: int,
    parent: str | None,
) -> dict[str, Any]:
    return {
        "kubeconfig": kubeconfig,
        "kubeconfig_text": kubeconfig_text,
        "context": context,
        "data_dir": data_dir,
        "local": local,
        "start_local": True,
        "home_first": False,
        "connection": connection._options,
        "port": port,
        "send_pod_ip": False,
        "traceparent": parent,
    }


def command_options(
    command: str | Sequence[str],
    env: Mapping[str, str] | None,
    cwd: str | None,
    user: str | None,
    timeout: float | None,
    stdin: str | None,
    *,
    terminal: tuple[int, int] | None = None,
    output_limit: int | None = None,
    key: str | None = None,
    boot_id: str | None = None,
) -> dict[str, Any]:
    text = isinstance(command, str)
    return {
        "command": command if text else None,
        "argv": None if text else list(command),
        "env": dict(env) if env else None,
        "cwd": cwd,
        "user": user,
        "timeout": timeout,
        "stdin": stdin,
        "terminal": terminal,
        "output_limit": output_limit,
        "key": key,
        "boot_id": boot_id,
        "traceparent": traceparent(),
    }


def claim_options(namespace: str, make: Mapping[str, Any]) -> dict[str, Any]:
    if any(make[option] is not None for option in ("command", "memory", "cpus", "runtime_class")):
        raise ValueError("command, memory, cpus and runtime_class belong to an image; a pool's template decides them")
    if make["pool"] is not None:
        source, source_name = "pool", make["pool"]
    elif make["template"] is not None:
        source, source_name = "template", make["template"]
    else:
        source, source_name = "named", READY_MADE
    return {
        "source": source,
        "source_name": source_name,
        "namespace": namespace,
        "name": make["name"],
        "adopt": False,
        "labels": make["labels"] and dict(make["labels"]),
        "annotations": make["annotations"] and dict(make["annotations"]),
        "pod_labels": None,
        "pod_annotations": None,
        "env": make["env"] and dict(make["env"]),
        "volume_claim_templates": None,
        "expires_after": make["expires_after"],
        "ready_timeout": make["ready_timeout"],
    }


def create_options(image: str, namespace: str, make: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "namespace": namespace,
        "name": make["name"] or new_name("sandbox-"),
        "image": image,
        "command": make["command"] and list(make["command"]),
        "env": make["env"] and dict(make["env"]),
        "memory": make["memory"],
        "cpus": make["cpus"],
        "runtime_class": make["runtime_class"],
        "expires_after": make["expires_after"],
        "ready_timeout": make["ready_timeout"],
    }


def snapshot_options(
    namespace: str,
    sandbox: str,
    name: str | None,
    labels: Mapping[str, str] | None,
    expires_after: float | None,
    timeout: float,
) -> dict[str, Any]:
    return {
        "namespace": namespace,
        "sandbox": sandbox,
        "name": name,
        "labels": labels and dict(labels),
        "expires_after": expires_after,
        "timeout": timeout,
    }


def new_sandbox_options(namespace: str, make: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a sandbox that is made from a snapshot."""
    decided = ("env", "annotations", "command", "memory", "cpus", "runtime_class")
    if any(make.get(option) is not None for option in decided):
        raise ValueError(f"a snapshot has the settings of its sandbox, so {', '.join(decided)} cannot be given")
    return {
        "namespace": namespace,
        "labels": make["labels"] and dict(make["labels"]),
        "expires_after": make["expires_after"],
        "ready_timeout": make["ready_timeout"],
    }
