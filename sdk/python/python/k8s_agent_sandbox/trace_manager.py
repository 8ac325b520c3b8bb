"""Tracing with OpenTelemetry, which is imported on first use. Without it, tracing is disabled and nothing fails."""

import atexit
import functools
import json
import logging
import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Tuple, TypeVar

if TYPE_CHECKING:
    from .models import SandboxTracerConfig

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])

_provider: Any = None
_lock = threading.Lock()


class _NoSpan:
    def is_recording(self) -> bool:
        return False

    def set_attribute(self, key: str, value: Any) -> None:
        """Does nothing."""

    def end(self) -> None:
        """Does nothing."""


class _NoTracer:
    def start_as_current_span(self, *arguments: Any, **options: Any) -> Any:
        return nullcontext()

    def start_span(self, *arguments: Any, **options: Any) -> _NoSpan:
        return _NoSpan()


class _NoTrace:
    @staticmethod
    def get_current_span() -> _NoSpan:
        return _NoSpan()

    @staticmethod
    def get_tracer(name: str, version: Optional[str] = None) -> _NoTracer:
        return _NoTracer()

    @staticmethod
    def set_tracer_provider(provider: Any) -> None:
        """Does nothing."""

    @staticmethod
    def set_span_in_context(span: Any, context: Any = None) -> None:
        """Does nothing."""


class _NoContext:
    @staticmethod
    def attach(*arguments: Any) -> None:
        """Does nothing."""

    @staticmethod
    def detach(*arguments: Any) -> None:
        """Does nothing."""


class _NoPropagator:
    def inject(self, carrier: Dict[str, str], context: Any = None, setter: Any = None) -> None:
        """Does nothing."""


def __getattr__(name: str) -> Any:
    """`trace`, `context`, `TraceContextTextMapPropagator` and `OPENTELEMETRY_AVAILABLE`: OpenTelemetry's own, or stubs."""
    if name not in ("trace", "context", "TraceContextTextMapPropagator", "OPENTELEMETRY_AVAILABLE"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        found = {
            "trace": trace,
            "context": context,
            "TraceContextTextMapPropagator": TraceContextTextMapPropagator,
            "OPENTELEMETRY_AVAILABLE": True,
        }
    except ImportError:
        found = {
            "trace": _NoTrace,
            "context": _NoContext,
            "TraceContextTextMapPropagator": _NoPropagator,
            "OPENTELEMETRY_AVAILABLE": False,
        }
    globals().update(found)
    return found[name]


def _load(name: str) -> Any:
    return globals().get(name) if name in globals() else __getattr__(name)


def initialize_tracer(service_name: str) -> None:
    """Exports spans over OTLP, once for the whole program; a second name is ignored with a warning."""
    global _provider
    if not _load("OPENTELEMETRY_AVAILABLE"):
        logger.error("OpenTelemetry not installed; skipping tracer initialization.")
        return
    with _lock:
        if _provider is not None:
            existing = _provider.resource.attributes.get("service.name")
            if existing != service_name:
                logger.warning("Traces are already exported as %r; ignoring %r.", existing, service_name)
            return
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        _provider = TracerProvider(resource=Resource(attributes={"service.name": service_name}))
        try:
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (  # type: ignore[import-not-found, unused-ignore]
                OTLPSpanExporter,
            )
            from opentelemetry.sdk.trace.export import BatchSpanProcessor

            _provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        except ImportError:
            logger.warning("No OTLP exporter is installed: spans are created and propagated, but not exported.")
        _load("trace").set_tracer_provider(_provider)
        atexit.register(_provider.shutdown)


def _span(instance: Any, suffix: str) -> Any:
    tracer = getattr(instance, "tracer", None)
    if not tracer:
        return None
    return tracer.start_as_current_span(f"{getattr(instance, 'trace_service_name', 'sandbox-client')}.{suffix}")


def trace_span(span_suffix: str) -> Callable[[F], F]:
    """Wraps a method in a span if its object has tracing enabled."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def wrapped(self: Any, *arguments: Any, **options: Any) -> Any:
            span = _span(self, span_suffix)
            if span is None:
                return function(self, *arguments, **options)
            with span:
                return function(self, *arguments, **options)

        return wrapped  # type: ignore[return-value]

    return decorate


def async_trace_span(span_suffix: str) -> Callable[[F], F]:
    """Wraps a coroutine method in a span if its object has tracing enabled."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        async def wrapped(self: Any, *arguments: Any, **options: Any) -> Any:
            span = _span(self, span_suffix)
            if span is None:
                return await function(self, *arguments, **options)
            with span:
                return await function(self, *arguments, **options)

        return wrapped  # type: ignore[return-value]

    return decorate


def note(instance: Any, **attributes: Any) -> None:
    """Sets attributes of the current span if the object has tracing enabled."""
    if not getattr(instance, "tracer", None):
        return
    span = _load("trace").get_current_span()
    if span.is_recording():
        for name, value in attributes.items():
            span.set_attribute("sandbox." + name.replace("_", "."), value)


class TracerManager:
    """The spans of one client: one for its whole lifetime, and the propagation of its context."""

    def __init__(self, service_name: str) -> None:
        self.tracer = _load("trace").get_tracer(service_name.replace("-", "_"))
        self.lifecycle_span_name = f"{service_name}.lifecycle"
        self.parent_span: Any = None
        self.context_token: Any = None
        self.propagator = _load("TraceContextTextMapPropagator")()

    def start_lifecycle_span(self) -> None:
        self.parent_span = self.tracer.start_span(self.lifecycle_span_name)
        self.context_token = _load("context").attach(_load("trace").set_span_in_context(self.parent_span))

    def end_lifecycle_span(self) -> None:
        if self.context_token:
            _load("context").detach(self.context_token)
        if self.parent_span:
            self.parent_span.end()

    def get_trace_context_json(self) -> str:
        """`traceparent` and `tracestate` of the current span, in the format of the claim's annotation."""
        carrier: Dict[str, str] = {}
        self.propagator.inject(carrier)
        return json.dumps(carrier) if carrier else ""


def create_tracer_manager(config: "SandboxTracerConfig") -> Tuple[Optional[TracerManager], Any]:
    """A manager and its tracer, or neither."""
    if not config.enable_tracing:
        return None, None
    if not _load("OPENTELEMETRY_AVAILABLE"):
        logger.error("OpenTelemetry not installed; skipping tracer initialization.")
        return None, None
    manager = TracerManager(config.trace_service_name)
    return manager, manager.tracer
