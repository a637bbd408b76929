"""The request bodies that add an API, or change one, and their fields."""

from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from app.apis.credentials.credential import Credential
from app.apis.naming import Naming
from app.base.values import Json
from app.db.tables import PracticeSource
from app.web.fields import AppName, Text

Url = Annotated[Text, msgspec.Meta(max_length=2_000, examples=["http://127.0.0.1:8100/sites/0/mail/openapi.json"])]
Document = Annotated[
    dict[str, Json] | str,
    msgspec.Meta(
        description="an OpenAPI 3.0, 3.1 or 3.2 or Swagger 2.0 document: as an object, or as JSON or YAML text. "
        "`x-safe: true` at an operation marks it as read-only, `x-safe: false` as writing, where the method does "
        "not show it"
    ),
]
McpServer = Annotated[
    str,
    msgspec.Meta(
        max_length=2_000,
        pattern=r"^(https?://[^\s{}\x00]+|stdio:[A-Za-z0-9_.-]{1,64})(?!\n)$",
        description="an MCP server, of which the tools become operations: its address (streamable HTTP), or "
        "`stdio:NAME` for a command of `SAGE_MCP_COMMANDS`",
        examples=["https://mcp.example.com/mcp"],
    ),
]
Server = Annotated[Text, msgspec.Meta(max_length=2_000, description="overrides the server named in the document")]
Bindings = Annotated[
    dict[str, str | dict[str, str]],
    msgspec.Meta(
        description='parameters that the server fills in: `{"password": "secret:NAME"}` in every operation that '
        'has it, `{"log_in": {"password": "secret:NAME"}}` in one. The agent does not see them',
        examples=[{"log_in": {"password": "secret:mail"}}],
    ),
]
Credentials = Annotated[
    dict[str, Credential],
    msgspec.Meta(max_length=20, description="by the name of the security scheme; those of other schemes stay"),
]
TokenOrigins = Annotated[
    list[
        Annotated[
            str, msgspec.Meta(pattern=r"^https?://([^/?#@:\s\x00]{1,250}|\[[0-9a-f:.]+\])(:\d{1,5})?/?(?!\n)$")
        ]
    ],
    msgspec.Meta(
        max_length=100,
        description="origins, such as `https://files.example.com`, that get the token and bound secrets, too, if "
        "the document names them as the server of an operation",
    ),
]
Token = Annotated[
    str,
    msgspec.Meta(
        max_length=10_000,
        pattern=r"^[!-~]+(?!\n)$",
        description="sent with every call, and never shown: printable ASCII without blanks",
    ),
]


ApiNaming = Annotated[
    Naming,
    msgspec.Meta(
        description="of the operations: `readable` has the verb first and no additions of frameworks, such as "
        "`create_issue` for `issues/create`; `operation_id` is as the document writes them. Without it a replaced "
        "API keeps its own; a new one has `readable`, or `operation_id` if the model that serves was trained so"
    ),
]
Practice = Annotated[
    PracticeSource,
    msgspec.Meta(
        description="what practice on the API is made of: its `document` alone, the default, or also what the "
        "real API answers. With `read`, the server calls operations that only read, with the stored credentials, "
        "100 times at most, and keeps which fields there are and of which form, but nothing personal and no secret"
    ),
]


class ApiRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Send `url`, `document` or `mcp`. The agent calls the operations as `apis.<name>.<operation>(...)`.

    A new document is tried: the server asks the model a few questions about the API, which only reads. False: not
    this API, until it is wanted again.
    """

    name: AppName
    project: str | None = None
    url: Url | None = None
    document: Document | UnsetType = UNSET
    mcp: McpServer | None = None
    server: Server | None = None
    bearer_token: Token | UnsetType | None = UNSET
    credentials: Credentials = {}
    bind: Bindings | UnsetType | None = UNSET
    token_origins: TokenOrigins | UnsetType = UNSET
    naming: ApiNaming | None = None
    trial: bool | UnsetType = UNSET
    practice: Practice | UnsetType = UNSET


class ApiPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields that are left out stay; null removes."""

    bearer_token: Token | UnsetType | None = UNSET
    bind: Bindings | UnsetType | None = UNSET
    token_origins: TokenOrigins | UnsetType = UNSET
    practice: Practice | UnsetType = UNSET
