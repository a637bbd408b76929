"""Makes the calls of apps of the protocol `mcp`, within the limits of all calls, and turns results into values."""

import asyncio
import base64
from collections.abc import Callable, Mapping
from typing import Final
from uuid import UUID

import msgspec

from app.apis.calls.http_call import MAX_ANSWER_BYTES, WireRequest
from app.apis.documents.references import to_json_text
from app.apis.mcp.connection import Exchange, ForgottenError, McpConnection, McpServers, McpTarget
from app.apis.mcp.document import CALL_TOOL, LIST_RESOURCES, LIST_TEMPLATES, PROTOCOL, READ_RESOURCE
from app.base.errors import HostError, NoConnectionError
from app.base.untrusted import JsonError, decode_json
from app.base.values import Json
from app.sandbox.protocol import Answer, RefusalError
from app.sandbox.wire import MAX_DEPTH, MAX_NODES

_ERROR_CHARS = 500
_PAGES = 100
_LISTS: Final = {LIST_RESOURCES: "resources", LIST_TEMPLATES: "resourceTemplates"}


class McpCaller:
    """The calls of one principal of a project."""

    def __init__(self, servers: McpServers, project: UUID, principal: str, *, timeout: float) -> None:
        self._servers = servers
        self._project = project
        self._principal = principal
        self._timeout = timeout

    async def send(self, request: WireRequest) -> Answer:
        """The value of a result: structured content, or else text, or the bytes of the one image, sound or file.

        A call that may have been sent is not repeated: only one that a server refused because it has forgotten
        the session. Raises HostError, an ApiError, for every failure.
        """
        target = McpTarget(request.url, self._project, self._principal, tuple(sorted(request.headers.items())))
        params: dict[str, Json] = msgspec.json.decode(request.content or b"{}")
        try:
            async with asyncio.timeout(self._timeout):
                return Answer(_bounded(await self._call(target, params, request)))
        except TimeoutError as error:
            raise HostError("ApiError", f"no answer within {self._timeout:g} seconds") from error
        except RefusalError as error:
            raise RefusalError(short(error.message, request.clean), error.response, error.challenge) from error
        except NoConnectionError as error:
            raise NoConnectionError(short(error.message, request.clean)) from error
        except HostError as error:
            raise HostError(error.kind, short(error.message, request.clean)) from error

    async def _call(self, target: McpTarget, params: dict[str, Json], request: WireRequest) -> Json:
        for last in (False, True):
            async with self._servers.session(target, self._timeout) as connection:
                try:
                    return await self._in(connection, target, params, request)
                except ForgottenError as error:
                    if last:
                        raise HostError("ApiError", "the server forgets each session at once") from error
                    self._servers.forget(target, connection)
        raise AssertionError("the last try returns or raises")

    async def _in(
        self, connection: McpConnection, target: McpTarget, params: dict[str, Json], request: WireRequest
    ) -> Json:
        method, sending = request.method, request.sending
        if target.is_command and sending is not None:
            await sending()
            sending = None
        ours = Exchange(MAX_ANSWER_BYTES, self._timeout, sending, request=request)
        if method in _LISTS:
            return await _all_pages(connection, method, ours)
        result = await connection.ask(method, params, ours)
        return _VALUES[method](result)


def short(message: str, clean: Callable[[str], str]) -> str:
    """One line, truncated after `clean`, or the beginning of a secret could stay."""
    text = " ".join(clean(message).split())
    return text if len(text) <= _ERROR_CHARS else f"{text[:_ERROR_CHARS]}..."


def mcp_callers(servers: McpServers | None, project: UUID, principal: str, timeout: float) -> dict[str, McpCaller]:
    """The sender of a gateway's calls to MCP servers, by protocol; none without `servers`."""
    return {} if servers is None else {PROTOCOL: McpCaller(servers, project, principal, timeout=timeout)}


async def _all_pages(connection: McpConnection, method: str, ours: Exchange) -> list[Json]:
    found: list[Json] = []
    cursor: Json = None
    for _ in range(_PAGES):
        page = await connection.ask(method, {} if cursor is None else {"cursor": cursor}, ours)
        listed = page.get(_LISTS[method])
        found += listed if isinstance(listed, list) else []
        cursor = page.get("nextCursor")
        if cursor is None:
            return found
    raise HostError("ApiError", f"the server lists more than {_PAGES} pages")


def _tool_value(result: Mapping[str, Json]) -> Json:
    if result.get("resultType", "complete") != "complete":
        raise HostError("ApiError", "the tool asks for more input while it runs, which is not supported")
    blocks = result.get("content")
    text = "\n".join(map(_text, blocks if isinstance(blocks, list) else []))
    if result.get("isError") is True:
        raise HostError("ApiError", text or "the tool failed without saying why")
    structured = result.get("structuredContent")
    if structured is not None:
        return structured
    content = _bytes(blocks[0]) if isinstance(blocks, list) and len(blocks) == 1 else None
    return text if content is None else content


def _bytes(block: Json) -> bytes | None:
    """What an image, a sound or an embedded resource holds; None for text, and for what is not base64."""
    inner = block.get("resource", block) if isinstance(block, dict) else None
    encoded = inner.get("blob", inner.get("data")) if isinstance(inner, dict) else None
    if not isinstance(encoded, str):
        return None
    try:
        return base64.b64decode(encoded, validate=True)
    except ValueError:
        return None


def _text(block: Json) -> str:
    """A block of content; of an image or a sound its kind and size."""
    if not isinstance(block, dict):
        return ""
    if isinstance(block.get("text"), str):
        return str(block["text"])
    if isinstance(block.get("resource"), dict):
        return _resource_text(block["resource"])
    if isinstance(block.get("uri"), str):
        return str(block["uri"])
    return f"[{block.get('mimeType') or block.get('type')}, {len(_bytes(block) or b'')} bytes]"


def _resource_value(result: Mapping[str, Json]) -> Json:
    """The text or the bytes of a resource, or the texts of its parts."""
    listed = result.get("contents")
    parts = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    if len(parts) == 1 and (content := _bytes(parts[0])) is not None:
        return content
    texts = list(map(_resource_text, parts))
    return texts[0] if len(texts) == 1 else texts


def _resource_text(resource: Mapping[str, Json]) -> str:
    """Binary content among others in base64, as it came."""
    found = resource.get("text", resource.get("blob", ""))
    return found if isinstance(found, str) else ""


_VALUES: Final = {CALL_TOOL: _tool_value, READ_RESOURCE: _resource_value}


def _bounded(value: Json) -> Json:
    if isinstance(value, bytes):
        return value
    content = to_json_text(value)
    if len(content) > MAX_ANSWER_BYTES:
        raise HostError("ApiError", f"the answer is larger than {MAX_ANSWER_BYTES >> 20} MB; ask for less at once")
    try:
        return decode_json(content, max_values=MAX_NODES, max_depth=MAX_DEPTH)
    except JsonError as error:
        raise HostError("ApiError", f"the answer is not plain JSON: {error}") from error
