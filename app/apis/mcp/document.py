"""The protocol `mcp`: what a Model Context Protocol server offers, kept as a document, as an app.

How its callers get a token is part of the document, and a security scheme.
"""

import hashlib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

import msgspec

from app.apis.catalog import App, LeftOut, Operation, Parameter
from app.apis.credentials.schemes import OAuthFlow, SecurityScheme
from app.apis.documents.protocols import OutgoingRequest
from app.apis.documents.references import DocumentBudget, DocumentSizeError, References, to_json_text
from app.apis.naming import UniqueNames, argument_name, operation_name
from app.apis.values import preset
from app.base.errors import ApiDocumentError
from app.base.values import Json
from app.projects.settings import Risk

OAUTH: Final = "oauth"
"""The name of the security scheme of a server that asks for tokens."""
LIST_TOOLS: Final = Operation(app="", name="list_tools", method="tools/list", path="", summary="")
PROTOCOL: Final = "mcp"
CALL_TOOL: Final = "tools/call"
LIST_RESOURCES: Final = "resources/list"
LIST_TEMPLATES: Final = "resources/templates/list"
READ_RESOURCE: Final = "resources/read"
_MAX_TOOLS = 5_000
_TOOL_STEPS = 20
_FIELD_STEPS = 3
_NAME_CHARS = 200
_SUMMARY_CHARS = 120
_TEXT: Final[dict[str, Json]] = {"type": "string"}
_CONTENT: Final[dict[str, Json]] = {"anyOf": [_TEXT, {"type": "string", "format": "binary"}]}
_WHOLE = "arguments"  # of a tool whose arguments are no fixed fields


class McpOAuth(msgspec.Struct, frozen=True, kw_only=True):
    """How a server's callers get a token: what it and its authorization server say of themselves."""

    resource: str
    issuer: str
    authorization_url: str
    token_url: str
    registration_url: str = ""
    reads_documents: bool = False
    scopes: list[str] = []


class _Secured(msgspec.Struct):
    oauth: McpOAuth | None = None


def oauth_of(content: bytes) -> McpOAuth | None:
    """Of a stored document, as JSON."""
    return msgspec.json.decode(content, type=_Secured).oauth


def bare_app(name: str, oauth: McpOAuth | None) -> App:
    """What is known of an app before its tools are listed."""
    schemes = {} if oauth is None else {OAUTH: _scheme(oauth)}
    security = tuple((each,) for each in schemes) or None
    return App(
        name=name,
        description="",
        server="",
        variables={},
        operations={LIST_TOOLS.name: msgspec.structs.replace(LIST_TOOLS, app=name)},
        schemes=schemes,
        security=security,
        digest="",
    )


def oauth_schemes(document: Mapping[str, Json]) -> dict[str, SecurityScheme]:
    """By name; none if the server asks for no token. Raises ApiDocumentError."""
    declared = document.get("oauth")
    if declared is None:
        return {}
    try:
        return {OAUTH: _scheme(msgspec.convert(declared, McpOAuth))}
    except msgspec.ValidationError as error:
        raise ApiDocumentError(f"oauth: {error}") from error


def _scheme(oauth: McpOAuth) -> SecurityScheme:
    flow = OAuthFlow(authorization_url=oauth.authorization_url, token_url=oauth.token_url)
    return SecurityScheme(
        name=OAUTH,
        kind="oauth2",
        prefix="Bearer",
        flows={"authorization_code": flow, "client_credentials": flow},
        scopes=tuple(oauth.scopes),
        resource=oauth.resource,
        issuer=oauth.issuer,
        registration_url=oauth.registration_url,
        reads_documents=oauth.reads_documents,
    )


def is_listing(content: bytes) -> bool:
    """Whether a stored document, as JSON, is what an MCP server listed."""
    try:
        return msgspec.json.decode(content, type=_Version).mcp is not None
    except msgspec.ValidationError:
        return False


class _Version(msgspec.Struct):
    mcp: str | None = None


class McpDocument:
    """Fulfils `ApiProtocol`."""

    def recognizes(self, document: Mapping[str, Json]) -> bool:
        return isinstance(document.get("mcp"), str) and "tools" in document

    def parse(
        self,
        name: str,
        document: Mapping[str, Json],
        source: str | None,  # noqa: ARG002 - the document holds the server's address
        server: str | None,
    ) -> App:
        url = server or document.get("url")
        if not isinstance(url, str) or not isinstance(document["tools"], list):
            raise ApiDocumentError("an MCP document has the server's address under `url`, and a list of `tools`")
        operations, left_out = _operations(name, document)
        schemes = oauth_schemes(document)
        if not operations and not schemes:
            reason = left_out[0].reason if left_out else "the MCP server offers neither tools nor resources"
            raise ApiDocumentError(reason)
        return App(
            name=name,
            description=_description(document),
            server=url,
            variables={},
            operations=operations,
            left_out=tuple(left_out),
            schemes=schemes,
            security=tuple((name,) for name in schemes) or None,
            digest=hashlib.sha256(to_json_text(document)).hexdigest(),
        )

    def encode(self, operation: Operation, arguments: Mapping[str, Json]) -> OutgoingRequest:
        """The JSON-RPC params of the call as the content."""
        given = {each.wire_name: arguments[each.name] for each in operation.parameters if each.name in arguments}
        params: dict[str, Json] = given
        if operation.method == CALL_TOOL:
            fields = given if operation.body_is_object else given.get(_WHOLE, {})
            params = {"name": operation.path, "arguments": fields}
        return OutgoingRequest("", {}, msgspec.json.encode(params))


MCP = McpDocument()


def _description(document: Mapping[str, Json]) -> str:
    """The server's instructions to its users, or else its title or name."""
    server = document.get("server")
    about = server if isinstance(server, Mapping) else {}
    return _string(document.get("instructions")) or _string(about.get("title")) or _string(about.get("name"))


def _operations(app: str, document: Mapping[str, Json]) -> tuple[dict[str, Operation], list[LeftOut]]:
    found: dict[str, Operation] = {}
    left_out: list[LeftOut] = []
    if len(document["tools"]) > _MAX_TOOLS:
        raise ApiDocumentError(f"the MCP server lists more than {_MAX_TOOLS:,} tools")
    names, budget, listed = UniqueNames(), DocumentBudget(), set[str]()
    for number, tool in enumerate(document["tools"]):
        where = f"tools/{number}"
        try:
            if not isinstance(tool, Mapping):
                raise ApiDocumentError(f"{where}: expected an object")
            wire_name = _tool_name(tool, where)
            where = f"{CALL_TOOL} {wire_name}"
            if wire_name in listed:
                raise ApiDocumentError(f"{where}: another tool of the server has the same name")
            operation = _tool(app, wire_name, tool, budget)
        except DocumentSizeError:
            raise
        except ApiDocumentError as error:
            left_out.append(LeftOut(where, str(error)))
            continue
        listed.add(wire_name)
        name = names.add(operation.name)
        found[name] = msgspec.structs.replace(operation, name=name)
    for resource in _resources(app, document):
        name = names.add(resource.name)
        found[name] = msgspec.structs.replace(resource, name=name)
    return found, left_out


def _tool_name(tool: Mapping[str, Json], where: str) -> str:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise ApiDocumentError(f"{where}: a tool needs a name")
    if len(name) > _NAME_CHARS:
        raise ApiDocumentError(f"{where}: the name of the tool has more than {_NAME_CHARS} characters")
    return name


def _tool(app: str, wire_name: str, tool: Mapping[str, Json], budget: DocumentBudget) -> Operation:
    where = f"{CALL_TOOL} {wire_name}"
    name = operation_name(wire_name, "", "")
    if not name:
        raise ApiDocumentError(f"{where}: its name has no letter or digit that Python could call it by")
    title, description = _string(tool.get("title")), _string(tool.get("description"))
    budget.spend(_TOOL_STEPS, where)
    budget.spend_text(title + description, where)
    parameters, is_object = _parameters(tool.get("inputSchema"), budget, where)
    hints = tool.get("annotations")
    annotations = hints if isinstance(hints, Mapping) else {}
    read_only = annotations.get("readOnlyHint") is True
    return Operation(
        app=app,
        name=name,
        method=CALL_TOOL,
        path=wire_name,
        summary=_first_line(description or title),
        description=description,
        parameters=parameters,
        body_is_object=is_object,
        declared_safe=read_only,
        idempotent=annotations.get("idempotentHint") is True,
        risk=None if read_only else _risk(annotations.get("destructiveHint")),
        returns=_returns(tool.get("outputSchema"), budget, where),
    )


def _risk(destructive: Json) -> Risk | None:
    """A server that says nothing about a tool does not make it wait for people."""
    if not isinstance(destructive, bool):
        return None
    return "high" if destructive else "low"


def _parameters(schema: Json, budget: DocumentBudget, where: str) -> tuple[tuple[Parameter, ...], bool]:
    """The arguments of a tool, and whether each is a field: otherwise they are one object."""
    if not isinstance(schema, Mapping):
        raise ApiDocumentError(f"{where}: a tool needs an `inputSchema`, a JSON Schema of an object")
    whole = _resolved(schema, budget, where)
    if whole.get("type", "object") != "object":
        raise ApiDocumentError(f"{where}: the `inputSchema` describes no object, so it has no arguments by name")
    fields = whole.get("properties", {})
    budget.spend(_FIELD_STEPS * len(fields), where)
    if whole.keys() & {"anyOf", "allOf", "not"} or (not fields and whole.get("additionalProperties")):
        return (_parameter(_WHOLE, _WHOLE, whole, required=bool(whole.get("required"))),), False
    needed, names = set(whole.get("required", ())), UniqueNames()
    found = [
        _parameter(names.add(argument_name(wire_name)), wire_name, field, required=wire_name in needed)
        for wire_name, field in fields.items()
    ]
    return tuple(sorted(found, key=lambda parameter: not parameter.required)), True


def _parameter(name: str, wire_name: str, schema: dict[str, Json], *, required: bool) -> Parameter:
    parameter = Parameter(
        name=name,
        wire_name=wire_name,
        place="body",
        required=required,
        schema=schema,
        description=schema.get("description", ""),
    )
    return preset(parameter)


def _returns(schema: Json, budget: DocumentBudget, where: str) -> dict[str, Json]:
    """{} where it cannot be read: it only tells the agent what to expect."""
    try:
        return {} if schema is None else _resolved(schema, budget, where)
    except DocumentSizeError:
        raise
    except ApiDocumentError:
        return {}


def _resolved(schema: Json, budget: DocumentBudget, where: str) -> dict[str, Json]:
    """References in it are to its own parts."""
    references = References(schema if isinstance(schema, Mapping) else {})
    references.budget = budget
    return references.schema(schema, where)


def _resources(app: str, document: Mapping[str, Json]) -> Iterator[Operation]:
    if document.get("resources") is not True:
        return
    of_server = partial(Operation, app=app, path="", declared_safe=True)
    yield of_server(
        name="list_resources",
        method=LIST_RESOURCES,
        summary="list the resources of the server",
        returns=_list_of("uri", "name", "description", "mimeType"),
    )
    if document.get("templates") is True:
        yield of_server(
            name="list_resource_templates",
            method=LIST_TEMPLATES,
            summary="list the patterns of the addresses of resources",
            returns=_list_of("uriTemplate", "name", "description", "mimeType"),
        )
    yield of_server(
        name="read_resource",
        method=READ_RESOURCE,
        summary="read a resource of the server",
        parameters=(_parameter("uri", "uri", _TEXT, required=True),),
        returns=_CONTENT,
    )


def _list_of(*fields: str) -> dict[str, Json]:
    return {"type": "array", "items": {"type": "object", "properties": dict.fromkeys(fields, _TEXT)}}


def _first_line(text: str) -> str:
    """Of a long one the first sentence: some servers describe a tool at length, without a title."""
    line = " ".join(text.splitlines()[0].split()) if text else ""
    sentence, end, _ = line.partition(". ")
    return line if len(line) <= _SUMMARY_CHARS else (sentence + end).strip()


def _string(value: Json) -> str:
    return value.strip() if isinstance(value, str) else ""
