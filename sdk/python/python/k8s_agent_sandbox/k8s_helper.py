"""Access to the Kubernetes API. `generate_async.py` generates `async_k8s_helper.py` from this file."""

import logging
from typing import Any, Dict, List, Optional, Union

from agent_sandbox._waiting import _wait

from .constants import CLAIM_API_GROUP, CLAIM_API_VERSION, CLIENT_REQUEST_TIME_ANNOTATION, CREATED_BY_LABEL
from .exceptions import SandboxApiError
from .models import AdditionalPodMetadata
from .utils import construct_sandbox_claim_env_spec, kubeconfig_of_client, select_pod_ip

logger = logging.getLogger(__name__)

_ANY_CONNECTION = dict.fromkeys(
    ("router_namespace", "gateway_name", "gateway_namespace", "gateway_timeout", "url", "headers", "ca", "certificate")
)


class K8sHelper:
    """Claims and Sandboxes of a cluster: that of a given client, else the Pod's own, `KUBECONFIG`, `~/.kube/config`, or
    the engine on this machine, in this order."""

    def __init__(self, api_client: Any = None, *, kube_config_temp_dir: Optional[str] = None) -> None:
        self.injected_api_client = api_client
        self._base: Any = None
        self._clients: Dict[str, Any] = {}

    def _cluster(self) -> Any:  # async
        if self._base is None:
            injected = self.injected_api_client
            options = {
                "kubeconfig": None,
                "kubeconfig_text": kubeconfig_of_client(injected) if injected is not None else None,
                "context": None,
                "data_dir": None,
                "local": False,
                "start_local": False,
                "home_first": True,
                "connection": {**_ANY_CONNECTION, "kind": "tunnel"},
                "port": 8888,
                "send_pod_ip": True,
                "traceparent": None,
            }
            from agent_sandbox import _native

            self._base = _wait(_native.Client.open(options))
        return self._base

    def _client(self, connection: Dict[str, Any], port: int) -> Any:  # async
        """A client for the same cluster with the given connection; sandboxes with equal options share connections."""
        key = repr((connection, port))
        client = self._clients.get(key)
        if client is None:
            base = self._cluster()  # await
            client = self._clients[key] = base.reconnected(connection, port)
        return client

    def create_sandbox_claim(
        self,
        name: str,
        warmpool: Optional[str] = None,
        namespace: str = "default",
        annotations: Optional[Dict[str, str]] = None,
        labels: Optional[Dict[str, str]] = None,
        lifecycle: Optional[Dict[str, Any]] = None,
        volume_claim_templates: Optional[List[Dict[str, Any]]] = None,
        pod_metadata: Union[AdditionalPodMetadata, Dict[str, Any], None] = None,
        env: Optional[Dict[str, str]] = None,
        *,
        template: Optional[str] = None,
    ) -> Dict[str, Any]:  # async
        """Creates a claim for a warm pool, or for a template, without waiting until it is ready."""
        from datetime import datetime, timezone

        notes = dict(annotations or {})
        notes.setdefault(CLIENT_REQUEST_TIME_ANNOTATION, datetime.now(timezone.utc).isoformat())
        spec: Dict[str, Any]
        version = CLAIM_API_VERSION
        if template is not None:
            version, spec = "v1alpha1", {"sandboxTemplateRef": {"name": template}}
            if warmpool is not None:
                spec["warmpool"] = warmpool
        else:
            spec = {"warmPoolRef": {"name": warmpool}}
        if lifecycle:
            spec["lifecycle"] = lifecycle
        if volume_claim_templates:
            spec["volumeClaimTemplates"] = volume_claim_templates
        if pod_metadata:
            if isinstance(pod_metadata, dict):
                pod_metadata = AdditionalPodMetadata.model_validate(pod_metadata)
            spec["additionalPodMetadata"] = pod_metadata.model_dump(exclude_none=True)
        variables = construct_sandbox_claim_env_spec(env)
        if variables:
            spec["env"] = [one.model_dump(by_alias=True, exclude_none=True) for one in variables]
        manifest = {
            "apiVersion": f"{CLAIM_API_GROUP}/{version}",
            "kind": "SandboxClaim",
            "metadata": {"name": name, "annotations": notes, "labels": {**(labels or {}), CREATED_BY_LABEL: "python-client"}},
            "spec": spec,
        }
        client = self._cluster()  # await
        return _wait(client.create_object(namespace, "sandboxclaims", manifest))

    def resolve_sandbox_name(
        self, claim_name: str, namespace: str, timeout: int, resource_version: Optional[str] = None
    ) -> str:  # async
        """Waits until a claim names its Sandbox, and returns the name."""
        client = self._cluster()  # await
        return _wait(client.resolve(namespace, claim_name, float(timeout)))

    def wait_for_claim_ready(
        self, claim_name: str, namespace: str, timeout: int, resource_version: Optional[str] = None, **kwargs: Any
    ) -> str:  # async
        """Waits until a claim and its Sandbox are ready, and returns the Sandbox's name."""
        client = self._cluster()  # await
        return _wait(client.wait_claim(namespace, claim_name, float(timeout)))

    def wait_for_sandbox_ready(self, name: str, namespace: str, timeout: int) -> Optional[str]:  # async
        """Waits until a Sandbox is ready, and returns its address, if it has one."""
        client = self._cluster()  # await
        found = _wait(client.wait_ready(namespace, name, float(timeout)))
        return select_pod_ip((found.get("status") or {}).get("podIPs"))

    def delete_sandbox_claim(
        self, name: str, namespace: str, _request_timeout: Any = None, *, expected_uid: Optional[str] = None
    ) -> None:  # async
        """Deletes a claim, with `expected_uid` only if the uid matches. A claim that does not exist is no error."""
        client = self._cluster()  # await
        _wait(client.delete_claim(namespace, name, expected_uid))
        logger.info("Terminated SandboxClaim: %s", name)

    def get_sandbox(self, name: str, namespace: str) -> Optional[Dict[str, Any]]:  # async
        """A Sandbox, or None."""
        client = self._cluster()  # await
        return _wait(client.get_sandbox(namespace, name))

    def get_sandbox_claim(self, name: str, namespace: str) -> Optional[Dict[str, Any]]:  # async
        """A claim, or None."""
        client = self._cluster()  # await
        return _wait(client.get_claim(namespace, name))

    def patch_sandbox_claim(self, name: str, namespace: str, body: Dict[str, Any]) -> Dict[str, Any]:  # async
        """Applies a merge patch to a claim."""
        client = self._cluster()  # await
        return _wait(client.patch(namespace, name, True, body))

    def patch_sandbox(self, name: str, namespace: str, body: Dict[str, Any]) -> Dict[str, Any]:  # async
        """Applies a merge patch to a Sandbox."""
        client = self._cluster()  # await
        return _wait(client.patch(namespace, name, False, body))

    def list_sandbox_claims(self, namespace: str, label_selector: Optional[str] = None) -> List[str]:  # async
        """Names of the claims in a namespace."""
        client = self._cluster()  # await
        try:
            return _wait(client.claims(namespace, label_selector))
        except SandboxApiError as error:
            logger.error("Error listing sandbox claims in namespace %s: %s", namespace, error)
            raise

    def close(self) -> None:  # async
        """Closes the connections to the cluster. A later call opens new ones."""
        self._base = None
        self._clients.clear()
