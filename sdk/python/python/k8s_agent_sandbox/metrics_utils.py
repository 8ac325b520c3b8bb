"""The metrics as text."""


def get_metrics() -> str:
    """All metrics of the program's registry, in Prometheus' text format."""
    from . import metrics

    metrics.sandbox_client_discovery_latency_ms  # noqa: B018 - made, so that it is in the registry
    from prometheus_client import REGISTRY, generate_latest  # type: ignore[import-not-found, unused-ignore]

    return generate_latest(REGISTRY).decode()


def print_metrics() -> None:
    """Prints all metrics."""
    print(get_metrics())
