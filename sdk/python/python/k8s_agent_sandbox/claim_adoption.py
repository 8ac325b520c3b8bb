"""Validation of claims that are given by name."""

import re
from typing import Any, Dict, Optional

from .exceptions import SandboxNotFoundError

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def validate_claim_name(name: str) -> None:
    """Checks that the name is a DNS-1123 subdomain."""
    if not isinstance(name, str) or len(name) > 253 or not _SUBDOMAIN.fullmatch(name):
        raise ValueError(f"Claim name '{name}' must be a valid DNS-1123 subdomain.")


def validate_claim_for_adoption(claim: Optional[Dict[str, Any]], claim_name: str, warmpool: str) -> None:
    """Checks that the claim exists, is not being deleted and refers to the same pool."""
    if claim is None:
        raise SandboxNotFoundError(f"SandboxClaim '{claim_name}' disappeared after the create conflict; retry the request.")
    metadata = claim.get("metadata") or {}
    if metadata.get("deletionTimestamp"):
        raise ValueError(f"SandboxClaim '{claim_name}' is terminating.")
    pool = (claim.get("spec") or {}).get("warmPoolRef", {}).get("name")
    if pool != warmpool:
        raise ValueError(f"SandboxClaim '{claim_name}' references warm pool '{pool}', not '{warmpool}'.")
    for field in ("uid", "resourceVersion"):
        if not metadata.get(field):
            raise ValueError(f"SandboxClaim '{claim_name}' is missing metadata.{field}.")
