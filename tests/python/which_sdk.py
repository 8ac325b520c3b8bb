"""Which Python SDK a test run uses: ours, or a published one."""

import importlib.metadata


def _version():
    try:
        return importlib.metadata.version("k8s-agent-sandbox")
    except importlib.metadata.PackageNotFoundError:
        return "ours"


VERSION = _version()
OURS = VERSION == "ours"
# Versions with another interface: only `test_early_sdks.py` runs with them.
EARLY = VERSION.startswith(("0.1.", "0.2.", "0.3."))
OLD = VERSION.startswith("0.4")
NEWEST = OURS or VERSION.startswith("1.")


def token_headers(engine):
    """What the engine's router asks for: the token of its kubeconfig."""
    import re

    found = re.search(r"token: \"?([^\"\s]+)", engine.kubeconfig.read_text())
    return {"Authorization": f"Bearer {found.group(1)}"} if found else {}
