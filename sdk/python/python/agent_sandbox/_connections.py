"""The ways to reach a sandbox."""

from __future__ import annotations

# Loading `typing` would cost more than everything else here; checkers know this name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping


class Connection:
    """How sandboxes are reached. Create one with a class method; the default is :meth:`tunnel`."""

    __slots__ = ("_options",)

    def __init__(self, kind: str = "tunnel", **options: Any) -> None:
        everything: dict[str, Any] = dict.fromkeys(
            (
                "router_namespace",
                "gateway_name",
                "gateway_namespace",
                "gateway_timeout",
                "url",
                "headers",
                "ca",
                "certificate",
            )
        )
        everything.update(options, kind=kind)
        self._options = everything

    @classmethod
    def tunnel(cls, router_namespace: str | None = None) -> Connection:
        """Through the cluster's API to the router; needs only a kubeconfig."""
        return cls("tunnel", router_namespace=router_namespace)

    @classmethod
    def pod(cls) -> Connection:
        """Through the cluster's API directly to the sandbox's Pod; needs no router."""
        return cls("pod")

    @classmethod
    def gateway(cls, name: str, namespace: str = "default", timeout: float = 180) -> Connection:
        """Through a Gateway (Gateway API) in front of the router."""
        return cls("gateway", gateway_name=name, gateway_namespace=namespace, gateway_timeout=timeout)

    @classmethod
    def direct(
        cls,
        url: str,
        headers: Mapping[str, str] | None = None,
        ca: str | None = None,
        certificate: tuple[str, str] | None = None,
    ) -> Connection:
        """To a router at a known address."""
        return cls("direct", url=url, headers=list((headers or {}).items()), ca=ca, certificate=certificate)

    @classmethod
    def in_cluster(cls, address: str = "pod-ip-then-dns") -> Connection:
        """Directly to the Pod, from inside the cluster: by ``pod-ip``, ``dns``, ``service``, or by address, then DNS."""
        kinds = {"pod-ip-then-dns": "in-cluster", "pod-ip": "in-cluster-pod-ip", "dns": "in-cluster-dns"}
        kinds["service"] = "in-cluster-service"
        if address not in kinds:
            raise ValueError(f"address must be one of {', '.join(kinds)}, not {address!r}")
        return cls(kinds[address])

    def __repr__(self) -> str:
        return f"Connection({self._options['kind']!r})"
