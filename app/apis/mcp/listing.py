"""What an MCP server offers, as the document that is stored for it."""

import asyncio
from typing import Final

import msgspec

from app.apis.authentication import Authentication
from app.apis.mcp_document import LIST_TEMPLATES
from app.base.errors import ApiDocumentError, HostError
from app.base.secrets import SecretValues
from app.base.values import Json
from app.gateway.mcp_client.connection import McpConnection
from app.gateway.mcp_client.connection_pool import McpServers, McpTarget
from app.gateway.mcp_client.exchange import AccessRefusedError, Exchange
from app.gateway.mcp_client.mcp_calls import short

_SECONDS = 60.0  # in all
_PART_SECONDS = 30.0
_MAX_BYTES = 20 << 20  # of all pages
_PAGES = 500
_KEPT: Final = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")


async def fetch_listing(
    servers: McpServers, url: str, sent: Authentication | None = None, oauth: Json = None
) -> bytes:
    """The document of a server, as JSON; `oauth` is part of it.

    Raises ApiDocumentError if no MCP server is there, AccessRefusedError if it refuses what was `sent`.
    """
    sent, secrets = sent or Authentication(), SecretValues()
    headers = tuple(sorted(sent.headers.items()))
    secrets.add(*sent.secret_parts())
    try:
        async with (
            asyncio.timeout(_SECONDS),
            servers.connect(McpTarget(url, headers=headers), _PART_SECONDS) as opened,
        ):
            document = await _document(opened, url)
            return msgspec.json.encode(document if oauth is None else {**document, "oauth": oauth})
    except TimeoutError as error:
        raise ApiDocumentError(f"{url} takes longer than {_SECONDS:g} s to list its tools") from error
    except AccessRefusedError as error:
        raise AccessRefusedError(short(error.message, secrets.mask), error.status, error.challenge) from error
    except HostError as error:
        reason = short(error.message, secrets.mask)
        raise ApiDocumentError(f"{url} does not answer as an MCP server: {reason}") from error
    except (OverflowError, UnicodeEncodeError) as error:
        raise ApiDocumentError(f"{url} lists tools with values that JSON cannot hold") from error


async def _document(opened: McpConnection, url: str) -> dict[str, Json]:
    session = opened.session
    capabilities, about = session.server_capabilities, session.server_info
    ours = Exchange(_MAX_BYTES, _PART_SECONDS)
    has_tools = capabilities is not None and capabilities.tools is not None
    has_resources = capabilities is not None and capabilities.resources is not None
    return {
        "mcp": session.protocol_version,
        "url": url,
        "server": {} if about is None else {"name": about.name, "title": about.title, "version": about.version},
        "instructions": session.instructions,
        "tools": await _tools(opened, ours) if has_tools else [],
        "resources": has_resources,
        "templates": has_resources and await _has_templates(opened, ours),
    }


async def _tools(opened: McpConnection, ours: Exchange) -> list[Json]:
    found: list[Json] = []
    cursor: Json = None
    for _ in range(_PAGES):
        page = await opened.ask("tools/list", {} if cursor is None else {"cursor": cursor}, ours)
        listed = page.get("tools")
        if not isinstance(listed, list):
            raise HostError("ApiError", "its list of tools is none")
        found += map(_kept, listed)
        cursor = page.get("nextCursor")
        if cursor is None:
            return found
    raise HostError("ApiError", f"it lists more than {_PAGES} pages of tools")


def _kept(tool: Json) -> Json:
    """Without what changes nothing for the agent, such as icons."""
    return {name: tool[name] for name in _KEPT if name in tool} if isinstance(tool, dict) else tool


async def _has_templates(opened: McpConnection, ours: Exchange) -> bool:
    """Servers may have resources and know nothing of templates."""
    try:
        return bool((await opened.ask(LIST_TEMPLATES, {}, ours)).get("resourceTemplates"))
    except HostError:
        return False
