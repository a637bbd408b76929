"""The request bodies that add an API, or change one."""

import msgspec
from msgspec import UNSET, UnsetType

from app.api.api_fields import (
    ApiNaming,
    Bindings,
    Credentials,
    Document,
    McpServer,
    Practice,
    Server,
    Token,
    TokenOrigins,
    Url,
)
from app.web.fields import AppName


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
