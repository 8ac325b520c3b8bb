"""The client. `generate_async.py` generates `async_sandbox_client.py` from this file."""

import atexit
import logging
from typing import Any, Dict, Generic, List, Optional, Set, Tuple, Type, TypeVar

from agent_sandbox._waiting import _wait

from ._at_exit import delete_at_exit
from .claim_adoption import validate_claim_name
from .connector import connection_options
from .exceptions import SandboxMetadataError, SandboxNotFoundError
from .k8s_helper import K8sHelper
from .models import SandboxConnectionConfig, SandboxLocalTunnelConnectionConfig, SandboxTracerConfig
from .pod_metadata import build_pod_metadata, validate_label_name, validate_labels
from .sandbox import Sandbox
from .trace_manager import create_tracer_manager, initialize_tracer, note, trace_span
from .utils import construct_sandbox_claim_env_spec, construct_sandbox_claim_lifecycle_spec

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=Sandbox)


class SandboxClient(Generic[T]):
    """Creates, finds and deletes sandboxes, and tracks the handles that it returned."""

    sandbox_class: Type[T] = Sandbox  # type: ignore[assignment]

    def __init__(
        self,
        connection_config: Optional[SandboxConnectionConfig] = None,
        tracer_config: Optional[SandboxTracerConfig] = None,
        cleanup: bool = False,
        api_client: Any = None,
    ) -> None:
        """
        connection_config: how sandboxes are reached; by default a tunnel through the cluster's API.
        tracer_config: tracing with OpenTelemetry; off by default.
        cleanup: delete what was created, claims with a name of the caller's own excepted, when the program ends.
        api_client: a client of the `kubernetes` package whose cluster and credentials to use.
        """
        self.connection_config = connection_config or SandboxLocalTunnelConnectionConfig()
        self.tracer_config = tracer_config or SandboxTracerConfig()
        self.trace_service_name = self.tracer_config.trace_service_name
        if self.tracer_config.enable_tracing:
            initialize_tracer(self.tracer_config.trace_service_name)
        self.tracing_manager, self.tracer = create_tracer_manager(self.tracer_config)
        self.k8s_helper = K8sHelper(api_client=api_client)
        self._active_connection_sandboxes: Dict[Tuple[str, str], T] = {}
        self._explicit_claims: Set[Tuple[str, str]] = set()
        if cleanup:
            atexit.register(self._at_exit)

    def _at_exit(self) -> None:
        delete_at_exit(self.k8s_helper, list(self._active_connection_sandboxes.items()), self._explicit_claims)

    def __enter__(self) -> "SandboxClient[T]":  # async
        return self

    def __exit__(self, *exception: object) -> None:  # async
        self._delete_automatic_sandboxes()  # await
        self.k8s_helper.close()  # await

    def close(self) -> None:  # async
        """Closes all handles; the sandboxes keep running."""
        for key, sandbox in list(self._active_connection_sandboxes.items()):
            sandbox.close_connection()  # await
            self._active_connection_sandboxes.pop(key, None)
        self.k8s_helper.close()  # await

    def create_sandbox(
        self,
        warmpool: Optional[str] = None,
        namespace: str = "default",
        sandbox_ready_timeout: int = 180,
        labels: Optional[Dict[str, str]] = None,
        *,
        template: Optional[str] = None,
        claim_name: Optional[str] = None,
        adopt_existing: bool = False,
        shutdown_after_seconds: Optional[int] = None,
        volume_claim_templates: Optional[List[Dict[str, Any]]] = None,
        pod_labels: Optional[Dict[str, str]] = None,
        pod_annotations: Optional[Dict[str, str]] = None,
        env: Optional[Dict[str, str]] = None,
    ) -> T:  # async
        """Creates a sandbox and waits until it is ready. If that fails, the objects created so far are deleted.

        The first argument is looked up as a warm pool, then as a template; `template=` is looked up in the other order. With
        both, `template=` names the template and the first argument is 0.4's policy on warm pools.
        """
        if not warmpool and not template:
            raise ValueError("Warmpool name cannot be empty: name a warm pool or a template.")
        if labels:
            validate_labels(labels)
        build_pod_metadata(pod_labels, pod_annotations)
        construct_sandbox_claim_env_spec(env)
        if shutdown_after_seconds is not None:
            construct_sandbox_claim_lifecycle_spec(shutdown_after_seconds)
        if adopt_existing and claim_name is None:
            raise ValueError("adopt_existing requires an explicit claim_name.")
        if claim_name is not None:
            validate_claim_name(claim_name)
            self._explicit_claims.add((namespace, claim_name))
        source, source_name = self._source(warmpool, template)
        options = {
            "source": source,
            "source_name": source_name,
            "namespace": namespace,
            "name": claim_name,
            "adopt": adopt_existing,
            "labels": labels,
            "annotations": None,
            "pod_labels": pod_labels,
            "pod_annotations": pod_annotations,
            "env": env,
            "volume_claim_templates": volume_claim_templates,
            "expires_after": None if shutdown_after_seconds is None else float(shutdown_after_seconds),
            "ready_timeout": float(sandbox_ready_timeout),
        }
        handle = self._create_claim(options)  # await
        key = (namespace, handle.claim)
        existing = self._active_connection_sandboxes.get(key)
        if existing is not None and existing.is_active and existing.sandbox_id == handle.name:
            return existing
        sandbox = self._handle_for(handle.claim, handle.name, namespace)
        sandbox.connector._handle = handle
        self._active_connection_sandboxes[key] = sandbox
        if existing is not None:
            existing.close_connection()  # await
        return sandbox

    @staticmethod
    def _source(warmpool: Optional[str], template: Optional[str]) -> Tuple[str, str]:
        if not template:
            return "named", warmpool or ""
        # Policies of 0.4: `default` means any pool of the template, `none` means no pool; another value names a pool.
        if warmpool and warmpool not in ("default", "none"):
            return "pool", warmpool
        return "template-or-pool", template

    def _handle_for(self, claim_name: str, sandbox_id: str, namespace: str) -> T:
        return self.sandbox_class(
            claim_name=claim_name,
            sandbox_id=sandbox_id,
            namespace=namespace,
            connection_config=self.connection_config,
            tracer_config=self.tracer_config,
            k8s_helper=self.k8s_helper,
        )

    @trace_span("create_claim")
    def _create_claim(self, options: Dict[str, Any]) -> Any:  # async
        if options["name"]:
            note(self, claim_name=options["name"])
        if self.tracing_manager:
            context = self.tracing_manager.get_trace_context_json()
            if context:
                options["annotations"] = {"opentelemetry.io/trace-context": context}
        client = self.k8s_helper._client(*connection_options(self.connection_config))  # await
        return _wait(client.claim(options))

    def get_sandbox(self, claim_name: str, namespace: str = "default", resolve_timeout: int = 30) -> T:  # async
        """A handle to an existing sandbox: the one returned before, or a new one."""
        key = (namespace, claim_name)
        existing = self._active_connection_sandboxes.get(key)
        try:
            sandbox_id = self.k8s_helper.resolve_sandbox_name(claim_name, namespace, timeout=resolve_timeout)  # await
            found = self.k8s_helper.get_sandbox(sandbox_id, namespace)  # await
            if not found:
                raise SandboxNotFoundError(f"Underlying Sandbox '{sandbox_id}' not found.")
        except Exception as error:
            if existing is not None:
                existing.close_connection()  # await
            raise SandboxNotFoundError(
                f"Sandbox claim '{claim_name}' not found or resolution failed in namespace '{namespace}': {error}"
            ) from error
        if existing is not None and existing.is_active:
            return existing
        sandbox = self._handle_for(claim_name, sandbox_id, namespace)
        self._active_connection_sandboxes[key] = sandbox
        return sandbox

    def list_active_sandboxes(self) -> List[Tuple[str, str]]:  # async
        """`(namespace, claim name)` of the handles that can still be used."""
        for key, sandbox in list(self._active_connection_sandboxes.items()):
            if not sandbox.is_active:
                self._active_connection_sandboxes.pop(key, None)
        return list(self._active_connection_sandboxes)

    def list_all_sandboxes(self, namespace: str = "default", label_selector: Optional[str] = None) -> List[str]:  # async
        """Names of all claims in a namespace, including those of other clients."""
        return self.k8s_helper.list_sandbox_claims(namespace, label_selector=label_selector)  # await

    def delete_sandbox(self, claim_name: str, namespace: str = "default") -> None:  # async
        """Closes the handle and deletes the sandbox. A failure is logged, not raised."""
        sandbox = self._active_connection_sandboxes.get((namespace, claim_name))
        try:
            if sandbox is not None:
                sandbox.terminate()  # await
                self._active_connection_sandboxes.pop((namespace, claim_name), None)
            else:
                self._delete_claim(claim_name, namespace)  # await
        except Exception as error:
            logger.error("Failed to delete sandbox '%s' in namespace '%s': %s", claim_name, namespace, error)

    def delete_all(self) -> None:  # async
        """Deletes every sandbox that this client tracks."""
        for namespace, claim_name in list(self._active_connection_sandboxes):
            self.delete_sandbox(claim_name, namespace=namespace)  # await

    def _delete_automatic_sandboxes(self) -> None:  # async
        for key, sandbox in list(self._active_connection_sandboxes.items()):
            namespace, claim_name = key
            if key in self._explicit_claims:
                sandbox.close_connection()  # await
            else:
                self.delete_sandbox(claim_name, namespace)  # await

    @trace_span("delete_claim")
    def _delete_claim(self, claim_name: str, namespace: str, **kwargs: Any) -> None:  # async
        self.k8s_helper.delete_sandbox_claim(claim_name, namespace, **kwargs)  # await

    @staticmethod
    def _validate_labels(labels: Dict[str, str]) -> None:
        validate_labels(labels)

    @staticmethod
    def _validate_label_name(name: str, context: str) -> None:
        validate_label_name(name, context)

    def get_sandbox_claim_warmpool_name(self, claim_name: str, namespace: str) -> str:  # async
        """The warm pool that a claim refers to."""
        claim = self.k8s_helper.get_sandbox_claim(claim_name, namespace)  # await
        if not claim:
            raise SandboxNotFoundError(f"SandboxClaim '{claim_name}' not found in namespace '{namespace}'.")
        name = claim.get("spec", {}).get("warmPoolRef", {}).get("name")
        if not isinstance(name, str) or not name:
            raise SandboxMetadataError(f"SandboxClaim '{claim_name}' is missing spec.warmPoolRef.name.")
        return name


__all__ = ["SandboxClient"]
