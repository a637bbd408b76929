"""The credentials of an API in responses: what is asked for, what is missing, what failed, and never a value."""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Literal

import msgspec

from app.apis.credentials.credential import needed_fields
from app.apis.credentials.schemes import OAUTH_KINDS, Grant, SchemeKind, SecurityScheme, bearer_for_oauth
from app.apis.credentials.store import STATIC_TOKEN
from app.base.fields import columns
from app.db import tables

CredentialState = Literal["missing", "not_authorized", "insufficient_scope", "ready", "failing"]


class CredentialWay(msgspec.Struct, frozen=True):
    """Fields that are enough together. With `consent`, a person then has to open an address and consent."""

    fields: list[str]
    optional: list[str] = []
    consent: bool = False


class CredentialView(msgspec.Struct, frozen=True, kw_only=True):
    """What the document asks for under the name `scheme`, and what is stored for it.

    `missing`: nothing is, and `send` says which fields of `credentials.<scheme>` to send. `not_authorized`: a
    person has to consent at the address of `GET /v1/apis/{name}/authorize`; `connected_at` is when one last did.
    `insufficient_scope`: the API refused calls for want of `wanted_scopes`, for which that address asks, too.
    `failing`: the API refused it when it was last used, or no new token could be had; `failure` is the reason.
    Calls go out without what is missing.
    """

    scheme: str
    kind: str
    principal: str = ""  #: "": for all tasks whose principals have none of their own
    state: CredentialState
    description: str = ""
    send: str | None = None
    ways: list[CredentialWay] = []  #: of giving it, the usual one first
    wanted_scopes: list[str] = []
    expires_at: datetime | None = None  #: of the access token; one that can be renewed is renewed before
    connected_at: datetime | None = None
    used_at: datetime | None = None
    failed_at: datetime | None = None
    failure: str | None = None

    @classmethod
    def stored(cls, row: tables.ApiCredential, scheme: SecurityScheme | None) -> "CredentialView":
        failing = row.failed_at is not None and (row.used_at is None or row.failed_at >= row.used_at)
        state: CredentialState = "insufficient_scope" if row.wanted_scopes else "failing" if failing else "ready"
        return CredentialView(
            **columns(row, CredentialView, "state", "description", "send", "ways", "wanted_scopes"),
            state=state if row.authorized else "not_authorized",
            description=scheme.description if scheme else "",
            ways=[] if scheme is None else _ways(scheme),
            wanted_scopes=row.wanted_scopes or [],
        )

    @classmethod
    def missing(cls, scheme: SecurityScheme) -> "CredentialView":
        return CredentialView(
            scheme=scheme.name,
            kind=scheme.kind,
            state="missing",
            description=scheme.description,
            send=_SEND[scheme.kind](scheme),
            ways=_ways(scheme),
        )


def shared_credentials(
    schemes: Mapping[str, SecurityScheme], rows: Iterable[tables.ApiCredential], *, has_token: bool
) -> list[CredentialView]:
    """Those that are for all tasks, and what is missing. A token takes the place of any other one."""
    stored = {row.scheme: row for row in rows if row.principal == ""}
    views = [CredentialView.stored(row, schemes.get(name)) for name, row in stored.items()]
    if has_token and STATIC_TOKEN not in stored:
        views.append(CredentialView(scheme=STATIC_TOKEN, kind="http", state="ready"))
    instead = bearer_for_oauth(schemes, stored)
    for name, scheme in schemes.items():
        if name not in stored and name not in instead and not (has_token and scheme.kind in _BY_TOKEN):
            views.append(CredentialView.missing(scheme))
    return sorted(views, key=lambda view: view.scheme)


def _ways(scheme: SecurityScheme) -> list[CredentialWay]:
    if scheme.kind not in OAUTH_KINDS:
        return [CredentialWay(list(needed_fields(scheme.kind)))]
    alone = [CredentialWay([], consent=True)] if scheme.registration_url or scheme.reads_documents else []
    return [*alone, *(_GRANT_WAYS[grant] for grant in _grants(scheme)), CredentialWay(["value"])]


def _oauth(scheme: SecurityScheme) -> str:
    if scheme.registration_url or scheme.reads_documents:
        return "nothing, and open the address of `GET /v1/apis/{name}/authorize`; or `client_id` of a client"
    return "; or ".join([*(_GRANTS[grant] for grant in _grants(scheme)), "a token as `value`"])


def _grants(scheme: SecurityScheme) -> Iterable[Grant]:
    """Those that get tokens here: none for the flows `implicit` and `deviceAuthorization`."""
    return scheme.flows or (_DEFAULT_GRANTS if scheme.kind == "openid" else ())


_BY_TOKEN = ("http", "oauth2", "openid")
_GRANTS = {
    "authorization_code": "`client_id`, and `client_secret` if the client has one: then a person consents",
    "client_credentials": "`client_id` and `client_secret`",
    "password": "`username` and `password`",
}
_DEFAULT_GRANTS: tuple[Grant, ...] = ("authorization_code",)
_GRANT_WAYS: Mapping[Grant, CredentialWay] = {
    "authorization_code": CredentialWay(["client_id"], ["client_secret"], consent=True),
    "client_credentials": CredentialWay(["client_id", "client_secret"]),
    "password": CredentialWay(["username", "password"]),
}
_SEND: Mapping[SchemeKind, Callable[[SecurityScheme], str]] = {
    "api_key": lambda scheme: f"`value`: the key for the {scheme.place} {scheme.parameter}",
    "http": lambda scheme: f"`value`: the token after {scheme.prefix}",
    "basic": lambda _: "`username` and `password`",
    "oauth2": _oauth,
    "openid": _oauth,
    "mutual_tls": lambda _: "`certificate`: the name of a file in SAGE_CLIENT_CERTIFICATES",
}
