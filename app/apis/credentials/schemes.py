"""What an API asks its callers for: the security schemes of an OpenAPI document, as parts of a request. Pure.

Headers of connection, route and credentials are ours: no document can make arguments of them.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, Literal

import httpx
import msgspec

from app.apis.documents.references import References
from app.base.errors import ApiDocumentError
from app.base.values import Json

_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}")  # a token (RFC 9110, section 5.6.2)
_IGNORED: Final = {"accept", "content-type", "authorization"}  # as OpenAPI says
_FRAMING: Final = {
    "host", "connection", "content-length", "content-encoding", "transfer-encoding", "accept-encoding", "te",
    "trailer", "upgrade", "expect", "keep-alive", "http2-settings", "cookie", "set-cookie", "cookie2",
    "set-cookie2",
}  # fmt: skip
_ROUTING: Final = {
    "forwarded", "via", "x-real-ip", "client-ip", "true-client-ip", "x-client-ip", "x-cluster-client-ip",
    "cf-connecting-ip", "x-original-url", "x-original-host", "x-rewrite-url", "x-http-method",
    "x-http-method-override", "x-method-override", "x-host",
}  # fmt: skip
_PREFIXES: Final = ("proxy-", "x-forwarded", "sec-")
CERTIFICATE: Final = "certificate"
"""The extension of a request that names the file of its certificate."""
UNFIT_FOR_HEADERS: Final = "have a blank at an end, or a character that no header can carry: store them again"
_IN_HEADER: Final = re.compile(r"([!-~]([ -~]*[!-~])?)?")  # of a value, what every server takes
SchemeKind = Literal["api_key", "http", "basic", "oauth2", "openid", "mutual_tls"]
OAUTH_KINDS: Final = ("oauth2", "openid")
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


def is_header_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def is_key_header(name: str) -> bool:
    """Whether a header, or a cookie, of this name may carry a key.

    >>> [is_key_header(name) for name in ("Authorization", "X-API-Key", "Content-Length", "a b")]
    [True, True, False, False]
    """
    return is_header_name(name) and (name.lower() == "authorization" or not is_reserved(name))


def is_reserved(name: str) -> bool:
    """Whether the agent may not set it.

    >>> [is_reserved(name) for name in ("Host", "X-Forwarded-For", "x_forwarded_for", "X-Trace")]
    [True, True, True, False]
    """
    plain = name.lower().replace("_", "-")  # many servers take the one for the other
    return plain in _IGNORED or plain in _FRAMING or plain in _ROUTING or plain.startswith(_PREFIXES)


class Authentication(msgspec.Struct, frozen=True, kw_only=True):
    """Added to a request by the gateway. `hidden` are texts that must not be seen, besides the values added."""

    headers: dict[str, str] = {}
    query: dict[str, str] = {}
    cookies: dict[str, str] = {}
    certificate: str | None = None  # name of a file of the operator's, for mutual TLS
    hidden: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.headers or self.query or self.cookies or self.certificate)

    @property
    def fits_headers(self) -> bool:
        """Whether its headers and cookies can be sent.

        >>> [Authentication(headers={"X-Key": text}).fits_headers for text in ("a b", "a ", "ä")]
        [True, False, False]
        """
        return all(map(_IN_HEADER.fullmatch, [*self.headers.values(), *self.cookies.values()]))

    def url(self, url: str) -> str:
        """The URL with the query parameters. Those of the same names are replaced.

        >>> Authentication(query={"key": "a b"}).url("http://a.test/x?page=1&key=2")
        'http://a.test/x?page=1&key=a+b'
        """
        return str(httpx.URL(url).copy_merge_params(self.query)) if self.query else url

    def merged(self, headers: Mapping[str, str]) -> dict[str, str]:
        """The headers of a request with these. Those of the same names are replaced, cookies are added.

        >>> Authentication(headers={"X-Key": "a"}, cookies={"sid": "b"}).merged({"x-key": "c", "Cookie": "t=d"})
        {'X-Key': 'a', 'Cookie': 't=d; sid=b'}
        """
        added = {name.lower() for name in self.headers}
        kept = {name: text for name, text in headers.items() if name.lower() not in added}
        if self.cookies:
            others = [text for name, text in kept.items() if name.lower() == "cookie"]
            kept = {name: text for name, text in kept.items() if name.lower() != "cookie"}
            own = [f"{name}={text}" for name, text in self.cookies.items()]
            return kept | self.headers | {"Cookie": "; ".join([*others, *own])}
        return kept | self.headers

    def secret_parts(self) -> list[str]:
        """The texts to remove from answers: each value, and the part after its scheme; longest first.

        >>> Authentication(headers={"Authorization": "Bearer abc"}).secret_parts()
        ['Bearer abc', 'abc']
        """
        values = [*self.headers.values(), *self.query.values(), *self.cookies.values(), *self.hidden]
        parts = {part for value in values for part in (value, value.rpartition(" ")[2]) if part}
        return sorted(parts, key=len, reverse=True)


def combined(parts: Sequence[Authentication]) -> Authentication:
    """All of them in one request. Of the same header, the first one counts."""
    whole = Authentication()
    for each in reversed(parts):
        whole = Authentication(
            headers=whole.headers | each.headers,
            query=whole.query | each.query,
            cookies=whole.cookies | each.cookies,
            certificate=each.certificate or whole.certificate,
            hidden=(*whole.hidden, *each.hidden),
        )
    return whole


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


def sent_schemes(
    wanted: Security | None, schemes: Mapping[str, SecurityScheme], available: AbstractSet[str]
) -> tuple[str, ...]:
    """The schemes whose credentials a call gets: the first alternative that is complete, or none; with a bearer
    token in place of OAuth tokens where there is no other way.
    """
    instead = bearer_for_oauth(schemes, available)
    names = _chosen(wanted, schemes, available) or _chosen(wanted, schemes, available | instead.keys())
    return tuple(dict.fromkeys(instead.get(name, name) for name in names))


def _chosen(wanted: Security | None, schemes: Iterable[str], available: Collection[str]) -> tuple[str, ...]:
    """Documents that declare schemes and never say where they apply are common: any of them will do then.

    >>> _chosen((("key",), ("user", "app")), ["key", "user", "app"], {"user", "app"})
    ('user', 'app')
    >>> _chosen(None, ["key", "user"], {"user"}), _chosen((), ["key"], {"key"})
    (('user',), ())
    """
    alternatives = tuple((name,) for name in schemes) if wanted is None else wanted
    return next((each for each in alternatives if each and set(each) <= set(available)), ())


def bearer_for_oauth(schemes: Mapping[str, SecurityScheme], available: Collection[str]) -> dict[str, str]:
    """For each scheme of OAuth without credentials, the one whose token is sent in its place.

    Many documents ask for OAuth at each operation, and accept tokens that people make on a page as well.
    """
    tokens = [each.name for each in schemes.values() if (each.kind, each.prefix) == ("http", "Bearer")]
    stored = next((each for each in tokens if each in available), None)
    missing = [each.name for each in schemes.values() if each.kind in OAUTH_KINDS]
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
    fields = _fields(node)
    if fields is None:
        return None
    return SecurityScheme(
        name=name, scopes=tuple(scopes)[:_MAX_SCOPES], description=_text(node, "description"), **fields
    )


def _fields(node: Mapping[str, Json]) -> dict[str, Any] | None:
    match node.get("type"):
        case "apiKey":
            return _api_key(node)
        case "http":
            return _http(node)
        case "oauth2":
            return {"kind": "oauth2", "prefix": "Bearer", "flows": _flows(node.get("flows"))}
        case "openIdConnect":
            return {"kind": "openid", "prefix": "Bearer", "discovery_url": _text(node, "openIdConnectUrl")}
        case "mutualTLS":
            return {"kind": "mutual_tls"}
    return None


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


def _flows(declared: Json) -> dict[Grant, OAuthFlow]:
    named = declared.items() if isinstance(declared, Mapping) else ()
    return {_GRANTS[name]: _flow(node) for name, node in named if name in _GRANTS and isinstance(node, Mapping)}


def _flow(node: Mapping[str, Json]) -> OAuthFlow:
    scopes = node.get("scopes")
    return OAuthFlow(
        authorization_url=_text(node, "authorizationUrl"),
        token_url=_text(node, "tokenUrl"),
        refresh_url=_text(node, "refreshUrl"),
        scopes=tuple(map(str, scopes)) if isinstance(scopes, Mapping) else (),
    )


def _text(node: Mapping[str, Json], name: str) -> str:
    value = node.get(name)
    return value.strip()[:2_000] if isinstance(value, str) else ""
