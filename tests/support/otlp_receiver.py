"""A receiver of OTLP over HTTP on a socket, which keeps the spans that it got."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from litestar import Litestar, Request, Response, post
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.support.listening_app import listening_app


class ReceivedSpan(msgspec.Struct, frozen=True):
    """Ids are in hexadecimal; `parent` is empty for a root. Attributes are those of OTLP, without their types."""

    trace: str
    id: str
    parent: str
    name: str
    kind: int
    seconds: float
    failed: bool
    attributes: dict[str, Any]
    service: str


class OtlpReceiver:
    def __init__(self) -> None:
        self.spans: list[ReceivedSpan] = []
        self.bodies: list[bytes] = []

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Serve on a socket; yields the URL."""

        @post("/v1/traces", status_code=200)
        async def receive(request: Request[Any, Any, Any]) -> Response[bytes]:
            body = await request.body()
            self.bodies.append(body)
            self.spans += _spans(ExportTraceServiceRequest.FromString(body))
            reply = ExportTraceServiceResponse().SerializeToString()
            return Response(reply, media_type="application/x-protobuf")

        app = Litestar([receive], openapi_config=None, logging_config=None)
        async with listening_app(app, lifespan="off") as url:
            yield url

    def named(self, start: str) -> list[ReceivedSpan]:
        """The spans whose name starts so, in the order of their start."""
        return [span for span in self.spans if span.name.startswith(start)]


def _spans(request: ExportTraceServiceRequest) -> list[ReceivedSpan]:
    return [
        ReceivedSpan(
            trace=span.trace_id.hex(),
            id=span.span_id.hex(),
            parent=span.parent_span_id.hex(),
            name=span.name,
            kind=span.kind,
            seconds=(span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
            failed=span.status.code == 2,
            attributes=_attributes(span),
            service=next(
                each.value.string_value for each in part.resource.attributes if each.key == "service.name"
            ),
        )
        for part in request.resource_spans
        for scope in part.scope_spans
        for span in scope.spans
    ]


def _attributes(message: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in message.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)
