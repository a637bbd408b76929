"""Exports the spans of tasks to an OpenTelemetry collector (OTLP over HTTP).

The id of a trace is the id of its task. Attributes hold neither secrets nor content: no text, argument or result.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Thread
from typing import Any, cast
from uuid import UUID

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import SpanKind, StatusCode

from app.base.errors import HostError
from app.base.telemetry import Attributes, Span, SpanSource

_FLUSH_SECONDS = 3.0  # at the end, for the spans of the last tasks
_trace: ContextVar[UUID | None] = ContextVar("trace", default=None)


@contextmanager
def otlp_spans(endpoint: str) -> Iterator[Callable[[UUID], SpanSource]]:
    """The spans of a task by its id, sent in the background to `endpoint`, the base URL of a collector.

    The other variables of OpenTelemetry (OTEL_EXPORTER_OTLP_HEADERS, OTEL_TRACES_SAMPLER, ...) apply.
    """
    provider = TracerProvider(resource=_resource(), id_generator=cast("Any", _TaskIds()), shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    tracer = provider.get_tracer("sage-server")
    try:
        yield lambda task_id: _TaskSpans(tracer, task_id)
    finally:
        flushing = Thread(target=provider.shutdown, daemon=True)  # it may wait long for a collector that is down
        flushing.start()
        flushing.join(_FLUSH_SECONDS)


class _TaskSpans:
    """Fulfils `SpanSource`. The library knows which span is open."""

    def __init__(self, tracer: Any, task_id: UUID) -> None:
        self._tracer, self._task_id = tracer, task_id

    @contextmanager
    def span(self, name: str, attributes: Attributes, *, client: bool = False) -> Iterator[Span]:
        kind = SpanKind.CLIENT if client else SpanKind.INTERNAL
        token = _trace.set(self._task_id)
        try:
            with self._tracer.start_as_current_span(
                name, kind=kind, attributes=attributes, record_exception=False, set_status_on_exception=False
            ) as opened:
                shown = _OtlpSpan(opened)
                try:
                    yield shown
                except BaseException as error:
                    shown.fail(error.kind if isinstance(error, HostError) else type(error).__name__)
                    raise
        finally:
            _trace.reset(token)


class _OtlpSpan:
    """Fulfils `Span`."""

    def __init__(self, opened: Any) -> None:
        self._opened = opened

    def set(self, attributes: Attributes) -> None:
        self._opened.set_attributes(attributes)

    def fail(self, kind: str) -> None:
        self._opened.set_attribute("error.type", kind)
        self._opened.set_status(StatusCode.ERROR)


class _TaskIds:
    """Fulfils the library's `IdGenerator`: all attempts at a task share its trace."""

    def __init__(self) -> None:
        self._random = RandomIdGenerator()

    def generate_span_id(self) -> int:
        return int(self._random.generate_span_id())

    def generate_trace_id(self) -> int:
        task_id = _trace.get()
        return int(self._random.generate_trace_id()) if task_id is None else task_id.int

    def is_trace_id_random(self) -> bool:
        return True


def _resource() -> Resource:
    """OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES go first."""
    found = Resource.create()
    if not str(found.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        return found
    return found.merge(Resource({SERVICE_NAME: "sage-runner"}))
