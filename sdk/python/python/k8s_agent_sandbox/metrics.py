"""Prometheus histograms of the client. They are created on first use, so that other programs do not load
`prometheus_client`."""

from typing import Any

_BUCKETS = (100, 250, 500, 750, 1000, 1250, 1500, 2000, 2500, 5000, 10000, 30000, 60000, 120000, 240000)
_HISTOGRAMS = {
    "sandbox_client_discovery_latency_ms": ("Time until a sandbox could be talked to, in milliseconds", ["mode", "status"]),
    "sandbox_client_suspend_latency_ms": ("Time until a sandbox was suspended, in milliseconds", ["status"]),
    "sandbox_client_resume_latency_ms": ("Time until a sandbox was resumed, in milliseconds", ["status"]),
    "sandbox_client_restore_latency_ms": ("Time until a sandbox was restored, in milliseconds", ["status"]),
}


def __getattr__(name: str) -> Any:
    if name not in _HISTOGRAMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from prometheus_client import Histogram  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise ImportError("metrics need prometheus_client: pip install 'agent-sandbox-sdk[metrics]'") from error
    for known, (words, labels) in _HISTOGRAMS.items():
        globals()[known] = Histogram(known, words, labels, buckets=_BUCKETS)
    return globals()[name]


def observe(name: str, seconds: float, **labels: str) -> None:
    """Records a latency if the program uses Prometheus."""
    import sys

    if "prometheus_client" in sys.modules:
        histogram = globals().get(name) or __getattr__(name)
        histogram.labels(**labels).observe(seconds * 1000)
