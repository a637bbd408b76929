"""What is stored for a security scheme, and what a call gets of it.

The gateway adds it: the agent's code never sees it, and it is removed from records.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal, Protocol, Self

import msgspec

from app.apis.catalog import App, Operation
from app.apis.credentials.schemes import (
    OAUTH_KINDS,
    UNFIT_FOR_HEADERS,
    Authentication,
    Grant,
    KeyPlace,
    SecurityScheme,
    combined,
    is_key_header,
    sent_schemes,
)
from app.base.errors import InvalidError
from app.base.secrets import MASK, is_ordinary, is_telling
from app.base.values import Call, Json

_PLAIN: Final = re.compile(r"[A-Za-z]{1,32}([_ -][A-Za-z]{1,32}){0,4}")  # a name that is itself no secret
MAX_SCOPES: Final = 300
CredentialText = Annotated[str, msgspec.Meta(max_length=10_000, pattern=r"^[^\x00\r\n]*(?!\n)$")]
_Url = Annotated[str, msgspec.Meta(max_length=2_000, pattern=r"^https?://[^\s\x00]+(?!\n)$")]
_Name = Annotated[str, msgspec.Meta(max_length=200, pattern=r"^[^\s\x00;=,]+(?!\n)$")]
_FileName = Annotated[str, msgspec.Meta(max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*(?!\n)$")]
_Scope = Annotated[str, msgspec.Meta(max_length=200, pattern=r"^[^\s\x00]+(?!\n)$")]
_Scopes = Annotated[list[_Scope], msgspec.Meta(max_length=MAX_SCOPES)]
ClientAuth = Literal["basic", "post"]
SECRETS: Final = ("value", "password", "client_secret", "access_token", "refresh_token")


class Credentials(Protocol):
    async def of(self, app: App, operation: Operation) -> Authentication:
        """What to send with a call of an operation; falsy if there is nothing to send.

        Raises HostError if there should be, but it cannot be had.
        """
        ...

    async def refused(
        self, app: App, operation: Operation, reason: str, *, renew: bool, scopes: Sequence[str] = ()
    ) -> bool:
        """Record that the API did not accept what `of` gave, or that its token lacks `scopes`.

        With `renew` or `scopes`, ask for other credentials if possible.

        Returns whether there are others now. Raises HostError if it failed to renew them.
        """
        ...


class SecretStore(Protocol):
    async def value(self, name: str) -> str:
        """The value of a stored secret. Raises HostError that names it if there is none."""
        ...


class Unrenewed:
    """For credentials that stay what they are."""

    async def refused(self, *_: object, **__: object) -> bool:
        """There are no others."""
        return False


class FixedCredentials(Unrenewed):
    """Fulfils `Credentials` with the same for every operation."""

    def __init__(self, sent: Authentication) -> None:
        self._sent = sent

    async def of(self, app: App, operation: Operation) -> Authentication:  # noqa: ARG002
        return self._sent


def bearer(token: str) -> Authentication:
    """A token in the header `Authorization` (RFC 6750)."""
    return Authentication(headers={"Authorization": f"Bearer {token}"})


def mask(value: Json) -> Json:
    """The same value with the values of sensitive names (password, token, ...) replaced by ***.

    >>> mask({"user": "iris", "password": "1234", "auth": {"access_token": "ab"}})
    {'user': 'iris', 'password': '***', 'auth': {'access_token': '***'}}
    """
    if isinstance(value, list):
        return [mask(each) for each in value]
    if isinstance(value, dict):
        return {name: "***" if is_telling(name) and each else mask(each) for name, each in value.items()}
    return value


def mask_call(call: Call) -> Call:
    """The same call without passwords and tokens. All values that an API with a sensitive name returns are.

    >>> call = Call(seq=0, turn=0, api="supervisor.show_passwords", arguments={}, result={"mail": "1234"})
    >>> mask_call(call).result
    {'mail': '***'}
    """
    result = _mask_leaves(call.result) if is_telling(call.api) else mask(call.result)
    response = call.response and msgspec.structs.replace(call.response, body=mask(call.response.body))
    return msgspec.structs.replace(call, arguments=mask(call.arguments), result=result, response=response)


def _mask_leaves(value: Json) -> Json:
    """The same value with *** for all but what ordinary names hold, so that code that picks from it still can."""
    if isinstance(value, list):
        return [_mask_leaves(each) for each in value]
    if isinstance(value, dict) and all(map(_PLAIN.fullmatch, value)):
        return {name: mask(each) if is_ordinary(name) else _mask_leaves(each) for name, each in value.items()}
    return value if value is None or isinstance(value, bool) else MASK


def _about(text: str) -> msgspec.Meta:
    return msgspec.Meta(description=text)


class Credential(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Which fields are needed depends on the scheme: `credentials` of the API says which.

    `place`, `name` and `prefix` are for APIs whose documents do not declare what they need, or need it themselves.
    """

    value: Annotated[CredentialText, _about("an API key, or a token")] | None = None
    username: CredentialText | None = None
    password: CredentialText | None = None
    certificate: (
        Annotated[_FileName, _about("a file in SAGE_CLIENT_CERTIFICATES: chain and key in PEM")] | None
    ) = None
    grant: Annotated[Grant, _about("of OAuth; default: the first of the document that the fields fit")] | None = (
        None
    )
    client_id: CredentialText | None = None
    client_secret: CredentialText | None = None
    client_auth: (
        Annotated[ClientAuth, _about("how it sends its secret: in a header or the form; default: either")] | None
    ) = None
    scopes: Annotated[_Scopes, _about("of OAuth; default: those that the operations require")] | None = None
    client_scopes: (
        Annotated[_Scopes, _about("that a client which registered itself may ask for; default: any")] | None
    ) = None
    authorization_url: Annotated[_Url, _about("overrides the document's")] | None = None
    token_url: Annotated[_Url, _about("overrides the document's")] | None = None
    resource: Annotated[_Url, _about("that the tokens are for (RFC 8707); default: the document's")] | None = None
    issuer: Annotated[_Url, _about("of the authorization server; default: the document's")] | None = None
    access_token: CredentialText | None = None
    refresh_token: CredentialText | None = None
    place: KeyPlace | None = None
    name: Annotated[_Name, _about("of the header, query parameter or cookie")] | None = None
    prefix: Annotated[_Name, _about("before the value, such as Token; default: the scheme's")] | None = None

    def to_json(self) -> str:
        """As it is stored, before it is encrypted."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Self:
        return msgspec.json.decode(text, type=cls)


def checked(name: str, credential: Credential, scheme: SecurityScheme | None) -> tuple[Credential, str]:
    """The credential, and its kind: complete, so that it holds if the document changes.

    `scheme` is the one that the document declares under this name. Raises InvalidError that names the field.
    """
    if scheme is None or credential.place is not None:
        scheme = _own_scheme(name, credential)
        credential = msgspec.structs.replace(credential, place=scheme.place, name=scheme.parameter)
    if (credential.value or credential.access_token) and not authentication(scheme, credential).fits_headers:
        raise InvalidError(f"credentials.{name}: they {UNFIT_FOR_HEADERS}")
    if scheme.kind not in OAUTH_KINDS:
        missing = [f"`{field}`" for field in needed_fields(scheme.kind) if getattr(credential, field) is None]
        if missing:
            raise InvalidError(f"credentials.{name}: {scheme.kind} needs {' and '.join(missing)}")
    return credential, scheme.kind


def needed_fields(kind: str) -> tuple[str, ...]:
    """Of a credential, for each kind but those of OAuth, which depend on the grant."""
    return {"basic": ("username", "password"), "mutual_tls": ("certificate",)}.get(kind, ("value",))


def authentication(scheme: SecurityScheme | None, credential: Credential) -> Authentication:
    """What a call gets. Of OAuth it is the access token, which there must be."""
    if credential.certificate is not None and credential.value is None:
        return Authentication(certificate=credential.certificate)
    if scheme is None:
        scheme = SecurityScheme(name="", kind="api_key")
    place = credential.place or scheme.place
    parameter = credential.name or scheme.parameter
    prefix = scheme.prefix if credential.prefix is None else credential.prefix
    if credential.username is not None and credential.access_token is None:
        pair = base64.b64encode(f"{credential.username}:{credential.password or ''}".encode()).decode()
        hidden = (credential.password,) if credential.password else ()
        return Authentication(headers={parameter: f"{prefix or 'Basic'} {pair}"}, hidden=hidden)
    value = credential.access_token or credential.value or ""
    text = f"{prefix} {value}" if prefix else value
    if place == "query":
        return Authentication(query={parameter: text})
    if place == "cookie":
        return Authentication(cookies={parameter: text})
    return Authentication(headers={parameter: text})


def chosen_schemes(app: App, operation: Operation, held: Mapping[str, Credential]) -> list[str]:
    """Those of `held` whose credentials a call gets, by the document, and all that it does not declare."""
    wanted = app.security if operation.security is None else operation.security
    declared = sent_schemes(wanted, app.schemes, held.keys() & app.schemes.keys())
    return [*declared, *(name for name, each in held.items() if name not in app.schemes and each.place)]


def secrets_of(credential: Credential) -> Mapping[str, str]:
    """The fields that must not be seen."""
    return {name: text for name in SECRETS if (text := getattr(credential, name))}


def _own_scheme(name: str, credential: Credential) -> SecurityScheme:
    """Of a credential that the document does not declare."""
    if credential.certificate is not None:
        return SecurityScheme(name=name, kind="mutual_tls")
    if credential.username is not None:
        return SecurityScheme(name=name, kind="basic", prefix="Basic")
    if credential.place is None:
        raise InvalidError(
            f"credentials.{name}: the document declares no scheme of this name; to send it all the same, say "
            "where by `place` (header, query or cookie) and `name`"
        )
    parameter = credential.name or "Authorization"
    if credential.place != "query" and not is_key_header(parameter):
        raise InvalidError(f"credentials.{name}.name: {parameter!r} cannot be the name of a {credential.place}")
    return SecurityScheme(name=name, kind="api_key", place=credential.place, parameter=parameter)


class StaticCredentials(Unrenewed):
    """Fulfils `Credentials`, by app and scheme. A token is sent where nothing else is in `Authorization`."""

    def __init__(
        self, credentials: Mapping[str, Mapping[str, Credential]], tokens: Mapping[str, str] | None = None
    ) -> None:
        self._credentials = credentials
        self._tokens = tokens or {}

    async def of(self, app: App, operation: Operation) -> Authentication:
        held = self._credentials.get(app.name, {})
        names = chosen_schemes(app, operation, held)
        parts = [authentication(app.schemes.get(name), held[name]) for name in names]
        if app.name in self._tokens and not any("Authorization" in each.headers for each in parts):
            parts.append(bearer(self._tokens[app.name]))
        return combined(parts)
