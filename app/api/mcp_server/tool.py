"""A tool that MCP clients may call: what they are told of it, and the function that does it."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, TypeVar

import mcp_types as types
import msgspec

from app.base.errors import InvalidError
from app.base.values import Json
from app.web.access import Access
from app.web.routes import Dependencies

A = TypeVar("A", bound=msgspec.Struct)

Report = Callable[[int, str], Awaitable[None]]
"""Tells the client how far the call is, by a number that grows, and what happens."""


class ToolCall(msgspec.Struct, frozen=True):
    """Who calls, with what there is to answer."""

    access: Access
    parts: Dependencies
    report: Report


class ServedTool(msgspec.Struct, Generic[A], frozen=True, kw_only=True):
    """Described by the docstring of `do`. The schemas of arguments and result follow from their structs.

    `scope` is that of the key.
    """

    name: str
    scope: str
    arguments: type[A]
    result: type[msgspec.Struct]
    do: Callable[[ToolCall, A], Awaitable[msgspec.Struct]]
    reads: bool = False
    destroys: bool = False

    def listed(self) -> types.Tool:
        """What clients are told."""
        hints = types.ToolAnnotations(
            read_only_hint=self.reads, destructive_hint=self.destroys, open_world_hint=not self.reads
        )
        return types.Tool(
            name=self.name,
            description=inspect.getdoc(self.do),
            input_schema=schema_of(self.arguments),
            output_schema=schema_of(self.result),
            annotations=hints,
        )

    async def call(self, call: ToolCall, arguments: Mapping[str, Json]) -> dict[str, Json]:
        """The result as JSON. Raises InvalidError for arguments that do not fit."""
        try:
            given = msgspec.convert(dict(arguments), self.arguments)
        except msgspec.ValidationError as error:
            raise InvalidError(f"{self.name}: {error}") from error
        answer: dict[str, Json] = msgspec.to_builtins(await self.do(call, given))
        return answer


def schema_of(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON Schema of an object: clients expect its fields at the top."""
    _, components = msgspec.json.schema_components([struct], ref_template="#/$defs/{name}")
    schema: dict[str, Any] = components.pop(struct.__name__)
    return {**schema, "$defs": components} if components else schema
