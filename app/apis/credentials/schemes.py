"""What an API asks its callers for: the security schemes of an OpenAPI document. Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final, Literal

import msgspec

from app.apis.references import References
from app.apis.request_headers import is_header_name, is_key_header
from app.base.errors import ApiDocumentError
from app.base.values import Json

SchemeKind = Literal["api_key", "http", "basic", "oauth2", "openid", "mutual_tls"]
KeyPlace = Literal["header", "query", "cookie"]
Grant = Literal["authorization_code", "client_credentials", "password"]
Security = tuple[tuple[str, ...], ...]
"""Alternatives, each a set of schemes that are needed together. An empty one needs none."""

_MAX_SCHEMES: Final = 50
_MAX_ALTERNATIVES: Final = 50
_MAX_SCOPES: Final = 200
_GRANTS: Final[Mapping[str, Grant]] = {
    "authorizationCode": "authorization_code",
    "clientCredentials": "client_credentials",
    "password": "password",
}


class OAuthFlow(msgspec.Struct, frozen=True, kw_only=True):
    """One way to a token. Addresses may be relative to the API's server."""

    authorization_url: str = ""
    token_url: str = ""
    refresh_url: str = ""
    scopes: tuple[str, ...] = ()  # that there are


class SecurityScheme(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of credentials, under the name that the document gives it."""

    name: str
    kind: SchemeKind
    place: KeyPlace = "header"
    parameter: str = "Authorization"  # name of the header, query parameter or cookie
    prefix: str = ""  # of the value, such as Bearer
    flows: dict[Grant, OAuthFlow] = {}
    discovery_url: str = ""  # of OpenID Connect
    scopes: tuple[str, ...] = ()  # that operations require
    description: str = ""
    resource: str = ""  # that tokens are for (RFC 8707)
    issuer: str = ""  # of the authorization server
    registration_url: str = ""  # where a client registers itself (RFC 7591)
    reads_documents: bool = False  # a client's id may be the address of a document about it


def security_schemes(document: Mapping[str, Json], references: References) -> dict[str, SecurityScheme]:
    """By name. A scheme that cannot be read, or of an unknown type, is left out: its API may work without."""
    components = document.get("components")
    declared = components.get("securitySchemes") if isinstance(components, Mapping) else None
    scopes = _required_scopes(document)
    found: dict[str, SecurityScheme] = {}
    for name, node in declared.items() if isinstance(declared, Mapping) else ():
        if len(found) == _MAX_SCHEMES:
            break
        try:
            scheme = _scheme(name, references.follow(node, f"securitySchemes {name}"), scopes.get(name, ()))
        except ApiDocumentError:
            continue
        if scheme is not None:
            found[name] = scheme
    return found


def security(node: Mapping[str, Json], references: References, where: str) -> Security | None:
    """The `security` of a document or an operation; None if it has none."""
    declared = node.get("security")
    if not isinstance(declared, list):
        return None
    references.budget.spend(len(declared), where)
    return tuple(tuple(map(str, each)) for each in declared[:_MAX_ALTERNATIVES] if isinstance(each, Mapping))


def chosen(wanted: Security | None, schemes: Iterable[str], available: Collection[str]) -> tuple[str, ...]:
    """The schemes whose credentials a call gets: the first alternative that is complete, or none.

    Documents that declare schemes and never say where they apply are common: any of them will do then.

    >>> chosen((("key",), ("user", "app")), ["key", "user", "app"], {"user", "app"})
    ('user', 'app')
    >>> chosen(None, ["key", "user"], {"user"}), chosen((), ["key"], {"key"})
    (('user',), ())
    """
    alternatives = tuple((name,) for name in schemes) if wanted is None else wanted
    return next((each for each in alternatives if each and set(each) <= set(available)), ())


def sent_schemes(
    wanted: Security | None, schemes: Mapping[str, SecurityScheme], available: AbstractSet[str]
) -> tuple[str, ...]:
    """As `chosen`, with a bearer token in place of OAuth tokens where there is no other way."""
    instead = bearer_for_oauth(schemes, available)
    names = chosen(wanted, schemes, available) or chosen(wanted, schemes, available | instead.keys())
    return tuple(dict.fromkeys(instead.get(name, name) for name in names))


def bearer_for_oauth(schemes: Mapping[str, SecurityScheme], available: Collection[str]) -> dict[str, str]:
    """For each scheme of OAuth without credentials, the one whose token is sent in its place.

    Many documents ask for OAuth at each operation, and accept tokens that people make on a page as well.
    """
    tokens = [each.name for each in schemes.values() if (each.kind, each.prefix) == ("http", "Bearer")]
    stored = next((each for each in tokens if each in available), None)
    missing = [each.name for each in schemes.values() if each.kind in ("oauth2", "openid")]
    return {} if stored is None else {name: stored for name in missing if name not in available}


def _required_scopes(document: Mapping[str, Json]) -> dict[str, dict[str, None]]:
    """The OAuth scopes that the document and its operations require, by scheme, in the document's order."""
    paths = document.get("paths")
    items = [each for each in paths.values() if isinstance(each, Mapping)] if isinstance(paths, Mapping) else []
    nodes = [document, *(node for item in items for node in item.values() if isinstance(node, Mapping))]
    found: dict[str, dict[str, None]] = {}
    for declared in (node.get("security") for node in nodes):
        for alternative in declared[:_MAX_ALTERNATIVES] if isinstance(declared, list) else ():
            for name, scopes in alternative.items() if isinstance(alternative, Mapping) else ():
                if isinstance(scopes, list):
                    found.setdefault(name, {}).update({each: None for each in scopes if isinstance(each, str)})
    return found


def _scheme(name: str, node: Mapping[str, Json], scopes: Iterable[str]) -> SecurityScheme | None:
    make = _KINDS.get(str(node.get("type")))
    fields = None if make is None else make(node)
    if fields is None:
        return None
    return SecurityScheme(
        name=name, scopes=tuple(scopes)[:_MAX_SCOPES], description=_text(node, "description"), **fields
    )


def _api_key(node: Mapping[str, Json]) -> dict[str, Any] | None:
    place, parameter = node.get("in"), _text(node, "name")
    if place not in ("header", "query", "cookie") or not parameter:
        return None
    if place != "query" and not is_key_header(parameter):
        return None
    return {"kind": "api_key", "place": place, "parameter": parameter}


def _http(node: Mapping[str, Json]) -> dict[str, Any] | None:
    scheme = _text(node, "scheme")
    if not is_header_name(scheme):
        return None
    if scheme.lower() == "basic":
        return {"kind": "basic", "prefix": "Basic"}
    return {"kind": "http", "prefix": scheme.capitalize() if scheme.islower() else scheme}


def _oauth2(node: Mapping[str, Json]) -> dict[str, Any]:
    declared = node.get("flows")
    flows = {grant: _flow(each) for grant, each in _flows(declared if isinstance(declared, Mapping) else {})}
    return {"kind": "oauth2", "prefix": "Bearer", "flows": flows}


def _flows(declared: Mapping[str, Json]) -> Iterator[tuple[Grant, Mapping[str, Json]]]:
    for name, node in declared.items():
        if name in _GRANTS and isinstance(node, Mapping):
            yield _GRANTS[name], node


def _flow(node: Mapping[str, Json]) -> OAuthFlow:
    scopes = node.get("scopes")
    return OAuthFlow(
        authorization_url=_text(node, "authorizationUrl"),
        token_url=_text(node, "tokenUrl"),
        refresh_url=_text(node, "refreshUrl"),
        scopes=tuple(map(str, scopes)) if isinstance(scopes, Mapping) else (),
    )


def _openid(node: Mapping[str, Json]) -> dict[str, Any]:
    return {"kind": "openid", "prefix": "Bearer", "discovery_url": _text(node, "openIdConnectUrl")}


def _mutual_tls(_: Mapping[str, Json]) -> dict[str, Any]:
    return {"kind": "mutual_tls"}


def _text(node: Mapping[str, Json], name: str) -> str:
    value = node.get(name)
    return value.strip()[:2_000] if isinstance(value, str) else ""


_KINDS: Final = {
    "apiKey": _api_key,
    "http": _http,
    "oauth2": _oauth2,
    "openIdConnect": _openid,
    "mutualTLS": _mutual_tls,
}
