"""The MCP server at /mcp: tasks and skills as tools, for the keys of REST.

It keeps no sessions, so any replica of the API may answer any request.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any, Final, cast

import mcp_types as types
import msgspec
from litestar import asgi
from litestar.exceptions import MethodNotAllowedException
from litestar.types import HTTPScope, Receive, Scope, Send
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from starlette.requests import Request

from app.api.mcp_server.skill_tools import SKILL_TOOLS
from app.api.mcp_server.task_tools import TASK_TOOLS
from app.api.mcp_server.tool import Report, ToolCall
from app.projects.authorization import authorize
from app.web.access import ANY_KEY, Access
from app.web.problem import problem_for
from app.web.routes import Dependencies

_MAX_BODY_BYTES = 1 << 20
_INSTRUCTIONS = (
    "An agent that carries out tasks by writing Python against live APIs, and keeps what worked as skills. "
    "Submit a task in natural language, or find a skill that does it and run that."
)
_TOOLS: Final = {tool.name: tool for tool in (*TASK_TOOLS, *SKILL_TOOLS)}

Context = ServerRequestContext[Any, Request]


@asgi("/mcp", guards=[authorize], opt={"scope": ANY_KEY}, copy_scope=True)
async def mcp(scope: Scope, receive: Receive, send: Send) -> None:
    """Streamable HTTP. There is no stream of its own to GET, and no session to DELETE."""
    if cast("HTTPScope", scope)["method"] != "POST":
        raise MethodNotAllowedException(headers={"allow": "POST"})
    manager: StreamableHTTPSessionManager = scope["litestar_app"].state["mcp"]
    await manager.handle_request(scope, receive, send)  # type: ignore[arg-type]


@asynccontextmanager
async def running_server(parts: Dependencies) -> AsyncIterator[StreamableHTTPSessionManager]:
    """Answers requests while it is entered."""

    async def list_tools(context: Context, _: object) -> types.ListToolsResult:
        access = _access(context)
        return types.ListToolsResult(
            tools=[each.listed() for each in _TOOLS.values() if access.allows(each.scope)]
        )

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        return await _call(parts, context, params)

    server = Server(
        "sage-server",
        version=version("sage-server"),
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        get_tool_input_schema=lambda _: None,  # no argument is repeated in a header
    )
    manager = StreamableHTTPSessionManager(server, stateless=True, max_request_body_size=_MAX_BODY_BYTES)
    async with manager.run():
        yield manager


async def _call(
    parts: Dependencies, context: Context, params: types.CallToolRequestParams
) -> types.CallToolResult:
    """A failure is a result: the client's model reads it, and may mend the call."""
    tool = _TOOLS.get(params.name)
    if tool is None:
        raise MCPError(types.INVALID_PARAMS, f"no tool is named {params.name!r}; tools/list lists them")
    try:
        access = _access(context)
        access.require(tool.scope)
        answer = await tool.call(ToolCall(access, parts, _reporter(context)), params.arguments or {})
    except Exception as error:  # noqa: BLE001  as for REST, whose last resort logs what is unexpected
        problem = problem_for(context.request, error)
        text = types.TextContent(type="text", text=f"{problem.error}: {problem.detail}")
        return types.CallToolResult(content=[text], is_error=True)
    shown = types.TextContent(type="text", text=msgspec.json.encode(answer).decode())
    return types.CallToolResult(content=[shown], structured_content=answer)


def _access(context: Context) -> Access:
    """Of the key that `authorize` has found."""
    assert context.request is not None
    access: Access = context.request.scope["state"]["access"]
    return access


def _reporter(context: Context) -> Report:
    async def report(number: int, message: str) -> None:
        await context.session.report_progress(number, message=message)

    return report
