"""Deletes a client's sandboxes when the program ends. No event loop runs then, so both clients block here."""

import sys
from typing import Any, List, Set, Tuple

from agent_sandbox._waiting import _wait


def delete_at_exit(helper: Any, sandboxes: List[Any], explicit: Set[Tuple[str, str]]) -> None:
    """Deletes claims with generated names. A failure is logged, and the other claims are still deleted."""
    client = helper._base
    for key, sandbox in sandboxes:
        if client is None or key in explicit or not sandbox.claim_name:
            continue
        namespace, claim = key
        try:
            _wait(client.delete_claim(namespace, claim, None))
        except Exception as error:
            if sys.stderr is not None:
                print(f"agent-sandbox: cannot delete claim {claim} at exit: {error}", file=sys.stderr)
