"""What all routes share: the parts that their handlers get, as one value, so that tests can hand in their own;
requests whose JSON is decoded within limits, since all projects share the loop that decodes it; and answers to
OPTIONS.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPMethod
from typing import Any, Protocol, cast, runtime_checkable
from uuid import UUID

import httpx
import msgspec
from litestar import Litestar, Request
from litestar.datastructures import MutableScopeHeaders
from litestar.enums import ScopeType
from litestar.exceptions import SerializationException
from litestar.routes import HTTPRoute
from litestar.types import ASGIApp, Empty, Message, Receive, Scope, Send

from app.apis.documents.reader import DocumentReader
from app.apis.mcp.connection import McpCommand
from app.base.untrusted import JsonError, decode_json
from app.base.values import Json, Offer
from app.db.database import Sessions
from app.db.disk_space import Disk
from app.db.notify import NotificationListener
from app.engine.client import ModelServer
from app.engine.dispatch import Occupancy
from app.engine.model_scope import ModelScope
from app.engine.tokenizer import ChatTokenizer
from app.machine.routes import ReadinessCheck
from app.projects.settings import Limits
from app.releases.adapter_store import AdapterDirectory
from app.releases.hosted_models import HostedModels
from app.releases.promotion import FirstRelease, Promoter
from app.runs.datasets import DataRules, DatasetStore
from app.runs.schedule import Serving

NotifyWorkers = Callable[[UUID], Awaitable[None]]
"""Announces a queued training run. A lost notification costs a delay, never a run."""

_VALUES = 300_000  # of a body
_DEPTH = 100
_TEXT = msgspec.json.Decoder(str)
_FIELDS: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])


@runtime_checkable
class SkillSearch(Protocol):
    """The part of the skill library that the API uses."""

    async def find(
        self, project_id: UUID, instruction: str, scenario: str | None, limit: int, *, principal: str
    ) -> list[Offer]: ...


async def _no_disks() -> Sequence[Disk]:
    return ()


class Dependencies(msgspec.Struct, frozen=True, kw_only=True):
    """A request handler gets each of these by naming it as a parameter."""

    sessions: Sessions
    listener: NotificationListener
    library: SkillSearch
    promoter: Promoter
    first_release: FirstRelease
    adapters: AdapterDirectory
    notify_workers: NotifyWorkers
    http_client: httpx.AsyncClient  # fetches OpenAPI documents
    document_reader: DocumentReader
    mcp_commands: Mapping[str, McpCommand] = {}
    hosted_endpoints: HostedModels = HostedModels()  # no name of a field of a request
    readiness_checks: Mapping[str, ReadinessCheck]
    datasets: DatasetStore
    data_rules: DataRules = DataRules()
    public_url: str = "http://127.0.0.1:8000"  # where users reach this server
    occupancy: Callable[[], Occupancy]  # of the model servers
    model_servers: Callable[[], Sequence[ModelServer]] = tuple
    disks: Callable[[], Awaitable[Sequence[Disk]]] = _no_disks  # of this machine
    model_scope: ModelScope = ModelScope()
    tokenizer: ChatTokenizer | None = None  # None: trajectories come without the text of their prompts
    judged: bool = False  # a judge scores what nobody else does
    chat_wait_seconds: float = 600.0  # for the answer of a chat
    serving: Serving = Serving()  # what runs learn from
    limits: Limits = Limits()  # of projects that have none of their own
    failed_keys_per_minute: int = 20  # of one address; 0: no limit


class JsonRequest(Request[Any, Any, Any]):
    """A body of too many values, or nested too deeply, is invalid JSON."""

    async def json(self) -> Json:
        if self._json is Empty:
            try:
                self._json = self.decode(await self.body() or b"null")
            except JsonError as error:
                raise SerializationException(str(error)) from error
        return self._json

    def decode(self, body: bytes) -> Json:
        """Raises JsonError."""
        return decode_json(body, max_values=_VALUES, max_depth=_DEPTH)


class DocumentRequest(JsonRequest):
    """The field `document` may be of any size: an object is passed on as text, not decoded."""

    def decode(self, body: bytes) -> Json:
        try:
            return {name: self._field(name, bytes(value)) for name, value in _FIELDS.decode(body).items()}
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return super().decode(body)  # it says what is wrong

    def _field(self, name: str, value: bytes) -> Json:
        if name == "document" and value.startswith(b"{"):
            return value.decode()
        if name == "document" and value.startswith(b'"'):
            return _TEXT.decode(value)  # one value: there is nothing to count
        return super().decode(value)


def answer_options(app: ASGIApp) -> ASGIApp:
    """A middleware."""

    async def answered(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP or scope["method"] != HTTPMethod.OPTIONS:
            await app(scope, receive, send)
            return
        allowed = ", ".join(sorted(_methods(scope["litestar_app"], scope["path_template"])))

        async def send_allowed(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableScopeHeaders.from_message(message)["Allow"] = allowed
            await send(message)

        await app(scope, receive, send_allowed)

    return answered


def _methods(app: Litestar, path: str) -> set[str]:
    routes = (route for route in app.routes if isinstance(route, HTTPRoute) and route.path_format == path)
    return {cast("str", method) for route in routes for method in route.methods}
